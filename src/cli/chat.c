/* A conversation at the terminal. Each turn renders the whole conversation; the engine runs only the part that is not a
 * prefix hit. */
#include "cli/generate.h"
#include "cli/pictures.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_TURNS = 4096,
    MIN_ROOM  = 64, /* tokens that must be left for an answer, where the context is larger than twice that */
};

static generate_flags flags = GENERATE_DEFAULTS;
static const char    *session_name; /* --session; NULL: none */
static int            image_tokens;

static const option opts[] = {
    OPT_GENERATE(flags),
    OPT_IMAGE_TOKENS(image_tokens),
    {.name     = "session",
     .variable = "CHAT_SESSION",
     .kind     = OPT_STR,
     .dest     = &session_name,
     .arg      = "NAME",
     .help     = "continue the saved session of this name, and save it at the end"},
    {.name = "session-dir",
     .kind = OPT_STR,
     .dest = &flags.session_dir,
     .arg  = "DIR",
     .help = "directory of saved sessions (default: tandem/sessions in $XDG_STATE_HOME or ~/.local/state)"},
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
                           "/image FILE      show an image with the next message; may be repeated\n"
                           "/video FILE      show frames of a video with the next message; may be repeated\n"
                           "/stats           speed of the last response, and use of the context\n"
                           "/save            save the session of --session\n"
                           "/save FILE       write the conversation as JSON\n"
                           "/load [NAME]     continue a saved session, by default that of --session\n"
                           "/quit            leave, like Ctrl-D and Ctrl-C at the prompt\n"
                           "A backslash at the end of a line continues it on the next line.\n";

/* A question and its response; the last one has no response yet. */
typedef struct {
    buf          question, answer, reasoning;
    picture_list pictures; /* shown with the question */
} turn;

typedef struct {
    tandem        *g;
    generator      gen;
    chat_options   format;
    buf            system;
    turn           turns[MAX_TURNS];
    int            n_turns;
    picture_list   pictures; /* for the next question */
    decode_worker *decoder;
    chat_prompt    prompt;
    tok_ids        text; /* the last prompt and its response */
    answer_view    view;
    chat_stream    stop;
    bool           terminal; /* standard input is a terminal */
    bool           leave;
} session;

/* --- turns --------------------------------------------------------------------------------------*/
static void drop_turns(session *s, int from, int n)
{
    for (int i = from; i < from + n; i++) {
        buf_deinit(&s->turns[i].question);
        buf_deinit(&s->turns[i].answer);
        buf_deinit(&s->turns[i].reasoning);
        picture_list_free(&s->turns[i].pictures);
    }
    s->n_turns -= n;
    memmove(&s->turns[from], &s->turns[from + n], (size_t)(s->n_turns - from) * sizeof *s->turns);
}

static turn *add_turn(session *s, str question)
{
    if (s->n_turns == MAX_TURNS) drop_turns(s, 0, 1);
    turn *x     = &s->turns[s->n_turns++];
    x->pictures = (picture_list){0};
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
        turn *x                                   = &s->turns[i];
        chat_add(c, CHAT_USER, (str){0})->content = picture_list_content(&x->pictures, text_of(&x->question));
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
    tok_ids_put(&s->text, id);
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
    add_turn(s, question)->pictures = s->pictures;
    s->pictures                     = (picture_list){0};
    if (!fit(s, &fits, e)) return false;
    if (!fits) {
        drop_turns(s, s->n_turns - 1, 1);
        return true;
    }
    view_init(&s->view, engine_tok(s->g), &flags, &s->format, s->prompt.in_thought);
    generate_watch(&s->stop, engine_tok(s->g), &flags, &s->format, s->prompt.in_thought);
    tok_ids_clear(&s->text);
    tok_ids_put_n(&s->text, s->prompt.ids.p, s->prompt.ids.n);
    bool ok =
        generate_check(&s->prompt.ids, engine_info(s->g)->n_ctx, engine_info(s->g)->n_vocab, flags.max_tokens, e) &&
        chat_prompt_pictures(&s->prompt, &s->gen.media, e) && generate(&s->gen, &s->prompt.ids, e);
    media_prompt_drop(s->gen.media);
    s->gen.media = NULL;
    ok           = view_finish(&s->view, ok ? e : NULL) && ok;
    keep_answer(s);
    view_deinit(&s->view);
    chat_stream_deinit(&s->stop);
    if (ok && s->gen.result.context_full)
        fprintf(stderr, "tandem: the context of %d is full: the response was cut off\n", engine_info(s->g)->n_ctx);
    if (ok && flags.stats) generate_print_stats(&s->gen);
    return ok;
}

/* --- commands -----------------------------------------------------------------------------------*/
/* Writes a content with images and videos as the parts of a request, with file URLs. */
static void put_parts(json_writer *w, str text, const picture_list *pictures)
{
    json_begin_array(w);
    for (size_t i = 0; i < pictures->n; i++) {
        const char *type = pictures->part[i].kind == CHAT_VIDEO ? "video_url" : "image_url";
        char       *full = realpath(pictures->path[i], NULL), url[8192];
        snprintf(url, sizeof url, "file://%s", full ? full : pictures->path[i]);
        free(full);
        json_begin_object(w);
        json_member_str(w, "type", type);
        json_key(w, type);
        json_begin_object(w);
        json_member_str(w, "url", url);
        json_end(w);
        json_end(w);
    }
    json_begin_object(w);
    json_member_str(w, "type", "text");
    json_key(w, "text");
    json_put_str(w, text);
    json_end(w);
    json_end(w);
}

static void put_message(json_writer *w, const char *role, const buf *content, const buf *reasoning,
                        const picture_list *pictures)
{
    json_begin_object(w);
    json_key(w, "role");
    json_put_str(w, str_of(role));
    json_key(w, "content");
    if (pictures && pictures->n)
        put_parts(w, text_of(content), pictures);
    else
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
    if (s->system.n) put_message(&w, "system", &s->system, NULL, NULL);
    for (int i = 0; i < s->n_turns; i++) {
        put_message(&w, "user", &s->turns[i].question, NULL, &s->turns[i].pictures);
        put_message(&w, "assistant", &s->turns[i].answer, &s->turns[i].reasoning, NULL);
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
        fputs("/save needs the name of a file, or --session\n", stderr);
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

/* --- saved sessions -----------------------------------------------------------------------------*/
/* Saves the conversation with its state. Reports errors. */
static void save_session(session *s)
{
    buf                 note;
    tandem_session_info info;
    tandem_error        e;
    if (!s->text.n) {
        fputs("there is nothing to save yet\n", stderr);
        return;
    }
    for (int i = 0; i < s->n_turns; i++)
        if (s->turns[i].pictures.n) {
            fputs("a conversation with images or videos cannot be saved as a session\n", stderr);
            return;
        }
    buf_init(&note, (size_t)1 << 26);
    write_conversation(s, &note);
    tandem_session x = {.name     = session_name,
                        .ids      = s->text.p,
                        .n_ids    = s->text.n,
                        .n_prompt = (int32_t)s->prompt.ids.n,
                        .request  = &s->gen.request,
                        .note     = note.p,
                        .n_note   = note.n};
    if (note.failed)
        fputs("the conversation is too large to be saved\n", stderr);
    else if (tandem_session_save(s->g, &x, &info, &e))
        fprintf(stderr, "saved %s: %d tokens, %.1f MB\n", info.name, info.tokens, (double)info.bytes / 1e6);
    else
        fprintf(stderr, "%s\n", e.text);
    buf_deinit(&note);
}

/* Adds a message of a saved conversation. */
static void load_message(session *s, const json_value *m)
{
    const json_value *role = json_find(m, "role"), *content = json_find(m, "content");
    const json_value *thought = json_find(m, "reasoning_content");
    if (!role || role->kind != JSON_STRING || !content || content->kind != JSON_STRING) return;
    turn *last = s->n_turns ? &s->turns[s->n_turns - 1] : NULL;
    if (str_is(role->s, "system")) {
        buf_clear(&s->system);
        buf_put(&s->system, content->s.s, content->s.n);
    } else if (str_is(role->s, "user")) {
        add_turn(s, content->s);
    } else if (last) {
        buf_put(&last->answer, content->s.s, content->s.n);
        if (thought && thought->kind == JSON_STRING) buf_put(&last->reasoning, thought->s.s, thought->s.n);
    }
}

/* Replaces the conversation by a saved one. Returns false when the note is not a conversation. */
static bool load_conversation(session *s, str note)
{
    arena             mem;
    const json_value *root, *list;
    arena_init(&mem, (size_t)1 << 28);
    bool ok =
        json_parse(&root, &mem, note, NULL, NULL) && (list = json_find(root, "messages")) && list->kind == JSON_ARRAY;
    if (ok) {
        drop_turns(s, 0, s->n_turns);
        buf_clear(&s->system);
        for (size_t i = 0; i < list->n; i++) load_message(s, &list->item[i]);
    }
    arena_deinit(&mem);
    return ok;
}

/* Restores a session. */
static bool load_session(session *s, const char *name, tandem_error *e)
{
    tandem_session_info    info;
    tandem_session_content c;
    if (!tandem_session_restore(s->g, &(tandem_session){.name = name}, &c, &info, e)) return false;
    bool ok = load_conversation(s, (str){c.note, c.n_note});
    if (ok) {
        tok_ids_clear(&s->text);
        tok_ids_put_n(&s->text, c.ids.p, c.ids.n);
        s->gen.request.seed     = c.seed;
        s->gen.request.has_seed = c.has_seed;
        fprintf(stderr, "restored %s: %d turns, %d tokens, %d of them ready\n", info.name, s->n_turns, info.tokens,
                info.reusable);
    } else {
        e->code = TANDEM_FORMAT;
        snprintf(e->text, sizeof e->text, "the session '%s' is not a conversation of this program", name);
    }
    tandem_session_content_free(&c);
    return ok;
}

/* Continues the session of --session, if there is one. The session at the end would replace one that is not restored,
 * so that is an error. */
static bool continue_session(session *s, err *e)
{
    tandem_error why;
    if (load_session(s, session_name, &why) || why.code == TANDEM_NOT_FOUND) return true;
    return err_set(e, ERR_FORMAT, "%s; it is kept: another name begins a new session", why.text);
}

/* Handles /load. */
static void load(session *s, str given)
{
    char         name[TANDEM_SESSION_NAME + 2];
    tandem_error e;
    if (!given.n && !session_name) {
        fputs("/load needs the name of a session, or --session\n", stderr);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(given.n < sizeof name ? given.n : sizeof name), given.n ? given.s : "");
    if (!load_session(s, given.n ? name : session_name, &e)) fprintf(stderr, "%s\n", e.text);
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

/* Handles /image and /video. */
static void add_picture(session *s, str file, bool is_video)
{
    char path[4096];
    err  e = {0};
    if (!file.n || file.n >= sizeof path) {
        fprintf(stderr, "/%s needs the name of a file\n", is_video ? "video" : "image");
        return;
    }
    memcpy(path, file.s, file.n);
    path[file.n] = 0;
    if (!picture_list_add(&s->pictures, s->decoder, s->g, path, is_video, image_tokens, &e))
        fprintf(stderr, "%s\n", e.text);
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
    else if (str_is(name, "/image") || str_is(name, "/video"))
        add_picture(s, rest, str_is(name, "/video"));
    else if (str_is(name, "/stats"))
        show_stats(s);
    else if (str_is(name, "/save") && !rest.n && session_name)
        save_session(s);
    else if (str_is(name, "/save"))
        save(s, rest);
    else if (str_is(name, "/load"))
        load(s, rest);
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
    s->format.media    = engine_media(s->g);
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

/* Creates a directory and those above it, for the user only. */
static bool make_dirs(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0700); /* existing ones stay as they are */
        *p = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* Checks the name of the session and sets the default directory. */
static bool check_session(err *e)
{
    static char dir[4096];
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (session_name && !engine_session_name(session_name, e)) return err_wrap(e, "--session");
    if (!session_name || flags.session_dir) return true;
    bool given = state && state[0] == '/';
    if (!given && !(home && home[0] == '/')) return err_set(e, ERR_INPUT, "--session needs --session-dir or HOME");
    snprintf(dir, sizeof dir, "%s%s/tandem/sessions", given ? state : home, given ? "" : "/.local/state");
    flags.session_dir = dir;
    return make_dirs(dir) || err_set(e, ERR_IO, "cannot create %s: %s", dir, strerror(errno));
}

int cmd_chat(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args)
        return opt_usage(&usage, "unexpected argument '%s': a chat reads its questions from standard input", args[0]);
    if (!generate_check_flags(&flags, &usage)) return 2;
    if (!check_session(&e)) return cli_fail(&e);
    if (!cli_resolve_model(&flags.engine.path, &e)) return cli_fail(&e);
    session *s = xnew(session);
    s->decoder = decode_worker_new(decode_default_limits());
    buf_init(&s->system, TOK_MAX_INPUT);
    chat_prompt_init(&s->prompt, GENERATE_MAX_CONTEXT);
    tok_ids_init(&s->text, 2 * (size_t)GENERATE_MAX_CONTEXT);
    bool ok = open_session(s, &e);
    ok      = ok && (!session_name || continue_session(s, &e)) && talk(s, &e);
    if (ok && session_name && s->text.n) save_session(s);
    drop_turns(s, 0, s->n_turns);
    picture_list_free(&s->pictures);
    decode_worker_free(s->decoder);
    chat_prompt_deinit(&s->prompt);
    tok_ids_deinit(&s->text);
    buf_deinit(&s->system);
    tandem_close(s->g);
    mem_free(s);
    return ok ? 0 : cli_fail(&e);
}
