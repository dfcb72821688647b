/* Files of DFlash drafters: all layouts give the same draft, and what cannot be run is refused with the reason. */
#include "base/buf.h"
#include "gguf/gguf_write.h"
#include "model/dflash_config.h"
#include "model/dflash_rig.h"
#include "model/tiny_model.h"

#include <stdlib.h>
#include <sys/stat.h>

/* --- files made here ----------------------------------------------------------------------------*/
enum { MAX_PARTS = 64 };
typedef struct {
    dflash_role role;
    int         layer;
    const char *name; /* of a tensor that has no role; else NULL */
    tensor      x;
} part;

/* A golden drafter taken apart, to be changed and written again. */
typedef struct {
    checkpoint   *cp;
    dflash_config c;
    part          item[MAX_PARTS];
    int           n;
    const char   *edit[2]; /* of the configuration, before others: this text becomes that */
    char          path[512];
} parts;

static bool take_apart(test_case *t, parts *p, const char *name)
{
    err e = {0};
    *p    = (parts){0};
    if (!CHECK_OK(checkpoint_open(&p->cp, dflash_rig_path(name), &e), e)) return false;
    if (!CHECK_OK(dflash_config_read(&p->c, p->cp, &e), e)) return false;
    for (int r = 0; r < DFLASH_ROLES; r++)
        for (int l = 0; l < (r < DFLASH_ATTN_NORM ? 1 : p->c.n_layers); l++) {
            const tensor *x = dflash_tensor(&p->c, p->cp, (dflash_role)r, l);
            if (x) p->item[p->n++] = (part){(dflash_role)r, l, NULL, *x};
        }
    CHECK_INT(p->n, (int)tensor_count(p->cp->tensors));
    return true;
}

static tensor shaped(quant_type type, int64_t d0, int64_t d1, const void *data)
{
    err    e = {0};
    tensor x = {.type = type, .n_dims = d1 > 1 ? 2 : 1, .dim = {d0, d1, 1, 1}, .data = data};
    if (!tensor_size(&x, &e)) abort();
    return x;
}

static part *add_part(parts *p, dflash_role r, const char *name, tensor x)
{
    p->item[p->n] = (part){r, 0, name, x};
    return &p->item[p->n++];
}

static part *find_part(parts *p, dflash_role r)
{
    for (int i = 0; i < p->n; i++)
        if (p->item[i].role == r && !p->item[i].name) return &p->item[i];
    abort();
}

static void part_name(const part *x, dflash_layout layout, char out[DFLASH_NAME_MAX])
{
    if (x->name)
        snprintf(out, DFLASH_NAME_MAX, "%s", x->name);
    else
        dflash_tensor_name(layout, "", x->role, x->layer, out);
}

/* The text with one piece of it replaced; old NULL: none. */
static void put_edited(test_case *t, buf *out, str s, const char *old, const char *new)
{
    const char *at = old ? memmem(s.s, s.n, old, strlen(old)) : NULL;
    CHECK_MSG(at || !old, "no '%s' in the configuration", old ? old : "");
    size_t before = at ? (size_t)(at - s.s) : s.n, after = at ? before + strlen(old) : s.n;
    buf_put(out, s.s, before);
    if (at) buf_puts(out, new);
    buf_put(out, s.s + after, s.n - after);
}

static void write_config(test_case *t, const parts *p, const char *old, const char *new)
{
    buf once, b;
    buf_init(&once, 1 << 20);
    buf_init(&b, 1 << 20);
    put_edited(t, &once, (str){p->cp->config_text.p, p->cp->config_text.n}, p->edit[0], p->edit[1]);
    put_edited(t, &b, buf_str(&once), old, new);
    test_tmp_file("drafter/config.json", b.p, b.n);
    buf_deinit(&once);
    buf_deinit(&b);
}

/* As a directory, one piece of its configuration replaced; NULL: none. */
static const char *write_dir(test_case *t, parts *p, const char *old, const char *new)
{
    char            name[MAX_PARTS][DFLASH_NAME_MAX], file[600];
    safetensors_out out[MAX_PARTS];
    err             e = {0};
    snprintf(p->path, sizeof p->path, "%s/drafter", test_tmp_dir());
    mkdir(p->path, 0700);
    write_config(t, p, old, new);
    for (int i = 0; i < p->n; i++) {
        const tensor *x = &p->item[i].x;
        part_name(&p->item[i], DFLASH_DIR, name[i]);
        out[i] = (safetensors_out){name[i], x->type, x->n_dims, {x->dim[0], x->dim[1], 1, 1}, x->data};
    }
    snprintf(file, sizeof file, "%s/model.safetensors", p->path);
    CHECK_OK(safetensors_write(file, out, (size_t)p->n, &e), e);
    return p->path;
}

/* What the three layouts say in their own words. */
static void put_keys(gguf_writer *w, const dflash_config *c, const char *arch, dflash_layout layout)
{
    int32_t ids[DFLASH_MAX_CAPTURES];
    char    key[96];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", arch, suffix), key)
    for (int i = 0; i < c->n_captures; i++) ids[i] = c->capture[i] + (layout == DFLASH_LLAMA);
    gguf_put_str(w, "general.architecture", str_of(arch));
    gguf_put_u32(w, KEY("block_count"), (uint32_t)c->n_layers);
    gguf_put_f32(w, KEY("rope.freq_base"), (float)c->theta);
    gguf_put_f32(w, KEY("attention.layer_norm_rms_epsilon"), (float)c->eps);
    gguf_put_u32(w, KEY("attention.sliding_window"), (uint32_t)c->window);
    if (layout != DFLASH_LUCE)
        gguf_put_array(w, KEY("attention.sliding_window_pattern"), GGUF_BOOL, c->sliding, (size_t)c->n_layers);
    gguf_put_u32(w, KEY(layout == DFLASH_LLAMA ? "block_size" : "dflash.block_size"), (uint32_t)c->block);
    gguf_put_u32(w, layout == DFLASH_LLAMA ? "tokenizer.ggml.mask_token_id" : KEY("dflash.mask_token_id"),
                 (uint32_t)c->mask_id);
    gguf_put_array(w, KEY(layout == DFLASH_LLAMA ? "target_layers" : "dflash.target_layer_ids"), GGUF_I32, ids,
                   (size_t)c->n_captures);
#undef KEY
}

static const char *write_gguf(test_case *t, parts *p, const char *arch, dflash_layout layout,
                              void (*more)(gguf_writer *w))
{
    err          e = {0};
    gguf_writer *w = gguf_writer_new();
    snprintf(p->path, sizeof p->path, "%s/drafter.gguf", test_tmp_dir());
    put_keys(w, &p->c, arch, layout);
    if (more) more(w);
    for (int i = 0; i < p->n; i++) {
        char   name[DFLASH_NAME_MAX];
        tensor x = p->item[i].x;
        part_name(&p->item[i], layout, name);
        x.name = str_of(name);
        gguf_put_tensor(w, &x);
    }
    CHECK_OK(gguf_writer_begin(w, p->path, 0, &e), e);
    for (int i = 0; i < p->n; i++) CHECK_OK(gguf_writer_data(w, p->item[i].x.data, p->item[i].x.bytes, &e), e);
    CHECK_OK(gguf_writer_end(w, &e), e);
    gguf_writer_free(w);
    return p->path;
}

static void close_parts(parts *p) { checkpoint_close(p->cp); }

/* The draft of the reference's longest prompt. */
static drafted draft_with(test_case *t, rig *g, const char *path)
{
    drafted r = {0};
    dflash_rig_drop(g);
    if (!dflash_rig_drafter(t, g, path, &dflash_rig_exact)) return r;
    text x = dflash_rig_text(t, g, 2);
    dflash_rig_observe(t, g, 0, &x, 0, x.n - 1, MAX_TEXT);
    return dflash_rig_draft(t, g, 0, &x);
}

static void check_layouts(test_case *t, const char *name)
{
    static const struct {
        const char   *arch;
        dflash_layout layout;
    } file[] = {{"dflash", DFLASH_LLAMA},
                {"dflash-draft", DFLASH_IK},
                {"gemma4-dflash-draft", DFLASH_LUCE},
                {"qwen35-dflash-draft", DFLASH_LUCE}};
    rig   g;
    parts p;
    if (dflash_rig_target(t, &g, name, "cpu") && take_apart(t, &p, name)) {
        drafted dir = draft_with(t, &g, dflash_rig_path(name));
        for (size_t i = 0; i < COUNT(file); i++) {
            drafted r = draft_with(t, &g, write_gguf(t, &p, file[i].arch, file[i].layout, NULL));
            dflash_rig_same(t, &g, &dir, &r, file[i].arch);
        }
        dflash_rig_free(&dir);
        close_parts(&p);
    }
    dflash_rig_close(&g);
}

TEST(dflash_layouts_moe) { check_layouts(t, "gemma4-moe"); }
TEST(dflash_layouts_dense) { check_layouts(t, "gemma4-dense"); }

TEST(dflash_default_captures_are_those_of_the_trainers)
{
    static const int want[][8] = {{64, 5, 1, 16, 31, 46, 61},
                                  {40, 5, 1, 10, 19, 28, 37},
                                  {60, 6, 1, 12, 23, 35, 46, 57},
                                  {30, 6, 1, 6, 11, 17, 22, 27},
                                  {36, 5, 1, 9, 17, 25, 33},
                                  {32, 5, 1, 8, 15, 22, 29},
                                  {30, 1, 15}};
    for (size_t i = 0; i < COUNT(want); i++) {
        int got[8];
        dflash_default_captures(got, want[i][1], want[i][0]);
        for (int k = 0; k < want[i][1]; k++) CHECK_INT(got[k], want[i][2 + k]);
    }
}

/* --- tables of its own --------------------------------------------------------------------------*/
static const tensor *target_table(test_case *t, checkpoint **cp)
{
    err e = {0};
    CHECK_OK(checkpoint_open(cp, test_path("tests/golden/gemma4-moe"), &e), e);
    const tensor *x = tensor_find((*cp)->tensors, STR("model.embed_tokens.weight"));
    CHECK(x);
    return x;
}

TEST(dflash_own_tables_are_used)
{
    rig         g;
    parts       p;
    checkpoint *cp = NULL;
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu") && take_apart(t, &p, "gemma4-moe")) {
        const tensor *table = target_table(t, &cp);
        drafted       want  = draft_with(t, &g, dflash_rig_path("gemma4-moe"));
        add_part(&p, DFLASH_EMBED, NULL, *table);
        drafted r = draft_with(t, &g, write_dir(t, &p, NULL, NULL));
        dflash_rig_same(t, &g, &want, &r, "its own embeddings");
        r = draft_with(t, &g, write_dir(t, &p, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"));
        dflash_rig_same(t, &g, &want, &r, "its own embeddings as output matrix");
        add_part(&p, DFLASH_HEAD, NULL, *table);
        r = draft_with(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, NULL));
        dflash_rig_same(t, &g, &want, &r, "its own output matrix");

        float *zero = xalloc(table->bytes); /* a table that would ruin the draft, and is said to be no good */
        find_part(&p, DFLASH_EMBED)->x.data = zero;
        r = draft_with(t, &g, write_dir(t, &p, "\"tie_word_embeddings\": false", "\"has_embed_tokens\": false"));
        dflash_rig_same(t, &g, &want, &r, "no use of its own embeddings");
        mem_free(zero);
        dflash_rig_free(&want);
        close_parts(&p);
    }
    checkpoint_close(cp);
    dflash_rig_close(&g);
}

enum { FEW = 100 };

/* Logits of tokens 5, 9, 13, ... are those of the whole matrix, the others' are -inf. */
static void check_few(test_case *t, const rig *g, const drafted *all, drafted *few, const char *what)
{
    size_t V = (size_t)g->m->n_vocab;
    for (size_t r = 0; r < (size_t)all->block; r++)
        for (size_t i = 0; i < V; i++) {
            bool  known = i >= 5 && (i - 5) % 4 == 0 && (i - 5) / 4 < FEW;
            float y     = few->logits[r * V + i];
            if (!CHECK_MSG(known ? y == all->logits[r * V + i] : y == -INFINITY, "%s: row %zu, token %zu: %g", what, r,
                           i, (double)y))
                return;
        }
    for (int i = 0; i < few->job.n; i++) CHECK(few->job.token[i] >= 5 && (few->job.token[i] - 5) % 4 == 0);
    dflash_rig_free(few);
}

TEST(dflash_reduced_vocabulary)
{
    rig         g;
    parts       p;
    checkpoint *cp = NULL;
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu") && take_apart(t, &p, "gemma4-moe")) {
        const tensor *table = target_table(t, &cp);
        size_t        row   = table->bytes / (size_t)table->dim[1];
        char         *rows  = xalloc(row * FEW);
        int64_t       id[FEW], offset[FEW];
        for (int i = 0; i < FEW; i++) {
            id[i]     = 5 + 4 * i;
            offset[i] = id[i] - i;
            memcpy(rows + (size_t)i * row, (const char *)table->data + (size_t)id[i] * row, row);
        }
        drafted all = draft_with(t, &g, dflash_rig_path("gemma4-moe"));
        add_part(&p, DFLASH_HEAD, NULL, shaped(table->type, table->dim[0], FEW, rows));
        part   *d2t = add_part(&p, DFLASH_D2T, NULL, shaped(QUANT_I64, FEW, 1, offset));
        drafted r   = draft_with(t, &g, write_dir(t, &p, NULL, NULL));
        check_few(t, &g, &all, &r, "offsets");
        d2t->x = shaped(QUANT_I64, FEW, 1, id);
        r      = draft_with(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, NULL));
        check_few(t, &g, &all, &r, "ids");
        dflash_rig_free(&all);
        mem_free(rows);
        close_parts(&p);
    }
    checkpoint_close(cp);
    dflash_rig_close(&g);
}

/* --- refusals -----------------------------------------------------------------------------------*/
static void check_refused(test_case *t, rig *g, const char *path, const char *want)
{
    err         e  = {0};
    checkpoint *cp = NULL;
    drafter    *d  = NULL;
    if (!CHECK_OK(checkpoint_open(&cp, path, &e), e)) return;
    CHECK_FAILS(dflash_open(&d, g->m, cp, &dflash_rig_exact, &e), e, want);
    CHECK(!d);
    if (d) d->close(d);
    checkpoint_close(cp);
}

TEST(dflash_refuses_configurations)
{
    static const char *const edit[][3] = {
        {"DFlashDraftModel", "DFlash2DraftModel", "candidate_selector.predecessor_codebook' is missing"},
        {"DFlashDraftModel", "LagunaDFlashModel", "a Laguna drafter"},
        {"DFlashDraftModel\"", "Qwen3DSparkModel\"], \"markov_rank\": 16, \"x\": [\"\"",
         "markov_rank is 16, but the tensors are made for 0"},
        {"DFlashDraftModel\"", "Qwen3DSparkModel\"], \"markov_head_type\": \"gated\", \"x\": [\"\"",
         "markov_head_type is 'gated'"},
        {"DFlashDraftModel\"", "Gemma4DSparkModel\"", "sliding layers like Gemma 4's are not supported"},
        {"\"mask_token_id\": 4", "\"mask_token_id\": 512", "mask_token_id is 512"},
        {"\"vocab_size\": 512", "\"vocab_size\": 600", "its vocabulary has 600 tokens, the target's 512"},
        {"\"target_layer_ids\": [\n   0", "\"target_layer_ids\": [\n   6", "the output of layer 6, the target has 6"},
        {"\"target_layer_ids\": [\n   0", "\"target_layer_ids\": [\n   2, 0",
         "layers of the target have a width of 128 each"},
        {"\"target_layer_ids\": [\n   0", "\"target_layer_ids\": [\n   0.5", "is not an integer"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "factor of rope_type yarn is missing"},
        {"\"use_cache\": true", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         "rope_scaling.type is 'linear', expected default or yarn"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\", \"factor\": 0.5", "factor is 0.5"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 1", "mscale"},
        {"\"rope_theta\": 1000000.0", "\"rope_theta\": 0", "rope_theta is 0"},
        {"\"rope_theta\": 1000000.0", "\"rope_theta\": -1e6", "rope_theta is -1e+06"},
        {"\"rope_theta\": 1000000.0", "\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {"\"sliding_window\": 24", "\"sliding_window\": null", "sliding_window is missing"},
        {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"\"block_size\": 8", "\"block_size\": 1", "block_size is 1"},
        {"\"head_dim\": 64", "\"head_dim\": 32", "head_dim is 32"},
        {"\"use_cache\": true", "\"logit_scale\": 1e9", "logit_scale"},
        {"\"use_cache\": true", "\"is_causal\": 1", "is_causal"},
        {"\"use_cache\": true", "\"sample_from_anchor\": 1", "sample_from_anchor is neither"},
        {"\"use_cache\": true",
         "\"sample_from_anchor\": true, \"speculators_config\": {\"proposal_methods\": "
         "[{\"speculative_tokens\": 7}]}",
         "speculative_tokens is 7, but a block of 8 rows drafts 8"},
    };
    rig   g;
    parts p;
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu") && take_apart(t, &p, "gemma4-moe")) {
        for (size_t i = 0; i < COUNT(edit); i++)
            check_refused(t, &g, write_dir(t, &p, edit[i][0], edit[i][1]), edit[i][2]);
        close_parts(&p);
    }
    dflash_rig_close(&g);
}

TEST(dflash_refuses_tensors)
{
    static const int64_t twice[2] = {3, 2}, outside[2] = {0, 511}; /* offsets: tokens 3 and 3, 0 and 512 */
    static float         zero[2 * 512 * 128];
    const struct {
        dflash_role role;
        const char *name;
        tensor      x;
        const char *want;
    } extra[] = {
        {0, "layers.0.attention_conv.base_kernel", shaped(QUANT_F32, 8, 1, zero), "is not part of a DFlash drafter"},
        {0, "candidate_selector.hidden_projection.weight", shaped(QUANT_F32, 8, 1, zero),
         "is not part of a DFlash drafter"},
        {0, "candidate_selector.predecessor_codebook", shaped(QUANT_F32, 8, 1, zero),
         "'layers.0.attention_conv.base_kernel' is missing"},
        {0, "markov_head.markov_w1.weight", shaped(QUANT_F32, 8, 1, zero), "has shape"},
        {0, "layers.0.self_attn.q_proj.bias", shaped(QUANT_F32, 8, 1, zero), "is not part of a DFlash drafter"},
        {0, "layers.3.mlp.up_proj.weight", shaped(QUANT_F32, 8, 1, zero), "is not part of a DFlash drafter"},
        {DFLASH_EMBED, NULL, shaped(QUANT_F32, 128, 500, zero),
         "its embeddings are for 500 tokens, the target has 512"},
        {DFLASH_HEAD, NULL, shaped(QUANT_F32, 128, 500, zero), "its output matrix is for 500 tokens"},
        {DFLASH_HEAD, NULL, shaped(QUANT_F32, 64, 512, zero), "has shape"},
    };
    rig   g;
    parts p;
    if (!dflash_rig_target(t, &g, "gemma4-moe", "cpu") || !take_apart(t, &p, "gemma4-moe")) return;
    int n = p.n;
    for (size_t i = 0; i < COUNT(extra); i++) {
        add_part(&p, extra[i].role, extra[i].name, extra[i].x);
        check_refused(t, &g, write_dir(t, &p, NULL, NULL), extra[i].want);
        p.n = n;
    }
    add_part(&p, DFLASH_HEAD, NULL, shaped(QUANT_F32, 128, 2, zero));
    part *d2t = add_part(&p, DFLASH_D2T, NULL, shaped(QUANT_I64, 2, 1, twice));
    check_refused(t, &g, write_dir(t, &p, NULL, NULL), "'d2t' names token 3 twice");
    d2t->x = shaped(QUANT_I64, 2, 1, outside);
    check_refused(t, &g, write_dir(t, &p, NULL, NULL), "'d2t' maps row 1 to token 512, but there are 512 tokens");
    d2t->x = shaped(QUANT_I64, 1, 1, outside);
    check_refused(t, &g, write_dir(t, &p, NULL, NULL), "'d2t' is not a list of 2 integers");
    p.n = n;

    part *q = find_part(&p, DFLASH_Q_NORM);
    q->x    = shaped(QUANT_F32, 48, 1, zero);
    check_refused(t, &g, write_dir(t, &p, NULL, NULL), "do not match");
    p.item[0] = p.item[--p.n]; /* fc */
    check_refused(t, &g, write_dir(t, &p, NULL, NULL), "tensor 'fc.weight' is missing");
    close_parts(&p);
    dflash_rig_close(&g);
}

static void yarn(gguf_writer *w) { gguf_put_str(w, "dflash.rope.scaling.type", STR("yarn")); }
static void half_rope(gguf_writer *w) { gguf_put_u32(w, "dflash.rope.dimension_count", 32); }
static void other_vocab(gguf_writer *w) { gguf_put_u32(w, "dflash.vocab_size", 513); }
static void anchor(gguf_writer *w) { gguf_put_u32(w, "dflash.sample_from_anchor", 3); }
static void linear(gguf_writer *w) { gguf_put_str(w, "dflash.rope.scaling.type", STR("linear")); }

TEST(dflash_refuses_keys)
{
    rig   g;
    parts p;
    if (!dflash_rig_target(t, &g, "gemma4-moe", "cpu") || !take_apart(t, &p, "gemma4-moe")) return;
    check_refused(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, yarn), "original_context_length is missing");
    check_refused(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, linear), "rope.scaling.type is 'linear'");
    check_refused(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, half_rope),
                  "rope rotates 32 of 64 dimensions of a head");
    check_refused(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, other_vocab), "its vocabulary has 513 tokens");
    check_refused(t, &g, write_gguf(t, &p, "dflash", DFLASH_LLAMA, anchor), "sample_from_anchor is neither");
    dflash_config c     = p.c;
    const double  bad[] = {NAN, INFINITY, 0, -1};
    for (size_t i = 0; i < COUNT(bad); i++) {
        p.c.theta = bad[i];
        check_refused(t, &g, write_gguf(t, &p, "dflash-draft", DFLASH_IK, NULL), "rope.freq_base is");
    }
    p.c         = c;
    p.c.mask_id = 512; /* no vocabulary in the file: the target's counts */
    check_refused(t, &g, write_gguf(t, &p, "dflash-draft", DFLASH_IK, NULL), "its mask token is 512");
    close_parts(&p);
    dflash_rig_close(&g);
}

/* A target half as wide, with as many features: only the borrowed embeddings do not fit. */
TEST(dflash_refuses_another_width)
{
    rig        g = {0};
    parts      p;
    tiny_model tiny = {.type = QUANT_F32, .n_embd = 64, .n_layers = 8, .n_vocab = 512, .seed = 1};
    if (dflash_rig_model(t, &g, tiny_model_write(&tiny, "tiny.gguf"), "cpu") && take_apart(t, &p, "gemma4-moe")) {
        check_refused(t, &g, dflash_rig_path("gemma4-moe"), "4 layers of the target have a width of 64 each");
        const char *path = write_dir(t, &p, "\"target_layer_ids\": [", "\"target_layer_ids\": [2, 5, 6, 7, ");
        check_refused(t, &g, path, "it is 128 wide and borrows the embeddings of the target, which is 64 wide");
        close_parts(&p);
    }
    dflash_rig_close(&g);
}

/* --- which rows see which -----------------------------------------------------------------------*/
static void check_config(test_case *t, parts *p, const char *old, const char *new, int n_sliding, int window,
                         bool causal_full, bool causal_sliding)
{
    err           e  = {0};
    checkpoint   *cp = NULL;
    dflash_config c;
    int           n = 0;
    if (!CHECK_OK(checkpoint_open(&cp, write_dir(t, p, old, new), &e), e)) return;
    if (CHECK_OK(dflash_config_read(&c, cp, &e), e)) {
        for (int l = 0; l < c.n_layers; l++) n += c.sliding[l];
        CHECK_MSG(n == n_sliding && c.window == window && c.causal_full == causal_full &&
                      c.causal_sliding == causal_sliding,
                  "%s: %d layers slide by %d, causal %d %d", new, n, c.window, c.causal_full, c.causal_sliding);
    }
    checkpoint_close(cp);
}

TEST(dflash_masks_follow_the_configuration)
{
    const char *cache = "\"use_cache\": true", *types = "\"layer_types\"", *config = "\"dflash_config\": {";
    parts       p;
    if (!take_apart(t, &p, "gemma4-moe")) return;
    check_config(t, &p, NULL, NULL, 2, 24, false, true);
    check_config(t, &p, cache, "\"is_causal\": false", 2, 24, false, false);
    check_config(t, &p, cache, "\"is_causal\": true", 2, 24, true, true);
    check_config(t, &p, config, "\"dflash_config\": {\"causal\": true,", 2, 24, true, true);
    check_config(t, &p, config, "\"is_causal\": false, \"dflash_config\": {\"causal\": true,", 2, 24, false, false);
    check_config(t, &p, types, "\"no_types\"", 0, 0, false, true);
    check_config(t, &p, config, "\"dflash_config\": {\"swa_window_size\": 7,", 2, 7, false, true);
    check_config(t, &p, config, "\"dflash_config\": {\"use_swa\": true,", 2, 24, false, true);
    check_config(t, &p, "\"use_sliding_window\": true", "\"use_sliding_window\": false", 0, 0, false, true);
    check_config(t, &p, "\"sliding_attention\",\n  \"sliding_attention\"", "\"full_attention\",\"full_attention\"", 0,
                 0, false, true);
    check_config(t, &p, "\"layer_types\": [\n  \"sliding_attention\"", "\"layer_types\": [\n  \"full_attention\"", 1,
                 24, false, true);
    p.edit[0] = types;
    p.edit[1] = "\"no_types\"";
    check_config(t, &p, config, "\"dflash_config\": {\"use_swa\": true,", 3, 24, false, true);
    check_config(t, &p, config, "\"dflash_config\": {\"use_swa\": false,", 0, 0, false, true);
    close_parts(&p);
}

/* Where all layers are causal a row knows nothing of those behind it, so a shorter block has the same first rows. */
TEST(dflash_causal_rows_do_not_see_ahead)
{
    rig   g;
    parts p = {0};
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu") && take_apart(t, &p, "gemma4-moe"))
        for (int causal = 0; causal < 2; causal++) {
            p.edit[0]     = "\"use_cache\": true";
            p.edit[1]     = causal ? "\"is_causal\": true" : "\"is_causal\": false";
            drafted whole = draft_with(t, &g, write_dir(t, &p, NULL, NULL));
            drafted cut   = draft_with(t, &g, write_dir(t, &p, "\"block_size\": 8", "\"block_size\": 4"));
            size_t  bytes = 4 * (size_t)g.m->n_vocab * sizeof(float);
            CHECK_INT(cut.job.n, 3);
            CHECK((memcmp(whole.logits, cut.logits, bytes) == 0) == causal);
            dflash_rig_free(&whole);
            dflash_rig_free(&cut);
        }
    close_parts(&p);
    dflash_rig_close(&g);
}

TEST(dflash_nested_theta_wins)
{
    err           e  = {0};
    checkpoint   *cp = NULL;
    parts         p;
    dflash_config c;
    if (!take_apart(t, &p, "gemma4-moe")) return;
    const char *path = write_dir(t, &p, "\"use_cache\": true", "\"rope_theta\": 5000, \"rope_scaling\": null");
    if (CHECK_OK(checkpoint_open(&cp, path, &e), e) && CHECK_OK(dflash_config_read(&c, cp, &e), e))
        CHECK_NEAR(c.theta, 1e6, 0);
    checkpoint_close(cp);
    path = write_dir(t, &p, "\"rope_parameters\": {\n  \"rope_theta\": 1000000.0",
                     "\"rope_theta\": 5000, \"rope_parameters\": {\n  \"factor\": null");
    if (CHECK_OK(checkpoint_open(&cp, path, &e), e) && CHECK_OK(dflash_config_read(&c, cp, &e), e))
        CHECK_NEAR(c.theta, 5000, 0);
    checkpoint_close(cp);
    close_parts(&p);
}

/* --- damage -------------------------------------------------------------------------------------*/
TEST(dflash_damaged_weights_are_an_answer)
{
    rig   g;
    parts p;
    err   e = {0};
    float bad[128];
    for (int i = 0; i < 128; i++) bad[i] = NAN;
    if (dflash_rig_target(t, &g, "gemma4-moe", "cpu") && take_apart(t, &p, "gemma4-moe")) {
        find_part(&p, DFLASH_NORM)->x = shaped(QUANT_F32, 128, 1, bad);
        if (dflash_rig_drafter(t, &g, write_dir(t, &p, NULL, NULL), &dflash_rig_exact)) {
            text      x   = dflash_rig_text(t, &g, 1);
            draft_job job = dflash_rig_job(&g, 0, &x), *jobs[] = {&job};
            for (int i = 0; i < 2; i++) { /* and the lane can go on */
                dflash_rig_observe(t, &g, 0, &x, 0, x.n - 1, 4);
                CHECK_FAILS(g.d->draft(g.d, g.kv, jobs, 1, &e), e, "its output is not a number");
                CHECK_INT(job.n, 0);
            }
        }
        close_parts(&p);
    }
    dflash_rig_close(&g);
}
