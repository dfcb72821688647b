/* chat.completion and chat.completion.chunk. */
#include "server/reply.h"

#include <stdio.h>

enum { NONE = -1, REASONING, CONTENT, CALLS, LOGPROBS, DRAFTS }; /* indices of server_choice.part */

/* --- log-probabilities --------------------------------------------------------------------------*/
static void chat_on_token(server_choice *c, const tandem_token *x)
{
    reply *r = c->reply;
    reply_put_logprobs(&c->part[LOGPROBS], r->tok, x, c->request->ask.logprobs, false);
}

/* Writes the log-probabilities of the tokens since the last event. */
static void put_logprobs(reply *r, server_choice *c)
{
    buf_puts(&r->out, ",\"logprobs\":");
    if (c->part[LOGPROBS].n || (r->with_logprobs && !r->stream)) {
        buf_puts(&r->out, "{\"content\":[");
        reply_put_part(r, c, LOGPROBS);
        buf_puts(&r->out, "]}");
    } else {
        buf_puts(&r->out, "null");
    }
}

/* --- drafts -------------------------------------------------------------------------------------*/
static size_t count_chars(str text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) n += ((unsigned char)text.s[i] & 0xC0) != 0x80;
    return n;
}

static void note_draft(server_choice *c, str text)
{
    buf *b = &c->part[DRAFTS];
    if (!c->reply->stream || !c->request->f.return_drafts || !text.n) return;
    buf_printf(b, "%s[\"%s\",%zu]", b->n ? "," : "", tandem_method_name(c->drafted), count_chars(text));
}

/* Writes which tokens the text since the last event comes from, and who drafted them. */
static void put_drafts(reply *r, server_choice *c)
{
    if (!c->part[DRAFTS].n) return;
    buf_puts(&r->out, ",\"drafts\":[");
    reply_put_part(r, c, DRAFTS);
    buf_putc(&r->out, ']');
}

/* --- a stream -----------------------------------------------------------------------------------*/
static void put_chunk(reply *r, server_choice *c, const char *before, int part, const char *after)
{
    completions_chunk(r, c);
    buf_puts(&r->out, before);
    if (part >= 0) reply_put_part(r, c, part);
    buf_puts(&r->out, after);
}

static void end_chunk(reply *r, server_choice *c, const char *reason)
{
    put_drafts(r, c);
    put_logprobs(r, c);
    completions_chunk_end(r, reason);
}

static void chat_begin(server_choice *c)
{
    reply *r = c->reply;
    put_chunk(r, c, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", NONE, "");
    end_chunk(r, c, NULL);
}

static void chat_on_progress(server_choice *c)
{
    reply *r = c->reply;
    reply_begin(c);
    put_chunk(r, c, "\"delta\":{}", NONE, "");
    end_chunk(r, c, NULL);
}

/* Returns whether the request has `functions`, the former `tools`. The response then has `function_call`, one call. */
static bool by_functions(const server_choice *c) { return c->request->chat && c->request->chat->by_functions; }

static void chat_flush(server_choice *c)
{
    reply *r = c->reply;
    char   before[80];
    if (!c->part[c->open].n || c->open == LOGPROBS) return;
    if (c->open == CALLS && by_functions(c)) {
        put_chunk(r, c, "\"delta\":{\"function_call\":{\"arguments\":\"", CALLS, "\"}}");
    } else if (c->open == CALLS) {
        snprintf(before, sizeof before, "\"delta\":{\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":\"",
                 c->events.n_calls - 1);
        put_chunk(r, c, before, CALLS, "\"}}]}");
    } else {
        put_chunk(r, c, c->open == CONTENT ? "\"delta\":{\"content\":\"" : "\"delta\":{\"reasoning_content\":\"",
                  c->open, "\"}");
    }
    end_chunk(r, c, NULL);
}

static const char *former_reason(const server_choice *c, const char *reason)
{
    return by_functions(c) && reason && !strcmp(reason, "tool_calls") ? "function_call" : reason;
}

static void chat_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    if (last) completions_last(r, all, n);
    put_chunk(r, c, "\"delta\":{}", NONE, "");
    end_chunk(r, c, former_reason(c, choice_finish_reason(c)));
}

/* --- events -------------------------------------------------------------------------------------*/
/* "name":"...","arguments":" followed by the arguments */
static void put_name(buf *out, str name)
{
    buf_puts(out, "\"name\":");
    buf_put_json_string(out, name);
    buf_puts(out, ",\"arguments\":\"");
}

/* {"id":"call_...","type":"function","function":{ and its name */
static void put_call(buf *out, str name)
{
    char id[REPLY_ID_MAX];
    reply_make_id(id, sizeof id, "call_", 24);
    buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{", id);
    put_name(out, name);
}

static void begin_function_call(reply *r, server_choice *c, str name)
{
    if (!r->stream) {
        put_name(&c->part[CALLS], name);
        return;
    }
    put_chunk(r, c, "\"delta\":{\"function_call\":{", NONE, "");
    put_name(&r->out, name);
    buf_puts(&r->out, "\"}}");
    end_chunk(r, c, NULL);
}

static void begin_call(reply *r, server_choice *c, str name)
{
    buf *whole = &c->part[CALLS];
    char before[64];
    if (by_functions(c)) {
        begin_function_call(r, c, name);
    } else if (r->stream) {
        snprintf(before, sizeof before, "\"delta\":{\"tool_calls\":[{\"index\":%d,", c->events.n_calls);
        put_chunk(r, c, before, NONE, "");
        put_call(&r->out, name);
        buf_puts(&r->out, "\"}}]}");
        end_chunk(r, c, NULL);
    } else {
        buf_puts(whole, whole->n ? ",{" : "{");
        put_call(whole, name);
    }
}

static void chat_on_event(void *choice, const chat_event *ev)
{
    server_choice   *c         = choice;
    reply           *r         = c->reply;
    static const int part_of[] = {
        [CHAT_EVENT_REASONING] = REASONING, [CHAT_EVENT_CONTENT] = CONTENT, [CHAT_EVENT_CALL_NAME] = CALLS,
        [CHAT_EVENT_CALL_ARGS] = CALLS,     [CHAT_EVENT_CALL_DONE] = CALLS,
    };
    int part = part_of[ev->kind];
    if (r->stream && (part != c->open || ev->kind == CHAT_EVENT_CALL_NAME)) chat_flush(c);
    c->open = part;
    if (ev->kind == CHAT_EVENT_CALL_NAME) {
        begin_call(r, c, ev->text);
    } else if (ev->kind != CHAT_EVENT_CALL_DONE) {
        buf_put_json_text(&c->part[part], ev->text);
        note_draft(c, ev->text);
    } else if (!r->stream) {
        buf_puts(&c->part[CALLS], by_functions(c) ? "\"" : "\"}}");
    }
}

/* --- one object ---------------------------------------------------------------------------------*/
static void put_text(buf *out, const char *before, const buf *text)
{
    buf_puts(out, before);
    buf_put(out, text->p, text->n);
    buf_putc(out, '"');
}

static void put_choice(reply *r, server_choice *c, const char *reason)
{
    buf *out = &r->out;
    buf_puts(out, "\"message\":{\"role\":\"assistant\"");
    if (c->part[REASONING].n) put_text(out, ",\"reasoning_content\":\"", &c->part[REASONING]);
    if (c->part[CONTENT].n || !c->events.n_calls)
        put_text(out, ",\"content\":\"", &c->part[CONTENT]);
    else
        buf_puts(out, ",\"content\":null");
    if (c->events.n_calls) {
        buf_puts(out, by_functions(c) ? ",\"function_call\":{" : ",\"tool_calls\":[");
        buf_put(out, c->part[CALLS].p, c->part[CALLS].n);
        buf_putc(out, by_functions(c) ? '}' : ']');
    }
    buf_putc(out, '}');
    put_logprobs(r, c);
    buf_printf(out, ",\"finish_reason\":\"%s\"", former_reason(c, reason));
}

static void chat_put_whole(reply *r, server_choice *all, int n) { completions_whole(r, all, n, put_choice); }

static void chat_open(reply *r, const char *model)
{
    completions_open(r, model, &(completions_names){"chatcmpl-", "chat.completion", "chat.completion.chunk"});
}

const reply_format reply_chat = {.open        = chat_open,
                                 .begin       = chat_begin,
                                 .on_progress = chat_on_progress,
                                 .on_event    = chat_on_event,
                                 .on_token    = chat_on_token,
                                 .flush       = chat_flush,
                                 .end         = chat_end,
                                 .done        = completions_done,
                                 .fail        = completions_fail,
                                 .ping        = completions_ping,
                                 .put_whole   = chat_put_whole,
                                 .put_error   = completions_error};
