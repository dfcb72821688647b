/* gguf/gguf_write.c - the writer; gguf.c describes the layout. Each part of a split file has a header: the first part
 * has all keys, the others only split.no, split.count, split.tensors.count and an alignment other than 32. */
#include "gguf/gguf_write.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gguf/names.h"
#include "gguf/out_file.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

enum { DEFAULT_ALIGNMENT = 32, MAX_ALIGNMENT = 64 * 1024, MAX_PARTS = UINT16_MAX };
static const size_t MAX_KEYS_BYTES = (size_t)1 << 32, MAX_TENSORS = 1 << 20;

typedef struct {
    size_t first, n; /* its tensors */
} part;

struct gguf_writer {
    buf           keys;  /* as in the file */
    arena         text;  /* names */
    names         named; /* keys */
    tensor_table *tensors;
    err           failed;     /* the first error of a put */
    bool          items_open; /* an array of strings */
    size_t        items_at;   /* offset of its count in keys */
    uint64_t      n_items;
    size_t        alignment;

    const gguf *spared; /* may be NULL */
    char       *path;
    part       *parts;
    out_file   *files;
    int         n_parts;
    int         at_part;      /* the part being written */
    size_t      at_tensor;    /* the tensor that the next data belongs to */
    size_t      tensor_bytes; /* bytes of it written so far */
};

gguf_writer *gguf_writer_new(void)
{
    gguf_writer *w = xnew(gguf_writer);
    w->alignment   = DEFAULT_ALIGNMENT;
    w->tensors     = tensor_table_new(MAX_TENSORS);
    buf_init(&w->keys, MAX_KEYS_BYTES);
    arena_init(&w->text, MAX_KEYS_BYTES);
    if (!w->tensors) err_set(&w->failed, ERR_UNAVAILABLE, "no memory for a tensor table");
    return w;
}

void gguf_writer_free(gguf_writer *w)
{
    if (!w) return;
    for (int i = 0; i < w->n_parts && w->files; i++) out_file_discard(&w->files[i]);
    mem_free(w->files);
    mem_free(w->parts);
    tensor_table_free(w->tensors);
    names_deinit(&w->named);
    arena_deinit(&w->text);
    buf_deinit(&w->keys);
    mem_free(w);
}

/* --- keys --------------------------------------------------------------------------------------- */
static void fail_writer(gguf_writer *w, const err *e)
{
    if (w->failed.code == ERR_NONE) w->failed = *e;
}

static bool copy_name(gguf_writer *w, str name, str *out)
{
    char *copy = arena_str(&w->text, name);
    *out       = (str){copy, name.n};
    if (!copy) fail_writer(w, &(err){.code = ERR_UNAVAILABLE, .text = "no memory for names"});
    return copy != NULL;
}

static void close_items(gguf_writer *w)
{
    if (w->items_open && !w->keys.failed) memcpy(w->keys.p + w->items_at, &w->n_items, sizeof w->n_items);
    w->items_open = false;
}

static void put_u32(buf *b, uint32_t v) { buf_put(b, &v, sizeof v); }
static void put_u64(buf *b, uint64_t v) { buf_put(b, &v, sizeof v); }

static void put_text(buf *b, str s)
{
    put_u64(b, s.n);
    buf_put(b, s.s, s.n);
}

/* Puts a key and its type. The value follows. */
static void begin_key(gguf_writer *w, str key, gguf_type type)
{
    str copy;
    err e = {0};
    close_items(w);
    if (!copy_name(w, key, &copy)) return;
    names_result r = names_add(&w->named, copy);
    if (r == NAMES_TWICE) err_set(&e, ERR_INPUT, "key '%.*s' appears twice", STR_ARG(key));
    if (r == NAMES_NO_MEMORY) err_set(&e, ERR_UNAVAILABLE, "no memory for more than %zu keys", w->named.n);
    if (r != NAMES_ADDED) fail_writer(w, &e);
    put_text(&w->keys, key);
    put_u32(&w->keys, type);
}

static void put_scalar(gguf_writer *w, const char *key, gguf_type type, const void *v, size_t bytes)
{
    begin_key(w, str_of(key), type);
    buf_put(&w->keys, v, bytes);
}

#define PUT(suffix, T, type)                                                                                           \
    void gguf_put_##suffix(gguf_writer *w, const char *key, T v) { put_scalar(w, key, type, &v, sizeof v); }
PUT(u32, uint32_t, GGUF_U32)
PUT(i32, int32_t, GGUF_I32)
PUT(f32, float, GGUF_F32)

void gguf_put_bool(gguf_writer *w, const char *key, bool v) { put_scalar(w, key, GGUF_BOOL, v ? "\1" : "\0", 1); }

void gguf_put_str(gguf_writer *w, const char *key, str v)
{
    begin_key(w, str_of(key), GGUF_STRING);
    put_text(&w->keys, v);
}

void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *items, size_t n)
{
    assert(gguf_type_bytes(item));
    begin_key(w, str_of(key), GGUF_ARRAY);
    put_u32(&w->keys, item);
    put_u64(&w->keys, n);
    buf_put(&w->keys, items, n * gguf_type_bytes(item));
}

void gguf_put_strings(gguf_writer *w, const char *key)
{
    begin_key(w, str_of(key), GGUF_ARRAY);
    put_u32(&w->keys, GGUF_STRING);
    w->items_open = true;
    w->items_at   = w->keys.n;
    w->n_items    = 0;
    put_u64(&w->keys, 0);
}

void gguf_put_item(gguf_writer *w, str v)
{
    assert(w->items_open);
    put_text(&w->keys, v);
    w->n_items++;
}

void gguf_put_value(gguf_writer *w, const gguf_value *v)
{
    int64_t n;
    if (str_is(v->key, "general.alignment") && gguf_int(v, &n) && n >= 8 && n <= MAX_ALIGNMENT && !(n & (n - 1)))
        w->alignment = (size_t)n;
    begin_key(w, v->key, v->type);
    if (v->type == GGUF_ARRAY) {
        put_u32(&w->keys, v->item);
        put_u64(&w->keys, v->n);
    }
    buf_put(&w->keys, v->data, gguf_value_bytes(v));
}

/* --- tensors ------------------------------------------------------------------------------------ */
void gguf_put_tensor(gguf_writer *w, const tensor *t)
{
    tensor copy = *t;
    err    e    = {0};
    close_items(w);
    if (w->failed.code != ERR_NONE || !copy_name(w, t->name, &copy.name)) return;
    for (int i = copy.n_dims; i < TENSOR_MAX_DIMS; i++) copy.dim[i] = 1;
    if (!tensor_size(&copy, &e) || !tensor_table_add(w->tensors, &copy, &e)) fail_writer(w, &e);
}

static size_t padded(const gguf_writer *w, size_t n) { return (n + w->alignment - 1) & ~(w->alignment - 1); }

/* --- parts -------------------------------------------------------------------------------------- */
static bool add_part(gguf_writer *w, size_t first, err *e)
{
    part *p = mem_try_resize(w->parts, ((size_t)w->n_parts + 1) * sizeof *p);
    if (!p) return err_set(e, ERR_UNAVAILABLE, "no memory for %d parts", w->n_parts + 1);
    if (w->n_parts == MAX_PARTS)
        return err_set(e, ERR_INPUT, "the file needs more than %d parts: use a larger part size", MAX_PARTS);
    w->parts               = p;
    w->parts[w->n_parts++] = (part){first, 0};
    return true;
}

static bool plan_parts(gguf_writer *w, uint64_t part_bytes, err *e)
{
    uint64_t bytes = w->keys.n; /* size of the part so far */
    if (!add_part(w, 0, e)) return false;
    for (size_t i = 0; i < tensor_count(w->tensors); i++) {
        uint64_t more = padded(w, tensor_at(w->tensors, i)->bytes);
        if (part_bytes && w->parts[w->n_parts - 1].n && bytes + more > part_bytes) {
            if (!add_part(w, i, e)) return false;
            bytes = 0;
        }
        w->parts[w->n_parts - 1].n++;
        bytes += more;
    }
    w->files = mem_try_n((size_t)w->n_parts, sizeof *w->files);
    return w->files || err_set(e, ERR_UNAVAILABLE, "no memory for %d parts", w->n_parts);
}

/* out.gguf -> out-00002-of-00003.gguf, no counted from 0 */
static char *part_path(const gguf_writer *w, const char *path, int no, err *e)
{
    str    stem = str_of(path);
    size_t room = stem.n + sizeof "-00001-of-00001.gguf";
    char  *out  = mem_try(room);
    if (!out) {
        err_set(e, ERR_UNAVAILABLE, "no memory for the names of parts");
    } else if (w->n_parts == 1) {
        strcpy(out, path);
    } else {
        if (str_ends(stem, ".gguf")) stem.n -= 5;
        snprintf(out, room, "%.*s-%05d-of-%05d.gguf", (int)stem.n, stem.s, no + 1, w->n_parts);
    }
    return out;
}

void gguf_writer_protect(gguf_writer *w, const gguf *g) { w->spared = g; }

static bool check_paths(const gguf_writer *w, err *e)
{
    bool ok = true;
    for (int i = 0; ok && w->spared && i < w->n_parts; i++) {
        char *name = part_path(w, w->path, i, e);
        ok         = name != NULL;
        if (ok && gguf_has_file(w->spared, name))
            ok = err_set(e, ERR_INPUT, "cannot write %s: it is the file that is being read", name);
        mem_free(name);
    }
    return ok;
}

/* --- the file ----------------------------------------------------------------------------------- */
static void pad(const gguf_writer *w, buf *b)
{
    for (size_t left = padded(w, b->n) - b->n; left; left--) buf_putc(b, 0);
}

/* Puts general.alignment, which every part repeats. */
static void put_alignment(const gguf_writer *w, buf *b)
{
    put_text(b, STR("general.alignment"));
    put_u32(b, GGUF_U32);
    put_u32(b, (uint32_t)w->alignment);
}

static void put_split_keys(const gguf_writer *w, int no, buf *b)
{
    uint16_t at = (uint16_t)no, count = (uint16_t)w->n_parts;
    int32_t  n = (int32_t)tensor_count(w->tensors);
    put_text(b, STR("split.no"));
    put_u32(b, GGUF_U16);
    buf_put(b, &at, sizeof at);
    put_text(b, STR("split.count"));
    put_u32(b, GGUF_U16);
    buf_put(b, &count, sizeof count);
    put_text(b, STR("split.tensors.count"));
    put_u32(b, GGUF_I32);
    buf_put(b, &n, sizeof n);
}

static void put_infos(const gguf_writer *w, const part *p, buf *b)
{
    uint64_t offset = 0;
    for (size_t i = p->first; i < p->first + p->n; i++) {
        const tensor *t = tensor_at(w->tensors, i);
        put_text(b, t->name);
        put_u32(b, (uint32_t)t->n_dims);
        for (int k = 0; k < t->n_dims; k++) put_u64(b, (uint64_t)t->dim[k]);
        put_u32(b, t->type);
        put_u64(b, offset);
        offset += padded(w, t->bytes);
    }
}

static bool put_header(const gguf_writer *w, int no, buf *b, err *e)
{
    const part *p      = &w->parts[no];
    bool        odd    = no && w->alignment != DEFAULT_ALIGNMENT;
    size_t      n_keys = (no ? 0 : w->named.n) + (w->n_parts > 1 ? 3 : 0) + odd;
    buf_puts(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, p->n);
    put_u64(b, n_keys);
    if (!no) buf_put(b, w->keys.p, w->keys.n);
    if (w->n_parts > 1) put_split_keys(w, no, b);
    if (odd) put_alignment(w, b);
    put_infos(w, p, b);
    pad(w, b);
    return !b->failed || err_set(e, ERR_UNAVAILABLE, "no memory for the header");
}

static bool write_header(gguf_writer *w, int no, err *e)
{
    buf b;
    buf_init(&b, 2 * MAX_KEYS_BYTES);
    bool ok = put_header(w, no, &b, e) && out_file_put(&w->files[no], b.p, b.n, e);
    buf_deinit(&b);
    return ok;
}

static bool begin_part(gguf_writer *w, int no, err *e)
{
    char *name = part_path(w, w->path, no, e);
    bool  ok   = name && out_file_open(&w->files[no], name, e) && write_header(w, no, e);
    w->at_part = no;
    mem_free(name);
    return ok;
}

/* Returns whether all puts succeeded. */
static bool is_whole(gguf_writer *w, err *e)
{
    close_items(w);
    if (w->keys.failed) fail_writer(w, &(err){.code = ERR_UNAVAILABLE, .text = "no memory for the keys"});
    if (w->failed.code != ERR_NONE && e) *e = w->failed;
    return w->failed.code == ERR_NONE;
}

bool gguf_writer_header(gguf_writer *w, buf *out, err *e)
{
    return is_whole(w, e) && plan_parts(w, 0, e) && put_header(w, 0, out, e);
}

bool gguf_writer_begin(gguf_writer *w, const char *path, uint64_t part_bytes, err *e)
{
    w->path = arena_str(&w->text, str_of(path));
    if (!w->path) fail_writer(w, &(err){.code = ERR_UNAVAILABLE, .text = "no memory for the keys"});
    return is_whole(w, e) && plan_parts(w, part_bytes, e) && check_paths(w, e) && begin_part(w, 0, e);
}

/* Completes a tensor: pads the file to the alignment. */
static bool end_tensor(gguf_writer *w, err *e)
{
    static const char zeros[64] = {0};
    const tensor     *t         = tensor_at(w->tensors, w->at_tensor);
    for (size_t left = padded(w, t->bytes) - t->bytes, k; left; left -= k) {
        k = left < sizeof zeros ? left : sizeof zeros;
        if (!out_file_put(&w->files[w->at_part], zeros, k, e)) return false;
    }
    w->at_tensor++;
    w->tensor_bytes = 0;
    return true;
}

/* Switches to the part of the next tensor. */
static bool seek_part(gguf_writer *w, err *e)
{
    const part *p = &w->parts[w->at_part];
    if (w->at_tensor < p->first + p->n || w->at_part + 1 == w->n_parts) return true;
    return out_file_close(&w->files[w->at_part], e) && begin_part(w, w->at_part + 1, e);
}

bool gguf_writer_data(gguf_writer *w, const void *data, size_t n, err *e)
{
    const char *p = data;
    while (n) {
        assert(w->at_tensor < tensor_count(w->tensors));
        size_t left = tensor_at(w->tensors, w->at_tensor)->bytes - w->tensor_bytes, k = n < left ? n : left;
        if (!seek_part(w, e) || !out_file_put(&w->files[w->at_part], p, k, e)) return false;
        w->tensor_bytes += k;
        p += k;
        n -= k;
        if (k == left && !end_tensor(w, e)) return false;
    }
    return true;
}

bool gguf_writer_end(gguf_writer *w, err *e)
{
    int kept = 0;
    assert(w->at_tensor == tensor_count(w->tensors) && w->at_part == w->n_parts - 1);
    if (!out_file_close(&w->files[w->at_part], e)) return false;
    while (kept < w->n_parts && out_file_keep(&w->files[kept], e)) kept++;
    if (kept == w->n_parts) return true;
    while (kept--) unlink(w->files[kept].path); /* never leave half a model */
    return false;
}
