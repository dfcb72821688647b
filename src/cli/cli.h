/* cli/cli.h - the commands, and what they share. Each command returns the process's exit code. */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H
#include "base/buf.h"
#include "base/mem.h"
#include "cli/options.h"
#include "model/model.h"
#include "ops/history.h"
#include "tok/tok.h"

int cmd_run(int argc, char **args);
int cmd_chat(int argc, char **args);
int cmd_logits(int argc, char **args);
int cmd_draft(int argc, char **args);
int cmd_tokenize(int argc, char **args);
int cmd_detokenize(int argc, char **args);
int cmd_inspect(int argc, char **args);
int cmd_convert(int argc, char **args);
int cmd_quantize(int argc, char **args);

/* Prints "tandem: sentence" and returns 1. */
int cli_fail(const err *e);
/* To standard output, buffered; cli_flush sends it and says when it cannot be written. */
void cli_print(str s);
bool cli_flush(err *e);
/* All of standard input, or with n_args > 0 the arguments joined by spaces. */
bool cli_input(buf *out, int n_args, char **args, err *e);
/* "2,15,9" or "2 15 9": ids from 0 to n_vocab - 1 (n_vocab 0: any). */
bool cli_parse_ids(tok_ids *out, str text, int32_t n_vocab, err *e);
/* A directory that cannot be written to is found out before the work, not after. */
bool cli_check_output(const char *path, err *e);
/* "nano", or no path at all: the model inside this program, under a path that only this process can open. */
bool cli_resolve_model(const char **path, err *e);
/* The tokenizer of a GGUF file, of a Hugging Face directory, or a tokenizer.json itself. */
bool cli_open_tok(tok **out, const char *path, err *e);

/* A model, ready to run one sequence. */
typedef struct {
    const char *path;
    int         device;           /* index into engine_devices */
    int         n_threads, n_ctx; /* 0: the default */
    quant_type  kv_type;
} engine_options;
extern const char *const engine_devices[];
/* clang-format off */
#define OPT_THREADS(n)                                                                                                 \
    {.name = "threads", .kind = OPT_INT, .dest = &(n), .arg = "N", .min = 1, .max = 256,                               \
     .help = "processor threads (default: all that this process may use)"}
#define OPT_SPLIT(bytes)                                                                                               \
    {.name = "split-size", .kind = OPT_BYTES, .dest = &(bytes), .arg = "BYTES",                                        \
     .help = "write parts of at most this size, such as 4G (default: one file)"}
#define OPT_ENGINE(f)                                                                                                  \
    {.name = "model", .letter = 'm', .kind = OPT_STR, .dest = &(f).path, .arg = "MODEL",                               \
     .help = "GGUF file, Hugging Face directory, or nano, the small one inside (default nano)"},                                                                   \
    OPT_THREADS((f).n_threads),                                                                                        \
    {.name = "device", .kind = OPT_CHOICE, .dest = &(f).device, .arg = "NAME", .choices = engine_devices,              \
     .help = "auto, cpu, or ref (slow, exact)"}
/* clang-format on */
/* Opens and closes the files: what is wrong with them is said before anything takes long. */
bool engine_probe(const char *path, err *e);
typedef struct {
    target       *model;
    kv_pool      *kv;
    kv_seq       *seq;
    int           n_ctx;
    step          step; /* scratch */
    dev           pick_params, picked, changes, logprobs;
    logit_change *host_changes;
    size_t        max_changes; /* that fit both */
} engine;

/* How the next token is picked; the history and its penalties may be NULL, n_top -1 asks for no log-probabilities. */
typedef struct {
    sample_params         params;
    const history        *history;
    const penalty_params *penalty;
    int                   n_top;
    token_logprob        *logprobs; /* [1 + n_top] */
} engine_pick_options;
enum { ENGINE_MAX_TOP = 20 };

bool engine_open(engine *g, const engine_options *opt, err *e);
void engine_close(engine *g); /* a zeroed one is fine */
/* Appends ids at the sequence's end, in steps of at most the model's rows; the last one's logits can be picked from. */
bool engine_feed(engine *g, const int32_t *id, int n, err *e);
/* The token after what was fed. */
bool engine_pick(engine *g, const engine_pick_options *o, int32_t *out, err *e);

/* A bar on stderr for work that takes over a second. */
typedef struct {
    const char *what;
    double      start, shown; /* seconds */
    bool        open;
} progress_bar;
void progress_start(progress_bar *b, const char *what);
void progress_show(void *bar, size_t done, size_t total); /* fits model_options.progress */
void progress_end(progress_bar *b);
#endif
