#include "server/live_inside.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/gpu.h"
#include "server/inside.h"
#include "server/query.h"
#include "server/route.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BODY = 1 << 18 };

/* --- rates --------------------------------------------------------------------------------------*/
void live_note(live_stats *l, double now, const tandem_stats *s)
{
    live_sample *x = &l->ring[l->n++ % LIVE_SAMPLES];
    *x             = (live_sample){.at                = now,
                                   .prompt_tokens     = s->prompt_tokens,
                                   .cached_tokens     = s->cached_tokens,
                                   .completion_tokens = s->completion_tokens,
                                   .steps             = s->steps,
                                   .rows              = s->rows};
    for (int i = 0; i < TANDEM_FINISHES; i++) x->finished += s->finished[i];
    memcpy(x->drafted, s->spec.drafted_by_method, sizeof x->drafted);
    memcpy(x->accepted, s->spec.accepted_by_method, sizeof x->accepted);
}

static const live_sample *sample_at(const live_stats *l, int64_t i) { return &l->ring[i % LIVE_SAMPLES]; }

void live_since(const live_stats *l, double window_s, live_sample *out, double *seconds)
{
    *out     = (live_sample){0};
    *seconds = 0;
    if (l->n < 2) return;
    const live_sample *now = sample_at(l, l->n - 1);
    int64_t            i = l->n - 2, first = l->n > LIVE_SAMPLES ? l->n - LIVE_SAMPLES : 0;
    while (i > first && now->at - sample_at(l, i)->at < window_s) i--;
    const live_sample *then = sample_at(l, i);
    *seconds                = now->at - then->at;
    *out                    = (live_sample){.at                = now->at,
                                            .prompt_tokens     = now->prompt_tokens - then->prompt_tokens,
                                            .cached_tokens     = now->cached_tokens - then->cached_tokens,
                                            .completion_tokens = now->completion_tokens - then->completion_tokens,
                                            .finished          = now->finished - then->finished,
                                            .steps             = now->steps - then->steps,
                                            .rows              = now->rows - then->rows};
    for (int m = 0; m < TANDEM_SPEC_METHODS; m++) {
        out->drafted[m]  = now->drafted[m] - then->drafted[m];
        out->accepted[m] = now->accepted[m] - then->accepted[m];
    }
}

/* --- one object ---------------------------------------------------------------------------------*/
static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static void put_rates(json_writer *w, const live_sample *x, double seconds)
{
    json_key(w, "rates");
    json_begin_object(w);
    json_member_real(w, "window_s", seconds);
    json_member_real(w, "prompt_tokens_per_s", ratio((double)x->prompt_tokens, seconds));
    json_member_real(w, "cached_tokens_per_s", ratio((double)x->cached_tokens, seconds));
    json_member_real(w, "completion_tokens_per_s", ratio((double)x->completion_tokens, seconds));
    json_member_real(w, "requests_per_s", ratio((double)x->finished, seconds));
    json_member_real(w, "steps_per_s", ratio((double)x->steps, seconds));
    json_member_real(w, "rows_per_step", ratio((double)x->rows, (double)x->steps));
    json_end(w);
}

static void put_requests(json_writer *w, const tandem_stats *s)
{
    json_key(w, "requests");
    json_begin_object(w);
    json_member_int(w, "running", s->running);
    json_member_int(w, "queued", s->queued);
    json_member_int(w, "submitted", s->submitted);
    json_member_int(w, "admitted", s->admitted);
    json_member_int(w, "refused", s->refused);
    json_key(w, "finished");
    json_begin_object(w);
    for (int i = TANDEM_FINISH_NONE + 1; i < TANDEM_FINISHES; i++)
        json_member_int(w, tandem_finish_name((tandem_finish)i), s->finished[i]);
    json_end(w);
    json_end(w);
    json_key(w, "tokens");
    json_begin_object(w);
    json_member_int(w, "prompt", s->prompt_tokens);
    json_member_int(w, "cached", s->cached_tokens);
    json_member_int(w, "completion", s->completion_tokens);
    json_end(w);
}

static void put_kv_class(json_writer *w, const tandem_kv_class *c)
{
    json_begin_object(w);
    json_member_str(w, "kind", c->is_state ? "state" : c->is_draft ? "draft" : c->window ? "sliding" : "full");
    json_member_int(w, "window", c->window);
    json_member_int(w, "held_bytes", (int64_t)c->held_bytes);
    json_member_int(w, "used_bytes", (int64_t)c->used_bytes);
    json_member_int(w, "pinned_bytes", (int64_t)c->pinned_bytes);
    json_member_int(w, "reserved_bytes", (int64_t)c->reserved_bytes);
    json_end(w);
}

static void put_kv(json_writer *w, const tandem_stats *s)
{
    json_key(w, "kv");
    json_begin_object(w);
    json_member_int(w, "bytes", (int64_t)s->kv_bytes);
    json_member_int(w, "pinned_bytes", (int64_t)s->kv_pinned_bytes);
    json_member_int(w, "reserved_bytes", (int64_t)s->kv_reserved_bytes);
    json_member_int(w, "cached_bytes", (int64_t)s->kv_cached_bytes);
    json_member_real(w, "pressure", ratio((double)s->kv_pinned_bytes, (double)s->kv_bytes));
    json_member_int(w, "prefix_hits", s->prefix_hits);
    json_member_int(w, "prefix_misses", s->prefix_misses);
    json_member_int(w, "prefix_evicted", s->prefix_evicted);
    json_member_int(w, "stored_bytes", (int64_t)s->disk.bytes);
    json_member_int(w, "parked_bytes", (int64_t)s->disk.parked_bytes);
    json_member_int(w, "stored_hits", s->disk.hits);
    json_member_int(w, "stored_misses", s->disk.misses);
    json_key(w, "classes");
    json_begin_array(w);
    for (int i = 0; i < s->n_kv_classes; i++) put_kv_class(w, &s->kv_class[i]);
    json_end(w);
    json_end(w);
}

void live_put_drafts(json_writer *w, int64_t rounds, int64_t drafted, int64_t accepted)
{
    json_member_int(w, "rounds", rounds);
    json_member_int(w, "drafted", drafted);
    json_member_int(w, "accepted", accepted);
    json_member_real(w, "acceptance_rate", ratio((double)accepted, (double)drafted));
    json_member_real(w, "acceptance_length", rounds ? 1 + ratio((double)accepted, (double)rounds) : 0);
}

static void put_counts(json_writer *w, const char *key, const int64_t *x, int n)
{
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < n; i++) json_put_int(w, x[i]);
    json_end(w);
}

/* Writes the draft tokens by position, up to the last position that was tried. */
static void put_positions(json_writer *w, const tandem_spec_counts *x)
{
    int n = TANDEM_MAX_DRAFT;
    while (n > 0 && !x->tried_at[n - 1]) n--;
    put_counts(w, "drafted_by_position", x->tried_at, n);
    put_counts(w, "accepted_by_position", x->right_at, n);
}

static void put_speculation(json_writer *w, const tandem_stats *s, const live_sample *recent)
{
    json_key(w, "speculation");
    json_begin_object(w);
    live_put_drafts(w, s->spec.rounds, s->spec.drafted, s->spec.accepted);
    json_member_int(w, "plain_rounds", s->spec.plain_rounds);
    put_positions(w, &s->spec);
    json_key(w, "methods");
    json_begin_object(w);
    for (int m = TANDEM_SPEC_OFF + 1; m < TANDEM_SPEC_METHODS; m++) {
        if (m == TANDEM_SPEC_AUTO) continue;
        json_key(w, tandem_method_name(m));
        json_begin_object(w);
        live_put_drafts(w, s->spec.rounds_by_method[m], s->spec.drafted_by_method[m], s->spec.accepted_by_method[m]);
        json_member_int(w, "recent_drafted", recent->drafted[m]);
        json_member_int(w, "recent_accepted", recent->accepted[m]);
        json_end(w);
    }
    json_end(w);
    json_key(w, "routes");
    json_begin_object(w);
    for (int i = 0; tandem_route_name(i); i++) json_member_int(w, tandem_route_name(i), s->routes[i]);
    json_end(w);
    json_end(w);
}

static void put_steps(json_writer *w, const tandem_stats *s)
{
    json_key(w, "steps");
    json_begin_object(w);
    json_member_int(w, "steps", s->steps);
    json_member_int(w, "failed", s->failed_steps);
    json_member_int(w, "rows", s->rows);
    json_member_int(w, "prompt_rows", s->prompt_rows);
    json_member_int(w, "prompt_steps", s->prompt_steps);
    json_member_real(w, "seconds", s->step_s);
    json_member_real(w, "busy_s", s->busy_s);
    put_counts(w, "buckets", s->step_bucket, TANDEM_STEP_BUCKETS);
    json_end(w);
}

/* Writes the phase of a response and its last rounds, each as [method, draft tokens, accepted ones]. */
static void put_progress(json_writer *w, const tandem_job *j)
{
    engine_round    round[ENGINE_ROUNDS_MAX];
    tandem_progress p;
    int64_t         n_rounds;
    int             n = engine_job_rounds(j, round, ENGINE_ROUNDS_MAX, &n_rounds);
    tandem_job_progress(j, &p);
    json_member_str(w, "phase", p.completion_tokens ? "decode" : "prefill");
    json_member_int(w, "prompt_done", p.prompt_done);
    json_member_int(w, "cached_tokens", p.cached_tokens);
    json_member_real(w, "decode_s", p.decode_s);
    json_member_int(w, "rounds", n_rounds);
    json_key(w, "last_rounds");
    json_begin_array(w);
    for (int i = 0; i < n; i++) {
        json_begin_array(w);
        json_put_str(w, str_of(tandem_method_name((int)round[i].method)));
        json_put_int(w, round[i].drafted);
        json_put_int(w, round[i].accepted);
        json_end(w);
    }
    json_end(w);
}

static void put_slots(json_writer *w, const server *s)
{
    slot_view slot[TANDEM_MAX_LANES];
    size_t    n = completions_slots(s, slot, TANDEM_MAX_LANES);
    json_key(w, "slots");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        json_begin_object(w);
        json_member_str(w, "request_id", slot[i].request_id);
        json_member_int(w, "prompt_tokens", slot[i].prompt_tokens);
        json_member_int(w, "tokens", slot[i].tokens);
        json_member_real(w, "age_s", slot[i].age_s);
        put_progress(w, slot[i].job);
        json_end(w);
    }
    json_end(w);
}

static int64_t resident_bytes(void)
{
    long long pages = 0;
    FILE     *f     = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%*s %lld", &pages) != 1) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Reads the memory of the machine, 0 where it is not known. */
static void host_memory(int64_t *all, int64_t *available)
{
    char      line[128];
    long long kib;
    FILE     *f = fopen("/proc/meminfo", "re");
    *all = *available = 0;
    if (!f) return;
    while (fgets(line, sizeof line, f) && !*available) {
        if (sscanf(line, "MemTotal: %lld", &kib) == 1) *all = kib * 1024;
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1) *available = kib * 1024;
    }
    fclose(f);
}

static void put_process(json_writer *w, const server *s)
{
    http_stats h;
    int64_t    host, available;
    http_get_stats(s->http, &h);
    host_memory(&host, &available);
    json_key(w, "process");
    json_begin_object(w);
    json_member_int(w, "resident_bytes", resident_bytes());
    json_member_int(w, "held_bytes", (int64_t)atomic_load(&s->held_bytes));
    json_member_int(w, "host_bytes", host);
    json_member_int(w, "host_available_bytes", available);
    json_member_real(w, "uptime_s", clock_s() - s->started);
    json_end(w);
    json_key(w, "http");
    json_begin_object(w);
    json_member_int(w, "connections", h.connections);
    json_member_int(w, "calls", h.calls);
    json_member_int(w, "accepted", h.accepted);
    json_member_int(w, "refused", h.refused);
    json_member_int(w, "bytes_in", h.bytes_in);
    json_member_int(w, "bytes_out", h.bytes_out);
    json_member_int(w, "stats_streams", s->live.n_streams);
    json_end(w);
}

/* Writes a number, or null for one that is not known. */
static void put_known(json_writer *w, const char *key, double x)
{
    json_key(w, key);
    if (x < 0)
        json_put_null(w);
    else
        json_put_real(w, x);
}

/* Writes the GPUs of the machine if the model runs on one. */
static void put_gpus(json_writer *w, server *s)
{
    gpu_state state[GPU_MAX];
    bool      uses = s->engine && !strcmp(engine_info(s->engine)->device, "cuda");
    if (uses && !s->live.gpus) s->live.gpus = gpu_watch_start(NULL);
    int n = s->live.gpus ? gpu_watch_get(s->live.gpus, state) : 0;
    json_key(w, "gpus");
    json_begin_array(w);
    for (int i = 0; i < n; i++) {
        json_begin_object(w);
        json_member_str(w, "name", state[i].name);
        put_known(w, "temperature_c", state[i].temperature_c);
        put_known(w, "power_w", state[i].power_w);
        put_known(w, "utilisation", state[i].utilisation);
        put_known(w, "memory_bytes", (double)state[i].memory_bytes);
        put_known(w, "memory_used_bytes", (double)state[i].memory_used_bytes);
        json_end(w);
    }
    json_end(w);
}

static void put_object(server *s, double window_s, buf *out)
{
    json_writer     w;
    tandem_stats    st;
    live_sample     recent;
    double          seconds;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    life_stats(s, &st);
    live_since(&s->live, window_s, &recent, &seconds);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_member_real(&w, "ts", (double)now.tv_sec + (double)(now.tv_nsec / 1000000) * 1e-3);
    json_member_str(&w, "model", s->opt->model);
    json_member_str(&w, "state", model_state_names[s->life.state]);
    json_member_bool(&w, "draining", s->draining || s->drained);
    json_member_bool(&w, "bench", s->bench != NULL);
    put_rates(&w, &recent, seconds);
    put_requests(&w, &st);
    put_kv(&w, &st);
    put_speculation(&w, &st, &recent);
    put_steps(&w, &st);
    put_slots(&w, s);
    metrics_put_latency(s->metrics, &w);
    put_process(&w, s);
    put_gpus(&w, s);
    json_end(&w);
}

/* --- streams ------------------------------------------------------------------------------------*/
struct live_stream {
    server      *s;
    server_call *call;
    double       interval_s, next_at, window_s;
    live_stream *next;
};

static void free_stream(void *owner)
{
    live_stream *x = owner, **at = &x->s->live.first;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    x->s->live.n_streams--;
    mem_free(x);
}

/* The event of a moment. Streams with the same window share it. */
typedef struct {
    buf    text;
    double window_s; /* 0: not written yet */
} live_event;

/* Skips the event if the client reads too slowly. */
static void send_one(live_stream *x, live_event *e)
{
    if (http_unsent(x->call->http) > MAX_BODY) return;
    if (e->window_s != x->window_s) {
        buf_clear(&e->text);
        buf_puts(&e->text, "data: ");
        put_object(x->s, x->window_s, &e->text);
        buf_puts(&e->text, "\n\n");
        e->window_s = x->window_s;
    }
    if (!e->text.failed) http_put(x->call->http, buf_str(&e->text));
}

void live_tick(server *s)
{
    enum { EARLY_MS = 20 }; /* tolerance, so that four ticks make a second */
    tandem_stats st;
    double       now = clock_s();
    live_event   e   = {0};
    life_stats(s, &st);
    live_note(&s->live, now, &st);
    buf_init(&e.text, MAX_BODY);
    for (live_stream *x = s->live.first; x; x = x->next) {
        if (now < x->next_at - EARLY_MS * 1e-3) continue;
        x->next_at = now + x->interval_s;
        send_one(x, &e);
    }
    buf_deinit(&e.text);
}

void live_deinit(server *s) { gpu_watch_stop(s->live.gpus); }

void live_end(server *s)
{
    while (s->live.first) {
        live_stream *x = s->live.first;
        server_call *c = x->call;
        http_put(c->http, STR("event: end\ndata: {\"reason\":\"draining\"}\n\n"));
        http_end(c->http);
        c->on_end = NULL;
        free_stream(x);
    }
}

static void start_stream(server *s, server_call *c, double window_s, double interval_s)
{
    live_stream *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    *x            = (live_stream){.s          = s,
                                  .call       = c,
                                  .interval_s = interval_s,
                                  .next_at    = clock_s() + interval_s,
                                  .window_s   = window_s,
                                  .next       = s->live.first};
    s->live.first = x;
    s->live.n_streams++;
    c->on_end = free_stream;
    c->owner  = x;
    call_begin_events(s, c);
    live_event e = {0};
    buf_init(&e.text, MAX_BODY);
    send_one(x, &e);
    buf_deinit(&e.text);
}

static bool wants_stream(const server_call *c, int64_t asked)
{
    str accept = http_call_field(c->http, "Accept");
    if (str_is(http_call_request(c->http)->method, "HEAD")) return false;
    return asked || (accept.s && memmem(accept.s, accept.n, "text/event-stream", 17));
}

static bool reply_stats(server *s, server_call *c, server_error *why)
{
    str     query    = http_call_request(c->http)->query;
    int64_t window_s = 5, interval_ms = 1000, stream = 0;
    if (!query_int(query, "window_s", 1, LIVE_MAX_WINDOW_S, &window_s, why) ||
        !query_int(query, "interval_ms", 250, 60000, &interval_ms, why) ||
        !query_int(query, "stream", 0, 1, &stream, why))
        return false;
    if (!wants_stream(c, stream)) {
        buf body;
        buf_init(&body, MAX_BODY);
        put_object(s, (double)window_s, &body);
        call_reply(s, c, 200, "application/json", buf_str(&body));
        buf_deinit(&body);
        return true;
    }
    if (s->draining) return error_shutting_down(why);
    if (s->live.n_streams >= LIVE_MAX_STREAMS)
        return error_set(why, 429, NULL, "too_many_streams", "There are %d streams already.", LIVE_MAX_STREAMS);
    start_stream(s, c, (double)window_s, (double)interval_ms / 1e3);
    return true;
}

void live_endpoint(server *s, server_call *c)
{
    server_error why;
    if (!reply_stats(s, c, &why)) call_refuse(s, c, &why);
}
