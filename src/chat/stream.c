#include "chat/stream.h"

#include "chat/format.h"

/* Reports content that cannot become a stop string. */
static void report_safe_content(chat_stream *s, int call)
{
    if (s->safe.n && s->on_event)
        s->on_event(s->ctx, &(chat_event){.kind = CHAT_EVENT_CONTENT, .call = call, .text = buf_str(&s->safe)});
    s->failed |= s->safe.failed;
    buf_clear(&s->safe);
}

/* Receives the events of the parser. Ends the response at a stop string, or after its first call with one_call. */
static void filter_event(void *stream, const chat_event *ev)
{
    chat_stream *s = stream;
    s->reasons |= ev->kind == CHAT_EVENT_REASONING;
    if (s->over) return;
    if (ev->kind == CHAT_EVENT_CONTENT && s->stop.n_strings) {
        s->over = stop_put(&s->stop, ev->text, &s->safe);
        report_safe_content(s, ev->call);
        return;
    }
    if (s->on_event) s->on_event(s->ctx, ev);
    s->n_calls += ev->kind == CHAT_EVENT_CALL_NAME;
    s->over = s->one_call && ev->kind == CHAT_EVENT_CALL_DONE;
}

bool chat_stream_init(chat_stream *s, const chat_parse_options *o)
{
    chat_parse_options inner = *o;
    *s                       = (chat_stream){.on_event = o->on_event, .ctx = o->ctx};
    stop_init(&s->stop);
    buf_init(&s->safe, TOK_MAX_INPUT);
    inner.on_event = filter_event;
    inner.ctx      = s;
    s->parser      = o->format->parser->create(&inner);
    return s->parser != NULL;
}

void chat_stream_deinit(chat_stream *s)
{
    if (s->parser) s->parser->ops->destroy(s->parser);
    buf_deinit(&s->safe);
    s->parser = NULL;
}

void chat_stream_put(chat_stream *s, int32_t id)
{
    chat_parser *p = s->parser;
    if (!p) return;
    bool in_thought = p->ops->in_thought(p);
    s->reasons      = false;
    p->ops->put_id(p, id);
    if (p->ops->undecided(p)) {
        s->n_undecided++;
        return;
    }
    if (s->n_undecided && (s->reasons || p->ops->in_thought(p)))
        s->n_reasoning += s->n_undecided + 1;
    else
        s->n_reasoning += in_thought || p->ops->in_thought(p);
    s->n_undecided = 0;
}

bool chat_stream_finish(chat_stream *s, err *e)
{
    if (!s->parser) return err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response");
    bool ok = s->parser->ops->finish(s->parser, e);
    if (!s->over) stop_finish(&s->stop, &s->safe);
    report_safe_content(s, 0);
    s->over = true;
    return ok && (!s->failed || err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response"));
}

bool chat_stream_on_token(void *stream, int32_t id)
{
    chat_stream *s = stream;
    chat_stream_put(s, id);
    return !s->over;
}
