#include "model/vision.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/family.h"
#include "model/vision_inside.h"

#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>

/* --- the file -------------------------------------------------------------------------------------*/
/* Writes the path of the first mmproj*.gguf, by name, in the directory of a file. */
static bool find_beside(char *out, size_t cap, const char *file)
{
    char        dir[4096], best[256] = "";
    const char *name = file_name(file);
    size_t      n    = name == file ? 0 : (size_t)(name - file);
    if (n >= sizeof dir) return false;
    memcpy(dir, file, n);
    dir[n] = 0;
    DIR *d = opendir(n ? dir : ".");
    for (struct dirent *x; d && (x = readdir(d));) {
        str s = str_of(x->d_name);
        if (s.n >= sizeof best || !str_starts(s, "mmproj") || !str_ends(s, ".gguf")) continue;
        if (!best[0] || strcmp(x->d_name, best) < 0) strcpy(best, x->d_name);
    }
    if (d) closedir(d);
    return best[0] && file_join(out, cap, n ? dir : ".", best);
}

static size_t tensor_bytes(const checkpoint *c, bool projector)
{
    static const char *const parts[] = {"vision", "visual"};
    size_t                   sum     = 0;
    for (size_t i = 0; i < tensor_count(c->tensors); i++) {
        const tensor *t   = tensor_at(c->tensors, i);
        bool          own = projector;
        for (size_t k = 0; k < COUNT(parts) && !own; k++)
            own = memmem(t->name.s, t->name.n, parts[k], strlen(parts[k])) != NULL;
        if (own) sum += t->bytes;
    }
    return sum;
}

static bool read_config(vision *v, const target *t, const checkpoint *text, const checkpoint *projector, err *e)
{
    vision_files f = {text, projector, t->n_embd, t->n_vocab, t->causal_media};
    if (!t->family->vision(&v->c, &f, e)) return false;
    snprintf(v->path, sizeof v->path, "%s", projector ? projector->path : text->path);
    v->gguf = projector;
    if (projector) {
        char fingerprint[FINGERPRINT_MAX];
        fingerprint_checkpoint(projector, fingerprint);
        fingerprint_stamp(projector, fingerprint, v->stamp);
    }
    v->file_bytes = tensor_bytes(projector ? projector : text, projector);
    v->o          = t->o;
    return true;
}

static bool read_projector(vision *v, const target *t, const checkpoint *text, const char *path, err *e)
{
    checkpoint *c;
    if (!checkpoint_open(&c, path, e)) return false;
    bool ok = (c->gguf && str_is(model_arch(c), "clip")) || err_set(e, ERR_FORMAT, "it is not a projector (mmproj)");
    ok      = ok && read_config(v, t, text, c, e);
    checkpoint_close(c);
    return ok || err_wrap(e, "%s", path);
}

/* Reads the configuration where it is found. v->c.kind stays VISION_NONE when there is none. */
static bool find_encoder(vision *v, const target *t, const checkpoint *text, const char *mmproj, err *e)
{
    char path[4200];
    err  why = {0};
    if (mmproj) return read_projector(v, t, text, mmproj, e);
    if (!text->gguf) return read_config(v, t, text, NULL, e);
    if (text->image.p || !find_beside(path, sizeof path, text->path)) return true;
    if (read_projector(v, t, text, path, &why)) return true;
    log_event(LOG_WARN, "vision", "%s; the model reads text only", why.text);
    v->c.kind = VISION_NONE;
    return true;
}

bool vision_may_exist(const checkpoint *text, const char *mmproj)
{
    char path[4200];
    if (mmproj) return strcmp(mmproj, "none") != 0;
    if (text->image.p) return false;
    return text->gguf ? find_beside(path, sizeof path, text->path) : json_find(text->config, "vision_config") != NULL;
}

bool vision_open(vision **out, const target *t, const checkpoint *text, const char *mmproj, err *e)
{
    *out = NULL;
    if (!t->family->vision || (mmproj && !strcmp(mmproj, "none"))) return true;
    vision *v  = xnew(vision);
    bool    ok = find_encoder(v, t, text, mmproj, e);
    if (ok && v->c.kind != VISION_NONE) {
        *out = v;
        return true;
    }
    vision_close(v);
    return ok;
}

/* --- memory for a picture ---------------------------------------------------------------------------*/
static void free_picture(vision *v)
{
    dev all[] = {v->z, v->rows, v->bytes, v->kv.pool, v->kv.table};
    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].p) v->o->free(v->o, all[i]);
    mem_free(v->host);
    v->z = v->rows = v->bytes = v->kv.pool = v->kv.table = (dev){0};
    v->host                                              = NULL;
    v->max_patches                                       = 0;
}

void vision_close(vision *v)
{
    if (!v) return;
    free_picture(v);
    vision_unload(v);
    mem_free(v);
}

/* Pages of K and V in order. */
static bool take_pages(vision *v, size_t n_pages, err *e)
{
    int32_t *table = mem_try_n(n_pages, sizeof *table);
    if (!table) return err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    v->kv.table_stride = (int)n_pages;
    size_t page        = (kv_layer_bytes(&v->kv) + KV_UNIT - 1) / KV_UNIT;
    for (size_t i = 0; i < n_pages; i++) table[i] = (int32_t)(i * page);
    bool ok = n_pages * page <= INT32_MAX && v->o->alloc(v->o, &v->kv.pool, n_pages * page * KV_UNIT, e) &&
              v->o->alloc(v->o, &v->kv.table, n_pages * sizeof *table, e);
    if (ok) {
        v->o->upload(v->q, v->kv.table, table, n_pages * sizeof *table);
        v->o->sync(v->q);
    }
    mem_free(table);
    return ok;
}

/* Describes K and V of a layer: f16 in pages whose heads are padded to a size that the backend prefers, if it has a
 * preference and they need not be exact, else f32. */
static kv_class kv_of(const vision *v)
{
    int         d    = v->c.head_dim;
    const int  *size = v->exact ? NULL : v->o->f16_heads;
    cache_types f32 = {CACHE_F32, CACHE_F32}, f16 = {CACHE_F16, CACHE_F16};
    while (size && *size && *size < d) size++;
    bool has_size = size && *size;
    return (kv_class){.n_layers   = 1,
                      .n_kv_heads = v->c.n_heads,
                      .head_dim   = has_size ? *size : d,
                      .row_dim    = d,
                      .types      = has_size ? f16 : f32};
}

/* Makes room for a picture of n patches with `values` bytes each. */
static bool take_picture(vision *v, int n, int values, err *e)
{
    size_t P = (size_t)n, bytes = P * (size_t)values;
    if (n <= v->max_patches) return true;
    free_picture(v);
    v->kv   = kv_of(v);
    bool ok = ((v->host = mem_try(bytes)) || err_set(e, ERR_UNAVAILABLE, "no memory for a picture")) &&
              v->o->alloc(v->o, &v->bytes, bytes, e) &&
              v->o->alloc(v->o, &v->rows, P * ROW_ARRAYS * sizeof(int32_t), e);
    if (v->c.kind != VISION_DIRECT)
        ok = ok && v->o->alloc(v->o, &v->z, P * (size_t)v->c.width * sizeof(float), e) &&
             take_pages(v, (P + KV_PAGE - 1) / KV_PAGE, e);
    if (!ok)
        free_picture(v);
    else
        v->max_patches = n;
    return ok;
}

void vision_set_exact(vision *v, bool exact)
{
    if (v->exact != exact) free_picture(v);
    v->exact = exact;
}

/* --- positions ----------------------------------------------------------------------------------------*/
/* Where one of `of` patches lies on a table of `side` entries: the entry below and the share of the next one. */
static double along_table(int at, int of, int side, int *below)
{
    double a = of > 1 ? (double)at * (side - 1) / (of - 1) : 0;
    *below   = (int)a;
    return a - *below;
}

/* Mixes four entries of a square table. */
static void mix_bilinear(const vision *v, int x, int y, int cols, int rows, int32_t *row, float *factor)
{
    int    side = (int)lround(sqrt(v->c.n_pos)), x0, y0;
    double fx = along_table(x, cols, side, &x0), fy = along_table(y, rows, side, &y0);
    int    x1 = x0 + 1 < side ? x0 + 1 : x0, y1 = y0 + 1 < side ? y0 + 1 : y0;
    int    at[VISION_MIXED]   = {y0 * side + x0, y0 * side + x1, y1 * side + x0, y1 * side + x1};
    double part[VISION_MIXED] = {(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx};
    for (int k = 0; k < VISION_MIXED; k++) row[k] = at[k], factor[k] = (float)part[k];
}

/* Adds the entries of the column x and the row y. */
static bool mix_axes(const vision *v, int x, int y, int32_t *row, float *factor, err *e)
{
    int n = v->c.n_pos;
    if (x >= n || y >= n)
        return err_set(e, ERR_INPUT, "the picture has %d patches on a side, and the encoder accepts %d",
                       (x > y ? x : y) + 1, n);
    row[0]    = v->table.pairs ? 2 * x : x;
    row[1]    = v->table.pairs ? 2 * y + 1 : n + y;
    factor[0] = factor[1] = 1;
    return true;
}

/* Returns the rule by which patches are ordered: cell by cell. */
static patch_rule ordered(const patch_rule *r)
{
    patch_rule by_cell = *r;
    by_cell.order      = PATCH_ORDER_CELLS;
    return by_cell;
}

/* Uploads the arrays of rows: every patch sees all patches. Sections are (column, row), or (row, column). */
static bool put_rows(const vision *v, const patch_rule *rule, const media_span *s, err *e)
{
    patch_rule r = ordered(rule);
    size_t     P = (size_t)patch_count(&r, s->width, s->height), n_mixed = (size_t)vision_mixed(v);
    int32_t   *rows = mem_try_n(P, ROW_ARRAYS * sizeof *rows);
    float     *factor;
    int        cols = s->width / r.patch, lines = s->height / r.patch, x, y;
    bool       ok = rows || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    for (size_t i = 0; ok && i < P; i++) {
        int32_t *section = rows + ROW_SECTION * P + ROPE_SECTIONS * i, *mix = rows + ROW_MIX * P + n_mixed * i;
        factor = (float *)(void *)(rows + ROW_FACTOR * P) + n_mixed * i;
        patch_position(&x, &y, &r, s->width, (int)i);
        rows[ROW_POS * P + i]    = (int32_t)i;
        rows[ROW_LANE * P + i]   = 0;
        rows[ROW_PARENT * P + i] = -1;
        rows[ROW_ROOT * P + i]   = (int32_t)P;
        rows[ROW_LAST * P + i]   = (int32_t)P - 1;
        section[0]               = v->c.kind == VISION_MERGED ? y : x;
        section[1]               = v->c.kind == VISION_MERGED ? x : y;
        section[2]               = 0;
        if (v->c.kind == VISION_MERGED)
            mix_bilinear(v, x, y, cols, lines, mix, factor);
        else
            ok = mix_axes(v, x, y, mix, factor, e);
    }
    if (ok) v->o->upload(v->q, v->rows, rows, P * ROW_ARRAYS * sizeof *rows);
    mem_free(rows);
    return ok;
}

/* --- patches ------------------------------------------------------------------------------------------*/
/* Uploads the patches in the order of the file's matrix: in GGUF files planes of colors, frame by frame. */
static void put_patches(vision *v, const patch_rule *r, const media_span *s)
{
    const picture *frames[MEDIA_STEP_FRAMES];
    int            P = patch_count(r, s->width, s->height), n_parts = vision_parts(v), x, y;
    patch_rule     by_cell = ordered(r), part = *r;
    uint8_t       *to = v->host;
    if (v->gguf) part.order = PATCH_ORDER_CELLS;
    part.frames = r->frames / n_parts;
    for (int i = 0; i < MEDIA_STEP_FRAMES; i++) frames[i] = &s->frames[s->frames[i].rgb ? i : 0];
    for (int k = 0; k < n_parts; k++)
        for (int i = 0; i < P; i++, to += patch_values(&part)) {
            patch_position(&x, &y, &by_cell, s->width, i);
            patch_write(to, &part, frames + k * part.frames, x, y);
        }
    v->o->upload(v->q, v->bytes, v->host, (size_t)(to - v->host));
}

/* --- encode -------------------------------------------------------------------------------------------*/
static bool check_span(const vision *v, const patch_rule *r, const media_span *s, err *e)
{
    bool shaped = s->width > 0 && s->height > 0 && s->width % r->cell == 0 && s->height % r->cell == 0 &&
                  s->n == patch_cells(r, s->width, s->height);
    (void)v;
    for (int i = 0; shaped && i < r->frames; i++)
        shaped = (i > 0 && !s->frames[i].rgb) || (s->frames[i].width == s->width && s->frames[i].height == s->height);
    return (shaped && s->frames[0].rgb) ||
           err_set(e, ERR_INPUT, "a picture of %d x %d pixels does not have %d soft tokens", s->width, s->height, s->n);
}

static bool run_picture(vision *v, const patch_rule *r, const media_span *s, float *out, err *e)
{
    int n = patch_count(r, s->width, s->height);
    if (!take_picture(v, n, patch_values(r), e) || !put_rows(v, r, s, e)) return false;
    put_patches(v, r, s);
    vision_run(v, n, out);
    v->o->sync(v->q);
    return v->o->check(v->q, e);
}

bool vision_encode(vision *v, const media_span *s, float *out, err *e)
{
    const patch_rule *r = s->is_video ? &v->c.rules.video : &v->c.rules.image;
    if (!check_span(v, r, s, e)) return false;
    if (!v->loaded && !vision_load(v, e)) return err_wrap(e, "the encoder of pictures cannot be loaded");
    return run_picture(v, r, s, out, e);
}

void vision_park(vision *v)
{
    if (!v->loaded) return;
    free_picture(v);
    vision_unload(v);
    log_event(LOG_INFO, "vision", "encoder of pictures: parked");
}

const vision_config *vision_config_of(const vision *v) { return &v->c; }
const char          *vision_stamp(const vision *v) { return v->stamp; }
size_t vision_bytes(const vision *v) { return v->file_bytes + (v->o->runs_later ? (size_t)VISION_LATER_BYTES : 0); }
