#include "sched/sched.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "sched/errand.h"
#include "sched/inside.h"
#include "sched/masks.h"
#include "sched/queue.h"
#include "sched/share.h"
#include "sched/tier.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

_Static_assert((int)ROUTE_REASONS <= (int)TANDEM_MAX_ROUTES, "a count for each");
/* The error of a request that does not fit into memory. It reveals nothing about other requests. */
static const char busy_text[] = "the server is busy; try again";

enum { MAX_KINDS = 64 };

typedef struct {
    bool                   there;
    tandem_drafter_info    info;
    const checkpoint_list *files;
} drafter_shown;

struct sched {
    sched_options opt;
    job_maker     maker;
    job_scratch   scratch;
    pthread_t     thread;
    bool          started;
    bell          bell;       /* rung for a new request, an errand or a cancellation */
    atomic_int    n_live;     /* unfinished jobs; grows under the lock only */
    atomic_llong  busy_since; /* clock_ns when the thread began its current work; 0: it sleeps */

    pthread_mutex_t lock;
    pthread_cond_t  stopped_now;
    tandem_job     *inbox, **inbox_end; /* under the lock, as all of these: submitted and not yet seen by the engine */
    accounts        accounts;
    uint64_t        n_submitted;
    int64_t         n_refused;
    bool            closing, stopped, settings_changed;
    double          stop_at; /* when closing: what still runs then is cancelled */
    settings        settings;
    tandem_stats    shown;
    drafter_shown   drafter[TANDEM_MAX_DRAFTERS];
    errands         errands; /* has a lock of its own, as the next one */
    routing_recent  recent;

    /* the engine's thread */
    double          now;
    settings        set; /* a copy, for the step */
    job_queue       queue;
    tandem_job    **running; /* [max_lanes]: by priority, then by age */
    int             n_running;
    policy_classes *classes; /* measurements of drafts by kind of request */
    spec_lane     **idle;    /* [max_lanes] */
    int             n_idle;
    tandem_job    **in_step; /* [max_lanes]: the jobs of `part` */
    spec_part      *part;    /* [max_lanes] */
    int             n_parts;
    int             rows, prompt_rows; /* without draft tokens */
    double          load_deadline; /* clock_s until which the next request waits for the disk; INFINITY: none does */
    double          row_s;         /* seconds of a prompt row, a moving average */
    share_pace      pace;
    mask_budget     masks;
    int             calm; /* steps for which the last choice, no drafts, stays valid */
    tier           *tier; /* NULL: none */
    soft_cache     *soft;
    double          encoder_used;  /* clock_s of the last picture; 0: the encoder is parked */
    bool            told;          /* some reader is to be woken */
    unsigned        drafters_seen; /* spec_drafter_changes of what is shown */
    tandem_stats    stats;

    struct { /* scratch of a step, [max_lanes] each */
        tandem_job **order;
        spec_lane  **lane;
        int         *rank, *pending, *rows, *part, *smallest;
        bool        *ready, *asked;
        route_lane  *route_lane;
        route       *route;
    } by_lane;
};

/* --- the end of a job ---------------------------------------------------------------------------*/
static void fill_usage(sched *s, tandem_job *j)
{
    tandem_usage *u     = &j->result.usage;
    double        first = j->first_token > 0 ? j->first_token : s->now;
    u->prefill_s        = first - j->admitted;
    u->decode_s         = s->now - first;
    u->spec             = *spec_lane_stats(j->lane);
}

static double share_of_pool(const sched *s, size_t bytes)
{
    size_t all = spec_kv_bytes_total(s->opt.spec);
    return all ? (double)bytes / (double)all : -1;
}

static double kv_pressure(const sched *s) { return share_of_pool(s, spec_kv_pinned(s->opt.spec)); }

/* Copies that of a drafter that is open; leaves out as it is for others. */
static void copy_fingerprint(const sched *s, spec_method m, char out[FINGERPRINT_MAX])
{
    drafter_view v;
    if (spec_drafter_view(s->opt.spec, m, &v) && v.state == DRAFTER_OPEN) memcpy(out, v.fingerprint, FINGERPRINT_MAX);
}

/* choice: why this route; NULL at the end, and where there was no choice. */
static void log_route(sched *s, const tandem_job *j, bool end, const policy_options *choice)
{
    const tandem_usage *u = &j->result.usage;
    routing_record      r = {.end                = end,
                             .ctx_len            = (int32_t)j->prompt.n + j->n_kept,
                             .active_count       = s->n_running,
                             .kv_usage_ratio     = kv_pressure(s),
                             .projected_kv_after = share_of_pool(s, spec_kv_reserved(s->opt.spec)),
                             .to                 = j->trace.last,
                             .n_changes          = j->trace.n_changes,
                             .tokens             = j->n_kept,
                             .drafted            = u->spec.drafted,
                             .accepted           = u->spec.accepted,
                             .seconds            = u->decode_s};
    if (choice) r.choice = *choice;
    memcpy(r.rounds, u->spec.rounds_by_method, sizeof r.rounds);
    memcpy(r.request_id, j->id, sizeof r.request_id);
    copy_fingerprint(s, SPEC_DFLASH, r.dflash);
    copy_fingerprint(s, SPEC_MTP, r.mtp);
    routing_recent_put(&s->recent, &r);
    routing_log_put(s->opt.log, &r);
}

static void count_running(sched *s, account *x, int more)
{
    pthread_mutex_lock(&s->lock);
    x->n_running += more;
    pthread_mutex_unlock(&s->lock);
}

static void leave_lane(sched *s, tandem_job *j)
{
    int i = 0;
    fill_usage(s, j);
    spec_counts_add(&s->stats.spec, &j->result.usage.spec);
    log_route(s, j, true, NULL);
    spec_lane_end(j->lane);
    if (s->tier) tier_store(s->tier, j);
    s->calm              = 0;
    s->idle[s->n_idle++] = j->lane;
    j->lane              = NULL;
    while (s->running[i] != j) i++;
    memmove(&s->running[i], &s->running[i + 1], (size_t)(--s->n_running - i) * sizeof *s->running);
    count_running(s, j->account, -1);
}

static drafter_shown view_drafter(const sched *s, spec_method m)
{
    drafter_view  v;
    drafter_shown x = {.there = spec_drafter_view(s->opt.spec, m, &v)};
    if (!x.there) return x;
    x.files = v.files;
    x.info  = (tandem_drafter_info){.method       = (tandem_method)m,
                                    .state        = (tandem_drafter_state)v.state,
                                    .name         = v.name,
                                    .path         = v.path,
                                    .shown        = v.shown,
                                    .quantisation = v.weight_bytes ? quant_name(v.type) : "",
                                    .weight_bytes = v.weight_bytes,
                                    .max_draft    = v.max_draft,
                                    .trained_ctx  = v.trained_ctx};
    snprintf(x.info.fingerprint, sizeof x.info.fingerprint, "%s", v.fingerprint);
    snprintf(x.info.problem, sizeof x.info.problem, "%s", v.problem);
    return x;
}

static void show_drafters(sched *s)
{
    unsigned now = spec_drafter_changes(s->opt.spec) + 1; /* 0: nothing was shown yet */
    if (s->drafters_seen == now) return;
    s->drafters_seen = now;
    for (int k = 0, i = 0; k < DRAFTER_KINDS; k++) {
        if (!drafter_kinds[k].matches) continue;
        assert(i < TANDEM_MAX_DRAFTERS);
        drafter_shown x = view_drafter(s, spec_chain_method((drafter_kind)k));
        pthread_mutex_lock(&s->lock);
        s->drafter[i++] = x;
        pthread_mutex_unlock(&s->lock);
    }
}

static void count_classes(const sched *s, tandem_stats *st)
{
    kv_class_use use[KV_MAX_CLASSES];
    _Static_assert((int)KV_MAX_CLASSES == (int)TANDEM_MAX_KV_CLASSES, "the same classes");
    st->n_kv_classes = spec_kv_classes(s->opt.spec, use);
    for (int i = 0; i < st->n_kv_classes; i++)
        st->kv_class[i] = (tandem_kv_class){.is_state       = use[i].is_state,
                                            .is_draft       = use[i].is_draft,
                                            .window         = use[i].window,
                                            .held_bytes     = use[i].held,
                                            .used_bytes     = use[i].used,
                                            .pinned_bytes   = use[i].pinned,
                                            .reserved_bytes = use[i].reserved};
}

/* Publishes the statistics, before a reader is woken for what was counted (promise 6). */
static void show_stats(sched *s)
{
    disk_stats on_disk;
    tier_get_stats(s->tier, &on_disk);
    show_drafters(s);
    kv_prefix_stats tree  = spec_prefix_stats(s->opt.spec);
    tandem_stats   *st    = &s->stats;
    st->running           = s->n_running;
    st->kv_bytes          = spec_kv_bytes_total(s->opt.spec);
    st->kv_pinned_bytes   = spec_kv_pinned(s->opt.spec);
    st->kv_reserved_bytes = spec_kv_reserved(s->opt.spec);
    st->kv_cached_bytes   = tree.bytes;
    count_classes(s, st);
    st->prefix_hits     = tree.hits;
    st->prefix_misses   = tree.misses;
    st->prefix_evicted  = tree.evicted;
    st->kv_wiped        = spec_kv_wiped(s->opt.spec);
    graph_counts graphs = spec_recordings(s->opt.spec);
    st->graphs          = graphs.n;
    st->graph_bytes     = graphs.bytes;
    st->graphs_recorded = (int64_t)graphs.recorded;
    st->disk            = (tandem_disk_stats){.entries       = on_disk.entries,
                                              .bytes         = on_disk.bytes,
                                              .parked_bytes  = on_disk.parked_bytes,
                                              .hits          = on_disk.hits,
                                              .misses        = on_disk.misses,
                                              .skipped       = on_disk.skipped,
                                              .read_bytes    = on_disk.read_bytes,
                                              .written_bytes = on_disk.written_bytes,
                                              .written       = on_disk.written,
                                              .evicted       = on_disk.evicted,
                                              .removed       = on_disk.removed,
                                              .failures      = on_disk.failures};
    pthread_mutex_lock(&s->lock);
    s->shown = *st;
    pthread_mutex_unlock(&s->lock);
}

/* Releases the soft tokens of spans that the job does not need: those before position n. */
static void drop_soft(sched *s, tandem_job *j, int32_t n)
{
    for (int i = 0; i < media_prompt_spans(j->media); i++) {
        const media_span *x = media_prompt_span(j->media, i);
        if (!j->held[i] || x->first + x->n > n) continue;
        soft_cache_drop(s->soft, j->held[i]);
        j->held[i] = NULL;
        j->soft[i] = NULL;
    }
}

/* Ends a job with result.finish set. Its lane and memory are free before its reader is woken. */
static void end_job(sched *s, tandem_job *j)
{
    if (j->lane)
        leave_lane(s, j);
    else
        j->result.usage.queue_s = s->now - j->submitted;
    drop_soft(s, j, INT32_MAX);
    tier_forget(s->tier, j);
    s->stats.finished[j->result.finish]++;
    s->told = true;
    pthread_mutex_lock(&s->lock);
    accounts_leave(&s->accounts, j->account);
    j->account = NULL;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_sub(&s->n_live, 1);
    show_stats(s);
    if (s->opt.ended) s->opt.ended(s->opt.ended_ctx, j);
    job_finish(j);
}

static void fail_job(sched *s, tandem_job *j, err_code code, const char *why)
{
    j->result.finish     = TANDEM_FINISH_ERROR;
    j->result.error.code = (tandem_code)code;
    snprintf(j->result.error.text, sizeof j->result.error.text, "%s", why);
    end_job(s, j);
}

/* --- requests come and go -----------------------------------------------------------------------*/
static void take_mail(sched *s)
{
    pthread_mutex_lock(&s->lock);
    tandem_job *mail = s->inbox;
    s->inbox         = NULL;
    s->inbox_end     = &s->inbox;
    bool cancel      = s->closing && s->now >= s->stop_at;
    if (s->settings_changed) s->set = s->settings, s->calm = 0;
    s->settings_changed = false;
    pthread_mutex_unlock(&s->lock);
    for (tandem_job *next; mail; mail = next) {
        next = mail->next;
        queue_put(&s->queue, mail);
    }
    for (int i = 0; cancel && i < s->n_running; i++) atomic_store(&s->running[i]->cancelled, true);
    for (tandem_job *j = queue_first(&s->queue); cancel && j; j = queue_after(j)) atomic_store(&j->cancelled, true);
}

/* Returns the finish of a job that was cancelled or has timed out, else TANDEM_FINISH_NONE. */
static tandem_finish finish_of_unwanted(const sched *s, const tandem_job *j)
{
    if (atomic_load_explicit(&j->cancelled, memory_order_relaxed)) return TANDEM_FINISH_CANCELLED;
    return s->now >= j->deadline ? TANDEM_FINISH_TIMEOUT : TANDEM_FINISH_NONE;
}

static void end_unwanted(sched *s)
{
    for (int i = s->n_running - 1; i >= 0; i--) {
        tandem_job *j = s->running[i];
        if ((j->result.finish = finish_of_unwanted(s, j))) end_job(s, j);
    }
    for (tandem_job *j = queue_first(&s->queue), *next; j; j = next) {
        next = queue_after(j);
        if (!(j->result.finish = finish_of_unwanted(s, j))) continue;
        queue_take(&s->queue, j);
        end_job(s, j);
    }
}

static void refuse_one(sched *s, tandem_job *j)
{
    queue_take(&s->queue, j);
    fail_job(s, j, ERR_BUSY, busy_text);
}

static bool is_over_key_limit(const sched *s, const tandem_job *last)
{
    return s->set.max_queue_per_key != SETTING_UNLIMITED && last->account->n_waiting > s->set.max_queue_per_key;
}

/* Refuses requests that could not be admitted: those that have waited long enough, and the last ones of queues that are
 * too long. */
static void refuse_waiting(sched *s)
{
    for (tandem_job *j = queue_first(&s->queue), *next; j; j = next) {
        next = queue_after(j);
        if (s->now >= j->queue_deadline) refuse_one(s, j);
    }
    for (tandem_job *last; (last = queue_last_of_longest(&s->queue));) {
        if (s->queue.n <= s->set.queue_max && !is_over_key_limit(s, last)) break;
        refuse_one(s, last);
    }
    pthread_mutex_lock(&s->lock);
    accounts_settle(&s->accounts);
    pthread_mutex_unlock(&s->lock);
}

/* --- admission ----------------------------------------------------------------------------------*/
static bool begin_job(sched *s, tandem_job *j, spec_lane *lane, err *e)
{
    size_t       reused;
    lane_request r = {.opt       = j->opt,
                      .prompt    = j->prompt.p,
                      .n_prompt  = j->prompt.n,
                      .max_new   = j->max_out > 0 ? j->max_out : 1,
                      .salt      = j->salt,
                      .media     = j->media,
                      .soft      = j->soft,
                      .guide     = j->compiled ? response_grammar_guide(j->compiled) : NULL,
                      .begins    = j->begins,
                      .classes   = s->classes,
                      .class_key = j->kind};
    tier_images(j, &r);
    if (!spec_lane_begin(lane, &r, &reused, e)) return false;
    tier_forget(s->tier, j);
    j->result.usage.cached_tokens = (int32_t)reused;
    job_note_progress(j, (int)reused);
    return true;
}

static void enter_lane(sched *s, tandem_job *j)
{
    int at = s->n_running;
    while (at > 0 && s->running[at - 1]->priority < j->priority) at--;
    memmove(&s->running[at + 1], &s->running[at], (size_t)(s->n_running++ - at) * sizeof *s->running);
    s->calm                 = 0;
    s->running[at]          = j;
    j->lane                 = s->idle[--s->n_idle];
    j->admitted             = clock_s();
    j->result.usage.queue_s = j->admitted - j->submitted;
    queue_note_admission(&s->queue, j->account);
    count_running(s, j->account, 1);
    s->stats.admitted++;
    if (!j->is_repeat) {
        s->stats.prompt_tokens += (int64_t)j->prompt.n;
        s->stats.cached_tokens += j->result.usage.cached_tokens;
    }
    show_stats(s);
    atomic_store(&j->entered, true);
}

/* Copies texts that the job may evict to the tiers. Returns false when more is to be copied after the next step. */
static bool make_room(sched *s, const tandem_job *j)
{
    bool ok = false;
    do ok = tier_make_room(s->tier, (int32_t)j->prompt.n + j->max_out, s->row_s);
    while (!ok && !s->n_running);
    return ok;
}

/* Admits requests in the order of the queue. One that does not fit blocks all others, unless nothing runs: then it
 * would wait without end. So does one whose prompt is being read from the disk, for a limited time; while all lanes are
 * in use, the prompt of the next one is read already. */
static void admit_jobs(sched *s)
{
    tandem_job *j;
    s->load_deadline = INFINITY;
    if (!s->n_idle && (j = queue_next(&s->queue, s->set.max_lanes_per_key))) tier_search(s->tier, j, s->now, s->row_s);
    while (s->n_idle && (j = queue_next(&s->queue, s->set.max_lanes_per_key))) {
        err why = {0};
        if (!tier_ready(s->tier, j, s->now, s->row_s)) {
            s->load_deadline = tier_deadline(j);
            return;
        }
        if (!make_room(s, j) || (s->n_running && !tier_import(s->tier, j))) return;
        bool ok = begin_job(s, j, s->idle[s->n_idle - 1], &why);
        if (!ok && why.code == ERR_BUSY && s->n_running) return;
        queue_take(&s->queue, j);
        if (ok)
            enter_lane(s, j);
        else
            fail_job(s, j, why.code, why.code == ERR_BUSY ? busy_text : why.text);
    }
}

/* --- a step -------------------------------------------------------------------------------------*/
/* Returns how many earlier running jobs of the same account still read their prompts. */
static int prompt_rank(const sched *s, int i)
{
    int n = 0;
    for (int k = 0; k < i; k++)
        n += s->running[k]->account == s->running[i]->account && spec_lane_pending(s->running[k]->lane) > 1;
    return n;
}

/* Sorts running jobs by the order in which prompts get rows: by priority, then the first prompt of every account, then
 * the second ones, so that the prompt of a new account does not wait for all prompts of an older one. */
static void order_prompts(const sched *s, tandem_job **out)
{
    int *rank = s->by_lane.rank;
    for (int i = 0; i < s->n_running; i++) {
        tandem_job *j = s->running[i];
        int         r = prompt_rank(s, i), at = i;
        for (; at > 0 && out[at - 1]->priority == j->priority && rank[at - 1] > r; at--) {
            out[at]  = out[at - 1];
            rank[at] = rank[at - 1];
        }
        out[at]  = j;
        rank[at] = r;
    }
}

/* Adds what a job's masks have taken since it was last counted; returns the steps of work. */
static int64_t count_masks(sched *s, tandem_job *j)
{
    int64_t work = spec_lane_mask_work(j->lane) - j->mask_work;
    j->mask_work += work;
    j->mask_s += (double)work * s->masks.unit_s;
    return work;
}

/* Lanes whose mask is not there yet sit out the step. */
static void prepare_masks(sched *s, tandem_job *const *order, bool *ready)
{
    spec_lane **lane = s->by_lane.lane;
    for (int i = 0; i < s->n_running; i++) lane[i] = order[i]->lane;
    masks_prepare(&s->masks, s->opt.spec, lane, s->n_running, ready);
    for (int i = 0; i < s->n_running; i++) count_masks(s, order[i]);
}

int sched_bucket(double seconds)
{
    int bucket = 0;
    while (bucket < TANDEM_STEP_BUCKETS - 1 && seconds * 1e3 >= ldexp(0.125, bucket)) bucket++;
    return bucket;
}

static void note_masks(sched *s, double step_s)
{
    int64_t work = 0;
    for (int i = 0; i < s->n_parts; i++) work += count_masks(s, s->in_step[i]);
    if (s->n_parts) masks_note_step(&s->masks, step_s, work);
    if (s->masks.spent_s <= 0) return;
    s->stats.mask_s += s->masks.spent_s;
    s->stats.mask_bucket[sched_bucket(s->masks.spent_s)]++;
}

static void end_costly(sched *s)
{
    if (s->set.max_mask_ms == SETTING_UNLIMITED) return;
    for (int i = s->n_running - 1; i >= 0; i--)
        if (s->running[i]->mask_s * 1e3 > (double)s->set.max_mask_ms)
            fail_job(s, s->running[i], ERR_TOO_LARGE,
                     "the grammar is too costly: its masks took longer than max_mask_ms");
}

/* Returns the number of lanes whose priority is not below that of the first prompt. */
static int count_equal(tandem_job *const *order, const int *pending, int n)
{
    int first = 0, end;
    while (first < n && pending[first] <= 1) first++;
    for (end = first; end < n && order[end]->priority == order[first]->priority;) end++;
    return end;
}

/* --- pictures -----------------------------------------------------------------------------------*/
static void hold_soft(tandem_job *j, int i, soft_tokens *x)
{
    j->held[i] = x;
    j->soft[i] = soft_cache_rows(x);
}

/* Computes the soft tokens of span i. Fails the job when that is not possible. */
static bool encode_span(sched *s, tandem_job *j, int i)
{
    const media_span *x    = media_prompt_span(j->media, i);
    soft_tokens      *room = soft_cache_room(x->hash, (size_t)x->n * (size_t)s->opt.model->n_embd);
    err               why  = {0};
    bool              ok   = room || err_set(&why, ERR_UNAVAILABLE, "no memory for the %d tokens of a picture", x->n);
    ok                     = ok && spec_encode(s->opt.spec, x, soft_cache_rows(room), &why);
    s->encoder_used        = clock_s();
    if (!ok) {
        soft_cache_drop(s->soft, room);
        fail_job(s, j, why.code, why.text);
        return false;
    }
    soft_cache_add(s->soft, room);
    hold_soft(j, i, room);
    return true;
}

static double encoder_deadline(const sched *s)
{
    return s->encoder_used > 0 ? s->encoder_used + (double)s->set.encoder_idle_s : INFINITY;
}

/* Frees the memory of an encoder of pictures that was not used for a while. */
static void park_encoder(sched *s)
{
    if (s->now < encoder_deadline(s)) return;
    spec_park_encoder(s->opt.spec);
    s->encoder_used = 0;
}

/* Gives lanes the soft tokens that their next rows need. Encodes at most one picture: the other lanes go on. */
static void prepare_pictures(sched *s)
{
    bool encoded = false;
    for (int k = 0; k < s->n_running; k++) {
        tandem_job *j = s->running[k];
        if (!j->media) continue;
        drop_soft(s, j, spec_lane_committed(j->lane).n_cached);
        int          i = spec_lane_next_span(j->lane);
        soft_tokens *x = i < 0 ? NULL : soft_cache_find(s->soft, media_prompt_span(j->media, i)->hash);
        if (x) hold_soft(j, i, x);
        if (i < 0 || x || encoded) continue;
        encoded = true;
        if (!encode_span(s, j, i)) k--;
    }
    if (encoded) s->now = clock_s();
}

static void share_out(sched *s)
{
    share_limits limits  = {.step_rows   = s->opt.step_tokens,
                            .max_stall_s = (double)s->set.max_stall_ms / 1e3,
                            .row_s       = s->row_s,
                            .rest        = s->pace.debt_s > 0};
    tandem_job **order   = s->by_lane.order;
    int         *pending = s->by_lane.pending, *rows = s->by_lane.rows, *smallest = s->by_lane.smallest;
    bool        *ready = s->by_lane.ready;
    order_prompts(s, order);
    prepare_masks(s, order, ready);
    for (int i = 0; i < s->n_running; i++) {
        smallest[i] = spec_lane_min_rows(order[i]->lane);
        pending[i]  = ready[i] && smallest[i] ? spec_lane_pending(order[i]->lane) : 0;
    }
    limits.n_equal = count_equal(order, pending, s->n_running);
    share_rows(&limits, pending, s->n_running, rows);
    s->rows    = share_whole(&limits, pending, smallest, s->n_running, rows);
    s->n_parts = s->prompt_rows = 0;
    for (int i = 0; i < s->n_running; i++) {
        if (!rows[i]) continue;
        tandem_job *j = order[i];
        spec_lane_limit(j->lane, j->max_out - j->n_kept);
        s->in_step[s->n_parts] = j;
        s->part[s->n_parts++]  = (spec_part){.lane = j->lane, .max_rows = rows[i]};
        if (pending[i] > 1) s->prompt_rows += rows[i];
    }
}

/* Returns whether the route is one that the log has. */
static bool note_route(sched *s, int part, const route *r)
{
    tandem_job   *j    = s->in_step[part];
    tandem_usage *u    = &j->result.usage;
    s->part[part].plan = r->plan;
    j->reason          = r->reason;
    s->stats.routes[r->reason]++;
    bool logged = routing_trace_note(&j->trace, r);
    if (r->reason == ROUTE_NO_ROOM && u->route_reason[0]) return logged; /* the end of an answer says nothing of it */
    u->route        = (int)r->plan.method;
    u->route_reason = route_reason_names[r->reason];
    return logged;
}

/* Collects the lanes of the step that may draft and their input for the router. The others are plain by request. */
static int ask_lanes(sched *s, route_lane *lane, int *part)
{
    static const route plain = {.reason = ROUTE_REQUEST};
    int                n = 0, first = share_first_lane(s->stats.steps, s->n_parts);
    for (int k = 0; k < s->n_parts; k++) {
        int          i = (first + k) % s->n_parts;
        policy_facts f;
        if (!spec_lane_can_draft(s->part[i].lane)) continue;
        if (s->in_step[i]->opt.spec.method == SPEC_OFF) {
            if (note_route(s, i, &plain)) log_route(s, s->in_step[i], false, NULL);
            continue;
        }
        spec_lane_facts(s->part[i].lane, &f);
        part[n]   = i;
        lane[n++] = (route_lane){.method   = f.method,
                                 .lane     = {.p = f.p, .room = f.room, .ctx = f.n_ctx},
                                 .n_prompt = f.n_prompt,
                                 .order    = (int64_t)s->in_step[i]->order};
    }
    return n;
}

/* Choosing for many lanes takes a percent or two of a step of a small model. Where drafts did not pay a moment ago they
 * do not pay now: the choice stays valid for a few steps, unless a lane joins or leaves. */
static void note_calm(sched *s, const route *out, int n)
{
    enum { SEVERAL = 2, STEPS = 3 };
    bool calm = n >= SEVERAL;
    for (int i = 0; i < n; i++) calm &= out[i].plan.method == SPEC_OFF && !out[i].plan.trial;
    s->calm = calm ? STEPS : 0;
}

/* Repeats the choice of the last step: all plans are plain. Returns false when a lane has had no choice yet. */
static bool stay_calm(sched *s)
{
    bool *asked = s->by_lane.asked;
    for (int i = 0; i < s->n_parts; i++) {
        asked[i] = spec_lane_can_draft(s->part[i].lane);
        if (asked[i] && !s->in_step[i]->result.usage.route_reason[0]) return false;
    }
    for (int i = 0; i < s->n_parts; i++)
        if (asked[i]) s->stats.routes[s->in_step[i]->reason]++;
    return true;
}

static void choose_plans(sched *s)
{
    route_lane *lane = s->by_lane.route_lane;
    route      *out  = s->by_lane.route;
    int        *part = s->by_lane.part, n;
    if (s->calm > 0 && s->calm-- && stay_calm(s)) return;
    n = ask_lanes(s, lane, part);
    if (n == 0) return;
    route_load load = {.kv_pressure = kv_pressure(s), .fixed_rows = s->rows - n, .max_rows = s->opt.step_tokens};
    route_lanes(lane, n, &load, spec_costs(s->opt.spec), &s->set, out);
    note_calm(s, out, n);
    for (int i = 0; i < n; i++) {
        policy_options choice;
        if (!note_route(s, part[i], &out[i])) continue;
        route_compare(lane, n, i, &load, spec_costs(s->opt.spec), out, &choice);
        log_route(s, s->in_step[part[i]], false, &choice);
    }
}

static void keep_tokens(sched *s, tandem_job *j)
{
    const spec_out *out    = spec_lane_out(j->lane);
    spec_scores     scores = spec_lane_scores(j->lane);
    job_keep_scores(j, &scores);
    if (out->problem) {
        j->result.finish = TANDEM_FINISH_ERROR;
        j->result.error  = (tandem_error){.code = (tandem_code)out->problem_code};
        snprintf(j->result.error.text, sizeof j->result.error.text, "%s", out->problem);
        return;
    }
    if (!j->first_token) job_note_progress(j, (int)j->prompt.n - (out->n ? 0 : spec_lane_pending(j->lane)));
    if (out->n == 0) return;
    int n = job_keep(j, out, &s->scratch);
    spec_lane_keep(j->lane, n);
    s->stats.completion_tokens += n;
    if (!j->first_token) j->first_token = s->now;
    assert(j->result.finish || !spec_lane_full(j->lane));
}

static void note_step(sched *s, double took)
{
    enum { ENOUGH = 16 };
    s->stats.steps++;
    s->stats.step_s += took;
    s->stats.rows += s->rows;
    s->stats.prompt_rows += s->prompt_rows;
    s->stats.prompt_steps += s->prompt_rows > 0;
    s->stats.step_bucket[sched_bucket(took)]++;
    if (s->prompt_rows >= ENOUGH) s->row_s = share_average(s->row_s, took / s->rows);
    share_note(&s->pace, took, s->prompt_rows, s->rows - s->prompt_rows, s->row_s);
}

static void wake_owner(sched *s)
{
    if (s->told && s->opt.wake) s->opt.wake(s->opt.wake_ctx);
    s->told = false;
}

/* Publishes the tokens of the step. While steps are short, readers are woken for several steps together. */
static void deliver_tokens(sched *s, double took)
{
    double quiet_s = took < s->opt.wake_s ? s->opt.wake_s : 0;
    show_stats(s);
    for (int i = 0; i < s->n_parts; i++) {
        tandem_job *j = s->in_step[i];
        if (j->result.finish)
            end_job(s, j);
        else
            s->told |= job_publish(j, s->now, quiet_s);
    }
}

/* Wakes readers before a step with prompt rows, which takes longer than the last ones. */
static void wake_before_prompts(sched *s)
{
    if (!s->prompt_rows) return;
    for (int i = 0; i < s->n_running; i++) s->told |= job_wake_reader(s->running[i], s->now);
    wake_owner(s);
}

/* The requests of a step that failed are lost; the next ones may fare better. */
static void fail_step(sched *s, const err *why)
{
    log_event(LOG_ERROR, "step", "%s", why->text);
    s->stats.failed_steps++;
    for (int i = 0; i < s->n_parts; i++) fail_job(s, s->in_step[i], why->code, why->text);
}

static void one_step(sched *s)
{
    err    why   = {0};
    double start = s->now;
    prepare_pictures(s);
    share_out(s);
    if (!s->n_parts) { /* all wait for their masks or pictures */
        note_masks(s, 0);
        end_costly(s);
        return;
    }
    wake_before_prompts(s);
    fault_no_alloc_begin("a step");
    choose_plans(s);
    double begun = clock_s();
    bool   ok    = spec_step(s->opt.spec, s->part, s->n_parts, &why);
    s->now       = clock_s();
    for (int i = 0; ok && i < s->n_parts; i++) keep_tokens(s, s->in_step[i]);
    fault_no_alloc_end();
    note_masks(s, s->now - begun);
    if (!ok) {
        fail_step(s, &why);
        return;
    }
    note_step(s, s->now - start);
    deliver_tokens(s, s->now - start);
    end_costly(s);
}

/* --- the thread ---------------------------------------------------------------------------------*/
/* Sleeps until the bell rings or the encoder of pictures is to be parked. The queue is empty, or its next request waits
 * for the disk: while nothing runs, other requests are admitted or refused. Returns true when the thread is to end. */
static bool wait_for_work(sched *s, unsigned seen)
{
    pthread_mutex_lock(&s->lock);
    bool over = s->closing && atomic_load(&s->n_live) == 0;
    pthread_mutex_unlock(&s->lock);
    if (over) return true;
    assert(!s->queue.n || s->load_deadline < INFINITY);
    atomic_store(&s->busy_since, 0);
    double end = fmin(s->queue.n ? s->load_deadline : INFINITY, encoder_deadline(s));
    bell_wait(&s->bell, seen, end < INFINITY ? fmax(end - clock_s(), 0) : -1);
    return false;
}

static void *engine_main(void *arg)
{
    /* Bytes that are copied for the disk between two steps; seconds for the rest when the engine ends. */
    enum { COPY_PER_STEP = 4 << 20, COPY_WHEN_IDLE = 64 << 20, FINISH_S = 5 };
    sched *s = arg;
    for (;;) {
        unsigned seen = bell_read(&s->bell);
        int64_t  now  = clock_ns();
        s->now        = (double)now * 1e-9;
        atomic_store(&s->busy_since, now);
        take_mail(s);
        if (errands_run(&s->errands)) s->now = clock_s();
        end_unwanted(s);
        admit_jobs(s);
        refuse_waiting(s);
        park_encoder(s);
        bool busy = s->n_running > 0;
        if (busy)
            one_step(s);
        else
            show_stats(s);
        wake_owner(s);
        bool more = tier_work(s->tier, busy ? COPY_PER_STEP : COPY_WHEN_IDLE, s->row_s);
        if (!busy && !more && wait_for_work(s, seen)) break;
    }
    errands_close(&s->errands);
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    atomic_store(&s->busy_since, 0);
    pthread_cond_broadcast(&s->stopped_now);
    pthread_mutex_unlock(&s->lock);
    tier_finish(s->tier, FINISH_S); /* after that: sched_shutdown does not wait for the disk, sched_free does */
    return NULL;
}

/* Opens the tiers below the prefix cache. The engine serves also without them. */
static void open_tier(sched *s)
{
    tier_options o   = {s->opt.cache_dir, s->opt.cache_bytes, s->opt.park_bytes};
    err          why = {0};
    bool         ok  = (!o.dir && !o.park_bytes) || tier_open(&s->tier, s->opt.spec, &o, &s->bell, &why);
    if (!ok) {
        log_event(LOG_WARN, "cache", "%s; continuing without it", why.text);
        o.dir = NULL;
        if (o.park_bytes) tier_open(&s->tier, s->opt.spec, &o, &s->bell, NULL);
    }
    if (s->tier && tier_secret(s->tier)) memcpy(s->maker.secret, tier_secret(s->tier), sizeof s->maker.secret);
}

static bool start_thread(sched *s, err *e)
{
    s->started = thread_start(&s->thread, engine_main, s);
    return s->started || err_set(e, ERR_UNAVAILABLE, "cannot start the engine thread");
}

/* --- from other threads -------------------------------------------------------------------------*/
static bool take_lanes(sched *s, err *e)
{
    for (; s->n_idle < s->opt.max_lanes; s->n_idle++)
        if (!spec_lane_new(s->opt.spec, &s->idle[s->n_idle], e)) return false;
    return true;
}

static void take_scratch(sched *s)
{
    size_t n              = (size_t)s->opt.max_lanes;
    s->running            = xnew_n(tandem_job *, n);
    s->idle               = xnew_n(spec_lane *, n);
    s->in_step            = xnew_n(tandem_job *, n);
    s->part               = xnew_n(spec_part, n);
    s->by_lane.order      = xnew_n(tandem_job *, n);
    s->by_lane.lane       = xnew_n(spec_lane *, n);
    s->by_lane.rank       = xnew_n(int, n);
    s->by_lane.pending    = xnew_n(int, n);
    s->by_lane.rows       = xnew_n(int, n);
    s->by_lane.part       = xnew_n(int, n);
    s->by_lane.smallest   = xnew_n(int, n);
    s->by_lane.ready      = xnew_n(bool, n);
    s->by_lane.asked      = xnew_n(bool, n);
    s->by_lane.route_lane = xnew_n(route_lane, n);
    s->by_lane.route      = xnew_n(route, n);
}

static void free_scratch(sched *s)
{
    void *all[] = {s->running,         s->idle,
                   s->in_step,         s->part,
                   s->by_lane.order,   s->by_lane.lane,
                   s->by_lane.rank,    s->by_lane.rows,
                   s->by_lane.part,    s->by_lane.smallest,
                   s->by_lane.pending, s->by_lane.ready,
                   s->by_lane.asked,   s->by_lane.route_lane,
                   s->by_lane.route};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
}

int sched_max_span(const sched *s) { return s->opt.model->sees_ahead ? s->maker.max_span : INT32_MAX; }

bool sched_new(sched **out, const sched_options *o, err *e)
{
    sched *s = xnew(sched);
    *out     = NULL;
    s->opt   = *o;
    take_scratch(s);
    s->settings = s->set = o->settings;
    s->inbox_end         = &s->inbox;
    s->classes           = policy_classes_new(MAX_KINDS);
    s->soft              = soft_cache_new(SOFT_CACHE_BYTES);
    masks_init(&s->masks);
    errands_init(&s->errands);
    routing_recent_init(&s->recent);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->stopped_now, NULL);
    bool made         = job_maker_init(&s->maker, o->model, o->tok, o->n_ctx, o->max_lanes, e);
    s->maker.max_span = o->step_tokens - (o->max_lanes - 1); /* every other lane may need a row of the step */
    if (made && job_scratch_init(&s->scratch, o->tok, e) && take_lanes(s, e)) {
        s->maker.limit = o->limit;
        open_tier(s);
        show_stats(s);
        if (start_thread(s, e)) {
            *out = s;
            return true;
        }
    }
    sched_free(s);
    return false;
}

void sched_shutdown(sched *s, double grace_s)
{
    double at = clock_s() + grace_s;
    pthread_mutex_lock(&s->lock);
    s->stop_at = s->closing ? fmin(s->stop_at, at) : at;
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    bell_ring(&s->bell);
    pthread_mutex_lock(&s->lock);
    while (!s->stopped) pthread_cond_wait(&s->stopped_now, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void sched_free(sched *s)
{
    if (!s) return;
    if (s->started) {
        sched_shutdown(s, 0);
        pthread_join(s->thread, NULL);
    }
    tier_close(s->tier);
    while (s->n_idle > 0) spec_lane_free(s->idle[--s->n_idle]);
    routing_recent_deinit(&s->recent);
    errands_deinit(&s->errands);
    policy_classes_free(s->classes);
    soft_cache_free(s->soft);
    job_scratch_deinit(&s->scratch);
    job_maker_deinit(&s->maker);
    pthread_cond_destroy(&s->stopped_now);
    pthread_mutex_destroy(&s->lock);
    free_scratch(s);
    mem_free(s);
}

/* Both the caller and the engine hold the job afterwards. */
static void append_to_inbox(sched *s, tandem_job *j)
{
    atomic_store(&j->holders, 2);
    j->order = ++s->n_submitted;
    if (!j->id[0]) snprintf(j->id, sizeof j->id, "%llu", (unsigned long long)j->order);
    *s->inbox_end = j;
    s->inbox_end  = &j->next;
    atomic_fetch_add(&s->n_live, 1);
}

static bool put_in_inbox(sched *s, tandem_job *j, err *e)
{
    pthread_mutex_lock(&s->lock);
    account_limits l  = {.max_lanes         = s->opt.max_lanes,
                         .queue_max         = s->settings.queue_max,
                         .max_lanes_per_key = s->settings.max_lanes_per_key,
                         .max_queue_per_key = s->settings.max_queue_per_key};
    bool           ok = s->closing ? err_set(e, ERR_UNAVAILABLE, "the engine is shutting down")
                                   : accounts_join(&s->accounts, j->account_key, &l, &j->account, busy_text, e);
    if (ok)
        append_to_inbox(s, j);
    else
        s->n_refused++;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool sched_submit_with(sched *s, const tandem_request *r, media_prompt *media, response_grammar *compiled,
                       tandem_job **out, err *e)
{
    *out = NULL;
    tandem_job *j;
    settings    now;
    sched_get_settings(s, &now);
    if (!job_new(&j, &s->maker, &now, r, media, compiled, e)) return false;
    j->engine = &s->bell;
    if (!put_in_inbox(s, j, e)) {
        job_drop(j);
        return false;
    }
    bell_ring(&s->bell);
    *out = j;
    return true;
}

bool sched_submit(sched *s, const tandem_request *r, tandem_job **out, err *e)
{
    return sched_submit_with(s, r, NULL, NULL, out, e);
}

bool sched_compile(sched *s, const tandem_request *r, const atomic_bool *cancel, response_grammar **out, err *e)
{
    grammar_source x = job_form_source(&s->maker, r, cancel);
    return grammar_cache_take(s->maker.grammars, &x, out, e);
}

response_grammar *sched_find_compiled(sched *s, const tandem_request *r)
{
    grammar_source x = job_form_source(&s->maker, r, NULL);
    return grammar_cache_find(s->maker.grammars, &x);
}

void sched_get_settings(sched *s, settings *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->settings;
    pthread_mutex_unlock(&s->lock);
}

void sched_set_settings(sched *s, const settings *now)
{
    pthread_mutex_lock(&s->lock);
    s->settings         = *now;
    s->settings_changed = true;
    pthread_mutex_unlock(&s->lock);
    if (s->opt.log) routing_log_set(s->opt.log, now->routing_log, now->routing_log_max_bytes);
}

const char *tandem_route_name(int i) { return i >= 0 && i < ROUTE_REASONS ? route_reason_names[i] : NULL; }

void sched_get_stats(sched *s, tandem_stats *out)
{
    int64_t since = atomic_load(&s->busy_since);
    pthread_mutex_lock(&s->lock);
    *out           = s->shown;
    out->submitted = (int64_t)s->n_submitted;
    out->refused   = s->n_refused;
    out->queued    = max_int(atomic_load(&s->n_live) - out->running, 0); /* also those that came during the step */
    out->busy_s    = since ? (double)(clock_ns() - since) * 1e-9 : 0;
    pthread_mutex_unlock(&s->lock);
}

size_t sched_recent(sched *s, const char *request_id, routing_seen *out, size_t max)
{
    return routing_recent_get(&s->recent, request_id, out, max);
}

/* --- drafters -----------------------------------------------------------------------------------*/
int sched_drafters(sched *s, tandem_drafter_info out[TANDEM_MAX_DRAFTERS],
                   const checkpoint_list *files[TANDEM_MAX_DRAFTERS])
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < TANDEM_MAX_DRAFTERS; i++) {
        if (!s->drafter[i].there) continue;
        if (files) files[n] = s->drafter[i].files;
        out[n++] = s->drafter[i].info;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

typedef struct {
    sched      *s;
    spec_method method;
    bool        park, ok;
    err         why;
} park_errand;

static void run_park(void *ctx)
{
    park_errand *x = ctx;
    x->ok = x->park ? spec_park(x->s->opt.spec, x->method, &x->why) : spec_unpark(x->s->opt.spec, x->method, &x->why);
    x->s->calm = 0;
    show_stats(x->s); /* a drafter that is opened may make the pool larger */
}

static void ring_bell(void *ctx) { bell_ring(ctx); }

bool sched_park_drafter(sched *s, int method, bool park, err *e)
{
    park_errand x = {.s = s, .method = (spec_method)method, .park = park};
    if (method <= SPEC_OFF || method >= SPEC_METHODS) return err_set(e, ERR_INPUT, "%d is not a method", method);
    if (!errands_do(&s->errands, run_park, &x, ring_bell, &s->bell))
        return err_set(e, ERR_UNAVAILABLE, "the engine is shutting down");
    if (!x.ok && e) *e = x.why;
    return x.ok;
}

/* --- other work on the engine thread ------------------------------------------------------------*/
typedef struct {
    sched *s;
    void (*fn)(void *ctx, spec *sp);
    void *ctx;
} spec_errand;

static void run_spec_errand(void *ctx)
{
    spec_errand *x = ctx;
    x->fn(x->ctx, x->s->opt.spec);
    show_stats(x->s);
}

bool sched_do(sched *s, void (*fn)(void *ctx, spec *sp), void *ctx, err *e)
{
    spec_errand x = {s, fn, ctx};
    return errands_do(&s->errands, run_spec_errand, &x, ring_bell, &s->bell) ||
           err_set(e, ERR_UNAVAILABLE, "the engine is shutting down");
}

uint64_t sched_salt(const sched *s, const char *tenant) { return tenant ? job_salt(&s->maker, tenant) : 0; }
int      sched_vocab(const sched *s) { return s->opt.model->n_vocab; }
