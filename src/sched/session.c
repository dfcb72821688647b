#include "sched/session.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sched/session_file.h"
#include "spec/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    COPY_STEP    = 16 << 20, /* bytes that the engine thread copies between two steps */
    LEFTOVER_AGE = 600,      /* seconds after which a temporary file belongs to no running process */
    BEGINS       = 16,       /* maximum times that a save begins to copy */
    OWNER_MAX    = 33,
    FILE_MAX     = TANDEM_SESSION_NAME + 16,
};
static const char suffix[] = ".session";

struct session_store {
    int             dir;
    pthread_mutex_t saving; /* held while limits are checked and a file is written */
};

bool engine_session_name(const char *name, err *e)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t            n       = name ? strlen(name) : 0;
    return (n >= 1 && n <= TANDEM_SESSION_NAME && name[0] != '.' && strspn(name, valid) == n) ||
           err_set(e, ERR_INPUT,
                   "the name of a session has 1 to %d letters, digits and . _ -, and does not begin with a point",
                   TANDEM_SESSION_NAME);
}

size_t engine_continued(const tandem_ids *text, int32_t n_prompt, const int32_t *prompt, size_t n)
{
    bool same = n && n == text->n && !memcmp(prompt, text->p, n * sizeof *prompt);
    return same ? n - (size_t)n_prompt : 0;
}

static void owner_dir(const char *owner, char out[OWNER_MAX])
{
    hash128 h = hash128_of(owner ? owner : "", owner ? strlen(owner) + 1 : 0); /* NULL and "" differ */
    snprintf(out, OWNER_MAX, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

static void file_of(const char *name, char out[FILE_MAX]) { snprintf(out, FILE_MAX, "%s%s", name, suffix); }

static bool not_found(const char *name, err *e) { return err_set(e, ERR_NOT_FOUND, "there is no session '%s'", name); }

/* --- directories --------------------------------------------------------------------------------*/
bool session_store_open(session_store **out, const char *dir, err *e)
{
    *out = NULL;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(e, ERR_IO, "cannot create the directory of sessions %s: %s", dir, strerror(errno));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_IO, "cannot open the directory of sessions %s: %s", dir, strerror(errno));
    session_store *s = xnew(session_store);
    s->dir           = fd;
    pthread_mutex_init(&s->saving, NULL);
    *out = s;
    return true;
}

void session_store_close(session_store *s)
{
    if (!s) return;
    close(s->dir);
    pthread_mutex_destroy(&s->saving);
    mem_free(s);
}

/* Opens the directory of an owner; -1: there is none. */
static int open_owner(const session_store *s, const char *owner, bool create)
{
    char name[OWNER_MAX];
    owner_dir(owner, name);
    if (create && mkdirat(s->dir, name, 0700) == 0) fsync(s->dir);
    return openat(s->dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Calls fn for each file of an owner's directory. */
static void each_file(int dir, void (*fn)(void *ctx, int dir, const char *file), void *ctx)
{
    int  copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with an offset of its own */
    DIR *d    = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d && copy >= 0) close(copy);
    for (struct dirent *f; d && (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..")) fn(ctx, dir, f->d_name);
    if (d) closedir(d);
}

/* Returns whether it is the file of a session, and copies its name. */
static bool is_session(const char *file, char name[TANDEM_SESSION_NAME + 1])
{
    str s = str_of(file);
    if (!str_ends(s, suffix) || s.n - (sizeof suffix - 1) > TANDEM_SESSION_NAME) return false;
    snprintf(name, TANDEM_SESSION_NAME + 1, "%.*s", (int)(s.n - (sizeof suffix - 1)), file);
    return engine_session_name(name, NULL);
}

/* --- listing ------------------------------------------------------------------------------------*/
static bool read_info(int dir, const char *file, tandem_session_info *out)
{
    struct stat st;
    pack       *p  = xnew(pack);
    int         fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool        ok = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (ok) {
        out->bytes = (uint64_t)st.st_size;
        out->used  = (int64_t)st.st_mtime;
        out->draft = "none";
        if (!pack_open(p, fd, NULL) || !session_check(p, &out->tokens, NULL)) out->draft = "unreadable";
        for (int i = 0; i < p->n; i++)
            if (p->section[i].kind == IMAGE_PAGES && !hash128_is_zero(p->section[i].tag)) out->draft = "stored";
    }
    pack_deinit(p);
    mem_free(p);
    if (fd >= 0) close(fd);
    return ok;
}

typedef struct {
    tandem_session_info *out;
    size_t               n, max;
} listing;

static void list_file(void *ctx, int dir, const char *file)
{
    listing            *l = ctx;
    tandem_session_info x = {0};
    if (!is_session(file, x.name) || !read_info(dir, file, &x)) return;
    if (l->n < l->max) l->out[l->n] = x;
    l->n++;
}

size_t session_list(session_store *s, const char *owner, tandem_session_info *out, size_t max)
{
    listing l   = {.out = out, .max = max};
    int     dir = open_owner(s, owner, false);
    if (dir < 0) return 0;
    each_file(dir, list_file, &l);
    close(dir);
    return l.n;
}

/* --- limits -------------------------------------------------------------------------------------*/
typedef struct {
    const char *replaced; /* the file that is to be replaced does not count */
    int64_t     n;
    uint64_t    bytes;
} used_space;

static void count_file(void *ctx, int dir, const char *file)
{
    used_space *u = ctx;
    char        name[TANDEM_SESSION_NAME + 1];
    struct stat st;
    if (fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return;
    if (pack_is_leftover(file) && time(NULL) - st.st_mtime > LEFTOVER_AGE) unlinkat(dir, file, 0);
    if (!is_session(file, name) || !strcmp(file, u->replaced)) return;
    u->n++;
    u->bytes += (uint64_t)st.st_size;
}

static bool check_limits(int dir, const char *file, uint64_t bytes, const settings *now, err *e)
{
    used_space u = {.replaced = file};
    each_file(dir, count_file, &u);
    if (u.n >= now->session_max_count)
        return err_set(e, ERR_TOO_LARGE, "there are %lld sessions, and session_max_count is %lld: delete one",
                       (long long)u.n, (long long)now->session_max_count);
    if (u.bytes + bytes > (uint64_t)now->session_max_bytes)
        return err_set(e, ERR_TOO_LARGE,
                       "the session needs %llu bytes, the others have %llu, and session_max_bytes is %lld: delete one",
                       (unsigned long long)bytes, (unsigned long long)u.bytes, (long long)now->session_max_bytes);
    return true;
}

/* --- saving -------------------------------------------------------------------------------------*/
typedef struct {
    const tandem_session *x;
    uint64_t              salt;
    kv_export            *image; /* NULL: nothing of the text is cached */
    hash128               fingerprint;
    int32_t               reach;
    int                   n_begun; /* times that the copy began */
    bool                  begun, done, ok;
    err                   why;
} export_errand;

/* Copies the next part of the cached text, on the engine thread. Pages that are evicted meanwhile end the copy: it
 * begins again with what is left. */
static void run_export(void *ctx, spec *sp)
{
    export_errand        *x = ctx;
    const tandem_session *s = x->x;
    if (!x->begun) {
        x->fingerprint = spec_image_key(sp).target;
        x->reach       = spec_has_images(sp) ? spec_cached_len(sp, x->salt, s->ids, (int32_t)s->n_ids) : 0;
        x->reach       = x->reach / KV_PAGE * KV_PAGE;
        x->begun       = true;
        x->n_begun++;
        x->done = !x->reach;
        x->ok   = x->done || spec_export_begin(sp, &(kv_range){x->salt, s->ids, 0, x->reach}, &x->image, &x->why);
        if (x->done || !x->ok) return;
    }
    x->ok = spec_export_more(sp, x->image, COPY_STEP, &x->done, &x->why);
    if (x->ok || x->why.code != ERR_NOT_FOUND) return;
    kv_export_free(x->image);
    x->image = NULL;
    x->begun = false;
    x->ok = x->n_begun < BEGINS || err_set(&x->why, ERR_BUSY, "the session was evicted while it was copied: try again");
}

static bool export_text(sched *engine, export_errand *x, err *e)
{
    while (!x->done) {
        if (!sched_do(engine, run_export, x, e)) return false;
        if (x->ok) continue;
        if (e) *e = x->why;
        return false;
    }
    return true;
}

static bool write_file(session_store *s, sched *engine, const tandem_session *x, pack *p, tandem_session_info *out,
                       err *e)
{
    char     file[FILE_MAX];
    settings now;
    sched_get_settings(engine, &now);
    file_of(x->name, file);
    out->bytes = pack_bytes(p);
    pthread_mutex_lock(&s->saving);
    int  dir = open_owner(s, x->owner, true);
    bool ok  = dir >= 0 || err_set(e, ERR_IO, "cannot create a directory for sessions: %s", strerror(errno));
    ok       = ok && check_limits(dir, file, out->bytes, &now, e) && pack_save(p, dir, file, e);
    if (dir >= 0) close(dir);
    pthread_mutex_unlock(&s->saving);
    return ok;
}

static bool check_text(const tandem_session *x, int n_vocab, err *e)
{
    if (!x->ids || !x->n_ids || x->n_ids > TANDEM_MAX_PROMPT)
        return err_set(e, ERR_INPUT, "a session has 1 to %d tokens, got %zu", TANDEM_MAX_PROMPT, x->n_ids);
    if (x->n_prompt < 0 || (size_t)x->n_prompt > x->n_ids)
        return err_set(e, ERR_INPUT, "n_prompt must be between 0 and %zu, got %d", x->n_ids, x->n_prompt);
    for (size_t i = 0; i < x->n_ids; i++)
        if (x->ids[i] >= n_vocab) /* negative: a picture (media_prompt_mark) */
            return err_set(e, ERR_INPUT, "token %d is not in the vocabulary of %d", x->ids[i], n_vocab);
    return true;
}

static bool has_draft(const pack *p, const kv_image_key *k)
{
    for (int i = 0; i < p->n; i++) {
        const pack_section *s = &p->section[i];
        if (s->kind != IMAGE_PAGES || hash128_is_zero(s->tag)) continue;
        if (!k || (s->id < KV_MAX_CLASSES && hash128_equal(s->tag, k->added[s->id]))) return true;
    }
    return false;
}

bool session_save(session_store *s, sched *engine, const tandem_session *x, tandem_session_info *out, err *e)
{
    export_errand image = {.x = x, .salt = sched_salt(engine, x->tenant)};
    pack         *own   = xnew(pack);
    *out                = (tandem_session_info){.draft = "none"};
    bool ok =
        engine_session_name(x->name, e) && check_text(x, sched_vocab(engine), e) && export_text(engine, &image, e);
    if (ok) {
        pack *p = image.image ? kv_export_pack(image.image) : own;
        if (!image.image) p->fingerprint = image.fingerprint;
        ok            = session_put(p, x, e) && write_file(s, engine, x, p, out, e);
        out->draft    = has_draft(p, NULL) ? "stored" : "none";
        out->reusable = image.reach;
        out->tokens   = (int32_t)x->n_ids;
        out->used     = (int64_t)time(NULL);
        snprintf(out->name, sizeof out->name, "%s", x->name);
    }
    kv_export_free(image.image);
    pack_deinit(own);
    mem_free(own);
    return ok;
}

/* --- restoring ----------------------------------------------------------------------------------*/
typedef struct {
    const pack    *p;
    uint64_t       salt;
    const int32_t *text; /* n + 1 tokens */
    int32_t        n, reach;
    size_t         step; /* bytes to copy */
    const char    *draft;
    bool           done, ok;
    err            why;
} import_errand;

/* Copies the next part of the image, on the engine thread. */
static void run_import(void *ctx, spec *sp)
{
    import_errand *x      = ctx;
    kv_image_key   key    = spec_image_key(sp);
    spec_images    images = {.salt = x->salt, .text = x->text, .n = x->n + 1, .images = &x->p, .n_images = 1};
    x->draft              = has_draft(x->p, &key) ? "restored" : has_draft(x->p, NULL) ? "rebuilt" : "none";
    x->done               = true;
    x->ok                 = !pack_find(x->p, IMAGE_TOKENS, 0); /* nothing of it was cached when it was saved */
    if (x->ok) return;
    x->ok = spec_image_check(sp, x->p, &x->why);
    if (x->ok) x->reach = spec_import(sp, &images, x->step, &x->done);
}

/* Copies the image between steps. Other requests may evict its pages meanwhile, so the number of pieces is limited: the
 * last one is as large as needed. */
static bool run_imports(sched *engine, import_errand *x, err *e)
{
    uint64_t max = pack_bytes(x->p) / COPY_STEP + 8;
    for (uint64_t i = 0; !x->done; i++) {
        x->step = i < max ? COPY_STEP : SIZE_MAX;
        if (!sched_do(engine, run_import, x, e)) return false;
    }
    if (!x->ok && e) *e = x->why;
    return x->ok;
}

static bool import_text(sched *engine, const tandem_session *x, const pack *p, const tandem_ids *ids,
                        tandem_session_info *out, err *e)
{
    size_t   bytes = (ids->n + 1) * sizeof *ids->p;
    int32_t *text  = mem_try(bytes);
    if (!text) return err_set(e, ERR_UNAVAILABLE, "no memory for a session");
    memcpy(text, ids->p, ids->n * sizeof *text);
    import_errand r  = {.p = p, .salt = sched_salt(engine, x->tenant), .text = text, .n = (int32_t)ids->n};
    bool          ok = run_imports(engine, &r, e);
    mem_free(text);
    if (!ok) return false;
    out->reusable = r.reach;
    out->draft    = r.draft;
    return true;
}

static bool read_file(session_store *s, const tandem_session *x, pack *p, err *e)
{
    char file[FILE_MAX];
    file_of(x->name, file);
    int  dir = open_owner(s, x->owner, false);
    err  why = {.code = ERR_NOT_FOUND};
    bool ok  = dir >= 0 && pack_read(p, dir, file, &why);
    if (ok) utimensat(dir, file, NULL, 0);
    if (dir >= 0) close(dir);
    if (!ok && why.code == ERR_NOT_FOUND) return not_found(x->name, e);
    if (!ok && e) *e = why;
    return ok || err_wrap(e, "cannot restore the session '%s'", x->name);
}

bool session_restore(session_store *s, sched *engine, const tandem_session *x, tandem_session_content *content,
                     tandem_session_info *out, err *e)
{
    pack *p  = xnew(pack);
    *content = (tandem_session_content){0};
    *out     = (tandem_session_info){.draft = "none"};
    bool ok  = engine_session_name(x->name, e) && read_file(s, x, p, e);
    if (ok)
        ok = (session_get(p, sched_vocab(engine), content, e) && import_text(engine, x, p, &content->ids, out, e)) ||
             err_wrap(e, "cannot restore the session '%s'", x->name);
    if (ok) {
        out->tokens = (int32_t)content->ids.n;
        out->bytes  = pack_bytes(p);
        out->used   = (int64_t)time(NULL);
        snprintf(out->name, sizeof out->name, "%s", x->name);
    } else {
        tandem_session_content_free(content);
    }
    pack_deinit(p);
    mem_free(p);
    return ok;
}

bool session_delete(session_store *s, const char *owner, const char *name, err *e)
{
    char file[FILE_MAX];
    if (!engine_session_name(name, e)) return false;
    file_of(name, file);
    int  dir     = open_owner(s, owner, false);
    bool removed = dir >= 0 && unlinkat(dir, file, 0) == 0;
    int  why     = dir < 0 || removed ? ENOENT : errno;
    if (removed) fsync(dir);
    if (dir >= 0) close(dir);
    if (removed) return true;
    return why == ENOENT ? not_found(name, e)
                         : err_set(e, ERR_IO, "cannot delete the session '%s': %s", name, strerror(why));
}
