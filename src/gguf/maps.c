#include "gguf/maps.h"

#include "base/mem.h"

static bool make_room(maps *m)
{
    if (m->n < m->cap) return true;
    size_t    cap  = m->cap ? 2 * m->cap : 8;
    file_map *file = mem_try_resize(m->file, cap * sizeof *file);
    if (!file) return false;
    m->file = file;
    m->cap  = cap;
    return true;
}

bool maps_add(maps *m, const char *path, str *bytes, err *e)
{
    if (!make_room(m)) return err_set(e, ERR_UNAVAILABLE, "no memory for more than %zu files", m->n);
    file_map *f = &m->file[m->n];
    if (!file_map_open(f, path, e)) return false;
    *bytes = (str){f->p, f->n};
    m->bytes += f->n;
    m->n++;
    return true;
}

bool maps_holds(const maps *m, size_t i, const void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)m->file[i].p;
    return at >= from && at - from < m->file[i].n;
}

void maps_drop(const maps *m, const void *p, size_t n_bytes)
{
    for (size_t i = 0; i < m->n; i++)
        if (maps_holds(m, i, p)) file_map_drop(&m->file[i], (size_t)((const char *)p - m->file[i].p), n_bytes);
}

bool maps_has_file(const maps *m, const char *path)
{
    for (size_t i = 0; i < m->n; i++)
        if (file_map_is(&m->file[i], path)) return true;
    return false;
}

void maps_deinit(maps *m)
{
    for (size_t i = 0; i < m->n; i++) file_map_close(&m->file[i]);
    mem_free(m->file);
    *m = (maps){0};
}
