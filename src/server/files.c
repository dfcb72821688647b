#include "server/files_inside.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/thread.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 18, LOW_PRIORITY = 10 };

typedef struct {
    const char *role, *path, *name;
    size_t      bytes;
    char        hash[65];
    atomic_int  known; /* the hash is there; -1: the file cannot be read any more, or is another one */
} one_file;

struct model_files {
    arena       mem;
    path_info   first; /* properties of the first part */
    one_file   *file;
    size_t      n, cap;
    pthread_t   thread;
    bool        started;
    atomic_bool stop;
};

/* --- which ----------------------------------------------------------------------------------------*/
static bool add_file(model_files *m, const engine_part *part, size_t i, err *e)
{
    const char *path = part->files->file[i].path, *name = part->name && part->files->n == 1 ? part->name : path;
    one_file   *more = m->file;
    if (m->n == m->cap) more = mem_try_resize(m->file, (m->cap ? 2 * m->cap : 8) * sizeof *more);
    if (!more) return err_set(e, ERR_UNAVAILABLE, "no memory for more than %zu files", m->n);
    if (m->n == m->cap) m->cap = m->cap ? 2 * m->cap : 8;
    m->file           = more;
    *(more += m->n++) = (one_file){.role  = part->role,
                                   .path  = arena_str(&m->mem, str_of(path)),
                                   .name  = arena_str(&m->mem, str_of(file_name(name))),
                                   .bytes = part->files->file[i].bytes};
    return (more->path && more->name) || err_set(e, ERR_UNAVAILABLE, "no memory for the names of files");
}

path_info files_read_path(const char *path)
{
    struct stat st;
    if (!path || stat(path, &st) != 0) return (path_info){0};
    return (path_info){st.st_mtime, S_ISDIR(st.st_mode)};
}

path_info files_first(const model_files *m) { return m ? m->first : (path_info){0}; }

model_files *files_open(const engine_part *part, int n)
{
    model_files *m = xnew(model_files);
    arena_init(&m->mem, 1 << 24);
    if (n) m->first = files_read_path(part[0].path);
    for (int k = 0; k < n; k++) {
        err    e     = {0};
        size_t there = m->n, i = 0, n_files = part[k].files ? part[k].files->n : 0;
        while (i < n_files && add_file(m, &part[k], i, &e)) i++;
        if (i == n_files) continue;
        m->n = there;
        log_event(LOG_WARN, "files", "%s", e.text);
    }
    return m;
}

void files_close(model_files *m)
{
    if (!m) return;
    atomic_store(&m->stop, true);
    if (m->started) pthread_join(m->thread, NULL);
    mem_free(m->file);
    arena_deinit(&m->mem);
    mem_free(m);
}

/* --- hashing --------------------------------------------------------------------------------------*/
/* Hashes a file with read, not mmap: where the file becomes shorter, read returns less, but mmap raises a signal. */
static bool hash_bytes(model_files *m, one_file *f, int fd, char *piece)
{
    sha256  s;
    size_t  done = 0;
    ssize_t n;
    sha256_init(&s);
    while (!atomic_load(&m->stop) && (n = read(fd, piece, PIECE)) > 0) {
        sha256_put(&s, piece, (size_t)n);
        done += (size_t)n;
    }
    sha256_hex(&s, f->hash);
    return done == f->bytes;
}

static void *hash_all(void *arg)
{
    model_files *m     = arg;
    char        *piece = xnew_n(char, PIECE);
    setpriority(PRIO_PROCESS, (id_t)gettid(), LOW_PRIORITY); /* applies to this thread only, on Linux */
    for (size_t i = 0; i < m->n && !atomic_load(&m->stop); i++) {
        int  fd = open(m->file[i].path, O_RDONLY | O_CLOEXEC);
        bool ok = fd >= 0 && hash_bytes(m, &m->file[i], fd, piece);
        if (fd >= 0) close(fd);
        atomic_store(&m->file[i].known, ok ? 1 : -1);
    }
    mem_free(piece);
    return NULL;
}

void files_want(model_files *m)
{
    if (!m->started) m->started = thread_start(&m->thread, hash_all, m);
}

bool files_ready(const model_files *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (!atomic_load(&m->file[i].known)) return false;
    return true;
}

void files_write(const model_files *m, json_writer *w)
{
    json_begin_array(w);
    for (size_t i = 0; i < m->n; i++) {
        const one_file *f = &m->file[i];
        json_begin_object(w);
        json_member_str(w, "role", f->role);
        json_member_str(w, "name", f->name);
        json_member_int(w, "bytes", (int64_t)f->bytes);
        json_member_str(w, "sha256", atomic_load(&f->known) > 0 ? f->hash : NULL);
        json_end(w);
    }
    json_end(w);
}
