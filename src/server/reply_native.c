/* llama.cpp's own /completion: one object for each choice, or events with its next part; an array for several. */
#include "base/mem.h"
#include "server/reply.h"

#include <string.h>

enum { TEXT, TOKENS, PROBS };    /* indices of server_choice.part */
enum { PICK_MEMORY = 64 << 20 }; /* bytes of a reply's tree, without its probabilities, while members are picked */

static const char probabilities[] = "completion_probabilities";

static void native_on_event(void *choice, const chat_event *ev)
{
    server_choice *c = choice;
    c->new_line |= ev->text.n && memchr(ev->text.s, '\n', ev->text.n);
    buf_put_json_text(&c->part[TEXT], ev->text);
}

/* --- an answer ----------------------------------------------------------------------------------*/
/* Puts the members that every event has, except probabilities; empties their parts. */
static void put_growth(reply *r, server_choice *c, bool stop)
{
    bool ids = r->stream || c->request->f.native.return_tokens;
    buf_printf(&r->out, "{\"index\":%d,\"content\":\"", c->index);
    reply_put_part(r, c, TEXT);
    buf_puts(&r->out, "\",\"tokens\":[");
    if (ids) reply_put_part(r, c, TOKENS);
    buf_printf(&r->out, "],\"id_slot\":-1,\"stop\":%s,\"tokens_predicted\":%d,\"tokens_evaluated\":%zu",
               stop ? "true" : "false", c->n_tokens, choice_prompt(c)->n);
}

static void put_probabilities(reply *r, server_choice *c, bool is_first)
{
    if (!r->with_logprobs) return;
    buf_printf(&r->out, "%s\"%s\":[", is_first ? "" : ",", probabilities);
    reply_put_part(r, c, PROBS);
    buf_putc(&r->out, ']');
}

static void put_stops(json_writer *w, const server_request *q)
{
    json_key(w, "stop");
    json_begin_array(w);
    for (int i = 0; i < q->n_stop; i++) json_put_str(w, q->stop[i]);
    json_end(w);
}

static void put_biases(json_writer *w, const tandem_request *a)
{
    json_key(w, "logit_bias");
    json_begin_array(w);
    for (size_t i = 0; i < a->n_bias; i++) {
        json_begin_object(w);
        json_member_real(w, "bias", (double)a->bias[i].bias);
        json_member_int(w, "token", a->bias[i].token);
        json_end(w);
    }
    json_end(w);
}

/* Writes samplers that are not supported, with the values that turn them off. */
static void put_off(json_writer *w)
{
    static const struct {
        const char *name;
        double      off;
    } k[] = {{"dynatemp_range", 0},  {"typical_p", 1},      {"top_n_sigma", -1},
             {"xtc_probability", 0}, {"dry_multiplier", 0}, {"mirostat", 0}};
    for (size_t i = 0; i < COUNT(k); i++) json_member_real(w, k[i].name, k[i].off);
}

/* Writes the speculation of the request within the limits of the server. A number that is 0 is the default. */
static void put_speculation(json_writer *w, const tandem_speculation *s)
{
    json_member_str(w, "speculative", tandem_method_name((int)s->method));
    json_member_int(w, "speculative.draft_max", s->draft_max);
    json_member_int(w, "speculative.tree_budget", s->tree_budget);
    json_member_real(w, "speculative.tree_temp", (double)s->tree_temp);
    json_member_bool(w, "speculative.chain_seed", !s->no_chain_seed);
    json_member_real(w, "speculative.draft_noise", (double)s->draft_noise);
    json_member_int(w, "speculative.draft_tail", s->draft_tail);
}

static void put_settings(json_writer *w, const server_choice *c)
{
    const server_request *q     = c->request;
    const tandem_request *a     = &q->ask;
    int64_t               limit = a->max_tokens < 0 || a->max_tokens == INT32_MAX ? -1 : a->max_tokens;
    json_begin_object(w);
    json_member_int(w, "n_predict", limit);
    json_member_int(w, "max_tokens", limit);
    json_member_int(w, "min_tokens", a->min_tokens);
    json_member_int(w, "seed", (int64_t)c->result->usage.seed);
    json_member_real(w, "temperature", (double)a->temp);
    json_member_int(w, "top_k", a->top_k);
    json_member_real(w, "top_p", (double)a->top_p);
    json_member_real(w, "min_p", (double)a->min_p);
    json_member_real(w, "repeat_penalty", (double)a->repeat_penalty);
    json_member_real(w, "presence_penalty", (double)a->presence_penalty);
    json_member_real(w, "frequency_penalty", (double)a->frequency_penalty);
    put_off(w);
    put_stops(w, q);
    put_biases(w, a);
    json_member_bool(w, "ignore_eos", a->ignore_stop_ids);
    json_member_bool(w, "stream", q->f.stream);
    json_member_int(w, "n_probs", a->logprobs > 0 ? a->logprobs : 0);
    json_key(w, "grammar");
    json_put_str(w, q->f.grammar);
    put_speculation(w, &a->spec);
    json_end(w);
}

static const char *stop_type(const server_choice *c)
{
    switch (c->result->finish) {
    case TANDEM_FINISH_STOP: return "eos";
    case TANDEM_FINISH_STOP_STRING: return "word";
    default: return "limit";
    }
}

static void put_prompt(reply *r, server_choice *c, json_writer *w)
{
    const server_prompt *p = choice_prompt(c);
    buf                  text;
    buf_init(&text, TOK_MAX_INPUT);
    tok_decode(r->tok, p->ids, p->n, true, &text);
    json_key(w, "prompt");
    json_put_str(w, buf_str(&text));
    c->lost |= text.failed;
    buf_deinit(&text);
}

/* Writes the members that only a complete response has. */
static void put_end(reply *r, server_choice *c)
{
    const tandem_result *x = c->result;
    json_writer          w;
    buf                  more;
    buf_init(&more, (size_t)1 << 31);
    json_writer_init(&w, &more);
    json_begin_object(&w);
    json_key(&w, "model");
    json_put_str(&w, buf_str(&r->head));
    json_key(&w, "generation_settings");
    put_settings(&w, c);
    put_prompt(r, c, &w);
    json_member_bool(&w, "has_new_line", c->new_line);
    json_member_bool(&w, "truncated", x->context_full);
    json_member_str(&w, "stop_type", stop_type(c));
    json_key(&w, "stopping_word");
    json_put_str(&w, c->stop.found ? c->stop.string[c->stop.which] : STR(""));
    json_member_int(&w, "tokens_cached", x->usage.cached_tokens);
    json_end(&w);
    buf_putc(&r->out, ',');
    reply_put_timings(&r->out, c, 1);
    buf_putc(&r->out, ',');
    if (more.n) buf_put(&r->out, more.p + 1, more.n - 1); /* without its brace */
    c->lost |= more.failed;
    buf_deinit(&more);
}

/* --- some of its members ------------------------------------------------------------------------*/
static const json_value *find_path(const json_value *v, str path)
{
    char key[64];
    while (v && path.n) {
        const char *slash = memchr(path.s, '/', path.n);
        size_t      n     = slash ? (size_t)(slash - path.s) : path.n;
        if (n >= sizeof key || v->kind != JSON_OBJECT) return NULL;
        memcpy(key, path.s, n);
        key[n] = 0;
        v      = json_get(v, key);
        path   = (str){path.s + n + (slash != NULL), path.n - n - (slash != NULL)};
    }
    return v;
}

/* Keeps the members of the object from `from` on that response_fields names, each under its path. Probabilities are not
 * in it: they are long, and are added as they are. */
static void pick_members(reply *r, server_choice *c, size_t from)
{
    const json_value *list                = r->request->f.native.response_fields, *whole;
    bool              wants_probabilities = false;
    arena             mem;
    buf               kept;
    json_writer       w;
    arena_init(&mem, PICK_MEMORY);
    buf_init(&kept, (size_t)1 << 31);
    json_writer_init(&w, &kept);
    json_begin_object(&w);
    bool ok = json_parse(&whole, &mem, (str){r->out.p + from, r->out.n - from}, NULL, NULL);
    for (size_t i = 0; ok && i < list->n; i++) {
        const json_value *v = find_path(whole, list->item[i].s);
        wants_probabilities |= str_is(list->item[i].s, probabilities);
        if (!v) continue;
        json_key_str(&w, list->item[i].s);
        json_put_value(&w, v);
    }
    r->out.n = from;
    buf_put(&r->out, kept.p, kept.n);
    if (wants_probabilities) put_probabilities(r, c, kept.n == 1);
    buf_putc(&r->out, '}');
    r->out.failed |= kept.failed || !ok;
    buf_deinit(&kept);
    arena_deinit(&mem);
}

static void put_answer(reply *r, server_choice *c)
{
    const json_value *list  = r->request->f.native.response_fields;
    size_t            from  = r->out.n;
    bool              picks = list && list->n;
    put_growth(r, c, true);
    if (!picks) put_probabilities(r, c, false);
    put_end(r, c);
    if (picks) pick_members(r, c, from);
}

/* --- both ---------------------------------------------------------------------------------------*/
/* Writes an event that is not the last of a choice, with the members in the tail. */
static void put_event(server_choice *c)
{
    reply *r = c->reply;
    buf_puts(&r->out, "data: ");
    put_growth(r, c, false);
    put_probabilities(r, c, false);
    if (r->tail.n) buf_putc(&r->out, ',');
    buf_put(&r->out, r->tail.p, r->tail.n);
    buf_puts(&r->out, "}\n\n");
}

static void native_flush(server_choice *c)
{
    reply *r = c->reply;
    if (!c->part[TOKENS].n) return; /* text that was held back goes with the last one */
    if (r->request->f.timings_per_token) reply_put_live_timings(&r->tail, c);
    put_event(c);
    buf_clear(&r->tail);
}

/* Writes an event for each token, since clients count events. */
static void native_on_token(server_choice *c, const tandem_token *x)
{
    reply *r = c->reply;
    buf_printf(&c->part[TOKENS], "%s%d", c->part[TOKENS].n ? "," : "", x->id);
    if (x->logprobs) reply_put_logprobs(&c->part[PROBS], r->tok, x, c->request->ask.logprobs, true);
    if (r->stream) native_flush(c);
}

static void native_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    (void)all, (void)n, (void)last;
    buf_puts(&r->out, "data: ");
    put_answer(r, c);
    buf_puts(&r->out, "\n\n");
}

static void native_done(reply *r, const server_choice *all, int n) { (void)r, (void)all, (void)n; }

static void native_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    buf_puts(&r->out, "data: ");
    completions_error(&r->out, all, n, why);
    buf_puts(&r->out, "\n\n");
}

static void native_put_whole(reply *r, server_choice *all, int n)
{
    if (n > 1) buf_putc(&r->out, '[');
    for (int i = 0; i < n; i++) {
        if (i) buf_putc(&r->out, ',');
        put_answer(r, &all[i]);
    }
    if (n > 1) buf_putc(&r->out, ']');
}

/* Stores the model's name in the head. */
static void native_open(reply *r, const char *model) { buf_puts(&r->head, model); }

const reply_format reply_native = {.open        = native_open,
                                   .on_progress = put_event,
                                   .on_event    = native_on_event,
                                   .on_token    = native_on_token,
                                   .flush       = native_flush,
                                   .end         = native_end,
                                   .done        = native_done,
                                   .fail        = native_fail,
                                   .ping        = completions_ping,
                                   .put_whole   = native_put_whole,
                                   .put_error   = completions_error};
