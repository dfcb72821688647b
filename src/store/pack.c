#include "store/pack.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "store/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t has a size */
#include <xxhash.h>

static const char magic[8] = {'t', 'a', 'n', 'd', 'e', 'm', 'K', 'V'};

/* Bytes of the header: the fixed part, an entry of the table, the checksum at the end. */
enum { FIXED = 48, ENTRY = 64, CHECKSUM = 8 };
_Static_assert(FIXED + PACK_MAX_SECTIONS * ENTRY + CHECKSUM <= PACK_HEADER_MAX, "room for every header");

/* --- hashes -------------------------------------------------------------------------------------*/
hash128 hash128_of(const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(n ? p : "", n);
    return (hash128){h.low64, h.high64};
}

hash128 hash128_join(hash128 a, const void *p, size_t n)
{
    hash128  b      = hash128_of(p, n);
    uint64_t all[4] = {a.lo, a.hi, b.lo, b.hi};
    return hash128_of(all, sizeof all);
}

/* --- numbers ------------------------------------------------------------------------------------*/
static char *put_number(char *at, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) *at++ = (char)(x >> 8 * i);
    return at;
}

static uint64_t take_number(const char **at, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)(unsigned char)*(*at)++ << 8 * i;
    return x;
}

static char *put_hash(char *at, hash128 h) { return put_number(put_number(at, h.lo, 8), h.hi, 8); }

static hash128 take_hash(const char **at)
{
    uint64_t lo = take_number(at, 8);
    return (hash128){lo, take_number(at, 8)};
}

static size_t header_bytes(int n) { return FIXED + (size_t)n * ENTRY + CHECKSUM; }

/* --- packs in memory ----------------------------------------------------------------------------*/
pack_section *pack_add(pack *p, uint32_t kind, uint32_t id, size_t bytes)
{
    if (p->n == PACK_MAX_SECTIONS) return NULL;
    void *data = bytes ? mem_try_large(bytes) : NULL;
    if (bytes && !data) return NULL;
    pack_section *s = &p->section[p->n++];
    *s              = (pack_section){.kind = kind, .id = id, .bytes = bytes, .data = data};
    return s;
}

const pack_section *pack_find(const pack *p, uint32_t kind, uint32_t id)
{
    for (int i = 0; i < p->n; i++)
        if (p->section[i].kind == kind && p->section[i].id == id) return &p->section[i];
    return NULL;
}

void pack_deinit(pack *p)
{
    for (int i = 0; i < p->n; i++) mem_free(p->section[i].data);
    memset(p, 0, sizeof *p);
}

size_t pack_bytes(const pack *p)
{
    size_t n = header_bytes(p->n);
    for (int i = 0; i < p->n; i++) n += p->section[i].bytes;
    return n;
}

/* --- writing ------------------------------------------------------------------------------------*/
static bool write_all(int fd, const void *p, size_t n, err *e)
{
    const char *at = p;
    while (n > 0) {
        ssize_t some = write(fd, at, n < (1 << 30) ? n : 1 << 30);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) return err_set(e, ERR_IO, "cannot write %zu bytes: %s", n, strerror(some ? errno : ENOSPC));
        at += some;
        n -= (size_t)some;
    }
    return true;
}

static char *put_entry(char *at, const pack_section *s)
{
    at = put_number(put_number(at, s->kind, 4), s->id, 4);
    at = put_number(put_number(at, (uint32_t)s->first, 4), (uint32_t)s->n, 4);
    at = put_number(put_number(put_hash(at, s->tag), s->offset, 8), s->bytes, 8);
    return put_hash(at, s->hash);
}

/* Writes the header to out, with the checksum. */
static void put_header(char *out, const pack *p)
{
    char *at = out;
    memcpy(at, magic, sizeof magic);
    at = put_number(put_number(at + sizeof magic, PACK_VERSION, 4), p->kind, 4);
    at = put_number(put_number(at, (uint64_t)p->n, 4), 0, 4);
    at = put_number(put_hash(at, p->fingerprint), pack_bytes(p), 8);
    for (int i = 0; i < p->n; i++) at = put_entry(at, &p->section[i]);
    put_number(at, XXH3_64bits(out, (size_t)(at - out)), CHECKSUM);
}

bool pack_write(pack *p, int fd, err *e)
{
    char   header[PACK_HEADER_MAX];
    size_t n = header_bytes(p->n), offset = n;
    for (int i = 0; i < p->n; i++) {
        pack_section *s = &p->section[i];
        s->offset       = offset;
        s->hash         = hash128_of(s->data, s->bytes);
        offset += s->bytes;
    }
    put_header(header, p);
    if (!write_all(fd, header, n, e)) return false;
    for (int i = 0; i < p->n; i++)
        if (!write_all(fd, p->section[i].data, p->section[i].bytes, e)) return false;
    return true;
}

/* --- reading ------------------------------------------------------------------------------------*/
static bool read_all(int fd, void *p, size_t n, uint64_t offset, err *e)
{
    char *at = p;
    while (n > 0) {
        ssize_t some = pread(fd, at, n < (1 << 30) ? n : 1 << 30, (off_t)offset);
        if (some < 0 && errno == EINTR) continue;
        if (some < 0) return err_set(e, ERR_IO, "cannot read the file: %s", strerror(errno));
        if (some == 0) return err_set(e, ERR_FORMAT, "the file ends %zu bytes early", n);
        at += some;
        offset += (uint64_t)some;
        n -= (size_t)some;
    }
    return true;
}

/* Reads as read_all, and hashes each piece while it is in a cache. */
static bool read_hashed(int fd, void *p, size_t n, uint64_t offset, hash128 *out, err *e)
{
    enum { PIECE = 512 << 10 };
    XXH3_state_t h;
    XXH3_INITSTATE(&h);
    XXH3_128bits_reset(&h);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        if (!read_all(fd, (char *)p + at, some, offset + at, e)) return false;
        XXH3_128bits_update(&h, (char *)p + at, some);
    }
    XXH128_hash_t x = XXH3_128bits_digest(&h);
    *out            = (hash128){x.low64, x.high64};
    return true;
}

static void take_entry(const char **at, pack_section *s)
{
    *s        = (pack_section){0};
    s->kind   = (uint32_t)take_number(at, 4);
    s->id     = (uint32_t)take_number(at, 4);
    s->first  = (int32_t)(uint32_t)take_number(at, 4);
    s->n      = (int32_t)(uint32_t)take_number(at, 4);
    s->tag    = take_hash(at);
    s->offset = take_number(at, 8);
    s->bytes  = take_number(at, 8);
    s->hash   = take_hash(at);
}

/* Reads the fixed part and sets p->n, which is checked. */
static bool take_fixed(pack *p, const char *at, uint64_t file_bytes, err *e)
{
    if (memcmp(at, magic, sizeof magic)) return err_set(e, ERR_FORMAT, "it is not a file of stored K/V");
    at += sizeof magic;
    uint64_t version = take_number(&at, 4);
    if (version != PACK_VERSION)
        return err_set(e, ERR_FORMAT, "it has format version %u, and this program reads version %d", (unsigned)version,
                       PACK_VERSION);
    p->kind    = (uint32_t)take_number(&at, 4);
    uint64_t n = take_number(&at, 8);
    if (n > PACK_MAX_SECTIONS)
        return err_set(e, ERR_FORMAT, "it has %llu sections, expected at most %d", (unsigned long long)n,
                       PACK_MAX_SECTIONS);
    p->n             = (int)n;
    p->fingerprint   = take_hash(&at);
    uint64_t claimed = take_number(&at, 8);
    if (claimed != file_bytes)
        return err_set(e, ERR_FORMAT, "it has %llu bytes, expected %llu", (unsigned long long)file_bytes,
                       (unsigned long long)claimed);
    return true;
}

/* Reads the table. Sections follow each other without gaps, up to the end of the file. */
static bool take_table(pack *p, const char *header, uint64_t file_bytes, err *e)
{
    const char *at = header + FIXED, *end = at + (size_t)p->n * ENTRY;
    uint64_t    offset = header_bytes(p->n);
    const char *sum    = end;
    if (take_number(&sum, CHECKSUM) != XXH3_64bits(header, (size_t)(end - header)))
        return err_set(e, ERR_FORMAT, "the checksum of its header does not match");
    for (int i = 0; i < p->n; i++) {
        pack_section *s = &p->section[i];
        take_entry(&at, s);
        if (s->offset != offset || s->bytes > file_bytes - offset)
            return err_set(e, ERR_FORMAT, "section %d is not within the file", i);
        offset += s->bytes;
    }
    return offset == file_bytes || err_set(e, ERR_FORMAT, "bytes follow the last section");
}

static bool open_checked(pack *p, int fd, err *e)
{
    char        header[PACK_HEADER_MAX];
    struct stat st;
    if (fstat(fd, &st) < 0) return err_set(e, ERR_IO, "cannot examine the file: %s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_FORMAT, "it is not a regular file");
    uint64_t bytes = (uint64_t)st.st_size;
    if (bytes < header_bytes(0))
        return err_set(e, ERR_FORMAT, "it has %llu bytes and is cut off", (unsigned long long)bytes);
    if (!read_all(fd, header, FIXED, 0, e) || !take_fixed(p, header, bytes, e)) return false;
    if (header_bytes(p->n) > bytes) return err_set(e, ERR_FORMAT, "its header is cut off");
    return read_all(fd, header + FIXED, header_bytes(p->n) - FIXED, FIXED, e) && take_table(p, header, bytes, e);
}

bool pack_open(pack *p, int fd, err *e)
{
    memset(p, 0, sizeof *p);
    if (open_checked(p, fd, e)) return true;
    memset(p, 0, sizeof *p);
    return false;
}

bool pack_load(pack *p, int fd, int section, err *e)
{
    pack_section *s = &p->section[section];
    if (s->data || !s->bytes) return true;
    void *data = mem_try_large(s->bytes);
    if (!data) return err_set(e, ERR_UNAVAILABLE, "no memory for %llu bytes of a file", (unsigned long long)s->bytes);
    hash128 h;
    bool    ok =
        read_hashed(fd, data, s->bytes, s->offset, &h, e) &&
        (hash128_equal(h, s->hash) || err_set(e, ERR_FORMAT, "the checksum of section %d does not match", section));
    if (ok)
        s->data = data;
    else
        mem_free(data);
    return ok;
}

/* --- reading by several threads -----------------------------------------------------------------
 * The sections are divided into ranges, which threads read. The thread that reads the last range of a section hashes
 * the section; others read the next ones meanwhile. */
enum { RANGE = 4 << 20 };
typedef struct {
    pack           *p;
    int             fd, n;
    int             section[PACK_MAX_SECTIONS]; /* [n]: the largest first */
    int             first[PACK_MAX_SECTIONS];   /* chunk of its first range */
    atomic_int      left[PACK_MAX_SECTIONS];    /* ranges that are not read */
    atomic_bool     failed;
    pthread_mutex_t lock;
    err             why; /* the first error, under the lock */
} load_team;

static int n_ranges(const pack_section *s) { return (int)((s->bytes + RANGE - 1) / RANGE); }

static bool read_range(load_team *t, int k, int range, err *e)
{
    pack_section *s    = &t->p->section[t->section[k]];
    size_t        from = (size_t)range * RANGE, some = s->bytes - from < RANGE ? s->bytes - from : RANGE;
    if (!read_all(t->fd, (char *)s->data + from, some, s->offset + from, e)) return false;
    if (atomic_fetch_sub(&t->left[k], 1) > 1) return true;
    return hash128_equal(hash128_of(s->data, s->bytes), s->hash) ||
           err_set(e, ERR_FORMAT, "the checksum of section %d does not match", t->section[k]);
}

static void read_chunk(void *ctx, int chunk, int thread)
{
    load_team *t = ctx;
    err        e = {0};
    int        k = 0;
    (void)thread;
    if (atomic_load(&t->failed)) return;
    while (k + 1 < t->n && t->first[k + 1] <= chunk) k++;
    if (read_range(t, k, chunk - t->first[k], &e)) return;
    pthread_mutex_lock(&t->lock);
    if (!atomic_exchange(&t->failed, true)) t->why = e;
    pthread_mutex_unlock(&t->lock);
}

/* Adds the section to the list, and takes its memory. */
static bool add_to_load(load_team *t, int section, err *e)
{
    pack_section *s = &t->p->section[section];
    int           k = t->n;
    if (s->data || !s->bytes) return true;
    s->data = mem_try_large(s->bytes);
    if (!s->data)
        return err_set(e, ERR_UNAVAILABLE, "no memory for %llu bytes of a file", (unsigned long long)s->bytes);
    for (; k > 0 && t->p->section[t->section[k - 1]].bytes < s->bytes; k--) t->section[k] = t->section[k - 1];
    t->section[k] = section;
    t->n++;
    return true;
}

/* Frees what was taken for the load: it may be incomplete. */
static void drop_load(load_team *t)
{
    for (int k = 0; k < t->n; k++) {
        mem_free(t->p->section[t->section[k]].data);
        t->p->section[t->section[k]].data = NULL;
    }
}

bool pack_load_many(pack *p, int fd, const bool wanted[PACK_MAX_SECTIONS], pool *threads, err *e)
{
    load_team t      = {.p = p, .fd = fd, .lock = PTHREAD_MUTEX_INITIALIZER};
    int       chunks = 0;
    bool      ok = true, alone = pool_threads(threads) == 1;
    for (int i = 0; ok && i < p->n; i++)
        if (wanted[i]) ok = alone ? pack_load(p, fd, i, e) : add_to_load(&t, i, e);
    for (int k = 0; k < t.n; k++) {
        t.first[k] = chunks;
        t.left[k]  = n_ranges(&p->section[t.section[k]]);
        chunks += t.left[k];
    }
    if (ok && chunks) pool_run(threads, chunks, read_chunk, &t);
    if (ok && t.failed) {
        *e = t.why;
        ok = false;
    }
    if (!ok) drop_load(&t);
    return ok;
}

bool pack_read(pack *p, int dir, const char *name, err *e)
{
    memset(p, 0, sizeof *p);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open '%s': %s", name, strerror(errno));
    bool ok = pack_open(p, fd, e);
    for (int i = 0; ok && i < p->n; i++) ok = pack_load(p, fd, i, e);
    close(fd);
    if (ok) return true;
    pack_deinit(p);
    return err_wrap(e, "cannot use '%s'", name);
}

/* --- replacing a file ---------------------------------------------------------------------------*/
static const char leftover[] = ".part-";

bool pack_is_leftover(const char *name) { return !strncmp(name, leftover, sizeof leftover - 1); }

void pack_temp_name(char out[PACK_TEMP_MAX])
{
    static atomic_uint n_names;
    uint64_t           bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = (uint64_t)clock_ns();
    snprintf(out, PACK_TEMP_MAX, "%s%016llx-%u", leftover, (unsigned long long)bits, atomic_fetch_add(&n_names, 1));
}

static bool write_synced(pack *p, int fd, err *e)
{
    bool ok = pack_write(p, fd, e) && (fsync(fd) == 0 || err_set(e, ERR_IO, "cannot sync: %s", strerror(errno)));
    if (close(fd) < 0 && ok) ok = err_set(e, ERR_IO, "cannot close the file: %s", strerror(errno));
    return ok;
}

bool pack_save_over(pack *p, int dir, const char *temp, const char *name, err *e)
{
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set(e, ERR_IO, "cannot write '%s': cannot create a file: %s", name, strerror(errno));
    bool ok = write_synced(p, fd, e);
    if (ok && renameat(dir, temp, dir, name) < 0) ok = err_set(e, ERR_IO, "cannot rename: %s", strerror(errno));
    if (!ok) {
        unlinkat(dir, temp, 0);
        return err_wrap(e, "cannot write '%s'", name);
    }
    fsync(dir); /* some file systems cannot; the file itself is safe */
    return true;
}

bool pack_save(pack *p, int dir, const char *name, err *e)
{
    char temp[PACK_TEMP_MAX];
    pack_temp_name(temp);
    return pack_save_over(p, dir, temp, name, e);
}
