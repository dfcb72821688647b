/* Lanes with states: any accepted path, checkpoints in the prefix tree, reservations. The state of a lane is the sum
 * of tags of its rows in order, and the saved one is compared with a plain list. */
#include "kv_rig.h"

#include "base/fault.h"
#include "kv/inside.h"

enum { LANES = 3, SLOTS = 200, KEPT = 40 };

static uint32_t add_row(uint32_t state, uint32_t tag) { return state * 31 + tag; }

static uint32_t *live_at(const kv_state *s, int lane)
{
    return (uint32_t *)((char *)s->pool.p + (size_t)((const int32_t *)s->table.p)[lane * s->table_stride] * KV_UNIT);
}

static void replay_sum(void *ctx, const kv_state *s, const kv_replay *r)
{
    (void)ctx;
    for (int i = 0; i < r->n_items; i++) {
        uint32_t *live = live_at(s, r->item[i].lane), state = r->item[i].pos ? *live : 0;
        for (int k = 0; k < r->item[i].n; k++)
            state = add_row(state, ((const uint32_t *)s->kept.p)[r->row[r->item[i].first + k]]);
        *live = state;
    }
}

static const kv_state_spec states[2] = {{4, 4, replay_sum, NULL}, {8, 8, NULL, NULL}};

static kv_pool_spec pool_spec(size_t max_bytes)
{
    return (kv_pool_spec){.classes       = kv_rig_classes,
                          .n_classes     = COUNT(kv_rig_classes),
                          .max_bytes     = max_bytes,
                          .max_lanes     = LANES,
                          .max_slots     = SLOTS,
                          .states        = states,
                          .n_states      = 2,
                          .max_kept_rows = KEPT};
}

static kv_rig open_rig(test_case *t, size_t max_bytes)
{
    kv_rig       g    = {.t = t};
    err          e    = {0};
    queue_limits lim  = {.max_rows = 1, .max_in = 8, .max_vocab = 8};
    kv_pool_spec spec = pool_spec(max_bytes);
    CHECK_OK(ops_open(&g.o, "ref", 1, &e), e);
    CHECK_OK(g.o->queue_new(g.o, &g.q, &lim, &e), e);
    spec.q = g.q;
    CHECK_OK(kv_pool_new(&g.p, g.o, &spec, &e), e);
    CHECK_OK(kv_prefix_new(&g.tree, g.p, &e), e);
    return g;
}

/* Runs a step of one lane as a target would: sure rows with tags from `tag` on, then kept rows whose parents are
 * given. */
static void run_step(kv_rig *g, kv_lane *l, int n_sure, const int *parent, int n_kept, uint32_t tag)
{
    test_case      *t   = g->t;
    err             e   = {0};
    const kv_state *sum = kv_pool_state(g->p, 0), *whole = kv_pool_state(g->p, 1);
    uint32_t        after[KEPT], state;
    kv_step_begin(g->p);
    CHECK_OK(kv_lane_grow(l, n_sure, n_kept, &e), e);
    kv_pool_flush(g->p, g->q);
    state = kv_lane_len(l) ? *live_at(sum, kv_lane_index(l)) : 0;
    for (int i = 0; i < n_sure; i++) state = add_row(state, tag + (uint32_t)i);
    if (n_sure) *live_at(sum, kv_lane_index(l)) = *live_at(whole, kv_lane_index(l)) = state;
    for (int i = 0; i < n_kept; i++) {
        int      place                         = kv_lane_kept(l) + i;
        uint32_t mine                          = tag + (uint32_t)(n_sure + i);
        after[i]                               = add_row(parent[i] < 0 ? state : after[parent[i]], mine);
        ((uint32_t *)sum->kept.p)[place]       = mine;
        ((uint32_t *)whole->kept.p)[2 * place] = after[i];
    }
}

static void expect_state(kv_rig *g, kv_lane *l, uint32_t want)
{
    test_case *t = g->t;
    kv_step_begin(g->p);
    kv_pool_flush(g->p, g->q);
    for (int i = 0; i < 2; i++) CHECK_INT(*live_at(kv_pool_state(g->p, i), kv_lane_index(l)), want);
    kv_pool_check(g->p);
}

/* Every path of a tree, after sure rows and without, from an empty lane and from one with text. */
TEST(kv_lane_commits_any_path)
{
    static const int parent[] = {-1, 0, 0, 1, 1, 2, 5};
    kv_rig           g        = open_rig(t, 1 << 18);
    for (int leaf = -1; leaf < (int)COUNT(parent); leaf++)
        for (int n_sure = 0; n_sure < 20; n_sure += 19) {
            int      path[COUNT(parent)], n = 0;
            uint32_t want = 0;
            kv_lane *l    = kv_lane_new(g.p);
            run_step(&g, l, n_sure, parent, COUNT(parent), 100);
            for (int r = leaf; r >= 0; r = parent[r]) n++;
            for (int r = leaf, i = n; r >= 0; r = parent[r]) path[--i] = r;
            kv_lane_commit(l, path, n);
            for (int i = 0; i < n_sure; i++) want = add_row(want, 100 + (uint32_t)i);
            for (int i = 0; i < n; i++) want = add_row(want, 100 + (uint32_t)(n_sure + path[i]));
            CHECK_INT(kv_lane_len(l), n_sure + n);
            if (kv_lane_len(l)) expect_state(&g, l, want);
            run_step(&g, l, 0, parent, 3, 500); /* a chain of two, and a sibling that is rejected */
            kv_lane_commit(l, (int[]){0, 2}, 2);
            expect_state(&g, l, add_row(add_row(want, 500), 502));
            kv_lane_free(l);
            kv_pool_check(g.p);
        }
    kv_rig_close(&g);
}

/* A step that did not run, or ran kept rows alone, leaves the lane as it was. After sure rows that ran it is empty. */
TEST(kv_lane_rolls_back)
{
    static const int chain[] = {-1, 0, 1};
    kv_rig           g       = open_rig(t, 1 << 18);
    kv_lane         *l       = kv_lane_new(g.p);
    uint32_t         want    = 0;
    run_step(&g, l, 5, chain, 3, 10);
    kv_lane_commit(l, (int[]){0}, 1);
    for (uint32_t i = 0; i < 6; i++) want = add_row(want, 10 + i);
    run_step(&g, l, 0, chain, 3, 70);
    CHECK_INT(kv_lane_rollback(l, true), 6);
    expect_state(&g, l, want);
    CHECK(kv_lane_grow(l, 9, 3, NULL));
    CHECK_INT(kv_lane_rollback(l, false), 6);
    expect_state(&g, l, want);
    run_step(&g, l, 2, chain, 1, 90);
    CHECK_INT(kv_lane_rollback(l, true), 0);
    kv_pool_check(g.p);
    run_step(&g, l, 1, chain, 0, 7);
    kv_lane_commit(l, NULL, 0);
    expect_state(&g, l, 7);
    kv_lane_free(l);
    kv_rig_close(&g);
}

/* Runs a text of n tokens, all equal to `kind`, and saves the state after n_save of them. Returns its state at the
 * end. */
static uint32_t run_text(kv_rig *g, kv_lane *l, int32_t kind, int n, int n_save, kv_node **last)
{
    int32_t  token[KV_PAGE];
    kv_node *at = NULL;
    for (int i = 0; i < KV_PAGE; i++) token[i] = kind;
    for (int done = 0; done < n; done += KV_PAGE) {
        run_step(g, l, KV_PAGE, NULL, 0, (uint32_t)kind);
        kv_lane_commit_sure(l, done + KV_PAGE == n_save);
        kv_lane_commit(l, NULL, 0);
        at = kv_prefix_put(g->tree, 0, at, token, kv_lane_pages(l), done / KV_PAGE);
        if (kv_lane_saved(l) == done + KV_PAGE && done + KV_PAGE == n_save) kv_lane_save(l, g->tree, at);
    }
    *last = at;
    return *live_at(kv_pool_state(g->p, 0), kv_lane_index(l));
}

/* A hit ends where a state is, however far the pages reach, and starts from a copy: the tree's state does not change.
 * */
TEST(kv_lane_hits_need_a_state)
{
    kv_rig   g = open_rig(t, 1 << 18);
    kv_node *end, *at;
    int32_t  text[5 * KV_PAGE];
    kv_lane *l = kv_lane_new(g.p), *m;
    for (size_t i = 0; i < COUNT(text); i++) text[i] = 3;
    run_text(&g, l, 3, 4 * KV_PAGE, 2 * KV_PAGE, &end);
    CHECK_INT(kv_prefix_reach_pages(g.tree, 0, text, COUNT(text)), 4 * KV_PAGE);
    CHECK_INT(kv_prefix_find(g.tree, 0, text, COUNT(text), NULL, 0, &at), 2 * KV_PAGE);
    for (int round = 0; round < 2; round++) {
        uint32_t want = 0;
        for (int i = 0; i < 2 * KV_PAGE; i++) want = add_row(want, 3 + (uint32_t)(i % KV_PAGE));
        m = kv_lane_new(g.p);
        CHECK(kv_lane_take(m, g.tree, at));
        CHECK_INT(kv_lane_len(m), 2 * KV_PAGE);
        expect_state(&g, m, want);
        run_step(&g, m, 3, NULL, 0, 50);
        kv_lane_commit(m, NULL, 0);
        kv_lane_free(m);
    }
    kv_lane_free(l);
    kv_rig_close(&g);
}

/* When lanes need the whole pool, states without a mark are evicted before the marked one. */
TEST(kv_lane_marked_states_are_evicted_last)
{
    kv_rig   g = open_rig(t, 64 << 10);
    kv_node *end, *at;
    int32_t  text[3 * KV_PAGE];
    int      n_marked = 0, n_plain = 0;
    for (int kind = 1; kind <= 12; kind++) {
        kv_lane *l = kv_lane_new(g.p);
        run_text(&g, l, kind, 2 * KV_PAGE, 2 * KV_PAGE, &end);
        if (kind == 1) kv_prefix_keep(g.tree, end);
        kv_lane_free(l);
        kv_pool_check(g.p);
    }
    for (int kind = 1; kind <= 12; kind++) {
        for (size_t i = 0; i < COUNT(text); i++) text[i] = kind;
        int32_t n = kv_prefix_find(g.tree, 0, text, COUNT(text), NULL, 0, &at);
        *(kind == 1 ? &n_marked : &n_plain) += n == 2 * KV_PAGE;
    }
    CHECK(n_marked == 1 && n_plain < 11);
    kv_rig_close(&g);
}

/* The pool that kv_bytes_for asks for holds a lane with its two states of each class, and the reservation counts
 * them. */
TEST(kv_lane_states_are_reserved)
{
    kv_pool_spec spec = pool_spec(0);
    size_t       bytes, kept;
    kv_need      n = {0}, twice = {0};
    spec.max_lanes = 1;
    CHECK(kv_bytes_for(&spec, SLOTS, &bytes) && kv_kept_bytes(&spec, &kept));
    CHECK_INT(kept, KEPT * (4 + 8));
    kv_rig g = open_rig(t, bytes);
    kv_need_add(g.p, &n, 0, SLOTS, SLOTS);
    CHECK_INT(n.pages[2], 2);
    CHECK_INT(n.pages[3], 2);
    CHECK(kv_reserve(g.p, &n, 1) && kv_need_bytes(g.p, &n) <= bytes - kept);
    kv_need_add(g.p, &twice, 0, SLOTS, SLOTS);
    CHECK(!kv_reserve(g.p, &twice, 1) && kv_could_reserve(g.p, &twice, 1));
    kv_unreserve(g.p, &n);
    kv_rig_close(&g);
}

TEST(kv_pool_with_states_survives_each_failed_allocation)
{
    ops         *o;
    err          e        = {0};
    kv_pool_spec spec     = pool_spec(1 << 18);
    int          n_failed = 0;
    CHECK_OK(ops_open(&o, "ref", 1, &e), e);
    for (long n = 1;; n++) {
        kv_pool *p;
        fault_fail_nth(n);
        bool ok = kv_pool_new(&p, o, &spec, &e);
        fault_fail_nth(0);
        kv_pool_free(p);
        if (ok) break;
        n_failed++;
    }
    CHECK(n_failed >= 12);
    ops_close(o);
}
