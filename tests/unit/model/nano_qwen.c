/* Promise 1 of a trained model with recurrent layers, at length: the logits of nano-qwen's rows and the states of its
 * lanes are the same bits for prompts in chunks of 7, 64 and 512, with 1 to 3 threads, among 1 to 63 other rows, and as
 * chains and trees of which any part is committed. */
#include "backends.h"
#include "base/num.h"
#include "kv/inside.h"
#include "model/model.h"
#include "model/open_target.h"
#include "store/pack.h"
#include "test.h"

enum { TEXT = 576, LANES = 64, KEPT = 32, MOST_OTHERS = LANES - 1 };

/* The text, one token a step, on one device: what all other steps are compared with. */
typedef struct {
    hash128 logits[TEXT]; /* of the row at this position */
    hash128 state[TEXT];  /* after this position */
} alone;

typedef struct {
    target  *m;
    kv_pool *kv;
    kv_lane *lane[LANES];
    step     s;
    int32_t  id[TEXT];
    float   *out;   /* logits of the wanted rows */
    char    *state; /* bytes of all states of a lane */
    alone   *want;
} rig;

static bool open_rig(test_case *t, rig *g, const char *device, int n_threads)
{
    model_options opt = {.device = device, .n_threads = n_threads, .max_rows = 512};
    *g                = (rig){0};
    if (!test_open_target(t, &g->m, test_path("models/nano-qwen/target.gguf"), &opt) ||
        !test_open_pool(t, &g->kv, g->m,
                        &(test_pool){.max_lanes = LANES, .max_slots = TEXT + KEPT, .max_kept_rows = KEPT}))
        return false;
    for (int i = 0; i < LANES; i++) g->lane[i] = kv_lane_new(g->kv);
    step_init(&g->s, g->m->max_rows);
    for (int i = 0; i < TEXT; i++) g->id[i] = (i * 37 + i * i * 5 + 3) % 4000;
    size_t bytes = 0;
    for (int i = 0; i < g->m->n_states; i++) bytes += g->kv->state[i].bytes;
    g->state = xnew_n(char, bytes);
    g->out   = xnew_n(float, (size_t)g->m->max_rows *(size_t)g->m->n_vocab);
    return CHECK(g->m->n_states > 0);
}

static void close_rig(rig *g)
{
    for (int i = 0; i < LANES && g->kv; i++) kv_lane_free(g->lane[i]);
    kv_pool_free(g->kv);
    step_deinit(&g->s);
    model_close(g->m);
    mem_free(g->out);
    mem_free(g->state);
}

static void restart(rig *g, int lane)
{
    kv_lane_free(g->lane[lane]);
    g->lane[lane] = kv_lane_new(g->kv);
}

static void begin_step(rig *g)
{
    kv_step_begin(g->kv);
    step_clear(&g->s);
}

static void run_step(test_case *t, rig *g)
{
    err     e       = {0};
    target *m       = g->m;
    size_t  n_vocab = (size_t)m->n_vocab;
    CHECK_OK(m->step(m, g->kv, &g->s, &e), e);
    for (int first = 0; first < g->s.n_want; first += HEAD_ROWS) {
        int n = min_int(g->s.n_want - first, HEAD_ROWS);
        m->head(m, first, n);
        m->o->download(m->q, g->out + (size_t)first * n_vocab, m->logits, (size_t)n * n_vocab * sizeof(float));
        m->o->sync(m->q);
    }
}

/* Returns the hash of a wanted row's logits. */
static hash128 logits_of(const rig *g, int row)
{
    size_t n = (size_t)g->m->n_vocab;
    return hash128_of(g->out + (size_t)row * n, n * sizeof(float));
}

/* Returns the hash of the lane's live states, after pending commits. */
static hash128 state_of(rig *g, int lane)
{
    const ops *o  = g->m->o;
    char      *at = g->state;
    kv_step_begin(g->kv);
    for (int i = 0; i < g->m->n_states; i++) {
        const kv_state *s = &g->kv->state[i];
        int32_t         id;
        size_t          place = (size_t)(kv_lane_index(g->lane[lane]) * s->table_stride) * sizeof id;
        o->download(g->m->q, &id, dev_at(s->table, place), sizeof id);
        o->sync(g->m->q);
        o->download(g->m->q, at, dev_at(s->pool, (size_t)id * KV_UNIT), s->bytes);
        o->sync(g->m->q);
        at += s->bytes;
    }
    return hash128_of(g->state, (size_t)(at - g->state));
}

static bool same_logits(test_case *t, const rig *g, int row, int pos, const char *what, int k)
{
    return CHECK_MSG(hash128_equal(logits_of(g, row), g->want->logits[pos]), "logits at position %d differ: %s %d", pos,
                     what, k);
}

static bool same_state(test_case *t, rig *g, int lane, const char *what, int k)
{
    int n = kv_lane_len(g->lane[lane]);
    return CHECK_MSG(hash128_equal(state_of(g, lane), g->want->state[n - 1]),
                     "the state after %d tokens differs: %s %d", n, what, k);
}

/* Adds the next n tokens of the text as sure rows. */
static void add_sure(test_case *t, rig *g, int lane, int n)
{
    err e   = {0};
    int pos = kv_lane_len(g->lane[lane]);
    CHECK_OK(kv_lane_grow(g->lane[lane], n, 0, &e), e);
    for (int i = 0; i < n; i++) step_add(&g->s, kv_lane_index(g->lane[lane]), pos + i, g->id[pos + i], true);
}

static void go_on(test_case *t, rig *g, int lane, int n, const char *what, int k)
{
    int pos = kv_lane_len(g->lane[lane]);
    begin_step(g);
    add_sure(t, g, lane, n);
    run_step(t, g);
    kv_lane_commit(g->lane[lane], NULL, 0);
    for (int i = 0; i < n && same_logits(t, g, i, pos + i, what, k); i++) continue;
}

static void run_alone(test_case *t, rig *g)
{
    restart(g, 0);
    for (int i = 0; i < TEXT; i++) {
        begin_step(g);
        add_sure(t, g, 0, 1);
        run_step(t, g);
        kv_lane_commit(g->lane[0], NULL, 0);
        g->want->logits[i] = logits_of(g, 0);
        g->want->state[i]  = state_of(g, 0);
        CHECK(i == 0 || !hash128_equal(g->want->state[i], g->want->state[i - 1]));
    }
}

static void in_chunks(test_case *t, rig *g)
{
    static const int chunk[] = {1, 7, 64, 512};
    for (size_t k = 0; k < COUNT(chunk); k++) {
        restart(g, 0);
        for (int at = 0; at < TEXT; at += chunk[k]) go_on(t, g, 0, min_int(chunk[k], TEXT - at), "chunk", chunk[k]);
        same_state(t, g, 0, "chunk", chunk[k]);
    }
}

/* Lane 0 goes on by one row among n other lanes, each at a position of its own, for each n. The others' rows are rows
 * of the text too, so all are compared. */
static void among_others(test_case *t, rig *g)
{
    for (int i = 0; i < LANES; i++) {
        restart(g, i);
        go_on(t, g, i, 1 + i * 5 % 97, "before it meets others, lane", i);
    }
    for (int n = 1; n <= MOST_OTHERS; n++) {
        int pos[LANES], lane[LANES];
        begin_step(g);
        for (int i = 0; i <= n; i++) { /* lane 0 stands in the middle */
            lane[i] = i < n / 2 ? i + 1 : i == n / 2 ? 0 : i;
            pos[i]  = kv_lane_len(g->lane[lane[i]]);
            add_sure(t, g, lane[i], 1);
        }
        run_step(t, g);
        for (int i = 0; i <= n; i++) {
            kv_lane_commit(g->lane[lane[i]], NULL, 0);
            if (!same_logits(t, g, i, pos[i], "among other rows:", n)) return;
        }
        if (!same_state(t, g, 0, "among other rows:", n)) return;
    }
    for (int i = 0; i < LANES; i++) same_state(t, g, i, "after others, lane", i);
}

/* A tree of n rows after n_sure sure rows. Rows of `path` are the text, all others another one. */
typedef struct {
    int n, n_sure, parent[KEPT], path[KEPT], n_path, first; /* first: of the tree's rows in the step */
} tree;

static uint32_t draw(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

/* Draws a tree whose path ends at its last row; a chain with `chain`, whose last rows are not the text. */
static tree draw_tree(uint32_t *random, int n, bool chain)
{
    tree x      = {.n = n, .n_sure = (int)draw(random, 4)};
    int  back   = 0;
    x.parent[0] = -1;
    for (int i = 1; i < n; i++) x.parent[i] = chain ? i - 1 : (int)draw(random, (uint32_t)i);
    for (int i = chain ? (int)draw(random, (uint32_t)n) : n - 1; i >= 0; i = x.parent[i]) x.path[x.n_path++] = i;
    for (int i = x.n_path - 1; back < i; back++, i--) {
        int swap     = x.path[back];
        x.path[back] = x.path[i];
        x.path[i]    = swap;
    }
    return x;
}

static void add_tree(test_case *t, rig *g, int lane, tree *x)
{
    err e     = {0};
    int index = kv_lane_index(g->lane[lane]), root = kv_lane_len(g->lane[lane]) + x->n_sure, depth[KEPT], on = 0;
    CHECK_OK(kv_lane_grow(g->lane[lane], x->n_sure, x->n, &e), e);
    for (int i = root - x->n_sure; i < root; i++) step_add(&g->s, index, i, g->id[i], false);
    x->first = g->s.n_rows;
    for (int i = 0; i < x->n; i++) {
        depth[i]      = x->parent[i] < 0 ? 0 : depth[x->parent[i]] + 1;
        int32_t token = g->id[root + depth[i]];
        bool    text  = on < x->n_path && x->path[on] == i;
        on += text;
        step_add_tree(&g->s, index, root, i, x->parent[i] < 0 ? -1 : x->first + x->parent[i],
                      text ? token : (token + 11 + i) % 4000, true);
    }
    step_keep(&g->s, x->n, kv_lane_kept(g->lane[lane]));
}

/* A lane with a chain or a tree next to one with a few sure rows, again and again; of each path some rows are kept. */
static void as_drafts(test_case *t, rig *g, bool chain)
{
    const char *what   = chain ? "round with a chain" : "round with a tree";
    uint32_t    random = 7;
    restart(g, 0);
    restart(g, 1);
    for (int round = 0; kv_lane_len(g->lane[0]) + 2 * KEPT < TEXT; round++) {
        tree x   = draw_tree(&random, 1 + (int)draw(&random, KEPT - 8), chain);
        int  pos = kv_lane_len(g->lane[0]) + x.n_sure, keep = (int)draw(&random, (uint32_t)x.n_path + 1), n_other = 0;
        begin_step(g);
        if (round % 2) add_sure(t, g, 1, n_other = 1 + round % 3); /* all of its rows are wanted */
        add_tree(t, g, 0, &x);
        run_step(t, g);
        for (int i = 0; i < x.n_path; i++)
            if (!same_logits(t, g, n_other + x.path[i], pos + i, what, round)) return;
        if (n_other) kv_lane_commit(g->lane[1], NULL, 0);
        kv_lane_commit(g->lane[0], x.path, keep);
        CHECK_INT(kv_lane_len(g->lane[0]), pos + keep);
        if (pos + keep > 0 && !same_state(t, g, 0, what, round)) return;
    }
    same_state(t, g, 1, what, -1);
}

TEST_LONG(nano_qwen_rows_and_states_do_not_depend_on_steps)
{
    static const test_backend all[] = {{"cpu", 1}, {"cpu", 2}, {"cpu", 3}, {"cuda", 1}};
    alone                    *want  = xnew_n(alone, COUNT(all));
    ops_device                gpu;
    for (size_t i = 0; i < COUNT(all); i++) {
        rig g;
        if (!strcmp(all[i].name, "cuda") && !ops_device_find(&gpu, "cuda", NULL)) continue;
        if (open_rig(t, &g, all[i].name, all[i].n_threads)) {
            g.want = &want[i];
            run_alone(t, &g);
            if (i > 0 && !strcmp(all[i].name, all[0].name))
                CHECK_MSG(!memcmp(want, g.want, sizeof *want), "%d threads give other bits", all[i].n_threads);
            in_chunks(t, &g);
            among_others(t, &g);
            as_drafts(t, &g, true);
            as_drafts(t, &g, false);
        }
        close_rig(&g);
    }
    mem_free(want);
}
