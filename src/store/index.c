#include "store/index.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    FORMAT  = 1, /* value of PRAGMA user_version */
    BUSY_MS = 5000,
    STALE_S = 3600, /* a pending entry of another machine or container is removed after this time */
};

enum { FIND, TOUCH, ADD, COMPLETE, REMOVE, OLDEST, TOTAL, SECRET, PENDING, STATEMENTS };
static const char *const sql[STATEMENTS] = {
    [FIND]  = "SELECT parent, draft, pages, bytes FROM entry WHERE key = ?1 AND state = 1",
    [TOUCH] = "UPDATE entry SET used = ?2 WHERE key = ?1",
    [ADD]   = ("INSERT OR IGNORE INTO entry(key, parent, draft, pages, bytes, used, state, owner, pid, temp, children)"
               " VALUES(?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, (SELECT COUNT(*) FROM entry WHERE parent = ?1))"),
    [COMPLETE] = "UPDATE entry SET state = 1 WHERE key = ?1 AND state = 0 AND owner = ?2",
    [REMOVE]   = "DELETE FROM entry WHERE key = ?1",
    [OLDEST] =
        "SELECT key FROM entry WHERE children = 0 AND key <> ?1 AND key <> ?2 AND state = 1 ORDER BY used LIMIT 1",
    [TOTAL]   = "SELECT bytes, entries FROM total",
    [SECRET]  = "SELECT value FROM meta WHERE name = 'secret'",
    [PENDING] = "SELECT key, owner, temp, used, pid FROM entry WHERE state = 0",
};

/* The triggers keep the sums and the numbers of children. */
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS entry(key BLOB PRIMARY KEY, parent BLOB NOT NULL, draft BLOB NOT NULL,"
    " pages INTEGER NOT NULL, bytes INTEGER NOT NULL, used INTEGER NOT NULL, state INTEGER NOT NULL,"
    " owner INTEGER NOT NULL, pid INTEGER NOT NULL, temp TEXT NOT NULL, children INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS entry_used ON entry(children, used);"
    "CREATE INDEX IF NOT EXISTS entry_parent ON entry(parent);"
    "CREATE INDEX IF NOT EXISTS entry_pending ON entry(state) WHERE state = 0;"
    "CREATE TABLE IF NOT EXISTS total(one INTEGER PRIMARY KEY CHECK(one = 1), bytes INTEGER, entries INTEGER);"
    "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value BLOB);"
    "INSERT OR IGNORE INTO total VALUES(1, 0, 0);"
    "INSERT OR IGNORE INTO meta VALUES('secret', randomblob(16));"
    "CREATE TRIGGER IF NOT EXISTS entry_added AFTER INSERT ON entry BEGIN"
    " UPDATE total SET bytes = bytes + NEW.bytes, entries = entries + 1;"
    " UPDATE entry SET children = children + 1 WHERE key = NEW.parent; END;"
    "CREATE TRIGGER IF NOT EXISTS entry_removed AFTER DELETE ON entry BEGIN"
    " UPDATE total SET bytes = bytes - OLD.bytes, entries = entries - 1;"
    " UPDATE entry SET children = children - 1 WHERE key = OLD.parent; END;";

struct store_index {
    sqlite3      *db;
    sqlite3_stmt *st[STATEMENTS];
    int           dir; /* directory of files */
    uint8_t       secret[INDEX_SECRET];
    int64_t       evicted;
};

static bool failed(const store_index *x, const char *what, err *e)
{
    return err_set(e, ERR_IO, "cannot %s: %s", what, x->db ? sqlite3_errmsg(x->db) : "no memory");
}

static bool run(store_index *x, const char *text, err *e)
{
    return sqlite3_exec(x->db, text, NULL, NULL, NULL) == SQLITE_OK || failed(x, "change the index", e);
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* --- statements ---------------------------------------------------------------------------------*/
static void bind_hash(sqlite3_stmt *s, int at, const hash128 *h)
{
    sqlite3_bind_blob(s, at, h, sizeof *h, SQLITE_TRANSIENT);
}

static hash128 column_hash(sqlite3_stmt *s, int at)
{
    hash128 h = {0};
    if (sqlite3_column_bytes(s, at) == sizeof h) memcpy(&h, sqlite3_column_blob(s, at), sizeof h);
    return h;
}

/* Runs a statement that returns no row. */
static bool step_once(store_index *x, int which, err *e)
{
    bool ok = sqlite3_step(x->st[which]) == SQLITE_DONE || failed(x, "change the index", e);
    sqlite3_reset(x->st[which]);
    return ok;
}

/* --- files --------------------------------------------------------------------------------------*/
void index_file_name(hash128 key, char out[INDEX_NAME_MAX])
{
    snprintf(out, INDEX_NAME_MAX, "%016llx%016llx.kv", (unsigned long long)key.hi, (unsigned long long)key.lo);
}

static bool delete_entry(store_index *x, hash128 key, err *e)
{
    bind_hash(x->st[REMOVE], 1, &key);
    return step_once(x, REMOVE, e);
}

bool index_remove(store_index *x, hash128 key, err *e)
{
    char name[INDEX_NAME_MAX];
    index_file_name(key, name);
    unlinkat(x->dir, name, 0);
    return delete_entry(x, key, e);
}

/* --- opening ------------------------------------------------------------------------------------*/
/* Makes the file with mode 0600: SQLite gives the same mode to its other files. A file that exists is not opened:
 * closing it would drop the locks of other connections of this process. */
static bool make_database(const char *path, err *e)
{
    struct stat st;
    int         fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        close(fd);
        return true;
    }
    if (errno == EEXIST && lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "'%s' is not a regular file", path);
    return errno == EEXIST || err_set(e, ERR_IO, "cannot make '%s': %s", path, strerror(errno));
}

static bool open_database(store_index *x, const char *path, err *e)
{
    if (!make_database(path, e)) return false;
    if (sqlite3_open_v2(path, &x->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return failed(x, "open the index", e);
    sqlite3_busy_timeout(x->db, BUSY_MS);
    return run(x, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 16777216;", e);
}

static int read_format(store_index *x)
{
    sqlite3_stmt *s      = NULL;
    int           format = -1;
    if (sqlite3_prepare_v2(x->db, "PRAGMA user_version", -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        format = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return format;
}

static bool has_tables(store_index *x)
{
    sqlite3_stmt *s = NULL;
    bool          there =
        sqlite3_prepare_v2(x->db, "SELECT 1 FROM sqlite_master WHERE name = 'entry'", -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return there;
}

static bool prepare_all(store_index *x, err *e)
{
    char text[64];
    snprintf(text, sizeof text, "PRAGMA user_version = %d; COMMIT", FORMAT);
    if (read_format(x) != FORMAT && (!run(x, "BEGIN IMMEDIATE", e) || !run(x, schema, e) || !run(x, text, e)))
        return false;
    for (int i = 0; i < STATEMENTS; i++)
        if (sqlite3_prepare_v2(x->db, sql[i], -1, &x->st[i], NULL) != SQLITE_OK) return failed(x, "use the index", e);
    bool ok = sqlite3_step(x->st[SECRET]) == SQLITE_ROW && sqlite3_column_bytes(x->st[SECRET], 0) == INDEX_SECRET;
    if (ok) memcpy(x->secret, sqlite3_column_blob(x->st[SECRET], 0), INDEX_SECRET);
    sqlite3_reset(x->st[SECRET]);
    return ok || failed(x, "read the index", e);
}

/* Returns a random number that identifies this process: the number of a process is used again, in containers always. */
static int64_t owner_id(void)
{
    static _Atomic int64_t id;
    int64_t                now = id, fresh = 0;
    if (now) return now;
    if (getrandom(&fresh, sizeof fresh, 0) != sizeof fresh) fresh = now_us();
    fresh = (fresh & INT64_MAX) | 1;
    atomic_compare_exchange_strong(&id, &now, fresh);
    return id;
}

/* Returns whether the process that made a pending entry may still write its file. */
static bool is_alive(int64_t owner, pid_t pid)
{
    return pid == getpid() ? owner == owner_id() : kill(pid, 0) == 0 || errno == EPERM;
}

/* Removes the entries of files that processes did not finish. */
static void remove_pending(store_index *x)
{
    enum { MAX = 256 };
    hash128       key[MAX];
    int           n = 0;
    sqlite3_stmt *s = x->st[PENDING];
    while (n < MAX && sqlite3_step(s) == SQLITE_ROW) {
        bool stale = now_us() - sqlite3_column_int64(s, 3) > (int64_t)STALE_S * 1000000;
        if (!stale && is_alive(sqlite3_column_int64(s, 1), (pid_t)sqlite3_column_int64(s, 4))) continue;
        const char *temp = (const char *)sqlite3_column_text(s, 2);
        if (temp && !strchr(temp, '/')) unlinkat(x->dir, temp, 0);
        key[n++] = column_hash(s, 0);
    }
    sqlite3_reset(s);
    while (n > 0) index_remove(x, key[--n], NULL);
}

static void close_database(store_index *x)
{
    for (int i = 0; i < STATEMENTS; i++) {
        sqlite3_finalize(x->st[i]);
        x->st[i] = NULL;
    }
    sqlite3_close(x->db);
    x->db = NULL;
}

/* Removes an index that cannot be read, and all files: without it nobody knows them. */
static void remove_all(store_index *x, const char *path)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char                     name[4096];
    close_database(x);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (snprintf(name, sizeof name, "%s%s", path, ends[i]) < (int)sizeof name) unlink(name);
    int  fd = dup(x->dir);
    DIR *d  = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.' || pack_is_leftover(f->d_name)) unlinkat(x->dir, f->d_name, 0);
    if (d) closedir(d);
}

static bool open_dirs(store_index *x, const char *dir, char path[4096], err *e)
{
    char files[4096];
    if (!file_join(path, 4096, dir, "index.db") || !file_join(files, sizeof files, dir, "kv"))
        return err_set(e, ERR_IO, "the path is too long");
    if ((mkdir(dir, 0700) < 0 && errno != EEXIST) || (mkdir(files, 0700) < 0 && errno != EEXIST))
        return err_set(e, ERR_IO, "cannot make the directory: %s", strerror(errno));
    x->dir = open(files, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return x->dir >= 0 || err_set(e, ERR_IO, "cannot open '%s': %s", files, strerror(errno));
}

static bool open_index(store_index *x, const char *dir, err *e)
{
    char path[4096];
    if (!open_dirs(x, dir, path, e)) return false;
    bool ok = open_database(x, path, e);
    int  rc = x->db ? sqlite3_errcode(x->db) : SQLITE_NOMEM, format = ok ? read_format(x) : -1;
    if (ok && format > FORMAT)
        return err_set(e, ERR_FORMAT, "its index has format %d, and this program reads format %d", format, FORMAT);
    bool old = ok && format < FORMAT && has_tables(x);
    if (ok && !old) ok = prepare_all(x, e), rc = sqlite3_errcode(x->db);
    if (!old && (ok || (rc != SQLITE_CORRUPT && rc != SQLITE_NOTADB))) return ok;
    log_event(LOG_WARN, "cache", "%s: its index cannot be read, it is replaced by an empty one", dir);
    remove_all(x, path);
    return open_database(x, path, e) && prepare_all(x, e);
}

bool index_open(store_index **out, const char *dir, err *e)
{
    store_index *x = xnew(store_index);
    *out           = NULL;
    x->dir         = -1;
    if (!open_index(x, dir, e)) {
        index_close(x);
        return err_wrap(e, "cannot use the cache directory '%s'", dir);
    }
    remove_pending(x);
    *out = x;
    return true;
}

void index_close(store_index *x)
{
    if (!x) return;
    close_database(x);
    if (x->dir >= 0) close(x->dir);
    mem_free(x);
}

int            index_dir(const store_index *x) { return x->dir; }
const uint8_t *index_secret(const store_index *x) { return x->secret; }

/* --- entries ------------------------------------------------------------------------------------*/
bool index_find(store_index *x, hash128 key, index_entry *out)
{
    sqlite3_stmt *s = x->st[FIND];
    bind_hash(s, 1, &key);
    bool there = sqlite3_step(s) == SQLITE_ROW;
    if (there)
        *out = (index_entry){.key    = key,
                             .parent = column_hash(s, 0),
                             .draft  = column_hash(s, 1),
                             .to     = sqlite3_column_int(s, 2),
                             .bytes  = (uint64_t)sqlite3_column_int64(s, 3)};
    sqlite3_reset(s);
    return there;
}

/* Ends a transaction. */
static bool finish(store_index *x, bool ok, err *e)
{
    if (ok && run(x, "COMMIT", e)) return true;
    sqlite3_exec(x->db, "ROLLBACK", NULL, NULL, NULL);
    return false;
}

bool index_touch(store_index *x, const hash128 *keys, int n, err *e)
{
    int64_t now = now_us();
    bool    ok  = run(x, "BEGIN IMMEDIATE", e);
    if (!ok) return false;
    for (int i = 0; ok && i < n; i++) {
        bind_hash(x->st[TOUCH], 1, &keys[i]);
        sqlite3_bind_int64(x->st[TOUCH], 2, now - i);
        ok = step_once(x, TOUCH, e);
    }
    return finish(x, ok, e);
}

index_stats index_get_stats(store_index *x)
{
    index_stats s = {.evicted = x->evicted};
    if (sqlite3_step(x->st[TOTAL]) == SQLITE_ROW) {
        s.bytes   = (uint64_t)sqlite3_column_int64(x->st[TOTAL], 0);
        s.entries = sqlite3_column_int64(x->st[TOTAL], 1);
    }
    sqlite3_reset(x->st[TOTAL]);
    return s;
}

/* Removes the least recently used leaf that is neither of these; false: there is none. */
static bool evict_one(store_index *x, const index_entry *n, err *e)
{
    sqlite3_stmt *s = x->st[OLDEST];
    bind_hash(s, 1, &n->key);
    bind_hash(s, 2, &n->parent);
    bool    there = sqlite3_step(s) == SQLITE_ROW;
    hash128 key   = there ? column_hash(s, 0) : (hash128){0};
    sqlite3_reset(s);
    if (!there || !index_remove(x, key, e)) return false;
    x->evicted++;
    return true;
}

static bool insert(store_index *x, const index_entry *n, const char *temp, bool *added, err *e)
{
    sqlite3_stmt *s = x->st[ADD];
    bind_hash(s, 1, &n->key);
    bind_hash(s, 2, &n->parent);
    bind_hash(s, 3, &n->draft);
    sqlite3_bind_int(s, 4, n->to);
    sqlite3_bind_int64(s, 5, (sqlite3_int64)n->bytes);
    sqlite3_bind_int64(s, 6, now_us());
    sqlite3_bind_int64(s, 7, owner_id());
    sqlite3_bind_int64(s, 8, getpid());
    sqlite3_bind_text(s, 9, temp, -1, SQLITE_TRANSIENT);
    bool ok = step_once(x, ADD, e);
    *added  = ok && sqlite3_changes(x->db) > 0;
    return ok;
}

bool index_add(store_index *x, const index_entry *n, uint64_t max_bytes, const char *temp, bool *added, err *e)
{
    *added = false;
    if (n->bytes > max_bytes) return true;
    /* Synced, as nothing else: after a crash of the machine, no file may be without an entry. */
    if (!run(x, "PRAGMA synchronous = FULL; BEGIN IMMEDIATE", e)) return false;
    bool ok = insert(x, n, temp, added, e);
    while (ok && *added && index_get_stats(x).bytes > max_bytes)
        if (!evict_one(x, n, e)) { /* pending entries and parents stay */
            ok     = delete_entry(x, n->key, e);
            *added = false;
        }
    ok = finish(x, ok, e);
    sqlite3_exec(x->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
    return ok;
}

bool index_trim(store_index *x, uint64_t max_bytes, int max_entries, bool *more, err *e)
{
    const index_entry none = {0};
    bool              left = true;
    *more                  = false;
    if (index_get_stats(x).bytes <= max_bytes) return true;
    if (!run(x, "BEGIN IMMEDIATE", e)) return false;
    for (int i = 0; left && i < max_entries && index_get_stats(x).bytes > max_bytes; i++)
        left = evict_one(x, &none, NULL);
    if (!finish(x, true, e)) return false;
    *more = left && index_get_stats(x).bytes > max_bytes;
    return true;
}

bool index_complete(store_index *x, hash128 key, err *e)
{
    bind_hash(x->st[COMPLETE], 1, &key);
    sqlite3_bind_int64(x->st[COMPLETE], 2, owner_id());
    if (!step_once(x, COMPLETE, e)) return false;
    return sqlite3_changes(x->db) > 0 || err_set(e, ERR_NOT_FOUND, "the entry was removed while its file was written");
}
