/* tokenize and detokenize: the same two ways in (arguments or standard input, whole or line by line). */
#include "cli/cli.h"

#include <stdio.h>

static struct {
    const char *path;
    bool        lines, bos, special;
} flags;

#define OPT_TOK_MODEL                                                                                                  \
    {.name   = "model",                                                                                                \
     .letter = 'm',                                                                                                    \
     .kind   = OPT_STR,                                                                                                \
     .dest   = &flags.path,                                                                                            \
     .arg    = "MODEL",                                                                                                \
     .help   = "GGUF file, Hugging Face directory, tokenizer.json, nano, nano-qwen or nano-vision (default nano)"},      \
    {                                                                                                                  \
        .name = "lines", .kind = OPT_FLAG, .dest = &flags.lines, .help = "one text or list of ids a line"              \
    }

static const option tokenize_opts[] = {
    OPT_TOK_MODEL,
    {.name = "bos", .kind = OPT_FLAG, .dest = &flags.bos, .help = "start with the beginning-of-text token"},
    {.name = "special", .kind = OPT_FLAG, .dest = &flags.special, .help = "find markers such as <|turn> in the text"},
    OPT_LOGGING,
};
static const opt_spec tokenize_spec     = {"tokenize", "tokenize [-m MODEL] [FLAGS] [TEXT]",
                                           "Prints the token ids of TEXT, or of standard input, separated by spaces.",
                                           tokenize_opts, COUNT(tokenize_opts)};
static const option   detokenize_opts[] = {
      OPT_TOK_MODEL,
      {.name = "special", .kind = OPT_FLAG, .dest = &flags.special, .help = "print control tokens such as <bos> too"},
      OPT_LOGGING,
};
static const opt_spec detokenize_spec = {"detokenize", "detokenize [-m MODEL] [FLAGS] [IDS]",
                                         "Prints the text of IDS, or of the ids on standard input.", detokenize_opts,
                                         COUNT(detokenize_opts)};

typedef bool piece_fn(const tok *t, str piece, err *e);

static bool tokenize_piece(const tok *t, str piece, err *e)
{
    tok_ids ids;
    tok_ids_init(&ids, TOK_MAX_INPUT + 1);
    if (flags.bos && tok_bos(t) >= 0) tok_ids_put(&ids, tok_bos(t));
    bool ok = tok_encode(t, &ids, piece, flags.special, e);
    for (size_t i = 0; ok && i < ids.n; i++) printf("%s%d", i ? " " : "", ids.p[i]);
    if (ok) putchar('\n');
    tok_ids_deinit(&ids);
    return ok;
}

static bool detokenize_piece(const tok *t, str piece, err *e)
{
    tok_ids ids;
    buf     text;
    tok_ids_init(&ids, TOK_MAX_INPUT);
    buf_init(&text, (size_t)1 << 32);
    bool ok = cli_parse_ids(&ids, piece, tok_size(t), e);
    if (ok) {
        tok_decode(t, ids.p, ids.n, flags.special, &text);
        if (flags.lines) buf_putc(&text, '\n');
        ok = text.failed ? err_set(e, ERR_TOO_LARGE, "the text is too long") : true;
    }
    if (ok) cli_print(buf_str(&text));
    buf_deinit(&text);
    tok_ids_deinit(&ids);
    return ok;
}

static bool each_line(const tok *t, str all, piece_fn *fn, err *e)
{
    for (size_t at = 0, n = 1; at < all.n; n++) {
        const char *end = memchr(all.s + at, '\n', all.n - at);
        size_t      len = end ? (size_t)(end - all.s) - at : all.n - at;
        if (!fn(t, (str){all.s + at, len}, e)) return err_wrap(e, "line %zu", n);
        at += len + 1;
    }
    return true;
}

static bool work(piece_fn *fn, int n_args, char **args, err *e)
{
    tok *t;
    buf  in;
    if (!open_tok(&t, flags.path, e)) return false;
    buf_init(&in, flags.lines ? (size_t)1 << 32 : TOK_MAX_INPUT);
    bool ok =
        cli_input(&in, n_args, args, e) && (flags.lines ? each_line(t, buf_str(&in), fn, e) : fn(t, buf_str(&in), e));
    buf_deinit(&in);
    tok_free(t);
    return ok;
}

static int command(const opt_spec *usage, piece_fn *fn, int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(usage, argc, args, &n_args, &code)) return code;
    if (!cli_resolve_model(&flags.path, &e)) return cli_fail(&e);
    return work(fn, n_args, args, &e) ? 0 : cli_fail(&e);
}

int cmd_tokenize(int argc, char **args) { return command(&tokenize_spec, tokenize_piece, argc, args); }
int cmd_detokenize(int argc, char **args) { return command(&detokenize_spec, detokenize_piece, argc, args); }
