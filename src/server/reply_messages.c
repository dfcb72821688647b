/* Anthropic's message: a list of blocks (thinking, text, tool_use) in the order in which the model wrote them, whole
 * or as events.
 *
 *      message_start [ content_block_start content_block_delta ... content_block_stop ] ... message_delta message_stop
 *
 * A thinking block has a signature, since clients drop blocks without one. Its value is not used. */
#include "server/reply.h"

enum { NONE, THINKING, TEXT, CALL }; /* server_choice.open: the block that grows */
enum { GROWN }; /* server_choice.part: of a stream what is still to be sent of it, else all blocks */

#define SIGNATURE "dGFuZGVt"

/* --- usage and errors ---------------------------------------------------------------------------*/
static void put_counts(buf *out, const reply_usage *u)
{
    const record_sums *s = &u->sums;
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
               "\"output_tokens\":%lld,\"output_tokens_details\":{\"thinking_tokens\":%lld}}",
               (long long)(s->prompt_tokens - s->cached_tokens), (long long)s->cached_tokens,
               (long long)s->completion_tokens, (long long)u->reasoning_tokens);
}

static void put_usage(buf *out, const server_choice *all, int n)
{
    reply_usage u;
    reply_sum(&u, all, n);
    put_counts(out, &u);
}

static const char *type_of(int status)
{
    switch (status) {
    case 403: return "permission_error";
    case 413: return "request_too_large";
    case 500: return "api_error";
    default: return error_type(status);
    }
}

static void messages_put_error(buf *out, const server_choice *all, int n, const server_error *why)
{
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of(why->status));
    buf_put_json_string(out, str_of(why->message));
    if (why->code) buf_printf(out, ",\"details\":{\"error_code\":\"%s\"}", why->code);
    buf_putc(out, '}');
    if (n) {
        buf_putc(out, ',');
        put_usage(out, all, n);
    }
    buf_putc(out, '}');
}

static const char *stop_reason(const server_choice *c)
{
    const char *reason = choice_finish_reason(c);
    if (!reason) return NULL;
    if (!strcmp(reason, "length")) return "max_tokens";
    if (!strcmp(reason, "tool_calls")) return "tool_use";
    return c->events.stop.found ? "stop_sequence" : "end_turn";
}

static void put_stop(buf *out, const server_choice *c)
{
    const char       *reason = stop_reason(c);
    const stop_match *m      = &c->events.stop;
    buf_puts(out, "\"stop_reason\":");
    if (reason)
        buf_put_json_string(out, str_of(reason));
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"stop_sequence\":");
    if (reason && !strcmp(reason, "stop_sequence"))
        buf_put_json_string(out, m->string[m->which]);
    else
        buf_puts(out, "null");
}

/* --- events -------------------------------------------------------------------------------------*/
static void event(reply *r, const char *type)
{
    buf_puts(&r->out, "event: ");
    buf_puts(&r->out, type);
    buf_puts(&r->out, "\ndata: {\"type\":\"");
    buf_puts(&r->out, type);
    buf_putc(&r->out, '"');
}

static void block_event(reply *r, const server_choice *c, const char *type)
{
    event(r, type);
    buf_puts(&r->out, ",\"index\":");
    reply_put_index(&r->out, c->n_items);
}

static void end_event(reply *r) { buf_puts(&r->out, "}\n\n"); }

static void delta(reply *r, const server_choice *c, const char *what)
{
    block_event(r, c, "content_block_delta");
    buf_puts(&r->out, ",\"delta\":{\"type\":");
    buf_puts(&r->out, what);
}

static void messages_flush(server_choice *c)
{
    reply                   *r      = c->reply;
    static const char *const what[] = {[THINKING] = "\"thinking_delta\",\"thinking\":\"",
                                       [TEXT]     = "\"text_delta\",\"text\":\"",
                                       [CALL]     = "\"input_json_delta\",\"partial_json\":\""};
    if (!c->part[GROWN].n) return;
    delta(r, c, what[c->open]);
    reply_put_part(r, c, GROWN);
    buf_puts(&r->out, "\"}");
    end_event(r);
}

/* Begins a message. The number of cached tokens is known only at its end. */
static void messages_begin(server_choice *c)
{
    reply      *r = c->reply;
    reply_usage u = {.sums = {.prompt_tokens = (int64_t)r->request->prompt[c->index].n}};
    event(r, "message_start");
    buf_puts(&r->out, ",\"message\":");
    buf_put(&r->out, r->head.p, r->head.n);
    buf_puts(&r->out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_counts(&r->out, &u);
    buf_putc(&r->out, '}');
    end_event(r);
}

static void put_message_delta(reply *r, const server_choice *all, int n)
{
    event(r, "message_delta");
    buf_puts(&r->out, ",\"delta\":{");
    put_stop(&r->out, &all[0]);
    buf_puts(&r->out, "},");
    put_usage(&r->out, all, n);
    buf_putc(&r->out, ',');
    reply_put_timings(&r->out, all, n);
    end_event(r);
}

static void messages_done(reply *r, const server_choice *all, int n)
{
    put_message_delta(r, all, n);
    event(r, "message_stop");
    end_event(r);
}

static void messages_fail(reply *r, const server_choice *all, int n, const server_error *why)
{
    put_message_delta(r, all, n);
    buf_puts(&r->out, "event: error\ndata: ");
    messages_put_error(&r->out, all, 0, why);
    buf_puts(&r->out, "\n\n");
}

static void messages_ping(reply *r)
{
    event(r, "ping");
    end_event(r);
}

/* --- blocks -------------------------------------------------------------------------------------*/
static void put_call(buf *out, str name)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "toolu_", 24);
    buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", id);
    buf_put_json_string(out, name);
    buf_puts(out, ",\"input\":");
}

static void start_block(reply *r, server_choice *c, int kind, str name)
{
    buf *out = r->stream ? &r->out : &c->part[GROWN];
    c->open  = kind;
    if (r->stream) {
        block_event(r, c, "content_block_start");
        buf_puts(out, ",\"content_block\":");
    } else if (c->n_items) {
        buf_putc(out, ',');
    }
    if (kind == CALL) put_call(out, name);
    if (kind == THINKING) buf_puts(out, "{\"type\":\"thinking\",\"thinking\":\"");
    if (kind == TEXT) buf_puts(out, "{\"type\":\"text\",\"text\":\"");
    if (!r->stream) return;
    buf_puts(out, kind == CALL ? "{}}" : kind == THINKING ? "\",\"signature\":\"\"}" : "\"}");
    end_event(r);
}

static void stop_block(reply *r, server_choice *c)
{
    int kind = c->open;
    if (r->stream && kind) {
        messages_flush(c);
        if (kind == THINKING) {
            delta(r, c, "\"signature_delta\",\"signature\":\"" SIGNATURE "\"}");
            end_event(r);
        }
        block_event(r, c, "content_block_stop");
        end_event(r);
    } else if (kind) {
        static const char *const messages_end[] = {
            [THINKING] = "\",\"signature\":\"" SIGNATURE "\"}", [TEXT] = "\"}", [CALL] = "}"};
        buf_puts(&c->part[GROWN], messages_end[kind]);
    }
    c->n_items += kind != NONE;
    c->open = NONE;
}

static void messages_on_event(void *choice, const chat_event *ev)
{
    server_choice   *c         = choice;
    reply           *r         = c->reply;
    static const int kind_of[] = {[CHAT_EVENT_REASONING] = THINKING,
                                  [CHAT_EVENT_CONTENT]   = TEXT,
                                  [CHAT_EVENT_CALL_NAME] = CALL,
                                  [CHAT_EVENT_CALL_ARGS] = CALL,
                                  [CHAT_EVENT_CALL_DONE] = CALL};
    int              kind      = kind_of[ev->kind];
    if (kind != c->open || ev->kind == CHAT_EVENT_CALL_NAME) {
        stop_block(r, c);
        start_block(r, c, kind, ev->text);
    }
    if (ev->kind == CHAT_EVENT_CALL_ARGS && !r->stream)
        buf_put(&c->part[GROWN], ev->text.s, ev->text.n);
    else if (ev->kind <= CHAT_EVENT_CONTENT || ev->kind == CHAT_EVENT_CALL_ARGS)
        buf_put_json_text(&c->part[GROWN], ev->text);
    else if (ev->kind == CHAT_EVENT_CALL_DONE)
        stop_block(r, c);
}

static void messages_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    (void)all, (void)n, (void)last;
    stop_block(r, c);
}

/* --- one object ---------------------------------------------------------------------------------*/
static void messages_open(reply *r, const char *model)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "msg_", 24);
    buf_printf(&r->head, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", id);
    buf_put_json_string(&r->head, str_of(model));
    buf_puts(&r->head, ",\"content\":[");
}

static void messages_put_whole(reply *r, server_choice *all, int n)
{
    stop_block(r, &all[0]);
    buf_put(&r->out, r->head.p, r->head.n);
    reply_put_part(r, &all[0], GROWN);
    buf_puts(&r->out, "],");
    put_stop(&r->out, &all[0]);
    buf_putc(&r->out, ',');
    put_usage(&r->out, all, n);
    buf_putc(&r->out, ',');
    reply_put_timings(&r->out, all, n);
    buf_putc(&r->out, '}');
}

const reply_format reply_messages = {.open       = messages_open,
                                     .begin      = messages_begin,
                                     .on_event   = messages_on_event,
                                     .flush      = messages_flush,
                                     .end        = messages_end,
                                     .done       = messages_done,
                                     .fail       = messages_fail,
                                     .ping       = messages_ping,
                                     .put_whole  = messages_put_whole,
                                     .put_error  = messages_put_error,
                                     .overloaded = 529,
                                     .id_field   = "request-id"};
