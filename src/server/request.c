#include "server/request.h"

#include "base/mem.h"
#include "server/dialects.h"
#include "server/media.h"
#include "server/messages.h"
#include "server/responses.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Bytes that the tree of a body may take, and all of a request. Ten bytes of a hostile body make a hundred of a
 * tree. */
enum { TREE_MEMORY = 96 << 20, MEMORY = 160 << 20, MAX_PROMPTS = RECORD_MAX_CHOICES };

void request_init(server_request *r, int endpoint, buf *body)
{
    *r    = (server_request){.endpoint = endpoint, .body = *body, .markers = endpoint == FIELD_NATIVE};
    *body = (buf){.max = body->max};
    arena_init(&r->mem, MEMORY);
    chat_prompt_init(&r->rendered, TANDEM_MAX_PROMPT);
}

void request_name(server_request *r, const char *served, const char *const *aliases, size_t n_aliases)
{
    r->served    = served;
    r->aliases   = aliases;
    r->n_aliases = n_aliases;
}

void request_forget(server_request *r)
{
    request_drop_grammar(r);
    media_forget(&r->media);
    chat_prompt_deinit(&r->rendered);
    arena_deinit(&r->mem);
    buf_deinit(&r->body);
}

void request_warn(server_request *r, const char *fmt, ...)
{
    size_t  at = strlen(r->warning), room = REQUEST_WARNING_MAX - at;
    va_list ap;
    if (at && room < 3) return;
    if (at) at += (size_t)snprintf(r->warning + at, room + 1, "; ");
    va_start(ap, fmt);
    vsnprintf(r->warning + at, sizeof r->warning - at, fmt, ap);
    va_end(ap);
    for (char *p = r->warning + at; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
}

size_t request_bytes(const server_request *r)
{
    return r->body.cap + r->mem.used + r->rendered.ids.cap * sizeof *r->rendered.ids.p;
}

static size_t most_tokens(const server_request *r, const tandem *t, const server_prompt *p)
{
    settings now;
    engine_get_settings(t, &now);
    size_t asked = r->ask.max_tokens >= 0 ? (size_t)r->ask.max_tokens : (size_t)now.default_max_tokens;
    size_t room  = (size_t)engine_info(t)->n_ctx + 1 - p->n;
    return asked < room ? asked : room;
}

size_t request_logprob_bytes(const server_request *r, const tandem *t)
{
    /* an entry as JSON; it is in the choice's part, in the reply and among the bytes to send, and these grow by
     * doubling */
    enum { TEXT = 72, COPIES = 4 };
    size_t each = (size_t)(1 + r->ask.logprobs), n = 0, echoed = 0;
    for (int i = 0; i < r->n_prompts; i++) {
        n += most_tokens(r, t, &r->prompt[i]) * (size_t)r->f.n;
        if (r->ask.prompt_logprobs) echoed += r->prompt[i].n * (size_t)r->f.n;
    }
    /* a response's last events repeat all of them, several times */
    size_t copies = !r->f.stream ? COPIES : r->endpoint == FIELD_RESPONSES ? 2 * COPIES : 0;
    /* log-probabilities of a prompt come all at once, in a stream too */
    return n * each * (sizeof(tandem_logprob) + TEXT * copies) +
           echoed * each * (sizeof(tandem_logprob) + TEXT * COPIES);
}

size_t request_repeat_bytes(const server_request *r)
{
    /* the text of a token; it is in the answer, in the reply and among the bytes to send, and these grow by doubling */
    enum { TEXT = 8, COPIES = 4 };
    size_t n = 0;
    if (r->endpoint != FIELD_NATIVE && !r->f.text.echo) return 0;
    for (int i = 0; i < r->n_prompts; i++) n += (r->prompt[i].n * TEXT + r->f.grammar.n) * (size_t)r->f.n;
    return n * COPIES;
}

/* --- stop strings -------------------------------------------------------------------------------*/
static bool add_stop(server_request *r, const json_value *v, server_error *why)
{
    const char *field = field_name(r->endpoint, "stop");
    if (v->kind != JSON_STRING || !v->s.n || v->s.n > STOP_MAX_BYTES || memchr(v->s.s, 0, v->s.n) ||
        r->n_stop == STOP_MAX_STRINGS)
        return error_set(why, 400, field, NULL, "'%s' must be a string, or a list of up to %d, of 1 to %d bytes.",
                         field, STOP_MAX_STRINGS, STOP_MAX_BYTES);
    char *copy = arena_str(&r->mem, v->s);
    if (!copy) return error_no_memory(why);
    r->stop[r->n_stop]        = (str){copy, v->s.n};
    r->stop_text[r->n_stop++] = copy;
    return true;
}

static bool read_stop(server_request *r, server_error *why)
{
    const json_value *v = r->f.stop;
    if (!v) return true;
    if (v->kind != JSON_ARRAY) return add_stop(r, v, why);
    for (size_t i = 0; i < v->n; i++)
        if (!add_stop(r, &v->item[i], why)) return false;
    return true;
}

static bool read_stop_ids(server_request *r, const tandem *t, server_error *why)
{
    const json_value *v   = r->f.stop_token_ids;
    int32_t          *ids = v ? arena_try(&r->mem, v->n + 1, sizeof *ids) : NULL;
    if (!v) return true;
    if (!ids) return error_no_memory(why);
    for (size_t i = 0; i < v->n; i++) {
        if (v->item[i].kind != JSON_INT || v->item[i].i < 0 || v->item[i].i >= engine_info(t)->n_vocab)
            return error_set(why, 400, "stop_token_ids", NULL, "'stop_token_ids' must be a list of token ids below %d.",
                             engine_info(t)->n_vocab);
        ids[i] = (int32_t)v->item[i].i;
    }
    r->ask.stop_ids   = ids;
    r->ask.n_stop_ids = v->n;
    return true;
}

/* --- biases -------------------------------------------------------------------------------------*/
/* Reads logit_bias: members or pairs of a token id, or of a text whose tokens are all biased. */
typedef struct {
    server_request *r;
    const tandem   *t;
    tandem_bias    *bias; /* room for TANDEM_MAX_BIAS */
    server_error   *why;
} bias_reader;

static bool has_bias(const bias_reader *b, int32_t token, size_t from)
{
    for (size_t i = from; i < b->r->ask.n_bias; i++)
        if (b->bias[i].token == token) return true;
    return false;
}

static bool add_bias(const bias_reader *b, int32_t token, float bias)
{
    size_t *n = &b->r->ask.n_bias;
    if (has_bias(b, token, 0))
        return error_set(b->why, 400, "logit_bias", NULL, "'logit_bias' has token %d twice.", token);
    if (*n == TANDEM_MAX_BIAS)
        return error_set(b->why, 400, "logit_bias", NULL, "'logit_bias' must have at most %d tokens.", TANDEM_MAX_BIAS);
    b->bias[(*n)++] = (tandem_bias){token, bias};
    return true;
}

static bool bias_id(const bias_reader *b, int64_t id, float bias)
{
    if (id < 0 || id >= engine_info(b->t)->n_vocab)
        return error_set(b->why, 400, "logit_bias", NULL, "'logit_bias' has '%lld', which is not a token id below %d.",
                         (long long)id, engine_info(b->t)->n_vocab);
    return add_bias(b, (int32_t)id, bias);
}

/* Biases each token of a text once, even if the text has it several times. */
static bool bias_text(const bias_reader *b, str text, float bias)
{
    tok_ids ids;
    err     e    = {0};
    size_t  from = b->r->ask.n_bias;
    tok_ids_init(&ids, TANDEM_MAX_BIAS);
    bool ok = tok_encode(engine_tok(b->t), &ids, text, false, &e);
    if (!ok && e.code == ERR_TOO_LARGE)
        error_set(b->why, 400, "logit_bias", NULL, "'logit_bias' must have at most %d tokens.", TANDEM_MAX_BIAS);
    else if (!ok)
        error_take(b->why, &e, "logit_bias", false);
    if (ok && !ids.n)
        ok = error_set(b->why, 400, "logit_bias", NULL, "'logit_bias' has an empty text in place of a token.");
    for (size_t i = 0; ok && i < ids.n; i++)
        if (!has_bias(b, ids.p[i], from)) ok = add_bias(b, ids.p[i], bias);
    tok_ids_deinit(&ids);
    return ok;
}

/* Reads a bias. false, as llama.cpp's clients send it, bans the token. */
static bool bias_value(const bias_reader *b, const json_value *v, str token, float *out)
{
    *out = -INFINITY;
    if (v->kind == JSON_BOOL && !v->b) return true;
    if ((v->kind != JSON_INT && v->kind != JSON_REAL) || !(v->d >= -100 && v->d <= 100))
        return error_set(b->why, 400, "logit_bias", NULL,
                         "'logit_bias' of token %.*s must be a number from -100 to 100, or false.", STR_ARG(token));
    *out = (float)v->d;
    return true;
}

static bool read_bias_member(const bias_reader *b, const json_member *m)
{
    int64_t id;
    float   bias;
    if (!bias_value(b, &m->value, m->key, &bias)) return false;
    return str_to_i64(m->key, &id) ? bias_id(b, id, bias) : bias_text(b, m->key, bias);
}

static bool read_bias_pair(const bias_reader *b, const json_value *v)
{
    float bias;
    char  id[24];
    if (v->kind != JSON_ARRAY || v->n != 2 || (v->item[0].kind != JSON_INT && v->item[0].kind != JSON_STRING))
        return error_set(b->why, 400, "logit_bias", NULL,
                         "'logit_bias' must be an object, or a list of pairs of a token id or a text and a number.");
    const json_value *token = &v->item[0];
    snprintf(id, sizeof id, "%lld", (long long)token->i);
    if (!bias_value(b, &v->item[1], token->kind == JSON_INT ? str_of(id) : token->s, &bias)) return false;
    return token->kind == JSON_INT ? bias_id(b, token->i, bias) : bias_text(b, token->s, bias);
}

/* Bans a token, in place of the client's bias for it. */
static bool ban(tandem_bias *bias, size_t *n, int32_t token, server_error *why)
{
    size_t i = 0;
    while (i < *n && bias[i].token != token) i++;
    if (token < 0) return true;
    if (i == TANDEM_MAX_BIAS)
        return error_set(why, 400, "logit_bias", NULL,
                         "'logit_bias' must have at most %d members where 'tool_choice' is none.", TANDEM_MAX_BIAS - 1);
    bias[i] = (tandem_bias){token, -INFINITY};
    *n += i == *n;
    return true;
}

static bool read_biases(server_request *r, const tandem *t, server_error *why)
{
    const json_value *v = r->f.logit_bias;
    bias_reader       b = {r, t, arena_try(&r->mem, TANDEM_MAX_BIAS, sizeof *b.bias), why};
    if (!b.bias) return error_no_memory(why);
    r->ask.bias = b.bias;
    if (v && ((v->kind != JSON_OBJECT && v->kind != JSON_ARRAY) || v->n > TANDEM_MAX_BIAS))
        return error_set(why, 400, "logit_bias", NULL, "'logit_bias' must be an object or a list of at most %d pairs.",
                         TANDEM_MAX_BIAS);
    for (size_t i = 0; v && i < v->n; i++)
        if (!(v->kind == JSON_OBJECT ? read_bias_member(&b, &v->member[i]) : read_bias_pair(&b, &v->item[i])))
            return false;
    const tok *k = engine_tok(t);
    return !r->no_calls || ban(b.bias, &r->ask.n_bias, tok_find_marker(k, tok_markup_of(k)->call_open), why);
}

/* --- speculation --------------------------------------------------------------------------------*/
static bool find_method(str name, tandem_method *out)
{
    for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_AUTO; m++)
        if (str_is(name, tandem_method_name(m))) {
            *out = (tandem_method)m;
            return true;
        }
    return false;
}

static bool read_speculative(server_request *r, server_error *why)
{
    const json_value   *v    = r->f.speculative;
    tandem_speculation *s    = &r->ask.spec;
    str                 name = v && v->kind == JSON_STRING ? v->s : r->f.spec_method;
    if (!v) return true;
    if (v->kind != JSON_STRING && v->kind != JSON_OBJECT)
        return error_set(why, 400, "speculative", NULL,
                         "'speculative' must be off, auto, dflash, tree, mtp or ngram, or an object with a method.");
    if ((v->kind == JSON_STRING || name.s) && !find_method(name, &s->method))
        return error_set(why, 400, v->kind == JSON_STRING ? "speculative" : "speculative.method", NULL,
                         "'speculative' must be off, auto, dflash, tree, mtp or ngram, not '%.*s'.", STR_ARG(name));
    if (!r->f.spec_enabled) s->method = TANDEM_SPEC_OFF;
    if (r->f.draft_max) s->draft_max = (int)r->f.draft_max;
    if (r->f.tree_budget) s->tree_budget = (int)r->f.tree_budget;
    if (r->f.tree_temp > 0) s->tree_temp = (float)r->f.tree_temp;
    if (r->f.chain_seed >= 0) s->no_chain_seed = !r->f.chain_seed;
    if (!isnan(r->f.draft_noise)) s->draft_noise = (float)r->f.draft_noise;
    if (r->f.draft_tail >= 0) s->draft_tail = (int)r->f.draft_tail;
    return true;
}

/* --- sampling, length, log-probabilities --------------------------------------------------------*/
static void read_sampling(server_request *r)
{
    const server_fields *f = &r->f;
    tandem_request      *a = &r->ask;
    if (!isnan(f->temperature)) a->temp = (float)f->temperature;
    if (!isnan(f->top_p)) a->top_p = (float)f->top_p;
    if (!isnan(f->min_p)) a->min_p = (float)f->min_p;
    if (f->top_k != FIELD_ABSENT) a->top_k = f->top_k < 0 ? 0 : (int32_t)f->top_k;
    a->presence_penalty  = (float)f->presence_penalty;
    a->frequency_penalty = (float)f->frequency_penalty;
    a->repeat_penalty    = (float)f->repeat_penalty;
    a->has_seed          = f->seed != FIELD_ABSENT && (r->endpoint != FIELD_NATIVE || f->seed != -1); /* -1: any */
    a->seed              = a->has_seed ? (uint64_t)f->seed : 0;
    a->ignore_stop_ids   = f->ignore_eos;
    a->min_tokens        = (int32_t)f->min_tokens;
    a->wake_on_prefill   = f->return_progress && f->stream;
    int64_t limit = f->chat.max_completion_tokens != FIELD_ABSENT ? f->chat.max_completion_tokens : f->max_tokens;
    if (f->n_predict != FIELD_ABSENT) limit = f->n_predict;
    if (limit != FIELD_ABSENT) a->max_tokens = limit < 0 ? INT32_MAX : (int32_t)limit;
}

static bool read_logprobs(server_request *r, server_error *why)
{
    const server_fields *f = &r->f;
    if (f->top_logprobs != FIELD_ABSENT && f->top_logprobs > 0 && !f->want_logprobs)
        return error_set(why, 400, "top_logprobs", NULL, "'top_logprobs' needs 'logprobs' to be true.");
    if (f->want_logprobs) r->ask.logprobs = f->top_logprobs == FIELD_ABSENT ? 0 : (int)f->top_logprobs;
    if (f->text.text_logprobs != FIELD_ABSENT) r->ask.logprobs = (int)f->text.text_logprobs;
    if (f->native.n_probs > 0) r->ask.logprobs = (int)f->native.n_probs;
    r->ask.prompt_logprobs = f->text.echo && r->ask.logprobs >= 0;
    return true;
}

/* --- thinking -----------------------------------------------------------------------------------*/
static bool read_effort(const server_request *r, chat_wish *out, server_error *why)
{
    static const char *const on[] = {"minimal", "low", "medium", "high", "xhigh", "max"};
    str                      s    = r->f.reasoning_effort;
    if (!s.s) return true;
    for (size_t i = 0; i < COUNT(on); i++)
        if (str_is(s, on[i])) *out = CHAT_YES;
    if (str_is(s, "none")) *out = CHAT_NO;
    const char *name = field_name(r->endpoint, "reasoning_effort");
    return *out ||
           error_set(why, 400, name, NULL, "'%s' must be none, minimal, low, medium, high, xhigh or max.", name);
}

/* --- the prompt ---------------------------------------------------------------------------------*/
const char *request_param(const server_request *r)
{
    return field_name(r->endpoint, request_is_text(r) ? "prompt" : "messages");
}

static int context_of(const server_request *r, const tandem *t)
{
    return r->ollama.n_ctx && r->ollama.n_ctx < engine_info(t)->n_ctx ? r->ollama.n_ctx : engine_info(t)->n_ctx;
}

static size_t most_prompt(const server_request *r, const tandem *t)
{
    return (size_t)context_of(r, t) - (r->ask.max_tokens != 0);
}

static bool fits(const server_request *r, const tandem *t, size_t n) { return n <= most_prompt(r, t); }

static bool check_context(const server_request *r, const tandem *t, size_t n, server_error *why)
{
    size_t limit = most_prompt(r, t);
    if (fits(r, t, n)) return true;
    if (r->endpoint == FIELD_MESSAGES)
        return error_set(why, 400, "messages", "context_length_exceeded",
                         "prompt is too long: %zu tokens > %zu maximum", n, limit);
    return error_context(why, request_param(r), r->chat ? "messages" : "prompt", context_of(r, t), n);
}

static bool take_prompts(server_request *r, int n, server_error *why)
{
    r->n_prompts = n;
    r->n_choices = n * (int)r->f.n;
    if (r->n_choices > RECORD_MAX_CHOICES)
        return error_set(why, 400, "n", NULL, "'n' times the number of prompts (%d) must be at most %d.", n,
                         RECORD_MAX_CHOICES);
    r->prompt = arena_try(&r->mem, (size_t)n, sizeof *r->prompt);
    return r->prompt || error_no_memory(why);
}

/* Refuses a prompt that cannot be rendered or tokenised. Limits of these are above every context. */
static bool refuse_prompt(const server_request *r, err *e, server_error *why)
{
    if (e->code == ERR_TOO_LARGE) e->code = ERR_CONTEXT;
    return error_take(why, e, request_param(r), false);
}

static bool render_prompt(server_request *r, const tandem *t, chat_options *o, server_error *why)
{
    err e = {0};
    if (!engine_format(t, o, &e)) return refuse_prompt(r, &e, why);
    chat_apply_wishes(r->chat, o);
    o->media = engine_media(t);
    if (!chat_render_ids(&r->rendered, engine_tok(t), r->chat, o, &e)) return refuse_prompt(r, &e, why);
    if (r->rendered.n_media) return error_no_media(why, request_param(r));
    r->format     = o->format;
    r->in_thought = r->rendered.in_thought;
    r->thinking   = o->thinking;
    r->prompt[0]  = (server_prompt){.ids = r->rendered.ids.p, .n = r->rendered.ids.n};
    return true;
}

static bool parse_chat(server_request *r, const json_value *body, server_error *why)
{
    err e = {0};
    if (r->endpoint == FIELD_MESSAGES) return messages_chat(&r->chat, &r->mem, &r->f, why);
    if (r->endpoint == FIELD_RESPONSES) return responses_read(r, why);
    if (!r->f.messages)
        return error_set(why, 400, "messages", NULL, "'messages' must be a list with at least one message.");
    return chat_parse(&r->chat, &r->mem, body, &e) || error_take(why, &e, NULL, false);
}

static bool read_messages(server_request *r, const json_value *body, server_error *why)
{
    chat_wish effort = CHAT_UNSAID;
    if (!read_effort(r, &effort, why) || !parse_chat(r, body, why)) return false;
    if (!r->chat->thinking) r->chat->thinking = effort;
    if (!r->chat->effort.n) r->chat->effort = r->f.reasoning_effort;
    r->one_call = !r->f.parallel_tool_calls || r->chat->by_functions;
    return request_constrain(r, r->f.response_format, r->f.tool_choice, why);
}

/* Renders the last turns of a conversation alone. */
static bool render_last(server_request *r, const tandem *t, const chat *whole, size_t left_out, chat_options *o,
                        server_error *why)
{
    return ollama_leave_out(r->chat, whole, left_out, why) && render_prompt(r, t, o, why);
}

/* Renders the prompt. Where the client wants it, the oldest turns of a conversation that is too long are left out,
 * as few as possible. The search goes from the end by doubling, then by halves, so that it renders little more than
 * what fits. */
static bool render_fitting(server_request *r, const tandem *t, chat_options *o, server_error *why)
{
    chat   whole = *r->chat;
    size_t turns = r->ollama.truncate ? ollama_turns(&whole) : 0, kept = 1, over;
    if (!render_prompt(r, t, o, why)) return false;
    if (turns < 2 || fits(r, t, r->prompt[0].n)) return true;
    for (over = 2; over < turns; over *= 2) {
        if (!render_last(r, t, &whole, turns - over, o, why)) return false;
        if (!fits(r, t, r->prompt[0].n)) break;
        kept = over;
    }
    if (over > turns) over = turns;
    while (over - kept > 1) {
        size_t mid = (kept + over) / 2;
        if (!render_last(r, t, &whole, turns - mid, o, why)) return false;
        if (fits(r, t, r->prompt[0].n))
            kept = mid;
        else
            over = mid;
    }
    return render_last(r, t, &whole, turns - kept, o, why);
}

static bool read_chat(server_request *r, const tandem *t, server_error *why)
{
    if (r->endpoint == FIELD_MESSAGES && r->f.max_tokens == FIELD_ABSENT)
        return error_set(why, 400, "max_tokens", NULL, "'max_tokens' is missing.");
    return read_messages(r, r->root, why) && media_find(r, t, why);
}

static bool make_chat_prompt(server_request *r, const tandem *t, server_error *why)
{
    chat_options o;
    if (!take_prompts(r, 1, why) || !render_fitting(r, t, &o, why) || !check_context(r, t, r->prompt[0].n, why) ||
        !media_keep(r, why))
        return false;
    request_find_grammar(r, t, o.thinking);
    return true;
}

static bool bad_prompt(server_error *why)
{
    return error_set(why, 400, "prompt", NULL,
                     "'prompt' must be a string, a list of token ids, or a list of up to %d of these.", MAX_PROMPTS);
}

static bool put_id(server_request *r, const tandem *t, int64_t id, server_error *why)
{
    if (id < 0 || id >= engine_info(t)->n_vocab)
        return error_set(why, 400, "prompt", NULL, "'prompt' has %lld, which is not a token id below %d.",
                         (long long)id, engine_info(t)->n_vocab);
    return tok_ids_put(&r->rendered.ids, (int32_t)id) || error_no_memory(why);
}

/* Adds the tokens of a text, after the first token of a prompt where it begins one. */
static bool put_text(server_request *r, const tandem *t, str text, bool begins, server_error *why)
{
    tok_ids *ids   = &r->rendered.ids;
    int32_t  bos   = tok_bos(engine_tok(t));
    str      name  = bos >= 0 ? tok_text(engine_tok(t), bos) : (str){0};
    err      e     = {0};
    bool     there = r->markers && name.n && text.n >= name.n && !memcmp(text.s, name.s, name.n);
    if (begins && !there && r->f.text.add_special_tokens && tok_add_bos(engine_tok(t))) tok_ids_put(ids, bos);
    if (!tok_encode(engine_tok(t), ids, text, r->markers, &e)) return refuse_prompt(r, &e, why);
    return !ids->failed || error_no_memory(why);
}

/* Reads a list of token ids and texts. */
static bool put_sequence(server_request *r, const tandem *t, const json_value *v, server_error *why)
{
    if (v->n > (size_t)engine_info(t)->n_ctx)
        return error_context(why, "prompt", "prompt", engine_info(t)->n_ctx, v->n);
    for (size_t i = 0; i < v->n; i++) {
        const json_value *x = &v->item[i];
        if (x->kind != JSON_INT && x->kind != JSON_STRING) return bad_prompt(why);
        if (!(x->kind == JSON_INT ? put_id(r, t, x->i, why) : put_text(r, t, x->s, i == 0, why))) return false;
    }
    return true;
}

/* Reads a prompt: a text, token ids, or llama.cpp's {"prompt_string": TEXT}. */
static bool read_prompt(server_request *r, const tandem *t, const json_value *v, server_prompt *out, server_error *why)
{
    tok_ids          *ids   = &r->rendered.ids; /* tokens of all prompts */
    size_t            from  = ids->n;
    const json_value *media = json_find(v, "multimodal_data"), *inner = json_find(v, "prompt_string");
    if (media && (media->kind != JSON_ARRAY || media->n)) return error_no_media(why, "prompt");
    if (v->kind == JSON_OBJECT && inner) v = inner;
    if (v->kind != JSON_STRING && v->kind != JSON_ARRAY) return bad_prompt(why);
    if (!(v->kind == JSON_STRING ? put_text(r, t, v->s, true, why) : put_sequence(r, t, v, why))) return false;
    int32_t *copy = arena_try(&r->mem, ids->n - from + 1, sizeof *copy);
    if (!copy) return error_no_memory(why);
    *out = (server_prompt){copy, ids->n - from, v->kind == JSON_STRING ? v->s : (str){0}};
    if (!out->n) return error_set(why, 400, "prompt", NULL, "'prompt' is empty.");
    memcpy(copy, ids->p + from, out->n * sizeof *copy);
    return check_context(r, t, out->n, why);
}

/* Returns whether a list is one prompt: token ids, perhaps with texts between them. Texts alone are several. */
static bool is_sequence(const json_value *v)
{
    bool has_id = false;
    for (size_t i = 0; i < v->n; i++) {
        if (v->item[i].kind != JSON_INT && v->item[i].kind != JSON_STRING) return false;
        has_id |= v->item[i].kind == JSON_INT;
    }
    return has_id;
}

static bool read_prompts(server_request *r, const tandem *t, server_error *why)
{
    const json_value *v = r->f.text.prompt;
    if (!v || (v->kind == JSON_ARRAY && !v->n)) return bad_prompt(why);
    bool several = v->kind == JSON_ARRAY && !is_sequence(v);
    if (several && v->n > MAX_PROMPTS) return bad_prompt(why);
    if (!take_prompts(r, several ? (int)v->n : 1, why)) return false;
    for (int i = 0; i < r->n_prompts; i++)
        if (!read_prompt(r, t, several ? &v->item[i] : v, &r->prompt[i], why)) return false;
    return true;
}

static bool read_text_request(server_request *r, const tandem *t, server_error *why)
{
    if (!request_constrain(r, r->f.response_format, NULL, why) || !read_prompts(r, t, why)) return false;
    request_find_grammar(r, t, false);
    return true;
}

/* Prefixes are shared by who has the same key and says the same salt. The key's length comes first: no salt can
 * stand for the end of a key. */
char *request_tenant(str key, str salt)
{
    enum { LENGTH = 24 };
    char *name = key.n || salt.n ? mem_try(LENGTH + key.n + salt.n + 1) : NULL;
    if (!name) return NULL;
    int n = snprintf(name, LENGTH, "%zu:", key.n);
    if (key.n) memcpy(name + n, key.s, key.n);
    for (size_t i = 0; i < salt.n; i++) name[(size_t)n + key.n + i] = salt.s[i] ? salt.s[i] : ' ';
    return name;
}

static bool choose_tenant(server_request *r, str key, server_error *why)
{
    if (!key.n && !r->f.cache_salt.n) return true;
    char *name = request_tenant(key, r->f.cache_salt);
    r->tenant  = name ? arena_str(&r->mem, str_of(name)) : NULL;
    mem_free(name);
    if (!r->tenant) return error_no_memory(why);
    r->ask.tenant  = r->tenant;
    r->ask.account = key.n ? key.s : NULL;
    return true;
}

/* Reads the name of the conversation; llama.cpp's clients send the number of a slot. */
static bool read_session(server_request *r, server_error *why)
{
    err e;
    if (r->f.id_slot >= 0) snprintf(r->session, sizeof r->session, "slot-%d", (int)r->f.id_slot);
    if (!r->f.session.n) return true;
    snprintf(r->session, sizeof r->session, "%.*s", (int)r->f.session.n, r->f.session.s);
    if (strlen(r->session) != r->f.session.n || !engine_session_name(r->session, &e))
        return error_set(why, 400, "session", NULL,
                         "'session' must have letters, digits and . _ - only, and not begin with a point.");
    return true;
}

/* Parses the body and reads its fields. Sets r->root. */
static bool open_body(server_request *r, const tandem *t, server_error *why)
{
    json_limits       limits = {.max_memory = TREE_MEMORY};
    err               e      = {0};
    const json_value *body;
    if (r->endpoint & FIELD_OLLAMA && !r->body.n) return error_set(why, 400, NULL, NULL, "missing request body");
    if (!json_parse(&body, &r->mem, buf_str(&r->body), &limits, &e)) return error_body(why, &e);
    if (body->kind != JSON_OBJECT) return error_set(why, 400, NULL, NULL, "The body must be a JSON object.");
    if (!engine_tok(t)) return error_set(why, 400, NULL, NULL, "The model has no tokenizer, which text needs.");
    if (r->endpoint & FIELD_OLLAMA && !ollama_translate(r, &body, why)) return false;
    r->root = body;
    if (r->endpoint & (FIELD_TOKENIZE | FIELD_DETOKENIZE))
        return fields_read(&r->tokenize, &fields_tokenize, body, r->endpoint, why);
    if (!fields_read(&r->f, &fields_generate, body, r->endpoint, why) || !dialects_check(r, body, why)) return false;
    if (r->endpoint == FIELD_MESSAGES) return messages_options(&r->f, &r->mem, why);
    return r->endpoint != FIELD_RESPONSES || responses_translate(r, why);
}

bool request_open(server_request *r, const tandem *t, server_error *why) { return open_body(r, t, why); }

bool request_render(server_request *r, const tandem *t, buf *out, server_error *why)
{
    err          e = {0};
    chat_options o;
    if (!open_body(r, t, why) || !read_messages(r, r->root, why)) return false;
    bool ok = engine_format(t, &o, &e);
    if (ok) chat_apply_wishes(r->chat, &o);
    return (ok && chat_render_text(out, r->chat, &o, &e)) || refuse_prompt(r, &e, why);
}

bool request_count(server_request *r, const tandem *t, size_t *n, server_error *why)
{
    chat_options o;
    if (!r->root && !(open_body(r, t, why) && read_messages(r, r->root, why) && media_find(r, t, why))) return false;
    if (request_needs_media(r)) return true;
    if (!take_prompts(r, 1, why) || !render_prompt(r, t, &o, why)) return false;
    *n = r->prompt[0].n;
    return true;
}

/* Checks that the paths of response_fields are texts, and that none comes twice: a reply has each member once. */
static bool check_response_fields(const server_request *r, server_error *why)
{
    const json_value *list = r->f.native.response_fields;
    for (size_t i = 0; list && i < list->n; i++) {
        const json_value *v  = &list->item[i];
        bool              ok = v->kind == JSON_STRING && v->s.n;
        for (size_t k = 0; ok && k < i; k++) ok = !str_eq(v->s, list->item[k].s);
        if (!ok)
            return error_set(
                why, 400, "response_fields", NULL,
                "'response_fields' must be a list of paths, each once, such as 'generation_settings/seed'.");
    }
    return true;
}

/* Refuses min_tokens together with a grammar, which decides where the response ends. */
static bool check_min_tokens(const server_request *r, server_error *why)
{
    return !r->f.min_tokens || !r->ask.grammar.kind ||
           error_set(why, 400, "min_tokens", NULL, "'min_tokens' and '%s' exclude each other.", r->grammar_field);
}

/* Reads all but the prompt. */
static bool read_options(server_request *r, const tandem *t, str key, server_error *why)
{
    if (!open_body(r, t, why)) return false;
    if (r->ollama.loaded) return true;
    tandem_request_init(t, &r->ask);
    if (r->endpoint & FIELD_BOTH && !(r->endpoint & FIELD_OLLAMA)) engine_fingerprint(t, r->fingerprint);
    read_sampling(r);
    if (!check_response_fields(r, why) || !read_logprobs(r, why) || !read_stop(r, why) || !read_stop_ids(r, t, why) ||
        !read_speculative(r, why) || !choose_tenant(r, key, why) || !read_session(r, why))
        return false;
    engine_limit_speculation(t, &r->ask.spec);
    return request_is_text(r) || read_chat(r, t, why);
}

/* Returns the name of the class of the request: acceptance statistics are kept by class. It depends on fields of the
 * request only, never on the words of its prompt. */
static const char *class_of(const server_request *r)
{
    static const char *const names[] = {
        "chat",         "chat, thinking",         "chat, tools",         "chat, tools, thinking",
        "chat, format", "chat, format, thinking", "chat, format, tools", "chat, format, tools, thinking"};
    bool format = r->ask.grammar.kind != TANDEM_GRAMMAR_NONE;
    if (!r->chat) return format ? "text, format" : "text";
    return names[4 * format + 2 * (r->chat->n_tools > 0) + r->thinking];
}

bool request_read(server_request *r, const tandem *t, str key, server_error *why)
{
    if (!r->root && !read_options(r, t, key, why)) return false;
    if (r->ollama.loaded || request_needs_media(r)) return true;
    if (!(request_is_text(r) ? read_text_request(r, t, why) : make_chat_prompt(r, t, why)) || !read_biases(r, t, why) ||
        !check_min_tokens(r, why))
        return false;
    r->ask.kind = class_of(r);
    ollama_limit(r, t);
    return true;
}
