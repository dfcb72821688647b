#include "store/disk.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum {
    PAUSE_S   = 60,  /* writing pauses after a failure */
    MAX_CHAIN = 512, /* entries of a text */
    /* Maximum number of threads that read a file, half of the processors. One reads 2.5 GB/s of the page cache. */
    MAX_READERS = 8,
};

/* One thread reads and one writes, so that no read waits until a file is written and synced. */
enum { READER, WRITER, WORKERS };

typedef struct {
    disk          *d;
    store_index   *index; /* used by the thread only, except its secret; NULL: no directory */
    pthread_t      thread;
    bool           started;
    disk_request  *first, **end; /* under the lock */
    pthread_cond_t work;
} worker;

struct disk {
    disk_options    opt;
    worker          worker[WORKERS];
    store_memory   *memory; /* NULL: none */
    pthread_mutex_t lock;
    bool            closing, abandoned; /* under the lock, as the rest */
    int             n_threads;          /* threads that use this; the last one frees it if it was abandoned */
    pthread_cond_t  end_of_thread;
    disk_stats      stats;
    /* Used by the writer: */
    bool   trims; /* the limit may be lower than the last time: entries are removed while there is nothing to do */
    double paused_until;
    /* Used by the reader: */
    pool   *readers;
    double  recent_bytes, recent_s; /* sums of loads; older ones count less */
    int64_t n_slower;               /* loads for which computing is faster */
};

/* --- requests -----------------------------------------------------------------------------------*/
disk_request *disk_request_new(disk_kind kind, hash128 fingerprint, uint64_t salt, const int32_t *text, int32_t n_pages,
                               int page_tokens)
{
    disk_request *r       = xnew(disk_request);
    uint64_t      root[3] = {fingerprint.lo, fingerprint.hi, salt};
    hash128       h       = hash128_of(root, sizeof root);
    r->kind               = kind;
    r->n_keys             = n_pages;
    r->key                = xnew_n(hash128, (size_t)n_pages + 1);
    for (int32_t i = 0; i < n_pages; i++) {
        h         = hash128_join(h, text + (size_t)i * (size_t)page_tokens, (size_t)page_tokens * sizeof *text);
        r->key[i] = h;
    }
    return r;
}

static void drop_images(disk *d, disk_request *r)
{
    for (int i = 0; i < r->n_images; i++) {
        if (r->taken[i]) {
            memory_return(d->memory, r->taken[i]);
            continue;
        }
        pack_deinit((pack *)r->image[i]);
        mem_free((pack *)r->image[i]);
    }
    mem_free(r->image);
    mem_free(r->taken);
    r->image    = NULL;
    r->taken    = NULL;
    r->n_images = 0;
    r->end      = 0;
}

static void free_request(disk *d, disk_request *r)
{
    drop_images(d, r);
    if (r->free_pack) r->free_pack(r->pack_ctx);
    mem_free(r->wants_ctx);
    mem_free(r->key);
    mem_free(r);
}

static worker *worker_of(disk *d, const disk_request *r) { return &d->worker[r->kind == DISK_LOAD ? READER : WRITER]; }

void disk_submit(disk *d, disk_request *r)
{
    worker *w = worker_of(d, r);
    pthread_mutex_lock(&d->lock);
    r->next = NULL;
    *w->end = r;
    w->end  = &r->next;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&d->lock);
}

bool disk_is_done(disk *d, disk_request *r)
{
    pthread_mutex_lock(&d->lock);
    bool done = r->done;
    pthread_mutex_unlock(&d->lock);
    return done;
}

static void unlink_request(worker *w, disk_request *r)
{
    disk_request **at = &w->first;
    while (*at && *at != r) at = &(*at)->next;
    if (!*at) return;
    *at = r->next;
    if (!*at) w->end = at;
}

void disk_drop(disk *d, disk_request *r)
{
    if (!r) return;
    pthread_mutex_lock(&d->lock);
    bool busy  = r->running;
    r->dropped = true;
    if (!busy && !r->done) unlink_request(worker_of(d, r), r);
    pthread_mutex_unlock(&d->lock);
    if (!busy) free_request(d, r);
}

/* --- loading ------------------------------------------------------------------------------------*/
static bool find_entry(disk *d, hash128 key, index_entry *out)
{
    return (d->memory && memory_find(d->memory, key, out)) ||
           (d->worker[READER].index && index_find(d->worker[READER].index, key, out));
}

/* Finds the entries of the longest stored beginning that has at most max pages, the last one first. Returns their
 * number. */
static int find_chain(disk *d, const disk_request *r, int32_t max, index_entry *chain)
{
    for (int32_t k = max; k > r->have; k--) {
        int n = 0;
        if (!find_entry(d, r->key[k - 1], &chain[0]) || chain[0].to != k) continue;
        while (chain[n++].to > r->have) {
            if (hash128_is_zero(chain[n - 1].parent)) return n;
            if (n == MAX_CHAIN || !find_entry(d, chain[n - 1].parent, &chain[n]) || chain[n].to < 1 ||
                chain[n].to >= chain[n - 1].to || !hash128_equal(chain[n].key, r->key[chain[n].to - 1])) {
                n = 0;
                break;
            }
        }
        if (n > 1) return n - 1; /* the last one is not needed: it ends within `have` */
    }
    return 0;
}

/* Opens the file of the entry and loads the sections that are wanted. */
static bool load_entry(disk *d, disk_request *r, const index_entry *x, int32_t end, pack *p, err *e)
{
    char name[INDEX_NAME_MAX];
    index_file_name(x->key, name);
    store_index *index = d->worker[READER].index;
    if (!index) return err_set(e, ERR_UNAVAILABLE, "an entry has left the memory");
    int fd = openat(index_dir(index), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        bool gone = errno == ENOENT || errno == ELOOP; /* other errors may pass, such as too many open files */
        return err_set(e, gone ? ERR_NOT_FOUND : ERR_IO, "cannot open '%s': %s", name, strerror(errno));
    }
    bool ok                        = pack_open(p, fd, e);
    bool wanted[PACK_MAX_SECTIONS] = {0};
    for (int i = 0; ok && i < p->n; i++) {
        wanted[i] = r->wants(r->wants_ctx, &p->section[i], end);
        if (wanted[i]) r->loaded += p->section[i].bytes;
        ok = r->loaded <= r->max_load || err_set(e, ERR_TOO_LARGE, "the stored text is larger than the K/V cache");
    }
    ok = ok && pack_load_many(p, fd, wanted, d->readers, e);
    close(fd);
    ok = ok && (!r->fits || r->fits(r->wants_ctx, p, x->to, e));
    if (!ok) pack_deinit(p);
    return ok || err_wrap(e, "%s", name);
}

enum {
    ENOUGH     = 64 << 20, /* bytes of reading before the rate is known */
    TRY_SLOWER = 16,       /* every 16th load that seems slower than computing is tried: the disk may be faster now */
};

/* Returns whether reading the chain takes longer than computing its text, as measured lately. */
static bool is_slower(const disk *d, const disk_request *r, const index_entry *chain, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        index_entry x;
        if (!d->memory || !memory_find(d->memory, chain[i].key, &x)) bytes += chain[i].bytes;
    }
    double rate = d->recent_bytes > ENOUGH && d->recent_s > 0 ? d->recent_bytes / d->recent_s : 0;
    return rate > 0 && r->page_s > 0 && (double)bytes / rate > r->page_s * (chain[0].to - r->have);
}

/* Removes an entry whose file is damaged, or was removed by another process. */
static void remove_damaged(disk *d, const index_entry *x, const err *why)
{
    index_remove(d->worker[READER].index, x->key, NULL);
    if (why->code == ERR_NOT_FOUND) return;
    log_event(LOG_WARN, "cache", "a file was removed: %s", why->text);
    pthread_mutex_lock(&d->lock);
    d->stats.removed++;
    pthread_mutex_unlock(&d->lock);
}

/* Adds an entry of the chain to the images, from memory or from its file. */
static bool add_image(disk *d, disk_request *r, const index_entry *x, int32_t end, err *e)
{
    parked *there = d->memory ? memory_take(d->memory, x->key) : NULL;
    pack   *p     = there ? NULL : xnew(pack);
    if (!there && !load_entry(d, r, x, end, p, e)) {
        mem_free(p);
        return false;
    }
    r->taken[r->n_images]   = there;
    r->image[r->n_images++] = there ? memory_pack(there) : p;
    return true;
}

static bool is_dropped(disk *d, const disk_request *r)
{
    pthread_mutex_lock(&d->lock);
    bool dropped = r->dropped;
    pthread_mutex_unlock(&d->lock);
    return dropped;
}

/* Loads the entries of the chain, the first one of the text first. On failure a damaged one is removed. Then *max is
 * the length that another try may reach; 0: trying again is of no use. */
static bool load_chain(disk *d, disk_request *r, const index_entry *chain, int n, int32_t *max)
{
    err why   = {0};
    r->image  = xnew_n(const pack *, (size_t)n);
    r->taken  = xnew_n(parked *, (size_t)n);
    r->loaded = 0;
    for (int i = n - 1; i >= 0; i--) {
        bool dropped = is_dropped(d, r);
        if (!dropped && add_image(d, r, &chain[i], chain[0].to, &why)) continue;
        bool damaged = !dropped && (why.code == ERR_FORMAT || why.code == ERR_NOT_FOUND);
        drop_images(d, r);
        if (damaged) remove_damaged(d, &chain[i], &why);
        if (!damaged) *max = why.code == ERR_TOO_LARGE ? chain[i].to - 1 : 0;
        return false;
    }
    r->end = chain[0].to;
    return true;
}

/* Has the writer mark the entries of a load as used: it may have to wait until another process has written. */
static void touch_chain(disk *d, const index_entry *chain, int n)
{
    if (!d->worker[READER].index) return;
    disk_request *r = xnew(disk_request);
    r->kind         = DISK_TOUCH;
    r->dropped      = true; /* the writer frees it */
    r->n_keys       = n;
    r->key          = xnew_n(hash128, (size_t)n);
    for (int i = 0; i < n; i++) r->key[i] = chain[n - 1 - i].key; /* parents are used later than their children */
    disk_submit(d, r);
}

static void note_rate(disk *d, double bytes, double seconds)
{
    d->recent_bytes += bytes;
    d->recent_s += seconds;
    if (d->recent_bytes < 4.0 * ENOUGH) return;
    d->recent_bytes /= 2;
    d->recent_s /= 2;
}

static void run_load(disk *d, disk_request *r)
{
    enum { TRIES = 8 }; /* each removes a damaged entry, or finds a shorter chain */
    index_entry *chain = xnew_n(index_entry, MAX_CHAIN);
    double       start = clock_s();
    int32_t      max   = r->n_keys;
    bool         ok = false, slower = false;
    for (int i = 0, n; i < TRIES && !ok && !slower && (n = find_chain(d, r, max, chain)) > 0; i++) {
        slower = is_slower(d, r, chain, n) && ++d->n_slower % TRY_SLOWER;
        ok     = !slower && load_chain(d, r, chain, n, &max);
        if (ok) touch_chain(d, chain, n);
    }
    mem_free(chain);
    if (ok) note_rate(d, (double)r->loaded, clock_s() - start);
    pthread_mutex_lock(&d->lock);
    d->stats.hits += ok;
    d->stats.misses += !ok;
    d->stats.skipped += slower;
    if (ok) d->stats.read_bytes += (int64_t)r->loaded;
    if (ok) d->stats.read_s += clock_s() - start;
    pthread_mutex_unlock(&d->lock);
}

/* --- saving -------------------------------------------------------------------------------------*/
static void run_plan(disk *d, disk_request *r)
{
    store_index *index = d->worker[WRITER].index;
    hash128      key[DISK_MAX_CUTS];
    int          n = 0;
    for (int i = r->n_cuts; i-- > 0;) {
        index_entry x;
        hash128     k = r->key[r->cut[i] - 1];
        if (index ? !index_find(index, k, &x) : !memory_find(d->memory, k, &x)) continue;
        r->stored[i] = hash128_is_zero(r->draft[i]) || hash128_equal(r->draft[i], x.draft);
        if (r->stored[i])
            key[n++] = x.key;
        else if (index)
            index_remove(index, x.key, NULL); /* its replacement has the drafter's part */
    }
    if (n && index) index_touch(index, key, n, NULL);
}

static void note_failure(disk *d, const err *why)
{
    log_event(LOG_WARN, "cache", "%s; nothing is written for %d s", why->text, PAUSE_S);
    d->paused_until = clock_s() + PAUSE_S;
    pthread_mutex_lock(&d->lock);
    d->stats.failures++;
    pthread_mutex_unlock(&d->lock);
}

static bool save_file(disk *d, disk_request *r, const index_entry *x, const char *temp, err *e)
{
    char name[INDEX_NAME_MAX];
    index_file_name(x->key, name);
    return pack_save_over(r->save, index_dir(d->worker[WRITER].index), temp, name, e) &&
           index_complete(d->worker[WRITER].index, x->key, e);
}

static void write_entry(disk *d, disk_request *r, const index_entry *x)
{
    err  why = {0};
    bool added;
    char temp[PACK_TEMP_MAX];
    if (clock_s() < d->paused_until) return;
    pack_temp_name(temp);
    if (!index_add(d->worker[WRITER].index, x, d->opt.max_bytes, temp, &added, &why)) {
        note_failure(d, &why);
        return;
    }
    if (!added) return;
    r->saved = save_file(d, r, x, temp, &why);
    if (!r->saved) {
        index_remove(d->worker[WRITER].index, x->key, NULL);
        if (why.code != ERR_NOT_FOUND) note_failure(d, &why); /* another process may have removed the entry */
        return;
    }
    pthread_mutex_lock(&d->lock);
    d->stats.written++;
    d->stats.written_bytes += (int64_t)x->bytes;
    pthread_mutex_unlock(&d->lock);
}

static void run_save(disk *d, disk_request *r)
{
    index_entry x = {.key = r->key[r->to - 1], .draft = r->save_draft, .to = r->to, .bytes = pack_bytes(r->save)};
    if (r->from) x.parent = r->key[r->from - 1];
    if (d->worker[WRITER].index) write_entry(d, r, &x);
    if (d->memory && memory_add(d->memory, &x, r->save, r->free_pack, r->pack_ctx)) {
        r->free_pack = NULL; /* the memory has it now */
        r->saved     = true;
    }
}

/* --- the threads --------------------------------------------------------------------------------*/
static void run_request(disk *d, disk_request *r)
{
    if (r->kind == DISK_LOAD)
        run_load(d, r);
    else if (r->kind == DISK_PLAN)
        run_plan(d, r);
    else if (r->kind == DISK_SAVE)
        run_save(d, r);
    else
        index_touch(d->worker[WRITER].index, r->key, r->n_keys, NULL);
}

/* Returns the sums of the directory; zeros without one. */
static index_stats directory_stats(const worker *w)
{
    index_stats none = {0};
    return w->index ? index_get_stats(w->index) : none;
}

static void set_stats(const worker *w, index_stats s)
{
    disk *d               = w->d;
    d->stats.parked_bytes = d->memory ? memory_bytes(d->memory) : 0;
    d->stats.bytes        = s.bytes;
    d->stats.entries      = s.entries;
    if (w == &d->worker[WRITER]) d->stats.evicted = s.evicted;
}

/* Removes some entries over the limit. Called and returns with the lock held. */
static void trim_some(worker *w)
{
    enum { ENTRIES = 64 };
    bool more = false;
    pthread_mutex_unlock(&w->d->lock);
    if (w->index) index_trim(w->index, w->d->opt.max_bytes, ENTRIES, &more, NULL);
    index_stats now = directory_stats(w);
    pthread_mutex_lock(&w->d->lock);
    set_stats(w, now);
    w->d->trims = more;
}

/* Takes the next request; NULL: the thread is to end. Called and returns with the lock held. */
static disk_request *take_request(worker *w)
{
    disk *d = w->d;
    while (!w->first && !d->closing)
        if (d->trims && w == &d->worker[WRITER])
            trim_some(w);
        else
            pthread_cond_wait(&w->work, &d->lock);
    disk_request *r = d->closing ? NULL : w->first;
    if (!r) return NULL;
    w->first = r->next;
    if (!w->first) w->end = &w->first;
    r->running = true;
    return r;
}

static void free_disk(disk *d)
{
    for (int i = 0; i < WORKERS; i++) {
        worker *w = &d->worker[i];
        for (disk_request *r; (r = w->first);) {
            assert(r->kind == DISK_TOUCH); /* the others were dropped by their owners */
            w->first = r->next;
            free_request(d, r);
        }
        index_close(w->index);
        pthread_cond_destroy(&w->work);
    }
    memory_free(d->memory);
    pool_free(d->readers);
    pthread_cond_destroy(&d->end_of_thread);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

/* Publishes that the request is done. Called and returns with the lock held. */
static void end_request(worker *w, disk_request *r, index_stats now)
{
    disk *d = w->d;
    set_stats(w, now);
    r->running = false;
    r->done    = true;
    if (!r->dropped) {
        if (d->opt.on_done) d->opt.on_done(d->opt.ctx);
        return;
    }
    pthread_mutex_unlock(&d->lock);
    free_request(d, r);
    pthread_mutex_lock(&d->lock);
}

static void *disk_main(void *arg)
{
    worker *w = arg;
    disk   *d = w->d;
    pthread_mutex_lock(&d->lock);
    for (disk_request *r; (r = take_request(w));) {
        pthread_mutex_unlock(&d->lock);
        run_request(d, r);
        index_stats now = directory_stats(w);
        pthread_mutex_lock(&d->lock);
        end_request(w, r, now);
    }
    bool last = !--d->n_threads && d->abandoned;
    pthread_cond_signal(&d->end_of_thread);
    pthread_mutex_unlock(&d->lock);
    if (last) free_disk(d);
    return NULL;
}

static bool start_worker(worker *w, err *e)
{
    if (w->d->opt.dir && !index_open(&w->index, w->d->opt.dir, e)) return false;
    index_stats now = directory_stats(w);
    pthread_mutex_lock(&w->d->lock);
    set_stats(w, now);
    w->started = thread_start(&w->thread, disk_main, w);
    w->d->n_threads += w->started;
    pthread_mutex_unlock(&w->d->lock);
    return w->started || err_set(e, ERR_UNAVAILABLE, "cannot start the disk thread");
}

bool disk_open(disk **out, const disk_options *o, err *e)
{
    disk *d  = xnew(disk);
    bool  ok = true;
    *out     = NULL;
    d->opt   = *o;
    d->trims = true;
    pthread_mutex_init(&d->lock, NULL);
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&d->end_of_thread, &by_clock);
    pthread_condattr_destroy(&by_clock);
    if (o->park_bytes) d->memory = memory_new(o->park_bytes);
    d->readers = pool_new(o->dir ? max_int(1, min_int(MAX_READERS, cpu_allowed() / 2)) : 1);
    for (int i = 0; i < WORKERS; i++) {
        worker *w = &d->worker[i];
        w->d      = d;
        w->end    = &w->first;
        pthread_cond_init(&w->work, NULL);
    }
    for (int i = 0; ok && i < WORKERS; i++) ok = start_worker(&d->worker[i], e);
    if (ok)
        *out = d;
    else
        disk_close(d, 60);
    return ok;
}

/* Waits until the threads have ended. Returns false when they are abandoned instead. Called with the lock held. */
static bool wait_for_end(disk *d, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (d->n_threads && !pthread_cond_timedwait(&d->end_of_thread, &d->lock, &until)) {}
    d->abandoned = d->n_threads > 0;
    return !d->abandoned;
}

void disk_close(disk *d, int seconds)
{
    pthread_t thread[WORKERS];
    int       n = 0;
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    for (int i = 0; i < WORKERS; i++) {
        pthread_cond_signal(&d->worker[i].work);
        if (d->worker[i].started) thread[n++] = d->worker[i].thread;
    }
    bool ended = wait_for_end(d, seconds);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < n; i++) ended ? pthread_join(thread[i], NULL) : pthread_detach(thread[i]);
    if (ended)
        free_disk(d);
    else
        log_event(LOG_WARN, "cache", "the disk does not respond; its last operation is not waited for");
}

const uint8_t *disk_secret(const disk *d)
{
    const store_index *index = d->worker[READER].index;
    return index ? index_secret(index) : NULL;
}

void disk_get_stats(disk *d, disk_stats *out)
{
    pthread_mutex_lock(&d->lock);
    *out = d->stats;
    pthread_mutex_unlock(&d->lock);
}
