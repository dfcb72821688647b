#include "bench/cells.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "ops/profile.h"
#include "ops/sampling_math.h"

#include <assert.h>
#include <stdio.h>

enum {
    SPREAD       = 61, /* offsets in the noise where a chunk of K/V may start */
    WARM_UP_ROWS = 32, /* rows of a warm-up prefill */
};

const char *const cell_kinds[] = {"rows", "chain", "tree", "prefill"};

struct cell_rig {
    target     *m;
    const ops  *profiled;
    kv_pool    *kv;
    kv_lane    *lane[CELL_MAX_ROWS];
    int         want[CELL_MAX_ROWS]; /* reserved slots of each lane */
    int         have[CELL_MAX_ROWS];
    step        s;
    dev         picked, rows, noise;
    token_logit best[HEAD_ROWS]; /* the best tokens of a step */
    int32_t     id[HEAD_ROWS];
    uint64_t    n_steps; /* selects the tokens */
    bool        cpu_time;
};

/* --- cells ----------------------------------------------------------------------------------------*/
static str next_word(str *line)
{
    size_t from = 0, to;
    while (from < line->n && line->s[from] == ' ') from++;
    for (to = from; to < line->n && line->s[to] != ' ';) to++;
    str word = {line->s + from, to - from};
    *line    = (str){line->s + to, line->n - to};
    return word;
}

static bool next_number(str *line, int min, int max, int *out, const char *what, err *e)
{
    int64_t n;
    str     word = next_word(line);
    if (!str_to_i64(word, &n) || n < min || n > max)
        return err_set(e, ERR_INPUT, "'%.*s' is not a number of %s from %d to %d", STR_ARG(word), what, min, max);
    *out = (int)n;
    return true;
}

bool cell_parse(cell *out, str line, err *e)
{
    str  kind  = next_word(&line);
    cell c     = {.steps = 1};
    bool known = false;
    for (int k = CELL_ROWS; !known && k <= CELL_PREFILL; k++) {
        known  = str_is(kind, cell_kinds[k]);
        c.kind = (cell_kind)k;
    }
    bool prefill = c.kind == CELL_PREFILL;
    if (!known) return err_set(e, ERR_INPUT, "'%.*s' is none of rows, chain, tree, prefill", STR_ARG(kind));
    if (!next_number(&line, 1, prefill ? CELL_MAX_CONTEXT : CELL_MAX_ROWS, &c.rows, prefill ? "tokens" : "rows", e))
        return false;
    if ((!prefill || next_word(&(str){line.s, line.n}).n) &&
        !next_number(&line, 0, CELL_MAX_CONTEXT, &c.context, "positions", e))
        return false;
    if (!prefill && !next_number(&line, 1, CELL_MAX_STEPS, &c.steps, "steps", e)) return false;
    str rest = next_word(&line);
    if (rest.n) return err_set(e, ERR_INPUT, "unexpected word '%.*s'", STR_ARG(rest));
    *out = c;
    return true;
}

double cell_rate(const cell *c, double ms) { return c->rows / (ms * 1e-3); }

static int lanes_of(const cell *c) { return c->kind == CELL_ROWS ? c->rows : 1; }
/* Rows of a lane in one step. */
static int lane_rows(const cell *c) { return c->kind == CELL_ROWS ? 1 : c->rows; }
/* With recurrent layers each step, and the two before the first that is timed, leave one more position. */
static int slots_of(const cell_rig *g, const cell *c)
{
    bool advances = g->m->n_states > 0 && c->kind != CELL_PREFILL;
    return c->context + lane_rows(c) + (advances ? c->steps + 2 : 0);
}

/* --- pages ----------------------------------------------------------------------------------------*/
static size_t widest_row(const cell_rig *g)
{
    size_t n = 0;
    for (int i = 0; i < g->m->n_kv_classes; i++) {
        size_t w = (size_t)g->m->kv_class[i].n_kv_heads * (size_t)g->m->kv_class[i].head_dim;
        if (w > n) n = w;
    }
    return n;
}

/* Fills K/V with noise of mean square 1, because norms give keys and values that size. */
static void make_noise(cell_rig *g)
{
    target *m    = g->m;
    size_t  n    = (STEP_DEFAULT_ROWS + SPREAD) * widest_row(g);
    float  *host = xnew_n(float, n);
    for (size_t i = 0; i < n; i++) host[i] = 1.7320508f * ((float)(sampling_mix(i + 1) >> 40) * 0x1p-23f - 1);
    m->o->upload(m->q, g->noise, host, n * sizeof *host);
    m->o->sync(m->q);
    mem_free(host);
}

bool cell_rig_new(cell_rig **out, target *m, const kv_types *kv, const ops *profiled, err *e)
{
    cell_rig  *g = xnew(cell_rig);
    const ops *o = m->o;
    g->m         = m;
    g->profiled  = profiled;
    target_set_kv(m, kv);
    *out = g;
    if (!o->alloc(o, &g->picked, CELL_MAX_ROWS * sizeof(int32_t), e) ||
        !o->alloc(o, &g->rows, 2 * STEP_DEFAULT_ROWS * sizeof(int32_t), e) ||
        !o->alloc(o, &g->noise, (STEP_DEFAULT_ROWS + SPREAD) * widest_row(g) * sizeof(float), e))
        return false;
    make_noise(g);
    step_init(&g->s, m->max_rows);
    return true;
}

static void drop_pages(cell_rig *g)
{
    for (int i = 0; i < CELL_MAX_ROWS; i++) {
        kv_lane_free(g->lane[i]);
        g->lane[i] = NULL;
        g->have[i] = 0;
    }
    kv_pool_free(g->kv);
    g->kv = NULL;
}

void cell_rig_free(cell_rig *g)
{
    if (!g) return;
    const ops *o   = g->m->o;
    dev        d[] = {g->picked, g->rows, g->noise};
    drop_pages(g);
    for (size_t i = 0; i < COUNT(d); i++)
        if (d[i].p) o->free(o, d[i]);
    step_deinit(&g->s);
    mem_free(g);
}

/* Sets *out to the pool for lanes of these lengths. Returns false on overflow. */
static bool pool_spec(const cell_rig *g, const int *slots, kv_pool_spec *out)
{
    const target *m = g->m;
    size_t        kept;
    *out = (kv_pool_spec){.classes   = m->kv_class,
                          .n_classes = m->n_kv_classes,
                          .states    = m->state,
                          .n_states  = m->n_states,
                          .max_lanes = CELL_MAX_ROWS,
                          .q         = m->q};
    for (int i = 0; i < CELL_MAX_ROWS; i++) {
        size_t bytes = 0;
        if (slots[i] && !kv_bytes_for(out, slots[i], &bytes)) return false;
        if (!size_add(&out->max_bytes, out->max_bytes, bytes)) return false;
        if (slots[i] > out->max_slots) out->max_slots = slots[i];
    }
    out->max_kept_rows = CELL_MAX_ROWS; /* all lanes together */
    return kv_kept_bytes(out, &kept) && size_add(&out->max_bytes, out->max_bytes, kept);
}

bool cell_reserve(cell_rig *g, const cell *c, size_t free_bytes, err *e)
{
    int          want[CELL_MAX_ROWS];
    kv_pool_spec spec;
    if (slots_of(g, c) > g->m->n_ctx)
        return err_set(e, ERR_INPUT, "%d positions are over the model's limit of %d", slots_of(g, c), g->m->n_ctx);
    memcpy(want, g->want, sizeof want);
    for (int i = 0; i < lanes_of(c); i++)
        if (slots_of(g, c) > want[i]) want[i] = slots_of(g, c);
    if (!pool_spec(g, want, &spec)) return err_set(e, ERR_LIMIT, "the context is too large");
    size_t pool_bytes = g->kv ? kv_pool_bytes(g->kv) : 0;
    if (spec.max_bytes > free_bytes + pool_bytes)
        return err_set(e, ERR_UNAVAILABLE, "the K/V needs %.1f GB of memory, and %.1f GB are free",
                       (double)spec.max_bytes / 1e9, (double)(free_bytes + pool_bytes) / 1e9);
    memcpy(g->want, want, sizeof want);
    return true;
}

/* Fills slots from .. from + n - 1 of a lane, in every layer. */
static void fill_chunk(cell_rig *g, int lane, int from, int n)
{
    const ops *o = g->m->o;
    queue     *q = g->m->q;
    int32_t    host[2 * STEP_DEFAULT_ROWS];
    for (int i = 0; i < n; i++) {
        host[i]                     = from + i;
        host[STEP_DEFAULT_ROWS + i] = lane;
    }
    o->upload(q, g->rows, host, sizeof host);
    dev       lanes = dev_at(g->rows, STEP_DEFAULT_ROWS * sizeof(int32_t));
    step_rows rows  = {.n_rows = n, .lane = lanes, .pos = g->rows, .slot = g->rows};
    for (int c = 0; c < g->m->n_kv_classes; c++) {
        const kv_class *k     = kv_pool_class(g->kv, c);
        size_t          width = (size_t)k->n_kv_heads * (size_t)k->head_dim;
        for (int l = 0; l < k->n_layers; l++) {
            uint64_t at = sampling_mix((uint64_t)from << 16 ^ (uint64_t)l << 8 ^ (uint64_t)lane);
            o->kv_store(q, k, l, &rows, dev_at_f32(g->noise, at % SPREAD * width),
                        dev_at_f32(g->noise, (at >> 32) % SPREAD * width));
        }
    }
    o->sync(q); /* host is used again */
}

/* Makes the lane empty, then n positions long, and fills them. The pool has several classes of pages: pages that a lane
 * gets again may have held those of another class. */
static bool set_length(cell_rig *g, int lane, int n, err *e)
{
    kv_lane_free(g->lane[lane]);
    g->lane[lane] = kv_lane_new(g->kv);
    if (!kv_lane_grow(g->lane[lane], n, 0, e)) return false;
    kv_pool_flush(g->kv, g->m->q);
    for (int from = 0; from < n; from += STEP_DEFAULT_ROWS)
        fill_chunk(g, kv_lane_index(g->lane[lane]), from, min_int(n - from, STEP_DEFAULT_ROWS));
    kv_lane_commit(g->lane[lane], NULL, 0);
    return true;
}

static bool make_pages(cell_rig *g, err *e)
{
    kv_pool_spec spec;
    bool         ok = pool_spec(g, g->want, &spec);
    assert(ok); /* cell_reserve has checked it */
    drop_pages(g);
    if (!kv_pool_new(&g->kv, g->m->o, &spec, e)) return false;
    memcpy(g->have, g->want, sizeof g->have);
    return true;
}

/* --- steps ----------------------------------------------------------------------------------------*/
/* Returns the token of the next row that is added. */
static int32_t next_token(const cell_rig *g)
{
    uint64_t r = sampling_mix(g->n_steps << 10 | (uint64_t)g->s.n_rows);
    return (int32_t)(r % (uint64_t)g->m->n_vocab);
}

static void add_row(cell_rig *g, int lane, int pos, bool want)
{
    step_add(&g->s, kv_lane_index(g->lane[lane]), pos, next_token(g), want);
}

static void add_tree(cell_rig *g, int n)
{
    int half = (n + 1) / 2, lane = kv_lane_index(g->lane[0]), root = kv_lane_len(g->lane[0]);
    for (int i = 0; i < n; i++) step_add_tree(&g->s, lane, root, i, i < half ? i - 1 : i - half, next_token(g), true);
}

/* Reads the best token of each row, as greedy decoding does. */
static void pick_rows(cell_rig *g, int first, int n)
{
    target *m = g->m;
    if (m->head_top) {
        m->head_top(m, first, n, 1);
        m->o->download(m->q, g->best, m->best, (size_t)n * sizeof *g->best);
    } else {
        m->head(m, first, n);
        m->o->argmax(m->q, g->picked, m->logits, n, m->n_vocab);
        m->o->download(m->q, g->id, g->picked, (size_t)n * sizeof *g->id);
    }
}

static bool run_step(cell_rig *g, err *e)
{
    target *m = g->m;
    if (!m->step(m, g->kv, &g->s, e)) return false;
    for (int first = 0; first < g->s.n_want; first += HEAD_ROWS)
        pick_rows(g, first, g->s.n_want - first < HEAD_ROWS ? g->s.n_want - first : HEAD_ROWS);
    m->o->sync(m->q);
    g->n_steps++;
    return m->o->check(m->q, e);
}

/* Sets the lanes of the cell to its context. */
static bool place_lanes(cell_rig *g, const cell *c, err *e)
{
    for (int i = 0; i < lanes_of(c); i++)
        if ((!g->lane[i] || kv_lane_len(g->lane[i]) != c->context) && !set_length(g, i, c->context, e)) return false;
    return g->m->o->check(g->m->q, e);
}

/* Adds rows that a commit may reject, as in decoding. */
static bool add_kept(cell_rig *g, const cell *c, int lane, err *e)
{
    kv_lane *l = g->lane[lane];
    int      n = lane_rows(c), pos = kv_lane_len(l);
    if (!kv_lane_grow(l, 0, n, e)) return false;
    if (c->kind == CELL_TREE) add_tree(g, n);
    for (int i = 0; c->kind != CELL_TREE && i < n; i++) add_row(g, lane, pos + i, true);
    if (g->m->n_states) step_keep(&g->s, n, kv_lane_kept(l));
    return true;
}

/* Recurrent layers cannot go back, so each lane of such a model keeps its first row. */
static bool run_rows(cell_rig *g, const cell *c, err *e)
{
    static const int first = 0;
    step_clear(&g->s);
    kv_step_begin(g->kv);
    for (int i = 0; i < lanes_of(c); i++)
        if (!add_kept(g, c, i, e)) return false;
    if (!run_step(g, e)) return false;
    for (int i = 0; i < lanes_of(c); i++) kv_lane_commit(g->lane[i], &first, g->m->n_states ? 1 : 0);
    return true;
}

static bool run_prefill(cell_rig *g, const cell *c, int n_tokens, err *e)
{
    for (int from = 0; from < n_tokens; from += g->s.n_rows) {
        int n = n_tokens - from < g->m->max_rows ? n_tokens - from : g->m->max_rows;
        step_clear(&g->s);
        kv_step_begin(g->kv);
        if (!kv_lane_grow(g->lane[0], n, 0, e)) return false;
        for (int i = from; i < from + n; i++) add_row(g, 0, c->context + i, i == n_tokens - 1);
        if (!run_step(g, e)) return false;
        kv_lane_commit(g->lane[0], NULL, 0);
    }
    return true;
}

/* Runs the cell once, or a part of a prefill, from its context on. */
static bool warm_up(cell_rig *g, const cell *c, err *e)
{
    if (!place_lanes(g, c, e)) return false;
    if (c->kind != CELL_PREFILL) return run_rows(g, c, e);
    return run_prefill(g, c, c->rows < WARM_UP_ROWS ? c->rows : WARM_UP_ROWS, e);
}

static bool count_experts(cell_rig *g, const cell *c, experts_touched *out, err *e)
{
    experts_count_begin();
    bool ok = warm_up(g, c, e);
    *out    = experts_count_end();
    return ok;
}

void cell_rig_use_cpu_time(cell_rig *g) { g->cpu_time = true; }

static double now_s(const cell_rig *g)
{
    struct timespec t;
    if (!g->cpu_time) return clock_s();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool cell_run(cell_rig *g, const cell *c, double *ms, experts_touched *experts, err *e)
{
    bool there = true;
    for (int i = 0; i < lanes_of(c); i++) there = there && g->have[i] >= slots_of(g, c);
    if (!there && !make_pages(g, e)) return false;
    if (experts && !count_experts(g, c, experts, e)) return false;
    if (!warm_up(g, c, e) || !place_lanes(g, c, e)) return false;
    if (g->profiled) ops_profile_clear(g->profiled);
    double start = now_s(g);
    if (c->kind == CELL_PREFILL) {
        if (!run_prefill(g, c, c->rows, e)) return false;
    } else {
        for (int k = 0; k < c->steps; k++)
            if (!run_rows(g, c, e)) return false;
    }
    *ms = 1e3 * (now_s(g) - start) / c->steps;
    return true;
}
