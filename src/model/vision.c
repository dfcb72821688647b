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
    v->bytes = tensor_bytes(projector ? projector : text, projector);
    v->o     = t->o;
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
    dev all[] = {v->z, v->rows, v->kv.pool, v->kv.table};
    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].p) v->o->free(v->o, all[i]);
    mem_free(v->host);
    v->z = v->rows = v->kv.pool = v->kv.table = (dev){0};
    v->host                                   = NULL;
    v->max_patches                            = 0;
}

void vision_close(vision *v)
{
    if (!v) return;
    free_picture(v);
    owned_free(&v->own);
    if (v->q) v->o->queue_free(v->q);
    mem_free(v->table.data);
    mem_free(v->std_bias);
    mem_free(v->std_scale);
    mem_free(v->layers);
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

/* Makes room for a picture of n patches with `values` numbers each. */
static bool take_picture(vision *v, int n, int values, err *e)
{
    size_t P = (size_t)n, W = (size_t)v->c.width, wide = (size_t)values > W ? (size_t)values : W;
    if (n <= v->max_patches) return true;
    free_picture(v);
    v->kv = (kv_class){
        .n_layers = 1, .n_kv_heads = v->c.n_heads, .head_dim = v->c.head_dim, .types = {CACHE_F32, CACHE_F32}};
    bool ok = (v->host = mem_try_n(P * wide, sizeof(float))) || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    if (v->c.kind != VISION_DIRECT)
        ok = ok && v->o->alloc(v->o, &v->z, P * W * sizeof(float), e) &&
             v->o->alloc(v->o, &v->rows, P * 8 * sizeof(int32_t), e) && take_pages(v, (P + KV_PAGE - 1) / KV_PAGE, e);
    if (!ok)
        free_picture(v);
    else
        v->max_patches = n;
    return ok;
}

/* --- positions ----------------------------------------------------------------------------------------*/
static void table_row(const vision *v, int row, float *out)
{
    quant_dequantise(v->table.type, v->table.data + (size_t)row * v->table.row_bytes, out, (size_t)v->c.width);
}

/* Adds the embeddings of the column x and the row y. */
static bool put_axes(const vision *v, int x, int y, float *out, float *scratch, err *e)
{
    int n = v->c.n_pos;
    if (x >= n || y >= n)
        return err_set(e, ERR_INPUT, "the picture has %d patches on a side, and the encoder accepts %d",
                       (x > y ? x : y) + 1, n);
    table_row(v, v->table.pairs ? 2 * x : x, out);
    table_row(v, v->table.pairs ? 2 * y + 1 : n + y, scratch);
    for (int i = 0; i < v->c.width; i++) out[i] += scratch[i];
    return true;
}

/* Where one of `of` patches lies on a table of `side` entries: the entry below and the share of the next one. */
static double along_table(int at, int of, int side, int *below)
{
    double a = of > 1 ? (double)at * (side - 1) / (of - 1) : 0;
    *below   = (int)a;
    return a - *below;
}

/* Mixes four entries of a square table. */
static void put_bilinear(const vision *v, int x, int y, int cols, int rows, float *out, float *scratch)
{
    int    side = (int)lround(sqrt(v->c.n_pos)), x0, y0;
    double fx = along_table(x, cols, side, &x0), fy = along_table(y, rows, side, &y0);
    int    x1 = x0 + 1 < side ? x0 + 1 : x0, y1 = y0 + 1 < side ? y0 + 1 : y0;
    int    at[4]   = {y0 * side + x0, y0 * side + x1, y1 * side + x0, y1 * side + x1};
    double part[4] = {(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx};
    for (int k = 0; k < 4; k++) {
        table_row(v, at[k], scratch);
        for (int i = 0; i < v->c.width; i++) out[i] = (float)((k ? out[i] : 0) + part[k] * scratch[i]);
    }
}

static bool put_positions(const vision *v, const patch_rule *r, const media_span *s, float *pos, err *e)
{
    int    n = patch_count(r, s->width, s->height), cols = s->width / r->patch, rows = s->height / r->patch, x, y;
    size_t W       = (size_t)v->c.width;
    float *scratch = xnew_n(float, W);
    bool   ok      = true;
    for (int i = 0; ok && i < n; i++) {
        patch_position(&x, &y, r, s->width, i);
        if (v->c.kind == VISION_MERGED)
            put_bilinear(v, x, y, cols, rows, pos + (size_t)i * W, scratch);
        else
            ok = put_axes(v, x, y, pos + (size_t)i * W, scratch, e);
    }
    mem_free(scratch);
    return ok;
}

/* Uploads the rows of attention: every patch sees all patches. Sections are (column, row), or (row, column). */
static bool put_rows(const vision *v, const patch_rule *r, const media_span *s, err *e)
{
    size_t   P    = (size_t)patch_count(r, s->width, s->height);
    int32_t *rows = mem_try_n(P, 8 * sizeof *rows);
    int      x, y;
    if (!rows) return err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    for (size_t i = 0; i < P; i++) {
        int32_t *section = rows + 5 * P + 3 * i;
        patch_position(&x, &y, r, s->width, (int)i);
        rows[i]         = (int32_t)i;
        rows[P + i]     = 0;
        rows[2 * P + i] = -1;
        rows[3 * P + i] = (int32_t)P;
        rows[4 * P + i] = (int32_t)P - 1;
        section[0]      = v->c.kind == VISION_MERGED ? y : x;
        section[1]      = v->c.kind == VISION_MERGED ? x : y;
        section[2]      = 0;
    }
    v->o->upload(v->q, v->rows, rows, P * 8 * sizeof *rows);
    mem_free(rows);
    return true;
}

/* --- patches ------------------------------------------------------------------------------------------*/
/* Reorders a patch from (row, column, channel) to (channel, row, column). */
static void make_planar(float *p, int side, float *scratch)
{
    int n = side * side;
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < n; i++) scratch[c * n + i] = p[i * 3 + c];
    memcpy(p, scratch, 3 * (size_t)n * sizeof *p);
}

/* Reorders a patch from (channel, frame, row, column) to (frame, channel, row, column). */
static void split_frames(float *p, int side, float *scratch)
{
    size_t n = (size_t)(side * side);
    for (size_t c = 0; c < 3; c++)
        for (size_t f = 0; f < 2; f++) memcpy(scratch + (f * 3 + c) * n, p + (c * 2 + f) * n, n * sizeof *p);
    memcpy(p, scratch, 6 * n * sizeof *p);
}

/* Writes the patches to v->host in the order of the file's matrix, with the values that the encoder reads. */
static void put_patches(vision *v, const patch_rule *r, const media_span *s)
{
    const picture *frames[MEDIA_STEP_FRAMES];
    size_t         P = (size_t)patch_count(r, s->width, s->height), values = (size_t)patch_values(r);
    float         *scratch = xnew_n(float, values);
    for (int i = 0; i < MEDIA_STEP_FRAMES; i++) frames[i] = &s->frames[s->frames[i].rgb ? i : 0];
    patch_write(v->host, r, frames);
    for (size_t i = 0; v->gguf && i < P; i++)
        (r->frames == 1 ? make_planar : split_frames)(v->host + i * values, r->patch, scratch);
    if (v->c.kind == VISION_POOLED)
        for (size_t i = 0; i < P * values; i++) v->host[i] = 2 * v->host[i] - 1;
    mem_free(scratch);
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
    int    n   = patch_count(r, s->width, s->height);
    float *pos = mem_try_n((size_t)n, (size_t)v->c.width * sizeof *pos);
    bool   ok  = pos || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    ok         = ok && take_picture(v, n, patch_values(r), e) && put_positions(v, r, s, pos, e) &&
         (v->c.kind == VISION_DIRECT || put_rows(v, r, s, e));
    if (ok) {
        put_patches(v, r, s);
        if (v->c.kind == VISION_DIRECT) {
            vision_run_direct(v, n, pos, out);
        } else {
            vision_embed(v, n, pos);
            if (v->c.kind == VISION_MERGED)
                vision_run_merged(v, n, out);
            else
                vision_run_pooled(v, s->width / r->patch, s->height / r->patch, out);
        }
        ok = v->o->check(v->q, e);
    }
    mem_free(pos);
    return ok;
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
size_t               vision_bytes(const vision *v) { return v->bytes; }
