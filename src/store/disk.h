/* store/disk.h - the tiers below the prefix cache: threads that find, read and write packs in host memory
 * (store/memory.h) and in a directory (store/index.h). Either may be missing.
 *
 *      engine thread: disk_submit(request) ---> disk threads: index, files ---> request.done, on_done rings
 *
 * A text is named by the keys of its pages: key[i] is the hash of the tokens of pages 0 .. i, of the tenant and of the
 * fingerprint of the model (disk_keys). A request is one of:
 *   DISK_LOAD  finds the longest stored beginning of a text and reads its packs. A file that is damaged is removed.
 *   DISK_PLAN  finds out which of several lengths of a text are not stored yet, and marks the others as used.
 *   DISK_SAVE  writes a pack, unless there is such an entry, and removes old ones for it; keeps it in host memory.
 *
 * One thread reads and one writes, so that loads do not wait for files that are written. When the disk is full or
 * fails, writing pauses for a minute and one warning is logged; loads go on. Any thread may submit. The submitter owns
 * a request until disk_drop. */
#ifndef TANDEM_STORE_DISK_H
#define TANDEM_STORE_DISK_H
#include "store/memory.h"

typedef struct disk disk;

typedef struct {
    const char *dir;            /* NULL: no directory */
    uint64_t    park_bytes;     /* limit of the packs in host memory; 0: none are kept */
    uint64_t    max_bytes;      /* limit of all files */
    void (*on_done)(void *ctx); /* called on a disk thread when a request is done */
    void *ctx;
} disk_options;

typedef enum { DISK_LOAD, DISK_PLAN, DISK_SAVE, DISK_TOUCH } disk_kind; /* DISK_TOUCH: for disk.c only */
enum { DISK_MAX_CUTS = 64 };

typedef struct disk_request disk_request;
struct disk_request {
    disk_kind kind;
    hash128  *key; /* [n_keys], owned by the request */
    int32_t   n_keys;

    /* DISK_LOAD: entries of up to `have` pages are not read */
    int32_t  have;
    uint64_t max_load; /* bytes */
    double   page_s;   /* seconds that computing a page takes: a slower load is skipped; 0: not known */
    /* Returns whether a section of the file is needed for a text of `end` pages. */
    bool (*wants)(const void *ctx, const pack_section *s, int32_t end);
    /* Checks a file of `to` pages whose wanted sections are loaded. One that fails with ERR_FORMAT is removed. NULL:
     * any is right. */
    bool (*fits)(const void *ctx, const pack *p, int32_t to, err *e);
    void        *wants_ctx; /* argument of both, owned by the request: from base/mem.h, or NULL */
    const pack **image;     /* [n_images]: the result, valid until disk_drop */
    parked     **taken;     /* [n_images]: its entry in host memory; NULL: the request owns the pack */
    int          n_images;
    int32_t      end;    /* pages that the images reach; 0: nothing was found */
    uint64_t     loaded; /* bytes read */

    /* DISK_PLAN: lengths in pages, ascending; on return those of complete entries are in `stored` */
    int32_t cut[DISK_MAX_CUTS];
    hash128 draft[DISK_MAX_CUTS]; /* an entry without this drafter's part is replaced; zero: any will do */
    bool    stored[DISK_MAX_CUTS];
    int     n_cuts;

    /* DISK_SAVE: the pack of pages [from, to), borrowed until free_pack(pack_ctx) is called by disk_drop */
    int32_t from, to;
    hash128 save_draft;
    pack   *save;
    void (*free_pack)(void *pack_ctx);
    void *pack_ctx;
    bool  saved; /* the file is complete */

    bool          done, dropped, running; /* guarded by the lock of the disk, as next */
    disk_request *next;
};

/* Opens the directory and starts the threads. *out is NULL on failure: errors as index_open. */
bool disk_open(disk **out, const disk_options *o, err *e);
/* Ends the current requests and the threads. All requests were dropped by their owners. Waits at most `seconds`: then a
 * warning is logged, and the last thread frees everything when its request ends. Accepts NULL. */
void           disk_close(disk *d, int seconds);
const uint8_t *disk_secret(const disk *d); /* [INDEX_SECRET], as index_secret; NULL without a directory */

/* Returns a zeroed request with the keys of the first n_pages of a text with page_tokens tokens each. */
disk_request *disk_request_new(disk_kind kind, hash128 fingerprint, uint64_t salt, const int32_t *text, int32_t n_pages,
                               int page_tokens);
void          disk_submit(disk *d, disk_request *r);
bool          disk_is_done(disk *d, disk_request *r); /* after true, the results may be read */
/* Gives a request back, done or not. A pack that is being written is freed when the thread is done with it. */
void disk_drop(disk *d, disk_request *r); /* accepts NULL */

typedef struct {
    uint64_t bytes;                     /* bytes of all entries */
    int64_t  entries;                   /* in the directory */
    uint64_t parked_bytes;              /* in host memory */
    int64_t  skipped;                   /* misses because computing is faster than reading */
    int64_t  hits, misses;              /* loads that found something, or nothing */
    int64_t  read_bytes, written_bytes; /* bytes of files */
    int64_t  written, evicted, removed,
        failures;  /* files: written, removed for room, removed as damaged; failed writes */
    double read_s; /* seconds that loads which found something took */
} disk_stats;
void disk_get_stats(disk *d, disk_stats *out);
#endif
