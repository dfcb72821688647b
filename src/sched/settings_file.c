#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "gguf/out_file.h"
#include "sched/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20, MAX_MEMORY = 64 << 20, LOCK_WAIT_S = 2 };

/* The file's text and its tree, which borrows from it. */
typedef struct {
    buf               text;
    arena             memory;
    const json_value *root; /* NULL: there is no file */
} document;

struct settings_file {
    char     path[PATH_MAX];
    document doc;
};

static void document_deinit(document *d)
{
    buf_deinit(&d->text);
    arena_deinit(&d->memory);
    *d = (document){0};
}

static const json_value *models_of(const document *d) { return json_get(d->root, "models"); }

static const json_value *find_member(const json_value *object, str key)
{
    for (size_t i = 0; object && i < object->n; i++)
        if (str_eq(object->member[i].key, key)) return &object->member[i].value;
    return NULL;
}

static bool check_model(str model, const json_value *v, err *e)
{
    settings s;
    int      unknown = 0;
    settings_init(&s);
    return settings_set_all(&s, v, &unknown, e) || err_wrap(e, "settings of '%.*s'", STR_ARG(model));
}

static bool check_document(const document *d, err *e)
{
    const json_value *models = models_of(d);
    if (d->root->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "it is not a JSON object");
    if (!models) return true;
    if (models->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "\"models\" is not an object");
    for (size_t i = 0; i < models->n; i++)
        if (!check_model(models->member[i].key, &models->member[i].value, e)) return false;
    return true;
}

/* d->text is there. */
static bool parse_document(document *d, err *e)
{
    json_limits limits = {.max_bytes = MAX_BYTES, .max_memory = MAX_MEMORY, .max_depth = JSON_WRITER_DEPTH};
    arena_init(&d->memory, MAX_MEMORY);
    if (d->text.failed) return err_set(e, ERR_TOO_LARGE, "it would have more than %d bytes", MAX_BYTES);
    return json_parse(&d->root, &d->memory, buf_str(&d->text), &limits, e) && check_document(d, e);
}

static bool read_document(document *d, const char *path, err *e)
{
    file_map m;
    buf_init(&d->text, MAX_BYTES);
    arena_init(&d->memory, MAX_MEMORY);
    if (!file_exists(path)) return true;
    if (!file_map_open(&m, path, e)) return false;
    buf_put(&d->text, m.p, m.n);
    file_map_close(&m);
    return parse_document(d, e);
}

static void warn_of_unknown(const json_value *models)
{
    for (size_t m = 0; models && m < models->n; m++)
        for (size_t i = 0; i < models->member[m].value.n; i++) {
            str key = models->member[m].value.member[i].key;
            if (!setting_find(key))
                log_event(LOG_WARN, "settings", "'%.*s' of '%.*s' is unknown and is kept", STR_ARG(key),
                          STR_ARG(models->member[m].key));
        }
}

bool settings_file_open(settings_file **out, const char *path, err *e)
{
    settings_file *f = xnew(settings_file);
    *out             = NULL;
    if (strlen(path) >= sizeof f->path) {
        mem_free(f);
        return err_set(e, ERR_INPUT, "the settings file's path is too long");
    }
    memcpy(f->path, path, strlen(path));
    if (!read_document(&f->doc, path, e)) {
        settings_file_close(f);
        return err_wrap(e, "cannot use the settings in %s", path);
    }
    warn_of_unknown(models_of(&f->doc));
    *out = f;
    return true;
}

void settings_file_close(settings_file *f)
{
    if (!f) return;
    document_deinit(&f->doc);
    mem_free(f);
}

bool settings_file_get(const settings_file *f, str model, settings *out, err *e)
{
    const json_value *v       = find_member(models_of(&f->doc), model);
    int               unknown = 0;
    settings_init(out);
    if (!f->doc.root)
        log_event(LOG_WARN, "settings", "%s does not exist: using the default settings", f->path);
    else if (!v)
        log_event(LOG_WARN, "settings", "%s has no entry for '%.*s': using the default settings", f->path,
                  STR_ARG(model));
    for (size_t i = 0; v && i < v->n; i++) {
        const setting_info *info = setting_find(v->member[i].key);
        if (info) settings_note(out, info, SETTING_FROM_FILE);
    }
    return !v || settings_set_all(out, v, &unknown, e);
}

/* --- changing ------------------------------------------------------------------------------------ */
/* Old members in their order with new values where there are any, then the new ones. null takes one out. */
static void merge_members(json_writer *w, const json_value *old, const json_value *new)
{
    for (size_t i = 0; old && i < old->n; i++) {
        const json_value *v = find_member(new, old->member[i].key);
        if (v && v->kind == JSON_NULL) continue;
        json_key_str(w, old->member[i].key);
        json_put_value(w, v ? v : &old->member[i].value);
    }
    for (size_t i = 0; i < new->n; i++) {
        if (find_member(old, new->member[i].key) || new->member[i].value.kind == JSON_NULL) continue;
        json_key_str(w, new->member[i].key);
        json_put_value(w, &new->member[i].value);
    }
}

static void merge_models(json_writer *w, const json_value *models, str model, const json_value *new)
{
    const json_value *old = find_member(models, model);
    json_begin_object(w);
    for (size_t i = 0; models && i < models->n; i++) {
        const json_member *m = &models->member[i];
        if (&m->value == old) continue;
        json_key_str(w, m->key);
        json_put_value(w, &m->value);
    }
    json_key_str(w, model);
    json_begin_object(w);
    merge_members(w, old, new);
    json_end(w);
    json_end(w);
}

static void write_document(const document *d, str model, const json_value *new, buf *out)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    for (size_t i = 0; d->root && i < d->root->n; i++) {
        if (str_is(d->root->member[i].key, "models")) continue;
        json_key_str(&w, d->root->member[i].key);
        json_put_value(&w, &d->root->member[i].value);
    }
    json_key(&w, "models");
    merge_models(&w, models_of(d), model, new);
    json_end(&w);
    buf_putc(out, '\n');
}

/* --- the disk ------------------------------------------------------------------------------------ */
/* Other handles and other programs may have the same file: from reading it to its new name, its directory is locked. */
static bool wait_for_lock(int fd, const char *path, err *e)
{
    for (double end = clock_s() + LOCK_WAIT_S; flock(fd, LOCK_EX | LOCK_NB) != 0;) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_set(e, ERR_IO, "cannot write %s: its directory cannot be locked: %s", path, strerror(errno));
        if (clock_s() > end)
            return err_set(e, ERR_BUSY, "cannot write %s: another program has locked its directory", path);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return true;
}

/* Locks the directory of the file; for a symbolic link, of the file that it points to, which is replaced. */
static bool lock_directory(int *fd, const char *path, err *e)
{
    char dir[PATH_MAX];
    if (!realpath(path, dir)) memcpy(dir, path, strlen(path) + 1); /* it is not there yet */
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    *fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    return wait_for_lock(*fd, path, e);
}

static bool sync_disk(int fd, const char *path, err *e)
{
    return fsync(fd) == 0 || err_set(e, ERR_IO, "cannot write %s to the disk: %s", path, strerror(errno));
}

/* Its new name must be on the disk too. */
static bool save_text(const char *path, int dir, str text, err *e)
{
    out_file o;
    bool     ok = out_file_open(&o, path, e) && out_file_put(&o, text.s, text.n, e) && sync_disk(o.fd, path, e) &&
              out_file_close(&o, e) && out_file_keep(&o, e) && sync_disk(dir, path, e);
    out_file_discard(&o);
    return ok;
}

/* Reads the file again and applies the new members. A file that has become broken is left unchanged. */
static bool change_document(document *out, const settings_file *f, int dir, str model, const json_value *members,
                            err *e)
{
    document now = {0};
    bool     ok  = read_document(&now, f->path, e) || err_wrap(e, "cannot change the settings in %s", f->path);
    if (ok) write_document(&now, model, members, &out->text);
    ok = ok && parse_document(out, e) && save_text(f->path, dir, buf_str(&out->text), e);
    document_deinit(&now);
    return ok;
}

bool settings_file_put(settings_file *f, str model, const json_value *members, err *e)
{
    document new = {0};
    int dir      = -1;
    if (members->kind != JSON_OBJECT) return err_set(e, ERR_INPUT, "settings must be an object of names and values");
    buf_init(&new.text, MAX_BYTES);
    bool ok = lock_directory(&dir, f->path, e) && change_document(&new, f, dir, model, members, e);
    if (dir >= 0) close(dir); /* and the lock is gone */
    document_deinit(ok ? &f->doc : &new);
    if (ok) f->doc = new;
    return ok;
}
