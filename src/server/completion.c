/* Requests that generate text. A worker reads the body, another one loads its images, another one compiles the grammar
 * if it is new, and the first job is submitted. From then on the I/O thread polls, formats and sends. The compiled
 * grammar is kept until all jobs are submitted, so that the I/O thread never compiles. A completion is freed when its
 * call has ended, no worker uses it and all its jobs are done, since the engine may read its memory until then. */
#include "base/clock.h"
#include "base/mem.h"
#include "server/inside.h"
#include "server/route.h"

#include <stdatomic.h>

enum { POLL = 64 }; /* tokens formatted between two checks of the client's buffer: up to 150 KB */

struct completion {
    work_item           item;
    server             *s;
    server_call        *call; /* NULL: the call ended */
    completion         *next, **prev;
    server_request      request;
    size_t              held_bytes;               /* bytes counted in server.held_bytes */
    size_t              of_body;                  /* bytes counted by the HTTP layer */
    char                tenant[KEY_NAME_MAX + 1]; /* empty: none */
    char                id[REQUEST_ID_MAX + 1];
    const char         *endpoint;
    const reply_format *format;
    double              since, put_s; /* clock_s */
    atomic_bool         client_left;  /* the client disconnected; read by the worker */
    bool                with_worker, begun, ended, delivered, lost;
    bool                noted; /* its text is that of its conversation */
    int                 status;
    server_error        why; /* status 0: no error */
    reply               reply;
    server_choice      *choice;
    int                 n_choices, n_submitted;
};

static void cancel_jobs(completion *x)
{
    request_drop_grammar(&x->request);
    for (int i = 0; i < x->n_choices; i++)
        if (x->choice[i].job) tandem_cancel(x->choice[i].job);
}

/* --- on a worker --------------------------------------------------------------------------------*/
/* Returns whether choice i is the first of its prompt. The others are submitted later and find the prompt in the
 * cache. */
static bool comes_first(const completion *x, int i) { return i % (int)x->request.f.n == 0; }

static bool submit_choices(completion *x, bool first)
{
    err e = {0};
    for (int i = 0; i < x->n_choices; i++) {
        if (comes_first(x, i) != first) continue;
        if (!choice_submit(&x->choice[i], x->s->engine, &e))
            return error_take(&x->why, &e, request_param(&x->request), false);
        x->n_submitted++;
    }
    if (x->n_submitted == x->n_choices) request_drop_grammar(&x->request);
    return true;
}

static bool open_choices(completion *x)
{
    const tok *t  = engine_tok(x->s->engine);
    bool       ok = true;
    x->choice     = mem_try_n((size_t)x->request.n_choices, sizeof *x->choice);
    if (!x->choice) return error_no_memory(&x->why);
    x->n_choices      = x->request.n_choices;
    x->request.ask.id = x->id;
    reply_init(&x->reply, x->format, &x->request, t, x->s->opt->model); /* freed where there are choices */
    x->reply.since = x->since;
    for (int i = 0; i < x->n_choices; i++) ok &= choice_init(&x->choice[i], &x->reply, i);
    return ok || error_no_memory(&x->why);
}

static bool hold_memory(completion *x)
{
    size_t max = x->s->opt->max_held_bytes, of_logprobs = request_logprob_bytes(&x->request, x->s->engine);
    if (of_logprobs > max)
        return error_set(
            &x->why, 400, request_is_text(&x->request) ? "logprobs" : "top_logprobs", NULL,
            "The log-probabilities of this request may need %zu MB, and all requests together have %zu MB. "
            "Please ask for fewer of them, fewer tokens, fewer answers, or a stream.",
            of_logprobs / 1000000, max / 1000000);
    x->held_bytes = request_bytes(&x->request) + of_logprobs + request_repeat_bytes(&x->request);
    return server_hold(x->s, x->held_bytes, max, &x->why);
}

static void free_request(completion *x)
{
    request_forget(&x->request);
    server_let_go(x->s, x->held_bytes);
    x->held_bytes = 0;
}

static void open_and_submit(completion *x)
{
    if (open_choices(x) && !atomic_load(&x->client_left)) submit_choices(x, true);
}

/* Lets the response of a conversation go on when the prompt is the text of the last request. */
static void continue_session(completion *x)
{
    server_request *r = &x->request;
    if (!x->s->opt->sessions || !r->session[0] || r->n_prompts != 1) return;
    if (r->media.prompt) {
        request_warn(r, "'session' is ignored: a conversation with images or videos cannot be saved");
        return;
    }
    r->ask.n_continued =
        live_sessions_continued(&x->s->sessions, x->tenant, r->session, r->prompt[0].ids, r->prompt[0].n);
}

static void submit_read(completion *x)
{
    if (!hold_memory(x)) {
        free_request(x);
        return;
    }
    continue_session(x);
    if (!request_needs_compiling(&x->request) && !x->request.ollama.loaded) open_and_submit(x);
}

static void read_and_submit(work_item *item)
{
    completion *x = (completion *)item;
    if (atomic_load(&x->client_left) || !request_read(&x->request, x->s->engine, str_of(x->tenant), &x->why))
        free_request(x);
    else if (!request_needs_media(&x->request))
        submit_read(x);
}

/* Runs on a worker for media; cancelled when the client disconnects. */
static void load_and_submit(work_item *item)
{
    completion *x = (completion *)item;
    if (atomic_load(&x->client_left) ||
        !media_load(&x->request, x->s->engine, &x->s->media, &x->client_left, &x->why) ||
        !request_read(&x->request, x->s->engine, str_of(x->tenant), &x->why))
        free_request(x);
    else
        submit_read(x);
}

/* Runs on the worker for grammars; cancelled when the client disconnects. */
static void compile_and_submit(work_item *item)
{
    completion *x = (completion *)item;
    if (atomic_load(&x->client_left) || !request_compile(&x->request, x->s->engine, &x->client_left, &x->why))
        free_request(x);
    else
        open_and_submit(x);
}

/* --- the end ------------------------------------------------------------------------------------*/
static bool jobs_are_done(const completion *x)
{
    for (int i = 0; i < x->n_choices; i++)
        if (x->choice[i].job && !tandem_job_result(x->choice[i].job)) return false;
    return true;
}

/* Makes the response the current text of its conversation, so that it can be saved. */
static void note_session(completion *x)
{
    const tandem_job *j = x->n_choices == 1 ? x->choice[0].job : NULL;
    if (x->noted) return;
    x->noted = true;
    if (!x->s->opt->sessions || !x->request.session[0] || !j || !tandem_job_admitted(j) || x->request.media.n) return;
    live_sessions_note(&x->s->sessions, x->tenant, x->request.session, j, &x->request.ask);
}

static void note_completion(completion *x)
{
    server_record r = {.id        = x->id,
                       .endpoint  = x->endpoint,
                       .tenant    = x->tenant[0] ? x->tenant : NULL,
                       .status    = x->status,
                       .stream    = x->request.f.stream,
                       .delivered = x->delivered,
                       .total_s   = clock_s() - x->since};
    choices_record(x->choice, x->n_choices, &r);
    server_note(x->s, &r);
}

static void free_completion(completion *x)
{
    *x->prev = x->next;
    if (x->next) x->next->prev = x->prev;
    x->s->n_completions--;
    for (int i = 0; i < x->n_choices; i++) choice_deinit(&x->choice[i]);
    if (x->n_choices) reply_deinit(&x->reply);
    mem_free(x->choice);
    free_request(x);
    server_body_is_freed(x->s, x->of_body);
    mem_free(x);
}

/* Frees the completion if nothing uses it any more. Returns whether it did. */
static bool is_over(completion *x)
{
    if (x->call || x->with_worker || !jobs_are_done(x)) return false;
    note_completion(x);
    note_session(x);
    free_completion(x);
    return true;
}

void completion_on_end(completion *x, bool delivered)
{
    atomic_store(&x->client_left, true);
    x->delivered = delivered;
    x->status    = http_call_status(x->call->http);
    x->call      = NULL;
    if (x->with_worker) x->with_worker = !work_withdraw(x->s->work, &x->item);
    if (!x->with_worker) cancel_jobs(x);
    is_over(x);
}

/* --- replies ------------------------------------------------------------------------------------*/

static int n_entered(const completion *x)
{
    int n = 0;
    for (int i = 0; i < x->n_choices; i++) n += x->choice[i].job && tandem_job_admitted(x->choice[i].job);
    return n;
}

/* Reports the usage of its responses with the error. */
static void refuse_begun(completion *x)
{
    call_refuse_begun(x->s, x->call, &x->why, x->choice, n_entered(x) ? x->n_choices : 0);
    x->ended = true;
}

static void begin_stream(completion *x)
{
    call_begin_events(x->s, x->call);
    x->begun = true;
    x->put_s = clock_s();
}

static bool refuse_in_stream(completion *x)
{
    buf out;
    if (!x->request.f.stream || !x->format->put_refused) return false;
    buf_init(&out, 1 << 16);
    bool told = x->format->put_refused(&out, x->s->opt->model, &x->why);
    if (told) {
        begin_stream(x);
        http_put(x->call->http, buf_str(&out));
        http_end(x->call->http);
    }
    buf_deinit(&out);
    return told;
}

static void refuse_completion(completion *x)
{
    cancel_jobs(x);
    if (!refuse_in_stream(x)) call_refuse(x->s, x->call, &x->why);
    x->ended = true;
}

static void put_out(completion *x)
{
    buf *out = &x->reply.out;
    if (!out->n) return;
    http_put(x->call->http, buf_str(out));
    buf_clear(out);
    x->put_s = clock_s();
}

/* Returns whether bytes were lost for lack of memory. Nothing is sent after them, so that no response looks
 * complete. */
static bool is_lost(completion *x)
{
    x->lost |= reply_lost(&x->reply, x->choice, x->n_choices);
    if (!x->lost) return false;
    buf_clear(&x->reply.out);
    if (!x->why.status) error_no_memory(&x->why);
    cancel_jobs(x);
    return true;
}

static void put_whole_out(completion *x)
{
    if (!is_lost(x) && x->begun) put_out(x);
}

static int n_unfinished(const completion *x)
{
    int n = 0;
    for (int i = 0; i < x->n_choices; i++) n += !x->choice[i].result;
    return n;
}

static void end_whole(completion *x)
{
    x->format->put_whole(&x->reply, x->choice, x->n_choices);
    if (is_lost(x)) {
        refuse_begun(x);
        return;
    }
    call_reply(x->s, x->call, 200, "application/json", buf_str(&x->reply.out));
    x->ended = true;
}

/* Ends the reply when all jobs have ended and at least one failed. */
static void end_failed(completion *x)
{
    if (!x->begun) {
        refuse_begun(x);
        return;
    }
    x->format->fail(&x->reply, x->choice, x->n_choices, &x->why);
    put_out(x);
    http_cut(x->call->http);
    x->ended = true;
}

/* Ends a stream. It may not have begun, if its job was admitted and finished between two polls. */
static void end_stream(completion *x)
{
    x->format->done(&x->reply, x->choice, x->n_choices);
    if (is_lost(x)) {
        end_failed(x);
        return;
    }
    if (!x->begun) begin_stream(x);
    put_out(x);
    http_end(x->call->http);
    x->ended = true;
}

static const err *of_engine(const tandem_error *from, err *to)
{
    to->code = (err_code)from->code;
    memcpy(to->text, from->text, sizeof to->text);
    return to;
}

/* --- polling ------------------------------------------------------------------------------------*/
static void set_error(completion *x, const server_choice *c)
{
    err                  e = {0};
    const tandem_result *r = c->result;
    if (x->why.status || choice_finish_reason(c)) return;
    if (r->finish == TANDEM_FINISH_TIMEOUT)
        error_set(&x->why, 504, NULL, "timeout", "The request timed out.");
    else if (r->finish == TANDEM_FINISH_CANCELLED)
        server_why_cancelled(x->s, &x->why);
    else
        error_take(&x->why, of_engine(&r->error, &e),
                   r->error.code == TANDEM_TOO_LARGE ? x->request.grammar_field : NULL, true);
    cancel_jobs(x); /* the others */
}

static bool is_behind(const completion *x)
{
    return x->begun && http_unsent(x->call->http) > x->s->opt->http.max_unsent;
}

static void note_tokens(completion *x, server_choice *c, int n)
{
    double now = clock_s();
    if (c->polled_s > 0)
        metrics_tokens(x->s->metrics, str_of(x->tenant), n, now - c->polled_s);
    else /* tokens that came together with the first one */
        metrics_tokens(x->s->metrics, str_of(x->tenant), n - 1, 0);
    c->polled_s = now;
}

/* Polls one choice. Returns false when the client reads too slowly. */
static bool poll_choice(completion *x, server_choice *c)
{
    bool streams = x->reply.stream;
    if (streams && tandem_job_admitted(c->job)) reply_begin(c);
    while (!c->result) {
        int n = choice_poll(c, POLL);
        if (n) note_tokens(x, c, n);
        if (streams) x->format->flush(c);
        if (choice_is_echoing(c)) { /* the others have their turn in between */
            put_whole_out(x);
            http_wake(x->s->http);
            return false;
        }
        if (c->result) set_error(x, c);
        if (n < POLL) break;
        put_whole_out(x);
        if (is_behind(x)) return false;
    }
    if (streams && c->result && !c->ended && !x->why.status) reply_end(c, x->choice, x->n_choices, !n_unfinished(x));
    put_whole_out(x);
    return !is_behind(x);
}

/* Returns whether the first choice of each prompt has a token or has ended. */
static bool first_have_read(const completion *x)
{
    for (int i = 0; i < x->n_choices; i++)
        if (comes_first(x, i) && !x->choice[i].n_tokens && !x->choice[i].result) return false;
    return true;
}

static bool is_admitted(const completion *x)
{
    return x->n_submitted == x->n_choices && tandem_job_admitted(x->choice[0].job);
}

static bool poll_all(completion *x)
{
    for (int i = 0; i < x->n_choices; i++)
        if (x->choice[i].job && !poll_choice(x, &x->choice[i])) return false;
    return true;
}

/* Polls all choices and sends their output. The first bytes of a stream are sent at admission, so that a refused
 * request gets a status of its own. */
static void advance_completion(completion *x)
{
    if (is_behind(x)) return;
    if (x->reply.stream && !x->begun && !x->why.status && is_admitted(x)) begin_stream(x);
    if (!poll_all(x)) return;
    if (x->n_submitted < x->n_choices && !x->why.status && first_have_read(x)) {
        if (!submit_choices(x, false)) cancel_jobs(x);
        advance_completion(x);
        return;
    }
    put_whole_out(x);
    if (!jobs_are_done(x) || (n_unfinished(x) && !x->why.status)) return;
    note_session(x); /* before the client learns of the end */
    if (x->why.status)
        end_failed(x);
    else if (x->reply.stream)
        end_stream(x);
    else
        end_whole(x);
}

void completion_pump(completion *x)
{
    if (x->with_worker || is_over(x) || x->ended || !x->call) return;
    advance_completion(x);
}

void completions_pump(server *s)
{
    for (completion *x = s->first, *next; x; x = next) {
        next = x->next;
        completion_pump(x);
    }
}

void completions_tick(server *s)
{
    double now = clock_s();
    completions_pump(s);
    for (completion *x = s->first; x; x = x->next) {
        if (!x->begun || x->ended || !x->call || now - x->put_s < s->opt->ping_s) continue;
        x->format->ping(&x->reply);
        put_out(x);
    }
}

void completions_cut(server *s)
{
    for (completion *x = s->first; x; x = x->next)
        if (!x->with_worker)
            cancel_jobs(x);
        else if (s->cut)
            atomic_store(&x->client_left, true); /* and on_read does the rest */
}

static bool uses_engine(completion *x, bool cut)
{
    if (x->with_worker || !jobs_are_done(x)) return true;
    if (!x->call || x->ended || !cut || !is_behind(x)) return x->call && !x->ended;
    http_cut(x->call->http);
    x->ended = true;
    return false;
}

bool completions_use_engine(server *s, bool cut)
{
    bool any = false;
    if (cut) completions_cut(s);
    for (completion *x = s->first; x; x = x->next) any |= uses_engine(x, cut);
    return any;
}

size_t completions_slots(const server *s, slot_view *out, size_t max)
{
    size_t n   = 0;
    double now = clock_s();
    for (const completion *x = s->first; x; x = x->next)
        for (int i = 0; !x->with_worker && i < x->n_choices && n < max; i++) {
            const server_choice *c = &x->choice[i];
            if (!c->job || !tandem_job_admitted(c->job) || tandem_job_result(c->job)) continue;
            out[n++] = (slot_view){.request_id    = x->id,
                                   .prompt_tokens = (int64_t)x->request.prompt[i / (int)x->request.f.n].n,
                                   .tokens        = c->n_tokens,
                                   .age_s         = now - x->since,
                                   .job           = c->job};
        }
    return n;
}

void completions_note_live(const server *s)
{
    metrics_clear_live(s->metrics);
    for (const completion *x = s->first; x; x = x->next)
        for (int i = 0; !x->with_worker && i < x->n_choices; i++) {
            const tandem_job *j = x->choice[i].job;
            if (j && !tandem_job_result(j)) metrics_note_live(s->metrics, str_of(x->tenant), tandem_job_admitted(j));
        }
}

/* --- a new one ----------------------------------------------------------------------------------*/
/* Gives the request to another worker: its media are to be loaded, or its grammar is not among the compiled ones. */
static void pass_on(completion *x, work_kind kind, void (*run)(work_item *item))
{
    uint64_t share = str_hash(str_of(x->tenant));
    if (work_is_full(x->s->work, kind, share)) {
        error_take(&x->why, &(err){.code = ERR_BUSY}, NULL, false);
        refuse_completion(x);
        return;
    }
    x->item.run    = run;
    x->item.kind   = kind;
    x->item.share  = share;
    x->with_worker = true;
    work_put(x->s->work, &x->item);
}

/* Replies to a request of Ollama's without a prompt. */
static void reply_loaded(completion *x)
{
    buf out;
    buf_init(&out, 1 << 16);
    ollama_put_loaded(&out, &x->request.ollama);
    call_reply(x->s, x->call, 200, "application/json", buf_str(&out));
    buf_deinit(&out);
    x->ended = true;
}

static void on_read(work_item *item)
{
    completion *x  = (completion *)item;
    x->with_worker = false;
    if (item->skipped) error_shutting_down(&x->why);
    if (!x->call || x->s->cut) cancel_jobs(x);
    if (is_over(x) || !x->call) return;
    x->call->warning = x->request.warning;
    if (x->s->cut && !x->n_submitted && !x->why.status)
        error_shutting_down(&x->why); /* cancelled before it was submitted */
    if (x->why.status)
        refuse_completion(x);
    else if (x->request.ollama.loaded)
        reply_loaded(x);
    else if (request_needs_media(&x->request))
        pass_on(x, WORK_MEDIA, load_and_submit);
    else if (!x->n_choices)
        pass_on(x, WORK_GRAMMAR, compile_and_submit);
    else
        advance_completion(x);
}

static void start_completion(server *s, server_call *c, int endpoint)
{
    server_error why;
    buf          body;
    if (!server_takes(s, WORK_QUICK, &why)) {
        call_refuse(s, c, &why);
        return;
    }
    completion *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    size_t of_body = http_take_body(c->http, &body);
    *x             = (completion){.item        = {.run = read_and_submit, .done = on_read},
                                  .s           = s,
                                  .call        = c,
                                  .next        = s->first,
                                  .prev        = &s->first,
                                  .endpoint    = c->route->path,
                                  .format      = c->route->format,
                                  .since       = c->since,
                                  .of_body     = of_body,
                                  .with_worker = true};
    memcpy(x->id, c->id, sizeof x->id);
    memcpy(x->tenant, c->tenant, sizeof x->tenant);
    request_init(&x->request, endpoint, &body);
    x->request.sees_all = c->sees_all;
    request_name(&x->request, s->opt->model, s->opt->aliases, s->opt->n_aliases);
    if (s->first) s->first->prev = &x->next;
    s->first      = x;
    c->completion = x;
    s->n_completions++;
    work_put(s->work, &x->item);
}

void completion_chat(server *s, server_call *c) { start_completion(s, c, FIELD_CHAT); }
void completion_text(server *s, server_call *c) { start_completion(s, c, FIELD_TEXT); }
void completion_native(server *s, server_call *c) { start_completion(s, c, FIELD_NATIVE); }
void completion_responses(server *s, server_call *c) { start_completion(s, c, FIELD_RESPONSES); }
void completion_messages(server *s, server_call *c) { start_completion(s, c, FIELD_MESSAGES); }
void completion_ollama_chat(server *s, server_call *c) { start_completion(s, c, FIELD_OLLAMA_CHAT); }
void completion_ollama_generate(server *s, server_call *c) { start_completion(s, c, FIELD_OLLAMA_GENERATE); }
