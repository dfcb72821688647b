/* cli/generate.h - flags, requesting a response and showing it: shared by run and chat. bench and serve use parts of
 * it. The engine caches prefixes, so a conversation that is rendered again each turn costs only its new part. */
#ifndef TANDEM_CLI_GENERATE_H
#define TANDEM_CLI_GENERATE_H
#include "chat/stream.h"
#include "cli/cli.h"
#include "sched/engine.h"

enum { GENERATE_MAX_CONTEXT = 1 << 24 };

typedef char kv_texts[4][CACHE_TYPES_TEXT]; /* the types, and sparse_fa */

/* --- flags -------------------------------------------------------------------------------------- */
typedef struct {
    int                method; /* spec_method or SPEC_AUTO */
    bool               method_given, chain_seed;
    tandem_speculation with; /* without the method and no_chain_seed: see generate_speculation */
} speculation_flags;

typedef struct {
    engine_options    engine;
    int               max_tokens; /* -1: no limit */
    kv_texts          kv_text;    /* storage of the types in tandem_options; set by generate_open */
    int               logprobs;   /* -1: none */
    speculation_flags spec;       /* generate_open sets the default of the method */
    draft_options     draft;
    float             temp, top_p, min_p, repeat, presence, frequency;
    int               top_k;
    uint64_t          seed;
    const char       *bias;  /* "ID:BIAS,ID:BIAS" */
    opt_list          stops; /* strings */
    const char       *system;
    const char       *session_dir; /* NULL: none */
    bool              think, stats;
    bool              temp_given, top_k_given, top_p_given, min_p_given, seed_given;
} generate_flags;

#define GENERATE_DEFAULTS                                                                                              \
    {                                                                                                                  \
        .engine = {.kv = {.types = KV_TYPES_ALL(CACHE_F16)}}, .max_tokens = -1, .logprobs = -1, .repeat = 1, .spec = { \
            .chain_seed = true                                                                                         \
        }                                                                                                              \
    }
/* Sets the types of K and V of o. The strings are in text. */
void generate_set_kv(tandem_options *o, const kv_types *types, kv_texts text);

/* The entries of an option table for the flags in `f`. */
/* clang-format off */
#define OPT_KV(engine) OPT_KV_TYPE(engine, "f16"), OPT_KV_SLIDING(engine), OPT_KV_DRAFT(engine), OPT_SPARSE(engine)
#define OPT_CONTEXT(engine)                                                                                            \
    {.name = "ctx", .kind = OPT_INT, .dest = &(engine).n_ctx, .arg = "N", .min = 1, .max = GENERATE_MAX_CONTEXT,       \
     .help = "positions of context (default: the model's, at most 8192)"},                                             \
    OPT_KV(engine),                                                                                                    \
    {.name = "kv-bytes", .kind = OPT_BYTES, .dest = &(engine).kv_bytes, .arg = "BYTES",                                \
     .help = "size of the K/V cache, such as 2G (default: as the context needs)"}
/* The flags of speculation. f: speculation_flags, d: draft_options. */
#define OPT_SPECULATION(f, d)                                                                                          \
    {.name = "spec", .kind = OPT_CHOICE, .dest = &(f).method, .arg = "METHOD", .choices = spec_method_names,           \
     .given = &(f).method_given,                                                                                       \
     .help = "speculation, which never changes the text: off, dflash, tree, mtp, ngram or auto (default auto; off in "  \
             "run and chat without a drafter); a server uses no other method"},                                        \
    OPT_DRAFT(d),                                                                                                      \
    {.name = "draft-max", .kind = OPT_INT, .dest = &(f).with.draft_max, .arg = "N", .min = 1, .max = DRAFT_MAX,        \
     .help = "maximum length of a chain of draft tokens (default: a DFlash drafter's block, 3 for mtp, 8 for "         \
              "ngram; auto: up to 7 and 16)"},                                                                         \
    {.name = "tree-budget", .kind = OPT_INT, .dest = &(f).with.tree_budget, .arg = "N", .min = 1, .max = DRAFT_MAX,    \
     .help = "maximum of draft tokens in a tree (default 22)"},                                                        \
    {.name = "tree-temp", .kind = OPT_REAL, .dest = &(f).with.tree_temp, .arg = "T", .min = 0.001, .max = 100,         \
     .help = "above 1: wider trees; below 1: deeper trees (default 1)"},                                               \
    {.name = "tree-chain-seed", .kind = OPT_SWITCH, .dest = &(f).chain_seed, .arg = "on|off",                          \
     .help = "include the likeliest chain in a tree (default on)"},                                                    \
    {.name = "draft-noise", .kind = OPT_REAL, .dest = &(f).with.draft_noise, .arg = "R", .min = 0, .max = 1,           \
     .help = "temperature of drafting as a share of --temp (default 0: the likeliest token)"},                         \
    {.name = "draft-tail", .kind = OPT_INT, .dest = &(f).with.draft_tail, .arg = "N", .min = 0, .max = DRAFT_MAX,      \
     .help = "maximum of tokens from the text itself after a chain of dflash or mtp (default 0)"}
#define OPT_GENERATE(f)                                                                                                \
    OPT_ENGINE((f).engine),                                                                                            \
    OPT_MMPROJ((f).engine),                                                                                            \
    {.name = "max-tokens", .letter = 'n', .kind = OPT_INT, .dest = &(f).max_tokens, .arg = "N", .min = 0,              \
     .max = GENERATE_MAX_CONTEXT, .help = "stop after N tokens (default: at the end of the response or the context)"}, \
    OPT_CONTEXT((f).engine),                                                                                           \
    OPT_SPECULATION((f).spec, (f).draft),                                                                              \
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
    const tok     *tok;                   /* for the text of log-probabilities; may be NULL */
    tandem_request request;               /* from the flags; the caller may change it before generate */
    tandem_bias    bias[TANDEM_MAX_BIAS]; /* storage of request.bias */
    /* Set by the caller after generator_init: receives each token, in order, on the thread of generate. Required. */
    void (*on_token)(void *ctx, int32_t id, bool is_stop);
    void         *ctx;
    media_prompt *media;  /* pictures of the prompt, borrowed; set by the caller; NULL: none */
    tandem_result result; /* result of the last response that ended */
} generator;              /* must not move after generator_init */

/* Sets resolved drafters in tandem_options. o borrows d and `room`, which must live until the engine is open. */
void generate_set_drafters(tandem_options *o, const draft_options *d, tandem_drafter room[OPT_LIST_MAX]);
/* Returns whether the method may use a drafter with weights. */
bool generate_uses_drafters(const speculation_flags *f);
/* Logs a warning if there is no drafter for the method: the text is the same without. */
void generate_check_method(const tandem *t, const speculation_flags *f);
/* Opens an engine with one lane for the model of f->engine, whose path is resolved, and its drafters. Shows a progress
 * bar. Sets the method in f if the user gave none: auto with a drafter, else off. files, need_tok: as in engine_extra.
 * Close *out with tandem_close; it is NULL on failure. */
bool generate_open(tandem **out, generate_flags *f, const checkpoint *files, const char *need_tok, err *e);
/* Sets all fields from the flags. Borrows t. ERR_INPUT: --logit-bias is wrong. There is nothing to free. */
bool generator_init(generator *a, tandem *t, const generate_flags *f, err *e);
/* Generates one response, until a stop token, the limit, the end of the context or Ctrl-C, which is not an error.
 * Prints log-probabilities to stderr if they were requested, and flushes standard output after the tokens of each
 * wake-up. The callbacks of the request are not called after it returns. */
bool generate(generator *a, const tok_ids *prompt, err *e);
void generate_print_stats(const generator *a); /* prints a->result to stderr */

/* Checks a prompt: not empty, room for a response (unless max_tokens is 0), ids below n_vocab. */
bool generate_check(const tok_ids *prompt, int n_ctx, int n_vocab, int max_tokens, err *e);
/* Returns f->with, and the method and no_chain_seed of the flags. */
tandem_speculation generate_speculation(const speculation_flags *f);
/* Applies the flags to a request with the model's defaults. r borrows `bias`, which stores the biases. */
bool generate_apply(tandem_request *r, const generate_flags *f, int n_vocab, tandem_bias bias[TANDEM_MAX_BIAS], err *e);

/* --- showing an answer -------------------------------------------------------------------------- */
/* Writes content and tool calls to standard output as they arrive, and reasoning if show_thoughts is set (dimmed on a
 * terminal). All are also stored, calls as content. */
typedef struct {
    chat_stream     answer;
    bool            show_thoughts, colour, started; /* started: something was shown */
    chat_event_kind last;                           /* kind of the last event shown; all parts of calls count as one */
    buf             content, reasoning;
} answer_view; /* must not move while it is in use */

/* Sets up *v for a response to a prompt that ended inside a thought (in_thought) or not. Ends the content at the stop
 * strings of f. Borrows t, and the strings of f. */
void view_init(answer_view *v, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought);
void view_deinit(answer_view *v);
void view_put(answer_view *v, int32_t id); /* adds a token */
/* Shows the text that was held back, ends the line and flushes. Fails as chat_stream_finish and cli_flush do. */
bool view_finish(answer_view *v, err *e);

/* Sets up *a to end a response at the stop strings of the flags: pass chat_stream_on_token and a as
 * tandem_request.on_token and its ctx. The engine thread uses *a until the response has ended. Free it with
 * chat_stream_deinit. Borrows as view_init. */
void generate_watch(chat_stream *a, const tok *t, const generate_flags *f, const chat_options *o, bool in_thought);

/* Checks the flags before a model is opened. Returns false after printing a message (exit 2). */
bool generate_check_flags(const generate_flags *f, const opt_spec *usage);
/* Initialises m with the stop strings of the flags, which it borrows. Call generate_check_flags before. */
void generate_init_stops(stop_match *m, const generate_flags *f);
#endif
