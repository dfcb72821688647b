#include "server/reply.h"

enum { BATCH = 64 };

static void add_stops(stop_match *m, const server_request *r)
{
    for (int i = 0; i < r->n_stop; i++) stop_add(m, r->stop[i]);
}

static bool open_chat(server_choice *c)
{
    chat_parse_options o = {.format     = c->request->format,
                            .on_event   = c->reply->format->on_event,
                            .ctx        = c,
                            .tok        = c->reply->tok,
                            .chat       = c->request->chat,
                            .in_thought = c->request->in_thought,
                            .thinking   = c->request->thinking};
    if (!chat_stream_init(&c->events, &o)) return false;
    add_stops(&c->events.stop, c->request);
    c->events.one_call = c->request->one_call;
    if (!c->request->n_stop && !c->request->one_call) return true;
    o.on_event = NULL;
    if (!chat_stream_init(&c->watch, &o)) return false;
    add_stops(&c->watch.stop, c->request);
    c->watch.one_call = c->request->one_call;
    return true;
}

bool choice_init(server_choice *c, reply *r, int index)
{
    const server_request *q = r->request;
    *c                      = (server_choice){.index = index, .reply = r, .request = q, .n_done = -1};
    buf_init(&c->decoded, TOK_MAX_INPUT);
    buf_init(&c->safe, TOK_MAX_INPUT);
    for (int i = 0; i < CHOICE_PARTS; i++) buf_init(&c->part[i], (size_t)1 << 31);
    if (q->chat) return open_chat(c);
    tok_stream_init(&c->text, r->tok, false);
    stop_init(&c->stop);
    add_stops(&c->stop, q);
    return true;
}

void choice_deinit(server_choice *c)
{
    tandem_release(c->job);
    chat_stream_deinit(&c->watch);
    chat_stream_deinit(&c->events);
    buf_deinit(&c->decoded);
    buf_deinit(&c->safe);
    for (int i = 0; i < CHOICE_PARTS; i++) buf_deinit(&c->part[i]);
}

const server_prompt *choice_prompt(const server_choice *c)
{
    return &c->request->prompt[c->index / (int)c->request->f.n];
}

const tandem_logprob *choice_prompt_logprobs(const server_choice *c)
{
    const server_choice *first = c - c->index % (int)c->request->f.n;
    return first->job ? tandem_prompt_logprobs(first->job) : NULL;
}

bool choice_submit(server_choice *c, tandem *t, err *e)
{
    const server_request *r   = c->request;
    tandem_request        ask = r->ask;
    const server_prompt  *p   = choice_prompt(c);
    ask.ids                   = p->ids;
    ask.n_ids                 = p->n;
    ask.choice                = c->index % (int)r->f.n;
    ask.prompt_logprobs &= !ask.choice;
    if (c->watch.parser) {
        ask.on_token     = chat_stream_on_token;
        ask.on_token_ctx = &c->watch;
    } else if (!r->chat) {
        ask.stop   = r->stop_text;
        ask.n_stop = (size_t)r->n_stop;
    }
    return engine_submit(t, &ask, r->media.prompt, r->compiled, &c->job, e);
}

/* --- tokens -------------------------------------------------------------------------------------*/
/* Sends the text of a text completion that cannot become a stop string. */
static void send_text(server_choice *c)
{
    if (c->safe.n) c->reply->format->on_event(c, &(chat_event){.kind = CHAT_EVENT_CONTENT, .text = buf_str(&c->safe)});
    c->lost |= c->safe.failed;
    buf_clear(&c->safe);
}

static void take_text(server_choice *c)
{
    stop_put(&c->stop, buf_str(&c->decoded), &c->safe);
    c->lost |= c->decoded.failed;
    buf_clear(&c->decoded);
    send_text(c);
}

/* Returns whether the reply format receives the token itself, in addition to its events. */
static bool wants_token(const server_choice *c, const tandem_token *x)
{
    if (!c->reply->format->on_token) return false;
    if (c->reply->format->every_token) return true;
    /* evaluation harnesses remove the last item of an echo, even if it is not a stop token */
    if (x->is_stop) return c->request->f.text.echo && x->logprobs;
    return x->logprobs || c->request->endpoint == FIELD_NATIVE;
}

static void take_token(server_choice *c, const tandem_token *x)
{
    c->n_tokens++;
    c->drafted = (int)x->drafted;
    if (x->is_stop) {
        /* no text */
    } else if (c->request->chat) {
        chat_stream_put(&c->events, x->id);
    } else {
        tok_stream_put(&c->text, x->id, &c->decoded);
        take_text(c);
    }
    if (wants_token(c, x)) c->reply->format->on_token(c, x);
}

static void finish_text(server_choice *c)
{
    if (c->request->chat) {
        c->lost |= !chat_stream_finish(&c->events, NULL);
        return;
    }
    tok_stream_finish(&c->text, &c->decoded);
    take_text(c);
    stop_finish(&c->stop, &c->safe);
    send_text(c);
}

/* Sends the progress through the prompt if it has changed and there is no token yet. */
static void send_progress(server_choice *c)
{
    reply          *r = c->reply;
    tandem_progress p;
    if (!c->request->ask.wake_on_prefill || c->n_tokens || !tandem_job_admitted(c->job)) return;
    tandem_job_progress(c->job, &p);
    if (p.prompt_done == c->n_done || !r->format->on_progress) return;
    c->n_done = p.prompt_done;
    buf_clear(&r->tail);
    reply_put_progress(&r->tail, &p);
    r->format->on_progress(c);
    buf_clear(&r->tail);
}

/* Sends the next piece of an echoed prompt, since the log-probabilities of a long prompt take long to write. Returns
 * false when there is more to send, or when the job has no token yet. */
static bool echo_piece(server_choice *c, bool done)
{
    enum { PIECE = 64 };
    tandem_progress p;
    if (!c->request->f.text.echo || c->echoed) return true;
    tandem_job_progress(c->job, &p);
    if (!p.completion_tokens && !done) return false;
    size_t all = choice_prompt_logprobs(c) ? choice_prompt(c)->n : 0, rest = all - c->n_echoed;
    size_t n = rest < PIECE ? rest : PIECE;
    if (c->reply->format->on_prompt) c->reply->format->on_prompt(c, c->n_echoed, n);
    c->n_echoed += n;
    c->echoed = c->n_echoed == all;
    return c->echoed;
}

bool choice_is_echoing(const server_choice *c) { return c->n_echoed && !c->echoed; }

int choice_poll(server_choice *c, int max_tokens)
{
    tandem_token x[BATCH];
    int          taken = 0;
    while (c->job && !c->result && taken < max_tokens) {
        const tandem_result *r = tandem_job_result(c->job); /* read before the tokens: with a result, all are there */
        send_progress(c);
        if (!echo_piece(c, r)) break;
        int n = (int)tandem_poll(c->job, x, BATCH);
        if (n) send_progress(c);
        for (int i = 0; i < n; i++) take_token(c, &x[i]);
        taken += n;
        if (n == BATCH) continue;
        if (r) {
            finish_text(c);
            c->result = r;
        }
        break;
    }
    return taken;
}

const char *choice_finish_reason(const server_choice *c)
{
    switch (c->result ? c->result->finish : TANDEM_FINISH_NONE) {
    case TANDEM_FINISH_STOP:
    case TANDEM_FINISH_STOP_STRING: return c->events.n_calls ? "tool_calls" : "stop";
    case TANDEM_FINISH_LENGTH: return "length";
    default: return NULL;
    }
}

int32_t choice_reasoning_tokens(const server_choice *c) { return c->events.n_reasoning; }

void choices_record(const server_choice *all, int n, server_record *out)
{
    for (int i = 0; i < n; i++) {
        const tandem_job *j = all[i].job;
        if (!j || !tandem_job_admitted(j) || !tandem_job_result(j)) continue;
        out->shares_prompt[out->n_choices] = all[i].index % (int)all[i].request->f.n != 0;
        out->choice[out->n_choices++]      = tandem_job_result(j);
    }
}
