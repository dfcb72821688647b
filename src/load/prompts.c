#include "load/prompts.h"

#include "base/mem.h"
#include "load/inside.h"
#include "load/random.h"

enum { MAX_TREES = 1 << 30 };

const load_own_prompt load_own_prompts[] = {
    {"What is 27 plus 58?", "sums"},
    {"What is 318 plus 476?", "sums"},
    {"Count from 3 to 14.", "lists"},
    {"Sort these numbers: 42 7 19 3 88", "lists"},
    {"Tell me a story about a fox and a bird.", "talk"},
    {"How many minutes are 3 hours?", "sums"},
    {"Which is larger, 58 or 85?", "sums"},
    {"Write a Python function that adds two numbers.", "formats"},
    {"Write a Python function that returns the square of a number.", "formats"},
    {"Hello! How are you?", "talk"},
    {"Name: Anna. Age: 34. City: Rome. Write this as JSON.", "formats"},
    {"What colour is the sky?", "talk"},
    {NULL, NULL},
};

static bool add_prompt(load_prompts *p, load_prompt x, err *e)
{
    if (p->n == LOAD_MAX_PROMPTS) return err_set(e, ERR_INPUT, "there are more than %d prompts", LOAD_MAX_PROMPTS);
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        void  *got = mem_try_resize(p->item, cap * sizeof *p->item);
        if (!got) return err_set(e, ERR_UNAVAILABLE, "no memory for the prompts");
        p->item = got;
        p->cap  = cap;
    }
    p->item[p->n++] = x;
    return true;
}

static void init_empty(load_prompts *p)
{
    *p = (load_prompts){0};
    arena_init(&p->mem, MAX_TREES);
}

void load_prompts_init(load_prompts *p)
{
    init_empty(p);
    for (const load_own_prompt *s = load_own_prompts; s->text; s++)
        add_prompt(p, (load_prompt){.text = str_of(s->text), .kind = str_of(s->kind)}, NULL);
}

void load_prompts_deinit(load_prompts *p)
{
    mem_free(p->item);
    arena_deinit(&p->mem);
    file_map_close(&p->file);
    *p = (load_prompts){0};
}

/* --- a line -------------------------------------------------------------------------------------*/
static bool is_text(const json_value *v) { return v && v->kind == JSON_STRING; }
static bool is_list(const json_value *v) { return v && v->kind == JSON_ARRAY; }

static bool read_messages(const json_value *v, load_prompt *out, err *e)
{
    for (size_t i = 0; i < v->n; i++)
        if (!is_text(json_get(&v->item[i], "role")))
            return err_set(e, ERR_FORMAT, "message %zu of 'messages' has no role", i + 1);
    out->messages = v;
    return v->n > 0 || err_set(e, ERR_FORMAT, "'messages' is empty");
}

static bool read_conversations(const json_value *v, load_prompt *out, err *e)
{
    for (size_t i = 0; i < v->n; i++) {
        const json_value *from = json_get(&v->item[i], "from"), *value = json_get(&v->item[i], "value");
        if (is_text(from) && is_text(value) && (str_is(from->s, "human") || str_is(from->s, "user"))) {
            out->text = value->s;
            return true;
        }
    }
    return err_set(e, ERR_FORMAT, "'conversations' has no message from a human");
}

static bool read_turns(const json_value *v, load_prompt *out, err *e)
{
    if (!v->n || v->n > LOAD_MAX_TURNS)
        return err_set(e, ERR_FORMAT, "'turns' has %zu items, expected 1 to %d", v->n, LOAD_MAX_TURNS);
    for (size_t i = 0; i < v->n; i++)
        if (v->item[i].kind != JSON_STRING) return err_set(e, ERR_FORMAT, "item %zu of 'turns' is not a text", i + 1);
    out->text  = v->item[0].s;
    out->turns = v;
    return true;
}

static bool read_item(const json_value *v, load_prompt *out, err *e)
{
    static const char *const names[] = {"prompt", "text", "question"};
    *out                             = (load_prompt){0};
    if (v->kind == JSON_STRING) {
        out->text = v->s;
        return true;
    }
    if (v->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "it is neither an object nor a string");
    if (is_text(json_get(v, "category"))) out->kind = json_get(v, "category")->s;
    if (is_text(json_get(v, "class"))) out->kind = json_get(v, "class")->s;
    if (is_list(json_get(v, "messages"))) return read_messages(json_get(v, "messages"), out, e);
    if (is_list(json_get(v, "conversations"))) return read_conversations(json_get(v, "conversations"), out, e);
    if (is_list(json_get(v, "turns"))) return read_turns(json_get(v, "turns"), out, e);
    for (size_t i = 0; i < COUNT(names); i++)
        if (is_text(json_get(v, names[i]))) {
            out->text = json_get(v, names[i])->s;
            return true;
        }
    return err_set(e, ERR_FORMAT, "it has none of messages, conversations, turns, prompt, text, question");
}

static bool add_item(load_prompts *p, const json_value *v, err *e)
{
    load_prompt x;
    if (!read_item(v, &x, e)) return false;
    return x.messages || x.text.n ? add_prompt(p, x, e) : err_set(e, ERR_FORMAT, "the prompt is empty");
}

/* --- a file -------------------------------------------------------------------------------------*/
static bool is_blank(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!strchr(" \t\r\n", s.s[i]) || !s.s[i]) return false;
    return true;
}

static bool parse_lines(load_prompts *p, str text, err *e)
{
    size_t number = 1;
    for (size_t at = 0, n; at < text.n; at += n + 1, number++) {
        const json_value *v;
        const char       *end  = memchr(text.s + at, '\n', text.n - at);
        str               line = {text.s + at, n = end ? (size_t)(end - text.s) - at : text.n - at};
        if (is_blank(line)) continue;
        if (!json_parse(&v, &p->mem, line, NULL, e) || !add_item(p, v, e)) return err_wrap(e, "line %zu", number);
    }
    return true;
}

static bool parse_array(load_prompts *p, str text, err *e)
{
    const json_value *v;
    if (!json_parse(&v, &p->mem, text, NULL, e)) return false;
    for (size_t i = 0; i < v->n; i++)
        if (!add_item(p, &v->item[i], e)) return err_wrap(e, "item %zu", i + 1);
    return true;
}

bool load_prompts_parse(load_prompts *p, str text, err *e)
{
    size_t first = 0;
    init_empty(p);
    while (first < text.n && is_blank((str){text.s + first, 1})) first++;
    if (text.n > 1 && !memcmp(text.s, "\x1f\x8b", 2))
        return err_set(e, ERR_FORMAT, "it is compressed: unpack it first, with gunzip");
    bool ok = first < text.n && text.s[first] == '[' ? parse_array(p, text, e) : parse_lines(p, text, e);
    return ok && (p->n > 0 || err_set(e, ERR_INPUT, "it has no prompts"));
}

bool load_prompts_read(load_prompts *p, const char *path, err *e)
{
    file_map m = {0};
    *p         = (load_prompts){0};
    if (!file_map_open(&m, path, e)) return false;
    bool ok = load_prompts_parse(p, (str){m.p, m.n}, e);
    p->file = m;
    return ok || err_wrap(e, "%s", path);
}

/* --- made-up ones -------------------------------------------------------------------------------*/
void load_prompt_make(buf *out, uint64_t seed, uint64_t number, int n_words)
{
    static const char *const words[] = {"river", "stone", "green", "walk",  "house", "light", "seven", "blue",
                                        "quiet", "train", "apple", "story", "under", "north", "bread", "winter",
                                        "small", "open",  "cloud", "music", "chair", "paper", "gold",  "sleep",
                                        "field", "round", "early", "salt",  "horse", "point", "glass", "table"};
    uint64_t                 state   = seed ^ (number * 0xD1342543DE82EF95u + 1);
    buf_printf(out, "%llu", (unsigned long long)number);
    for (int i = 1; i < n_words; i++) buf_printf(out, " %s", words[random_next(&state) >> 59]);
}
