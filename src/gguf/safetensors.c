/* gguf/safetensors.c - the reader and a small writer.
 *
 *   u64 n   n bytes of JSON, padded with spaces   data
 *   {"__metadata__": {"format": "pt"}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
 *
 * Offsets count from the start of the data. A directory with more than one file has an index:
 *   {"metadata": ..., "weight_map": {"name": "model-00001-of-00002.safetensors", ...}} */
#include "gguf/inside.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "gguf/names.h"
#include "gguf/out_file.h"
#include "json/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_HEADER_BYTES = 100 * 1000 * 1000, MAX_DEPTH = 8, MAX_PATH = 4096 };

struct safetensors {
    maps          files;
    tensor_table *tensors;
    arena         names;
};

static const struct {
    const char *dtype;
    quant_type  type;
} dtypes[] = {
    {"F64", QUANT_F64}, {"F32", QUANT_F32}, {"F16", QUANT_F16}, {"BF16", QUANT_BF16}, {"I64", QUANT_I64},
    {"I32", QUANT_I32}, {"I16", QUANT_I16}, {"I8", QUANT_I8},   {"U8", QUANT_I8},     {"BOOL", QUANT_I8},
};

/* --- one tensor of the header ------------------------------------------------------------------ */
typedef struct {
    tensor  t;
    bool    has_dtype, has_shape, has_offsets;
    int64_t from, to;
} entry;

static bool read_dtype(json_reader *r, entry *x, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    for (size_t i = 0; ev.kind == JSON_STRING && i < COUNT(dtypes); i++)
        if (str_is(ev.s, dtypes[i].dtype)) {
            x->t.type           = dtypes[i].type;
            return x->has_dtype = true;
        }
    if (ev.kind != JSON_STRING)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has a dtype that is not a string", STR_ARG(x->t.name));
    return err_set(e, ERR_FORMAT, "tensor '%.*s' has the dtype '%.*s', which is not supported", STR_ARG(x->t.name),
                   STR_ARG(ev.s));
}

/* Reads a shape, outermost dimension first. With more than four dimensions, leading ones of 1 are dropped, and others
 * are multiplied into the last one. */
static bool push_dim(tensor *t, const json_event *ev, err *e)
{
    if (ev->kind != JSON_INT || ev->i < 1)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has a dimension that is not a positive integer, at byte %zu",
                       STR_ARG(t->name), ev->at);
    if (t->n_dims == TENSOR_MAX_DIMS) {
        int64_t *last = &t->dim[TENSOR_MAX_DIMS - 1];
        if (t->dim[0] != 1) {
            if (*last > INT64_MAX / ev->i)
                return err_set(e, ERR_FORMAT, "tensor '%.*s' is too large", STR_ARG(t->name));
            *last *= ev->i;
            return true;
        }
        memmove(t->dim, t->dim + 1, (TENSOR_MAX_DIMS - 1) * sizeof *t->dim);
        t->n_dims--;
    }
    t->dim[t->n_dims++] = ev->i;
    return true;
}

static bool expect_array(json_reader *r, const entry *x, const char *what, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    if (ev.kind == JSON_ARRAY) return true;
    return err_set(e, ERR_FORMAT, "tensor '%.*s' has a %s that is not an array", STR_ARG(x->t.name), what);
}

static bool read_shape(json_reader *r, entry *x, err *e)
{
    tensor    *t = &x->t;
    json_event ev;
    if (!expect_array(r, x, "shape", e)) return false;
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_ARRAY_END) break;
        if (!push_dim(t, &ev, e)) return false;
    }
    if (!t->n_dims) t->dim[t->n_dims++] = 1;
    for (int i = 0; i < t->n_dims / 2; i++) {
        int64_t d                 = t->dim[i];
        t->dim[i]                 = t->dim[t->n_dims - 1 - i];
        t->dim[t->n_dims - 1 - i] = d;
    }
    for (int i = t->n_dims; i < TENSOR_MAX_DIMS; i++) t->dim[i] = 1;
    return x->has_shape = true;
}

static bool read_offsets(json_reader *r, entry *x, err *e)
{
    json_event ev[3];
    if (!expect_array(r, x, "data_offsets", e)) return false;
    for (size_t i = 0; i < COUNT(ev); i++) {
        if (!json_next(r, &ev[i], e)) return false;
        if (ev[i].kind == (i < 2 ? JSON_INT : JSON_ARRAY_END)) continue;
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has data_offsets that are not two integers", STR_ARG(x->t.name));
    }
    x->from               = ev[0].i;
    x->to                 = ev[1].i;
    return x->has_offsets = true;
}

static bool read_entry(json_reader *r, entry *x, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    if (ev.kind != JSON_OBJECT)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' is not described by an object", STR_ARG(x->t.name));
    for (;;) {
        bool ok;
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) break;
        if (str_is(ev.s, "dtype"))
            ok = read_dtype(r, x, e);
        else if (str_is(ev.s, "shape"))
            ok = read_shape(r, x, e);
        else if (str_is(ev.s, "data_offsets"))
            ok = read_offsets(r, x, e);
        else
            ok = json_skip(r, e);
        if (!ok) return false;
    }
    if (x->has_dtype && x->has_shape && x->has_offsets) return true;
    return err_set(e, ERR_FORMAT, "tensor '%.*s' has no %s", STR_ARG(x->t.name),
                   !x->has_dtype   ? "dtype"
                   : !x->has_shape ? "shape"
                                   : "data_offsets");
}

/* Checks the tensor's place and sets its data pointer. */
static bool place_tensor(entry *x, str data, err *e)
{
    tensor *t = &x->t;
    if (!tensor_size(t, e)) return false;
    if (x->from < 0 || x->to < x->from || (uint64_t)x->to > data.n)
        return err_set(e, ERR_FORMAT,
                       "tensor '%.*s' has the offsets %" PRId64 " to %" PRId64 ", outside the %zu bytes of data",
                       STR_ARG(t->name), x->from, x->to, data.n);
    if ((uint64_t)(x->to - x->from) != t->bytes)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has %" PRId64 " bytes, but its shape and dtype need %zu",
                       STR_ARG(t->name), x->to - x->from, t->bytes);
    t->data = data.s + x->from;
    return true;
}

/* --- one file ---------------------------------------------------------------------------------- */
static bool add_tensor(safetensors *s, json_reader *r, str name, str data, err *e)
{
    entry x = {0};
    if (!name.n) return err_set(e, ERR_FORMAT, "a tensor without a name");
    x.t.name = (str){arena_str(&s->names, name), name.n};
    if (!x.t.name.s) return err_set(e, ERR_UNAVAILABLE, "no memory for the tensors' names");
    return read_entry(r, &x, e) && place_tensor(&x, data, e) && tensor_table_add(s->tensors, &x.t, e);
}

static bool check_metadata(json_reader *r, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    if (ev.kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "__metadata__ is not an object");
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) return true;
        str key = ev.s;
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind != JSON_STRING)
            return err_set(e, ERR_FORMAT, "'%.*s' in __metadata__ is not a string", STR_ARG(key));
    }
}

static bool read_header(safetensors *s, json_reader *r, str data, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    if (ev.kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "its header is not an object");
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) break;
        bool is_metadata = str_is(ev.s, "__metadata__");
        if (is_metadata ? !check_metadata(r, e) : !add_tensor(s, r, ev.s, data, e)) return false;
    }
    return json_next(r, &ev, e); /* JSON_END: only white space follows */
}

static int by_place(const void *a, const void *b)
{
    const char *x = (*(const tensor *const *)a)->data, *y = (*(const tensor *const *)b)->data;
    return (x > y) - (x < y);
}

static bool check_covered(const tensor **t, size_t n, str data, err *e)
{
    size_t at = 0; /* bytes of data that belong to t[0..i) */
    qsort(t, n, sizeof *t, by_place);
    for (size_t i = 0; i < n; i++) {
        size_t from = (size_t)((const char *)t[i]->data - data.s);
        if (from != at)
            return err_set(e, ERR_FORMAT, "tensor '%.*s' starts at offset %zu, %s", STR_ARG(t[i]->name), from,
                           from < at ? "inside another tensor" : "after a gap");
        at += t[i]->bytes;
    }
    if (at != data.n) return err_set(e, ERR_FORMAT, "%zu bytes after the last tensor", data.n - at);
    return true;
}

/* Checks that the tensors from index `first` on cover the data of a file without overlap or gap. */
static bool check_places(const safetensors *s, size_t first, str data, err *e)
{
    size_t         n = tensor_count(s->tensors) - first;
    const tensor **t = mem_try_n(n, sizeof *t);
    if (!t) return err_set(e, ERR_UNAVAILABLE, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) t[i] = tensor_at(s->tensors, first + i);
    bool ok = check_covered(t, n, data, e);
    mem_free(t);
    return ok;
}

static bool read_file(safetensors *s, str file, err *e)
{
    uint64_t     n;
    json_reader *r      = NULL;
    json_limits  limits = {.max_depth = MAX_DEPTH, .max_bytes = MAX_HEADER_BYTES};
    if (file.n < sizeof n) return err_set(e, ERR_FORMAT, "it has %zu bytes, too few for a header", file.n);
    memcpy(&n, file.s, sizeof n);
    if (n > MAX_HEADER_BYTES)
        return err_set(e, ERR_FORMAT, "it claims a header of %" PRIu64 " bytes, expected at most %d", n,
                       MAX_HEADER_BYTES);
    if (n > file.n - sizeof n)
        return err_set(e, ERR_FORMAT, "it claims a header of %" PRIu64 " bytes, but the file has %zu", n, file.n);
    str    text  = {file.s + sizeof n, n};
    str    data  = {text.s + n, file.n - sizeof n - n};
    size_t first = tensor_count(s->tensors);
    bool   ok = json_reader_open(&r, text, &limits, e) && read_header(s, r, data, e) && check_places(s, first, data, e);
    json_reader_close(r);
    return ok;
}

static bool open_file(safetensors *s, const char *path, err *e)
{
    str bytes;
    if (!maps_add(&s->files, path, &bytes, e)) return false;
    return read_file(s, bytes, e) || err_wrap(e, "cannot load %s", path);
}

/* --- a directory's shards ---------------------------------------------------------------------- */
static bool join_path(char out[MAX_PATH], const char *dir, const char *name, err *e)
{
    return file_join(out, MAX_PATH, dir, name) ||
           err_set(e, ERR_INPUT, "a path of more than %d bytes: ...%.100s", MAX_PATH - 1, name);
}

/* Returns whether the name is a plain file name, without a path. */
static bool is_plain_name(str s)
{
    return s.n && s.n <= 255 && !memchr(s.s, '/', s.n) && !memchr(s.s, 0, s.n) && !memmem(s.s, s.n, "..", 2) &&
           !str_is(s, ".");
}

/* Opens the shard if its name is new. Sets *at to its index among the mapped files. */
static bool find_shard(safetensors *s, names *shards, const char *dir, str file, size_t *at, err *e)
{
    char path[MAX_PATH], name[256] = {0};
    if (names_find(shards, file, at)) return true;
    if (!is_plain_name(file))
        return err_set(e, ERR_FORMAT, "weight_map names the file '%.*s', expected a name inside the directory",
                       STR_ARG(file));
    memcpy(name, file.s, file.n);
    *at = shards->n;
    if (names_add(shards, file) != NAMES_ADDED) return err_set(e, ERR_UNAVAILABLE, "no memory for the shards' names");
    return join_path(path, dir, name, e) && open_file(s, path, e);
}

static bool read_weight_map(safetensors *s, json_reader *r, names *shards, const char *dir, err *e)
{
    json_event key, file;
    if (!json_next(r, &key, e)) return false;
    if (key.kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "weight_map is not an object");
    for (;;) {
        size_t at;
        if (!json_next(r, &key, e)) return false;
        if (key.kind == JSON_OBJECT_END) return true;
        if (!json_next(r, &file, e)) return false;
        if (file.kind != JSON_STRING)
            return err_set(e, ERR_FORMAT, "weight_map gives tensor '%.*s' no file name", STR_ARG(key.s));
        if (!find_shard(s, shards, dir, file.s, &at, e)) return false;
        const tensor *t = tensor_find(s->tensors, key.s);
        if (!t || !maps_holds(&s->files, at, t->data))
            return err_set(e, ERR_FORMAT, "tensor '%.*s' is not in '%.*s', where weight_map has it", STR_ARG(key.s),
                           STR_ARG(file.s));
    }
}

static bool read_index(safetensors *s, json_reader *r, names *shards, const char *dir, err *e)
{
    json_event ev;
    if (!json_next(r, &ev, e)) return false;
    if (ev.kind != JSON_OBJECT) return err_set(e, ERR_FORMAT, "it is not an object");
    for (;;) {
        if (!json_next(r, &ev, e)) return false;
        if (ev.kind == JSON_OBJECT_END) break;
        bool is_map = str_is(ev.s, "weight_map");
        if (is_map ? !read_weight_map(s, r, shards, dir, e) : !json_skip(r, e)) return false;
    }
    if (!shards->n) return err_set(e, ERR_FORMAT, "its weight_map is missing or empty");
    return json_next(r, &ev, e);
}

static bool open_index(safetensors *s, const char *dir, const char *path, err *e)
{
    json_limits  limits = {.max_bytes = MAX_HEADER_BYTES};
    json_reader *r      = NULL;
    names        shards = {0}; /* in the order of s->files; the names are valid as long as r */
    file_map     text;
    if (!file_map_open(&text, path, e)) return false;
    bool ok = json_reader_open(&r, (str){text.p, text.n}, &limits, e) && read_index(s, r, &shards, dir, e);
    names_deinit(&shards);
    json_reader_close(r);
    file_map_close(&text);
    return ok || err_wrap(e, "cannot load %s", path);
}

static bool open_dir(safetensors *s, const char *dir, err *e)
{
    char path[MAX_PATH];
    if (!join_path(path, dir, "model.safetensors", e)) return false;
    if (file_exists(path)) return open_file(s, path, e);
    if (!join_path(path, dir, "model.safetensors.index.json", e)) return false;
    if (file_exists(path)) return open_index(s, dir, path, e);
    return err_set(e, ERR_NOT_FOUND, "%s has neither model.safetensors nor model.safetensors.index.json", dir);
}

/* --- opening ----------------------------------------------------------------------------------- */
static safetensors *new_safetensors(err *e)
{
    safetensors *s = xnew(safetensors);
    arena_init(&s->names, SIZE_MAX / 2); /* bounded by the size of the headers */
    s->tensors = tensor_table_new(SIZE_MAX);
    if (s->tensors) return s;
    safetensors_close(s);
    err_set(e, ERR_UNAVAILABLE, "no memory for a tensor table");
    return NULL;
}

bool safetensors_open(safetensors **out, const char *path, err *e)
{
    safetensors *s  = new_safetensors(e);
    bool         ok = s && (file_is_dir(path) ? open_dir(s, path, e) : open_file(s, path, e));

    *out = ok ? s : NULL;
    if (!ok) safetensors_close(s);
    return ok;
}

bool safetensors_open_bytes(safetensors **out, str bytes, err *e)
{
    safetensors *s  = new_safetensors(e);
    bool         ok = s && read_file(s, bytes, e);

    *out = ok ? s : NULL;
    if (!ok) safetensors_close(s);
    return ok;
}

void safetensors_close(safetensors *s)
{
    if (!s) return;
    tensor_table_free(s->tensors);
    arena_deinit(&s->names);
    maps_deinit(&s->files);
    mem_free(s);
}

const tensor_table *safetensors_tensors(const safetensors *s) { return s->tensors; }
const maps         *safetensors_files(const safetensors *s) { return &s->files; }
size_t              safetensors_bytes(const safetensors *s) { return s->files.bytes; }
void                safetensors_drop(const safetensors *s, const tensor *t) { maps_drop(&s->files, t->data, t->bytes); }

/* --- writing ----------------------------------------------------------------------------------- */
static const char *dtype_of(quant_type t)
{
    for (size_t i = 0; i < COUNT(dtypes); i++)
        if (dtypes[i].type == t) return dtypes[i].dtype;
    return NULL;
}

static bool out_bytes(const safetensors_out *t, size_t *bytes)
{
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (!size_mul(&n, n, (size_t)t->dim[i])) return false;
    return quant_bytes(t->type, n, bytes);
}

static void put_entry(json_writer *w, const safetensors_out *t, size_t from, size_t to)
{
    json_key(w, t->name);
    json_begin_object(w);
    json_key(w, "dtype");
    json_put_str(w, str_of(dtype_of(t->type)));
    json_key(w, "shape");
    json_begin_array(w);
    for (int i = t->n_dims; i-- > 0;) json_put_int(w, t->dim[i]);
    json_end(w);
    json_key(w, "data_offsets");
    json_begin_array(w);
    json_put_int(w, (int64_t)from);
    json_put_int(w, (int64_t)to);
    json_end(w);
    json_end(w);
}

/* Writes the length, the JSON and padding. */
static bool build_header(buf *b, const safetensors_out *t, size_t n, err *e)
{
    uint64_t    n_bytes = 0;
    size_t      at      = 0, bytes;
    json_writer w;
    buf_put(b, &n_bytes, sizeof n_bytes); /* filled in below */
    json_writer_init(&w, b);
    json_begin_object(&w);
    for (size_t i = 0; i < n; i++) {
        assert(dtype_of(t[i].type) && t[i].n_dims >= 0 && t[i].n_dims <= TENSOR_MAX_DIMS);
        if (!out_bytes(&t[i], &bytes) || bytes > INT64_MAX - at)
            return err_set(e, ERR_TOO_LARGE, "tensor '%s' is too large", t[i].name);
        put_entry(&w, &t[i], at, at + bytes);
        at += bytes;
    }
    json_end(&w);
    while (!b->failed && b->n % 8) buf_putc(b, ' ');
    if (b->failed) return err_set(e, ERR_UNAVAILABLE, "no memory for a header of %zu tensors", n);
    n_bytes = b->n - sizeof n_bytes;
    memcpy(b->p, &n_bytes, sizeof n_bytes);
    return true;
}

bool safetensors_write(const char *path, const safetensors_out *t, size_t n, err *e)
{
    size_t   bytes;
    out_file f = {0};
    buf      header;
    buf_init(&header, MAX_HEADER_BYTES);
    bool ok = build_header(&header, t, n, e) && out_file_open(&f, path, e) && out_file_put(&f, header.p, header.n, e);
    for (size_t i = 0; ok && i < n; i++) ok = out_bytes(&t[i], &bytes) && out_file_put(&f, t[i].data, bytes, e);
    ok = ok && out_file_close(&f, e) && out_file_keep(&f, e);
    out_file_discard(&f);
    buf_deinit(&header);
    return ok;
}
