#include "watch.h"

#include "cuda_runtime_api.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A stamp says which launch wrote two bytes: its number * 2, and 1 more if the block had let the next kernel start. */
enum { NOT_DEVICE = 0, NOT_WRITTEN = 1, FIRST_LAUNCH = 1 };
enum { PAGE_BITS = 12, PAGE = 1 << PAGE_BITS, EACH = 2, TABLE_BITS = 18, ADDRESS_BITS = 47 };
typedef union stamp_page stamp_page;
union stamp_page {
    uint32_t    stamp[PAGE / EACH];
    stamp_page *next; /* of the pages that are not in use */
};
typedef struct {
    stamp_page *page[1 << TABLE_BITS]; /* NULL: not device memory */
} page_table;
static page_table *table_of[1 << (ADDRESS_BITS - PAGE_BITS - TABLE_BITS)];
static stamp_page  not_written; /* shared by pages that no kernel wrote */
static stamp_page *unused;

enum { NAMES = 1 << 12 };
static struct {
    uint32_t    launch, complete; /* the number of the last launch; of the last that is known to be complete */
    const char *name[NAMES];      /* of launch i: [i % NAMES] */
    bool        early, any_waited, let_early;
    /* Of the running block: */
    bool must_wait, let;
} now = {.launch = FIRST_LAUNCH, .complete = FIRST_LAUNCH};

/* --- stamps ---------------------------------------------------------------------------------------*/
/* Returns bytes that are 0, and stay. Not of the heap, whose use the tests count and restrict. */
static void *take_room(size_t bytes)
{
    enum { ROOM_BITS = 38 };
    static char  *room;
    static size_t used;
    if (!room) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        room      = mmap(NULL, (size_t)1 << ROOM_BITS, PROT_READ | PROT_WRITE, flags, -1, 0);
    }
    if (room == MAP_FAILED || used + bytes > (size_t)1 << ROOM_BITS) emu_fail("no room for the stamps of memory");
    used += bytes;
    return room + used - bytes;
}

static stamp_page **find_page(uintptr_t at)
{
    page_table *t = table_of[at >> (PAGE_BITS + TABLE_BITS)];
    return t ? &t->page[at >> PAGE_BITS & ((1 << TABLE_BITS) - 1)] : NULL;
}

static stamp_page *own_page(stamp_page **p)
{
    if (*p && *p != &not_written) return *p;
    stamp_page *own = unused;
    if (own)
        unused = own->next;
    else
        own = take_room(sizeof *own);
    if (*p)
        *own = not_written;
    else
        memset(own, NOT_DEVICE, sizeof *own);
    return *p = own;
}

/* Replaces a page by one that is all alike: NULL or not_written. */
static void drop_page(stamp_page **p, stamp_page *by)
{
    stamp_page *own = *p;
    if (own && own != &not_written) {
        own->next = unused;
        unused    = own;
    }
    *p = by;
}

static void set_stamps(uintptr_t from, uintptr_t end, uint32_t stamp)
{
    for (uintptr_t at = from, to; at < end; at = to) {
        to             = (at | (PAGE - 1)) + 1;
        to             = to < end ? to : end;
        page_table **t = &table_of[at >> (PAGE_BITS + TABLE_BITS)];
        if (!*t) *t = take_room(sizeof **t);
        stamp_page **page = find_page(at);
        if (to - at == PAGE) {
            drop_page(page, stamp == NOT_DEVICE ? NULL : &not_written);
            continue;
        }
        stamp_page *own = own_page(page);
        for (uintptr_t i = at % PAGE / EACH; i <= (to - 1) % PAGE / EACH; i++) own->stamp[i] = stamp;
    }
}

void watch_begin(const void *p, size_t bytes)
{
    if (!not_written.stamp[0])
        for (int i = 0; i < PAGE / EACH; i++) not_written.stamp[i] = NOT_WRITTEN;
    set_stamps((uintptr_t)p, (uintptr_t)p + bytes, NOT_WRITTEN);
}

void watch_end(const void *p, size_t bytes) { set_stamps((uintptr_t)p, (uintptr_t)p + bytes, NOT_DEVICE); }

/* --- launches -------------------------------------------------------------------------------------*/
void watch_all_complete(void) { now.complete = now.launch; }

void watch_launch(const char *kernel, bool early)
{
    if (!early) watch_all_complete();
    now.name[++now.launch % NAMES] = kernel;
    now.early                      = early;
    now.any_waited = now.let_early = false;
}

void watch_block(void)
{
    now.must_wait = now.early;
    now.let       = false;
}

void watch_block_end(void)
{
    now.let_early |= now.must_wait; /* a block that ends also lets the next kernel start */
    now.must_wait = false;
}

void watch_launch_end(void)
{
    if (now.early && !now.any_waited) {
        fprintf(stderr, "emu: %s starts early and never waits\n", now.name[now.launch % NAMES]);
        abort();
    }
    if (now.early && !now.let_early) now.complete = now.launch - 1;
}

void emu_wait_for_previous(void)
{
    now.must_wait  = false;
    now.any_waited = true;
}

void emu_let_next_start(void)
{
    now.let_early |= now.must_wait;
    now.let = true;
}

/* --- accesses -------------------------------------------------------------------------------------*/
static void fail_early(const char *does, uint32_t stamp)
{
    emu_dim b = emu_at.block, t = emu_at.thread;
    fprintf(stderr,
            "emu: %s %s device memory before it waits for the kernels before it; block %u %u %u, thread %u %u %u",
            now.name[now.launch % NAMES], does, b.x, b.y, b.z, t.x, t.y, t.z);
    if (stamp / 2 > FIRST_LAUNCH) fprintf(stderr, "; last written by %s", now.name[stamp / 2 % NAMES]);
    fprintf(stderr, "\n");
    abort();
}

/* Checks a read of a block that has to wait. */
static void check_read(uintptr_t from, size_t bytes, bool l2)
{
    for (uintptr_t at = from; at < from + bytes; at += EACH - at % EACH) {
        stamp_page **page  = find_page(at);
        uint32_t     stamp = page && *page ? (*page)->stamp[at % PAGE / EACH] : NOT_DEVICE;
        if (stamp / 2 > now.complete && !(l2 && stamp % 2 == 0)) fail_early("reads", stamp);
    }
}

static void note_write(uintptr_t from, size_t bytes)
{
    uint32_t stamp = now.launch * 2 + now.let;
    for (uintptr_t at = from; at < from + bytes; at += EACH - at % EACH) {
        stamp_page **page = find_page(at);
        if (!page || !*page) continue;
        uint32_t *to = &(*page)->stamp[at % PAGE / EACH];
        if (*to == NOT_DEVICE) continue;
        if (now.must_wait) fail_early("writes", *to);
        own_page(page)->stamp[at % PAGE / EACH] = stamp;
    }
}

void emu_reads(const void *p, size_t bytes)
{
    if (now.must_wait) check_read((uintptr_t)p, bytes, false);
}

int32_t emu_read_l2(const int32_t *p)
{
    if (now.must_wait) check_read((uintptr_t)p, sizeof *p, true);
    return *p;
}

/* The compiler calls these before each access of a kernel. */
void __tsan_init(void);
void __tsan_init(void) {}
#define ACCESSES(n)                                                                                                    \
    void __tsan_read##n(const void *p);                                                                                \
    void __tsan_write##n(const void *p);                                                                               \
    void __tsan_unaligned_read##n(const void *p);                                                                      \
    void __tsan_unaligned_write##n(const void *p);                                                                     \
    void __tsan_read##n(const void *p) { emu_reads(p, n); }                                                            \
    void __tsan_write##n(const void *p) { note_write((uintptr_t)p, n); }                                               \
    void __tsan_unaligned_read##n(const void *p) { emu_reads(p, n); }                                                  \
    void __tsan_unaligned_write##n(const void *p) { note_write((uintptr_t)p, n); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(const void *p, size_t bytes);
void __tsan_write_range(const void *p, size_t bytes);
void __tsan_read_range(const void *p, size_t bytes) { emu_reads(p, bytes); }
void __tsan_write_range(const void *p, size_t bytes) { note_write((uintptr_t)p, bytes); }
