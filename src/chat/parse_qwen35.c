/* The stream parser of Qwen's answers:
 *
 *      REASONING </think> CONTENT <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n
 *      </tool_call>
 *
 * <think>, <tool_call> and their closing forms are markers, the tags inside a call are plain text. A call may also be
 * JSON: {"name": NAME, "arguments": {...}}. The outer machine separates reasoning, content and calls; the inner one
 * converts a call to a name and JSON. White space next to a marker belongs to the markup. Text that began as a call but
 * is not one is content with its markers.
 *
 * The parser accepts common mistakes of models: a call inside a thought, a call without <tool_call> if its name is that
 * of a tool, values on the line of their tag, missing </parameter> and </function>, a repeated parameter (the first
 * counts), a call that ends with the response. */
#include "base/mem.h"
#include "chat/declared.h"
#include "chat/qwen35_inside.h"

#include <assert.h>

enum {
    MAX_NAME = 256,     /* bytes of the name of a function or of a parameter */
    MAX_HELD = 1 << 24, /* bytes of a value that is held back */
    MAX_KEYS = 256,     /* parameters of a call that are remembered, to find repeated ones */
};

static const char *const marker_names[Q_MARKERS] = {"<think>",      "</think>",   "<tool_call>",
                                                    "</tool_call>", "<|im_end|>", "<|endoftext|>"};

typedef enum { IN_CONTENT, IN_THOUGHT, IN_CALL } outer_state;
typedef enum {
    AT_FUNCTION, /* before <function= or a JSON object */
    IN_NAME,
    IN_BODY, /* between parameters */
    IN_KEY,
    AT_VALUE, /* a newline that belongs to the tag may follow */
    IN_VALUE,
    IN_JSON,
    AFTER_FUNCTION,
} inner_state;

typedef struct {
    chat_parser        base;
    chat_parse_options opt;
    int32_t            marker_id[Q_MARKERS];
    tok_stream         stream;
    bool               failed;
    buf                decoded; /* text of an id */
    /* outer */
    outer_state state;
    bool        started; /* something of this thought or content was reported */
    bool        bare;    /* in a call that began without <tool_call> */
    bool        no_call; /* in content that began as a call */
    buf         spaces;  /* white space that may belong to the next marker */
    buf         tag;     /* the start of a bare <function=NAME>, or of the end of a value */
    /* inner */
    inner_state       in;
    int               n_calls;
    buf               word; /* a tag, a name, or a value that is held */
    buf               json; /* arguments not reported yet */
    bool              has_item, repeated;
    bool              in_line, has_value; /* the value began on the line of its tag; it has text */
    bool              whole;              /* the value is held until its end: its declared type is no string */
    const json_value *parameters, *schema;
    uint64_t          key[MAX_KEYS];
    int               n_keys;
    buf               left; /* text of the call that is no argument: content, when the call ends */
} qwen35_parser;

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void emit(qwen35_parser *p, chat_event_kind kind, str text)
{
    if (text.n) p->opt.on_event(p->opt.ctx, &(chat_event){.kind = kind, .call = p->n_calls, .text = text});
}

static void hold(qwen35_parser *p, buf *b, str s)
{
    if (s.n && !buf_put(b, s.s, s.n)) p->failed = true;
}

static void insert_front(qwen35_parser *p, buf *b, str s)
{
    size_t n = b->n;
    hold(p, b, s);
    if (p->failed) return;
    memmove(b->p + s.n, b->p, n);
    memcpy(b->p, s.s, s.n);
}

static str after(str s, size_t n) { return (str){s.s + n, s.n - n}; }

/* --- arguments ----------------------------------------------------------------------------------*/
static void flush_json(qwen35_parser *p)
{
    emit(p, CHAT_EVENT_CALL_ARGS, buf_str(&p->json));
    buf_clear(&p->json);
}

static void write_escaped(qwen35_parser *p, str s)
{
    if (s.n && !p->repeated && !buf_put_json_text(&p->json, s)) p->failed = true;
    if (p->repeated) hold(p, &p->left, s);
}

static bool seen_key(qwen35_parser *p, str key)
{
    uint64_t h = str_hash(key);
    for (int i = 0; i < p->n_keys; i++)
        if (p->key[i] == h) return true;
    if (p->n_keys < MAX_KEYS) p->key[p->n_keys++] = h;
    return false;
}

static bool declares_only_values(const json_value *schema)
{
    static const char *const types[] = {"integer", "number", "boolean", "object", "array", "null"};
    for (size_t i = 0; i < COUNT(types) && !declared_as(schema, "string"); i++)
        if (declared_as(schema, types[i])) return true;
    return false;
}

static void begin_value(qwen35_parser *p)
{
    str key     = chat_trim(buf_str(&p->word));
    p->repeated = seen_key(p, key);
    p->schema   = declared_member(json_get(p->parameters, "properties"), key);
    p->whole    = declares_only_values(p->schema);
    p->in       = AT_VALUE;
    if (!p->repeated) {
        if (p->has_item) hold(p, &p->json, STR(","));
        if (!buf_put_json_string(&p->json, key)) p->failed = true;
        hold(p, &p->json, p->whole ? STR(":") : STR(":\""));
        p->has_item = true;
    }
    buf_clear(&p->word);
}

/* A text as the JSON of its declared type, else as a string. Python's constants are accepted. */
static void put_whole(qwen35_parser *p, str text)
{
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    str                      s           = chat_trim(text);
    const json_value        *v;
    arena                    mem;
    err                      e = {0};
    for (size_t i = 0; i < COUNT(python); i++)
        if (str_is(s, python[i][0])) s = str_of(python[i][1]);
    arena_init(&mem, (size_t)8 * MAX_HELD);
    if (s.n && json_parse(&v, &mem, s, NULL, &e) && v->kind != JSON_STRING)
        hold(p, &p->json, s);
    else if (!buf_put_json_string(&p->json, text))
        p->failed = true;
    arena_deinit(&mem);
}

static void end_value(qwen35_parser *p)
{
    if (p->whole && !p->repeated)
        put_whole(p, buf_str(&p->word));
    else if (p->whole)
        hold(p, &p->left, buf_str(&p->word));
    else if (!p->repeated)
        hold(p, &p->json, STR("\""));
    buf_clear(&p->word);
    p->repeated = false;
    p->in       = IN_BODY;
}

/* --- the inner machine --------------------------------------------------------------------------*/
static bool is_tool(const qwen35_parser *p, str name)
{
    for (size_t i = 0; p->opt.chat && i < p->opt.chat->n_tools; i++)
        if (str_eq(p->opt.chat->tool[i].name, name)) return true;
    return false;
}

static bool is_name(const qwen35_parser *p, str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] <= ' ' || strchr("\"\\{}[]()<>,=", s.s[i])) return is_tool(p, s);
    return s.n > 0;
}

static void begin_args(qwen35_parser *p, str name)
{
    emit(p, CHAT_EVENT_CALL_NAME, name);
    p->parameters = declared_parameters(p->opt.chat, name);
    p->has_item = p->repeated = false;
    p->n_keys                 = 0;
    hold(p, &p->json, STR("{"));
    p->in = IN_BODY;
    buf_clear(&p->word);
}

static void begin_call(qwen35_parser *p, bool bare)
{
    p->state = IN_CALL;
    p->in    = AT_FUNCTION;
    p->bare  = bare;
    buf_clear(&p->spaces);
    buf_clear(&p->tag);
    buf_clear(&p->word);
    buf_clear(&p->json);
    buf_clear(&p->left);
}

static void begin_content(qwen35_parser *p)
{
    p->state   = IN_CONTENT;
    p->started = p->no_call = false;
    buf_clear(&p->spaces);
}

static void put_words(qwen35_parser *p, str s);
static void end_call(qwen35_parser *p, bool closed);

/* Text that began as a call but is none: it is content, with its marker. */
static void give_up_call(qwen35_parser *p)
{
    begin_content(p);
    if (!p->bare) put_words(p, str_of(marker_names[Q_CALL]));
    put_words(p, buf_str(&p->word));
    p->no_call = !p->bare;
}

/* Compares the held word with a tag. Returns 1: it is the tag, 0: it is the start of it, -1: it is something else. */
static int match_tag(const qwen35_parser *p, const char *tag)
{
    size_t n = strlen(tag), m = p->word.n < n ? p->word.n : n;
    if (memcmp(p->word.p, tag, m)) return -1;
    return m == n;
}

static void function_char(qwen35_parser *p, char c)
{
    if (!p->word.n && is_space(c)) return;
    hold(p, &p->word, (str){&c, 1});
    if (p->word.p && p->word.p[0] == '{') {
        p->in = IN_JSON;
        return;
    }
    int match = p->failed ? 0 : match_tag(p, "<function=");
    if (match < 0) give_up_call(p);
    if (match <= 0) return;
    p->in = IN_NAME;
    buf_clear(&p->word);
}

static void name_char(qwen35_parser *p, char c)
{
    str name = chat_trim(buf_str(&p->word));
    if (c == '>' && is_name(p, name)) {
        begin_args(p, name);
        return;
    }
    hold(p, &p->word, (str){&c, 1});
    if (c != '>' && c != '\n' && p->word.n <= MAX_NAME) return;
    insert_front(p, &p->word, STR("<function=")); /* it was not held */
    give_up_call(p);
}

static void body_char(qwen35_parser *p, char c)
{
    if (!p->word.n && is_space(c)) return;
    hold(p, &p->word, (str){&c, 1});
    if (p->failed) return;
    int key = match_tag(p, "<parameter="), end = match_tag(p, "</function>"), again = match_tag(p, "</parameter>");
    if (key == 1) {
        p->in = IN_KEY;
        buf_clear(&p->word);
    } else if (end == 1) {
        p->in = AFTER_FUNCTION;
        buf_clear(&p->word);
    } else if (again == 1) {
        buf_clear(&p->word);
    } else if (key < 0 && end < 0 && again < 0) {
        hold(p, &p->left, buf_str(&p->word));
        buf_clear(&p->word);
    }
}

static void key_char(qwen35_parser *p, char c)
{
    if (c == '>') {
        begin_value(p);
        return;
    }
    hold(p, &p->word, (str){&c, 1});
    if (c != '\n' && p->word.n <= MAX_NAME) return;
    hold(p, &p->left, buf_str(&p->word)); /* no key */
    buf_clear(&p->word);
    p->in = IN_BODY;
}

/* The ends of a value: </parameter> on a line of its own, also directly after the tag if the value began on the tag's
 * line or is empty; and </function>, if the call ends after it. The start of an end is held in p->tag. */
typedef enum { NO_END, MAY_END, ENDS } end_match;
static end_match match_end(const qwen35_parser *p, str s)
{
    static const char *const ends[] = {"\n</parameter>", "</parameter>", "\n</function>"};
    for (size_t i = 0; i < COUNT(ends); i++) {
        str    end = str_of(ends[i]);
        size_t n   = s.n < end.n ? s.n : end.n;
        if ((i == 1 && !p->in_line && p->has_value) || memcmp(s.s, end.s, n)) continue;
        if (s.n < end.n) return MAY_END;
        if (i < 2) return ENDS;
        while (n < s.n && is_space(s.s[n])) n++;
        if (n == s.n) return MAY_END;
    }
    return NO_END;
}

static void value_text(qwen35_parser *p, str s)
{
    p->has_value |= s.n > 0;
    if (p->whole)
        hold(p, &p->word, s);
    else
        write_escaped(p, s);
}

/* Only white space after </function> makes the held text longer than an end; it is neither searched nor moved byte by
 * byte. */
static void tag_char(qwen35_parser *p, char c)
{
    enum { FUNCTION_END = 12 };
    bool long_tag = p->tag.n > FUNCTION_END;
    if (long_tag && !is_space(c)) {
        size_t n = p->tag.n - 1; /* a new end can begin with the last byte */
        value_text(p, (str){p->tag.p, n});
        buf_drop_front(&p->tag, n);
    }
    hold(p, &p->tag, (str){&c, 1});
    if (long_tag && is_space(c)) return;
    while (p->tag.n && !p->failed) {
        end_match m = match_end(p, buf_str(&p->tag));
        if (m == MAY_END) return;
        if (m == ENDS) {
            buf_clear(&p->tag);
            end_value(p);
            return;
        }
        value_text(p, (str){p->tag.p, 1});
        buf_drop_front(&p->tag, 1);
    }
}

/* Returns how many bytes of s it took. Text up to a possible end is taken in one piece. */
static size_t value_run(qwen35_parser *p, str s)
{
    size_t n = 0;
    if (p->in == AT_VALUE) {
        p->in        = IN_VALUE;
        p->in_line   = s.s[0] != '\n';
        p->has_value = false;
        if (!p->in_line) return 1;
    }
    while (!p->tag.n && n < s.n && s.s[n] != '\n' && s.s[n] != '<') n++;
    if (n) {
        value_text(p, (str){s.s, n});
        return n;
    }
    if (p->tag.n && (s.s[0] & 0x80)) { /* a character of more bytes ends no tag */
        value_text(p, buf_str(&p->tag));
        buf_clear(&p->tag);
        return 0;
    }
    tag_char(p, s.s[0]);
    return 1;
}

/* A second function in the same <tool_call> is a call of its own. */
static void after_function_char(qwen35_parser *p, char c)
{
    if (!p->word.n && is_space(c)) {
        if (p->left.n) hold(p, &p->left, (str){&c, 1});
        return;
    }
    hold(p, &p->word, (str){&c, 1});
    int match = p->failed ? 0 : match_tag(p, "<function=");
    if (match == 0) return;
    if (match > 0) {
        buf_clear(&p->word);
        end_call(p, true);
        begin_call(p, false);
        p->in = IN_NAME;
    } else {
        hold(p, &p->left, buf_str(&p->word));
        buf_clear(&p->word);
    }
}

/* Returns how many bytes of s were the call's. */
static size_t call_text(qwen35_parser *p, str s)
{
    size_t i = 0;
    while (i < s.n && p->state == IN_CALL && !p->failed) {
        char c = s.s[i];
        if (p->in == AT_VALUE || p->in == IN_VALUE) {
            i += value_run(p, after(s, i));
            continue;
        }
        i++;
        switch (p->in) {
        case AT_FUNCTION: function_char(p, c); break;
        case IN_NAME: name_char(p, c); break;
        case IN_BODY: body_char(p, c); break;
        case IN_KEY: key_char(p, c); break;
        case IN_JSON: hold(p, &p->word, (str){&c, 1}); break;
        default:
            if (p->bare && !is_space(c)) { /* nothing closes it */
                end_call(p, true);
                return i - 1;
            }
            after_function_char(p, c);
            break;
        }
    }
    return p->failed ? s.n : i;
}

/* --- the end of a call --------------------------------------------------------------------------*/
/* {"name": NAME, "arguments": {...}}; false: it is something else. */
static bool put_json_call(qwen35_parser *p)
{
    const json_value *v, *name, *args;
    arena             mem;
    err               e = {0};
    json_writer       w;
    arena_init(&mem, (size_t)8 * MAX_HELD);
    bool ok = json_parse(&v, &mem, buf_str(&p->word), NULL, &e) && (name = json_get(v, "name")) &&
              name->kind == JSON_STRING && is_name(p, name->s);
    if (ok) {
        args = json_get(v, "arguments") ? json_get(v, "arguments") : json_get(v, "parameters");
        emit(p, CHAT_EVENT_CALL_NAME, name->s);
        json_writer_init(&w, &p->json);
        if (args && args->kind == JSON_OBJECT)
            json_put_value(&w, args);
        else
            hold(p, &p->json, STR("{}"));
        p->failed |= p->json.failed;
    }
    arena_deinit(&mem);
    return ok;
}

/* Closes a value that the end of the call cut off. */
static void close_value(qwen35_parser *p, bool closed)
{
    bool is_markup = p->tag.n >= 12 || (closed && str_is(buf_str(&p->tag), "\n")); /* </function>, or before an end */
    if (!is_markup) value_text(p, buf_str(&p->tag));
    buf_clear(&p->tag);
    end_value(p);
}

static void close_no_call(qwen35_parser *p)
{
    if (p->no_call) put_words(p, str_of(marker_names[Q_CALL_END]));
    p->no_call = false;
}

/* closed: by its marker, or by another that cannot be inside a call. */
static void end_call(qwen35_parser *p, bool closed)
{
    bool cut = false;
    if (p->in == IN_JSON ? !put_json_call(p) : p->in == AT_FUNCTION || p->in == IN_NAME) {
        if (p->in == IN_NAME) insert_front(p, &p->word, STR("<function="));
        give_up_call(p);
        if (closed) close_no_call(p);
        return;
    }
    if (p->in != IN_JSON) {
        cut = !closed && p->in != AFTER_FUNCTION;
        if (p->in == AT_VALUE || p->in == IN_VALUE) close_value(p, closed);
        if (p->in == IN_KEY || p->in == IN_BODY || p->in == AFTER_FUNCTION) hold(p, &p->left, buf_str(&p->word));
        hold(p, &p->json, STR("}"));
    }
    flush_json(p);
    p->opt.on_event(p->opt.ctx, &(chat_event){.kind = CHAT_EVENT_CALL_DONE, .call = p->n_calls, .cut = cut});
    p->n_calls++;
    begin_content(p);
    put_words(p, chat_trim(buf_str(&p->left)));
}

/* --- the outer machine --------------------------------------------------------------------------*/
static chat_event_kind kind_now(const qwen35_parser *p)
{
    return p->state == IN_THOUGHT ? CHAT_EVENT_REASONING : CHAT_EVENT_CONTENT;
}

/* Reports text of a thought or of the content, and holds white space at its end, which may belong to a marker. White
 * space before the first text belongs to the marker before it, unless the answer began without one. */
static void put_words(qwen35_parser *p, str s)
{
    size_t n = s.n;
    while (n && is_space(s.s[n - 1])) n--;
    if (n) {
        if (p->started) emit(p, kind_now(p), buf_str(&p->spaces));
        buf_clear(&p->spaces);
        size_t from = 0;
        while (!p->started && is_space(s.s[from])) from++;
        emit(p, kind_now(p), (str){s.s + from, n - from});
        p->started = true;
    }
    hold(p, &p->spaces, after(s, n));
}

/* The held start of a bare call turned out to be text. */
static void give_up_tag(qwen35_parser *p)
{
    buf text = p->tag;
    buf_init(&p->tag, MAX_HELD);
    put_words(p, buf_str(&text));
    buf_deinit(&text);
}

/* A bare <function=NAME> of a known tool begins a call. Returns how many bytes of s it took. */
static size_t bare_text(qwen35_parser *p, str s)
{
    static const char tag[] = "<function=";
    size_t            n     = sizeof tag - 1;
    if (!p->tag.n) {
        const char *at = memchr(s.s, '<', s.n);
        size_t      k  = at ? (size_t)(at - s.s) : s.n;
        put_words(p, (str){s.s, k});
        if (k < s.n) hold(p, &p->tag, (str){s.s + k, 1});
        return k < s.n ? k + 1 : k;
    }
    char c  = s.s[0];
    bool in = p->tag.n < n ? c == tag[p->tag.n] : c != '\n' && c != '<' && p->tag.n < MAX_NAME;
    if (c == '>' && p->tag.n > n && is_tool(p, (str){p->tag.p + n, p->tag.n - n})) {
        char   name[MAX_NAME];
        size_t len = p->tag.n - n;
        memcpy(name, p->tag.p + n, len);
        buf_clear(&p->tag);
        begin_call(p, true);
        begin_args(p, (str){name, len});
        return 1;
    }
    if (!in || c == '>') {
        give_up_tag(p);
        return 0;
    }
    hold(p, &p->tag, (str){&c, 1});
    return 1;
}

static void put_outer(qwen35_parser *p, str s)
{
    while (s.n && !p->failed) {
        size_t n = s.n;
        if (p->state == IN_CALL)
            n = call_text(p, s);
        else if (p->opt.chat && p->opt.chat->n_tools)
            n = bare_text(p, s);
        else
            put_words(p, s);
        s = after(s, n);
    }
}

/* Ends a thought or content before a marker, to which held white space belongs. */
static void close_text(qwen35_parser *p)
{
    if (p->tag.n && p->state != IN_CALL) give_up_tag(p);
    if (p->state == IN_CALL) end_call(p, false);
    buf_clear(&p->spaces);
}

static void put_marker(qwen35_parser *p, qwen35_marker m)
{
    if (p->state == IN_CALL && m == Q_CALL_END) {
        end_call(p, true);
    } else if (p->state == IN_CALL && (m == Q_THINK || m == Q_THINK_END || m == Q_CALL) &&
               (p->in == AT_VALUE || p->in == IN_VALUE)) {
        call_text(p, str_of(marker_names[m]));
    } else if (m == Q_THINK || m == Q_CALL || m == Q_THINK_END) {
        close_text(p);
        if (m == Q_CALL)
            begin_call(p, false);
        else
            begin_content(p);
        if (m == Q_THINK) p->state = IN_THOUGHT;
    } else if (m == Q_CALL_END) {
        close_no_call(p);
    } else if (m == Q_END || m == Q_END_OF_TEXT) {
        if (p->tag.n && p->state != IN_CALL) give_up_tag(p);
        if (p->state == IN_CALL) end_call(p, false);
    }
}

/* --- input --------------------------------------------------------------------------------------*/
str qwen35_marker_name(qwen35_marker m) { return str_of(marker_names[m]); }

static void report_args(qwen35_parser *p)
{
    if (p->state == IN_CALL && p->in != AT_FUNCTION && p->in != IN_NAME) flush_json(p);
}

void qwen35_parser_put_text(chat_parser *base, str text)
{
    put_outer((qwen35_parser *)base, text);
    report_args((qwen35_parser *)base);
}

void qwen35_parser_put_marker(chat_parser *base, qwen35_marker m)
{
    put_marker((qwen35_parser *)base, m);
    report_args((qwen35_parser *)base);
}

static void take_decoded(qwen35_parser *p)
{
    qwen35_parser_put_text(&p->base, buf_str(&p->decoded));
    p->failed |= p->decoded.failed;
    buf_clear(&p->decoded);
}

static void put_id(chat_parser *base, int32_t id)
{
    qwen35_parser *p = (qwen35_parser *)base;
    assert(p->opt.tok);
    for (qwen35_marker m = 0; m < Q_MARKERS; m++) {
        if (id < 0 || p->marker_id[m] != id) continue;
        tok_stream_finish(&p->stream, &p->decoded);
        take_decoded(p);
        qwen35_parser_put_marker(base, m);
        return;
    }
    tok_stream_put(&p->stream, id, &p->decoded);
    take_decoded(p);
}

static bool is_in_thought(const chat_parser *base) { return ((const qwen35_parser *)base)->state == IN_THOUGHT; }

static bool is_undecided(const chat_parser *base)
{
    (void)base;
    return false; /* thoughts begin by their marker or by the prompt */
}

static bool finish_answer(chat_parser *base, err *e)
{
    qwen35_parser *p = (qwen35_parser *)base;
    if (p->opt.tok) {
        tok_stream_finish(&p->stream, &p->decoded);
        take_decoded(p);
    }
    put_marker(p, Q_END);
    if (p->started) emit(p, kind_now(p), buf_str(&p->spaces));
    buf_clear(&p->spaces);
    return !p->failed || err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response");
}

/* --- a parser -----------------------------------------------------------------------------------*/
static chat_parser *create_parser(const chat_parse_options *opt)
{
    qwen35_parser *p = mem_try(sizeof *p);
    if (!p) return NULL;
    p->base.ops = &qwen35_parser_ops;
    p->opt      = *opt;
    p->state    = opt->in_thought ? IN_THOUGHT : IN_CONTENT;
    p->started  = !opt->in_thought;
    for (qwen35_marker m = 0; m < Q_MARKERS; m++)
        p->marker_id[m] = opt->tok ? tok_find(opt->tok, str_of(marker_names[m])) : -1;
    if (opt->tok) tok_stream_init(&p->stream, opt->tok, false);
    buf_init(&p->decoded, MAX_HELD);
    buf_init(&p->spaces, MAX_HELD);
    buf_init(&p->tag, MAX_HELD);
    buf_init(&p->word, MAX_HELD);
    buf_init(&p->json, (size_t)8 * MAX_HELD);
    buf_init(&p->left, (size_t)8 * MAX_HELD);
    return &p->base;
}

static void destroy_parser(chat_parser *base)
{
    qwen35_parser *p = (qwen35_parser *)base;
    buf_deinit(&p->decoded);
    buf_deinit(&p->spaces);
    buf_deinit(&p->tag);
    buf_deinit(&p->word);
    buf_deinit(&p->json);
    buf_deinit(&p->left);
    mem_free(p);
}

const chat_parser_ops qwen35_parser_ops = {.create     = create_parser,
                                           .destroy    = destroy_parser,
                                           .put_id     = put_id,
                                           .in_thought = is_in_thought,
                                           .undecided  = is_undecided,
                                           .finish     = finish_answer};
