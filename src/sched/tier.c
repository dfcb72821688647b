#include "sched/tier.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "sched/inside.h"
#include "spec/image.h"

#include <math.h>
#include <string.h>

enum {
    MAX_TEXTS   = 64,        /* texts that wait to be stored; the oldest is dropped */
    MAX_WAITING = 256 << 20, /* bytes that wait for the disk thread: then copying pauses */
    COPY_STEP   = 16 << 20,  /* bytes of images that are copied between two steps */
    CLOSE_S     = 5,         /* maximum seconds that tier_close waits for the disk */
};
/* Seconds after the end of a text in which a request that may evict it waits for the disk thread to look it up. */
#define LOOK_UP_S 0.5

/* A text that is to be stored. */
typedef struct text text;
struct text {
    uint64_t      salt;
    int32_t      *token;
    disk_request *plan;
    double        ended; /* time of its tier_store */
    int           at;    /* the cut that is next */
    int32_t       from;  /* pages that are stored or on their way */
    kv_export    *copy;  /* copy of the cut in progress; NULL: none */
    text         *next;
};

typedef struct save save;
struct save {
    disk_request *r;
    size_t        bytes;
    save         *next;
};

struct tier {
    spec    *s;
    disk    *d;
    bell    *ring;
    bool     only_memory; /* there is no directory */
    text    *first;
    int      n_texts;
    save    *saves;                  /* in the hands of the disk thread */
    size_t   waiting;                /* bytes of saves */
    double   copied_bytes, copied_s; /* sums of copies to host memory; older ones count less */
    int      n_slower;               /* texts for which computing is faster */
    uint64_t all_copied;             /* bytes since the start */
};

static void ring_bell(void *ctx) { bell_ring(ctx); }

bool tier_open(tier **out, spec *s, const tier_options *opt, bell *ring, err *e)
{
    tier        *t = xnew(tier);
    disk_options o = {
        .dir = opt->dir, .max_bytes = opt->max_bytes, .park_bytes = opt->park_bytes, .on_done = ring_bell, .ctx = ring};
    *out           = NULL;
    t->s           = s;
    t->ring        = ring;
    t->only_memory = !opt->dir;
    if (!disk_open(&t->d, &o, e)) {
        mem_free(t);
        return false;
    }
    *out = t;
    return true;
}

static void drop_text(tier *t)
{
    text *x  = t->first;
    t->first = x->next;
    t->n_texts--;
    disk_drop(t->d, x->plan);
    kv_export_free(x->copy);
    mem_free(x->token);
    mem_free(x);
}

/* Forgets the saves that are done; all of them with `all`. */
static void drop_saves(tier *t, bool all)
{
    for (save **at = &t->saves, *x; (x = *at);) {
        if (!all && !disk_is_done(t->d, x->r)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        t->waiting -= x->bytes;
        disk_drop(t->d, x->r);
        mem_free(x);
    }
}

void tier_close(tier *t)
{
    if (!t) return;
    while (t->first) drop_text(t);
    drop_saves(t, true);
    disk_close(t->d, CLOSE_S);
    mem_free(t);
}

const uint8_t *tier_secret(const tier *t) { return disk_secret(t->d); }

void tier_get_stats(tier *t, disk_stats *out)
{
    *out = (disk_stats){0};
    if (t) disk_get_stats(t->d, out);
}

/* --- loading ------------------------------------------------------------------------------------*/
struct tier_load {
    disk_request *r;
    double        deadline;
    uint64_t      pieces;   /* number of calls of spec_import */
    bool          imported; /* admission copies what was evicted since */
};

double tier_patience(double row_s, int32_t n_rows)
{
    static const double unknown_s = 10, min_s = 0.05, enough_s = 2, share = 0.25;
    double              compute_s = row_s * n_rows;
    return row_s > 0 ? fmin(fmax(compute_s, min_s), fmax(compute_s * share, enough_s)) : unknown_s;
}

static void start_load(tier *t, tandem_job *j, double now, double row_s)
{
    int32_t n = (int32_t)j->prompt.n, pages = (n - 1) / KV_PAGE;
    int32_t have = spec_usable_len(t->s, j->opt.spec.method, j->salt, j->prompt.p, n);
    if (pages * KV_PAGE - have < TIER_MIN || j->opt.score_prompt) return;
    kv_image_filter *filter = spec_image_filter(t->s, j->prompt.p, pages * KV_PAGE);
    if (!filter) return;
    tier_load *x    = xnew(tier_load);
    x->r            = disk_request_new(DISK_LOAD, filter->key.target, j->salt, j->prompt.p, pages, KV_PAGE);
    x->r->have      = have / KV_PAGE;
    x->r->max_load  = spec_kv_bytes_total(t->s);
    x->r->page_s    = row_s * KV_PAGE;
    x->r->wants     = kv_image_wants;
    x->r->fits      = kv_image_fits;
    x->r->wants_ctx = filter;
    x->deadline     = now + tier_patience(t->only_memory ? 0 : row_s, n - have); /* memory does not hang */
    j->load         = x;
    disk_submit(t->d, x->r);
}

void tier_search(tier *t, tandem_job *j, double now, double row_s)
{
    if (!t || j->searched) return;
    j->searched = true;
    start_load(t, j, now, row_s);
}

bool tier_ready(tier *t, tandem_job *j, double now, double row_s)
{
    if (!t) return true;
    tier_search(t, j, now, row_s);
    tier_load *x = j->load;
    if (!x || disk_is_done(t->d, x->r)) return true;
    if (now < x->deadline) return false;
    log_event(LOG_WARN, "cache", "the disk is slow: a request goes on without it");
    tier_forget(t, j);
    return true;
}

bool tier_import(tier *t, tandem_job *j)
{
    tier_load *x = j->load;
    if (!x || !x->r->n_images || x->imported) return true;
    spec_images images = {.salt     = j->salt,
                          .text     = j->prompt.p,
                          .n        = (int32_t)j->prompt.n,
                          .images   = x->r->image,
                          .n_images = x->r->n_images};
    uint64_t    bytes  = 0;
    bool        done;
    for (int i = 0; i < x->r->n_images; i++) bytes += pack_bytes(x->r->image[i]);
    spec_import(t->s, &images, COPY_STEP, &done);
    x->imported = done || ++x->pieces > bytes / COPY_STEP + 8; /* others may have evicted pages between the calls */
    return x->imported;
}

double tier_deadline(const tandem_job *j) { return j->load ? j->load->deadline : INFINITY; }

void tier_images(const tandem_job *j, lane_request *r)
{
    const tier_load *x = j->load;
    if (!x) return;
    r->images   = x->r->image;
    r->n_images = x->r->n_images;
}

void tier_forget(tier *t, tandem_job *j)
{
    tier_load *x = j->load;
    if (!x) return;
    disk_drop(t->d, x->r);
    mem_free(x);
    j->load = NULL;
}

/* --- storing ------------------------------------------------------------------------------------*/
static void add_cut(disk_request *r, int32_t page)
{
    int i = r->n_cuts;
    while (i > 0 && r->cut[i - 1] > page) i--;
    if (page < 1 || page > r->n_keys || r->n_cuts == DISK_MAX_CUTS || (i > 0 && r->cut[i - 1] == page)) return;
    memmove(&r->cut[i + 1], &r->cut[i], (size_t)(r->n_cuts++ - i) * sizeof *r->cut);
    r->cut[i] = page;
}

/* Removes cuts that follow another one closely; the last one stays. */
static void thin_cuts(disk_request *r)
{
    int n = 0;
    for (int i = 0; i < r->n_cuts; i++)
        if (i == r->n_cuts - 1 || r->cut[i] - (n ? r->cut[n - 1] : 0) >= TIER_MIN / KV_PAGE) r->cut[n++] = r->cut[i];
    r->n_cuts = n;
}

static void plan_cuts(tier *t, text *x, const spec_lane_text *l)
{
    disk_request *r = x->plan;
    for (int32_t at = TIER_EVERY; at < l->n_prompt && r->n_cuts < DISK_MAX_CUTS - 3; at += TIER_EVERY)
        add_cut(r, at / KV_PAGE);
    add_cut(r, l->branch / KV_PAGE);
    add_cut(r, (l->n_prompt - 1) / KV_PAGE);
    add_cut(r, r->n_keys);
    thin_cuts(r);
    for (int i = 0; i < r->n_cuts; i++)
        r->draft[i] = spec_image_drafters(t->s, &(kv_range){x->salt, x->token, 0, r->cut[i] * KV_PAGE});
}

void tier_store(tier *t, const tandem_job *j)
{
    spec_lane_text l = spec_lane_committed(j->lane);
    int32_t        n = l.n_cached / KV_PAGE;
    if (!t || n * KV_PAGE < TIER_MIN || !spec_has_images(t->s)) return;
    if (t->n_texts == MAX_TEXTS) drop_text(t);
    text *x = xnew(text), **at = &t->first;
    x->salt  = j->salt;
    x->ended = clock_s();
    x->token = xnew_n(int32_t, (size_t)n * KV_PAGE);
    memcpy(x->token, l.token, (size_t)n * KV_PAGE * sizeof *x->token);
    x->plan = disk_request_new(DISK_PLAN, spec_image_key(t->s).target, x->salt, x->token, n, KV_PAGE);
    plan_cuts(t, x, &l);
    while (*at) at = &(*at)->next;
    *at = x;
    t->n_texts++;
    disk_submit(t->d, x->plan);
}

static void free_copy(void *copy) { kv_export_free(copy); }

/* Passes the finished copy to the disk thread. */
static void submit_copy(tier *t, text *x, int32_t to)
{
    save         *v = xnew(save);
    disk_request *r = xnew(disk_request);
    r->kind         = DISK_SAVE;
    r->n_keys       = x->plan->n_keys;
    r->key          = xnew_n(hash128, (size_t)r->n_keys);
    memcpy(r->key, x->plan->key, (size_t)r->n_keys * sizeof *r->key);
    r->from       = x->from;
    r->to         = to;
    r->save_draft = x->plan->draft[x->at];
    r->save       = kv_export_pack(x->copy);
    r->save->kind = 1;
    r->free_pack  = free_copy;
    r->pack_ctx   = x->copy;
    *v            = (save){r, pack_bytes(r->save), t->saves};
    t->saves      = v;
    t->waiting += v->bytes;
    x->copy = NULL;
    x->from = to;
    x->at++;
    disk_submit(t->d, r);
}

/* Returns whether computing the text of the copy is faster than copying it there and back. One text in 16 is copied all
 * the same, which measures again. */
static bool is_slower(tier *t, const text *x, int32_t n_pages, double row_s)
{
    enum { ENOUGH = 16 << 20, TRY_SLOWER = 16 };
    if (!t->only_memory || t->copied_bytes < ENOUGH || !(row_s > 0)) return false;
    double copy_s = 2 * (double)pack_bytes(kv_export_pack(x->copy)) * t->copied_s / t->copied_bytes;
    return copy_s > row_s * KV_PAGE * n_pages && ++t->n_slower % TRY_SLOWER;
}

static void note_copy(tier *t, size_t bytes, double seconds)
{
    enum { MANY = 256 << 20 };
    t->all_copied += bytes;
    t->copied_bytes += (double)bytes;
    t->copied_s += seconds;
    if (t->copied_bytes < MANY) return; /* older copies count less */
    t->copied_bytes /= 2;
    t->copied_s /= 2;
}

static void end_copy(text *x)
{
    kv_export_free(x->copy);
    x->copy = NULL;
}

/* Begins the copy of the next cut. Returns false when it is left out. */
static bool begin_copy(tier *t, text *x, double row_s)
{
    disk_request *r     = x->plan;
    int32_t       to    = r->cut[x->at];
    kv_range      range = {x->salt, x->token, x->from * KV_PAGE, to * KV_PAGE};
    if (!spec_export_begin(t->s, &range, &x->copy, NULL)) return false;
    if (!is_slower(t, x, to - x->from, row_s)) return true;
    end_copy(x);
    return false;
}

/* Copies a part of the next cut that is not stored. A cut that the prefix cache has lost is left out. */
static void copy_some(tier *t, text *x, size_t max_bytes, double row_s)
{
    disk_request *r     = x->plan;
    bool          done  = false;
    double        start = clock_s();
    for (; x->at < r->n_cuts && r->stored[x->at]; x->at++) x->from = r->cut[x->at];
    if (x->at == r->n_cuts) return;
    if ((x->copy || begin_copy(t, x, row_s)) && spec_export_more(t->s, x->copy, max_bytes, &done, NULL)) {
        size_t bytes = pack_bytes(kv_export_pack(x->copy));
        note_copy(t, bytes < max_bytes ? bytes : max_bytes, clock_s() - start);
        if (done) submit_copy(t, x, r->cut[x->at]);
        return;
    }
    end_copy(x);
    x->at++;
}

/* Returns whether the K/V cache is so full that idle pages are likely to be evicted. Before that, parking them in host
 * memory is of no use. */
static bool is_full(const tier *t) { return spec_prefix_stats(t->s).bytes > spec_kv_bytes_total(t->s) / 2; }

/* Works on the oldest text. Returns false when there is none, or it has to wait for the disk thread. */
static bool work_on_first(tier *t, size_t max_bytes, double row_s)
{
    text *x = t->first;
    if (!x || t->waiting > MAX_WAITING || !disk_is_done(t->d, x->plan)) return false;
    if (x->at < x->plan->n_cuts)
        copy_some(t, x, max_bytes, row_s);
    else
        drop_text(t);
    return true;
}

bool tier_work(tier *t, size_t max_bytes, double row_s)
{
    if (!t) return false;
    drop_saves(t, false);
    return (!t->only_memory || is_full(t)) && work_on_first(t, max_bytes, row_s);
}

/* Returns whether the oldest text is still being looked up and ended so recently that this is worth a wait. Waits a
 * little then. */
static bool wait_for_plan(tier *t)
{
    const text *x    = t->first;
    unsigned    seen = bell_read(t->ring);
    if (!x || disk_is_done(t->d, x->plan) || clock_s() - x->ended > LOOK_UP_S) return false;
    bell_wait(t->ring, seen, 1e-3);
    return true;
}

bool tier_make_room(tier *t, int32_t n_pos, double row_s)
{
    if (!t || !t->first) return true;
    size_t used = spec_prefix_stats(t->s).bytes + spec_kv_reserved(t->s) + spec_kv_need(t->s, n_pos);
    drop_saves(t, false);
    if (used <= spec_kv_bytes_total(t->s)) return true;
    for (uint64_t before = t->all_copied; work_on_first(t, COPY_STEP, row_s);)
        if (t->all_copied - before >= COPY_STEP) return false;
    return !wait_for_plan(t);
}

void tier_finish(tier *t, double seconds)
{
    double end = clock_s() + seconds;
    while (t && !t->only_memory && (t->first || t->saves) && clock_s() < end) {
        unsigned seen = bell_read(t->ring);
        if (!tier_work(t, SIZE_MAX, 0) && (t->first || t->saves)) bell_wait(t->ring, seen, fmax(end - clock_s(), 0));
    }
}
