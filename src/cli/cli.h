/* cli/cli.h - the commands and their common functions.
 *
 * A command gets the arguments after its name (args[0] is the first of argc) and returns the exit code of the process;
 * main calls cli_flush after it. */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H
#include "base/buf.h"
#include "base/mem.h"
#include "cli/options.h"
#include "sched/open.h"

#include <signal.h>

int cmd_serve(int argc, char **args);
int cmd_daemon(int argc, char **args);
int cmd_run(int argc, char **args);
int cmd_chat(int argc, char **args);
int cmd_logits(int argc, char **args);
int cmd_draft(int argc, char **args);
int cmd_bench(int argc, char **args);
int cmd_tokenize(int argc, char **args);
int cmd_detokenize(int argc, char **args);
int cmd_inspect(int argc, char **args);
int cmd_convert(int argc, char **args);
int cmd_quantize(int argc, char **args);
int cmd_loadtest(int argc, char **args);
int cmd_key(int argc, char **args);

/* Prints "tandem: " and the text of e on stderr, and returns 1. */
int cli_fail(const err *e);
/* Writes to standard output, buffered. cli_flush writes the buffer and fails if this or an earlier write failed. */
void cli_print(str s);
bool cli_flush(err *e);
/* Appends to out all of standard input, or with n_args > 0 the arguments, joined by spaces. */
bool cli_input(buf *out, int n_args, char **args, err *e);
/* Parses "2,15,9" or "2 15 9" and appends to out: ids from 0 to n_vocab - 1 (n_vocab 0: any). On failure the ids before
 * the wrong one were appended. */
bool cli_parse_ids(tok_ids *out, str text, int32_t n_vocab, err *e);
/* Returns `asked`, at most the number of processors that this process may use. 0 stays 0, the default. */
int cli_threads(int asked);
/* Checks before the work begins that the directory of `path` can be written. Does not open or create the file. */
bool cli_check_output(const char *path, err *e);
/* Sets cli_stop when SIGINT, SIGTERM or SIGHUP comes, so that a command can remove an unfinished file; a second signal
 * ends the process. cli_end_stopped ends the process as that signal does, if there was one. */
extern volatile sig_atomic_t cli_stop;
void                         cli_catch_stop(void);
void                         cli_end_stopped(void);
/* Replaces "nano" (also NULL), "nano-qwen" or "nano-vision" by a path of the built-in model that only this process can
 * open and that stays valid until it ends. Leaves other paths as they are. The functions after it take resolved paths,
 * also those of cli_resolve_drafters, and return a constant or a part of `path`. */
bool cli_resolve_model(const char **path, err *e);
/* Returns the encoder of pictures to open with a resolved model: `given` (--mmproj), else a built-in model's own. */
const char *cli_encoder(const char *model, const char *given);
const char *cli_path_name(const char *path); /* in messages: the path, or for a built-in part a name such as nano-mtp */
const char *cli_id(const char *path);        /* name on a server: the last part of the path, or the built-in part's */
const char *cli_shown_path(const char *path); /* as the user wrote it: "nano" for nano's parts */

/* model: the name or the resolved path of a built-in one, for the second function always. out: the paths of its DFlash
 * drafter and of its assistant or MTP head. */
bool cli_is_built_in(const char *model);
bool cli_unpack_drafters(const char *model, const char *out[2], err *e);

/* The types of K and V that the options give. The parsers keep those of sliding layers and of drafters in step with
 * --kv until they are given. dest: kv_flags. */
typedef struct {
    kv_types types;
    bool     sliding_given, draft_given;
} kv_flags;
bool cli_parse_kv(void *dest, const char *value, err *e);
bool cli_parse_kv_sliding(void *dest, const char *value, err *e);
bool cli_parse_kv_draft(void *dest, const char *value, err *e);
bool cli_parse_sparse(void *dest, const char *value, err *e);
/* clang-format off */
#define OPT_KV_TYPE(engine, default_type)                                                                              \
    {.name = "kv", .kind = OPT_PARSED, .dest = &(engine).kv, .arg = "TYPE", .parse = cli_parse_kv,                     \
     .help = "K/V cache: f16, f32, q8_0, q4_0 or tq3, or K and V apart as in k=q8_0,v=q4_0 (default " default_type ")"}
#define OPT_KV_SLIDING(engine)                                                                                         \
    {.name = "kv-sliding", .kind = OPT_PARSED, .dest = &(engine).kv, .arg = "TYPE", .parse = cli_parse_kv_sliding,     \
     .help = "K/V cache of sliding layers (default: as --kv if that is f16 or f32, else f16)"}
#define OPT_KV_DRAFT(engine)                                                                                           \
    {.name = "kv-draft", .kind = OPT_PARSED, .dest = &(engine).kv, .arg = "TYPE", .parse = cli_parse_kv_draft,         \
     .help = "K/V cache of a DFlash drafter (default: as --kv if that is f16 or f32, else f16)"}
#define OPT_SPARSE(engine)                                                                                             \
    {.name = "sparse-fa", .kind = OPT_PARSED, .dest = &(engine).kv, .arg = "ALPHA", .parse = cli_parse_sparse,         \
     .help = "sparse attention from 4096 tokens on: share of the weight that may be dropped, below 1 (default 0: off)"}
/* clang-format on */

/* Options for opening a model. cli_open_pages ignores kv_bytes and more_lanes. */
typedef struct {
    const char *path;             /* resolved by cli_resolve_model; not NULL */
    str         image;            /* a GGUF file in memory, used instead of the path, which is then its name */
    int         device;           /* index into engine_devices */
    int         n_threads, n_ctx; /* 0: the default */
    kv_flags    kv;
    uint64_t    kv_bytes;     /* K/V memory of the loop; 0: as the context needs */
    float       memory_share; /* instead of it, of servers and daemons: as tandem_options has it */
    int         more_lanes;   /* lanes in addition to the first */
    bool        text;         /* open the tokenizer and the chat format */
    const char *mmproj;       /* these as model_options has them */
    ops *(*wrap)(ops *inner);
} engine_options;
extern const char *const engine_devices[]; /* names for --device; ends with NULL */
/* clang-format off */
#define OPT_THREADS(n)                                                                                                 \
    {.name = "threads", .kind = OPT_INT, .dest = &(n), .arg = "N", .min = 1, .max = 256,                               \
     .help = "maximum of CPU threads (default: all that this process may use)"}
#define OPT_IDS(ids)                                                                                                   \
    {.name = "ids", .kind = OPT_STR, .dest = &(ids), .arg = "LIST", .help = "token ids such as 2,15,9"}
#define OPT_OUTPUT(path)                                                                                               \
    {.name = "output", .letter = 'o', .kind = OPT_STR, .dest = &(path), .arg = "FILE",                                 \
     .help = "safetensors file to write"}
#define OPT_SPLIT(bytes)                                                                                               \
    {.name = "split-size", .kind = OPT_BYTES, .dest = &(bytes), .arg = "BYTES",                                        \
     .help = "write parts of at most this size, such as 4G (default: one file)"}
#define OPT_DEVICE(device)                                                                                             \
    {.name = "device", .kind = OPT_CHOICE, .dest = &(device), .arg = "NAME", .choices = engine_devices,                \
     .help = "auto (a GPU if there is one), cpu, cpu:avx2 (base, vnni), cuda, cuda:1, or ref (slow, exact)"}
#define OPT_MEMORY_SHARE(engine, with)                                                                                 \
    {.name = "memory-share", .kind = OPT_REAL, .dest = &(engine).memory_share, .arg = "SHARE", .min = 0.001, .max = 1, \
     .help = "share of the memory that is free on the device when the weights are loaded, for the K/V cache" with}
#define OPT_MMPROJ(f)                                                                                                  \
    {.name = "mmproj", .kind = OPT_STR, .dest = &(f).mmproj, .arg = "FILE",                                            \
     .help = "encoder of pictures for a GGUF model (default: mmproj*.gguf in its directory; none: no pictures)"}
#define OPT_ENGINE(f)                                                                                                  \
    {.name = "model", .letter = 'm', .kind = OPT_STR, .dest = &(f).path, .arg = "MODEL",                               \
     .help = "GGUF file, Hugging Face directory, or a built-in small model: nano, nano-qwen or nano-vision "            \
             "(default nano)"},                                                                                          \
    OPT_THREADS((f).n_threads),                                                                                        \
    OPT_DEVICE((f).device)
/* clang-format on */
/* Opens a model and shows a progress bar meanwhile. cli_open_pages opens it with pages, for commands that run steps
 * directly; cli_open_loop with the loop of spec/ and its first lane, m->lane. The caller closes *m with open_close;
 * after a failure it is closed already. */
bool cli_open_pages(opened_model *m, const engine_options *opt, err *e);
bool cli_open_loop(opened_model *m, const engine_options *opt, err *e);

/* Sources of drafters. */
typedef struct {
    opt_list    paths;  /* as given: files, directories, built-in models, auto; replaced by cli_resolve_drafters */
    bool        search; /* no path is given: as auto */
    bool        resolved, found; /* set by cli_resolve_drafters; found: the paths were not given */
    str         image;           /* one more, a GGUF file in memory, and its name */
    const char *image_name;
    int         n_ctx;    /* as drafter_options.n_ctx */
    int         window;   /* as drafter_options.window */
    int         quantise; /* index into open_draft_quants */
    bool        quantise_given;
    bool        lazy;                        /* as spec_draft_source.lazy */
    drafter *(*wrap)(void *ctx, drafter *d); /* as spec_draft_source's */
    void *wrap_ctx;
} draft_options;
/* clang-format off */
#define OPT_DRAFT(f)                                                                                                   \
    {.name = "draft", .kind = OPT_LIST, .dest = &(f).paths, .arg = "DRAFTER",                                          \
     .help = "DFlash drafter or MTP assistant (one of each may be given); mtp: the model's own MTP head; nano, "       \
             "nano-qwen: theirs; auto: what lies next to the model and fits (default of run, chat, serve and daemon); " \
             "none"},                                                                                                  \
    {.name = "draft-ctx", .kind = OPT_INT, .dest = &(f).n_ctx, .arg = "N", .min = 64, .max = 1 << 24,                  \
     .help = "context of a DFlash drafter in positions (default: its trained length, else 4096; DSpark: 16384)"},       \
    {.name = "draft-window", .kind = OPT_INT, .dest = &(f).window, .arg = "N", .min = 1, .max = 1 << 24,               \
     .help = "positions that a DFlash drafter's layers with full attention see (default: the whole context)"},         \
    {.name = "draft-quant", .kind = OPT_CHOICE, .dest = &(f).quantise, .arg = "TYPE",                                  \
     .given = &(f).quantise_given, .choices = open_draft_quants,                                                       \
     .help = "quantise drafters at load: none, q8_0 or q4_0 (default none)"},                                          \
    {.name = "lazy-draft", .kind = OPT_FLAG, .dest = &(f).lazy, .help = "load drafters when they are first used"}
/* clang-format on */
/* Adds the drafters to the loop of cli_open_loop. Call cli_resolve_drafters first. A drafter that cannot be used is
 * logged as a warning. Returns how many were added. */
int cli_add_drafters(opened_model *m, const draft_options *d, cache_types kv_type);
/* Replaces the name of a built-in model in d->paths by the paths of its two drafters, and "mtp" by `model`, the
 * resolved path of the model. If no path is given and the model is built in, adds its two. "auto", and no path with
 * d->search, are replaced by the drafters that find_drafters takes; each that it found is logged. "none" leaves none.
 * Later calls do nothing. files: those of the model; NULL: opened when they are needed. Fails if there are more than
 * OPT_LIST_MAX paths, and if "auto" or "none" is not the only one. */
bool cli_resolve_drafters(draft_options *d, const char *model, const checkpoint *files, err *e);

/* A progress bar on stderr for work that takes over a second. Shows nothing if stderr is not a terminal. */
typedef struct {
    const char *what;
    double      start, shown; /* seconds */
    bool        open, quiet;
    bool        no_bytes; /* set after progress_start: the count is not in bytes, so no MB/s are shown */
} progress_bar;
void progress_start(progress_bar *b, const char *what);   /* resets all of *b; keeps `what`, the text before the bar */
void progress_show(void *bar, size_t done, size_t total); /* fits model_options.progress */
void progress_end(progress_bar *b);                       /* erases the bar */
#endif
