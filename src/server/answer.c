#include "server/answer.h"

enum { BATCH = 64 };

static void send_event(server_choice *c, const chat_event *ev)
{
    c->sink.on_event(c->sink.ctx, c, ev);
    c->n_calls += ev->kind == CHAT_EVENT_CALL_NAME;
}

static void on_parser_event(void *ctx, const chat_event *ev) { send_event(ctx, ev); }

static void add_stops(stop_match *m, const server_request *r)
{
    for (int i = 0; i < r->n_stop; i++) stop_add(m, r->stop[i]);
}

static bool open_chat(server_choice *c)
{
    chat_parse_options o = {.format     = c->request->format,
                            .on_event   = on_parser_event,
                            .ctx        = c,
                            .tok        = c->tok,
                            .chat       = c->request->chat,
                            .in_thought = c->request->in_thought,
                            .thinking   = c->request->thinking};
    if (!chat_answer_init(&c->answer, &o)) return false;
    add_stops(&c->answer.stop, c->request);
    c->answer.one_call = c->request->one_call;
    if (!c->request->n_stop && !c->request->one_call) return true;
    o.on_event = NULL;
    if (!chat_answer_init(&c->watch, &o)) return false;
    add_stops(&c->watch.stop, c->request);
    c->watch.one_call = c->request->one_call;
    return true;
}

bool choice_init(server_choice *c, const server_request *r, const tok *t, int index, const choice_sink *sink)
{
    *c = (server_choice){.index = index, .request = r, .tok = t, .sink = *sink, .n_done = -1};
    buf_init(&c->decoded, TOK_MAX_INPUT);
    buf_init(&c->safe, TOK_MAX_INPUT);
    for (int i = 0; i < CHOICE_PARTS; i++) buf_init(&c->part[i], (size_t)1 << 31);
    if (r->chat) return open_chat(c);
    tok_stream_init(&c->text, t, false);
    stop_init(&c->stop);
    add_stops(&c->stop, r);
    return true;
}

void choice_deinit(server_choice *c)
{
    tandem_release(c->job);
    chat_answer_deinit(&c->watch);
    chat_answer_deinit(&c->answer);
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
        ask.on_token     = chat_answer_on_token;
        ask.on_token_ctx = &c->watch;
    } else if (!r->chat) {
        ask.stop   = r->stop_text;
        ask.n_stop = (size_t)r->n_stop;
    }
    return engine_submit(t, &ask, r->form, &c->job, e);
}

/* --- tokens -------------------------------------------------------------------------------------*/
static void tell_text(server_choice *c)
{
    if (c->safe.n) send_event(c, &(chat_event){.kind = CHAT_EVENT_CONTENT, .text = buf_str(&c->safe)});
    c->lost |= c->safe.failed;
    buf_clear(&c->safe);
}

static void take_text(server_choice *c)
{
    stop_put(&c->stop, buf_str(&c->decoded), &c->safe);
    c->lost |= c->decoded.failed;
    buf_clear(&c->decoded);
    tell_text(c);
}

static void take_token(server_choice *c, const tandem_token *x)
{
    c->n_tokens++;
    if (x->is_stop) {
        /* evaluation harnesses cut the last item of an echo off, whatever it is */
        if (c->request->f.text.echo && x->logprobs) c->sink.on_token(c->sink.ctx, c, x);
        return;
    }
    if (c->request->chat) {
        chat_answer_put(&c->answer, x->id);
    } else {
        tok_stream_put(&c->text, x->id, &c->decoded);
        take_text(c);
    }
    if (x->logprobs || c->request->endpoint == FIELD_NATIVE) c->sink.on_token(c->sink.ctx, c, x);
}

static void finish(server_choice *c)
{
    if (c->request->chat) {
        c->lost |= !chat_answer_finish(&c->answer, NULL);
        return;
    }
    tok_stream_finish(&c->text, &c->decoded);
    take_text(c);
    stop_finish(&c->stop, &c->safe);
    tell_text(c);
}

/* Sends the progress through the prompt if it has changed and there is no token yet. */
static void send_progress(server_choice *c)
{
    tandem_progress p;
    if (!c->request->ask.wake_on_prefill || c->n_tokens || !tandem_job_admitted(c->job)) return;
    tandem_job_progress(c->job, &p);
    if (p.prompt_done == c->n_done) return;
    c->n_done = p.prompt_done;
    c->sink.on_progress(c->sink.ctx, c, &p);
}

/* Sends the next piece of an echoed prompt; log-probabilities of a long prompt take long to write. Returns false
 * when more is left, or when the first token has not come yet. */
static bool echo_piece(server_choice *c, bool done)
{
    enum { PIECE = 64 };
    tandem_progress p;
    if (!c->request->f.text.echo || c->echoed) return true;
    tandem_job_progress(c->job, &p);
    if (!p.completion_tokens && !done) return false;
    size_t all = choice_prompt_logprobs(c) ? choice_prompt(c)->n : 0, left = all - c->n_echoed;
    size_t n = left < PIECE ? left : PIECE;
    c->sink.on_prompt(c->sink.ctx, c, c->n_echoed, n);
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
        const tandem_result *r = tandem_job_result(c->job); /* before the tokens: what is final has all of them */
        send_progress(c);
        if (!echo_piece(c, r)) break;
        int n = (int)tandem_poll(c->job, x, BATCH);
        if (n) send_progress(c);
        for (int i = 0; i < n; i++) take_token(c, &x[i]);
        taken += n;
        if (n == BATCH) continue;
        if (r) {
            finish(c);
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
    case TANDEM_FINISH_STOP_STRING: return c->n_calls ? "tool_calls" : "stop";
    case TANDEM_FINISH_LENGTH: return "length";
    default: return NULL;
    }
}

int32_t choice_reasoning_tokens(const server_choice *c) { return c->answer.n_reasoning; }

void choices_record(const server_choice *all, int n, server_record *out)
{
    for (int i = 0; i < n; i++) {
        const tandem_job *j = all[i].job;
        if (!j || !tandem_job_admitted(j) || !tandem_job_result(j)) continue;
        out->again[out->n_choices]    = all[i].index % (int)all[i].request->f.n != 0;
        out->choice[out->n_choices++] = tandem_job_result(j);
    }
}
