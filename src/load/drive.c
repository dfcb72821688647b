#include "load/drive.h"

#include "base/clock.h"
#include "base/mem.h"
#include "load/body.h"
#include "load/random.h"

#include <math.h>
#include <stdio.h>

enum { MAX_PAGE = 16 << 20, MAX_BODY = 128 << 20, MIN_ROW = 10, MAX_MODEL = 512 };
static const double look_s = 0.2; /* interval of calls to go_on */
static const double page_s = 15;  /* timeout of requests other than completions */

struct load_server {
    const load_ask *ask;
    http_url        url;
    http_client    *http;
    char            model[MAX_MODEL + 1];
    char            name[280];
    char            post[1100], metrics[1100];
    bool            has_counters;
};

/* --- one request, waited for --------------------------------------------------------------------*/
typedef struct {
    int  status;
    buf  body;
    bool done;
    err  why; /* ERR_NONE: complete */
} page;

static void page_head(void *ctx, const http_response *r) { ((page *)ctx)->status = r->status; }
static void page_body(void *ctx, str bytes) { buf_put(&((page *)ctx)->body, bytes.s, bytes.n); }
static void page_end(void *ctx, const err *why)
{
    page *p = ctx;
    p->done = true;
    if (why) p->why = *why;
}

/* Fetches a page. The caller frees its body, also after a failure. */
static bool get_page(load_server *s, const char *path, page *p, err *e)
{
    http_fetch_handler h = {page_head, page_body, page_end, p};
    *p                   = (page){0};
    buf_init(&p->body, MAX_PAGE);
    double      end = clock_s() + page_s;
    http_fetch *f   = http_fetch_start(s->http, path, s->ask->field, s->ask->n_fields, (str){0}, &h);
    while (!p->done && clock_s() < end) http_client_poll(s->http, end);
    if (!p->done) {
        http_fetch_cancel(f);
        return err_set(e, ERR_IO, "%s got no response within %g s", path, page_s);
    }
    if (p->why.code != ERR_NONE) {
        *e = p->why;
        return false;
    }
    return !p->body.failed || err_set(e, ERR_TOO_LARGE, "%s is larger than %d MiB", path, MAX_PAGE >> 20);
}

/* --- opening ------------------------------------------------------------------------------------*/
static bool take_model(load_server *s, const json_value *v, err *e)
{
    const json_value *list = json_get(v, "data");
    const json_value *id   = list && list->kind == JSON_ARRAY && list->n ? json_get(&list->item[0], "id") : NULL;
    if (!id || id->kind != JSON_STRING || !id->s.n || id->s.n > MAX_MODEL)
        return err_set(e, ERR_FORMAT, "its list of models is empty: use --model");
    for (size_t i = 0; i < id->s.n; i++)
        if ((unsigned char)id->s.s[i] < ' ' || (unsigned char)id->s.s[i] >= 0x7f)
            return err_set(e, ERR_FORMAT, "its first model has a name that cannot be printed: use --model");
    memcpy(s->model, id->s.s, id->s.n);
    return true;
}

static bool read_model(load_server *s, str body, err *e)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, MAX_PAGE);
    bool ok = json_parse(&v, &mem, body, NULL, NULL)
                  ? take_model(s, v, e)
                  : err_set(e, ERR_FORMAT, "its list of models is not JSON: it is not an OpenAI-compatible server");
    arena_deinit(&mem);
    return ok;
}

static bool ask_model(load_server *s, err *e)
{
    char path[1100];
    page p;
    snprintf(path, sizeof path, "%s/models", s->url.path);
    bool ok = get_page(s, path, &p, e);
    if (ok && p.status != 200) {
        buf said;
        buf_init(&said, 1024);
        load_error_text(&said, buf_str(&p.body));
        ok = err_set(e, ERR_INPUT, "%s is HTTP %d%s%.*s", path, p.status, said.n ? ": " : "", (int)said.n,
                     said.n ? said.p : "");
        buf_deinit(&said);
    }
    ok = ok && read_model(s, buf_str(&p.body), e);
    buf_deinit(&p.body);
    return ok;
}

static load_counters read_counters(load_server *s)
{
    page          p;
    err           e;
    load_counters c = {0};
    if (get_page(s, s->metrics, &p, &e) && p.status == 200) c = load_counters_read(buf_str(&p.body));
    buf_deinit(&p.body);
    return c;
}

/* The metrics are at /metrics, not below /v1. */
static void choose_paths(load_server *s)
{
    str root = str_of(s->url.path);
    if (!root.n) strcpy(s->url.path, "/v1");
    if (str_ends(root, "/v1")) root.n -= 3;
    snprintf(s->metrics, sizeof s->metrics, "%.*s/metrics", (int)root.n, root.s);
    snprintf(s->post, sizeof s->post, "%s/%s", s->url.path, s->ask->is_chat ? "chat/completions" : "completions");
    snprintf(s->name, sizeof s->name, "%s", s->url.authority);
}

bool load_server_open(load_server **out, const char *url, const load_ask *ask, err *e)
{
    load_server *s = xnew(load_server);
    *out           = NULL;
    s->ask         = ask;
    bool ok        = http_url_parse(&s->url, str_of(url), e);
    if (ok) choose_paths(s);
    ok = ok && http_client_open(&s->http, &s->url, &ask->http, e);
    if (ok && ask->model)
        snprintf(s->model, sizeof s->model, "%s", ask->model);
    else
        ok = ok && ask_model(s, e);
    if (ok) {
        s->has_counters = read_counters(s).reported;
        *out            = s;
        return true;
    }
    load_server_close(s);
    return err_wrap(e, "%s", url);
}

void load_server_close(load_server *s)
{
    if (!s) return;
    http_client_close(s->http);
    mem_free(s);
}

const char *load_server_model(const load_server *s) { return s->model; }
const char *load_server_name(const load_server *s) { return s->name; }

/* --- a run --------------------------------------------------------------------------------------*/
typedef struct drive drive;
typedef struct user  user;
struct user {
    drive      *d;
    user       *next; /* in the list of free users, or of those that go on */
    load_talk   talk;
    load_answer answer;
    http_fetch *fetch; /* NULL: free */
};

struct drive {
    load_server     *s;
    const load_plan *plan;
    load_run        *run;
    user            *users, *free, *going_on; /* going_on: got a response, and ask the next turn */
    int64_t          running, tokens;
    int              failed_in_a_row;
    double           start, next_due, next_look;
    uint64_t         state; /* random state of arrival times */
    buf              body;
    err              broken; /* ERR_NONE: no failure of the client itself */
};

static void note_reason(load_run *r, const err *why)
{
    int i = 0;
    r->failed++;
    while (i < r->n_reasons && strcmp(r->reason[i].why.text, why->text) != 0) i++;
    if (i >= LOAD_MAX_REASONS - 1) {
        i = LOAD_MAX_REASONS - 1;
        err_set(&r->reason[i].why, ERR_IO, "other reasons");
    } else {
        r->reason[i].why = *why;
    }
    if (i == r->n_reasons) r->n_reasons++;
    r->reason[i].n++;
}

static bool note_sample(load_run *r, const load_sample *x)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 256;
        void  *got = mem_try_resize(r->sample, cap * sizeof *r->sample);
        if (!got) return false;
        r->sample = got;
        r->cap    = cap;
    }
    r->sample[r->n++] = *x;
    return true;
}

static void user_head(void *ctx, const http_response *r) { load_answer_head(&((user *)ctx)->answer, r); }

static void user_body(void *ctx, str bytes)
{
    user *u = ctx;
    load_answer_body(&u->answer, bytes, http_client_now(u->d->s->http));
}

static void user_end(void *ctx, const err *why)
{
    user  *u       = ctx;
    drive *d       = u->d;
    err    e       = {0};
    bool   ok      = load_answer_end(&u->answer, http_client_now(d->s->http), why, &e);
    bool   goes_on = ok && load_talk_goes_on(&u->talk, d->s->ask);
    user **list    = goes_on ? &d->going_on : &d->free;
    if (goes_on) u->talk.end[u->talk.turn++] = u->talk.said.n;
    u->fetch = NULL;
    u->next  = *list;
    *list    = u;
    d->running--;
    if (ok) {
        d->failed_in_a_row = 0;
        d->tokens += u->answer.s.completion_tokens;
        if (!note_sample(d->run, &u->answer.s)) err_set(&d->broken, ERR_UNAVAILABLE, "no memory for the results");
    } else {
        d->failed_in_a_row++;
        note_reason(d->run, &e);
    }
    d->run->seconds = http_client_now(d->s->http) - d->start;
}

/* Sends the request for the user's turn, and removes the user, who is the first, from the list. */
static void launch_turn(drive *d, user **list, double due)
{
    user              *u = *list;
    const load_ask    *a = d->s->ask;
    http_fetch_handler h = {user_head, user_body, user_end, u};
    buf_clear(&d->body);
    if (!load_talk_put(&d->body, a, d->s->model, &u->talk, &d->broken)) return;
    *list = u->next;
    d->running++;
    d->run->asked++;
    load_answer_begin(&u->answer, due, &d->run->gaps);
    if (load_talk_goes_on(&u->talk, a)) u->answer.said = &u->talk.said;
    u->fetch = http_fetch_start(d->s->http, d->s->post, a->field, a->n_fields, buf_str(&d->body), &h);
}

static void launch(drive *d, double due)
{
    load_talk *t = &d->free->talk;
    t->number    = d->plan->first + (uint64_t)d->run->begun++;
    t->turn      = 0;
    buf_clear(&t->said);
    launch_turn(d, &d->free, due);
}

static bool is_open(const drive *d, double now)
{
    const load_plan *p = d->plan;
    if (p->requests && d->run->begun >= p->requests) return false;
    return !p->duration_s || now < d->start + p->duration_s;
}

static bool is_broken(const drive *d) { return d->broken.code != ERR_NONE; }

/* With a rate, a request that arrives while all users are busy waits, and the wait counts. */
static void launch_due(drive *d)
{
    double now = clock_s();
    while (d->going_on && !is_broken(d)) launch_turn(d, &d->going_on, now);
    while (d->free && is_open(d, d->plan->rate > 0 ? d->next_due : now) && !is_broken(d)) {
        if (d->plan->rate > 0 && d->next_due > now) break;
        launch(d, d->plan->rate > 0 ? d->next_due : now);
        if (d->plan->rate > 0) d->next_due += random_wait(&d->state, d->plan->rate);
    }
}

static double next_event(const drive *d)
{
    bool waits = d->plan->rate > 0 && d->free && is_open(d, d->next_due);
    return waits ? fmin(d->next_due, d->next_look) : d->next_look;
}

static bool look(drive *d)
{
    const load_plan *p   = d->plan;
    double           now = clock_s();
    if (d->failed_in_a_row >= MIN_ROW && d->failed_in_a_row >= 2 * p->users) d->run->gave_up = true;
    if (now < d->next_look && !d->run->gave_up) return true;
    d->next_look = now + look_s;
    if (p->go_on && !p->go_on(p->ctx, (int64_t)d->run->n + d->run->failed, d->running, d->tokens))
        d->run->stopped = true;
    return !d->run->stopped && !d->run->gave_up;
}

static void cut_all(drive *d)
{
    for (int i = 0; i < d->plan->users; i++)
        if (d->users[i].fetch) {
            http_fetch_cancel(d->users[i].fetch);
            d->run->cut++;
        }
}

static void keep_busy(drive *d)
{
    for (;;) {
        launch_due(d);
        bool more = is_open(d, d->plan->rate > 0 ? d->next_due : clock_s());
        if (is_broken(d) || (!d->running && !d->going_on && !more)) return;
        if (!http_client_poll(d->s->http, next_event(d))) d->next_look = 0;
        if (!look(d)) return;
    }
}

static load_counters since(load_counters now, load_counters then)
{
    return (load_counters){.reported = now.reported && then.reported && now.drafted >= then.drafted,
                           .rounds   = now.rounds - then.rounds,
                           .drafted  = now.drafted - then.drafted,
                           .accepted = now.accepted - then.accepted};
}

static void open_users(drive *d)
{
    d->users = xnew_n(user, (size_t)d->plan->users);
    for (int i = d->plan->users - 1; i >= 0; i--) {
        user *u = &d->users[i];
        load_answer_init(&u->answer);
        buf_init(&u->talk.said, MAX_BODY);
        u->d    = d;
        u->next = d->free;
        d->free = u;
    }
}

bool load_drive(load_server *s, const load_plan *plan, load_run *out, err *e)
{
    drive         d    = {.s = s, .plan = plan, .run = out, .state = plan->seed};
    load_counters then = s->has_counters ? read_counters(s) : (load_counters){0};
    *out               = (load_run){0};
    buf_init(&d.body, MAX_BODY);
    open_users(&d);
    d.start = d.next_due = clock_s();
    d.next_look          = d.start + look_s;
    keep_busy(&d);
    cut_all(&d);
    for (int i = 0; i < plan->users; i++) {
        load_answer_deinit(&d.users[i].answer);
        buf_deinit(&d.users[i].talk.said);
    }
    mem_free(d.users);
    buf_deinit(&d.body);
    if (s->has_counters) out->speculation = since(read_counters(s), then);
    if (!is_broken(&d)) return true;
    *e = d.broken;
    return false;
}

void load_run_deinit(load_run *r)
{
    mem_free(r->sample);
    mem_free(r->gaps.s);
    *r = (load_run){0};
}

/* --- the length of made-up prompts --------------------------------------------------------------*/
typedef struct {
    load_answer  answer;
    http_client *http;
    bool         done, ok;
    err          why;
} probe;

static void probe_head(void *ctx, const http_response *r) { load_answer_head(&((probe *)ctx)->answer, r); }
static void probe_body(void *ctx, str bytes) { load_answer_body(&((probe *)ctx)->answer, bytes, 0); }
static void probe_end(void *ctx, const err *why)
{
    probe *p = ctx;
    p->done  = true;
    p->ok    = load_answer_end(&p->answer, 0, why, &p->why);
}

bool load_measure_prompt(load_server *s, int n_words, int64_t *n_tokens, err *e)
{
    probe              p    = {0};
    load_gaps          gaps = {0};
    http_fetch_handler h    = {probe_head, probe_body, probe_end, &p};
    buf                body;
    buf_init(&body, MAX_BODY);
    load_answer_init(&p.answer);
    load_answer_begin(&p.answer, 0, &gaps);
    bool ok = load_body_put(&body, s->ask, s->model, 0, n_words, 1, e);
    if (ok) {
        http_fetch_start(s->http, s->post, s->ask->field, s->ask->n_fields, buf_str(&body), &h);
        while (!p.done) http_client_poll(s->http, clock_s() + 1);
        ok = p.ok;
        if (!ok && e) *e = p.why;
    }
    if (ok && !(*n_tokens = p.answer.s.prompt_tokens)) ok = err_set(e, ERR_FORMAT, "the server reports no usage");
    load_answer_deinit(&p.answer);
    mem_free(gaps.s);
    buf_deinit(&body);
    return ok;
}
