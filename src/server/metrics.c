#include "server/metrics.h"

#include "base/mem.h"
#include "server/keys.h"
#include "spec/counts.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { MAX_BOUNDS = 24, MAX_STATUS = 600 };

/* --- histograms ---------------------------------------------------------------------------------*/
typedef struct {
    int64_t count[MAX_BOUNDS + 1]; /* by the first bound that is not under it; the last: beyond all */
    double  sum;
} histogram;

typedef struct {
    const double *at;
    int           n;
} bounds;

static const double token_bounds[]   = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                        0.05,   0.1,     0.25,   0.5,   1,      2.5,   5};
static const double request_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                        2.5,   5,      10,    25,   50,    100,  250, 500,  1000};
static const double size_bounds[]    = {1, 10, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000};
_Static_assert(COUNT(request_bounds) <= MAX_BOUNDS && COUNT(token_bounds) <= MAX_BOUNDS, "room for each");

typedef enum {
    H_FIRST_TOKEN,
    H_BETWEEN_TOKENS,
    H_TOTAL,
    H_QUEUE,
    H_PREFILL,
    H_DECODE,
    H_PROMPT_SIZE,
    H_ANSWER_SIZE,
    HISTOGRAMS,
} histogram_kind;

static const struct {
    const char *name, *help;
    bounds      bounds;
} histograms[HISTOGRAMS] = {
#define B(x)                                                                                                           \
    {                                                                                                                  \
        x, COUNT(x)                                                                                                    \
    }
    [H_FIRST_TOKEN] = {"time_to_first_token_seconds", "Time from the submission of a response to its first token.",
                       B(request_bounds)},
    [H_BETWEEN_TOKENS] =
        {"inter_token_latency_seconds",
         "Time between two tokens of a response; tokens delivered together share the time since the previous ones.",
         B(token_bounds)},
    [H_TOTAL]   = {"e2e_request_latency_seconds", "Time from the head of a request to the last byte of its response.",
                   B(request_bounds)},
    [H_QUEUE]   = {"request_queue_time_seconds", "Time from the submission of a response to its admission.",
                   B(request_bounds)},
    [H_PREFILL] = {"request_prefill_time_seconds", "Time from the admission of a response to its first token.",
                   B(request_bounds)},
    [H_DECODE]  = {"request_decode_time_seconds", "Time from the first token of a response to its last.",
                   B(request_bounds)},
    [H_PROMPT_SIZE] = {"request_prompt_tokens", "Prompt tokens; counted once for several responses to one prompt.",
                       B(size_bounds)},
    [H_ANSWER_SIZE] = {"request_generation_tokens", "Generated tokens.", B(size_bounds)},
#undef B
};

/* Counters: one set for the whole server, one for each tenant. */
typedef struct {
    histogram h[HISTOGRAMS];
    int64_t   replies[MAX_STATUS];
    int64_t   disconnected; /* clients that did not wait for the end */
    int64_t   longest;      /* tokens of a prompt and its answer */
} sheet;

typedef struct {
    char         name[KEY_NAME_MAX + 1];
    uint64_t     hash, used_at; /* hash of the name; n_uses at its last use */
    sheet        sheet;
    tandem_stats stats; /* its requests: counters of ended ones; running and queued */
} tenant;

struct metrics {
    int64_t  sessions[METRICS_SESSION_KINDS];
    sheet    all;
    tenant  *tenants[METRICS_MAX_TENANTS];
    int      n_tenants;
    uint64_t n_uses;
    double   start;
};

static void observe(sheet *s, histogram_kind k, double x, int64_t times)
{
    const bounds *b = &histograms[k].bounds;
    int           i = 0;
    while (i < b->n && x > b->at[i]) i++;
    s->h[k].count[i] += times;
    s->h[k].sum += x * (double)times;
}

/* --- tenants ------------------------------------------------------------------------------------*/
static int find_tenant(const metrics *m, str name)
{
    uint64_t hash = str_hash(name);
    for (int i = 0; i < m->n_tenants; i++)
        if (m->tenants[i]->hash == hash && str_is(name, m->tenants[i]->name)) return i;
    return -1;
}

static tenant *new_tenant(str name)
{
    tenant *x = mem_try(sizeof *x);
    if (!x) return NULL;
    snprintf(x->name, sizeof x->name, "%.*s", STR_ARG(name));
    x->hash = str_hash(name);
    return x;
}

static int quietest(const metrics *m)
{
    int at = 0;
    for (int i = 1; i < m->n_tenants; i++)
        if (m->tenants[i]->used_at < m->tenants[at]->used_at) at = i;
    return at;
}

/* Returns the numbers of this tenant, new ones if need be. NULL: there is no name, or no memory. */
static tenant *tenant_of(metrics *m, str name)
{
    int i = name.n ? find_tenant(m, name) : -1;
    if (!name.n) return NULL;
    if (i < 0) {
        tenant *x = new_tenant(name);
        if (!x) return NULL;
        i = m->n_tenants < METRICS_MAX_TENANTS ? m->n_tenants++ : quietest(m);
        mem_free(m->tenants[i]);
        m->tenants[i] = x;
    }
    m->tenants[i]->used_at = ++m->n_uses;
    return m->tenants[i];
}

metrics *metrics_new(void)
{
    metrics        *m = xnew(metrics);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->start = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    return m;
}

void metrics_free(metrics *m)
{
    for (int i = 0; m && i < m->n_tenants; i++) mem_free(m->tenants[i]);
    mem_free(m);
}

void metrics_tokens(metrics *m, str name, int n, double seconds)
{
    if (n <= 0) return;
    tenant *x = tenant_of(m, name);
    observe(&m->all, H_BETWEEN_TOKENS, seconds / n, n);
    if (x) observe(&x->sheet, H_BETWEEN_TOKENS, seconds / n, n);
}

void metrics_count_session(metrics *m, metrics_session kind) { m->sessions[kind]++; }

void metrics_reply(metrics *m, str name, int status)
{
    if (status <= 0 || status >= MAX_STATUS) return;
    tenant *x = tenant_of(m, name);
    m->all.replies[status]++;
    if (x) x->sheet.replies[status]++;
}

static void note_answer(sheet *s, const tandem_usage *u, bool shares_prompt)
{
    int64_t length = (int64_t)u->prompt_tokens + u->completion_tokens;
    if (length > s->longest) s->longest = length;
    observe(s, H_QUEUE, u->queue_s, 1);
    if (!shares_prompt) observe(s, H_PROMPT_SIZE, u->prompt_tokens, 1);
    observe(s, H_ANSWER_SIZE, u->completion_tokens, 1);
    if (!u->completion_tokens) return;
    observe(s, H_FIRST_TOKEN, u->queue_s + u->prefill_s, 1);
    observe(s, H_PREFILL, u->prefill_s, 1);
    observe(s, H_DECODE, u->decode_s, 1);
}

static void note_request(sheet *s, const server_record *r)
{
    s->disconnected += !r->delivered;
    if (!r->n_choices) return;
    observe(s, H_TOTAL, r->total_s, 1);
    for (int i = 0; i < r->n_choices; i++) note_answer(s, &r->choice[i]->usage, r->shares_prompt[i]);
}

/* Counts as the engine does for all. */
static void count_answer(tandem_stats *s, const tandem_result *r, bool shares_prompt)
{
    s->finished[r->finish]++;
    if (!shares_prompt) {
        s->prompt_tokens += r->usage.prompt_tokens;
        s->cached_tokens += r->usage.cached_tokens;
    }
    s->completion_tokens += r->usage.completion_tokens;
    spec_counts_add(&s->spec, &r->usage.spec);
}

void metrics_request(metrics *m, const server_record *r)
{
    tenant *x = tenant_of(m, r->tenant ? str_of(r->tenant) : (str){0});
    note_request(&m->all, r);
    if (!x) return;
    note_request(&x->sheet, r);
    for (int i = 0; i < r->n_choices; i++) count_answer(&x->stats, r->choice[i], r->shares_prompt[i]);
}

void metrics_clear_live(metrics *m)
{
    for (int i = 0; i < m->n_tenants; i++) m->tenants[i]->stats.running = m->tenants[i]->stats.queued = 0;
}

void metrics_note_live(metrics *m, str name, bool running)
{
    tenant *x = tenant_of(m, name);
    if (!x) return;
    x->stats.running += running;
    x->stats.queued += !running;
}

/* --- the page -----------------------------------------------------------------------------------*/
static const char *const prefixes[] = {"tandem_", "vllm:"};
enum { OURS = 1, BOTH = 2 }; /* how many of them a name has */
#define LLAMACPP "llamacpp:"

typedef struct {
    buf *out;
    buf  model; /* model_name="..." */
} page;

static void head(page *p, const char *prefix, const char *name, const char *type, const char *help)
{
    buf_printf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

/* more: further labels, without the braces; "" for none. */
static void sample(page *p, const char *prefix, const char *name, const char *suffix, const char *more, double x)
{
    buf_printf(p->out, "%s%s%s{%.*s%s%s} ", prefix, name, suffix, (int)p->model.n, p->model.p, more[0] ? "," : "",
               more);
    buf_printf(p->out, x == rint(x) ? "%.0f\n" : "%.12g\n", x);
}

static void single(page *p, int n_prefixes, const char *type, const char *name, const char *help, double x)
{
    for (int i = 0; i < n_prefixes; i++) {
        head(p, prefixes[i], name, type, help);
        sample(p, prefixes[i], name, "", "", x);
    }
}

/* A value of a label, and the value of the metric for it. */
typedef struct {
    const char *value; /* NULL: omitted */
    double      x;
} labelled;

static void several(page *p, int n_prefixes, const char *type, const char *name, const char *help, const char *label,
                    const labelled *l, size_t n)
{
    char more[96];
    for (int i = 0; i < n_prefixes; i++) {
        head(p, prefixes[i], name, type, help);
        for (size_t k = 0; k < n; k++) {
            if (!l[k].value) continue;
            snprintf(more, sizeof more, "%s=\"%s\"", label, l[k].value);
            sample(p, prefixes[i], name, "", more, l[k].x);
        }
    }
}

static void put_histogram(page *p, int n_prefixes, const char *name, const char *help, const bounds *b,
                          const int64_t *count, double sum)
{
    char more[48];
    for (int i = 0; i < n_prefixes; i++) {
        int64_t so_far = 0;
        head(p, prefixes[i], name, "histogram", help);
        for (int k = 0; k <= b->n; k++) {
            so_far += count[k];
            if (k < b->n)
                snprintf(more, sizeof more, "le=\"%.10g\"", b->at[k]);
            else
                snprintf(more, sizeof more, "le=\"+Inf\"");
            sample(p, prefixes[i], name, "_bucket", more, (double)so_far);
        }
        sample(p, prefixes[i], name, "_sum", "", sum);
        sample(p, prefixes[i], name, "_count", "", (double)so_far);
    }
}

static void put_answers(page *p, const tandem_stats *s)
{
    const int64_t *f          = s->finished;
    labelled       finished[] = {{"stop", (double)(f[TANDEM_FINISH_STOP] + f[TANDEM_FINISH_STOP_STRING])},
                                 {"length", (double)f[TANDEM_FINISH_LENGTH]},
                                 {"abort", (double)f[TANDEM_FINISH_CANCELLED]},
                                 {"timeout", (double)f[TANDEM_FINISH_TIMEOUT]},
                                 {"error", (double)f[TANDEM_FINISH_ERROR]}};
    single(p, BOTH, "gauge", "num_requests_running", "Running responses.", s->running);
    single(p, BOTH, "gauge", "num_requests_waiting", "Responses waiting for admission.", s->queued);
    several(p, BOTH, "counter", "request_success_total", "Finished responses by finish reason.", "finished_reason",
            finished, COUNT(finished));
    single(p, BOTH, "counter", "num_preemptions_total", "Responses preempted after admission: always 0.", 0);
}

static void put_admission(page *p, const tandem_stats *s)
{
    single(p, OURS, "counter", "requests_submitted_total", "Responses submitted and accepted.", (double)s->submitted);
    single(p, OURS, "counter", "requests_refused_total", "Responses refused because the queue was full.",
           (double)s->refused);
    single(p, OURS, "counter", "requests_admitted_total", "Admitted responses.", (double)s->admitted);
}

static void put_tokens(page *p, const tandem_stats *s)
{
    single(p, BOTH, "counter", "prompt_tokens_total",
           "Prompt tokens of admitted responses; counted once for several responses to one prompt.",
           (double)s->prompt_tokens);
    single(p, BOTH, "counter", "generation_tokens_total", "Generated tokens.", (double)s->completion_tokens);
    single(p, BOTH, "counter", "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
           (double)s->prompt_tokens);
    single(p, BOTH, "counter", "prefix_cache_hits_total", "Prompt tokens found in the prefix cache and not run again.",
           (double)s->cached_tokens);
}

static void put_cache(page *p, const tandem_stats *s)
{
    labelled bytes[]   = {{"total", (double)s->kv_bytes},
                          {"pinned", (double)s->kv_pinned_bytes},
                          {"reserved", (double)s->kv_reserved_bytes},
                          {"cached", (double)s->kv_cached_bytes}};
    labelled lookups[] = {{"hit", (double)s->prefix_hits}, {"miss", (double)s->prefix_misses}};
    double   used      = s->kv_bytes ? (double)s->kv_pinned_bytes / (double)s->kv_bytes : 0;
    single(p, BOTH, "gauge", "kv_cache_usage_perc", "Share of the K/V pages used by running responses, 0 to 1.", used);
    several(p, OURS, "gauge", "kv_cache_bytes",
            "K/V memory: total, used by running responses, reserved for them, and held by the prefix cache.", "state",
            bytes, COUNT(bytes));
    several(p, OURS, "counter", "prefix_cache_lookups_total", "Prompts looked up in the prefix cache.", "result",
            lookups, COUNT(lookups));
    single(p, OURS, "counter", "prefix_cache_evicted_total", "Entries evicted from the prefix cache.",
           (double)s->prefix_evicted);
    single(p, OURS, "counter", "kv_pages_wiped_total", "Freed K/V pages that --wipe-pages overwrote with zeros.",
           (double)s->kv_wiped);
}

static void put_graphs(page *p, const tandem_stats *s)
{
    single(p, OURS, "gauge", "graphs", "Recorded steps and drafts of a GPU.", (double)s->graphs);
    single(p, OURS, "gauge", "graph_bytes", "Device memory of recorded steps and drafts.", (double)s->graph_bytes);
    single(p, OURS, "counter", "graphs_recorded_total", "Steps and drafts recorded since the start, by no request.",
           (double)s->graphs_recorded);
}

static void put_tiers(page *p, const tandem_disk_stats *s)
{
    labelled bytes[]   = {{"disk", (double)s->bytes}, {"memory", (double)s->parked_bytes}};
    labelled lookups[] = {
        {"hit", (double)(s->hits)}, {"miss", (double)(s->misses - s->skipped)}, {"skipped", (double)s->skipped}};
    labelled moved[] = {{"read", (double)s->read_bytes}, {"written", (double)s->written_bytes}};
    labelled files[] = {{"written", (double)s->written},
                        {"evicted", (double)s->evicted},
                        {"removed", (double)s->removed},
                        {"failed", (double)s->failures}};
    several(p, OURS, "gauge", "stored_bytes", "Bytes of stored texts, on the disk and in host memory.", "tier", bytes,
            COUNT(bytes));
    single(p, OURS, "gauge", "stored_entries", "Files in the cache directory.", (double)s->entries);
    several(p, OURS, "counter", "stored_lookups_total",
            "Prompts looked up in the stored texts; skipped: computing is faster than reading.", "result", lookups,
            COUNT(lookups));
    several(p, OURS, "counter", "stored_moved_bytes_total", "Bytes of stored texts read and written.", "direction",
            moved, COUNT(moved));
    several(p, OURS, "counter", "stored_files_total",
            "Files of stored texts: written, evicted for room, removed as damaged, failed to write.", "event", files,
            COUNT(files));
}

/* Writes the positions up to the longest draft so far. */
static void put_places(page *p, int n_prefixes, const char *name, const char *help, const int64_t *tried,
                       const int64_t *x)
{
    labelled place[TANDEM_MAX_DRAFT];
    char     number[TANDEM_MAX_DRAFT][8];
    size_t   n = 0;
    for (size_t i = 0; i < TANDEM_MAX_DRAFT; i++) {
        snprintf(number[i], sizeof number[i], "%zu", i);
        place[i] = (labelled){number[i], (double)x[i]};
        if (tried[i]) n = i + 1;
    }
    several(p, n_prefixes, "counter", name, help, "position", place, n);
}

static void put_speculation(page *p, const tandem_stats *s)
{
    labelled method[TANDEM_SPEC_METHODS];
    int      n_methods = 0;
    for (int i = 0; i < TANDEM_SPEC_METHODS; i++)
        if (i != TANDEM_SPEC_AUTO)
            method[n_methods++] = (labelled){tandem_method_name(i), (double)s->spec.rounds_by_method[i]};
    single(p, BOTH, "counter", "spec_decode_num_drafts_total", "Rounds with draft tokens.", (double)s->spec.rounds);
    single(p, BOTH, "counter", "spec_decode_num_draft_tokens_total", "Draft tokens.", (double)s->spec.drafted);
    single(p, BOTH, "counter", "spec_decode_num_accepted_tokens_total", "Accepted draft tokens.",
           (double)s->spec.accepted);
    put_places(p, BOTH, "spec_decode_num_accepted_tokens_per_pos_total",
               "Accepted draft tokens by position in the draft.", s->spec.tried_at, s->spec.right_at);
    put_places(p, OURS, "spec_decode_num_tried_tokens_per_pos_total", "Draft tokens by position in the draft.",
               s->spec.tried_at, s->spec.tried_at);
    single(p, OURS, "counter", "plain_rounds_total", "Rounds without draft tokens.", (double)s->spec.plain_rounds);
    several(p, OURS, "counter", "rounds_total", "Rounds by method.", "method", method, n_methods);
}

static void put_routes(page *p, const tandem_stats *s)
{
    labelled reason[TANDEM_MAX_ROUTES];
    for (int i = 0; i < TANDEM_MAX_ROUTES; i++) reason[i] = (labelled){tandem_route_name(i), (double)s->routes[i]};
    several(p, OURS, "counter", "route_rounds_total", "Rounds by the reason for their method.", "reason", reason,
            COUNT(reason));
}

static void put_steps(page *p, const tandem_stats *s)
{
    double at[TANDEM_STEP_BUCKETS - 1];
    for (int i = 0; i < TANDEM_STEP_BUCKETS - 1; i++) at[i] = ldexp(0.000125, i);
    put_histogram(p, OURS, "step_seconds", "Steps of the model.", &(bounds){at, TANDEM_STEP_BUCKETS - 1},
                  s->step_bucket, s->step_s);
    put_histogram(p, OURS, "grammar_mask_seconds", "CPU time of grammar masks per step.",
                  &(bounds){at, TANDEM_STEP_BUCKETS - 1}, s->mask_bucket, s->mask_s);
    single(p, OURS, "counter", "failed_steps_total", "Steps that failed on the device.", (double)s->failed_steps);
    single(p, OURS, "counter", "step_rows_total", "Rows of all steps.", (double)s->rows);
    single(p, OURS, "counter", "step_prompt_rows_total", "Prompt rows of all steps.", (double)s->prompt_rows);
    single(p, OURS, "counter", "prompt_steps_total", "Steps with prompt rows.", (double)s->prompt_steps);
    single(p, OURS, "gauge", "engine_busy_seconds", "Age of the current step; 0 when idle.", s->busy_s);
}

static void put_histograms(page *p, const sheet *s)
{
    for (int i = 0; i < HISTOGRAMS; i++)
        put_histogram(p, BOTH, histograms[i].name, histograms[i].help, &histograms[i].bounds, s->h[i].count,
                      s->h[i].sum);
}

static void put_replies(page *p, const sheet *s)
{
    labelled status[MAX_STATUS];
    char     code[MAX_STATUS][8];
    for (size_t i = 0; i < MAX_STATUS; i++) {
        snprintf(code[i], sizeof code[i], "%zu", i);
        status[i] = (labelled){s->replies[i] ? code[i] : NULL, (double)s->replies[i]};
    }
    several(p, OURS, "counter", "http_requests_total", "Responses by HTTP status.", "code", status, MAX_STATUS);
    single(p, OURS, "counter", "http_disconnects_total", "Clients that disconnected before the end of their response.",
           (double)s->disconnected);
}

static void put_http(page *p, const metrics_view *v)
{
    single(p, OURS, "gauge", "http_connections", "Open connections.", v->http.connections);
    single(p, OURS, "counter", "http_accepted_total", "Accepted connections.", (double)v->http.accepted);
    single(p, OURS, "counter", "http_refused_total", "Connections refused by a limit.", (double)v->http.refused);
    single(p, OURS, "counter", "http_evicted_total", "Connections without a request closed in favour of others.",
           (double)v->http.evicted);
    single(p, OURS, "counter", "http_bad_requests_total", "Requests that were not valid HTTP.",
           (double)v->http.bad_requests);
    single(p, OURS, "counter", "http_timeouts_total", "Connections closed by a timeout.", (double)v->http.timeouts);
    single(p, OURS, "counter", "http_received_bytes_total", "Bytes received from clients.", (double)v->http.bytes_in);
    single(p, OURS, "counter", "http_sent_bytes_total", "Bytes sent to clients.", (double)v->http.bytes_out);
}

static void put_server(page *p, const metrics *m, const metrics_view *v)
{
    labelled version = {tandem_version(), 1};
    several(p, OURS, "gauge", "build_info", "Version of the program.", "version", &version, 1);
    single(p, OURS, "gauge", "start_time_seconds", "Start time of the server, seconds since 1970.", m->start);
    single(p, OURS, "gauge", "draining", "1 while the server refuses new requests.", v->draining);
    single(p, OURS, "gauge", "model_loaded", "0 while the model is loading or parked.", v->loaded);
}

/* --- llama.cpp's names ---------------------------------------------------------------------------*/
static double ratio(double x, double y) { return y > 0 ? x / y : 0; }

/* Appends the numbers that llama.cpp's server has, under its names. whole: those of all requests, else of one key. */
static void put_llamacpp(page *p, const sheet *h, const tandem_stats *s, bool whole)
{
    double prompt = (double)(s->prompt_tokens - s->cached_tokens), predicted = (double)s->completion_tokens;
    double prompt_s = h->h[H_PREFILL].sum, predicted_s = h->h[H_DECODE].sum, steps = (double)s->steps;
    const struct {
        const char *type, *name, *help;
        double      x;
        bool        of_all; /* not known of one key */
    } all[] = {
        {"counter", "prompt_tokens_total", "Prompt tokens that were run.", prompt, false},
        {"counter", "prompt_tokens_cached_total", "Prompt tokens that were cached.", (double)s->cached_tokens, false},
        {"counter", "prompt_seconds_total", "Time from the admission of responses to their first tokens.", prompt_s,
         false},
        {"gauge", "prompt_tokens_seconds", "Prompt tokens per second since the start.", ratio(prompt, prompt_s), false},
        {"counter", "tokens_predicted_total", "Generated tokens.", predicted, false},
        {"counter", "tokens_predicted_seconds_total", "Time from first tokens to last tokens.", predicted_s, false},
        {"gauge", "predicted_tokens_seconds", "Generated tokens per second since the start.",
         ratio(predicted, predicted_s), false},
        {"gauge", "requests_processing", "Running responses.", s->running, false},
        {"gauge", "requests_deferred", "Responses waiting for admission.", s->queued, false},
        {"counter", "n_tokens_max", "Tokens of the longest prompt with its response.", (double)h->longest, false},
        {"counter", "n_decode_total", "Steps of the model.", steps, true},
        {"gauge", "n_busy_slots_per_decode", "Mean number of responses per step since the start.",
         ratio((double)(s->spec.rounds + s->spec.plain_rounds), steps), true},
        {"counter", "spec_decode_num_draft_tokens_total", "Draft tokens.", (double)s->spec.drafted, false},
        {"counter", "spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", (double)s->spec.accepted, false},
        {"counter", "spec_decode_num_drafts_total", "Rounds with draft tokens.", (double)s->spec.rounds, false},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        if (all[i].of_all && !whole) continue;
        head(p, LLAMACPP, all[i].name, all[i].type, all[i].help);
        sample(p, LLAMACPP, all[i].name, "", "", all[i].x);
    }
    head(p, LLAMACPP, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted draft tokens by position in the draft.");
    for (int i = 0; i < TANDEM_MAX_DRAFT && s->spec.tried_at[i]; i++) {
        char more[32];
        snprintf(more, sizeof more, "position=\"%d\"", i);
        sample(p, LLAMACPP, "spec_decode_num_accepted_tokens_per_pos_total", "", more, (double)s->spec.right_at[i]);
    }
}

/* --- each key ------------------------------------------------------------------------------------*/
static double n_refused(const tenant *x) { return (double)(x->sheet.replies[429] + x->sheet.replies[503]); }

static double n_finished(const tenant *x)
{
    double n = 0;
    for (int i = 0; i < TANDEM_FINISHES; i++) n += (double)x->stats.finished[i];
    return n;
}

static double n_running(const tenant *x) { return x->stats.running; }
static double n_waiting(const tenant *x) { return x->stats.queued; }
static double prompt_tokens(const tenant *x) { return (double)x->stats.prompt_tokens; }
static double cached_tokens(const tenant *x) { return (double)x->stats.cached_tokens; }
static double generation_tokens(const tenant *x) { return (double)x->stats.completion_tokens; }

static void put_keys(page *p, const metrics *m)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const tenant *x);
    } of_key[] = {
        {"key_requests_running", "gauge", "Running responses of each API key.", n_running},
        {"key_requests_waiting", "gauge", "Responses of each API key waiting for admission.", n_waiting},
        {"key_requests_finished_total", "counter", "Finished responses of each API key.", n_finished},
        {"key_requests_refused_total", "counter", "Responses 429 and 503 to each API key.", n_refused},
        {"key_prompt_tokens_total", "counter", "Prompt tokens of each API key.", prompt_tokens},
        {"key_cached_tokens_total", "counter", "Prompt tokens of each API key found in the prefix cache.",
         cached_tokens},
        {"key_generation_tokens_total", "counter", "Generated tokens of each API key.", generation_tokens},
    };
    char more[128];
    for (size_t k = 0; k < COUNT(of_key); k++) {
        head(p, prefixes[0], of_key[k].name, of_key[k].type, of_key[k].help);
        for (int i = 0; i < m->n_tenants; i++) {
            snprintf(more, sizeof more, "key=\"%s\"", m->tenants[i]->name);
            sample(p, prefixes[0], of_key[k].name, "", more, of_key[k].value(m->tenants[i]));
        }
    }
}

/* --- whole pages ---------------------------------------------------------------------------------*/
static void put_label(buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            buf_puts(out, "\\n");
        else {
            if (*c == '"' || *c == '\\') buf_putc(out, '\\');
            buf_putc(out, *c);
        }
    }
    buf_putc(out, '"');
}

static void put_parts(page *p, const model_parts *all)
{
    head(p, prefixes[0], "model_info", "gauge", "The model and its drafters; 1 if loaded.");
    for (int i = 0; i <= all->n_drafters; i++) {
        const model_part *x = &all->part[i];
        const struct {
            const char *name, *value;
        } label[] = {{"role", x->role},
                     {"id", x->id},
                     {"path", x->path},
                     {"family", x->family},
                     {"fingerprint", x->fingerprint}};
        buf more;
        buf_init(&more, 1 << 16);
        for (size_t k = 0; k < COUNT(label); k++) {
            if (k) buf_putc(&more, ',');
            put_label(&more, label[k].name, label[k].value ? label[k].value : "");
        }
        buf_putc(&more, 0);
        if (!more.failed) sample(p, prefixes[0], "model_info", "", more.p, !strcmp(x->state, "loaded"));
        buf_deinit(&more);
    }
}

static void put_sessions(page *p, const metrics *m)
{
    labelled kind[] = {{"save", (double)m->sessions[METRICS_SESSION_SAVED]},
                       {"restore", (double)m->sessions[METRICS_SESSION_RESTORED]},
                       {"delete", (double)m->sessions[METRICS_SESSION_DELETED]}};
    several(p, OURS, "counter", "session_operations_total", "Sessions saved, restored and deleted.", "operation", kind,
            COUNT(kind));
}

static void put_all(page *p, const metrics *m, const metrics_view *v)
{
    const tandem_stats *s = &v->engine;
    put_answers(p, s);
    put_admission(p, s);
    put_tokens(p, s);
    put_cache(p, s);
    put_graphs(p, s);
    put_sessions(p, m);
    put_tiers(p, &s->disk);
    put_speculation(p, s);
    put_routes(p, s);
    put_histograms(p, &m->all);
    put_steps(p, s);
    put_replies(p, &m->all);
    put_http(p, v);
    put_server(p, m, v);
    single(p, OURS, "gauge", "stats_streams", "Clients of the live statistics stream.", v->streams);
    put_parts(p, &v->parts);
    if (m->n_tenants) put_keys(p, m);
    if (v->llamacpp) put_llamacpp(p, &m->all, s, true);
}

static void put_own(page *p, const metrics *m, const metrics_view *v, const sheet *own, const tandem_stats *s)
{
    put_answers(p, s);
    put_tokens(p, s);
    put_speculation(p, s);
    put_histograms(p, own);
    put_replies(p, own);
    put_server(p, m, v);
    if (v->llamacpp) put_llamacpp(p, own, s, false);
}

void metrics_write(const metrics *m, const metrics_view *v, buf *out)
{
    static const sheet        no_sheet;
    static const tandem_stats no_stats;
    page                      p = {.out = out};
    int                       i = find_tenant(m, v->tenant);
    buf_init(&p.model, 1 << 16);
    put_label(&p.model, "model_name", v->model);
    if (!v->tenant.n)
        put_all(&p, m, v);
    else if (i >= 0)
        put_own(&p, m, v, &m->tenants[i]->sheet, &m->tenants[i]->stats);
    else
        put_own(&p, m, v, &no_sheet, &no_stats);
    buf_deinit(&p.model);
}

/* --- as JSON ------------------------------------------------------------------------------------*/
static void put_json_histogram(json_writer *w, const char *key, const histogram *h, const bounds *b)
{
    json_key(w, key);
    json_begin_object(w);
    json_key(w, "bounds_s");
    json_begin_array(w);
    for (int i = 0; i < b->n; i++) json_put_real(w, b->at[i]);
    json_end(w);
    json_key(w, "counts");
    json_begin_array(w);
    for (int i = 0; i <= b->n; i++) json_put_int(w, h->count[i]);
    json_end(w);
    json_end(w);
}

void metrics_put_latency(const metrics *m, json_writer *w)
{
    static const struct {
        const char    *key;
        histogram_kind kind;
    } shown[] = {{"first_token", H_FIRST_TOKEN}, {"between_tokens", H_BETWEEN_TOKENS}, {"total", H_TOTAL}};
    json_key(w, "latency");
    json_begin_object(w);
    for (size_t i = 0; i < COUNT(shown); i++)
        put_json_histogram(w, shown[i].key, &m->all.h[shown[i].kind], &histograms[shown[i].kind].bounds);
    json_end(w);
}
