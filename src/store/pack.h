/* store/pack.h - a checked file of sections: the format of stored K/V and of saved sessions.
 *
 *      header   magic, version, kind, number of sections, fingerprint, file size, section table, XXH3 of all this
 *      sections the bytes of each section, one after another, without gaps
 *
 * Numbers are little-endian. Each entry of the table has the section's place, its size and the XXH3-128 of its bytes.
 * The fingerprint identifies what the contents depend on, such as the model's weights; a reader compares it. A file
 * whose size, header or section differs from the checksums is refused with ERR_FORMAT, and so is another version.
 * Nothing is allocated from a length that was not compared with the size of the file.
 *
 * Any thread may use these functions, one thread at a time for each pack and pool. */
#ifndef TANDEM_STORE_PACK_H
#define TANDEM_STORE_PACK_H
#include "base/err.h"

#include <stddef.h>

enum {
    PACK_VERSION      = 1,
    PACK_MAX_SECTIONS = 256,
    PACK_HEADER_MAX   = 64 + PACK_MAX_SECTIONS * 72, /* bytes; an upper bound */
};

typedef struct {
    uint64_t lo, hi;
} hash128;
hash128            hash128_of(const void *p, size_t n);
hash128            hash128_join(hash128 a, const void *p, size_t n); /* hash of a and the bytes */
static inline bool hash128_equal(hash128 a, hash128 b) { return a.lo == b.lo && a.hi == b.hi; }
static inline bool hash128_is_zero(hash128 a) { return !a.lo && !a.hi; }

/* The kinds of sections are defined by the modules that write them: kv/image.h uses 1 to 15. */
typedef struct {
    uint32_t kind, id;
    int32_t  first, n; /* meaning depends on the kind */
    hash128  tag;      /* fingerprint of what this section alone depends on; zero: none */
    uint64_t offset;   /* place in the file; set by pack_write and pack_open */
    uint64_t bytes;
    hash128  hash; /* set by pack_write and pack_open */
    void    *data; /* [bytes], owned by the pack; NULL: not loaded, or bytes is 0 */
} pack_section;

typedef struct {
    uint32_t     kind; /* kind of the file, defined by its writer */
    hash128      fingerprint;
    int          n;
    pack_section section[PACK_MAX_SECTIONS];
} pack;

/* Adds a section with `bytes` bytes of memory to fill in, and returns it; NULL when there is no memory or no place. */
pack_section *pack_add(pack *p, uint32_t kind, uint32_t id, size_t bytes);
/* Returns the first section of this kind and id, or NULL. */
const pack_section *pack_find(const pack *p, uint32_t kind, uint32_t id);
void                pack_deinit(pack *p); /* frees the data of all sections and zeroes *p */
size_t              pack_bytes(const pack *p);

/* Reads and checks the header; overwrites *p. No section is loaded. */
bool pack_open(pack *p, int fd, err *e);

struct pool;
/* Loads and checks the sections that are marked, by the threads of the pool. ERR_UNAVAILABLE: no memory. */
bool pack_load_many(pack *p, int fd, const bool wanted[PACK_MAX_SECTIONS], struct pool *threads, err *e);

/* Writes the pack to a temporary file in the directory, with mode 0600, syncs it, renames it to `name` and syncs the
 * directory. A crash at any moment leaves the old file or the new one. On failure nothing is left. */
bool pack_save(pack *p, int dir, const char *name, err *e);
/* Does the same with a temporary name of the caller's choice. A file that has this name already is left alone, and
 * ERR_IO is returned. */
bool pack_save_over(pack *p, int dir, const char *temp, const char *name, err *e);
/* Opens `name` in the directory, reads the header and loads all sections. ERR_NOT_FOUND: there is no such file. */
bool pack_read(pack *p, int dir, const char *name, err *e);
enum { PACK_TEMP_MAX = 64 };
/* Writes a new random name for a temporary file. Its prefix is ".part-". */
void pack_temp_name(char out[PACK_TEMP_MAX]);
/* Returns whether the name is that of a temporary file that pack_save left when its process was killed. */
bool pack_is_leftover(const char *name);
#endif
