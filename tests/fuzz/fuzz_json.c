/* Reads any bytes as JSON. It must hold that
 *   - tree, events and json_skip agree on the result, and on the sentence of an error;
 *   - events are balanced, in order and inside the text; strings are UTF-8; no object has a key twice;
 *   - a tree that is written and read again is the same tree, and is written the same way again;
 *   - tight limits and an allocation that fails give an error or the same result, and keep no memory. */
#include "base/fault.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #cond);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MAX_MEMORY = 64 << 20 };

static void check_utf8(str s)
{
    uint32_t cp;
    for (size_t i = 0; i < s.n;) {
        int n = utf8_decode(s.s + i, s.n - i, &cp);
        MUST(n > 0);
        i += (size_t)n;
    }
}

static bool same(const json_value *a, const json_value *b)
{
    if (a->kind != b->kind || a->b != b->b || a->i != b->i || a->n != b->n || !str_eq(a->s, b->s)) return false;
    if (memcmp(&a->d, &b->d, sizeof a->d)) return false;
    for (size_t i = 0; i < a->n; i++) {
        if (a->kind == JSON_ARRAY && !same(&a->item[i], &b->item[i])) return false;
        if (a->kind == JSON_OBJECT &&
            (!str_eq(a->member[i].key, b->member[i].key) || !same(&a->member[i].value, &b->member[i].value)))
            return false;
    }
    return true;
}

static void check_tree(const json_value *v)
{
    check_utf8(v->s);
    for (size_t i = 0; i < v->n; i++) {
        check_tree(v->kind == JSON_ARRAY ? &v->item[i] : &v->member[i].value);
        if (v->kind != JSON_OBJECT) continue;
        check_utf8(v->member[i].key);
        MUST(!memchr(v->member[i].key.s, 0, v->member[i].key.n));
        for (size_t k = 0; k < i && k < 100; k++) MUST(!str_eq(v->member[i].key, v->member[k].key));
    }
}

static bool run_events(str text, err *e)
{
    json_reader *r;
    json_event   ev    = {0};
    size_t       at    = 0;
    int          depth = 0;
    bool         ok;
    MUST(json_reader_open(&r, text, NULL, e));
    do {
        ok = json_next(r, &ev, e);
        if (!ok) break;
        MUST(ev.at >= at && ev.at <= text.n);
        at = ev.at;
        depth += ev.kind == JSON_ARRAY || ev.kind == JSON_OBJECT;
        depth -= ev.kind == JSON_ARRAY_END || ev.kind == JSON_OBJECT_END;
        MUST(depth >= 0 && depth <= 64);
        check_utf8(ev.s);
    } while (ev.kind != JSON_END);
    MUST(!ok || depth == 0);
    json_reader_close(r);
    return ok;
}

static bool run_skip(str text, err *e)
{
    json_reader *r;
    json_event   ev;
    MUST(json_reader_open(&r, text, NULL, e));
    bool ok = json_skip(r, e) && json_next(r, &ev, e);
    MUST(!ok || ev.kind == JSON_END);
    json_reader_close(r);
    return ok;
}

static void write_tree(buf *b, const json_value *v)
{
    json_writer w;
    buf_init(b, MAX_MEMORY);
    json_writer_init(&w, b);
    json_put_value(&w, v);
    MUST(!b->failed && w.depth == 0);
}

static void check_round_trip(const json_value *v)
{
    arena             a;
    const json_value *again;
    buf               once, twice;
    err               e;
    arena_init(&a, MAX_MEMORY);
    write_tree(&once, v);
    MUST(json_parse(&again, &a, buf_str(&once), NULL, &e));
    MUST(same(v, again));
    write_tree(&twice, again);
    MUST(str_eq(buf_str(&once), buf_str(&twice)));
    buf_deinit(&once);
    buf_deinit(&twice);
    arena_deinit(&a);
}

/* Under a limit, or with a failing allocation, the answer is the same or an error. */
static void check_starved(str text, const json_value *expected, const json_limits *limits, long fail_nth)
{
    arena             a;
    const json_value *v;
    err               e;
    arena_init(&a, MAX_MEMORY);
    fault_fail_nth(fail_nth);
    if (json_parse(&v, &a, text, limits, &e))
        MUST(expected && same(v, expected));
    else
        MUST(!v && !a.used && e.text[0]);
    MUST(a.limit == MAX_MEMORY);
    fault_fail_nth(0);
    arena_deinit(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str               text = {(const char *)data, size};
    arena             a;
    const json_value *v;
    err               e = {0}, e_events = {0}, e_skip = {0};

    arena_init(&a, MAX_MEMORY);
    bool ok = json_parse(&v, &a, text, NULL, &e);
    MUST(ok == (v != NULL) && ok == run_events(text, &e_events) && ok == run_skip(text, &e_skip));
    MUST(!strcmp(e.text, e_events.text) && !strcmp(e.text, e_skip.text) && e.code == e_events.code);
    if (ok) {
        check_tree(v);
        check_round_trip(v);
    }
    check_starved(text, v, NULL, 1 + (long)(size % 11));
    check_starved(text, v, &(json_limits){.max_depth = 1 + (int)(size % 5)}, 0);
    check_starved(text, v, &(json_limits){.max_memory = 1 + size % 5000}, 0);
    arena_deinit(&a);
    return 0;
}
