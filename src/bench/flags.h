/* bench/flags.h - flags shared by the parts of `tandem bench`: a generated model instead of a file.
 *
 *   static struct { engine_options engine; shape_flags shape; } flags = {.shape = SHAPE_DEFAULTS};
 *   OPT_ENGINE(flags.engine), OPT_SHAPE(flags.shape)
 *   if (!bench_check_shape(&flags.shape, flags.engine.path, &usage)) return 2;
 *   bench_choose_model(&flags.shape, &flags.engine, e) && cli_open_pages(&g, &flags.engine, e)
 *   shape_free(&flags.shape.target);                  after the model is open, or later */
#ifndef TANDEM_BENCH_FLAGS_H
#define TANDEM_BENCH_FLAGS_H
#include "bench/prompt_set.h"
#include "bench/provenance.h"
#include "bench/shape.h"
#include "cli/generate.h"

typedef struct {
    shape_spec  spec;
    bool        given, layers_given, quant_given; /* --shape, --layers and --quant were given */
    shape_image target, drafter;                  /* empty until they are made */
} shape_flags;
/* clang-format off */
#define SHAPE_DEFAULTS {.spec = {.seed = 1}}
#define OPT_SHAPE(f)                                                                                                   \
    {.name = "shape", .kind = OPT_CHOICE, .dest = &(f).spec.shape, .arg = "SHAPE", .choices = shape_names,             \
     .given = &(f).given,                                                                                              \
     .help  = "random weights with the shape of 26b-a4b, 31b, e2b, mini, 35b-a3b or 27b, generated in memory"},         \
    {.name = "layers", .kind = OPT_INT, .dest = &(f).spec.n_layers, .arg = "N", .min = 1, .max = SHAPE_MAX_LAYERS,     \
     .given = &(f).layers_given, .help = "layers of the shape (default: as many as the real model)"},                  \
    {.name = "quant", .kind = OPT_CHOICE, .dest = &(f).spec.quant, .arg = "TYPE", .choices = shape_quants,             \
     .given = &(f).quant_given,                                                                                        \
     .help = "type of its matrices: q4_0 (default), q8_0, q4_k, q5_k, q6_k, q5_0, iq4_xs, mxfp4, bf16, f16 or f32"}
#define OPT_WORDS(flag, list, text) {.name = (flag), .kind = OPT_STR, .dest = &(list), .arg = "LIST", .help = (text)}
#define PROMPTS_HELP                                                                                                   \
    "own prompts: a text a line, or JSON lines such as {\"class\": \"code\", \"prompt\": \"...\"} (default: built-in)"
#define OPT_PROMPTS(path, text) {.name = "prompts", .kind = OPT_STR, .dest = &(path), .arg = "FILE", .help = (text)}
#define OPT_PROMPT_TOKENS(n, max_n, was_given, text)                                                                    \
    {.name = "prompt-tokens", .kind = OPT_INT, .dest = &(n), .arg = "N", .min = 1, .max = (max_n),                      \
     .given = (was_given), .help = (text)}
#define OPT_REPEATS(n, max_n, was_given, text)                                                                          \
    {.name = "repeats", .kind = OPT_INT, .dest = &(n), .arg = "N", .min = 1, .max = (max_n), .given = (was_given),      \
     .help = (text)}
#define OPT_RESULT(json, no_hash)                                                                                      \
    {.name = "json", .kind = OPT_STR, .dest = &(json), .arg = "FILE",                                    \
     .variable = "JSON_FILE", .help = "also write the results to this file"},                                                  \
    OPT_NO_HASH(no_hash)
/* clang-format on */

/* Checks for flags that exclude each other. Returns false after printing a message (exit 2). path: --model, or NULL. */
bool bench_check_shape(const shape_flags *f, const char *path, const opt_spec *usage);
/* Sets the model to open in opt: the shape, which it generates, or the path with nano resolved. opt borrows from f. */
bool bench_choose_model(shape_flags *f, engine_options *opt, err *e);
/* Generates the drafter of the shape and adds it to opt, unless files were given. Does nothing without a shape. opt
 * borrows from f until the drafter is closed. */
bool bench_choose_drafter(shape_flags *f, draft_options *opt, err *e);
/* Sets up *p to make questions in the model's chat format, or random ids for a model that was opened without text or
 * has no usable tokenizer or template, with a warning. Borrows g. Free it with prompts_deinit. */
bool bench_init_prompts(prompt_maker *p, const opened_model *g, err *e);
/* Prints "MODEL on DEVICE (its kernels), threads, K/V", the beginning of the first line of a table, without a newline.
 */
void bench_print_engine(const opened_model *g, const char *path, const kv_types *kv);

/* --- of the parts that compare methods ----------------------------------------------------------- */
typedef struct {
    generate_flags gen;
    shape_flags    shape;
    const char    *methods, *prompts; /* NULL: not given */
    bool           no_hash;
} method_flags;
#define METHOD_DEFAULTS                                                                                                \
    {                                                                                                                  \
        .gen = GENERATE_DEFAULTS, .shape = SHAPE_DEFAULTS                                                              \
    }
/* Checks for flags that a measurement cannot use. Returns false after printing a message (exit 2). Sets the defaults of
 * flags that were not given: seed 1; -n: `answer` or, if that is 0, 256 (128 for a shape). */
bool        bench_check_methods(method_flags *f, int answer, const opt_spec *usage);
const char *bench_model_path(const method_flags *f); /* NULL: a shape, which has none */
#endif
