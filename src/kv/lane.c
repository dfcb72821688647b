/* Lanes of the target: commits and rolls back pages and states together. */
#include "base/mem.h"
#include "kv/inside.h"

#include <assert.h>

static kv_pool *pool_of(const kv_lane *l) { return l->seq->pool; }
static bool     has_states(const kv_lane *l) { return pool_of(l)->group[0].n_states > 0; }

static int32_t state_page(const kv_lane *l, int i, int which)
{
    kv_pool *p = pool_of(l);
    return table_row(&p->cls[state_class(p, i)], l->seq->lane)[which];
}

/* --- creation -----------------------------------------------------------------------------------*/
static bool init_state(kv_pool *p, int i, err *e)
{
    const kv_class      *c    = &p->cls[state_class(p, i)].kv;
    const kv_state_spec *spec = &p->state_spec[i];
    p->state[i]               = (kv_state){.pool         = c->pool,
                                           .table        = c->table,
                                           .table_stride = c->table_stride,
                                           .bytes        = spec->bytes,
                                           .row_bytes    = spec->row_bytes};
    assert(spec->replay || spec->row_bytes == spec->bytes);
    return p->o->alloc(p->o, &p->state[i].kept, (size_t)p->max_kept * spec->row_bytes, e);
}

bool kv_lanes_init(kv_pool *p, const kv_pool_spec *spec, err *e)
{
    p->lanes = mem_try_n((size_t)spec->max_lanes, sizeof *p->lanes);
    if (!p->lanes) return err_set(e, ERR_LIMIT, "no memory for %d lanes", spec->max_lanes);
    if (!p->o->alloc(p->o, &p->moves, KV_MAX_PATH * sizeof(kv_move_item), e)) return false;
    if (spec->n_states == 0) return true;
    p->max_kept   = spec->max_kept_rows;
    p->replay     = mem_try_n((size_t)spec->max_lanes, sizeof *p->replay);
    p->replay_row = mem_try_n((size_t)p->max_kept, sizeof *p->replay_row);
    if (!p->replay || !p->replay_row) return err_set(e, ERR_LIMIT, "no memory for %d kept rows", p->max_kept);
    for (int i = 0; i < spec->n_states; i++) {
        p->state_spec[i] = spec->states[i];
        if (!init_state(p, i, e)) return false;
    }
    return true;
}

void kv_lanes_deinit(kv_pool *p)
{
    for (int i = 0; i < KV_MAX_STATES; i++)
        if (p->state[i].kept.p) p->o->free(p->o, p->state[i].kept);
    if (p->moves.p) p->o->free(p->o, p->moves);
    mem_free(p->replay);
    mem_free(p->replay_row);
    mem_free(p->lanes);
}

kv_lane *kv_lane_new(kv_pool *p)
{
    kv_seq *s = kv_seq_new(p, 0);
    if (!s) return NULL;
    kv_lane *l = &p->lanes[s->lane];
    *l         = (kv_lane){.seq = s};
    return l;
}

/* Removes the pending commit of this lane, if there is one. */
static void drop_replay(kv_lane *l)
{
    kv_pool *p = pool_of(l);
    for (int i = 0; i < p->n_replays; i++)
        if (p->replay[i].lane == l->seq->lane) p->replay[i] = p->replay[--p->n_replays];
}

/* Releases the live or the saved states. */
static void drop_states(kv_lane *l, int which)
{
    kv_pool *p = pool_of(l);
    for (int i = 0; i < p->group[0].n_states; i++)
        if (state_page(l, i, which) != NO_PAGE) kv_seq_release(l->seq, state_class(p, i), which);
    if (which == SAVED_STATE) l->n_saved = 0;
}

/* Releases all pages and states. */
static void empty_lane(kv_lane *l)
{
    drop_replay(l);
    drop_states(l, LIVE_STATE);
    drop_states(l, SAVED_STATE);
    kv_seq_free(l->seq);
    l->seq->live = true; /* its pages are gone; the lane keeps the sequence */
    *l           = (kv_lane){.seq = l->seq};
}

void kv_lane_free(kv_lane *l)
{
    if (!l) return;
    empty_lane(l);
    kv_seq_free(l->seq);
    l->seq = NULL;
}

int     kv_lane_index(const kv_lane *l) { return l->seq->lane; }
kv_seq *kv_lane_pages(kv_lane *l) { return l->seq; }
int32_t kv_lane_len(const kv_lane *l) { return l->len; }
int     kv_lane_kept(const kv_lane *l) { return l->first_kept; }
int32_t kv_lane_saved(const kv_lane *l) { return l->n_saved; }

/* --- room ---------------------------------------------------------------------------------------*/
/* Takes pages for the live or the saved states, in all state classes or in none. */
static bool take_states(kv_lane *l, int which)
{
    kv_pool *p = pool_of(l);
    for (int i = 0; i < p->group[0].n_states; i++) {
        if (state_page(l, i, which) != NO_PAGE) continue;
        int32_t id = kv_page_take(p, state_class(p, i));
        if (id == NO_PAGE) {
            drop_states(l, which);
            return false;
        }
        kv_seq_set_page(l->seq, state_class(p, i), which, id);
    }
    return true;
}

bool kv_lane_grow(kv_lane *l, int n_sure, int n_kept, err *e)
{
    kv_pool *p = pool_of(l);
    assert(n_kept <= KV_MAX_PATH && l->n_sure == 0 && l->n_kept == 0);
    if (has_states(l)) {
        assert(p->n_kept + n_kept <= p->max_kept);
        if (!take_states(l, LIVE_STATE)) return err_set(e, ERR_LIMIT, "the K/V cache has no room for a lane's state");
    }
    if (!kv_seq_grow(l->seq, l->len + n_sure + n_kept, e)) return false;
    l->n_sure     = n_sure;
    l->n_kept     = n_kept;
    l->first_kept = p->n_kept;
    if (has_states(l)) p->n_kept += n_kept;
    return true;
}

/* --- commits of states --------------------------------------------------------------------------*/
static void apply_replays(kv_pool *p)
{
    kv_replay r = {p->replay, p->n_replays, p->replay_row, p->n_replay_rows};
    if (r.n_items == 0) return;
    kv_pool_flush(p, p->q); /* pages may have been moved */
    for (int i = 0; i < p->group[0].n_states; i++)
        if (p->state_spec[i].replay) p->state_spec[i].replay(p->state_spec[i].ctx, &p->state[i], &r);
    p->n_replays = p->n_replay_rows = 0;
}

void kv_step_begin(kv_pool *p)
{
    if (p->group[0].n_states == 0) return;
    apply_replays(p);
    p->n_kept = p->n_replay_rows = 0;
}

/* Copies the whole state after a kept row to the live state. */
static void copy_kept(kv_lane *l, int i, int place)
{
    kv_pool        *p = pool_of(l);
    const kv_state *s = &p->state[i];
    const int       n = (int)(s->bytes / sizeof(float));
    p->o->copy_rows(p->q, dev_at(p->memory, (size_t)state_page(l, i, LIVE_STATE) * KV_UNIT), n,
                    dev_at(s->kept, (size_t)place * s->row_bytes), n, (dev){0}, 1, n);
}

/* Applies kept rows of the lane to its live states, which cover n_pos positions. Classes with `replay` follow at the
 * next kv_step_begin. */
static void add_replay(kv_lane *l, int32_t n_pos, const int *path, int n)
{
    kv_pool *p = pool_of(l);
    if (n == 0) return;
    for (int i = 0; i < p->group[0].n_states; i++)
        if (!p->state_spec[i].replay) copy_kept(l, i, l->first_kept + path[n - 1]);
    p->replay[p->n_replays++] = (kv_replay_item){l->seq->lane, n_pos, p->n_replay_rows, n};
    for (int i = 0; i < n; i++) p->replay_row[p->n_replay_rows++] = l->first_kept + path[i];
}

/* Copies the live states, which cover n_pos positions, to the saved ones. If there is no room, the lane has no saved
 * states. */
static void save_states(kv_lane *l, int32_t n_pos)
{
    kv_pool *p = pool_of(l);
    apply_replays(p);
    l->n_saved = 0;
    if (!take_states(l, SAVED_STATE)) return;
    for (int i = 0; i < p->group[0].n_states; i++)
        kv_page_copy(p, state_class(p, i), state_page(l, i, SAVED_STATE), state_page(l, i, LIVE_STATE));
    l->n_saved = n_pos;
}

static void commit_states(kv_lane *l, const int *path, int n)
{
    int n_before = (l->len + n) / KV_PAGE * KV_PAGE - l->len; /* rows up to the last end of a page */
    if (n_before <= 0 || !pool_of(l)->cache.ctx) {            /* without a prefix tree nothing is saved */
        add_replay(l, l->len, path, n);
        return;
    }
    add_replay(l, l->len, path, n_before);
    save_states(l, l->len + n_before);
    add_replay(l, l->len + n_before, path + n_before, n - n_before);
}

/* --- commits ------------------------------------------------------------------------------------*/
/* Moves the K/V of the committed rows to the slots of their positions. */
static void move_rows(kv_lane *l, const int *path, int n)
{
    kv_pool     *p = pool_of(l);
    kv_move_item move[KV_MAX_PATH];
    int          n_moves = 0, lane = l->seq->lane;
    for (int i = 0; i < n; i++)
        if (path[i] != i) move[n_moves++] = (kv_move_item){lane, l->len + path[i], lane, l->len + i, 0};
    if (n_moves == 0) return;
    kv_pool_flush(p, p->q); /* pages of other lanes may have been moved since the step */
    p->o->upload(p->q, p->moves, move, (size_t)n_moves * sizeof *move);
    for (int i = 0; i < p->group[0].n_classes; i++) p->o->kv_move(p->q, &p->cls[i].kv, p->moves, n_moves, NULL);
}

void kv_lane_commit_sure(kv_lane *l, bool save)
{
    l->len += l->n_sure;
    l->n_sure = 0;
    assert(!save || l->len % KV_PAGE == 0);
    if (save && has_states(l)) save_states(l, l->len);
}

void kv_lane_commit(kv_lane *l, const int *path, int n)
{
    kv_lane_commit_sure(l, false);
    assert(n <= l->n_kept);
    move_rows(l, path, n);
    if (has_states(l)) commit_states(l, path, n);
    l->len += n;
    l->n_kept = 0;
    kv_seq_cut(l->seq, l->len);
}

int32_t kv_lane_rollback(kv_lane *l, bool ran)
{
    if (ran && l->n_sure > 0 && has_states(l)) {
        empty_lane(l);
        return 0;
    }
    l->n_sure = l->n_kept = 0;
    kv_seq_cut(l->seq, l->len);
    return l->len;
}

void kv_lane_settle(kv_lane *l) { kv_seq_settle(l->seq, l->len); }

/* --- checkpoints --------------------------------------------------------------------------------*/
bool kv_lane_take(kv_lane *l, kv_prefix *t, kv_node *at)
{
    assert(l->len == 0);
    kv_prefix_take(t, at, l->seq);
    if (at && has_states(l) && !kv_prefix_take_states(t, at, l->seq)) {
        empty_lane(l);
        return false;
    }
    l->len = kv_seq_len(l->seq);
    return true;
}

void kv_lane_save(kv_lane *l, kv_prefix *t, kv_node *n)
{
    assert(l->n_saved > 0 && kv_node_end(n) == l->n_saved);
    kv_prefix_put_states(t, n, l->seq);
    l->n_saved = 0;
}
