/* cli/generate.h - shared by run and chat: flags, requesting a response and showing it.
  * The engine caches prefixes, so a conversation that is rendered again each turn costs only its new part. */
#ifndef TANDEM_CLI_GENERATE_H
#define TANDEM_CLI_GENERATE_H
#include "chat/stream.h"
#include "cli/cli.h"
#include "sched/engine.h"

enum { GENERATE_MAX_CONTEXT = 1 << 24 };

/* --- flags -------------------------------------------------------------------------------------- */
typedef struct {
    engine_options     engine;
    int                max_tokens; /* -1: no limit */
    char               kv_text[CACHE_TYPES_TEXT];
    int                logprobs;
    int                method; /* spec_method or SPEC_AUTO */
    tandem_speculation spec;
    bool               chain_seed;
    draft_options      draft;
    float              temp, top_p, min_p, repeat, presence, frequency;
    int                top_k;
    uint64_t           seed;
    const char        *bias;  /* "ID:BIAS,ID:BIAS" */
    opt_list           stops; /* strings */
    const char        *system;
    bool               think, stats;
    bool               temp_given, top_k_given, top_p_given, min_p_given, seed_given, method_given;
} generate_flags;

#define GENERATE_DEFAULTS                                                                                              \
    {                                                                                                                  \
        .engine = {.kv_type = {CACHE_F16, CACHE_F16}}, .max_tokens = -1, .logprobs = -1, .repeat = 1,                  \
        .chain_seed = true                                                                                             \
    }
bool generate_parse_kv(void *dest, const char *value, err *e); /* dest: cache_types */

/* The entries of an option table for the flags in `f`. */
/* clang-format off */
#define OPT_KV(engine)                                                                                                 \
    {.name = "kv", .kind = OPT_PARSED, .dest = &(engine).kv_type, .arg = "TYPE", .parse = generate_parse_kv,           \
     .help = "K/V cache: f16 or f32, or K and V apart as in f16/f32 (default f16)"}
#define OPT_CONTEXT(engine)                                                                                            \
    {.name = "ctx", .kind = OPT_INT, .dest = &(engine).n_ctx, .arg = "N", .min = 1, .max = GENERATE_MAX_CONTEXT,       \
     .help = "positions of context (default: the model's, at most 8192)"},                                             \
    OPT_KV(engine),                                                                                                    \
    {.name = "kv-bytes", .kind = OPT_BYTES, .dest = &(engine).kv_bytes, .arg = "BYTES",                                \
     .help = "size of the K/V cache, such as 2G (default: as the context needs)"}
#define OPT_GENERATE(f)                                                                                                \
    OPT_ENGINE((f).engine),                                                                                            \
    {.name = "max-tokens", .letter = 'n', .kind = OPT_INT, .dest = &(f).max_tokens, .arg = "N", .min = 0,              \
     .max = GENERATE_MAX_CONTEXT, .help = "stop after N tokens (default: at the end of the response or the context)"}, \
    OPT_CONTEXT((f).engine),                                                                                           \
    {.name = "spec", .kind = OPT_CHOICE, .dest = &(f).method, .arg = "METHOD", .choices = spec_method_names,           \
     .given = &(f).method_given,                                                                                       \
     .help = "speculation, which never changes the text: off, dflash, tree, mtp, ngram or auto (default auto with "    \
             "a drafter, off without)"},                                                                               \
    OPT_DRAFT((f).draft),                                                                                              \
    {.name = "draft-max", .kind = OPT_INT, .dest = &(f).spec.draft_max, .arg = "N", .min = 1, .max = DRAFT_MAX,        \
     .help = "maximum length of a chain of draft tokens (default: a DFlash drafter's block, 3 for mtp, 8 for "         \
              "ngram; auto: up to 7 and 16)"},                                                                         \
    {.name = "tree-budget", .kind = OPT_INT, .dest = &(f).spec.tree_budget, .arg = "N", .min = 1, .max = DRAFT_MAX,    \
     .help = "maximum of draft tokens in a tree (default 22)"},                                                        \
    {.name = "tree-temp", .kind = OPT_REAL, .dest = &(f).spec.tree_temp, .arg = "T", .min = 0.001, .max = 100,         \
     .help = "above 1: wider trees; below 1: deeper trees (default 1)"},                                               \
    {.name = "tree-chain-seed", .kind = OPT_SWITCH, .dest = &(f).chain_seed, .arg = "on|off",                          \
     .help = "include the likeliest chain in a tree (default on)"},                                                    \
    {.name = "draft-noise", .kind = OPT_REAL, .dest = &(f).spec.draft_noise, .arg = "R", .min = 0, .max = 1,           \
     .help = "temperature of drafting as a share of --temp (default 0: the likeliest token)"},                        \
    {.name = "temp", .kind = OPT_REAL, .dest = &(f).temp, .arg = "T", .min = 0, .max = 100, .given = &(f).temp_given,  \
     .help = "temperature; 0 is greedy (default: the model's)"},                                                       \
    {.name = "top-k", .kind = OPT_INT, .dest = &(f).top_k, .arg = "K", .min = 0, .max = 1 << 22,                       \
     .given = &(f).top_k_given, .help = "keep the K likeliest tokens; 0: all"},                                        \
    {.name = "top-p", .kind = OPT_REAL, .dest = &(f).top_p, .arg = "P", .min = 0, .max = 1, .given = &(f).top_p_given, \
     .help = "keep the likeliest tokens that reach P together; 1: all"},                                               \
    {.name = "min-p", .kind = OPT_REAL, .dest = &(f).min_p, .arg = "P", .min = 0, .max = 1, .given = &(f).min_p_given, \
     .help = "drop tokens under P times the likeliest; 0: none"},                                                      \
    {.name = "seed", .kind = OPT_U64, .dest = &(f).seed, .arg = "N", .given = &(f).seed_given,                         \
     .help = "seed of sampling: the same seed, prompt and options give the same text"},                                \
    {.name = "repeat-penalty", .kind = OPT_REAL, .dest = &(f).repeat, .arg = "R", .min = 0.01, .max = 100,             \
     .help = "divides the logits of tokens in the prompt and response; 1: off"},                                       \
    {.name = "presence-penalty", .kind = OPT_REAL, .dest = &(f).presence, .arg = "P", .min = -100, .max = 100,         \
     .help = "subtracted from the logits of tokens that the response contains; 0: off"},                               \
    {.name = "frequency-penalty", .kind = OPT_REAL, .dest = &(f).frequency, .arg = "P", .min = -100, .max = 100,       \
     .help = "subtracted once for each time that the response contains a token; 0: off"},                              \
    {.name = "logit-bias", .kind = OPT_STR, .dest = &(f).bias, .arg = "LIST",                                          \
     .help = "added to logits: ID:BIAS,ID:BIAS; -inf bans a token"},                                                   \
    {.name = "stop", .kind = OPT_LIST, .dest = &(f).stops, .arg = "TEXT",                                              \
     .help = "end the response before this text; may be repeated"},                                           \
    {.name = "logprobs", .kind = OPT_INT, .dest = &(f).logprobs, .arg = "N", .min = 0, .max = TANDEM_MAX_LOGPROBS,   \
     .help = "a JSON line on stderr for each token: its log-probability and the N likeliest"},                         \
    {.name = "system", .kind = OPT_STR, .dest = &(f).system, .arg = "TEXT",                                            \
     .help = "system instructions"},                                                        \
    {.name = "think", .kind = OPT_FLAG, .dest = &(f).think,                                                            \
     .help = "let the model think first and show its thoughts, dimmed on a terminal"},                                \
    {.name = "stats", .kind = OPT_FLAG, .dest = &(f).stats, .help = "print speed and counts to stderr after a response"}
/* clang-format on */

/* --- an answer ---------------------------------------------------------------------------------- */
typedef struct {
    tandem        *t;
    const tok     *tok; /* for the text of log-probabilities; may be NULL */
    tandem_request request;
    tandem_bias    bias[TANDEM_MAX_BIAS];
    void (*on_token)(void *ctx, int32_t id, bool is_stop); /* each token, in order */
    void *ctx;
    /* results of the last response */
    tandem_result result;
} generator;

/* Sets the drafters of the flags in tandem_options; `room` must live until the engine is open. */
bool generate_add_drafters(tandem_options *o, draft_options *d, bool model_is_nano, tandem_drafter room[OPT_LIST_MAX],
                           err *e);
/* Opens the model and its drafters. files, need_tok: as in engine_extra. */
bool generate_open(tandem **out, generate_flags *f, const checkpoint *files, const char *need_tok, err *e);
bool generator_init(generator *a, tandem *t, const generate_flags *f, err *e);
/* Generates one response, until a stop token, the limit, the end of the context or Ctrl-C. */
bool generate(generator *a, const tok_ids *prompt, err *e);
void generate_print_stats(const generator *a);

/* Checks a prompt: not empty, room for a response, valid token ids. */
bool               generate_check(const tok_ids *prompt, int n_ctx, int n_vocab, int max_tokens, err *e);
tandem_speculation generate_speculation(const generate_flags *f);
/* Applies the flags to a request with the model's defaults. `bias` stores their bias. */
bool generate_apply(tandem_request *r, const generate_flags *f, int n_vocab, tandem_bias bias[TANDEM_MAX_BIAS], err *e);

/* --- showing an answer -------------------------------------------------------------------------- */
/* Writes content to standard output as it arrives, and reasoning if show_thoughts is set (dimmed on a terminal). Both
 * are also stored. */
typedef struct {
    chat_stream     answer;
    bool            show_thoughts, colour, started;
    chat_event_kind last; /* shown */
    buf             content, reasoning;
} answer_view;

void view_init(answer_view *v, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought);
void view_deinit(answer_view *v);
void view_put(answer_view *v, int32_t id);
bool view_finish(answer_view *v, err *e); /* ends the line */

/* Parses the same response on the engine thread and ends it at the stop strings of the flags. For
 * tandem_request.on_token. */
void generate_watch(chat_stream *a, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought);

/* Checks the flags before a model is opened. Returns false after printing a message (exit 2). */
bool generate_check_flags(const generate_flags *f, const opt_spec *usage);
void generate_add_stops(stop_match *m, const generate_flags *f);
#endif
