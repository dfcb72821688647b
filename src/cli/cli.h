/* cli/cli.h - the commands, and what they share. Each command returns the process's exit code. */
#ifndef TANDEM_CLI_CLI_H
#define TANDEM_CLI_CLI_H
#include "base/buf.h"
#include "base/mem.h"
#include "cli/options.h"
#include "model/model.h"
#include "tok/tok.h"

int cmd_run(int argc, char **args);
int cmd_chat(int argc, char **args);
int cmd_logits(int argc, char **args);
int cmd_tokenize(int argc, char **args);
int cmd_detokenize(int argc, char **args);
int cmd_inspect(int argc, char **args);
int cmd_convert(int argc, char **args);
int cmd_quantize(int argc, char **args);

/* Prints "tandem: sentence" and returns 1. */
int cli_fail(const err *e);
/* All of standard input, or with n_args > 0 the arguments joined by spaces. */
bool cli_input(buf *out, int n_args, char **args, err *e);
/* "2,15,9" or "2 15 9": ids from 0 to n_vocab - 1 (n_vocab 0: any). */
bool cli_parse_ids(tok_ids *out, str text, int32_t n_vocab, err *e);
/* The tokenizer of a GGUF file, of a Hugging Face directory, or a tokenizer.json itself. */
bool cli_open_tok(tok **out, const char *path, err *e);

/* A model, ready to run one sequence. */
typedef struct {
    const char *path, *device;
    int         n_threads, n_ctx; /* 0: the default */
    quant_type  kv_type;
} engine_options;
typedef struct {
    target  *model;
    kv_pool *kv;
    kv_seq  *seq;
    int      n_ctx;
    step     step; /* scratch */
    dev      pick_params, picked;
} engine;

bool engine_open(engine *g, const engine_options *opt, err *e);
void engine_close(engine *g); /* a zeroed one is fine */
/* Appends ids at the sequence's end, in steps of at most the model's rows; the last one's logits can be picked from. */
bool engine_feed(engine *g, const int32_t *id, int n, err *e);
/* The token after what was fed. */
bool engine_pick(engine *g, const sample_params *p, int32_t *out, err *e);

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
