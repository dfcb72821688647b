#include "base/file.h"
#include "base/log.h"
#include "cli/generate.h"
#include "cli/pictures.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_FILE = 8 << 20 };

static struct {
    generate_flags gen;
    const char    *ids, *grammar, *schema;
    opt_list       files, images, videos;
    int            image_tokens;
    bool           raw, print_ids, ignore_eos;
} flags = {.gen = GENERATE_DEFAULTS};

static const option opts[] = {
    OPT_GENERATE(flags.gen),
    {.name = "file",
     .kind = OPT_LIST,
     .dest = &flags.files,
     .arg  = "FILE",
     .help = "put a text file before the prompt; may be repeated"},
    {.name = "image",
     .kind = OPT_LIST,
     .dest = &flags.images,
     .arg  = "FILE",
     .help = "show an image before the prompt: PNG, JPEG, WebP, GIF or BMP; may be repeated"},
    {.name = "video",
     .kind = OPT_LIST,
     .dest = &flags.videos,
     .arg  = "FILE",
     .help = "show frames of a video before the prompt; may be repeated"},
    OPT_IMAGE_TOKENS(flags.image_tokens),
    {.name = "grammar",
     .kind = OPT_STR,
     .dest = &flags.grammar,
     .arg  = "GBNF",
     .help = "GBNF grammar of the response: a file, or text that contains ::="},
    {.name = "json-schema",
     .kind = OPT_STR,
     .dest = &flags.schema,
     .arg  = "SCHEMA",
     .help = "JSON Schema of the response: a file, or text that begins with {"},
    {.name = "raw", .kind = OPT_FLAG, .dest = &flags.raw, .help = "no chat format: continue the text"},
    {.name = "ids",
     .kind = OPT_STR,
     .dest = &flags.ids,
     .arg  = "LIST",
     .help = "token ids such as 2,15,9 instead of a prompt"},
    {.name = "print-ids", .kind = OPT_FLAG, .dest = &flags.print_ids, .help = "print token ids instead of text"},
    {.name = "ignore-eos", .kind = OPT_FLAG, .dest = &flags.ignore_eos, .help = "continue after a stop token"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "run", "run [-m MODEL] [FLAGS] [PROMPT]",
    "Answers one prompt, streamed to standard output. Without PROMPT and --ids, standard input is the prompt.\n"
    "Of a model that thinks only the answer is printed, unless --think is given; --raw and --ids print all text.",
    opts, COUNT(opts)};

/* --- the prompt ---------------------------------------------------------------------------------*/
/* Returns the offset of the first byte that is NUL or not UTF-8, or the length if there is none. */
static size_t text_length(str s)
{
    size_t at = 0;
    for (int n; at < s.n && s.s[at]; at += (size_t)n) {
        uint32_t c;
        if (!(n = utf8_decode(s.s + at, s.n - at, &c))) break;
    }
    return at;
}

static bool put_file(buf *out, const char *path, err *e)
{
    file_map m = {0};
    if (!file_map_open(&m, path, e)) return false;
    size_t n  = text_length((str){m.p, m.n});
    bool   ok = m.n <= MAX_FILE || err_set(e, ERR_TOO_LARGE, "%s is larger than %d MiB", path, MAX_FILE >> 20);
    if (ok && n < m.n) ok = err_set(e, ERR_INPUT, "%s is not a text file: byte %zu is not UTF-8 text", path, n);
    if (ok) {
        buf_printf(out, "File %s:\n", file_name(path));
        buf_put(out, m.p, m.n);
        ok = buf_puts(out, "\n\n") || err_set(e, ERR_TOO_LARGE, "the files are too large together");
    }
    file_map_close(&m);
    return ok;
}

static bool read_prompt(buf *out, int n_args, char **args, err *e)
{
    for (int i = 0; i < flags.files.n; i++)
        if (!put_file(out, flags.files.item[i], e)) return false;
    return cli_input(out, n_args, args, e);
}

static bool load_pictures(picture_list *out, const tandem *g, err *e)
{
    int            n  = flags.images.n;
    decode_worker *w  = decode_worker_new(decode_default_limits());
    bool           ok = true;
    for (int i = 0; ok && i < n + flags.videos.n; i++)
        ok = picture_list_add(out, w, g, i < n ? flags.images.item[i] : flags.videos.item[i - n], i >= n,
                              flags.image_tokens, e);
    decode_worker_free(w);
    return ok;
}

static bool render_prompt(chat_prompt *out, const tandem *g, picture_list *pictures, str text, err *e)
{
    chat_options o;
    arena        mem;
    if (!engine_format(g, &o, e)) return false;
    o.thinking = flags.gen.think;
    o.media    = engine_media(g);
    arena_init(&mem, 1 << 20);
    chat *c = chat_new(&mem);
    if (!c) {
        arena_deinit(&mem);
        return err_set(e, ERR_UNAVAILABLE, "no memory for a prompt");
    }
    if (flags.gen.system) chat_add(c, CHAT_SYSTEM, str_of(flags.gen.system));
    chat_add(c, CHAT_USER, (str){0})->content = picture_list_content(pictures, text);
    bool ok                                   = chat_render_ids(out, engine_tok(g), c, &o, e) ||
              err_wrap(e, "cannot write the prompt in the model's chat format (--raw needs none)");
    arena_deinit(&mem);
    return ok;
}

/* Reads the prompt, before the model is opened. */
typedef struct {
    buf           text;
    picture_list  pictures;
    chat_prompt   prompt;
    media_prompt *media; /* pictures of the prompt; NULL: none */
} input;

static bool make_prompt(input *in, const tandem *g, err *e)
{
    const tok *t   = engine_tok(g);
    tok_ids   *ids = &in->prompt.ids;
    for (size_t i = 0; flags.ids && i < ids->n; i++)
        if (ids->p[i] >= engine_info(g)->n_vocab)
            return err_set(e, ERR_INPUT, "token id %d is not in the vocabulary of %d", ids->p[i],
                           engine_info(g)->n_vocab);
    if (flags.ids) return true;
    if (!flags.raw)
        return load_pictures(&in->pictures, g, e) &&
               render_prompt(&in->prompt, g, &in->pictures, in->text.n ? buf_str(&in->text) : STR(""), e) &&
               chat_prompt_pictures(&in->prompt, &in->media, e);
    if (tok_add_bos(t)) tok_ids_put(ids, tok_bos(t));
    return tok_encode(t, ids, buf_str(&in->text), false, e);
}

/* --- what the answer must be --------------------------------------------------------------------*/
static bool is_text(const char *given)
{
    if (flags.grammar) return strstr(given, "::=") != NULL;
    return given[strspn(given, " \t\r\n")] == '{' || !strcmp(given, "true") || !strcmp(given, "false");
}

static bool read_grammar(tandem_grammar *out, file_map *m, err *e)
{
    const char *given = flags.grammar ? flags.grammar : flags.schema;
    if (!given) return true;
    out->kind = flags.grammar ? TANDEM_GRAMMAR_GBNF : TANDEM_GRAMMAR_SCHEMA;
    out->text = given;
    if (!given[0]) return err_set(e, ERR_INPUT, "--%s is empty", flags.grammar ? "grammar" : "json-schema");
    if (is_text(given)) return true;
    if (!file_map_open(m, given, e)) return false;
    if (!m->n) return err_set(e, ERR_INPUT, "%s is empty", given);
    out->text   = m->p;
    out->n_text = m->n;
    return true;
}

/* --- the answer ---------------------------------------------------------------------------------*/
typedef struct {
    answer_view view; /* view of a chat response */
    chat_stream content;
    tok_stream  stream; /* without a chat format: the text */
    stop_match  stop;   /* and its stop strings */
    buf         text, safe;
    bool        plain;
    int         n_shown;
} output;

/* Writes the part of the text that cannot become part of a stop string. */
static void show_text(output *o)
{
    buf_clear(&o->safe);
    stop_put(&o->stop, buf_str(&o->text), &o->safe);
    cli_print(buf_str(&o->safe));
    buf_clear(&o->text);
}

static void print_token(void *ctx, int32_t id, bool stop)
{
    output *o = ctx;
    if (flags.print_ids) {
        printf("%s%d", o->n_shown++ ? " " : "", id);
    } else if (!o->plain && !stop) {
        view_put(&o->view, id);
    } else if (!stop) {
        tok_stream_put(&o->stream, id, &o->text);
        show_text(o);
    }
}

static bool finish_output(output *o, err *e)
{
    if (!o->plain) return view_finish(&o->view, e);
    if (!flags.print_ids) {
        tok_stream_finish(&o->stream, &o->text);
        show_text(o);
        buf_clear(&o->safe);
        stop_finish(&o->stop, &o->safe);
        cli_print(buf_str(&o->safe));
    }
    putchar('\n');
    return cli_flush(e);
}

static void open_output(output *o, const tandem *g, bool in_thought)
{
    const tok   *t = engine_tok(g);
    chat_options format;
    engine_format(g, &format, NULL); /* --raw needs no template, but the response is parsed */
    format.thinking = flags.gen.think;
    buf_init(&o->text, 1 << 20);
    buf_init(&o->safe, 1 << 20);
    generate_init_stops(&o->stop, &flags.gen);
    generate_watch(&o->content, t, &flags.gen, &format, in_thought);
    if (t) tok_stream_init(&o->stream, t, false);
    if (!o->plain) view_init(&o->view, t, &flags.gen, &format, in_thought);
}

static void close_output(output *o)
{
    if (!o->plain) view_deinit(&o->view);
    chat_stream_deinit(&o->content);
    buf_deinit(&o->text);
    buf_deinit(&o->safe);
}

/* Sets up stop strings: for all text, or for the content of a chat response. */
static void ask_for(generator *a, output *o)
{
    a->on_token                = print_token;
    a->ctx                     = o;
    a->request.ignore_stop_ids = flags.ignore_eos;
    if (o->plain) {
        a->request.stop   = flags.gen.stops.item;
        a->request.n_stop = (size_t)flags.gen.stops.n;
    } else if (flags.gen.stops.n) {
        a->request.on_token     = chat_stream_on_token;
        a->request.on_token_ctx = &o->content;
    }
}

static void print_notes(const generator *a)
{
    if (a->result.context_full)
        fprintf(stderr, "tandem: the context of %d is full (--ctx)\n", engine_info(a->t)->n_ctx);
    if (flags.gen.stats) generate_print_stats(a);
    if (a->request.temp > 0 && !flags.gen.seed_given)
        fprintf(stderr, "seed %llu\n", (unsigned long long)a->result.usage.seed);
}

static bool answer(tandem *g, const input *in, const tandem_grammar *fit, err *e)
{
    const chat_prompt *prompt = &in->prompt;
    generator          a;
    output             o = {.plain = flags.raw || flags.ids || flags.print_ids};
    if (!generator_init(&a, g, &flags.gen, e) ||
        !generate_check(&prompt->ids, engine_info(g)->n_ctx, engine_info(g)->n_vocab, flags.gen.max_tokens, e))
        return false;
    open_output(&o, g, prompt->in_thought);
    ask_for(&a, &o);
    a.media                      = in->media;
    a.request.grammar            = *fit;
    a.request.grammar.may_think  = flags.gen.think;
    a.request.grammar.in_thought = prompt->in_thought;
    bool ok                      = generate(&a, &prompt->ids, e);
    ok                           = finish_output(&o, ok ? e : NULL) && ok;
    if (ok) print_notes(&a);
    close_output(&o);
    return ok;
}

/* Checks the files before reading the prompt, and reads the prompt before the weights. */
static bool run_prompt(input *in, int n_args, char **args, err *e)
{
    bool           need_text = !flags.ids || !flags.print_ids || flags.gen.stops.n;
    const char    *need_tok  = "the model has no tokenizer: only --ids with --print-ids can be used";
    checkpoint    *files     = NULL;
    tandem        *g         = NULL;
    file_map       m         = {0};
    tandem_grammar fit       = {0};
    bool           ok        = read_grammar(&fit, &m, e) && checkpoint_open(&files, flags.gen.engine.path, e) &&
              (flags.ids || read_prompt(&in->text, n_args, args, e)) &&
              generate_open(&g, &flags.gen, files, need_text ? need_tok : NULL, e);
    checkpoint_close(files);
    ok = ok && make_prompt(in, g, e) && answer(g, in, &fit, e);
    tandem_close(g);
    file_map_close(&m);
    return ok;
}

static int check_usage(int n_args, char **args)
{
    if (flags.ids && n_args) return opt_usage(&usage, "--ids and the prompt '%s' exclude each other", args[0]);
    if (flags.ids && (flags.gen.system || flags.files.n || flags.gen.think))
        return opt_usage(&usage, "--ids excludes --system, --file and --think");
    if (flags.raw && (flags.gen.system || flags.gen.think))
        return opt_usage(&usage, "--raw excludes --system and --think");
    if ((flags.raw || flags.ids) && (flags.images.n || flags.videos.n))
        return opt_usage(&usage, "--%s excludes --image and --video", flags.raw ? "raw" : "ids");
    if (flags.grammar && flags.schema) return opt_usage(&usage, "--grammar and --json-schema exclude each other");
    return generate_check_flags(&flags.gen, &usage) ? 0 : 2;
}

int cmd_run(int argc, char **args)
{
    int   n_args, code;
    err   e  = {0};
    input in = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args && flags.ids && flags.ids == getenv("TANDEM_IDS")) flags.ids = NULL; /* the command line wins */
    if ((code = check_usage(n_args, args))) return code;
    if (!cli_resolve_model(&flags.gen.engine.path, &e)) return cli_fail(&e);
    buf_init(&in.text, TOK_MAX_INPUT);
    chat_prompt_init(&in.prompt, GENERATE_MAX_CONTEXT);
    if (flags.ids && !cli_parse_ids(&in.prompt.ids, str_of(flags.ids), 0, &e))
        code = opt_usage(&usage, "--ids: %s", e.text);
    else
        code = run_prompt(&in, n_args, args, &e) ? 0 : cli_fail(&e);
    media_prompt_drop(in.media);
    picture_list_free(&in.pictures);
    chat_prompt_deinit(&in.prompt);
    buf_deinit(&in.text);
    return code;
}
