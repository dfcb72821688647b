#include "toy_target.h"

#include "base/mem.h"
#include "kv/inside.h"

enum { PERIOD = 12, HEAD_DIM = 8 };

static uint32_t mix(uint32_t h, uint32_t x)
{
    h = (h ^ x) * 0x9E3779B1u;
    return h ^ h >> 15;
}

/* --- the text, as a plain function ----------------------------------------------------------------*/
static void advance(toy_state *s, int32_t token)
{
    s->hash[0] = mix(s->hash[0] + 1, (uint32_t)token);
    s->hash[1] = mix(s->hash[1] + s->hash[0], (uint32_t)token * 7u);
    for (int i = 0; i + 1 < TOY_WINDOW; i++) s->last[i] = s->last[i + 1];
    s->last[TOY_WINDOW - 1] = token + 1;
}

static uint32_t add_position(uint32_t sum, int32_t pos, int32_t token)
{
    return sum + mix((uint32_t)pos + 1, (uint32_t)token);
}

static uint32_t summary(const toy_state *s, uint32_t sum)
{
    uint32_t h = mix(mix(s->hash[0], s->hash[1]), sum);
    for (int i = 0; i < TOY_WINDOW; i++) h = mix(h, (uint32_t)s->last[i]);
    return h;
}

/* Mostly a song that repeats, so that texts can be foreseen, else one of a few tokens. */
static int32_t likeliest(const toy *y, uint32_t h, int32_t pos)
{
    uint32_t kind = h % 8;
    return kind < 6 ? 20 + pos % PERIOD : (int32_t)(40 + (h >> 8) % (uint32_t)(y->t.n_vocab < 100 ? 8 : 50));
}

int32_t toy_next(const toy *y, const int32_t *text, int32_t n)
{
    toy_state s   = {0};
    uint32_t  sum = 0;
    for (int32_t i = 0; i < n; i++) {
        advance(&s, text[i]);
        sum = add_position(sum, i, text[i]);
    }
    return likeliest(y, summary(&s, sum), n - 1);
}

/* --- the target -----------------------------------------------------------------------------------*/
static void *state_at(const kv_state *s, int lane)
{
    return (char *)s->pool.p + (size_t)((const int32_t *)s->table.p)[lane * s->table_stride] * KV_UNIT;
}

static float *key_at(const kv_class *c, int lane, int32_t slot)
{
    int32_t id = ((const int32_t *)c->table.p)[lane * c->table_stride + slot / KV_PAGE];
    return (float *)((char *)c->pool.p + (size_t)id * KV_UNIT) + (slot % KV_PAGE) * HEAD_DIM;
}

/* The sum over the row's path: positions below root are in the slots of their number, the others in those of its
 * ancestors. */
static uint32_t attend(const kv_pool *kv, const step *s, int row)
{
    const kv_class *c   = kv_pool_class(kv, 0);
    uint32_t        sum = 0;
    int             r = row, lane = s->lane[row];
    for (; r >= 0 && s->pos[r] >= s->root[row]; r = s->parent[r])
        sum = add_position(sum, s->pos[r], (int32_t)key_at(c, lane, s->slot[r])[0]);
    for (int32_t p = 0; p < s->root[row] && p <= s->pos[row]; p++)
        sum = add_position(sum, p, (int32_t)key_at(c, lane, p)[0]);
    return sum;
}

static toy_state live_state(const kv_pool *kv, int lane, int32_t pos)
{
    toy_state s = {0};
    if (pos == 0) return s;
    memcpy(s.hash, state_at(kv_pool_state(kv, 0), lane), sizeof s.hash);
    memcpy(s.last, state_at(kv_pool_state(kv, 1), lane), sizeof s.last);
    return s;
}

static void set_live(const kv_pool *kv, int lane, const toy_state *s)
{
    memcpy(state_at(kv_pool_state(kv, 0), lane), s->hash, sizeof s->hash);
    memcpy(state_at(kv_pool_state(kv, 1), lane), s->last, sizeof s->last);
}

static toy_state before_row(const toy *y, const kv_pool *kv, const step *s, int row)
{
    if (s->parent[row] >= 0) return y->row[s->parent[row]];
    if (row > 0 && s->lane[row - 1] == s->lane[row]) return y->row[row - 1];
    return live_state(kv, s->lane[row], s->pos[row]);
}

static int kept_place(const step *s, int row)
{
    for (int i = 0; i < s->n_kept; i++)
        if (row >= s->kept[i].first && row < s->kept[i].first + s->kept[i].n)
            return s->kept[i].at + row - s->kept[i].first;
    return -1;
}

static void keep_row(const toy *y, const kv_pool *kv, const step *s, int row, const toy_state *before)
{
    const kv_state  *input = kv_pool_state(kv, 0), *whole = kv_pool_state(kv, 1);
    int              place = kept_place(s, row);
    const toy_state *after = &y->row[row];
    if (place < 0 || y->mistake == TOY_CHANGES_LIVE) set_live(kv, s->lane[row], after);
    if (place < 0) return;
    ((int32_t *)input->kept.p)[place] = s->token[row];
    memcpy((char *)whole->kept.p + (size_t)place * whole->row_bytes,
           (y->mistake == TOY_KEEPS_PARENT ? before : after)->last, sizeof after->last);
}

static bool toy_step(target *t, kv_pool *kv, const step *s, err *e)
{
    toy *y    = (toy *)t;
    int  want = 0;
    (void)e;
    kv_pool_flush(kv, t->q);
    for (int i = 0; i < s->n_rows; i++) key_at(kv_pool_class(kv, 0), s->lane[i], s->slot[i])[0] = (float)s->token[i];
    for (int i = 0; i < s->n_rows; i++) {
        toy_state before = before_row(y, kv, s, i);
        y->row[i]        = before;
        advance(&y->row[i], s->token[i]);
        keep_row(y, kv, s, i, &before);
        if (want == s->n_want || s->want[want] != i) continue;
        uint32_t *h = (uint32_t *)t->hidden.p + (size_t)want++ * 2;
        h[0]        = summary(&y->row[i], attend(kv, s, i));
        h[1]        = (uint32_t)s->pos[i];
    }
    y->n_rows += s->n_rows;
    return true;
}

static void toy_head(target *t, int first, int n)
{
    for (int i = 0; i < n; i++) {
        const uint32_t *h = (const uint32_t *)t->hidden.p + (size_t)(first + i) * 2;
        float          *x = (float *)t->logits.p + (size_t)i * (size_t)t->n_vocab;
        for (int v = 0; v < t->n_vocab; v++) x[v] = (float)(mix(h[0], (uint32_t)v) >> 8) * 0x1p-24f;
        for (int v = 0; v < t->n_vocab && ((toy *)t)->favour; v++) x[v] += ((toy *)t)->favour[v];
        x[likeliest((toy *)t, h[0], (int32_t)h[1])] += 6;
    }
}

/* Rows of the inputs: the token. */
static void toy_replay(void *ctx, const kv_state *s, const kv_replay *r)
{
    toy           *y     = ctx;
    const int32_t *token = s->kept.p;
    for (int i = 0; i < r->n_items; i++) {
        const kv_replay_item *it    = &r->item[i];
        uint32_t             *live  = state_at(s, it->lane);
        toy_state             state = {0};
        if (it->pos) memcpy(state.hash, live, sizeof state.hash);
        for (int k = 0; k < it->n; k++) {
            bool last = k + 1 == it->n;
            if (last && y->mistake == TOY_SKIPS_LAST_ROW) break;
            advance(&state, token[r->row[it->first + k] + (last && y->mistake == TOY_REPLAYS_NEXT_ROW)]);
        }
        memcpy(live, state.hash, sizeof state.hash);
        y->n_replays += it->n;
    }
}

toy *toy_target_open(test_case *t, const char *device, int n_vocab, int max_rows, int max_kept_rows)
{
    toy         *y   = xnew(toy);
    err          e   = {0};
    queue_limits lim = {.max_rows = STEP_DEFAULT_ROWS, .max_in = HEAD_DIM, .max_vocab = n_vocab};
    y->t             = (target){.n_layers     = 1,
                                .n_embd       = 2,
                                .n_vocab      = n_vocab,
                                .n_ctx        = 4096,
                                .max_rows     = max_rows,
                                .n_kv_classes = 1,
                                .n_states     = 2,
                                .step         = toy_step,
                                .head         = toy_head};
    y->t.kv_class[0] =
        (kv_class_spec){.n_layers = 1, .n_kv_heads = 1, .head_dim = HEAD_DIM, .types = {CACHE_F32, CACHE_F32}};
    y->t.state[0]      = (kv_state_spec){sizeof y->row[0].hash, sizeof(int32_t), toy_replay, y};
    y->t.state[1]      = (kv_state_spec){sizeof y->row[0].last, sizeof y->row[0].last, NULL, NULL};
    y->t.max_kept_rows = max_kept_rows;
    if (!CHECK_OK(ops_open(&y->o, device, 1, &e), e)) return NULL;
    y->t.o = y->o;
    CHECK_OK(y->o->queue_new(y->o, &y->t.q, &lim, &e), e);
    CHECK_OK(y->o->alloc(y->o, &y->t.hidden, (size_t)STEP_DEFAULT_ROWS * 2 * sizeof(uint32_t), &e), e);
    CHECK_OK(y->o->alloc(y->o, &y->t.logits, (size_t)HEAD_ROWS * (size_t)n_vocab * sizeof(float), &e), e);
    return y;
}

void toy_target_close(toy *y)
{
    if (!y) return;
    y->o->free(y->o, y->t.hidden);
    y->o->free(y->o, y->t.logits);
    y->o->queue_free(y->t.q);
    ops_close(y->o);
    mem_free(y);
}

/* --- drafters -------------------------------------------------------------------------------------*/
typedef struct {
    drafter d; /* first */
    toy    *y;
} toy_drafter;

struct draft_lane {
    int32_t n_seen;
};

static bool lane_new(drafter *d, draft_lane **out, err *e)
{
    (void)d, (void)e;
    *out = xnew(draft_lane);
    return true;
}

static void lane_free(drafter *d, draft_lane *l)
{
    (void)d;
    mem_free(l);
}

static void cut_lane(drafter *d, draft_lane *l, int32_t n_pos)
{
    (void)d;
    l->n_seen = min_int(l->n_seen, n_pos);
}

static bool observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    (void)d;
    if (r->pos > l->n_seen && l->n_seen > 0)
        return err_set(e, ERR_INPUT, "rows %d .. %d are missing", l->n_seen, r->pos);
    l->n_seen = r->pos + r->n;
    return true;
}

/* Candidates of one position: the right token at some rank, or not at all. */
static void fill_position(const toy *y, draft_job *job, int i, int32_t right, uint32_t h)
{
    int n_top = job->n_top > 0 ? job->n_top : 1, rank = h % 4 ? 0 : (int)(h >> 4) % 3;
    for (int k = 0; k < n_top; k++) {
        int32_t id     = k == rank ? right : (right + 1 + k) % y->t.n_vocab;
        job->top[i][k] = (token_logprob){id, -0.7f * (float)(k + 1)};
    }
    job->token[i] = rank == 0 ? right : (right + 1) % y->t.n_vocab;
}

static bool draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    const toy     *y = ((toy_drafter *)d)->y;
    static int32_t text[8192];
    (void)kv, (void)e;
    for (int j = 0; j < n_jobs; j++) {
        draft_job *job = jobs[j];
        memcpy(text, job->text, (size_t)job->n_text * sizeof *text);
        job->n     = min_int(job->n_want, d->max_draft);
        job->later = false;
        for (int i = 0; i < job->n; i++) {
            int32_t n = job->n_text + i, right = toy_next(y, text, n);
            fill_position(y, job, i, right, mix(mix((uint32_t)n, (uint32_t)right), d->one_pass));
            text[n] = right;
        }
    }
    return true;
}

static void close_drafter(drafter *d) { mem_free(d); }

void toy_add_drafter(spec *s, toy *y, spec_method m)
{
    toy_drafter *d     = xnew(toy_drafter);
    bool         chain = m == SPEC_MTP;
    d->y               = y;
    d->d               = (drafter){.kind      = chain ? DRAFTER_MTP : DRAFTER_DFLASH,
                                   .t         = &y->t,
                                   .max_draft = chain ? 7 : 15,
                                   .one_pass  = !chain,
                                   .lane_new  = lane_new,
                                   .lane_free = lane_free,
                                   .cut       = cut_lane,
                                   .observe   = observe,
                                   .draft     = draft,
                                   .close     = close_drafter};
    s->slots[spec_method_drafter(m)] =
        (draft_slot){.src.name = "toy", .given = true, .d = &d->d, .max_draft = d->d.max_draft};
}
