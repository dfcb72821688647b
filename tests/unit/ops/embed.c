#include "ops_test.h"

typedef struct {
    quant_type type;
    int        n;
} shape;

static rig_result play_embed(rig *g, const void *arg)
{
    enum { VOCAB = 50, ROWS = 33 };
    const shape  *s = arg;
    size_t        n = (size_t)ROWS * (size_t)s->n;
    const weight *w = rig_weight(g, s->type, s->n, VOCAB, 1, rig_rand_blocks(g, s->type, (size_t)VOCAB * (size_t)s->n));
    int32_t      *ids = rig_randint(g, ROWS, VOCAB);
    dev           y   = rig_put_randn(g, n);
    ids[4]            = -1;
    ids[5]            = VOCAB - 1;
    ids[6]            = 0;
    OP(g, embed, y, w, rig_put_i32(g, ids, ROWS), ROWS, 39.19f);
    return rig_give(g, y, n, 1e-6, 0);
}

TEST(embed_agrees_with_ref)
{
    static const shape s[] = {{QUANT_F32, 1},    {QUANT_F32, 257},  {QUANT_F16, 100},  {QUANT_BF16, 8},
                              {QUANT_BF16, 257}, {QUANT_Q4_0, 64},  {QUANT_Q4_1, 96},  {QUANT_Q5_0, 320},
                              {QUANT_Q5_1, 32},  {QUANT_Q8_0, 544}, {QUANT_Q4_K, 256}, {QUANT_Q5_K, 768},
                              {QUANT_Q6_K, 2560}};
    for (size_t i = 0; i < COUNT(s); i++) rig_compare(t, play_embed, &s[i]);
}

static void reads_rows(rig *g)
{
    static const float   table[] = {1, 2, 3, 4, 5, 6}, before[] = {7, 7, 8, 8, 9, 9, 0, 0};
    static const float   want[] = {10, 12, 8, 8, 2, 4, 10, 12};
    static const int32_t ids[]  = {2, -1, 0, 2};

    dev y = rig_put_f32(g, before, 8);
    OP(g, embed, y, rig_weight(g, QUANT_F32, 2, 3, 1, table), rig_put_i32(g, ids, 4), 4, 2.0f);
    SAME_F32(g, rig_get_f32(g, y, 8), want, 8);
}
TEST(embed_leaves_rows_without_a_token_alone) { rig_each(t, reads_rows); }
