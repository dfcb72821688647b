#include "model/vision_config.h"

#include "base/mem.h"
#include "model/config_value.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 16, MAX_FF = 1 << 18, MAX_LAYERS = 256, MAX_HEADS = 1024, MAX_TABLE = 1 << 20 };

/* --- where numbers come from ----------------------------------------------------------------------*/
/* A JSON file in the directory of config.json. */
typedef struct {
    file_map          map;
    arena             mem;
    const json_value *o; /* NULL: there is no such file, or it is no object */
} side_file;

static void side_open(side_file *s, const checkpoint *dir, const char *name)
{
    char path[4200];
    *s = (side_file){0};
    arena_init(&s->mem, 16 << 20);
    if (!file_join(path, sizeof path, dir->path, name) || !file_exists(path) || !file_map_open(&s->map, path, NULL))
        return;
    if (!json_parse(&s->o, &s->mem, (str){s->map.p, s->map.n}, NULL, NULL)) s->o = NULL;
}

static void side_close(side_file *s)
{
    arena_deinit(&s->mem);
    file_map_close(&s->map);
}

static const tensor *find_any(const checkpoint *c, const char *const *names)
{
    for (; *names; names++) {
        const tensor *t = tensor_find(c->tensors, str_of(*names));
        if (t) return t;
    }
    return NULL;
}

static bool has_key(const gguf *g, const char *key, const char *text)
{
    str s = {0};
    gguf_str(gguf_find(g, key), &s);
    return str_is(s, text);
}

static bool key_int(const gguf *g, const char *suffix, int64_t lo, int64_t hi, int *out, err *e)
{
    return gguf_arch_int(g, "clip.vision", suffix, CONFIG_REQUIRED, lo, hi, out, e);
}

/* Returns the id of a token of a GGUF file; -1: there is none. */
static int32_t token_id(const gguf *g, const char *text)
{
    const gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens");
    size_t            n = strlen(text);
    if (!v || v->type != GGUF_ARRAY || v->item != GGUF_STRING) return -1;
    const char *at = v->data;
    for (uint64_t i = 0; i < v->n && i < INT32_MAX; i++) {
        str s = gguf_next_str(&at);
        if (s.n == n && !memcmp(s.s, text, n)) return (int32_t)i;
    }
    return -1;
}

/* --- tokens -----------------------------------------------------------------------------------------*/
typedef struct {
    const char *hf[2]; /* keys of config.json, the second one for older files; NULL: none */
    const char *text;  /* the token itself */
} token_name;

static bool read_id(int32_t *out, const vision_files *f, const token_name *t, bool required, err *e)
{
    int id = -1;
    if (f->text->gguf)
        id = token_id(f->text->gguf, t->text);
    else
        for (int i = 0; i < 2 && id < 0; i++)
            if (t->hf[i] && !hf_int(f->text->config, t->hf[i], -1, -1, f->n_vocab - 1, &id, e)) return false;
    *out = id;
    return id >= 0 || !required || err_set(e, ERR_FORMAT, "the model names no token '%s' for pictures", t->text);
}

static bool read_ids(media_rules *r, const vision_files *f, const token_name names[4], err *e)
{
    return read_id(&r->image_id, f, &names[0], true, e) && read_id(&r->video_id, f, &names[1], false, e) &&
           read_id(&r->begin_id, f, &names[2], true, e) && read_id(&r->end_id, f, &names[3], true, e);
}

/* --- Gemma 4 ------------------------------------------------------------------------------------------*/
enum { POOL = 3, PATCH = 16 };

/* Reads the budget of a file that limits the area of pictures. */
static bool default_budget(int *budget, const gguf *g, err *e)
{
    enum { CELL_AREA = POOL * PATCH * POOL * PATCH, MAX_BUDGET = 4096 };
    int area;
    if (!gguf_arch_int(g, "clip.vision", "image_max_pixels", *budget * CELL_AREA, CELL_AREA, MAX_BUDGET * CELL_AREA,
                       &area, e))
        return false;
    *budget = area / CELL_AREA;
    return true;
}

static bool gemma4_rules(vision_config *c, const vision_files *f, err *e)
{
    static const token_name names[]   = {{{"image_token_id", "image_token_index"}, "<|image|>"},
                                         {{"video_token_id", "video_token_index"}, "<|video|>"},
                                         {{"boi_token_id", "boi_token_index"}, "<|image>"},
                                         {{"eoi_token_id", "eoi_token_index"}, "<image|>"}};
    static const int        budgets[] = {70, 140, 280, 560, 1120};
    enum { DEFAULT = 280, FRAME = 70, FRAMES = 32 };
    int patch = c->kind == VISION_DIRECT ? POOL * PATCH : PATCH, budget = DEFAULT;
    if (!f->text->gguf) {
        side_file s;
        side_open(&s, f->text, "preprocessor_config.json");
        bool ok = hf_int(s.o, "max_soft_tokens", DEFAULT, 1, 4096, &budget, e);
        side_close(&s);
        if (!ok) return err_wrap(e, "preprocessor_config.json");
    }
    if (f->projector && !default_budget(&budget, f->projector->gguf, e)) return false;
    media_rules *r     = &c->rules;
    r->image           = (patch_rule){.fit       = PATCH_FIT_BUDGET,
                                      .order     = PATCH_ORDER_ROWS,
                                      .patch     = patch,
                                      .cell      = POOL * PATCH,
                                      .frames    = 1,
                                      .max_cells = budget};
    r->video           = r->image;
    r->video.max_cells = FRAME;
    r->frames          = (frame_rule){.max_frames = FRAMES, .stamp = FRAME_STAMP_CLOCK};
    memcpy(r->budget, budgets, sizeof budgets);
    r->n_budgets = COUNT(budgets);
    return read_ids(r, f, names, e);
}

static bool gemma4_from_hf(vision_config *c, const vision_files *f, err *e)
{
    static const char *const projection[] = {"model.embed_vision.embedding_projection.weight",
                                             "embed_vision.embedding_projection.weight", NULL};
    const json_value        *v = hf_present(f->text->config, "vision_config"), *text = f->text->config, *mode;
    if (!v || !find_any(f->text, projection)) return true;
    if (hf_present(text, "text_config")) text = json_get(text, "text_config");
    mode          = hf_present(text, "use_bidirectional_attention");
    c->sees_ahead = mode && mode->kind == JSON_STRING && str_is(mode->s, "vision");
    double eps, theta;
    if (!hf_real(v, "rms_norm_eps", 1e-6, 0, 1, &eps, e)) return false;
    c->eps = (float)eps;
    if (hf_present(v, "mm_embed_dim")) {
        c->kind = VISION_DIRECT;
        return hf_int(v, "mm_embed_dim", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->width, e) &&
               hf_int(v, "mm_posemb_size", CONFIG_REQUIRED, 1, MAX_TABLE, &c->n_pos, e);
    }
    const json_value *rope = hf_present(v, "rope_parameters");
    c->kind                = VISION_POOLED;
    if (!hf_int(v, "hidden_size", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->width, e) ||
        !hf_int(v, "intermediate_size", CONFIG_REQUIRED, 8, MAX_FF, &c->n_ff, e) ||
        !hf_int(v, "num_hidden_layers", CONFIG_REQUIRED, 1, MAX_LAYERS, &c->n_layers, e) ||
        !hf_int(v, "num_attention_heads", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_heads, e) ||
        !hf_int(v, "head_dim", c->width / c->n_heads, 1, OPS_MAX_HEAD_DIM, &c->head_dim, e) ||
        !hf_int(v, "position_embedding_size", 10240, 1, MAX_TABLE, &c->n_pos, e) ||
        !hf_real(rope, "rope_theta", 100, 1, 1e12, &theta, e))
        return err_wrap(e, "vision_config");
    c->theta = theta;
    return true;
}

/* Reads the sizes of a tower. */
static bool tower_from_gguf(vision_config *c, const gguf *g, err *e)
{
    double eps;
    if (!key_int(g, "embedding_length", 8, MAX_WIDTH, &c->width, e) ||
        !key_int(g, "feed_forward_length", 8, MAX_FF, &c->n_ff, e) ||
        !key_int(g, "block_count", 1, MAX_LAYERS, &c->n_layers, e) ||
        !key_int(g, "attention.head_count", 1, MAX_HEADS, &c->n_heads, e) ||
        !gguf_arch_real(g, "clip.vision", "attention.layer_norm_epsilon", 1e-6, 0, 1, &eps, e))
        return false;
    c->eps      = (float)eps;
    c->head_dim = c->width / c->n_heads;
    return true;
}

static bool is_projector(const gguf *g, const char *type)
{
    return has_key(g, "clip.vision.projector_type", type) || has_key(g, "clip.projector_type", type);
}

static bool gemma4_from_gguf(vision_config *c, const vision_files *f, err *e)
{
    static const char *const table[] = {"v.position_embd.weight", NULL};
    const gguf              *g       = f->projector->gguf;
    const tensor            *t       = find_any(f->projector, table);
    c->sees_ahead                    = !f->causal;
    c->theta                         = 100;
    if (t && t->dim[1] >= 1 && t->dim[1] <= MAX_TABLE) c->n_pos = (int)t->dim[1];
    if (is_projector(g, "gemma4uv")) {
        c->kind = VISION_DIRECT;
        c->eps  = 1e-6f;
        return key_int(g, "embedding_length", 8, MAX_WIDTH, &c->width, e);
    }
    if (!is_projector(g, "gemma4v")) return err_set(e, ERR_FORMAT, "the projector is not one of this model's kind");
    c->kind = VISION_POOLED;
    return tower_from_gguf(c, g, e);
}

/* Checks what a forward pass divides by. */
static bool check_heads(const vision_config *c, err *e)
{
    if (c->kind == VISION_NONE || c->kind == VISION_DIRECT) return true;
    return (c->head_dim >= 8 && c->head_dim % 8 == 0 && c->head_dim <= OPS_MAX_HEAD_DIM) ||
           err_set(e, ERR_FORMAT, "the encoder has heads of %d numbers, expected a multiple of 8 up to %d", c->head_dim,
                   OPS_MAX_HEAD_DIM);
}

bool gemma4_vision_read(vision_config *c, const vision_files *f, err *e)
{
    *c = (vision_config){.n_out = f->n_embd};
    if (!(f->projector ? gemma4_from_gguf(c, f, e) : gemma4_from_hf(c, f, e))) return false;
    return c->kind == VISION_NONE || (check_heads(c, e) && gemma4_rules(c, f, e));
}

/* --- Qwen 3.5 -----------------------------------------------------------------------------------------*/
enum { MERGE = 2, STEP_FRAMES = 2 };

/* Reads the limits of width * height: of `size`, or as older files name them. */
static bool read_areas(patch_rule *r, const checkpoint *dir, const char *name, err *e)
{
    int       lo = (int)r->min_area, hi = (int)r->max_area;
    side_file s;
    side_open(&s, dir, name);
    const json_value *size = hf_present(s.o, "size");
    if (size && size->kind != JSON_OBJECT) size = NULL;
    bool ok = hf_int(s.o, "min_pixels", lo, 1, INT32_MAX, &lo, e) &&
              hf_int(s.o, "max_pixels", hi, 1, INT32_MAX, &hi, e) &&
              hf_int(size, "shortest_edge", lo, 1, INT32_MAX, &lo, e) &&
              hf_int(size, "longest_edge", hi, lo, INT32_MAX, &hi, e);
    side_close(&s);
    r->min_area = lo;
    r->max_area = hi;
    return ok || err_wrap(e, "%s", name);
}

static bool qwen35_rules(vision_config *c, const vision_files *f, err *e)
{
    static const token_name names[] = {{{"image_token_id"}, "<|image_pad|>"},
                                       {{"video_token_id"}, "<|video_pad|>"},
                                       {{"vision_start_token_id"}, "<|vision_start|>"},
                                       {{"vision_end_token_id"}, "<|vision_end|>"}};
    media_rules            *r       = &c->rules;
    r->image                        = (patch_rule){.fit      = PATCH_FIT_AREA,
                                                   .order    = PATCH_ORDER_CELLS,
                                                   .patch    = PATCH,
                                                   .cell     = MERGE * PATCH,
                                                   .frames   = STEP_FRAMES,
                                                   .min_area = 65536,
                                                   .max_area = 16777216};
    r->video                        = r->image;
    r->video.min_area               = 4096;
    r->video.max_area               = 25165824;
    r->frames = (frame_rule){.per_second = 2, .min_frames = 4, .max_frames = FRAMES_MAX, .stamp = FRAME_STAMP_SECONDS};
    if (!f->text->gguf && (!read_areas(&r->image, f->text, "preprocessor_config.json", e) ||
                           !read_areas(&r->video, f->text, "video_preprocessor_config.json", e)))
        return false;
    return read_ids(r, f, names, e);
}

static bool qwen35_from_hf(vision_config *c, const vision_files *f, err *e)
{
    static const char *const merger[] = {"model.visual.merger.linear_fc2.weight", "visual.merger.linear_fc2.weight",
                                         NULL};
    const json_value        *v        = hf_present(f->text->config, "vision_config");
    double                   theta;
    int                      patch, merge, step;
    if (!v || !find_any(f->text, merger)) return true;
    c->kind = VISION_MERGED;
    c->eps  = 1e-6f;
    if (!hf_int(v, "hidden_size", CONFIG_REQUIRED, 8, MAX_WIDTH, &c->width, e) ||
        !hf_int(v, "intermediate_size", CONFIG_REQUIRED, 8, MAX_FF, &c->n_ff, e) ||
        !hf_int(v, "depth", CONFIG_REQUIRED, 1, MAX_LAYERS, &c->n_layers, e) ||
        !hf_int(v, "num_heads", CONFIG_REQUIRED, 1, MAX_HEADS, &c->n_heads, e) ||
        !hf_int(v, "num_position_embeddings", 2304, 1, MAX_TABLE, &c->n_pos, e) ||
        !hf_int(v, "patch_size", PATCH, PATCH, PATCH, &patch, e) ||
        !hf_int(v, "spatial_merge_size", MERGE, MERGE, MERGE, &merge, e) ||
        !hf_int(v, "temporal_patch_size", STEP_FRAMES, STEP_FRAMES, STEP_FRAMES, &step, e) ||
        !hf_real(hf_present(v, "rope_parameters"), "rope_theta", 10000, 1, 1e12, &theta, e))
        return err_wrap(e, "vision_config");
    c->theta    = theta;
    c->head_dim = c->width / c->n_heads;
    return true;
}

static bool qwen35_from_gguf(vision_config *c, const vision_files *f, err *e)
{
    static const char *const table[] = {"v.position_embd.weight", NULL};
    const tensor            *t       = find_any(f->projector, table);
    if (!is_projector(f->projector->gguf, "qwen3vl_merger"))
        return err_set(e, ERR_FORMAT, "the projector is not one of this model's kind");
    c->kind  = VISION_MERGED;
    c->theta = 10000;
    if (t && t->dim[1] >= 1 && t->dim[1] <= MAX_TABLE) c->n_pos = (int)t->dim[1];
    return tower_from_gguf(c, f->projector->gguf, e);
}

bool qwen35_vision_read(vision_config *c, const vision_files *f, err *e)
{
    *c = (vision_config){.n_out = f->n_embd, .sections = true};
    if (!(f->projector ? qwen35_from_gguf(c, f, e) : qwen35_from_hf(c, f, e))) return false;
    if (c->kind == VISION_NONE) return true;
    int side = (int)lround(sqrt(c->n_pos));
    if (c->n_pos < 1 || side * side != c->n_pos)
        return err_set(e, ERR_FORMAT, "the encoder's position table has %d entries, which is no square", c->n_pos);
    return check_heads(c, e) && qwen35_rules(c, f, e);
}
