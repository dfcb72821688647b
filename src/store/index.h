/* store/index.h - the SQLite index of a directory of packs: which texts are stored, and in which order they were used.
 *
 * An entry is a file with the pages [from, to) of a text. Its key is the hash of the text up to `to`, its parent the
 * key of the text up to `from`. An entry is a leaf when no other entry has it as its parent. The index knows the sum of
 * all bytes, so nothing is scanned, at start or later.
 *
 *      DIR/index.db   DIR/kv/<key in hex>.kv       all with mode 0600, directories 0700
 *
 * Several processes may use one directory: SQLite's write-ahead log orders their changes. An entry is *pending* while
 * its file is written: its bytes count, and it is not found. A process that dies leaves a pending entry, which
 * index_open of any process removes together with the temporary file. A file is removed before its entry, so an entry
 * without a file is possible after a crash, and is a miss; a file without an entry is not.
 *
 * Thread: one thread at a time uses an index. Failures of SQLite: ERR_IO. */
#ifndef TANDEM_STORE_INDEX_H
#define TANDEM_STORE_INDEX_H
#include "store/pack.h"

typedef struct store_index store_index;

enum { INDEX_SECRET = 16, INDEX_NAME_MAX = 48 };

typedef struct {
    hash128  key, parent; /* parent zero: from is 0 */
    hash128  draft;       /* fingerprint of the drafters' part; zero: none */
    int32_t  to;          /* pages */
    uint64_t bytes;       /* size of the file */
} index_entry;

/* Opens the index in the directory, which is made if its parent exists. An index that SQLite cannot read, or of an
 * older format, is replaced by an empty one and its files are removed. ERR_IO: why the directory cannot be used.
 * ERR_FORMAT: the index was made by a newer program. *out is NULL on failure. */
bool index_open(store_index **out, const char *dir, err *e);
void index_close(store_index *x);     /* accepts NULL */
int  index_dir(const store_index *x); /* descriptor of the directory of files */
/* Returns random bytes that are the same for all processes that use the directory. */
const uint8_t *index_secret(const store_index *x);
void           index_file_name(hash128 key, char out[INDEX_NAME_MAX]);

/* Finds an entry whose file is complete. Returns false when there is none. */
bool index_find(store_index *x, hash128 key, index_entry *out);
/* Marks entries as used now, the first of keys as the latest. */
bool index_touch(store_index *x, const hash128 *keys, int n, err *e);
/* Adds a pending entry, and removes the least recently used leaves until all entries have at most max_bytes. Sets
 * *added to false when there is such an entry already, pending or not, or when there would be no room for it. temp: the
 * name of the temporary file. */
bool index_add(store_index *x, const index_entry *n, uint64_t max_bytes, const char *temp, bool *added, err *e);
/* Removes up to max_entries of the least recently used leaves while all entries have more than max_bytes. Sets *more to
 * whether there may be more to remove. */
bool index_trim(store_index *x, uint64_t max_bytes, int max_entries, bool *more, err *e);
/* Makes a pending entry complete, after its file was renamed. */
bool index_complete(store_index *x, hash128 key, err *e);
/* Removes the file and the entry. */
bool index_remove(store_index *x, hash128 key, err *e);

typedef struct {
    uint64_t bytes;   /* bytes of all entries */
    int64_t  entries; /* their number */
    int64_t  evicted; /* entries that index_add of this process removed */
} index_stats;
index_stats index_get_stats(store_index *x);
#endif
