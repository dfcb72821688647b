/* response, whole and in events: a list of items, in the order in which the model wrote them.
 *
 * An item is open until another one begins, or the answer ends: only then it is known whether it is complete. Its
 * text is kept until it is closed, and all items until the end, since the last event repeats the whole response. */
#include "server/reply.h"
#include "server/responses.h"

#include <math.h>
#include <time.h>

enum { OUTPUT, TEXT, LOGPROBS, CALL }; /* indices of server_choice.part; CALL: name of the open call */
enum { NONE, THOUGHT, SUMMARY, MESSAGE, FUNCTION, CUSTOM }; /* values of server_choice.open */
enum { MAX_ECHO = 256 << 10 };                              /* bytes of a field that is repeated to the client */

typedef struct {
    const char *prefix, *type;       /* id prefix and type of the item */
    const char *text, *delta, *done; /* the member with its text, and the events of that */
    const char *part, *part_added, *part_done, *index;
} item_info;
static const item_info infos[] = {
    [THOUGHT]  = {"rs_", "reasoning", "text", "response.reasoning_text.delta", "response.reasoning_text.done",
                  "reasoning_text", "response.content_part.added", "response.content_part.done", "content_index"},
    [SUMMARY]  = {"rs_", "reasoning", "text", "response.reasoning_summary_text.delta",
                  "response.reasoning_summary_text.done", "summary_text", "response.reasoning_summary_part.added",
                  "response.reasoning_summary_part.done", "summary_index"},
    [MESSAGE]  = {"msg_", "message", "text", "response.output_text.delta", "response.output_text.done", "output_text",
                  "response.content_part.added", "response.content_part.done", "content_index"},
    [FUNCTION] = {"fc_", "function_call", "arguments", "response.function_call_arguments.delta",
                  "response.function_call_arguments.done", NULL, NULL, NULL, NULL},
    [CUSTOM]   = {"ctc_", "custom_tool_call", "input", "response.custom_tool_call_input.delta",
                  "response.custom_tool_call_input.done", NULL, NULL, NULL, NULL},
};

/* --- the response -------------------------------------------------------------------------------*/
/* Writes a member as the client sent it, or default_json when it is absent or large. */
static void echo(buf *out, const char *key, const json_value *v, const char *default_json)
{
    json_writer w;
    buf         copy;
    buf_init(&copy, MAX_ECHO);
    json_writer_init(&w, &copy);
    if (v) json_put_value(&w, v);
    buf_printf(out, ",\"%s\":", key);
    if (v && !copy.failed)
        buf_put(out, copy.p, copy.n);
    else
        buf_puts(out, default_json);
    buf_deinit(&copy);
}

static const json_value *echoed(const server_request *q, const char *key, json_kind kind)
{
    const json_value *v = json_get(q->root, key);
    return v && v->kind == kind ? v : NULL;
}

static void put_settings(buf *out, const server_request *q)
{
    const server_fields *f    = &q->f;
    const json_value    *text = f->responses.text, *choice = json_get(q->root, "tool_choice");
    json_writer          w;
    echo(out, "instructions", echoed(q, "instructions", JSON_STRING), "null");
    echo(out, "metadata", echoed(q, "metadata", JSON_OBJECT), "{}");
    echo(out, "tools", f->tools, "[]");
    echo(out, "tool_choice", choice && choice->kind != JSON_NULL ? choice : NULL, "\"auto\"");
    echo(out, "user", echoed(q, "user", JSON_STRING), "null");
    echo(out, "safety_identifier", echoed(q, "safety_identifier", JSON_STRING), "null");
    echo(out, "prompt_cache_key", echoed(q, "prompt_cache_key", JSON_STRING), "null");
    buf_puts(out, ",\"text\":{\"verbosity\":\"medium\"");
    echo(out, "format", text ? json_get(text, "format") : NULL, "{\"type\":\"text\"}");
    buf_puts(out, "},\"reasoning\":");
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "effort");
    f->reasoning_effort.s ? json_put_str(&w, f->reasoning_effort) : json_put_null(&w);
    json_key(&w, "summary");
    f->responses.summary.s ? json_put_str(&w, f->responses.summary) : json_put_null(&w);
    json_end(&w);
    buf_printf(out, ",\"parallel_tool_calls\":%s,\"temperature\":", f->parallel_tool_calls ? "true" : "false");
    json_writer_init(&w, out);
    json_put_real(&w, round(q->ask.temp * 1e6) / 1e6);
    buf_puts(out, ",\"top_p\":");
    json_put_real(&w, round(q->ask.top_p * 1e6) / 1e6);
    if (f->max_tokens >= 0)
        buf_printf(out, ",\"max_output_tokens\":%lld", (long long)f->max_tokens);
    else
        buf_puts(out, ",\"max_output_tokens\":null");
    buf_printf(out, ",\"top_logprobs\":%lld", (long long)(f->top_logprobs > 0 ? f->top_logprobs : 0));
    buf_puts(out, ",\"max_tool_calls\":null,\"previous_response_id\":null,\"background\":false,\"store\":false,"
                  "\"truncation\":\"disabled\",\"service_tier\":\"default\",\"access_programs\":null");
}

/* Writes the members that are known from the start to the head, and the common part of all ids to the tail. */
static void open_reply(reply *r, const char *model)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "", 24);
    buf_puts(&r->tail, id);
    r->head.max = (size_t)16 * MAX_ECHO;
    buf_printf(&r->head, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"model\":", id,
               (long long)time(NULL));
    buf_put_json_string(&r->head, str_of(model));
    put_settings(&r->head, r->request);
}

static void put_usage(buf *out, const server_choice *all, int n)
{
    reply_usage u;
    reply_sum(&u, all, n);
    long long in = (long long)u.sums.prompt_tokens, written = (long long)u.sums.completion_tokens;
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,"
               "\"cache_write_tokens\":0",
               in, (long long)u.sums.cached_tokens);
    reply_put_media(out, &u);
    buf_printf(out,
               "},\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld},"
               "\"total_tokens\":%lld},",
               written, (long long)u.reasoning_tokens, in + written);
    reply_put_timings(out, all, n);
}

static void put_reason(buf *out, const char *code, const server_error *why)
{
    buf_printf(out, "{\"code\":\"%s\",\"message\":", code);
    buf_put_json_string(out, str_of(why->message));
    buf_putc(out, '}');
}

/* Writes the response object. why: the error of a failed one. n 0: the response has just begun. */
static void put_response(reply *r, const server_choice *all, int n, const char *status, const server_error *why)
{
    buf       *out = &r->out;
    const buf *items;
    buf_put(out, r->head.p, r->head.n);
    buf_printf(out, ",\"status\":\"%s\",\"error\":", status);
    if (why)
        put_reason(out, "server_error", why);
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"incomplete_details\":%s",
               strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
    if (!n) {
        buf_puts(out, ",\"completed_at\":null,\"output\":[],\"usage\":null}");
        return;
    }
    items = &all[0].part[OUTPUT];
    if (strcmp(status, "completed"))
        buf_puts(out, ",\"completed_at\":null");
    else
        buf_printf(out, ",\"completed_at\":%lld", (long long)time(NULL));
    buf_puts(out, ",\"output\":[");
    buf_put(out, items->p, items->n);
    buf_puts(out, "],");
    put_usage(out, all, n);
    buf_putc(out, '}');
}

/* --- items --------------------------------------------------------------------------------------*/
static void put_id(buf *out, const reply *r, const server_choice *c, const char *prefix)
{
    buf_puts(out, prefix);
    buf_put(out, r->tail.p, r->tail.n);
    buf_printf(out, "_%d", c->n_items);
}

static void put_text(buf *out, const server_choice *c, bool whole)
{
    buf_putc(out, '"');
    if (whole) buf_put(out, c->part[TEXT].p, c->part[TEXT].n);
    buf_putc(out, '"');
}

static void put_logprobs(buf *out, const server_choice *c, size_t from, bool whole)
{
    const buf *list = &c->part[LOGPROBS];
    buf_puts(out, ",\"logprobs\":[");
    if (whole && list->n > from) buf_put(out, list->p + from + (from > 0), list->n - from - (from > 0));
    buf_putc(out, ']');
}

/* Writes a part of the content; without its text if `whole` is false, as in the event that begins it. */
static void put_part(buf *out, const server_choice *c, bool whole)
{
    buf_printf(out, "{\"type\":\"%s\",\"text\":", infos[c->open].part);
    put_text(out, c, whole);
    if (c->open == MESSAGE) {
        buf_puts(out, ",\"annotations\":[]");
        put_logprobs(out, c, 0, whole);
    }
    buf_putc(out, '}');
}

static void put_parts(buf *out, const server_choice *c, const char *key, bool whole)
{
    buf_printf(out, ",\"%s\":[", key);
    if (whole) put_part(out, c, true);
    buf_putc(out, ']');
}

static void put_item(buf *out, const reply *r, const server_choice *c, const char *status)
{
    const item_info *k     = &infos[c->open];
    bool             whole = strcmp(status, "in_progress") != 0;
    buf_puts(out, "{\"id\":\"");
    put_id(out, r, c, k->prefix);
    buf_printf(out, "\",\"type\":\"%s\",\"status\":\"%s\"", k->type, status);
    if (c->open == MESSAGE) {
        buf_puts(out, ",\"role\":\"assistant\"");
        put_parts(out, c, "content", whole);
    } else if (!k->part) {
        buf_put(out, c->part[CALL].p, c->part[CALL].n);
        buf_printf(out, ",\"%s\":", k->text);
        put_text(out, c, whole);
    } else {
        put_parts(out, c, "summary", whole && c->open == SUMMARY);
        if (c->open == THOUGHT) put_parts(out, c, "content", whole);
        if (responses_includes(r->request, "reasoning.encrypted_content")) {
            buf_puts(out, ",\"encrypted_content\":\"" RESPONSES_SEAL);
            if (whole) buf_put(out, c->part[TEXT].p, c->part[TEXT].n);
            buf_putc(out, '"');
        }
    }
    buf_putc(out, '}');
}

/* --- events -------------------------------------------------------------------------------------*/
static void begin_event(reply *r, server_choice *c, const char *type)
{
    buf_printf(&r->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type, c->n_events++);
}

static void end_event(reply *r) { buf_puts(&r->out, "}\n\n"); }

static void send_response(reply *r, server_choice *c, const char *type)
{
    begin_event(r, c, type);
    buf_puts(&r->out, ",\"response\":");
    put_response(r, NULL, 0, "in_progress", NULL);
    end_event(r);
}

static void send_item(reply *r, server_choice *c, const char *type, const char *status)
{
    begin_event(r, c, type);
    buf_printf(&r->out, ",\"output_index\":%d,\"item\":", c->n_items);
    put_item(&r->out, r, c, status);
    end_event(r);
}

/* Begins an event of the open item. */
static void begin_of_item(reply *r, server_choice *c, const char *type)
{
    const item_info *k = &infos[c->open];
    begin_event(r, c, type);
    buf_puts(&r->out, ",\"item_id\":\"");
    put_id(&r->out, r, c, k->prefix);
    buf_printf(&r->out, "\",\"output_index\":%d", c->n_items);
    if (k->index) buf_printf(&r->out, ",\"%s\":0", k->index);
}

static void send_part(reply *r, server_choice *c, const char *type, bool whole)
{
    if (!type) return;
    begin_of_item(r, c, type);
    buf_puts(&r->out, ",\"part\":");
    put_part(&r->out, c, whole);
    end_event(r);
}

/* Sends the text since the last event. */
static void send_delta(reply *r, server_choice *c)
{
    const buf *text = &c->part[TEXT];
    if (text->n == c->sent) return;
    begin_of_item(r, c, infos[c->open].delta);
    buf_puts(&r->out, ",\"delta\":\"");
    buf_put(&r->out, text->p + c->sent, text->n - c->sent);
    buf_putc(&r->out, '"');
    if (c->open == MESSAGE) put_logprobs(&r->out, c, c->sent_logprobs, true);
    end_event(r);
    c->sent          = text->n;
    c->sent_logprobs = c->part[LOGPROBS].n;
}

/* Sends the text so far, except of a custom tool's call, whose text is known only when it is complete. */
static void responses_flush(server_choice *c)
{
    reply *r = c->reply;
    if (c->open != NONE && c->open != CUSTOM) send_delta(r, c);
}

static void send_item_end(reply *r, server_choice *c, const char *status)
{
    const item_info *k = &infos[c->open];
    send_delta(r, c);
    begin_of_item(r, c, k->done);
    buf_printf(&r->out, ",\"%s\":", k->text);
    put_text(&r->out, c, true);
    if (c->open == MESSAGE) put_logprobs(&r->out, c, 0, true);
    end_event(r);
    send_part(r, c, k->part_done, true);
    send_item(r, c, "response.output_item.done", status);
}

/* --- opening and closing ------------------------------------------------------------------------*/
/* Replaces the arguments of a custom tool's call, {"input":TEXT}, by TEXT. */
static void unwrap(server_choice *c)
{
    buf              *text = &c->part[TEXT];
    const json_value *v, *input;
    arena             mem;
    buf               plain;
    arena_init(&mem, (size_t)64 << 20);
    buf_init(&plain, text->max);
    bool parsed = json_parse(&v, &mem, buf_str(text), NULL, NULL);
    input       = parsed ? json_get(v, "input") : NULL;
    buf_put_json_text(&plain, input && input->kind == JSON_STRING ? input->s : buf_str(text));
    c->lost |= text->failed || !parsed;
    buf_deinit(text);
    *text = plain;
    arena_deinit(&mem);
}

static void close_item(reply *r, server_choice *c, const char *status)
{
    if (c->open == NONE) return;
    if (c->open == CUSTOM) unwrap(c);
    if (r->stream) send_item_end(r, c, status);
    if (c->n_items) buf_putc(&c->part[OUTPUT], ',');
    put_item(&c->part[OUTPUT], r, c, status);
    bool of_text = c->open == MESSAGE; /* else the log-probabilities belong to the next item */
    for (int i = TEXT; i <= CALL; i++) {
        c->lost |= c->part[i].failed;
        if (i != LOGPROBS || of_text) buf_clear(&c->part[i]);
    }
    c->sent = c->sent_logprobs = 0;
    c->n_items++;
    c->open = NONE;
}

static void open_item(reply *r, server_choice *c, int kind)
{
    c->open = kind;
    if (kind != MESSAGE) buf_clear(&c->part[LOGPROBS]);
    if (!r->stream) return;
    send_item(r, c, "response.output_item.added", "in_progress");
    send_part(r, c, infos[kind].part_added, false);
}

static void open_call(reply *r, server_choice *c, str shown)
{
    const response_tool *t    = responses_tool(r->request, shown);
    buf                 *call = &c->part[CALL];
    close_item(r, c, "completed");
    buf_puts(call, ",\"call_id\":\"");
    put_id(call, r, c, "call_");
    buf_puts(call, "\",\"name\":");
    buf_put_json_string(call, t ? t->name : shown);
    if (t && t->space.n) {
        buf_puts(call, ",\"namespace\":");
        buf_put_json_string(call, t->space);
    }
    open_item(r, c, t && t->custom ? CUSTOM : FUNCTION);
}

static void responses_on_event(void *choice, const chat_event *ev)
{
    server_choice *c = choice;
    reply         *r = c->reply;
    int kind         = ev->kind == CHAT_EVENT_CONTENT ? MESSAGE : r->request->f.responses.summary.s ? SUMMARY : THOUGHT;
    if (ev->kind == CHAT_EVENT_CALL_NAME) {
        open_call(r, c, ev->text);
    } else if (ev->kind == CHAT_EVENT_CALL_ARGS) {
        if (c->open == CUSTOM)
            buf_put(&c->part[TEXT], ev->text.s, ev->text.n);
        else
            buf_put_json_text(&c->part[TEXT], ev->text);
    } else if (ev->kind == CHAT_EVENT_CALL_DONE) {
        if (ev->cut) close_item(r, c, "incomplete");
    } else {
        if (c->open != kind) {
            close_item(r, c, "completed");
            open_item(r, c, kind);
        }
        buf_put_json_text(&c->part[TEXT], ev->text);
    }
}

/* Keeps log-probabilities of text tokens; the first ones may come before the message is opened. */
static void responses_on_token(server_choice *c, const tandem_token *x)
{
    reply             *r      = c->reply;
    tok_kind_t         kind   = tok_kind(r->tok, x->id);
    bool               marker = kind == TOK_CONTROL || kind == TOK_USER;
    const chat_parser *p      = c->events.parser;
    if (marker || c->open == FUNCTION || c->open == CUSTOM || p->ops->in_thought(p)) return;
    reply_put_logprobs(&c->part[LOGPROBS], r->tok, x, c->request->ask.logprobs, false);
}

/* --- the end ------------------------------------------------------------------------------------*/
static const char *status_of(const server_choice *c)
{
    return strcmp(choice_finish_reason(c), "length") ? "completed" : "incomplete";
}

/* Closes the open item. A response without items gets an empty message. */
static void close_all(reply *r, server_choice *c)
{
    if (c->open == NONE && !c->n_items) open_item(r, c, MESSAGE);
    close_item(r, c, status_of(c));
}

static void responses_begin(server_choice *c)
{
    reply *r = c->reply;
    send_response(r, c, "response.created");
    send_response(r, c, "response.in_progress");
}

static void responses_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    (void)all;
    (void)n;
    (void)last;
    close_all(r, c);
}

static void send_response_end(reply *r, const server_choice *all, int n, const char *status, const server_error *why)
{
    buf_printf(&r->out,
               "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%d,\"response\":", status,
               status, all[0].n_events);
    put_response(r, all, n, status, why);
    end_event(r);
}

static void responses_done(reply *r, const server_choice *all, int n)
{
    send_response_end(r, all, n, status_of(&all[0]), NULL);
}

static void put_error_event(buf *out, int number, const server_error *why)
{
    buf_printf(out,
               "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%d,\"code\":\"%s\",\"message\":", number,
               why->code ? why->code : "server_error");
    buf_put_json_string(out, str_of(why->message));
    buf_puts(out, ",\"param\":");
    if (why->param[0])
        buf_put_json_string(out, str_of(why->param));
    else
        buf_puts(out, "null");
    buf_puts(out, "}\n\n");
}

static void responses_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    send_response_end(r, all, n, "failed", why);
    put_error_event(&r->out, all[0].n_events + 1, why);
}

static void put_refused_event(buf *out, int number, const char *status, const char *head, const server_error *why)
{
    bool failed = why != NULL;
    buf_printf(out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%d,\"response\":{%s",
               status, status, number, head);
    buf_printf(out, ",\"status\":\"%s\",\"error\":", failed ? "failed" : "in_progress");
    if (failed)
        put_reason(out, why->code, why);
    else
        buf_puts(out, "null");
    buf_puts(out, "}}\n\n");
}

/* Writes a context error as events: codex shortens a conversation only when a stream reports it. */
static bool put_refused(buf *out, const char *model, const server_error *why)
{
    buf  head;
    char id[REPLY_ID_MAX];
    if (!why->code || strcmp(why->code, "context_length_exceeded")) return false;
    buf_init(&head, 1 << 12);
    reply_make_id(id, sizeof id, "resp_", 24);
    buf_printf(&head, "\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"model\":", id,
               (long long)time(NULL));
    buf_put_json_string(&head, str_of(model));
    buf_puts(&head,
             ",\"instructions\":null,\"metadata\":{},\"tools\":[],\"tool_choice\":\"auto\",\"temperature\":null,"
             "\"top_p\":null,\"parallel_tool_calls\":true,\"incomplete_details\":null,\"output\":[],\"usage\":null");
    buf_putc(&head, 0);
    bool ok = !head.failed;
    if (ok) {
        put_refused_event(out, 0, "created", head.p, NULL);
        put_refused_event(out, 1, "failed", head.p, why);
        put_error_event(out, 2, why);
    }
    buf_deinit(&head);
    return ok && !out->failed;
}

static void responses_put_whole(reply *r, server_choice *all, int n)
{
    close_all(r, &all[0]);
    put_response(r, all, n, status_of(&all[0]), NULL);
}

const reply_format reply_responses = {.open        = open_reply,
                                      .begin       = responses_begin,
                                      .on_event    = responses_on_event,
                                      .on_token    = responses_on_token,
                                      .flush       = responses_flush,
                                      .end         = responses_end,
                                      .done        = responses_done,
                                      .fail        = responses_fail,
                                      .ping        = completions_ping,
                                      .put_whole   = responses_put_whole,
                                      .put_error   = completions_error,
                                      .put_refused = put_refused};
