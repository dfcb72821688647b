/* Ollama's replies: an object for /api/chat or /api/generate, or lines of such objects as the answer grows.
 *
 *      {"model":..,"created_at":..,"message":{"role":"assistant","content":"The"},"done":false}
 *      {"model":..,"created_at":..,"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop",..}
 *
 * /api/generate has "response" and "thinking" in place of the message. Thoughts, texts and calls come in lines of their
 * own; a call comes whole. Durations are nanoseconds. No line is empty: the clients' readers fail on one. */
#include "server/ollama.h"

#include "base/clock.h"
#include "server/reply.h"

#include <math.h>
#include <time.h>

enum { NONE, THINKING, CONTENT, CALLS, LOGPROBS }; /* indices of server_choice.part and .open */

/* --- envelopes ----------------------------------------------------------------------------------*/
static void put_head(buf *out, str model)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    buf_puts(out, "{\"model\":");
    buf_put_json_string(out, model);
    buf_puts(out, ",\"created_at\":\"");
    clock_put_utc(out, &now, 6);
    buf_puts(out, "\",");
}

static void put_text(buf *out, const char *key, const buf *text)
{
    buf_puts(out, key);
    buf_put(out, text->p, text->n);
    buf_putc(out, '"');
}

/* Appends the parts of an answer that there are, as members of an object. */
static void put_parts(reply *r, server_choice *c, bool is_chat)
{
    buf *out = &r->out;
    if (is_chat) buf_puts(out, "\"message\":{\"role\":\"assistant\",");
    put_text(out, is_chat ? "\"content\":\"" : "\"response\":\"", &c->part[CONTENT]);
    if (c->part[THINKING].n) put_text(out, ",\"thinking\":\"", &c->part[THINKING]);
    if (c->part[CALLS].n && c->open != CALLS) {
        buf_puts(out, ",\"tool_calls\":[");
        reply_put_part(r, c, CALLS);
        buf_putc(out, ']');
    }
    if (is_chat) buf_putc(out, '}');
    if (c->part[LOGPROBS].n) {
        buf_puts(out, ",\"logprobs\":[");
        reply_put_part(r, c, LOGPROBS);
        buf_putc(out, ']');
    }
    buf_clear(&c->part[CONTENT]);
    buf_clear(&c->part[THINKING]);
}

static void put_object(reply *r, server_choice *c)
{
    const ollama_call *call = &r->request->ollama;
    put_head(&r->out, call->model);
    for (int i = 0; i < CHOICE_PARTS; i++) c->lost |= c->part[i].failed;
    put_parts(r, c, call->is_chat);
}

/* --- counts -------------------------------------------------------------------------------------*/
static long long nanoseconds(double s) { return (long long)fmax(s * 1e9, 1); }

static void put_counts(buf *out, const reply_usage *u)
{
    buf_printf(out, ",\"prompt_eval_count\":%lld,\"eval_count\":%lld", (long long)u->sums.prompt_tokens,
               (long long)u->sums.completion_tokens);
}

/* Writes the counts and durations. Loading is all that comes before the prompt is run: reading the request and
 * waiting for a lane. Clients divide by all of these, so that none is 0. */
static void put_usage(reply *r, const server_choice *all, int n)
{
    reply_usage u;
    reply_sum(&u, all, n);
    const record_sums *s     = &u.sums;
    double             load  = r->opened - r->since + s->queue_s;
    double             total = fmax(clock_s() - r->since, load + s->prefill_s + s->decode_s + 3e-9);
    buf_printf(&r->out,
               ",\"total_duration\":%lld,\"load_duration\":%lld,\"prompt_eval_duration\":%lld,\"eval_duration\":%lld",
               nanoseconds(total), nanoseconds(load), nanoseconds(s->prefill_s), nanoseconds(s->decode_s));
    put_counts(&r->out, &u);
}

/* Appends the last object, with all that was not sent before. */
static void put_last(reply *r, server_choice *c, int n)
{
    const char *reason = choice_finish_reason(c);
    put_object(r, c);
    buf_printf(&r->out, ",\"done\":true,\"done_reason\":\"%s\"",
               reason && !strcmp(reason, "length") ? "length" : "stop");
    put_usage(r, c, n);
    buf_putc(&r->out, '}');
}

/* --- a stream -----------------------------------------------------------------------------------*/
static void put_line(reply *r, server_choice *c)
{
    put_object(r, c);
    buf_puts(&r->out, ",\"done\":false}\n");
}

static void ollama_flush(server_choice *c)
{
    reply *r    = c->reply;
    bool   call = c->part[CALLS].n && c->open != CALLS;
    if (c->part[THINKING].n || c->part[CONTENT].n || call) put_line(r, c);
}

static void ollama_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    (void)all, (void)last;
    put_last(r, c, n);
    buf_putc(&r->out, '\n');
}

static void ollama_done(reply *r, const server_choice *all, int n) { (void)r, (void)all, (void)n; }

static void ollama_put_error(buf *out, const server_choice *all, int n, const server_error *why)
{
    reply_usage u;
    buf_puts(out, "{\"error\":");
    buf_put_json_string(out, str_of(why->message));
    if (n) {
        reply_sum(&u, all, n);
        put_counts(out, &u);
    }
    buf_putc(out, '}');
}

static void ollama_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    ollama_put_error(&r->out, all, n, why);
    buf_putc(&r->out, '\n');
}

/* Appends a line without text: clients know no comments. */
static void ollama_ping(reply *r)
{
    const ollama_call *call = &r->request->ollama;
    put_head(&r->out, call->model);
    buf_puts(&r->out, call->is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":false}\n"
                                    : "\"response\":\"\",\"done\":false}\n");
}

/* --- events -------------------------------------------------------------------------------------*/
/* Begins {"id":"call_...","function":{"index":0,"name":"...","arguments": and the arguments follow. */
static void begin_call(server_choice *c, str name)
{
    buf *out = &c->part[CALLS];
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "call_", 24);
    buf_printf(out, "%s{\"id\":\"%s\",\"function\":{\"index\":%d,\"name\":", out->n ? "," : "", id, c->events.n_calls);
    buf_put_json_string(out, name);
    buf_puts(out, ",\"arguments\":");
}

static void ollama_on_event(void *choice, const chat_event *ev)
{
    server_choice   *c         = choice;
    reply           *r         = c->reply;
    static const int part_of[] = {
        [CHAT_EVENT_REASONING] = THINKING, [CHAT_EVENT_CONTENT] = CONTENT, [CHAT_EVENT_CALL_NAME] = CALLS,
        [CHAT_EVENT_CALL_ARGS] = CALLS,    [CHAT_EVENT_CALL_DONE] = CALLS,
    };
    int part = part_of[ev->kind];
    if (r->stream && part != c->open) ollama_flush(c);
    c->open = ev->kind == CHAT_EVENT_CALL_DONE ? NONE : part;
    if (ev->kind == CHAT_EVENT_CALL_NAME)
        begin_call(c, ev->text);
    else if (ev->kind == CHAT_EVENT_CALL_ARGS)
        buf_put(&c->part[CALLS], ev->text.s, ev->text.n);
    else if (ev->kind == CHAT_EVENT_CALL_DONE)
        buf_puts(&c->part[CALLS], "}}");
    else
        buf_put_json_text(&c->part[part], ev->text);
}

static void ollama_on_token(server_choice *c, const tandem_token *x)
{
    reply *r = c->reply;
    reply_put_logprobs(&c->part[LOGPROBS], r->tok, x, c->request->ask.logprobs, false);
}

static void ollama_put_whole(reply *r, server_choice *all, int n) { put_last(r, &all[0], n); }

static void ollama_open(reply *r, const char *model) { (void)r, (void)model; }

void ollama_put_loaded(buf *out, const ollama_call *c)
{
    put_head(out, c->model);
    buf_printf(out, "%s,\"done\":true,\"done_reason\":\"%s\"}",
               c->is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : "\"response\":\"\"", c->loaded);
}

const reply_format reply_ollama = {.open        = ollama_open,
                                   .on_event    = ollama_on_event,
                                   .on_token    = ollama_on_token,
                                   .flush       = ollama_flush,
                                   .end         = ollama_end,
                                   .done        = ollama_done,
                                   .fail        = ollama_fail,
                                   .ping        = ollama_ping,
                                   .put_whole   = ollama_put_whole,
                                   .put_error   = ollama_put_error,
                                   .stream_type = "application/x-ndjson"};
