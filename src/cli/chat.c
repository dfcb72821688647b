/* A conversation at the terminal. Each turn renders the whole conversation; the engine runs only the part that is not a
 * prefix hit. */
#include "cli/generate.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MAX_TURNS = 4096,
    MIN_ROOM  = 64, /* tokens that must be left for an answer, where the context is larger than twice that */
};

static generate_flags flags = GENERATE_DEFAULTS;

static const option opts[] = {
    OPT_GENERATE(flags),
    OPT_LOGGING,
};
static const opt_spec usage = {"chat", "chat [-m MODEL] [FLAGS]",
                               "Starts a conversation with a model. Each line is a message; a backslash at its end "
                               "continues it on the next line.\n"
                               "Ctrl-C stops a response, and leaves at the prompt. /help lists the commands.",
                               opts, COUNT(opts)};

static const char help[] = "/help            this text\n"
                           "/reset           forget the conversation, keep the instructions\n"
                           "/system [TEXT]   set the instructions (none without TEXT); forgets the conversation\n"
                           "/think on|off    let the model think before it answers\n"
                           "/stats           speed of the last response, and use of the context\n"
                           "/save FILE       write the conversation as JSON\n"
                           "/quit            leave, like Ctrl-D and Ctrl-C at the prompt\n"
                           "A backslash at the end of a line continues it on the next line.\n";

/* A question and its response; the last one has no response yet. */
typedef struct {
    buf question, answer, reasoning;
} turn;

typedef struct {
    tandem      *g;
    generator    gen;
    chat_options format;
    buf          system;
    turn         turns[MAX_TURNS];
    int          n_turns;
    chat_prompt  prompt;
    answer_view  view;
    chat_stream  stop;
    bool         terminal; /* standard input is a terminal */
    bool         leave;
} session;

/* --- turns --------------------------------------------------------------------------------------*/
static void drop_turns(session *s, int from, int n)
{
    for (int i = from; i < from + n; i++) {
        buf_deinit(&s->turns[i].question);
        buf_deinit(&s->turns[i].answer);
        buf_deinit(&s->turns[i].reasoning);
    }
    s->n_turns -= n;
    memmove(&s->turns[from], &s->turns[from + n], (size_t)(s->n_turns - from) * sizeof *s->turns);
}

static turn *add_turn(session *s, str question)
{
    if (s->n_turns == MAX_TURNS) drop_turns(s, 0, 1);
    turn *x = &s->turns[s->n_turns++];
    buf_init(&x->question, TOK_MAX_INPUT);
    buf_init(&x->answer, TOK_MAX_INPUT);
    buf_init(&x->reasoning, TOK_MAX_INPUT);
    buf_put(&x->question, question.s, question.n);
    return x;
}

static str text_of(const buf *b) { return b->n ? buf_str(b) : STR(""); }

static bool render_session(session *s, err *e)
{
    arena mem;
    arena_init(&mem, (size_t)16 << 20);
    chat *c = chat_new(&mem);
    if (!c) {
        arena_deinit(&mem);
        return err_set(e, ERR_UNAVAILABLE, "no memory for a prompt");
    }
    if (s->system.n) chat_add(c, CHAT_SYSTEM, text_of(&s->system));
    for (int i = 0; i < s->n_turns; i++) {
        const turn *x = &s->turns[i];
        chat_add(c, CHAT_USER, text_of(&x->question));
        if (i == s->n_turns - 1) break;
        chat_add(c, CHAT_ASSISTANT, text_of(&x->answer))->reasoning = buf_str(&x->reasoning);
    }
    bool ok = chat_render_ids(&s->prompt, engine_tok(s->g), c, &s->format, e);
    arena_deinit(&mem);
    return ok;
}

/* --- input --------------------------------------------------------------------------------------*/
static void on_interrupt(int sig) { (void)sig; }

/* Reads a line without its newline. Returns false at the end of the input or after Ctrl-C. */
static bool read_line(session *s, buf *out, const char *sign, err *e)
{
    char            *line = NULL;
    size_t           cap  = 0;
    struct sigaction act  = {.sa_handler = on_interrupt}, before; /* without SA_RESTART: the read ends */
    if (s->terminal) {
        fputs(sign, stdout);
        fflush(stdout);
    }
    sigaction(SIGINT, &act, &before);
    ssize_t n = getline(&line, &cap, stdin);
    sigaction(SIGINT, &before, NULL);
    if (n < 0 && s->terminal) putchar('\n');
    if (n > 0 && line[n - 1] == '\n') n--;
    if (n > 0 && !buf_put(out, line, (size_t)n))
        err_set(e, ERR_TOO_LARGE, "the input is larger than %zu MiB", out->max >> 20);
    free(line);
    return n >= 0;
}

/* Reads a line and its continuation lines after a backslash. */
static bool read_input(session *s, buf *out, err *e)
{
    buf_clear(out);
    if (!read_line(s, out, "> ", e)) return false;
    while (out->n && out->p[out->n - 1] == '\\') {
        out->p[out->n - 1] = '\n';
        if (!read_line(s, out, ". ", e)) return false;
    }
    return !out->failed;
}

static bool confirm(session *s, const char *question)
{
    err  e;
    buf  line;
    char sign[256];
    buf_init(&line, 1 << 16);
    snprintf(sign, sizeof sign, "%s [y/n] ", question);
    bool yes = read_line(s, &line, sign, &e) && line.n && (line.p[0] | 0x20) == 'y';
    buf_deinit(&line);
    return yes;
}

/* --- an answer ----------------------------------------------------------------------------------*/
static void view_token(void *ctx, int32_t id, bool stop)
{
    session *s = ctx;
    if (!stop) view_put(&s->view, id);
}

/* Renders the conversation and drops the oldest turns until it fits. *fits is false when the user declines, or when
 * even the last question does not fit. */
static bool fit(session *s, bool *fits, err *e)
{
    int    room = engine_info(s->g)->n_ctx > 2 * MIN_ROOM ? MIN_ROOM : 1, n_dropped = 0;
    size_t limit = (size_t)(engine_info(s->g)->n_ctx - room);
    bool   asked = !s->terminal;
    *fits        = true;
    for (;;) {
        if (!render_session(s, e)) return false;
        if (s->prompt.ids.n <= limit) break;
        *fits = s->n_turns > 1;
        if (!*fits)
            fprintf(stderr, "tandem: the question has %zu tokens and the context holds %d (--ctx)\n", s->prompt.ids.n,
                    engine_info(s->g)->n_ctx);
        if (*fits && !asked) {
            fprintf(stderr, "tandem: the context of %d is full\n", engine_info(s->g)->n_ctx);
            *fits = asked = confirm(s, "Drop the oldest turns?");
        }
        if (!*fits) return true;
        drop_turns(s, 0, 1);
        n_dropped++;
    }
    if (n_dropped == 1) fprintf(stderr, "tandem: the context is full: the oldest turn was dropped\n");
    if (n_dropped > 1) fprintf(stderr, "tandem: the context is full: the oldest %d turns were dropped\n", n_dropped);
    return true;
}

static void keep_answer(session *s)
{
    turn *x = &s->turns[s->n_turns - 1];
    buf_put(&x->answer, s->view.content.p, s->view.content.n);
    buf_put(&x->reasoning, s->view.reasoning.p, s->view.reasoning.n);
}

static bool answer(session *s, str question, err *e)
{
    bool fits;
    add_turn(s, question);
    if (!fit(s, &fits, e)) return false;
    if (!fits) {
        drop_turns(s, s->n_turns - 1, 1);
        return true;
    }
    view_init(&s->view, engine_tok(s->g), &flags, &s->format, s->prompt.in_thought);
    generate_watch(&s->stop, engine_tok(s->g), &flags, &s->format, s->prompt.in_thought);
    bool ok =
        generate_check(&s->prompt.ids, engine_info(s->g)->n_ctx, engine_info(s->g)->n_vocab, flags.max_tokens, e) &&
        generate(&s->gen, &s->prompt.ids, e);
    ok = view_finish(&s->view, ok ? e : NULL) && ok;
    keep_answer(s);
    view_deinit(&s->view);
    chat_stream_deinit(&s->stop);
    if (ok && s->gen.result.context_full)
        fprintf(stderr, "tandem: the context of %d is full: the response was cut off\n", engine_info(s->g)->n_ctx);
    if (ok && flags.stats) generate_print_stats(&s->gen);
    return ok;
}

/* --- commands -----------------------------------------------------------------------------------*/
static void put_message(json_writer *w, const char *role, const buf *content, const buf *reasoning)
{
    json_begin_object(w);
    json_key(w, "role");
    json_put_str(w, str_of(role));
    json_key(w, "content");
    json_put_str(w, text_of(content));
    if (reasoning && reasoning->n) {
        json_key(w, "reasoning_content");
        json_put_str(w, buf_str(reasoning));
    }
    json_end(w);
}

static void write_conversation(const session *s, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "messages");
    json_begin_array(&w);
    if (s->system.n) put_message(&w, "system", &s->system, NULL);
    for (int i = 0; i < s->n_turns; i++) {
        put_message(&w, "user", &s->turns[i].question, NULL);
        put_message(&w, "assistant", &s->turns[i].answer, &s->turns[i].reasoning);
    }
    json_end(&w);
    json_end(&w);
    buf_putc(out, '\n');
}

static void save(const session *s, str file)
{
    char path[4096];
    buf  out;
    if (!file.n || file.n >= sizeof path) {
        fputs("/save needs the name of a file\n", stderr);
        return;
    }
    memcpy(path, file.s, file.n);
    path[file.n] = 0;
    buf_init(&out, (size_t)1 << 31);
    write_conversation(s, &out);
    FILE *f  = out.failed ? NULL : fopen(path, "w");
    bool  ok = f && fwrite(out.p, 1, out.n, f) == out.n;
    if (f && fclose(f)) ok = false;
    if (!ok) fprintf(stderr, "cannot write %s: %s\n", path, out.failed ? "too large" : strerror(errno));
    buf_deinit(&out);
}

static void set_system(session *s, str text)
{
    buf_clear(&s->system);
    buf_put(&s->system, text.s, text.n);
    drop_turns(s, 0, s->n_turns);
}

static void set_thinking(session *s, str how)
{
    if (str_is(how, "on") || str_is(how, "off"))
        s->format.thinking = str_is(how, "on");
    else
        fputs("/think on or /think off\n", stderr);
}

static void show_stats(const session *s)
{
    const tandem_usage *u = &s->gen.result.usage;
    if (u->prompt_tokens) generate_print_stats(&s->gen);
    fprintf(stderr, "context: %d of %d tokens, %d turns\n", u->prompt_tokens + u->completion_tokens,
            engine_info(s->g)->n_ctx, s->n_turns);
}

static void command(session *s, str line)
{
    size_t n = 0;
    while (n < line.n && !isspace((unsigned char)line.s[n])) n++;
    str name = {line.s, n}, rest = chat_trim((str){line.s + n, line.n - n});
    if (str_is(name, "/help"))
        fputs(help, stdout);
    else if (str_is(name, "/reset"))
        drop_turns(s, 0, s->n_turns);
    else if (str_is(name, "/system"))
        set_system(s, rest);
    else if (str_is(name, "/think"))
        set_thinking(s, rest);
    else if (str_is(name, "/stats"))
        show_stats(s);
    else if (str_is(name, "/save"))
        save(s, rest);
    else if (str_is(name, "/quit") || str_is(name, "/exit"))
        s->leave = true;
    else
        fprintf(stderr, "unknown command %.*s; /help lists the commands\n", STR_ARG(name));
}

/* --- the session --------------------------------------------------------------------------------*/
static bool talk(session *s, err *e)
{
    buf  line;
    bool ok = true;
    buf_init(&line, TOK_MAX_INPUT);
    if (s->terminal) puts("/help lists the commands, Ctrl-D leaves.");
    while (ok && !s->leave && read_input(s, &line, e)) {
        str text = chat_trim(buf_str(&line));
        if (!text.n) continue;
        if (text.s[0] == '/')
            command(s, text);
        else
            ok = answer(s, text, e);
    }
    ok = ok && (!line.failed || err_wrap(e, "cannot continue"));
    buf_deinit(&line);
    return ok;
}

static bool open_session(session *s, err *e)
{
    if (!generate_open(&s->g, &flags, NULL, "the model has no tokenizer", e) || !engine_format(s->g, &s->format, e))
        return false;
    /* Between a response and the next question, Ctrl-C must not end the process. */
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, NULL);
    s->terminal        = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    s->format.thinking = flags.think;
    if (flags.system) buf_puts(&s->system, flags.system);
    if (!generator_init(&s->gen, s->g, &flags, e)) return false;
    s->gen.on_token = view_token;
    s->gen.ctx      = s;
    if (flags.stops.n) {
        s->gen.request.on_token     = chat_stream_on_token;
        s->gen.request.on_token_ctx = &s->stop;
    }
    return true;
}

int cmd_chat(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args)
        return opt_usage(&usage, "unexpected argument '%s': a chat reads its questions from standard input", args[0]);
    if (!generate_check_flags(&flags, &usage)) return 2;
    if (!cli_resolve_model(&flags.engine.path, &e)) return cli_fail(&e);
    session *s = xnew(session);
    buf_init(&s->system, TOK_MAX_INPUT);
    chat_prompt_init(&s->prompt, GENERATE_MAX_CONTEXT);
    bool ok = open_session(s, &e) && talk(s, &e);
    drop_turns(s, 0, s->n_turns);
    chat_prompt_deinit(&s->prompt);
    buf_deinit(&s->system);
    tandem_close(s->g);
    mem_free(s);
    return ok ? 0 : cli_fail(&e);
}
