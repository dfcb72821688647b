/* The stream parser of Gemma 4's responses:
 *
 *      <|channel>thought\n REASONING <channel|> CONTENT <|tool_call>call:NAME{key:V,...}<tool_call|>
 *
 * It has two state machines. The outer one separates reasoning, content and calls. The inner one converts the arguments
 * of a call to JSON. Both read whole characters and markers in order and hold back only undecided text; docs/chat.md
 * has the list. Text that began as a call but is not one is content with its markers; text inside a call that is not an
 * argument is content after the call. No text is dropped or reported twice.
 *
 * The parser accepts common mistakes of models: empty thoughts, a label without newline, markers that close nothing or
 * open twice, a call inside a thought, a bare "thought\n" at the start, with or without a thought after it, alternating
 * thoughts and contents, a call that ends with the response, unfinished strings and brackets, missing and trailing
 * commas, quoted keys, quotes inside strings, arguments written as JSON, Python's None, True and False, white space
 * between calls. */
#include "chat/gemma4_inside.h"

#include "base/mem.h"
#include "chat/declared.h"

#include <assert.h>

enum {
    MAX_LEVELS = 48,      /* open brackets; what is deeper becomes null, and its text content */
    MAX_NAME   = 256,     /* bytes before the arguments; with more it is no call */
    MAX_HELD   = 1 << 24, /* bytes of a value that is held back */
};

typedef enum {
    AT_START, /* a bare label may follow */
    AT_BARE,  /* after a bare label: text is held until it is known to be a thought */
    IN_CONTENT,
    AFTER_CALL, /* white space is held */
    IN_LABEL,   /* after <|channel> */
    AT_THOUGHT, /* white space is held */
    IN_THOUGHT,
    IN_CALL,
} outer_state;

typedef enum {
    IN_NAME,
    AT_KEY,
    IN_BARE_KEY,
    IN_QUOTED_KEY,
    AT_COLON,
    AT_VALUE,
    AT_ITEM,
    IN_BARE,
    IN_STRING,
    AFTER_STRING, /* after a quote that closes it, unless the text continues */
    AFTER_VALUE,
    IN_JUNK_STRING,
    IN_DEEP, /* inside brackets beyond MAX_LEVELS */
    IN_DEEP_STRING,
    AFTER_ARGS,
} inner_state;

typedef struct {
    bool              is_object, has_item;
    uint64_t          id;     /* distinguishes keys of this object from others */
    const json_value *schema; /* NULL: unknown */
} level;

typedef struct {
    chat_parser        base;
    chat_parse_options opt;
    int32_t            marker_id[GEMMA4_MARKERS];
    tok_stream         stream;
    bool               failed;
    /* input that is not parsed yet */
    buf    decoded; /* text of an id */
    char   tail[4]; /* the start of a character */
    size_t n_tail;
    /* outer */
    outer_state state;
    size_t      n_label; /* characters of the label seen */
    bool        newline; /* held in a thought */
    bool        no_call; /* in content that began as a call */
    buf         spaces;  /* held after a call, before a thought, after a string */
    buf         bare;    /* held after a bare label */
    /* inner */
    inner_state       in;
    int               n_calls;
    bool              named;   /* the name of the call was reported */
    bool              whole;   /* the string is held in `word`: its declared type is another */
    bool              quoting; /* in a bare word that began with a plain quote */
    bool              escaped; /* after its backslash */
    level             lv[MAX_LEVELS];
    int               depth, deep, mute; /* mute: the depth at which a repeated key's value is dropped, or 0 */
    uint64_t          n_objects;
    const json_value *schema;   /* schema of the next value */
    buf               word;     /* name, key or bare value */
    buf               quoted;   /* the key as JSON */
    buf               json;     /* arguments not reported yet */
    buf               leftover; /* text of the call that is no argument: content, when the call ends */
    uint64_t         *keys;     /* hashes of (object, key); 0: free */
    size_t            n_keys, cap_keys;
} gemma4_parser;

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void emit(gemma4_parser *p, chat_event_kind kind, str text)
{
    if (!text.n) return;
    p->opt.on_event(p->opt.ctx, &(chat_event){.kind = kind, .call = p->n_calls, .text = text});
}

static void hold(gemma4_parser *p, buf *b, const char *s, size_t n)
{
    if (!buf_put(b, s, n)) p->failed = true;
}

static void hold_str(gemma4_parser *p, buf *b, str s) { hold(p, b, s.s, s.n); }

/* Stores text that is not part of the arguments. The value of a repeated key is stored as a whole. */
static void add_leftover(gemma4_parser *p, str s)
{
    if (!p->mute) hold_str(p, &p->leftover, s);
}

/* --- JSON out -----------------------------------------------------------------------------------*/
static void write_json(gemma4_parser *p, const char *s, size_t n)
{
    if (!p->mute) hold(p, &p->json, s, n);
}

/* Writes s escaped, without quotes. */
static void write_escaped(gemma4_parser *p, str s)
{
    if (p->mute || !s.n) return;
    if (!buf_put_json_text(&p->json, s)) p->failed = true;
}

static void write_string(gemma4_parser *p, str s)
{
    write_json(p, "\"", 1);
    write_escaped(p, s);
    write_json(p, "\"", 1);
}

static void flush_json(gemma4_parser *p)
{
    emit(p, CHAT_EVENT_CALL_ARGS, buf_str(&p->json));
    buf_clear(&p->json);
}

/* --- keys that were there before ----------------------------------------------------------------*/
static void insert_key(uint64_t *table, size_t cap, uint64_t h)
{
    size_t i = h & (cap - 1);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = h;
}

static bool grow_keys(gemma4_parser *p)
{
    size_t    cap   = p->cap_keys ? 2 * p->cap_keys : 64;
    uint64_t *table = mem_try_n(cap, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < p->cap_keys; i++)
        if (p->keys[i]) insert_key(table, cap, p->keys[i]);
    mem_free(p->keys);
    p->keys     = table;
    p->cap_keys = cap;
    return true;
}

/* Records a key of the innermost object. Returns true when it is a duplicate. */
static bool seen_key(gemma4_parser *p, str key)
{
    uint64_t h = (str_hash(key) ^ p->lv[p->depth - 1].id * 0x9E3779B97F4A7C15u) | 1;
    if (2 * p->n_keys >= p->cap_keys && !grow_keys(p)) {
        p->failed = true;
        return false;
    }
    for (size_t i = h & (p->cap_keys - 1); p->keys[i]; i = (i + 1) & (p->cap_keys - 1))
        if (p->keys[i] == h) return true;
    insert_key(p->keys, p->cap_keys, h);
    p->n_keys++;
    return false;
}

static void forget_keys(gemma4_parser *p)
{
    if (p->n_keys) memset(p->keys, 0, p->cap_keys * sizeof *p->keys);
    p->n_keys = 0;
}

/* --- values -------------------------------------------------------------------------------------*/
/* The JSON of a bare word that is none of its own; Python's as well, which a template wrote into the prompt. */
static const char *constant(str s)
{
    static const char *const name[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                                          {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (str_is(s, name[i][0])) return name[i][1];
    return NULL;
}

static bool is_boolean(str s) { return str_is(s, "true") || str_is(s, "false"); }

/* Returns whether the text of a string is a value of the declared type without quotes. */
static bool fits_bare(const json_value *schema, str s)
{
    int64_t i;
    return (declared_as(schema, "integer") && is_json_number(s) && str_to_i64(s, &i)) ||
           (declared_as(schema, "number") && is_json_number(s)) || (declared_as(schema, "boolean") && is_boolean(s));
}

/* Returns whether the declared type of a quoted value is not a string. */
static bool may_be_bare(const json_value *schema)
{
    return (declared_as(schema, "integer") || declared_as(schema, "number") || declared_as(schema, "boolean")) &&
           !declared_as(schema, "string");
}

static void before_value(gemma4_parser *p)
{
    level *l = &p->lv[p->depth - 1];
    if (l->is_object) return; /* its comma came with the key */
    if (l->has_item) write_json(p, ",", 1);
    l->has_item = true;
    p->schema   = l->schema;
}

static void after_value(gemma4_parser *p)
{
    if (p->mute == p->depth) p->mute = 0;
    p->in = AFTER_VALUE;
}

/* Writes a string, or a value of the declared type if the text of the string is one. */
static void put_string(gemma4_parser *p, str s)
{
    str bare = chat_trim(s);
    if (may_be_bare(p->schema) && fits_bare(p->schema, bare))
        write_json(p, bare.s, bare.n);
    else
        write_string(p, s);
}

/* Returns the text of a JSON string, or the word itself if it is not one. */
static str unquote(arena *mem, str word)
{
    const json_value *v;
    err               e;
    if (!word.n || word.s[0] != '"' || !json_parse(&v, mem, word, NULL, &e)) return word;
    return v->s;
}

static void put_bare(gemma4_parser *p)
{
    arena mem;
    arena_init(&mem, (size_t)4 * MAX_HELD);
    str         s       = chat_trim(buf_str(&p->word));
    str         said    = unquote(&mem, s);
    const char *word    = s.n ? constant(s) : "null";
    bool        is_null = word && str_is(str_of(word), "null");
    if (said.s != s.s)
        put_string(p, said);
    else if (is_null || (word && !(declared_as(p->schema, "string") && !fits_bare(p->schema, s))))
        write_json(p, word, strlen(word));
    else if (is_json_number(s) && !(declared_as(p->schema, "string") && !fits_bare(p->schema, s)))
        write_json(p, s.s, s.n);
    else
        write_string(p, s);
    arena_deinit(&mem);
    after_value(p);
}

static void push(gemma4_parser *p, bool is_object)
{
    const json_value *schema = p->schema;
    if (p->depth == MAX_LEVELS) {
        write_json(p, "null", 4);
        add_leftover(p, is_object ? STR("{") : STR("["));
        p->in   = IN_DEEP;
        p->deep = 1;
        return;
    }
    write_json(p, is_object ? "{" : "[", 1);
    p->lv[p->depth++] = (level){is_object, false, ++p->n_objects,
                                is_object ? json_get(schema, "properties") : json_get(schema, "items")};
    p->in             = is_object ? AT_KEY : AT_ITEM;
}

/* Closes the innermost object or list, whatever the bracket. */
static void pop(gemma4_parser *p)
{
    write_json(p, p->lv[--p->depth].is_object ? "}" : "]", 1);
    after_value(p);
    if (!p->depth) p->in = AFTER_ARGS;
}

/* Writes a key as JSON to p->quoted. NUL, which our reader refuses in a key, becomes U+FFFD, like invalid bytes. */
static void quote_key(gemma4_parser *p, str key)
{
    buf *q = &p->quoted;
    buf_clear(q);
    if (!buf_put_json_string(q, key)) p->failed = true;
    for (size_t i = 0; i + 6 <= q->n; i += q->p[i] == '\\' ? 2 : 1) {
        if (memcmp(q->p + i, "\\u0000", 6)) continue;
        memcpy(q->p + i, "\xEF\xBF\xBD", 3);
        memmove(q->p + i + 3, q->p + i + 6, q->n - i - 6);
        q->n -= 3;
    }
}

static void end_key(gemma4_parser *p, str text)
{
    level *l = &p->lv[p->depth - 1];
    arena  mem;
    arena_init(&mem, (size_t)4 * MAX_HELD);
    str key   = p->in == AT_COLON ? text : unquote(&mem, chat_trim(text));
    p->in     = AT_VALUE;
    p->schema = declared_member(l->schema, key);
    quote_key(p, key);
    arena_deinit(&mem);
    if (p->mute) return;
    if (seen_key(p, buf_str(&p->quoted))) {
        if (p->leftover.n) add_leftover(p, STR(","));
        add_leftover(p, text);
        add_leftover(p, STR(":"));
        p->mute = p->depth;
        return;
    }
    if (l->has_item) write_json(p, ",", 1);
    l->has_item = true;
    write_json(p, p->quoted.p, p->quoted.n);
    write_json(p, ":", 1);
}

/* --- the inner machine --------------------------------------------------------------------------*/
static bool is_name(const gemma4_parser *p, str s)
{
    for (size_t i = 0; p->opt.chat && i < p->opt.chat->n_tools; i++)
        if (str_eq(p->opt.chat->tool[i].name, s)) return true;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] <= ' ' || strchr("\"\\{}[]()<>,=", s.s[i])) return false;
    return s.n > 0;
}

/* Returns the name before the arguments. *called: "call:" came before it. */
static str call_name(const gemma4_parser *p, bool *called)
{
    str name = chat_trim(buf_str(&p->word));
    *called  = str_starts(name, "call:");
    return *called ? chat_trim((str){name.s + 5, name.n - 5}) : name;
}

/* Reports held text as content; the rest is content too. */
static void give_up_call(gemma4_parser *p)
{
    emit(p, CHAT_EVENT_CONTENT, gemma4_marker_name(GEMMA4_CALL));
    emit(p, CHAT_EVENT_CONTENT, buf_str(&p->word));
    p->no_call = true;
    p->state   = IN_CONTENT;
}

static void begin_args(gemma4_parser *p)
{
    bool called;
    str  name = call_name(p, &called);
    emit(p, CHAT_EVENT_CALL_NAME, name);
    p->named  = true;
    p->schema = declared_parameters(p->opt.chat, name);
    p->depth  = 0;
    forget_keys(p);
    push(p, true);
}

static void name_char(gemma4_parser *p, char c)
{
    bool called;
    if (c == '{' && is_name(p, call_name(p, &called))) {
        begin_args(p);
        return;
    }
    hold(p, &p->word, &c, 1);
    if (c == '{' || p->word.n > MAX_NAME) give_up_call(p);
}

static void begin_word(gemma4_parser *p, char c)
{
    buf_clear(&p->word);
    hold(p, &p->word, &c, 1);
    p->quoting = c == '"';
    p->escaped = false;
}

/* Returns whether c is part of the word because it is inside plain quotes. */
static bool in_quotes(gemma4_parser *p, char c)
{
    if (!p->quoting) return false;
    hold(p, &p->word, &c, 1);
    p->quoting = c != '"' || p->escaped;
    p->escaped = c == '\\' && !p->escaped;
    return true;
}

static void begin_value(gemma4_parser *p, char c)
{
    before_value(p);
    if (c == '{' || c == '[') {
        push(p, c == '{');
        return;
    }
    begin_word(p, c);
    p->in = IN_BARE;
}

/* Handles a comma or a closing bracket after a value. */
static bool ends_value(gemma4_parser *p, char c)
{
    if (c == ',')
        p->in = p->lv[p->depth - 1].is_object ? AT_KEY : AT_ITEM;
    else if (c == '}' || c == ']')
        pop(p);
    else
        return false;
    return true;
}

static bool is_end(char c) { return c == ',' || c == '}' || c == ']'; }

static void key_char(gemma4_parser *p, char c)
{
    bool closes = c == '}' || c == ']';
    if (p->in == AT_KEY) {
        if (closes) {
            pop(p);
        } else if (!is_space(c) && c != ',') {
            begin_word(p, c);
            p->in = IN_BARE_KEY;
        }
    } else if (p->in == IN_BARE_KEY && in_quotes(p, c)) {
        return;
    } else if (c == ':') {
        end_key(p, buf_str(&p->word));
    } else if (closes || (p->in == AT_COLON && c == ',')) { /* a key without a value */
        add_leftover(p, buf_str(&p->word));
        ends_value(p, c);
    } else if (p->in == IN_BARE_KEY || !is_space(c)) {
        hold(p, &p->word, &c, 1);
    }
}

static void string_text(gemma4_parser *p, str s)
{
    if (p->whole)
        hold_str(p, &p->word, s);
    else
        write_escaped(p, s);
}

static void begin_string(gemma4_parser *p)
{
    before_value(p);
    buf_clear(&p->word);
    p->whole = may_be_bare(p->schema);
    p->in    = IN_STRING;
    if (!p->whole) write_json(p, "\"", 1);
}

static void end_string(gemma4_parser *p)
{
    if (p->whole)
        put_string(p, buf_str(&p->word));
    else
        write_json(p, "\"", 1);
    after_value(p);
}

/* Continues a string whose quote was part of it. */
static void go_on_with_string(gemma4_parser *p)
{
    string_text(p, gemma4_marker_name(GEMMA4_QUOTE));
    string_text(p, buf_str(&p->spaces));
    buf_clear(&p->spaces);
}

static void after_string_char(gemma4_parser *p, char c)
{
    if (is_space(c)) {
        hold(p, &p->spaces, &c, 1);
    } else if (is_end(c)) {
        end_string(p);
        ends_value(p, c);
    } else {
        go_on_with_string(p);
        string_text(p, (str){&c, 1});
        p->in = IN_STRING;
    }
}

static void after_value_char(gemma4_parser *p, char c)
{
    if (ends_value(p, c)) return;
    if (p->lv[p->depth - 1].is_object)
        add_leftover(p, (str){&c, 1});
    else if (!is_space(c)) /* a comma is missing */
        begin_value(p, c);
}

static void deep_char(gemma4_parser *p, char c)
{
    add_leftover(p, (str){&c, 1});
    p->deep += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (!p->deep) after_value(p);
}

static void call_char(gemma4_parser *p, char c)
{
    switch (p->in) {
    case IN_NAME: name_char(p, c); break;
    case AT_KEY:
    case IN_BARE_KEY:
    case AT_COLON: key_char(p, c); break;
    case AT_VALUE:
        if (is_space(c)) break;
        if (is_end(c)) {
            write_json(p, "null", 4);
            after_value(p);
            ends_value(p, c);
        } else {
            begin_value(p, c);
        }
        break;
    case AT_ITEM:
        if (c == '}' || c == ']')
            pop(p);
        else if (!is_space(c) && c != ',')
            begin_value(p, c);
        break;
    case IN_BARE:
        if (in_quotes(p, c)) break;
        if (is_end(c)) {
            put_bare(p);
            ends_value(p, c);
        } else {
            hold(p, &p->word, &c, 1);
        }
        break;
    case AFTER_STRING: after_string_char(p, c); break;
    case AFTER_VALUE: after_value_char(p, c); break;
    case IN_DEEP: deep_char(p, c); break;
    case AFTER_ARGS: add_leftover(p, (str){&c, 1}); break;
    default: break;
    }
}

static bool in_string(const gemma4_parser *p)
{
    return p->in == IN_QUOTED_KEY || p->in == IN_STRING || p->in == IN_JUNK_STRING || p->in == IN_DEEP_STRING;
}

static void text_of_string(gemma4_parser *p, str s)
{
    if (p->in == IN_STRING)
        string_text(p, s);
    else if (p->in == IN_QUOTED_KEY)
        hold_str(p, &p->word, s);
    else
        add_leftover(p, s);
    if (p->mute) hold_str(p, &p->leftover, s);
}

/* Parses text inside a call: strings in one piece, the rest by character. Returns the bytes that belong to the call. */
static size_t call_text(gemma4_parser *p, str s)
{
    for (size_t i = 0; i < s.n; i++) {
        int mute = p->mute, depth = p->depth;
        if (in_string(p)) {
            text_of_string(p, (str){s.s + i, s.n - i});
            break;
        }
        call_char(p, s.s[i]);
        if (mute && (p->mute || depth > mute))
            hold(p, &p->leftover, &s.s[i], 1); /* text of the value, not the end after it */
        if (p->state != IN_CALL) return i + 1;
    }
    return s.n;
}

static void call_quote(gemma4_parser *p)
{
    str  quote     = gemma4_marker_name(GEMMA4_QUOTE);
    bool in_object = p->depth && p->lv[p->depth - 1].is_object;
    if (p->mute) hold_str(p, &p->leftover, quote);
    switch (p->in) {
    case IN_NAME: hold_str(p, &p->word, quote); break;
    case AT_KEY: buf_clear(&p->word); /* fall through */
    case IN_BARE_KEY:
    case AT_COLON: p->in = IN_QUOTED_KEY; break;
    case IN_QUOTED_KEY: p->in = AT_COLON; break;
    case AT_VALUE:
    case AT_ITEM: begin_string(p); break;
    case IN_BARE: /* a string that began without its quote */
        write_json(p, "\"", 1);
        write_escaped(p, buf_str(&p->word));
        p->whole = false;
        p->in    = IN_STRING;
        break;
    case IN_STRING:
        buf_clear(&p->spaces);
        p->in = AFTER_STRING;
        break;
    case AFTER_STRING:
        if (in_object) {
            go_on_with_string(p);
        } else { /* a comma is missing */
            end_string(p);
            begin_string(p);
        }
        break;
    case AFTER_VALUE:
        if (in_object) {
            add_leftover(p, quote);
            p->in = IN_JUNK_STRING;
        } else {
            begin_string(p);
        }
        break;
    case IN_JUNK_STRING:
        add_leftover(p, quote);
        p->in = AFTER_VALUE;
        break;
    case IN_DEEP:
    case IN_DEEP_STRING:
        add_leftover(p, quote);
        p->in = p->in == IN_DEEP ? IN_DEEP_STRING : IN_DEEP;
        break;
    case AFTER_ARGS: add_leftover(p, quote); break;
    }
}

static void close_brackets(gemma4_parser *p)
{
    if (p->in == IN_BARE_KEY || p->in == IN_QUOTED_KEY || p->in == AT_COLON) add_leftover(p, buf_str(&p->word));
    if (p->in == IN_STRING || p->in == AFTER_STRING) end_string(p);
    if (p->in == IN_BARE) put_bare(p);
    if (p->in == AT_VALUE) write_json(p, "null", 4);
    while (p->depth) {
        if (p->mute == p->depth) p->mute = 0;
        pop(p);
    }
}

/* Returns whether s has only brackets, commas and white space: a syntax error of the model, not text. */
static bool is_slip(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_space(s.s[i]) && !is_end(s.s[i])) return false;
    return true;
}

/* Ends a call before its arguments: a name followed by a marker is a call without arguments. */
static bool end_name(gemma4_parser *p, bool closed)
{
    bool called;
    str  name = call_name(p, &called);
    if (closed && called && is_name(p, name)) {
        begin_args(p);
        return true;
    }
    if (called || name.n) give_up_call(p);
    return false;
}

/* Ends a call. closed: by its own marker. */
static void end_call(gemma4_parser *p, bool closed)
{
    p->state = AFTER_CALL;
    buf_clear(&p->spaces);
    if (p->in == IN_NAME && !end_name(p, closed)) return;
    bool cut = p->depth > 0 && !closed;
    close_brackets(p);
    flush_json(p);
    p->opt.on_event(p->opt.ctx, &(chat_event){.kind = CHAT_EVENT_CALL_DONE, .call = p->n_calls, .cut = cut});
    p->n_calls++;
    if (!is_slip(buf_str(&p->leftover))) emit(p, CHAT_EVENT_CONTENT, buf_str(&p->leftover));
}

static void begin_call(gemma4_parser *p)
{
    p->state   = IN_CALL;
    p->in      = IN_NAME;
    p->named   = false;
    p->no_call = false;
    p->mute    = 0;
    buf_clear(&p->word);
    buf_clear(&p->json);
    buf_clear(&p->leftover);
}

/* --- the outer machine --------------------------------------------------------------------------*/
static const char label[] = "thought"; /* at the start of a response, followed by a newline */

static void flush_newline(gemma4_parser *p)
{
    if (p->newline) emit(p, CHAT_EVENT_REASONING, STR("\n"));
    p->newline = false;
}

static void put_thought(gemma4_parser *p, str s)
{
    if (!s.n) return;
    flush_newline(p);
    p->newline = s.s[s.n - 1] == '\n';
    emit(p, CHAT_EVENT_REASONING, (str){s.s, s.n - p->newline});
}

/* Reports the held start of a label as text. */
static void give_up_label(gemma4_parser *p)
{
    str label_start = {label, p->n_label};
    if (p->state == AT_START) {
        p->state = IN_CONTENT;
        emit(p, CHAT_EVENT_CONTENT, label_start);
    } else if (p->state == IN_LABEL) {
        p->state = IN_THOUGHT;
        put_thought(p, label_start);
    }
    p->n_label = 0;
}

/* Returns the bytes of s that belong to the label and one white space after it; the state says whether it continues. */
static size_t label_text(gemma4_parser *p, str s)
{
    size_t full = sizeof label - 1, i = 0;
    while (i < s.n && p->n_label < full && s.s[i] == label[p->n_label]) {
        i++;
        p->n_label++;
    }
    if (i == s.n) return i;
    if (p->n_label < full || !(p->state == AT_START ? s.s[i] == '\n' : is_space(s.s[i]))) {
        give_up_label(p);
        return i;
    }
    p->state = p->state == AT_START && !p->opt.thinking ? AT_BARE : AT_THOUGHT;
    buf_clear(&p->spaces);
    p->n_label = 0;
    return i + 1;
}

static size_t skip_space(str s)
{
    size_t n = 0;
    while (n < s.n && is_space(s.s[n])) n++;
    return n;
}

/* Reports held text before the text that follows. */
static void after_spaces(gemma4_parser *p)
{
    if (p->state == AT_THOUGHT) {
        p->state = IN_THOUGHT;
        put_thought(p, buf_str(&p->spaces));
    } else {
        p->state = IN_CONTENT;
        emit(p, CHAT_EVENT_CONTENT, buf_str(&p->spaces));
    }
}

static void outer_text(gemma4_parser *p, str s)
{
    while (s.n) {
        size_t n = s.n;
        if (p->state == AT_START || p->state == IN_LABEL) {
            n = label_text(p, s);
        } else if (p->state == AT_THOUGHT || p->state == AFTER_CALL) {
            n = skip_space(s);
            hold(p, &p->spaces, s.s, n);
            if (n < s.n) after_spaces(p);
        } else if (p->state == AT_BARE) {
            hold_str(p, &p->bare, s);
        } else if (p->state == IN_THOUGHT) {
            put_thought(p, s);
        } else if (p->state == IN_CONTENT) {
            emit(p, CHAT_EVENT_CONTENT, s);
        } else {
            n = call_text(p, s);
        }
        s = (str){s.s + n, s.n - n};
    }
}

/* Handles a label without a newline after it. */
static void end_label(gemma4_parser *p, bool at_start)
{
    if (p->n_label == sizeof label - 1 && (at_start || p->state == IN_LABEL)) p->n_label = 0;
    give_up_label(p);
}

/* Emits the text after a bare label: <channel|> makes it a thought, anything else content. */
static void settle_bare(gemma4_parser *p, bool is_thought)
{
    if (p->state != AT_BARE) return;
    p->state = is_thought ? AT_THOUGHT : IN_CONTENT;
    outer_text(p, buf_str(&p->bare));
    buf_clear(&p->bare);
}

/* Ends the open thought, label or call and reports held text. */
static void close_text(gemma4_parser *p)
{
    settle_bare(p, false);
    end_label(p, false);
    flush_newline(p);
    if (p->state == IN_CALL) end_call(p, false);
    if (p->state != AFTER_CALL) p->state = IN_CONTENT;
    p->no_call = false;
}

static void end_channel(gemma4_parser *p)
{
    settle_bare(p, true);
    end_label(p, true);
    p->newline = false; /* it belongs to the marker */
    close_text(p);
}

static void begin_channel(gemma4_parser *p)
{
    end_label(p, true);
    close_text(p);
    p->state = IN_LABEL;
}

static void call_marker(gemma4_parser *p, gemma4_marker m)
{
    if (m == GEMMA4_QUOTE) {
        call_quote(p);
    } else if (in_string(p)) {
        call_text(p, gemma4_marker_name(m));
    } else if (m == GEMMA4_CALL_END) {
        end_call(p, true);
    } else if (m == GEMMA4_CALL) {
        end_call(p, false);
        begin_call(p);
    } else if (m == GEMMA4_CHANNEL) {
        begin_channel(p);
    }
}

static bool ends_answer(gemma4_marker m) { return m == GEMMA4_TURN_END || m == GEMMA4_EOS || m == GEMMA4_RESPONSE; }

static void outer_marker(gemma4_parser *p, gemma4_marker m)
{
    if (ends_answer(m)) {
        close_text(p);
    } else if (p->state == IN_CALL) {
        call_marker(p, m);
    } else if (m == GEMMA4_CHANNEL) {
        begin_channel(p);
    } else if (m == GEMMA4_CHANNEL_END) {
        end_channel(p);
    } else if (m == GEMMA4_CALL) {
        close_text(p);
        begin_call(p);
    } else if (m == GEMMA4_QUOTE) {
        outer_text(p, gemma4_marker_name(m));
    }
    if (m == GEMMA4_CALL_END && p->no_call) {
        emit(p, CHAT_EVENT_CONTENT, gemma4_marker_name(m));
        p->no_call = false;
    }
}

/* --- what comes in ------------------------------------------------------------------------------*/
/* Parses a piece of text, after the held start of a character; holds an incomplete character at its end. */
static void whole_text(gemma4_parser *p, str s)
{
    while (p->n_tail && s.n) {
        p->tail[p->n_tail++] = s.s[0];
        s                    = (str){s.s + 1, s.n - 1};
        if (utf8_open_tail(p->tail, p->n_tail) == p->n_tail) continue;
        size_t n  = p->n_tail;
        p->n_tail = utf8_open_tail(p->tail, n);
        outer_text(p, (str){p->tail, n - p->n_tail});
        memmove(p->tail, p->tail + n - p->n_tail, p->n_tail);
    }
    if (!s.n) return;
    size_t open = utf8_open_tail(s.s, s.n);
    outer_text(p, (str){s.s, s.n - open});
    memcpy(p->tail, s.s + s.n - open, open);
    p->n_tail = open;
}

static void flush_tail(gemma4_parser *p)
{
    size_t n  = p->n_tail;
    p->n_tail = 0;
    outer_text(p, (str){p->tail, n});
}

void gemma4_parser_put_text(chat_parser *base, str text)
{
    gemma4_parser *p = (gemma4_parser *)base;
    whole_text(p, text);
    if (p->state == IN_CALL && p->named) flush_json(p);
}

void gemma4_parser_put_marker(chat_parser *base, gemma4_marker m)
{
    gemma4_parser *p = (gemma4_parser *)base;
    flush_tail(p);
    outer_marker(p, m);
    if (p->state == IN_CALL && p->named) flush_json(p);
}

static void take_decoded(gemma4_parser *p)
{
    gemma4_parser_put_text(&p->base, buf_str(&p->decoded));
    p->failed |= p->decoded.failed;
    buf_clear(&p->decoded);
}

static void put_id(chat_parser *base, int32_t id)
{
    gemma4_parser *p = (gemma4_parser *)base;
    assert(p->opt.tok);
    for (gemma4_marker m = 0; m < GEMMA4_MARKERS; m++) {
        if (id < 0 || p->marker_id[m] != id) continue;
        tok_stream_finish(&p->stream, &p->decoded);
        take_decoded(p);
        gemma4_parser_put_marker(base, m);
        return;
    }
    tok_stream_put(&p->stream, id, &p->decoded);
    take_decoded(p);
}

static bool is_in_thought(const chat_parser *base)
{
    const gemma4_parser *p = (const gemma4_parser *)base;
    return p->state == IN_LABEL || p->state == AT_THOUGHT || p->state == IN_THOUGHT;
}

static bool is_undecided(const chat_parser *base)
{
    const gemma4_parser *p = (const gemma4_parser *)base;
    return p->state == AT_BARE || (p->state == AT_START && p->n_label);
}

static bool finish_answer(chat_parser *base, err *e)
{
    gemma4_parser *p = (gemma4_parser *)base;
    if (p->opt.tok) {
        tok_stream_finish(&p->stream, &p->decoded);
        take_decoded(p);
    }
    flush_tail(p);
    close_text(p);
    return !p->failed || err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response");
}

/* --- a parser -----------------------------------------------------------------------------------*/
static chat_parser *create_parser(const chat_parse_options *opt)
{
    gemma4_parser *p = mem_try(sizeof *p);
    if (!p) return NULL;
    p->base.ops = &gemma4_parser_ops;
    p->opt      = *opt;
    p->state    = opt->in_thought ? AT_THOUGHT : opt->chat && opt->chat->prefill.n ? IN_CONTENT : AT_START;
    for (gemma4_marker m = 0; m < GEMMA4_MARKERS; m++)
        p->marker_id[m] = opt->tok ? tok_find(opt->tok, gemma4_marker_name(m)) : -1;
    if (opt->tok) tok_stream_init(&p->stream, opt->tok, false);
    buf_init(&p->decoded, MAX_HELD);
    buf_init(&p->spaces, MAX_HELD);
    buf_init(&p->bare, MAX_HELD);
    buf_init(&p->word, MAX_HELD);
    buf_init(&p->quoted, (size_t)8 * MAX_HELD);
    buf_init(&p->json, (size_t)8 * MAX_HELD);
    buf_init(&p->leftover, (size_t)8 * MAX_HELD);
    return &p->base;
}

static void destroy_parser(chat_parser *base)
{
    gemma4_parser *p = (gemma4_parser *)base;
    buf_deinit(&p->decoded);
    buf_deinit(&p->spaces);
    buf_deinit(&p->bare);
    buf_deinit(&p->word);
    buf_deinit(&p->quoted);
    buf_deinit(&p->json);
    buf_deinit(&p->leftover);
    mem_free(p->keys);
    mem_free(p);
}

const chat_parser_ops gemma4_parser_ops = {.create     = create_parser,
                                           .destroy    = destroy_parser,
                                           .put_id     = put_id,
                                           .in_thought = is_in_thought,
                                           .undecided  = is_undecided,
                                           .finish     = finish_answer};
