/* gguf/gguf.c - the reader.
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_values
 *   n_values  x  key  u32 type  value            an array: u32 item type, u64 count, items
 *   n_tensors x  name  u32 n_dims  u64 dim[]  u32 type  u64 offset
 *   zeros up to a multiple of general.alignment (default 32)
 *   data; offsets count from here and are multiples of the alignment
 *
 * A string is a u64 length and its bytes. A part of a split model is a whole file of this form with its own
 * tensors; split.no counts from 0, the number in its name from 1. */
#include "gguf/gguf.h"

#include "base/mem.h"
#include "gguf/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT     = 64 * 1024,
    MAX_ENTRIES       = 64 * 1024,             /* keys, tensors: real files have a few thousand */
    MIN_VALUE_BYTES   = 8 + 1 + 4 + 1,         /* a key of one letter and a u8 */
    MIN_TENSOR_BYTES  = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one letter and one dimension */
    PART_SUFFIX       = 20,                    /* strlen("-00001-of-00003.gguf") */
};

typedef struct {
    str    bytes;
    size_t at;
    bool   failed; /* a read past the end gave zeros */
} reader;

typedef struct {
    gguf_value *value;
    size_t      cap;
    names       keys; /* as many as values */
    uint64_t    n_tensors;
    size_t      alignment;
} header;

struct gguf {
    maps          files;
    header        head;
    tensor_table *tensors;
};

/* --- reading bytes ----------------------------------------------------------------------------- */
static size_t bytes_left(const reader *r) { return r->bytes.n - r->at; }

/* Returns the next n bytes, or NULL past the end. */
static const char *take_bytes(reader *r, uint64_t n)
{
    if (r->failed || n > bytes_left(r)) {
        r->failed = true;
        return NULL;
    }
    const char *p = r->bytes.s + r->at;
    r->at += n;
    return p;
}

static uint32_t read_u32(reader *r)
{
    uint32_t    v = 0;
    const char *p = take_bytes(r, sizeof v);
    if (p) memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t read_u64(reader *r)
{
    uint64_t    v = 0;
    const char *p = take_bytes(r, sizeof v);
    if (p) memcpy(&v, p, sizeof v);
    return v;
}

static str read_str(reader *r)
{
    uint64_t    n = read_u64(r);
    const char *p = take_bytes(r, n);
    return p ? (str){p, n} : (str){0};
}

/* --- values ------------------------------------------------------------------------------------ */
size_t gguf_type_bytes(gguf_type t)
{
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
    return bytes[t];
}

static bool skip_strings(reader *r, const gguf_value *v, err *e)
{
    for (uint64_t i = 0; i < v->n; i++) {
        read_str(r);
        if (r->failed)
            return err_set(e, ERR_FORMAT, "string %" PRIu64 " of key '%.*s' runs past the end of the file", i,
                           STR_ARG(v->key));
    }
    return true;
}

static bool check_bools(const gguf_value *v, err *e)
{
    for (uint64_t i = 0; i < v->n; i++)
        if ((unsigned char)v->data[i] > 1)
            return err_set(e, ERR_FORMAT, "key '%.*s' has the boolean %d, expected 0 or 1", STR_ARG(v->key),
                           (unsigned char)v->data[i]);
    return true;
}

/* Skips the items of an array whose item type and count are known. */
static bool read_items(reader *r, gguf_value *v, err *e)
{
    size_t each = gguf_type_bytes(v->item), min_bytes = each ? each : sizeof(uint64_t), bytes;
    if (!size_mul(&bytes, v->n, min_bytes) || bytes > bytes_left(r))
        return err_set(e, ERR_FORMAT,
                       "key '%.*s' claims %" PRIu64 " items of at least %zu bytes, but only %zu bytes are left",
                       STR_ARG(v->key), v->n, min_bytes, bytes_left(r));
    v->data = r->bytes.s + r->at;
    if (v->item == GGUF_STRING) return skip_strings(r, v, e);
    take_bytes(r, bytes);
    return v->item != GGUF_BOOL || check_bools(v, e);
}

static bool read_value(reader *r, gguf_value *v, err *e)
{
    v->key        = read_str(r);
    uint32_t type = read_u32(r), item = type;
    v->n = 1;
    if (type == GGUF_ARRAY) {
        item = read_u32(r);
        v->n = read_u64(r);
    }
    if (r->failed) return err_set(e, ERR_FORMAT, "the keys end early, at byte %zu", r->at);
    if (!v->key.n) return err_set(e, ERR_FORMAT, "a key without a name before byte %zu", r->at);
    if (type > GGUF_F64) return err_set(e, ERR_FORMAT, "key '%.*s' has the unknown type %u", STR_ARG(v->key), type);
    if (type == GGUF_ARRAY && item == GGUF_ARRAY)
        return err_set(e, ERR_FORMAT, "key '%.*s' is an array of arrays, which is not supported", STR_ARG(v->key));
    if (item > GGUF_F64)
        return err_set(e, ERR_FORMAT, "key '%.*s' is an array of the unknown type %u", STR_ARG(v->key), item);
    v->type = (gguf_type)type;
    v->item = (gguf_type)item;
    return read_items(r, v, e);
}

static bool make_room(header *h)
{
    if (h->keys.n < h->cap) return true;
    size_t      cap = h->cap ? 2 * h->cap : 64, bytes;
    gguf_value *v   = size_mul(&bytes, cap, sizeof *v) ? mem_try_resize(h->value, bytes) : NULL;
    if (!v) return false;
    h->value = v;
    h->cap   = cap;
    return true;
}

static bool add_value(header *h, const gguf_value *v, err *e)
{
    size_t       at = h->keys.n;
    names_result r  = make_room(h) ? names_add(&h->keys, v->key) : NAMES_NO_MEMORY;
    if (r == NAMES_NO_MEMORY) return err_set(e, ERR_UNAVAILABLE, "no memory for more than %zu keys", at);
    if (r == NAMES_TWICE) return err_set(e, ERR_FORMAT, "key '%.*s' appears twice", STR_ARG(v->key));
    h->value[at] = *v;
    return true;
}

static const gguf_value *find_value(const header *h, const char *key)
{
    size_t at;
    return names_find(&h->keys, str_of(key), &at) ? &h->value[at] : NULL;
}

/* --- one file's header ------------------------------------------------------------------------- */
static void header_deinit(header *h)
{
    names_deinit(&h->keys);
    mem_free(h->value);
    *h = (header){0};
}

static bool check_version(uint32_t version, err *e)
{
    if (version == 2 || version == 3) return true;
    if (__builtin_bswap32(version) <= 3 && version)
        return err_set(e, ERR_FORMAT, "it is a big-endian GGUF, which is not supported");
    return err_set(e, ERR_FORMAT, "it is GGUF version %u, expected 2 or 3", version);
}

static bool check_count(const reader *r, const char *what, uint64_t n, size_t least_bytes, err *e)
{
    if (n > MAX_ENTRIES)
        return err_set(e, ERR_FORMAT, "it claims %" PRIu64 " %s, expected at most %d", n, what, MAX_ENTRIES);
    if (n <= bytes_left(r) / least_bytes) return true;
    return err_set(e, ERR_FORMAT, "it claims %" PRIu64 " %s, but only %zu bytes are left", n, what, bytes_left(r));
}

static bool read_alignment(header *h, err *e)
{
    const gguf_value *v = find_value(h, "general.alignment");
    int64_t           n = DEFAULT_ALIGNMENT;
    if (v && !gguf_int(v, &n)) return err_set(e, ERR_FORMAT, "general.alignment is not an integer");
    if (n < 8 || n > MAX_ALIGNMENT || (n & (n - 1)))
        return err_set(e, ERR_FORMAT, "general.alignment is %" PRId64 ", expected a power of two from 8 to %d", n,
                       MAX_ALIGNMENT);
    h->alignment = (size_t)n;
    return true;
}

static bool read_header(header *h, reader *r, err *e)
{
    str magic = {take_bytes(r, 4), 4};
    if (r->failed || !str_is(magic, "GGUF")) return err_set(e, ERR_FORMAT, "it does not start with \"GGUF\"");
    uint32_t version = read_u32(r);
    h->n_tensors     = read_u64(r);
    uint64_t n       = read_u64(r);
    if (r->failed) return err_set(e, ERR_FORMAT, "its header ends early: the file has %zu bytes", r->bytes.n);
    if (!check_version(version, e) || !check_count(r, "keys", n, MIN_VALUE_BYTES, e)) return false;
    for (uint64_t i = 0; i < n; i++) {
        gguf_value v;
        if (!read_value(r, &v, e) || !add_value(h, &v, e)) return false;
    }
    return read_alignment(h, e) && check_count(r, "tensors", h->n_tensors, MIN_TENSOR_BYTES, e);
}

/* --- its tensors ------------------------------------------------------------------------------- */
static bool read_shape(reader *r, tensor *t, err *e)
{
    uint32_t n_dims = read_u32(r);
    if (r->failed) return err_set(e, ERR_FORMAT, "the tensor table ends early, at byte %zu", r->at);
    if (n_dims < 1 || n_dims > TENSOR_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has %u dimensions, expected 1 to %d", STR_ARG(t->name), n_dims,
                       TENSOR_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < TENSOR_MAX_DIMS; i++) {
        uint64_t d = i < t->n_dims ? read_u64(r) : 1;
        if (!r->failed && (d < 1 || d > INT64_MAX))
            return err_set(e, ERR_FORMAT, "tensor '%.*s' has a dimension of %" PRIu64, STR_ARG(t->name), d);
        t->dim[i] = (int64_t)d;
    }
    return true;
}

/* Reads name, shape, type and size. *offset counts from the start of the data. */
static bool read_tensor(reader *r, tensor *t, uint64_t *offset, err *e)
{
    t->name = read_str(r);
    if (!r->failed && !t->name.n) return err_set(e, ERR_FORMAT, "a tensor without a name before byte %zu", r->at);
    if (!read_shape(r, t, e)) return false;
    uint32_t type = read_u32(r);
    *offset       = read_u64(r);
    if (r->failed) return err_set(e, ERR_FORMAT, "the tensor table ends early, at byte %zu", r->at);
    if (!quant_name((quant_type)type))
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has the type %u, which is not supported", STR_ARG(t->name), type);
    t->type = (quant_type)type;
    return tensor_size(t, e);
}

/* Checks that the tensor lies inside the file, and sets its data pointer. */
static bool place_tensor(tensor *t, uint64_t offset, size_t data_at, const header *h, str file, err *e)
{
    size_t at;
    if (offset % h->alignment)
        return err_set(e, ERR_FORMAT, "tensor '%.*s' has the offset %" PRIu64 ", not a multiple of the alignment %zu",
                       STR_ARG(t->name), offset, h->alignment);
    if (!size_add(&at, data_at, offset) || !range_inside(at, t->bytes, file.n))
        return err_set(e, ERR_FORMAT,
                       "tensor '%.*s' at offset %" PRIu64 " with %zu bytes runs past the end of the file (%zu bytes)",
                       STR_ARG(t->name), offset, t->bytes, file.n);
    t->data = file.s + at;
    return true;
}

static int by_place(const void *a, const void *b)
{
    const char *x = ((const tensor *)a)->data, *y = ((const tensor *)b)->data;
    return (x > y) - (x < y);
}

static bool check_overlap(tensor *t, size_t n, str file, err *e)
{
    qsort(t, n, sizeof *t, by_place);
    for (size_t i = 1; i < n; i++) {
        const char *at = t[i].data, *before = t[i - 1].data;
        if ((size_t)(at - before) < t[i - 1].bytes)
            return err_set(e, ERR_FORMAT, "tensors '%.*s' and '%.*s' overlap at byte %zu of the file",
                           STR_ARG(t[i - 1].name), STR_ARG(t[i].name), (size_t)(at - file.s));
    }
    return true;
}

/* Reads the tensor table, at which r stands. h->n_tensors was checked against the bytes that are left, but these may be
 * data, so the table is walked once before memory is allocated for it. */
static bool read_tensors(gguf *g, const header *h, reader *r, err *e)
{
    reader   second_pass = *r;
    tensor   t;
    uint64_t offset;
    for (uint64_t i = 0; i < h->n_tensors; i++)
        if (!read_tensor(r, &t, &offset, e)) return false;
    if (!h->n_tensors) return true;
    size_t  data_at = (r->at + h->alignment - 1) & ~(h->alignment - 1); /* no overflow: r->at is inside a mapping */
    tensor *all     = mem_try_n(h->n_tensors, sizeof *all);
    bool    ok      = all != NULL || err_set(e, ERR_UNAVAILABLE, "no memory for %" PRIu64 " tensors", h->n_tensors);
    for (uint64_t i = 0; ok && i < h->n_tensors; i++)
        ok = read_tensor(&second_pass, &all[i], &offset, e) && place_tensor(&all[i], offset, data_at, h, r->bytes, e) &&
             tensor_table_add(g->tensors, &all[i], e);
    ok = ok && check_overlap(all, h->n_tensors, r->bytes, e);
    mem_free(all);
    return ok;
}

/* --- split models ------------------------------------------------------------------------------ */
/* Sets *out to the number of parts, 1 when the file has no split keys. */
static bool read_split_count(const header *h, int *out, err *e)
{
    const gguf_value *v = find_value(h, "split.count");
    int64_t           n = 1;
    if (v && (!gguf_int(v, &n) || n < 0 || n > UINT16_MAX))
        return err_set(e, ERR_FORMAT, "split.count is not a number of parts");
    *out = n > 1 ? (int)n : 1;
    return true;
}

static void part_suffix(char out[PART_SUFFIX + 1], int part, int n_parts)
{
    snprintf(out, PART_SUFFIX + 1, "-%05u-of-%05u.gguf", (unsigned)part % 100000, (unsigned)n_parts % 100000);
}

/* Checks that the numbers in the name of a part agree with its header. */
static bool check_part(const header *h, str path, int n_parts, err *e)
{
    char    suffix[PART_SUFFIX + 1];
    int64_t no, count;
    if (!gguf_int(find_value(h, "split.no"), &no)) return err_set(e, ERR_FORMAT, "split.no is missing");
    if (!gguf_int(find_value(h, "split.count"), &count) || count != n_parts)
        return err_set(e, ERR_FORMAT, "split.count is not %d, as in the other parts", n_parts);
    if (no < 0 || no >= n_parts)
        return err_set(e, ERR_FORMAT, "split.no is %" PRId64 ", expected 0 to %d", no, n_parts - 1);
    part_suffix(suffix, (int)no + 1, n_parts);
    if (!str_ends(path, suffix))
        return err_set(e, ERR_FORMAT, "split.no is %" PRId64 " of %d, so its name must end in %s", no, n_parts, suffix);
    return true;
}

static bool map_file(gguf *g, const char *path, reader *r, err *e)
{
    *r = (reader){0};
    return maps_add(&g->files, path, &r->bytes, e);
}

/* Reads part `no`, counted from 1. Keeps the header of the first one. */
static bool read_part(gguf *g, const char *path, int no, int n_parts, err *e)
{
    header h = {0};
    reader r;
    if (!map_file(g, path, &r, e)) return err_wrap(e, "part %d of %d", no, n_parts);
    bool ok = read_header(&h, &r, e) && check_part(&h, str_of(path), n_parts, e) && read_tensors(g, &h, &r, e);
    if (no == 1)
        g->head = h;
    else
        header_deinit(&h);
    return ok || err_wrap(e, "cannot load %s", path);
}

static bool check_split_total(const gguf *g, int n_parts, err *e)
{
    int64_t n;
    if (!gguf_int(gguf_find(g, "split.tensors.count"), &n))
        return err_set(e, ERR_FORMAT, "split.tensors.count is missing in the first part");
    if (n < 0 || (uint64_t)n != tensor_count(g->tensors))
        return err_set(e, ERR_FORMAT, "the %d parts hold %zu tensors, but split.tensors.count is %" PRId64, n_parts,
                       tensor_count(g->tensors), n);
    return true;
}

/* Opens all parts. path is one of them, and its header agreed with its name. */
static bool read_parts(gguf *g, const char *path, int n_parts, err *e)
{
    char  suffix[PART_SUFFIX + 1];
    char *part = mem_try(strlen(path) + 1);
    bool  ok   = part != NULL || err_set(e, ERR_UNAVAILABLE, "no memory for the parts' names");
    for (int no = 1; ok && no <= n_parts; no++) {
        part_suffix(suffix, no, n_parts);
        strcpy(part, path);
        strcpy(part + strlen(path) - PART_SUFFIX, suffix);
        ok = read_part(g, part, no, n_parts, e);
    }
    mem_free(part);
    return ok && (check_split_total(g, n_parts, e) || err_wrap(e, "cannot load %s", path));
}

/* --- opening ----------------------------------------------------------------------------------- */
/* Reads a single file. When it turns out to be a part, keeps nothing and sets *n_parts above 1. */
static bool read_file(gguf *g, reader *r, str path, int *n_parts, err *e)
{
    if (!read_header(&g->head, r, e) || !read_split_count(&g->head, n_parts, e)) return false;
    if (*n_parts == 1) return read_tensors(g, &g->head, r, e);
    if (!path.n) return err_set(e, ERR_FORMAT, "it is one of %d parts, expected a whole model", *n_parts);
    if (!check_part(&g->head, path, *n_parts, e)) return false;
    header_deinit(&g->head);
    maps_deinit(&g->files);
    return true;
}

static gguf *new_gguf(err *e)
{
    gguf *g    = xnew(gguf);
    g->tensors = tensor_table_new(SIZE_MAX);
    if (g->tensors) return g;
    gguf_close(g);
    err_set(e, ERR_UNAVAILABLE, "no memory for a tensor table");
    return NULL;
}

bool gguf_open(gguf **out, const char *path, err *e)
{
    int    n_parts = 1;
    bool   ok      = false;
    reader r;
    gguf  *g = new_gguf(e);

    *out = NULL;
    if (!g || !map_file(g, path, &r, e)) goto done;
    if (!read_file(g, &r, str_of(path), &n_parts, e)) {
        err_wrap(e, "cannot load %s", path);
        goto done;
    }
    if (n_parts > 1 && !read_parts(g, path, n_parts, e)) goto done;
    *out = g;
    g    = NULL; /* now the caller's */
    ok   = true;
done:
    gguf_close(g);
    return ok;
}

bool gguf_open_bytes(gguf **out, str bytes, err *e)
{
    int    n_parts;
    reader r  = {.bytes = bytes};
    gguf  *g  = new_gguf(e);
    bool   ok = g && read_file(g, &r, (str){0}, &n_parts, e);

    *out = ok ? g : NULL;
    if (!ok) gguf_close(g);
    return ok;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    tensor_table_free(g->tensors);
    header_deinit(&g->head);
    maps_deinit(&g->files);
    mem_free(g);
}

/* --- access ------------------------------------------------------------------------------------ */
const maps         *gguf_files(const gguf *g) { return &g->files; }
size_t              gguf_bytes(const gguf *g) { return g->files.bytes; }
void                gguf_drop(const gguf *g, const tensor *t) { maps_drop(&g->files, t->data, t->bytes); }
bool                gguf_has_file(const gguf *g, const char *path) { return maps_has_file(&g->files, path); }
size_t              gguf_n_values(const gguf *g) { return g->head.keys.n; }
const gguf_value   *gguf_value_at(const gguf *g, size_t i) { return &g->head.value[i]; }
const gguf_value   *gguf_find(const gguf *g, const char *key) { return find_value(&g->head, key); }
const tensor_table *gguf_tensors(const gguf *g) { return g->tensors; }

#define LOAD(T, p)                                                                                                     \
    ({                                                                                                                 \
        T load_;                                                                                                       \
        memcpy(&load_, (p), sizeof load_);                                                                             \
        load_;                                                                                                         \
    })

static bool load_int(gguf_type t, const char *p, int64_t *out)
{
    switch (t) {
    case GGUF_U8: *out = LOAD(uint8_t, p); return true;
    case GGUF_I8: *out = LOAD(int8_t, p); return true;
    case GGUF_U16: *out = LOAD(uint16_t, p); return true;
    case GGUF_I16: *out = LOAD(int16_t, p); return true;
    case GGUF_U32: *out = LOAD(uint32_t, p); return true;
    case GGUF_I32: *out = LOAD(int32_t, p); return true;
    case GGUF_I64: *out = LOAD(int64_t, p); return true;
    case GGUF_U64: {
        uint64_t u = LOAD(uint64_t, p);
        if (u > INT64_MAX) return false;
        *out = (int64_t)u;
        return true;
    }
    default: return false;
    }
}

bool gguf_int(const gguf_value *v, int64_t *out) { return v && load_int(v->type, v->data, out); }

bool gguf_real(const gguf_value *v, double *out)
{
    int64_t i;
    if (!v) return false;
    if (v->type == GGUF_F32) {
        *out = LOAD(float, v->data);
        return true;
    }
    if (v->type == GGUF_F64) {
        *out = LOAD(double, v->data);
        return true;
    }
    if (!load_int(v->type, v->data, &i)) return false;
    *out = (double)i;
    return true;
}

bool gguf_bool(const gguf_value *v, bool *out)
{
    if (!v || v->type != GGUF_BOOL) return false;
    *out = v->data[0] != 0;
    return true;
}

bool gguf_str(const gguf_value *v, str *out)
{
    if (!v || v->type != GGUF_STRING) return false;
    const char *at = v->data;
    *out           = gguf_next_str(&at);
    return true;
}

bool gguf_item_int(const gguf_value *v, uint64_t i, int64_t *out)
{
    if (!v || v->type != GGUF_ARRAY || i >= v->n) return false;
    gguf_type t = v->item == GGUF_BOOL ? GGUF_U8 : v->item;
    return load_int(t, v->data + (size_t)i * gguf_type_bytes(v->item), out);
}

str gguf_next_str(const char **at)
{
    str s = {*at + sizeof(uint64_t), LOAD(uint64_t, *at)};
    *at   = s.s + s.n;
    return s;
}

size_t gguf_value_bytes(const gguf_value *v)
{
    const char *at = v->data;
    if (v->item != GGUF_STRING) return (size_t)v->n * gguf_type_bytes(v->item);
    for (uint64_t i = 0; i < v->n; i++) gguf_next_str(&at);
    return (size_t)(at - v->data);
}
