#include "model/find_drafters.h"

#include "base/mem.h"
#include "model/family.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { IN_DIRECTORY, NEXT_TO_IT } place;

typedef struct {
    place  where;
    size_t common; /* length of the common beginning of the names */
    size_t bytes;
} rank;

typedef struct {
    const checkpoint *model;
    model_summary     about;
    target_shape      shape;
    bool              has_head;       /* the model has an MTP head of its own */
    char              dir[PATH_MAX];  /* the directory of the model, without symbolic links */
    char              repo[PATH_MAX]; /* its models--ORG--NAME in a cache; "": it is in none */
    found_drafter    *out;            /* [FIND_MAX] */
    rank              rank[FIND_MAX];
    int               n, n_opened;
    bool              cut; /* there were more candidates */
} search;

/* --- names --------------------------------------------------------------------------------------*/
static bool is_gguf(const char *name) { return str_ends(str_of(name), ".gguf"); }

/* Returns whether it is a part of split files, but not the first. */
static bool is_later_part(const char *name)
{
    const char *of = strstr(name, "-of-");
    return is_gguf(name) && of && of - name >= 6 && strncmp(of - 6, "-00001", 6) != 0 && isdigit((unsigned char)of[-1]);
}

static bool is_drafter_name(const char *name)
{
    static const char *const words[] = {"mtp", "dflash", "dspark", "assistant"};
    size_t                   n       = strlen(name) - (is_gguf(name) ? 5 : 0);
    for (size_t i = 0; i < COUNT(words); i++)
        if (n == strlen(words[i]) && !strncasecmp(name, words[i], n)) return true;
    return !strncasecmp(name, "mtp-", 4) || strcasestr(name, "-dflash") || strcasestr(name, "dspark") ||
           strcasestr(name, "-assistant");
}

/* Returns NAME of "models--ORG--NAME", other names as they are. */
static const char *name_in_repo(const char *name)
{
    if (strncmp(name, "models--", 8) != 0) return name;
    for (const char *at = name; (at = strstr(at, "--")); name = at += 2) {}
    return name;
}

/* Returns the length of the common beginning of two names, without regard to case and to "mtp-". */
static size_t common_length(const char *a, const char *b)
{
    size_t n = 0;
    if (!strncasecmp(a, "mtp-", 4)) a += 4;
    if (!strncasecmp(b, "mtp-", 4)) b += 4;
    while (a[n] && tolower((unsigned char)a[n]) == tolower((unsigned char)b[n])) n++;
    return n;
}

/* Writes the last two names of a path, [0] the last; in a cache [1] is the name in its repository. */
static void last_names(const char *path, char out[2][NAME_MAX + 1])
{
    char        above[PATH_MAX];
    const char *in_cache = strstr(path, "/snapshots/");
    snprintf(out[0], NAME_MAX + 1, "%s", file_name(path));
    snprintf(above, sizeof above, "%.*s", (int)((in_cache ? in_cache : path + strlen(path) - strlen(out[0])) - path),
             path);
    for (size_t n = strlen(above); n && above[n - 1] == '/';) above[--n] = 0;
    snprintf(out[1], NAME_MAX + 1, "%s", name_in_repo(file_name(above)));
}

static size_t name_likeness(const search *s, const char *path)
{
    char   ours[2][NAME_MAX + 1] = {"", ""}, its[2][NAME_MAX + 1], full[PATH_MAX];
    size_t longest               = 0;
    snprintf(full, sizeof full, "%s", s->dir);
    if (!s->model->gguf || file_join(full, sizeof full, s->dir, file_name(s->model->path))) last_names(full, ours);
    last_names(path, its);
    for (int i = 0; i < 4; i++) {
        size_t n = common_length(ours[i / 2], its[i % 2]);
        if (n > longest) longest = n;
    }
    return longest;
}

/* --- directories --------------------------------------------------------------------------------*/
static void note(search *s, const char *path, int kind, const rank *r, const char *why)
{
    if (s->n == FIND_MAX) return;
    found_drafter *f = &s->out[s->n];
    *f               = (found_drafter){.kind = kind, .taken = r != NULL};
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->why, sizeof f->why, "%s", why);
    if (r) s->rank[s->n] = *r;
    s->n++;
}

typedef struct {
    arena        mem;
    const char **name; /* [FIND_MAX_ENTRIES], sorted */
    int          n;
} entries;

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void entries_deinit(entries *l)
{
    arena_deinit(&l->mem);
    mem_free(l->name);
}

/* Lists a directory. A directory that cannot be read is empty; one that is too large is noted. */
static void entries_read(search *s, entries *l, const char *dir)
{
    struct dirent *d;
    DIR           *from = opendir(dir);
    *l                  = (entries){.name = xnew_n(const char *, FIND_MAX_ENTRIES)};
    arena_init(&l->mem, (size_t)FIND_MAX_ENTRIES * 512);
    while (from && (d = readdir(from))) {
        if (d->d_name[0] == '.') continue;
        const char *name = l->n < FIND_MAX_ENTRIES ? arena_str(&l->mem, str_of(d->d_name)) : NULL;
        if (!name) {
            char why[80];
            snprintf(why, sizeof why, "not searched: it has more than %d entries", FIND_MAX_ENTRIES);
            note(s, dir, -1, NULL, why);
            l->n = 0;
            break;
        }
        l->name[l->n++] = name;
    }
    if (from) closedir(from);
    qsort(l->name, (size_t)l->n, sizeof *l->name, by_name);
}

typedef enum { ENTRY_FILE, ENTRY_DIR, ENTRY_LEAVES, ENTRY_OTHER } entry_kind;

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return n && !strncmp(path, dir, n) && (path[n] == '/' || dir[n - 1] == '/');
}

/* Examines an entry of dir, a path without symbolic links. blobs: where links may lead in addition; "": nowhere.
 * ENTRY_LEAVES: a link that leads elsewhere. Sets `out` to its path. */
static entry_kind examine(const char *dir, const char *name, const char *blobs, char out[PATH_MAX])
{
    struct stat st;
    char        leads_to[PATH_MAX];
    if (!file_join(out, PATH_MAX, dir, name) || lstat(out, &st) != 0) return ENTRY_OTHER;
    if (S_ISLNK(st.st_mode)) {
        if (!realpath(out, leads_to) || stat(leads_to, &st) != 0) return ENTRY_LEAVES;
        if (!is_below(leads_to, dir) && !is_below(leads_to, blobs)) return ENTRY_LEAVES;
        if (S_ISDIR(st.st_mode)) memcpy(out, leads_to, sizeof leads_to);
    }
    return S_ISREG(st.st_mode) ? ENTRY_FILE : S_ISDIR(st.st_mode) ? ENTRY_DIR : ENTRY_OTHER;
}

static void note_link(search *s, const char *path)
{
    note(s, path, -1, NULL, "passed over: it is a symbolic link to another place");
}

/* --- candidates ---------------------------------------------------------------------------------*/
static void consider_open(search *s, const char *path, const checkpoint *c, place where, bool named)
{
    char why[512];
    err  e    = {0};
    int  kind = drafter_kind_of(c);
    rank r    = {where, name_likeness(s, path), c->bytes};
    if (kind < 0 || (!named && family_of(c))) {
        snprintf(why, sizeof why, "passed over: not a drafter, but of kind '%.*s'", STR_ARG(model_arch(c)));
        if (named) note(s, path, -1, NULL, why);
    } else if (kind == DRAFTER_MTP && s->has_head) {
        note(s, path, kind, NULL, "passed over: the model has an MTP head of its own (--draft mtp)");
    } else if (!drafter_fits(c, &s->shape, &e)) {
        snprintf(why, sizeof why, "passed over: %.480s", e.text);
        note(s, path, kind, NULL, why);
    } else {
        snprintf(why, sizeof why, "taken: %s, fits the width %d and the vocabulary of %d", drafter_kinds[kind].name,
                 s->shape.n_embd, s->shape.n_vocab);
        note(s, path, kind, &r, why);
    }
}

/* named: its name is that of a drafter, so that it is also noted if it is none. */
static void consider(search *s, const char *path, place where, bool named)
{
    checkpoint *c;
    err         e = {0};
    char        why[512];
    if (s->n_opened == FIND_MAX || s->n == FIND_MAX) {
        s->cut = true;
        return;
    }
    s->n_opened++;
    if (!checkpoint_open(&c, path, &e)) {
        snprintf(why, sizeof why, "passed over: %.480s", e.text);
        if (named) note(s, path, -1, NULL, why);
        return;
    }
    consider_open(s, path, c, where, named);
    checkpoint_close(c);
}

/* Considers a directory with the name of a drafter: as a Hugging Face directory, or the GGUF files in it. */
static void search_drafter_dir(search *s, const char *dir, const char *blobs)
{
    entries l;
    char    path[PATH_MAX], leaving[PATH_MAX] = "";
    bool    has_config = false, has_weights = false;
    entries_read(s, &l, dir);
    for (int i = 0; i < l.n; i++) {
        has_config |= !strcmp(l.name[i], "config.json");
        has_weights |= str_ends(str_of(l.name[i]), ".safetensors") != 0;
        if (examine(dir, l.name[i], blobs, path) == ENTRY_LEAVES && !leaving[0]) memcpy(leaving, path, sizeof path);
    }
    if (has_config && has_weights && leaving[0])
        note_link(s, leaving);
    else if (has_config && has_weights)
        consider(s, dir, NEXT_TO_IT, true);
    for (int i = 0; i < l.n && !(has_config && has_weights); i++) {
        entry_kind k = examine(dir, l.name[i], blobs, path);
        if (!is_gguf(l.name[i]) || is_later_part(l.name[i])) continue;
        if (k == ENTRY_LEAVES) note_link(s, path);
        if (k == ENTRY_FILE) consider(s, path, NEXT_TO_IT, true);
    }
    entries_deinit(&l);
}

/* --- places -------------------------------------------------------------------------------------*/
/* Sets `out` to the directory above a path without symbolic links. Returns false for the root. */
static bool directory_above(const char *path, char out[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash || !slash[1]) return false;
    snprintf(out, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return true;
}

static void blobs_of(const char *repo, char out[PATH_MAX])
{
    if (!repo[0] || !file_join(out, PATH_MAX, repo, "blobs")) out[0] = 0;
}

static void search_model_dir(search *s, const char *dir)
{
    entries l;
    char    path[PATH_MAX], blobs[PATH_MAX];
    blobs_of(s->repo, blobs);
    entries_read(s, &l, dir);
    for (int named = 1; named >= 0; named--)
        for (int i = 0; i < l.n; i++) {
            if (is_drafter_name(l.name[i]) != named || is_later_part(l.name[i])) continue;
            if (s->model->gguf && !strcmp(l.name[i], file_name(s->model->path))) continue;
            entry_kind k = examine(dir, l.name[i], blobs, path);
            if (k == ENTRY_LEAVES && named) note_link(s, path);
            if (k == ENTRY_FILE && is_gguf(l.name[i])) consider(s, path, IN_DIRECTORY, named);
            if (k == ENTRY_DIR && named) search_drafter_dir(s, path, blobs);
        }
    entries_deinit(&l);
}

static void search_siblings(search *s)
{
    entries l;
    char    above[PATH_MAX], path[PATH_MAX];
    if (!directory_above(s->dir, above)) return;
    entries_read(s, &l, above);
    for (int i = 0; i < l.n; i++) {
        if (!is_drafter_name(l.name[i])) continue;
        entry_kind k = examine(above, l.name[i], "", path);
        if (!strcmp(path, s->dir)) continue;
        if (k == ENTRY_LEAVES) note_link(s, path);
        if (k == ENTRY_DIR) search_drafter_dir(s, path, "");
        if (k == ENTRY_FILE && !s->model->gguf && is_gguf(l.name[i]) && !is_later_part(l.name[i]))
            consider(s, path, NEXT_TO_IT, true);
    }
    entries_deinit(&l);
}

/* --- the cache of Hugging Face ------------------------------------------------------------------*/
/* Reads the name of the snapshot in refs/main. */
static bool read_main(const char *repo, char out[NAME_MAX + 1])
{
    char path[PATH_MAX];
    if (!file_join(path, sizeof path, repo, "refs/main")) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t n = read(fd, out, NAME_MAX);
    close(fd);
    while (n > 0 && isspace((unsigned char)out[n - 1])) n--;
    if (n <= 0) return false;
    out[n] = 0;
    return out[0] != '.' && !strchr(out, '/');
}

/* Sets `out` to the snapshot that refs/main names, else to the first one by name. */
static bool snapshot_of(search *s, const char *repo, char out[PATH_MAX])
{
    char    all[PATH_MAX], name[NAME_MAX + 1];
    entries l;
    bool    found = false;
    if (!file_join(all, sizeof all, repo, "snapshots")) return false;
    if (read_main(repo, name) && examine(all, name, "", out) == ENTRY_DIR) return true;
    entries_read(s, &l, all);
    for (int i = 0; i < l.n && !found; i++) found = examine(all, l.name[i], "", out) == ENTRY_DIR;
    entries_deinit(&l);
    return found;
}

static void search_cache(search *s)
{
    entries l;
    char    hub[PATH_MAX], repo[PATH_MAX], snapshot[PATH_MAX], blobs[PATH_MAX];
    if (!directory_above(s->repo, hub)) return;
    entries_read(s, &l, hub);
    for (int i = 0; i < l.n; i++) {
        if (strncmp(l.name[i], "models--", 8) != 0 || !is_drafter_name(name_in_repo(l.name[i]))) continue;
        entry_kind k = examine(hub, l.name[i], "", repo);
        if (k == ENTRY_LEAVES) note_link(s, repo);
        if (k != ENTRY_DIR || !strcmp(repo, s->repo) || !snapshot_of(s, repo, snapshot)) continue;
        blobs_of(repo, blobs);
        search_drafter_dir(s, snapshot, blobs);
    }
    entries_deinit(&l);
}

/* Sets s->repo and `snapshot` if the model's directory is in a cache. */
static bool in_cache(search *s, char snapshot[PATH_MAX])
{
    const char *at = strstr(s->dir, "/snapshots/");
    char        repo[PATH_MAX];
    if (!at) return false;
    size_t name = strcspn(at + 11, "/");
    snprintf(repo, sizeof repo, "%.*s", (int)(at - s->dir), s->dir);
    if (!name || strncmp(file_name(repo), "models--", 8) != 0) return false;
    memcpy(s->repo, repo, sizeof repo);
    snprintf(snapshot, PATH_MAX, "%.*s", (int)(at - s->dir + 11) + (int)name, s->dir);
    return true;
}

/* --- the choice ---------------------------------------------------------------------------------*/
static bool is_better(const search *s, int a, int b)
{
    const rank *x = &s->rank[a], *y = &s->rank[b];
    if (x->where != y->where) return x->where < y->where;
    if (x->common != y->common) return x->common > y->common;
    if (x->bytes != y->bytes) return x->bytes < y->bytes;
    return strcmp(s->out[a].path, s->out[b].path) < 0;
}

static void choose(search *s, drafter_kind k)
{
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (s->out[i].taken && s->out[i].kind == (int)k && (best < 0 || is_better(s, i, best))) best = i;
    for (int i = 0; i < s->n; i++) {
        found_drafter *f = &s->out[i];
        if (!f->taken || f->kind != (int)k || i == best) continue;
        const rank *x = &s->rank[best], *y = &s->rank[i];
        const char *how = x->where != y->where     ? "in the directory of the model"
                          : x->common != y->common ? "nearer to the model by name"
                          : x->bytes != y->bytes   ? "smaller"
                                                   : "the first by name";
        f->taken        = false;
        snprintf(f->why, sizeof f->why, "passed over: it fits, but %.300s is %s", file_name(s->out[best].path), how);
    }
}

static void search_all(search *s)
{
    char snapshot[PATH_MAX];
    bool cached = in_cache(s, snapshot);
    search_model_dir(s, s->dir);
    if (cached && strcmp(snapshot, s->dir) != 0) search_model_dir(s, snapshot);
    if (cached)
        search_cache(s);
    else
        search_siblings(s);
}

/* Sets the directory that contains the GGUF file, or that is the model. */
static bool set_directory(search *s)
{
    char        path[PATH_MAX];
    const char *slash = strrchr(s->model->path, '/');
    if (!s->model->gguf) return realpath(s->model->path, s->dir) != NULL;
    if (slash && !slash[1]) return false;
    snprintf(path, sizeof path, "%.*s", slash ? (int)(slash - s->model->path) + 1 : 1, slash ? s->model->path : ".");
    return realpath(path, s->dir) != NULL;
}

static bool describe_model(search *s)
{
    const model_family  *f     = family_of(s->model);
    kv_types             types = kv_types_default(cache_types_both(CACHE_F16));
    const model_summary *c     = &s->about;
    if (!f || !f->describe(&s->about, s->model, &types, NULL)) return false;
    s->shape    = (target_shape){c->n_embd, c->n_vocab, c->n_layers, c->donor};
    s->has_head = drafter_kind_of(s->model) == DRAFTER_MTP;
    return true;
}

found_drafter *find_drafters(const checkpoint *model, int *n)
{
    search s = {.model = model, .out = xnew_n(found_drafter, FIND_MAX + 1)};
    if (describe_model(&s) && set_directory(&s)) search_all(&s);
    for (int k = 0; k < DRAFTER_KINDS; k++) choose(&s, (drafter_kind)k);
    if (s.cut) {
        found_drafter *f = &s.out[s.n++];
        snprintf(f->path, sizeof f->path, "%s", s.dir);
        snprintf(f->why, sizeof f->why, "not searched to the end: there are more than %d candidates", FIND_MAX);
        f->kind = -1;
    }
    *n = s.n;
    return s.out;
}
