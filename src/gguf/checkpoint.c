#include "gguf/checkpoint.h"

#include "base/mem.h"

#include <stdio.h>

enum {
    MAX_CONFIG_BYTES  = 4 * 1024 * 1024,
    MAX_CONFIG_MEMORY = 32 * 1024 * 1024,
    MAX_PATH          = sizeof((checkpoint){0}.path),
};

static bool join_path(char out[MAX_PATH], const char *dir, const char *name, err *e)
{
    return file_join(out, MAX_PATH, dir, name) ||
           err_set(e, ERR_INPUT, "a path of more than %d bytes: .../%s", MAX_PATH - 1, name);
}

/* Reads a small JSON file that must contain an object. */
static bool read_object(const json_value **out, checkpoint *c, file_map *text, const char *path, err *e)
{
    json_limits       limits = {.max_bytes = MAX_CONFIG_BYTES, .max_memory = MAX_CONFIG_MEMORY};
    const json_value *v;
    if (!file_map_open(text, path, e)) return false;
    if (!json_parse(&v, &c->json, (str){text->p, text->n}, &limits, e)) return err_wrap(e, "cannot read %s", path);
    if (v->kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "cannot read %s: it is not an object", path);
    *out = v;
    return true;
}

static bool open_dir(checkpoint *c, err *e)
{
    char path[MAX_PATH];
    if (!join_path(path, c->path, "config.json", e)) return false;
    if (!read_object(&c->config, c, &c->config_text, path, e)) return false;
    if (!join_path(path, c->path, "generation_config.json", e)) return false;
    if (file_exists(path) && !read_object(&c->generation, c, &c->generation_text, path, e)) return false;
    if (!safetensors_open(&c->st, c->path, e)) return false;
    c->tensors = safetensors_tensors(c->st);
    c->bytes   = safetensors_bytes(c->st) + c->config_text.n + c->generation_text.n;
    return true;
}

static bool open_gguf(checkpoint *c, err *e)
{
    if (str_ends(str_of(c->path), ".safetensors"))
        return err_set(e, ERR_INPUT, "%s is one file of a model, expected its directory", c->path);
    if (!gguf_open(&c->gguf, c->path, e)) return false;
    c->tensors = gguf_tensors(c->gguf);
    c->bytes   = gguf_bytes(c->gguf);
    return true;
}

bool checkpoint_open(checkpoint **out, const char *path, err *e)
{
    checkpoint *c  = xnew(checkpoint);
    bool        ok = strlen(path) < MAX_PATH;

    arena_init(&c->json, MAX_CONFIG_MEMORY);
    if (ok)
        strcpy(c->path, path);
    else
        err_set(e, ERR_INPUT, "a path of more than %d bytes", MAX_PATH - 1);
    ok   = ok && (file_is_dir(path) ? open_dir(c, e) : open_gguf(c, e));
    *out = ok ? c : NULL;
    if (!ok) checkpoint_close(c);
    return ok;
}

bool checkpoint_open_bytes(checkpoint **out, const char *name, str bytes, err *e)
{
    checkpoint *c = xnew(checkpoint);
    arena_init(&c->json, MAX_CONFIG_MEMORY);
    snprintf(c->path, sizeof c->path, "%s", name);
    bool ok = gguf_open_bytes(&c->gguf, bytes, e);
    if (ok) {
        c->image   = (file_map){.p = bytes.s, .n = bytes.n};
        c->tensors = gguf_tensors(c->gguf);
        c->bytes   = bytes.n;
    }
    *out = ok ? c : NULL;
    if (!ok) checkpoint_close(c);
    return ok;
}

const maps *checkpoint_files(const checkpoint *c) { return c->gguf ? gguf_files(c->gguf) : safetensors_files(c->st); }

checkpoint_list *checkpoint_list_new(const checkpoint *c)
{
    char             config[MAX_PATH] = "";
    const maps      *files            = checkpoint_files(c);
    bool             has_config       = c->config_text.n && file_join(config, sizeof config, c->path, "config.json");
    size_t           n = 0, bytes = has_config ? strlen(config) + 1 : 0;
    checkpoint_list *l;
    for (size_t i = 0; i < files->n; i++) bytes += strlen(files->file[i].path) + 1;
    l        = xalloc(sizeof *l + (files->n + has_config) * sizeof *l->file + bytes);
    char *at = (char *)&l->file[files->n + has_config];
    for (size_t i = 0; i < files->n + has_config; i++) {
        bool        first = has_config && i == 0;
        const char *path  = first ? config : files->file[i - has_config].path;
        l->file[n].path   = strcpy(at, path);
        l->file[n].bytes  = first ? c->config_text.n : files->file[i - has_config].map.n;
        at += strlen(path) + 1;
        n++;
    }
    l->n    = n;
    l->next = NULL;
    return l;
}

bool checkpoint_list_same(const checkpoint_list *a, const checkpoint_list *b)
{
    if (!a || !b || a->n != b->n) return a == b;
    for (size_t i = 0; i < a->n; i++)
        if (a->file[i].bytes != b->file[i].bytes || strcmp(a->file[i].path, b->file[i].path)) return false;
    return true;
}

quant_type checkpoint_type(const checkpoint *c)
{
    size_t bytes[QUANT_TYPES] = {0};
    int    largest            = QUANT_F32;
    for (size_t i = 0; i < tensor_count(c->tensors); i++) {
        const tensor *t = tensor_at(c->tensors, i);
        if (quant_name(t->type)) bytes[t->type] += t->bytes;
    }
    for (int i = 0; i < QUANT_TYPES; i++)
        if (bytes[i] > bytes[largest]) largest = i;
    return (quant_type)largest;
}

void checkpoint_drop(const checkpoint *c, const tensor *t)
{
    if (c->image.p)
        file_map_drop(&c->image, (size_t)((const char *)t->data - c->image.p), t->bytes);
    else if (c->gguf)
        gguf_drop(c->gguf, t);
    else
        safetensors_drop(c->st, t);
}

void checkpoint_close(checkpoint *c)
{
    if (!c) return;
    gguf_close(c->gguf);
    safetensors_close(c->st);
    arena_deinit(&c->json);
    file_map_close(&c->config_text);
    file_map_close(&c->generation_text);
    mem_free(c);
}
