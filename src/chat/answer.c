#include "chat/answer.h"

static void forward_event(chat_answer *a, const chat_event *ev)
{
    if (a->on_event) a->on_event(a->ctx, ev);
}

static void tell_safe(chat_answer *a, int call)
{
    if (a->safe.n) forward_event(a, &(chat_event){.kind = CHAT_EVENT_CONTENT, .call = call, .text = buf_str(&a->safe)});
    a->failed |= a->safe.failed;
    buf_clear(&a->safe);
}

static void on_parser_event(void *ctx, const chat_event *ev)
{
    chat_answer *a = ctx;
    a->reasons |= ev->kind == CHAT_EVENT_REASONING;
    if (a->over) return;
    if (ev->kind != CHAT_EVENT_CONTENT) {
        forward_event(a, ev);
        a->over = a->one_call && ev->kind == CHAT_EVENT_CALL_DONE;
    } else if (!a->stop.n_strings) {
        forward_event(a, ev);
    } else {
        a->over = stop_put(&a->stop, ev->text, &a->safe);
        tell_safe(a, ev->call);
    }
}

bool chat_answer_init(chat_answer *a, const chat_parse_options *o)
{
    chat_parse_options inner = *o;
    *a                       = (chat_answer){.on_event = o->on_event, .ctx = o->ctx};
    stop_init(&a->stop);
    buf_init(&a->safe, TOK_MAX_INPUT);
    inner.on_event = on_parser_event;
    inner.ctx      = a;
    a->parser      = chat_parser_new(&inner);
    return a->parser != NULL;
}

void chat_answer_deinit(chat_answer *a)
{
    chat_parser_free(a->parser);
    buf_deinit(&a->safe);
    a->parser = NULL;
}

void chat_answer_put(chat_answer *a, int32_t id)
{
    chat_parser *p = a->parser;
    if (!p) return;
    bool in_thought = chat_parser_in_thought(p);
    a->reasons      = false;
    chat_parser_put_id(p, id);
    if (chat_parser_undecided(p)) {
        a->n_undecided++;
        return;
    }
    if (a->n_undecided && (a->reasons || chat_parser_in_thought(p)))
        a->n_reasoning += a->n_undecided + 1;
    else
        a->n_reasoning += in_thought || chat_parser_in_thought(p);
    a->n_undecided = 0;
}

bool chat_answer_finish(chat_answer *a, err *e)
{
    if (!a->parser) return err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response");
    bool ok = chat_parser_finish(a->parser, e);
    if (!a->over) stop_finish(&a->stop, &a->safe);
    tell_safe(a, 0);
    a->over = true;
    return ok && (!a->failed || err_set(e, ERR_UNAVAILABLE, "no memory to parse the model's response"));
}

bool chat_answer_on_token(void *answer, int32_t id)
{
    chat_answer *a = answer;
    chat_answer_put(a, id);
    return !a->over;
}
