#include "base/file.h"
#include "base/sha256.h"
#include "sched/routing_log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { WHOLE = 64 << 20, PLACES = 64, PIECE = 64 << 10 };

static void put_sampled(sha256 *s, str bytes)
{
    uint64_t size = bytes.n;
    sha256_put(s, &size, sizeof size);
    for (size_t i = 0; i < PLACES; i++) sha256_put(s, bytes.s + (bytes.n - PIECE) * i / (PLACES - 1), PIECE);
}

/* True: not all of the bytes were looked at. */
static bool put_bytes(sha256 *s, str bytes)
{
    bool sampled = bytes.n > WHOLE;
    if (sampled)
        put_sampled(s, bytes);
    else
        sha256_put(s, bytes.s, bytes.n);
    return sampled;
}

static void end_mark(sha256 *s, bool sampled, char out[ROUTING_MARK_MAX])
{
    char hex[65];
    sha256_hex(s, hex);
    snprintf(out, ROUTING_MARK_MAX, "%s:%s", sampled ? "sha256-sampled" : "sha256", hex);
}

void routing_mark_bytes(str bytes, char out[ROUTING_MARK_MAX])
{
    sha256 s;
    sha256_init(&s);
    end_mark(&s, put_bytes(&s, bytes), out);
}

static bool put_file(sha256 *s, const char *path, bool *sampled, err *e)
{
    file_map m;
    if (!file_map_open(&m, path, e)) return false;
    *sampled |= put_bytes(s, (str){m.p, m.n});
    file_map_close(&m);
    return true;
}

static int is_of_model(const struct dirent *d)
{
    str name = str_of(d->d_name);
    return str_ends(name, ".safetensors") || str_ends(name, ".gguf") || str_is(name, "config.json");
}

static bool put_directory(sha256 *s, const char *path, bool *sampled, err *e)
{
    struct dirent **entry;
    bool            ok = true;
    int             n  = scandir(path, &entry, is_of_model, alphasort);
    if (n < 0) return err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char file[4096];
        ok = ok &&
             (file_join(file, sizeof file, path, entry[i]->d_name) || err_set(e, ERR_INPUT, "%s is too long", path)) &&
             put_file(s, file, sampled, e);
        free(entry[i]);
    }
    free(entry);
    return ok;
}

bool routing_mark_path(const char *path, char out[ROUTING_MARK_MAX], err *e)
{
    sha256 s;
    bool   sampled = false;
    sha256_init(&s);
    if (!(file_is_dir(path) ? put_directory(&s, path, &sampled, e) : put_file(&s, path, &sampled, e))) return false;
    end_mark(&s, sampled, out);
    return true;
}
