/* tests/gpu/vision.c - the time that a device takes to encode pictures with towers of the models' shapes and random
 * weights, and the time of each op.
 *
 * vision DEVICE [TYPE [FILE [TOWER]]]        TYPE of the weights: bf16 (default) or f16. FILE: where a tower is written
 * and removed again (default /tmp/mmproj-vision-test.gguf). TOWER: one of the names that the program prints (default:
 * all) */
#include "../spec/rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gguf/checkpoint.h"
#include "gguf/gguf_write.h"
#include "model/model.h"
#include "model/vision.h"
#include "ops/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { OUT = 2816, TABLE = 2304, RUNS = 15, PROFILED = 3, MAX_TENSORS = 1024 };

typedef struct {
    const char *name, *text; /* text: a model of the family, which names the tokens of pictures */
    int         width, n_ff, n_layers, n_heads;
    bool        merged, clipped;
} tower;
static const tower towers[] = {{"gemma-26b", "models/nano/target.gguf", 1152, 4304, 27, 16, false, false},
                               {"gemma-e4b", "models/nano/target.gguf", 768, 3072, 16, 12, false, true},
                               {"qwen-27b", "models/nano-qwen/target.gguf", 1152, 4304, 27, 16, true, false},
                               {"qwen-4b", "models/nano-qwen/target.gguf", 1024, 4096, 24, 16, true, false}};

static struct {
    char   name[64];
    tensor t;
    double spread; /* of random values; 0: all are `value` */
    float  value;
} all[MAX_TENSORS];
static int        n_all;
static quant_type type = QUANT_BF16;

static void need(bool ok, const err *e)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s\n", e->text);
    exit(1);
}

static void add(const char *name, int layer, quant_type kind, int n_dims, int a, int b, int c, int d, double spread)
{
    tensor *t = &all[n_all].t;
    char   *s = all[n_all].name;
    if (n_all == MAX_TENSORS - 1) abort();
    snprintf(s, sizeof all->name, layer < 0 ? "%s" : "v.blk.%2$d.%1$s", name, layer);
    *t                = (tensor){.name = str_of(s), .type = kind, .n_dims = (uint32_t)n_dims, .dim = {a, b, c, d}};
    all[n_all].spread = spread;
    all[n_all].value  = 1;
    n_all++;
}

static void add_vector(const char *name, int layer, int n) { add(name, layer, QUANT_F32, 1, n, 1, 1, 1, 0); }

static void add_bound(const char *map, const char *which, int layer, float value)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", map, which);
    add_vector(name, layer, 1);
    all[n_all - 1].value = value;
}

/* Adds a linear map with what the tower's maps have besides their weights. */
static void add_map(const tower *x, const char *map, int layer, int n_in, int n_out)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", map);
    add(name, layer, type, 2, n_in, n_out, 1, 1, sqrt(3.0 / n_in));
    if (x->merged) {
        snprintf(name, sizeof name, "%s.bias", map);
        add_vector(name, layer, n_out);
    }
    if (!x->clipped || layer < 0) return;
    add_bound(map, "input_min", layer, -8);
    add_bound(map, "input_max", layer, 8);
    add_bound(map, "output_min", layer, -9);
    add_bound(map, "output_max", layer, 9);
}

static void add_norm(const tower *x, const char *norm, int layer)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", norm);
    add_vector(name, layer, x->width);
    if (!x->merged) return;
    snprintf(name, sizeof name, "%s.bias", norm);
    add_vector(name, layer, x->width);
}

static void add_gemma(const tower *x)
{
    static const char *const norms[]   = {"ln1", "attn_post_norm", "ln2", "ffn_post_norm"};
    static const char *const squares[] = {"attn_q", "attn_k", "attn_v", "attn_out"};
    int                      h         = x->width;
    add("v.patch_embd.weight", -1, type, 4, 16, 16, 3, h, sqrt(3.0 / 768));
    add("v.position_embd.weight", -1, QUANT_F32, 3, h, TABLE, 2, 1, 1);
    add("mm.input_projection.weight", -1, type, 2, h, OUT, 1, 1, sqrt(3.0 / h));
    for (int l = 0; l < x->n_layers; l++) {
        for (int i = 0; i < 4; i++) add_norm(x, norms[i], l);
        add_vector("attn_q_norm.weight", l, h / x->n_heads);
        add_vector("attn_k_norm.weight", l, h / x->n_heads);
        for (int i = 0; i < 4; i++) add_map(x, squares[i], l, h, h);
        add_map(x, "ffn_gate", l, h, x->n_ff);
        add_map(x, "ffn_up", l, h, x->n_ff);
        add_map(x, "ffn_down", l, x->n_ff, h);
    }
}

static void add_qwen(const tower *x)
{
    int h = x->width;
    add("v.patch_embd.weight", -1, type, 4, 16, 16, 3, h, sqrt(3.0 / 768));
    add("v.patch_embd.weight.1", -1, type, 4, 16, 16, 3, h, sqrt(3.0 / 768));
    add_vector("v.patch_embd.bias", -1, h);
    add("v.position_embd.weight", -1, QUANT_F32, 2, h, TABLE, 1, 1, 1);
    add_norm(x, "v.post_ln", -1);
    add_map(x, "mm.0", -1, 4 * h, 4 * h);
    add_map(x, "mm.2", -1, 4 * h, OUT);
    for (int l = 0; l < x->n_layers; l++) {
        add_norm(x, "ln1", l);
        add_norm(x, "ln2", l);
        add_map(x, "attn_qkv", l, h, 3 * h);
        add_map(x, "attn_out", l, h, h);
        add_map(x, "ffn_up", l, h, x->n_ff);
        add_map(x, "ffn_down", l, x->n_ff, h);
    }
}

static void put_keys(gguf_writer *w, const tower *x)
{
    gguf_put_str(w, "general.architecture", STR("clip"));
    gguf_put_str(w, "clip.vision.projector_type", str_of(x->merged ? "qwen3vl_merger" : "gemma4v"));
    gguf_put_u32(w, "clip.vision.embedding_length", (uint32_t)x->width);
    gguf_put_u32(w, "clip.vision.feed_forward_length", (uint32_t)x->n_ff);
    gguf_put_u32(w, "clip.vision.block_count", (uint32_t)x->n_layers);
    gguf_put_u32(w, "clip.vision.attention.head_count", (uint32_t)x->n_heads);
    gguf_put_f32(w, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
}

static void write_values(gguf_writer *w, int i, err *e)
{
    const tensor *t  = &all[i].t;
    size_t        n  = (size_t)t->dim[0] * (size_t)t->dim[1] * (size_t)t->dim[2] * (size_t)t->dim[3], bytes;
    float        *x  = xnew_n(float, n);
    char         *to = xalloc(n * 4);
    uint32_t      s  = 12345 + (uint32_t)i;
    for (size_t k = 0; k < n; k++) {
        s    = s * 1664525u + 1013904223u;
        x[k] = all[i].spread > 0 ? (float)(((double)s / 2147483648.0 - 1) * all[i].spread) : all[i].value;
    }
    if (!quant_bytes(t->type, n, &bytes) || !quant_quantise(t->type, x, to, n)) abort();
    need(gguf_writer_data(w, to, bytes, e), e);
    mem_free(x);
    mem_free(to);
}

static void write_tower(const char *path, const tower *x)
{
    gguf_writer *w = gguf_writer_new();
    err          e = {0};
    n_all          = 0;
    (x->merged ? add_qwen : add_gemma)(x);
    put_keys(w, x);
    for (int i = 0; i < n_all; i++) gguf_put_tensor(w, &all[i].t);
    need(gguf_writer_begin(w, path, 0, &e), &e);
    for (int i = 0; i < n_all; i++) write_values(w, i, &e);
    need(gguf_writer_end(w, &e), &e);
    gguf_writer_free(w);
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) * 2 - 1; }

/* Returns a picture, or a frame, of cols x rows soft tokens of `cell` pixels. */
static media_span make_span(int cols, int rows, int cell, bool is_video)
{
    media_span s = {.n = cols * rows, .is_video = is_video, .width = cols * cell, .height = rows * cell};
    err        e = {0};
    need(picture_new(&s.frames[0], s.width, s.height, &e), &e);
    for (size_t i = 0; i < picture_bytes(&s.frames[0]); i++) s.frames[0].rgb[i] = (uint8_t)(i * 7 + i / 1000);
    return s;
}

/* Encodes a picture several times. Returns the median in milliseconds. */
static double time_picture(vision *v, int cols, int rows, int cell, bool is_video)
{
    media_span s    = make_span(cols, rows, cell, is_video);
    float     *soft = xnew_n(float, (size_t)s.n *OUT), sum = 0;
    double     ms[RUNS];
    err        e = {0};
    need(vision_encode(v, &s, soft, &e), &e);
    for (int i = 0; i < RUNS; i++) {
        double start = clock_s();
        need(vision_encode(v, &s, soft, &e), &e);
        ms[i] = 1e3 * (clock_s() - start);
    }
    for (int i = 0; i < s.n * OUT; i++) sum += soft[i] * soft[i];
    if (!(sum > 0) || !isfinite(sum)) need(false, &(err){.text = "the soft tokens are not finite"});
    qsort(ms, RUNS, sizeof *ms, by_size);
    printf("%4d soft tokens, %4d patches: median %.2f ms, %.2f to %.2f\n", s.n, s.n * (cell / 16) * (cell / 16),
           ms[RUNS / 2], ms[0], ms[RUNS - 1]);
    picture_free(&s.frames[0]);
    mem_free(soft);
    return ms[RUNS / 2];
}

/* Prints the time of each op of PROFILED pictures of the default size, with ops that wait for each other. */
static void profile_picture(const target *t, const checkpoint *cp, const char *device, const char *path, int cell)
{
    ops       *inner, *o;
    vision    *v;
    target     timed = *t;
    media_span s     = cell == 48 ? make_span(20, 14, cell, false) : make_span(30, 21, cell, false);
    float     *soft  = xnew_n(float, (size_t)s.n *OUT);
    err        e     = {0};
    need(ops_open(&inner, device, 0, &e), &e);
    timed.o = o = ops_profile(inner);
    need(vision_open(&v, &timed, cp, path, &e), &e);
    need(vision_encode(v, &s, soft, &e), &e);
    ops_profile_clear(o);
    for (int i = 0; i < PROFILED; i++) need(vision_encode(v, &s, soft, &e), &e);
    printf("%d pictures of %d patches, op by op:\n", PROFILED, s.n * (cell / 16) * (cell / 16));
    ops_profile_print(o, 0, stdout);
    picture_free(&s.frames[0]);
    mem_free(soft);
    vision_close(v);
    ops_close(o);
}

static void measure(const tower *x, const char *device, const char *path)
{
    char          text[4096];
    checkpoint   *cp;
    target       *t;
    vision       *v;
    err           e    = {0};
    model_options opt  = {.device = device, .mmproj = "none"};
    int           cell = x->merged ? 32 : 48;
    write_tower(path, x);
    need(checkpoint_open(&cp, rig_path(x->text, text), &e), &e);
    need(model_open(&t, cp, &opt, &e), &e);
    target wide = *t; /* the tokens of a small model, and the width of the 26B-A4B */
    wide.n_embd = OUT;
    need(vision_open(&v, &wide, cp, path, &e), &e);
    printf("--- %s, %s weights, %s\n", x->name, type == QUANT_F16 ? "f16" : "bf16", t->o->name);
    if (x->merged) {
        time_picture(v, 30, 21, cell, false);
        time_picture(v, 60, 34, cell, false);
    } else {
        time_picture(v, 20, 14, cell, false);
        double frame = time_picture(v, 10, 7, cell, true);
        printf("32 frames of a video, one after the other: %.1f ms\n", 32 * frame);
    }
    vision_close(v);
    profile_picture(&wide, cp, device, path, cell);
    model_close(t);
    checkpoint_close(cp);
    unlink(path);
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cuda", *path = argc > 3 ? argv[3] : "/tmp/mmproj-vision-test.gguf";
    if (argc > 2 && !strcmp(argv[2], "f16")) type = QUANT_F16;
    for (size_t i = 0; i < COUNT(towers); i++)
        if (argc < 5 || !strcmp(argv[4], towers[i].name)) measure(&towers[i], device, path);
    return 0;
}
