#include "load/body.h"

typedef struct {
    json_writer      w;
    const load_ask  *ask;
    const load_talk *talk; /* NULL: the first turn */
} body;

/* Members that the user gave replace ours. */
static bool is_ours(const body *b, const char *key) { return !json_get(b->ask->extra, key); }

static void put_text(body *b, str prefix, str text)
{
    if (!prefix.n) {
        json_put_str(&b->w, text);
        return;
    }
    buf both;
    buf_init(&both, prefix.n + text.n);
    buf_put(&both, prefix.s, prefix.n);
    buf_put(&both, text.s, text.n);
    json_put_str(&b->w, buf_str(&both));
    buf_deinit(&both);
}

static void put_said(body *b, const char *role, str prefix, str text)
{
    json_begin_object(&b->w);
    json_member_str(&b->w, "role", role);
    json_key(&b->w, "content");
    put_text(b, prefix, text);
    json_end(&b->w);
}

/* Puts the turns up to the current one, and the responses to those before it. */
static void put_turns(body *b, str prefix, const load_prompt *p)
{
    const load_talk *t = b->talk;
    json_begin_array(&b->w);
    put_said(b, "user", prefix, p->text);
    for (int i = 0; t && i < t->turn; i++) {
        size_t from = i ? t->end[i - 1] : 0;
        put_said(b, "assistant", (str){0}, (str){t->said.p + from, t->end[i] - from});
        put_said(b, "user", (str){0}, p->turns->item[i + 1].s);
    }
    json_end(&b->w);
}

static void put_message(body *b, str prefix, const json_value *m)
{
    json_begin_object(&b->w);
    for (size_t i = 0; i < m->n; i++) {
        const json_member *x = &m->member[i];
        json_key_str(&b->w, x->key);
        if (prefix.n && str_is(x->key, "content") && x->value.kind == JSON_STRING)
            put_text(b, prefix, x->value.s);
        else
            json_put_value(&b->w, &x->value);
    }
    json_end(&b->w);
}

static void put_messages(body *b, str prefix, const json_value *messages)
{
    json_begin_array(&b->w);
    for (size_t i = 0; i < messages->n; i++) put_message(b, i ? (str){0} : prefix, &messages->item[i]);
    json_end(&b->w);
}

static bool put_prompt(body *b, const load_prompt *p, str prefix, err *e)
{
    const char *key = b->ask->is_chat ? "messages" : "prompt";
    if (!b->ask->is_chat && p->messages)
        return err_set(e, ERR_INPUT, "prompts with messages need the chat completions endpoint");
    if (!is_ours(b, key)) return true;
    json_key(&b->w, key);
    if (p->messages)
        put_messages(b, prefix, p->messages);
    else if (b->ask->is_chat)
        put_turns(b, prefix, p);
    else
        put_text(b, prefix, p->text);
    return true;
}

static void put_options(body *b, int max_tokens)
{
    const load_ask *a = b->ask;
    if (is_ours(b, "stream")) json_member_bool(&b->w, "stream", true);
    if (is_ours(b, "stream_options")) {
        json_key(&b->w, "stream_options");
        json_begin_object(&b->w);
        json_member_bool(&b->w, "include_usage", true);
        json_end(&b->w);
    }
    if (max_tokens && is_ours(b, "max_tokens")) json_member_int(&b->w, "max_tokens", max_tokens);
    if (max_tokens && !a->may_end && is_ours(b, "ignore_eos")) json_member_bool(&b->w, "ignore_eos", true);
    if (a->has_temp && is_ours(b, "temperature")) json_member_real(&b->w, "temperature", a->temp);
    if (a->has_seed && is_ours(b, "seed")) json_member_int(&b->w, "seed", (int64_t)(a->seed & INT64_MAX));
    for (size_t i = 0; a->extra && i < a->extra->n; i++) {
        json_key_str(&b->w, a->extra->member[i].key);
        json_put_value(&b->w, &a->extra->member[i].value);
    }
}

static bool put_body(buf *out, const load_ask *ask, const char *model, uint64_t number, const load_talk *talk,
                     int n_words, int max_tokens, err *e)
{
    body        b = {.ask = ask, .talk = talk};
    buf         made, prefix;
    load_prompt p = {0};
    buf_init(&made, 64 << 20);
    buf_init(&prefix, 64);
    if (n_words || ask->n_words) {
        load_prompt_make(&made, ask->seed, number, n_words ? n_words : ask->n_words);
        p.text = buf_str(&made);
    } else {
        p = ask->prompts->item[number % ask->prompts->n];
        if (ask->unique) buf_printf(&prefix, "Question %llu: ", (unsigned long long)number);
    }
    json_writer_init(&b.w, out);
    json_begin_object(&b.w);
    if (is_ours(&b, "model")) json_member_str(&b.w, "model", model);
    bool ok = put_prompt(&b, &p, buf_str(&prefix), e);
    put_options(&b, max_tokens ? max_tokens : ask->output_len);
    json_end(&b.w);
    buf_deinit(&made);
    buf_deinit(&prefix);
    return ok && (!out->failed || err_set(e, ERR_TOO_LARGE, "the request is too large"));
}

bool load_body_put(buf *out, const load_ask *ask, const char *model, uint64_t number, int n_words, int max_tokens,
                   err *e)
{
    return put_body(out, ask, model, number, NULL, n_words, max_tokens, e);
}

bool load_talk_put(buf *out, const load_ask *ask, const char *model, const load_talk *t, err *e)
{
    return put_body(out, ask, model, t->number, t, 0, 0, e);
}

bool load_talk_goes_on(const load_talk *t, const load_ask *ask)
{
    const load_prompt *p = ask->n_words ? NULL : &ask->prompts->item[t->number % ask->prompts->n];
    return ask->all_turns && ask->is_chat && p && p->turns && t->turn + 1 < (int)p->turns->n;
}
