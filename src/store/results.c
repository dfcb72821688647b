#include "store/results.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct results {
    sqlite3 *db;
};

enum { BUSY_MS = 2000 };

static bool failed(const results *h, const char *what, err *e)
{
    return err_set(e, ERR_IO, "cannot %s the results: %s", what, h->db ? sqlite3_errmsg(h->db) : "no memory");
}

/* Makes the file with mode 0600 before SQLite opens it. */
static bool make_file(const char *dir, char *path, size_t cap, err *e)
{
    if (snprintf(path, cap, "%s/results.db", dir) >= (int)cap)
        return err_set(e, ERR_INPUT, "the path of the directory is too long");
    if (mkdir(dir, 0700) && errno != EEXIST) return err_set(e, ERR_IO, "cannot make %s: %s", dir, strerror(errno));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return err_set(e, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    close(fd);
    return true;
}

bool results_open(results **out, const char *dir, err *e)
{
    /* A crash of the machine may lose the last text: it is not worth waiting for the disk. */
    static const char schema[]   = "PRAGMA synchronous = OFF;"
                                   "CREATE TABLE IF NOT EXISTS bench(id INTEGER PRIMARY KEY AUTOINCREMENT,"
                                   " ts INTEGER NOT NULL, text TEXT NOT NULL);";
    char              path[4096] = ":memory:";
    *out                         = NULL;
    if (dir && !make_file(dir, path, sizeof path, e)) return false;
    results *h  = xnew(results);
    bool     ok = sqlite3_open(path, &h->db) == SQLITE_OK && sqlite3_busy_timeout(h->db, BUSY_MS) == SQLITE_OK &&
              sqlite3_exec(h->db, schema, NULL, NULL, NULL) == SQLITE_OK;
    if (!ok) {
        failed(h, "open", e);
        results_close(h);
        return false;
    }
    *out = h;
    return true;
}

void results_close(results *h)
{
    if (!h) return;
    sqlite3_close(h->db);
    mem_free(h);
}

bool results_add(results *h, int64_t ts, str text, err *e)
{
    static const char put[] = "INSERT INTO bench(ts, text) VALUES(?1, ?2)";
    char              cut[128];
    sqlite3_stmt     *s  = NULL;
    bool              ok = sqlite3_prepare_v2(h->db, put, -1, &s, NULL) == SQLITE_OK;
    if (ok) {
        sqlite3_bind_int64(s, 1, ts);
        sqlite3_bind_text(s, 2, text.s, (int)text.n, SQLITE_STATIC);
        ok = sqlite3_step(s) == SQLITE_DONE;
    }
    snprintf(cut, sizeof cut, "DELETE FROM bench WHERE id <= (SELECT MAX(id) FROM bench) - %d", RESULTS_MAX);
    ok = ok && sqlite3_exec(h->db, cut, NULL, NULL, NULL) == SQLITE_OK;
    if (!ok) failed(h, "add to", e);
    sqlite3_finalize(s);
    return ok;
}

bool results_each(results *h, bool (*fn)(void *ctx, int64_t ts, str text), void *ctx, err *e)
{
    sqlite3_stmt *s = NULL;
    bool ok   = sqlite3_prepare_v2(h->db, "SELECT ts, text FROM bench ORDER BY id DESC", -1, &s, NULL) == SQLITE_OK;
    bool more = ok;
    while (more) {
        int got = sqlite3_step(s);
        ok      = got == SQLITE_ROW || got == SQLITE_DONE;
        more =
            got == SQLITE_ROW && fn(ctx, sqlite3_column_int64(s, 0),
                                    (str){(const char *)sqlite3_column_text(s, 1), (size_t)sqlite3_column_bytes(s, 1)});
    }
    if (!ok) failed(h, "read", e);
    sqlite3_finalize(s);
    return ok;
}
