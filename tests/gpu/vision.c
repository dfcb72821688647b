/* tests/gpu/vision.c - the time that a device takes to encode pictures with a tower of the 26B-A4B's shape and random
 * weights: 27 layers of width 1152, 16 heads, 1.1 GB.
 *
 * vision DEVICE [TYPE [FILE]]        TYPE of the weights: bf16 (default) or f16. FILE: where the tower is written and
 * removed again (default /tmp/mmproj-vision-test.gguf) */
#include "../spec/rig.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gguf/checkpoint.h"
#include "gguf/gguf_write.h"
#include "model/model.h"
#include "model/vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WIDTH = 1152, FF = 4304, LAYERS = 27, HEADS = 16, OUT = 2816, TABLE = 1024, RUNS = 15, MAX_TENSORS = 512 };

static struct {
    char   name[64];
    tensor t;
    double spread; /* of random values; 0: all are 1 */
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
    snprintf(s, sizeof all->name, layer < 0 ? "%s" : "v.blk.%2$d.%1$s", name, layer);
    *t                  = (tensor){.name = str_of(s), .type = kind, .n_dims = (uint32_t)n_dims, .dim = {a, b, c, d}};
    all[n_all++].spread = spread;
}

static void add_map(const char *name, int layer, int n_in, int n_out)
{
    add(name, layer, type, 2, n_in, n_out, 1, 1, sqrt(3.0 / n_in));
}

static void add_tower(void)
{
    static const char *const norms[]   = {"ln1.weight", "attn_post_norm.weight", "ln2.weight", "ffn_post_norm.weight"};
    static const char *const heads[]   = {"attn_q_norm.weight", "attn_k_norm.weight"};
    static const char *const squares[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_out.weight"};
    add("v.patch_embd.weight", -1, type, 4, 16, 16, 3, WIDTH, sqrt(3.0 / 768));
    add("v.position_embd.weight", -1, QUANT_F32, 3, WIDTH, TABLE, 2, 1, 1);
    add("mm.input_projection.weight", -1, type, 2, WIDTH, OUT, 1, 1, sqrt(3.0 / WIDTH));
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < 4; i++) add(norms[i], l, QUANT_F32, 1, WIDTH, 1, 1, 1, 0);
        for (int i = 0; i < 2; i++) add(heads[i], l, QUANT_F32, 1, WIDTH / HEADS, 1, 1, 1, 0);
        for (int i = 0; i < 4; i++) add_map(squares[i], l, WIDTH, WIDTH);
        add_map("ffn_gate.weight", l, WIDTH, FF);
        add_map("ffn_up.weight", l, WIDTH, FF);
        add_map("ffn_down.weight", l, FF, WIDTH);
    }
}

static void put_keys(gguf_writer *w)
{
    gguf_put_str(w, "general.architecture", STR("clip"));
    gguf_put_str(w, "clip.vision.projector_type", STR("gemma4v"));
    gguf_put_u32(w, "clip.vision.embedding_length", WIDTH);
    gguf_put_u32(w, "clip.vision.feed_forward_length", FF);
    gguf_put_u32(w, "clip.vision.block_count", LAYERS);
    gguf_put_u32(w, "clip.vision.attention.head_count", HEADS);
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
        x[k] = all[i].spread > 0 ? (float)(((double)s / 2147483648.0 - 1) * all[i].spread) : 1;
    }
    if (!quant_bytes(t->type, n, &bytes) || !quant_quantise(t->type, x, to, n)) abort();
    need(gguf_writer_data(w, to, bytes, e), e);
    mem_free(x);
    mem_free(to);
}

static void write_tower(const char *path)
{
    gguf_writer *w = gguf_writer_new();
    err          e = {0};
    add_tower();
    put_keys(w);
    for (int i = 0; i < n_all; i++) gguf_put_tensor(w, &all[i].t);
    need(gguf_writer_begin(w, path, 0, &e), &e);
    for (int i = 0; i < n_all; i++) write_values(w, i, &e);
    need(gguf_writer_end(w, &e), &e);
    gguf_writer_free(w);
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) * 2 - 1; }

/* Encodes a picture of cols x rows soft tokens, several times. Returns the median in milliseconds. */
static double time_picture(vision *v, int cols, int rows, bool is_video)
{
    media_span s    = {.n = cols * rows, .is_video = is_video, .width = cols * 48, .height = rows * 48};
    float     *soft = xnew_n(float, (size_t)s.n *OUT), sum = 0;
    double     ms[RUNS];
    err        e = {0};
    need(picture_new(&s.frames[0], s.width, s.height, &e), &e);
    for (size_t i = 0; i < picture_bytes(&s.frames[0]); i++) s.frames[0].rgb[i] = (uint8_t)(i * 7 + i / 1000);
    need(vision_encode(v, &s, soft, &e), &e);
    for (int i = 0; i < RUNS; i++) {
        double start = clock_s();
        need(vision_encode(v, &s, soft, &e), &e);
        ms[i] = 1e3 * (clock_s() - start);
    }
    for (int i = 0; i < s.n * OUT; i++) sum += soft[i] * soft[i];
    if (!(sum > 0) || !isfinite(sum)) need(false, &(err){.text = "the soft tokens are not finite"});
    qsort(ms, RUNS, sizeof *ms, by_size);
    printf("%4d soft tokens, %4d patches: median %.2f ms, %.2f to %.2f\n", s.n, 9 * s.n, ms[RUNS / 2], ms[0],
           ms[RUNS - 1]);
    picture_free(&s.frames[0]);
    mem_free(soft);
    return ms[RUNS / 2];
}

int main(int argc, char **argv)
{
    const char   *device = argc > 1 ? argv[1] : "cuda", *path = argc > 3 ? argv[3] : "/tmp/mmproj-vision-test.gguf";
    char          text[4096];
    checkpoint   *cp;
    target       *t;
    vision       *v;
    err           e   = {0};
    model_options opt = {.device = device};
    if (argc > 2 && !strcmp(argv[2], "f16")) type = QUANT_F16;
    write_tower(path);
    need(checkpoint_open(&cp, rig_path("models/nano/target.gguf", text), &e), &e);
    need(model_open(&t, cp, &opt, &e), &e);
    target wide = *t; /* the tokens of nano, and the width of the 26B-A4B */
    wide.n_embd = OUT;
    need(vision_open(&v, &wide, cp, path, &e), &e);
    printf("%s weights, %s\n", type == QUANT_F16 ? "f16" : "bf16", t->o->name);
    time_picture(v, 20, 14, false);
    double frame = time_picture(v, 10, 7, true);
    printf("32 frames of a video, one after the other: %.1f ms\n", 32 * frame);
    vision_close(v);
    model_close(t);
    checkpoint_close(cp);
    unlink(path);
    return 0;
}
