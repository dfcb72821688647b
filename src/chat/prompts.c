#include "chat/prompts_inside.h"

#include "base/mem.h"
#include "ops/sampling_math.h"

#include <stdio.h>

enum { MAX_TOKENS = 1 << 24, LEAST_RECORDS = 16 /* tokens: enough for prompts to differ */ };

static const char request[] = "\nCopy the last five records.";

static uint64_t draw(uint64_t *state) { return sampling_mix(*state += 0x9E3779B97F4A7C15u) >> 33; }

/* --- the frame ------------------------------------------------------------------------------------*/
static bool render_question(const tok *t, const chat_options *format, const char *text, chat_prompt *out, err *e)
{
    arena mem;
    arena_init(&mem, 1 << 20);
    chat *c  = chat_new(&mem);
    bool  ok = (c && chat_add(c, CHAT_USER, str_of(text))) || err_set(e, ERR_UNAVAILABLE, "no memory for a prompt");
    ok       = ok && chat_render_ids(out, t, c, format, e);
    arena_deinit(&mem);
    return ok;
}

/* Finds where the user's text begins: the first position at which two prompts differ. */
static bool find_place(prompt_maker *p, const chat_options *format, err *e)
{
    chat_prompt one, other;
    chat_prompt_init(&one, MAX_TOKENS);
    chat_prompt_init(&other, MAX_TOKENS);
    bool ok = render_question(p->tok, format, request + 1, &one, e) && render_question(p->tok, format, "7", &other, e);
    while (ok && p->at < one.ids.n && p->at < other.ids.n && one.ids.p[p->at] == other.ids.p[p->at]) p->at++;
    if (ok) tok_ids_put_n(&p->frame, one.ids.p, p->at);
    ok = ok && tok_encode(p->tok, &p->frame, STR("\n"), false, e);
    if (ok) tok_ids_put_n(&p->frame, one.ids.p + p->at, one.ids.n - p->at);
    chat_prompt_deinit(&one);
    chat_prompt_deinit(&other);
    return ok;
}

bool prompts_init(prompt_maker *p, const tok *t, const chat_options *format, int32_t n_vocab, err *e)
{
    *p = (prompt_maker){.tok = t, .n_vocab = n_vocab};
    tok_ids_init(&p->frame, MAX_TOKENS);
    return !t || find_place(p, format, e);
}

void prompts_deinit(prompt_maker *p) { tok_ids_deinit(&p->frame); }

int prompts_shortest(const prompt_maker *p) { return (int)p->frame.n + (p->tok ? LEAST_RECORDS : 1); }

/* --- records --------------------------------------------------------------------------------------*/
static void make_record(char *out, size_t cap, uint64_t *state)
{
    static const char *const who[]   = {"Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry"};
    static const char *const what[]  = {"apples", "books", "chairs", "lamps", "maps", "pears", "ropes", "tables"};
    static const char *const where[] = {"Rome", "Oslo", "Lima", "Cairo", "Paris", "Delhi", "Quito", "Tokyo"};
    static const char *const form[]  = {"%d. %s bought %d %s in %s.\n", "%d. %s sold %d %s in %s at noon.\n",
                                        "%d. %s counted %d %s in %s, and was glad.\n"};
    uint64_t                 r       = draw(state);
    /* The forms take the same arguments. */
    snprintf(out, cap, form[r % 3], (int)(draw(state) % 9000 + 1000), who[r / 3 % 8], (int)(r / 24 % 90 + 10),
             what[r / 2160 % 8], where[r / 17280 % 8]);
}

static bool put_records(const prompt_maker *p, tok_ids *out, size_t n, err *e)
{
    uint64_t state = p->next << 32;
    while (out->n < n) {
        char text[160];
        make_record(text, sizeof text, &state);
        if (!tok_encode(p->tok, out, str_of(text), false, e)) return false;
    }
    out->n = n;
    return true;
}

static void put_random(const prompt_maker *p, tok_ids *out, size_t n)
{
    uint64_t state = p->next << 32;
    while (out->n < n && tok_ids_put(out, (int32_t)(draw(&state) % (uint64_t)p->n_vocab))) continue;
}

bool prompts_next(prompt_maker *p, tok_ids *out, int n_tokens, err *e)
{
    size_t tail = p->frame.n - p->at, n = (size_t)n_tokens;
    tok_ids_clear(out);
    if (n_tokens < prompts_shortest(p))
        return err_set(e, ERR_INPUT, "a prompt of %d tokens is too short: the minimum is %d", n_tokens,
                       prompts_shortest(p));
    tok_ids_put_n(out, p->frame.p, p->at);
    if (!p->tok)
        put_random(p, out, n);
    else if (!put_records(p, out, n - tail, e))
        return false;
    tok_ids_put_n(out, p->frame.p + p->at, tail);
    p->next++;
    return !out->failed || err_set(e, ERR_LIMIT, "a prompt of %d tokens is too long", n_tokens);
}
