#include "gguf/maps.h"

#include "base/mem.h"

static bool make_room(maps *m)
{
    if (m->n < m->cap) return true;
    size_t       cap  = m->cap ? 2 * m->cap : 8;
    mapped_file *file = mem_try_resize(m->file, cap * sizeof *file);
    if (!file) return false;
    m->file = file;
    m->cap  = cap;
    return true;
}

bool maps_add(maps *m, const char *path, str *bytes, err *e)
{
    char *name = make_room(m) ? mem_try(strlen(path) + 1) : NULL;
    if (!name) return err_set(e, ERR_UNAVAILABLE, "no memory for more than %zu files", m->n);
    mapped_file *f = &m->file[m->n];
    f->path        = strcpy(name, path);
    if (!file_map_open(&f->map, path, e)) {
        mem_free(name);
        return false;
    }
    *bytes = (str){f->map.p, f->map.n};
    m->bytes += f->map.n;
    m->n++;
    return true;
}

bool maps_holds(const maps *m, size_t i, const void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)m->file[i].map.p;
    return at >= from && at - from < m->file[i].map.n;
}

void maps_drop(const maps *m, const void *p, size_t n_bytes)
{
    for (size_t i = 0; i < m->n; i++)
        if (maps_holds(m, i, p)) file_map_drop(&m->file[i].map, (size_t)((const char *)p - m->file[i].map.p), n_bytes);
}

bool maps_has_file(const maps *m, const char *path)
{
    for (size_t i = 0; i < m->n; i++)
        if (file_map_is(&m->file[i].map, path)) return true;
    return false;
}

void maps_deinit(maps *m)
{
    for (size_t i = 0; i < m->n; i++) {
        file_map_close(&m->file[i].map);
        mem_free(m->file[i].path);
    }
    mem_free(m->file);
    *m = (maps){0};
}
