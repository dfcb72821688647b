#include "bench/oracle.h"

#include "base/mem.h"
#include "bench/inside.h"
#include "ops/sampling_math.h"

#include <math.h>

typedef struct {
    int32_t *token;
    int32_t  n;
} known_text;

struct oracle {
    uint64_t    seed;
    double      tokens;
    int         longest; /* longest draft of the drafters */
    known_text *texts;
    size_t      n_texts;
};

enum { LEVELS = 16 };
typedef struct {
    drafter  d; /* first: a drafter * is a veiled * */
    drafter *real;
    oracle  *o;
    double   made_for;         /* the oracle's `tokens` when the next two were computed; 0: never */
    double   chance;           /* a draft token is right */
    double   share[2][LEVELS]; /* share[right][i]: the share of level i */
} veiled;

oracle *oracle_new(uint64_t seed)
{
    oracle *o = xnew(oracle);
    o->seed   = seed;
    o->tokens = 1;
    return o;
}

void oracle_free(oracle *o)
{
    if (!o) return;
    for (size_t i = 0; i < o->n_texts; i++) mem_free(o->texts[i].token);
    mem_free(o->texts);
    mem_free(o);
}

/* Returns the known text that begins with these tokens. */
static known_text *find_known_text(const oracle *o, const int32_t *token, size_t n)
{
    for (size_t i = 0; i < o->n_texts; i++) {
        known_text *t = &o->texts[i];
        if ((size_t)t->n >= n && memcmp(t->token, token, n * sizeof *token) == 0) return t;
    }
    return NULL;
}

void oracle_learn(oracle *o, const int32_t *text, size_t n)
{
    if (find_known_text(o, text, n)) return;
    known_text *more = xnew_n(known_text, o->n_texts + 1);
    for (size_t i = 0; i < o->n_texts; i++) more[i] = o->texts[i];
    more[o->n_texts] = (known_text){xnew_n(int32_t, n), (int32_t)n};
    memcpy(more[o->n_texts++].token, text, n * sizeof *text);
    mem_free(o->texts);
    o->texts = more;
}

bool oracle_accept(oracle *o, double tokens, err *e)
{
    o->tokens = tokens;
    return tokens <= 1 + o->longest ||
           err_set(e, ERR_INPUT, "a round cannot commit %g tokens: the longest draft has %d", tokens, o->longest);
}

double oracle_chance(double tokens, int n)
{
    double low = 0, high = 1;
    for (int i = 0; i < 60; i++) {
        double p = (low + high) / 2, sum = 1;
        for (int k = 1; k <= n; k++) sum += pow(p, k);
        *(sum < tokens ? &low : &high) = p;
    }
    return (low + high) / 2;
}

/* --- draft tokens ------------------------------------------------------------------------------------- */
static bool is_right(const veiled *v, const known_text *t, int32_t pos, double chance)
{
    uint64_t bits = sampling_position_key(v->o->seed + (uint64_t)(t - v->o->texts), pos);
    return (double)(bits >> 11) * 0x1p-53 < chance;
}

/* Sets out to the distribution of the level of right or wrong tokens. It is a Beta distribution in steps, whose mean
 * over all tokens is the chance; the levels separate right from wrong tokens with an AUC of 0.87. */
static void level_shares(double chance, bool right, double out[LEVELS])
{
    double sum = 0;
    for (int i = 0; i < LEVELS; i++) {
        double c      = (i + 0.5) / LEVELS;
        sum += out[i] = pow(c, chance - !right) * pow(1 - c, 1 - chance - right);
    }
    for (int i = 0; i < LEVELS; i++) out[i] /= sum;
}

/* Draws the level of a token. Its confidence is the share of tokens of this level that are right. */
static float draw_confidence(const veiled *v, const known_text *t, int32_t pos, bool right)
{
    uint64_t bits = sampling_position_key(~v->o->seed + (uint64_t)(t - v->o->texts), pos);
    double   at   = (double)(bits >> 11) * 0x1p-53;
    int      i    = 0;
    for (; i < LEVELS - 1 && at >= v->share[right][i]; i++) at -= v->share[right][i];
    double right_share = v->chance * v->share[1][i], wrong_share = (1 - v->chance) * v->share[0][i];
    return (float)(right_share / (right_share + wrong_share));
}

/* The powers that this needs are too slow for every draft of many lanes. */
static void choose_chance(veiled *v)
{
    if (v->made_for == v->o->tokens) return;
    v->made_for = v->o->tokens;
    v->chance   = oracle_chance(v->o->tokens, v->d.max_draft);
    level_shares(v->chance, false, v->share[0]);
    level_shares(v->chance, true, v->share[1]);
}

static void put_candidates(const veiled *v, draft_job *j, int i, int32_t truth)
{
    float rest = 1 - j->confidence[i];
    for (int k = 1; k < j->n_top; k++) {
        j->top[i][k].id      = (truth + 1 + k) % v->d.t->n_vocab;
        j->top[i][k].logprob = logf(rest /= 2);
    }
    if (!j->n_top) return;
    j->top[i][0].id      = j->token[i];
    j->top[i][0].logprob = logf(j->confidence[i]);
}

static void change_draft_tokens(veiled *v, draft_job *j)
{
    const known_text *t = find_known_text(v->o, j->text, (size_t)j->n_text);
    int               n = 0;
    choose_chance(v);
    for (; t && n < j->n && j->n_text + n < t->n; n++) {
        int32_t pos = j->n_text + n, truth = t->token[pos];
        bool    right    = is_right(v, t, pos, v->chance);
        j->token[n]      = right ? truth : (truth + 1) % v->d.t->n_vocab;
        j->confidence[n] = draw_confidence(v, t, pos, right);
        put_candidates(v, j, n, truth);
    }
    if (j->later && n) v->d.t->o->upload(v->d.t->q, j->device_tokens, j->token, (size_t)n * sizeof *j->token);
}

static bool veiled_draft(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    veiled *v = (veiled *)d;
    if (!v->real->draft(v->real, kv, jobs, n_jobs, e)) return false;
    for (int i = 0; i < n_jobs; i++) change_draft_tokens(v, jobs[i]);
    return true;
}

/* --- the rest is the drafter's own ----------------------------------------------------------------*/
static drafter *real_drafter(const drafter *d) { return ((const veiled *)d)->real; }

static bool veiled_lane_new(drafter *d, draft_lane **out, err *e)
{
    return real_drafter(d)->lane_new(real_drafter(d), out, e);
}
static void veiled_lane_free(drafter *d, draft_lane *l) { real_drafter(d)->lane_free(real_drafter(d), l); }
static void veiled_cut(drafter *d, draft_lane *l, int32_t n_pos) { real_drafter(d)->cut(real_drafter(d), l, n_pos); }
static void veiled_begin(drafter *d, draft_lane *l, const draft_text *t)
{
    real_drafter(d)->begin(real_drafter(d), l, t);
}
static void veiled_wish(const drafter *d, const draft_lane *l, kv_wish *out)
{
    real_drafter(d)->wish(real_drafter(d), l, out);
}
static void veiled_take(drafter *d, draft_lane *l, kv_node *at) { real_drafter(d)->take(real_drafter(d), l, at); }
static void veiled_end(drafter *d, draft_lane *l) { real_drafter(d)->end(real_drafter(d), l); }
static void veiled_need(const drafter *d, kv_need *n, int32_t n_pos)
{
    real_drafter(d)->need(real_drafter(d), n, n_pos);
}
static bool veiled_set_pool(drafter *d, kv_pool *p, err *e) { return real_drafter(d)->set_pool(real_drafter(d), p, e); }
static bool veiled_observe(drafter *d, draft_lane *l, const draft_rows *r, err *e)
{
    return real_drafter(d)->observe(real_drafter(d), l, r, e);
}

static void veiled_warm(drafter *d, kv_pool *kv) { real_drafter(d)->warm(real_drafter(d), kv); }

static void veiled_close(drafter *d)
{
    drafter_close(real_drafter(d));
    mem_free(d);
}

drafter *oracle_wrap(void *ctx, drafter *d)
{
    veiled *v      = xnew(veiled);
    v->d           = *d;
    v->real        = d;
    v->o           = ctx;
    v->o->longest  = d->max_draft > v->o->longest ? d->max_draft : v->o->longest;
    v->d.lane_new  = veiled_lane_new;
    v->d.lane_free = veiled_lane_free;
    v->d.cut       = veiled_cut;
    v->d.observe   = veiled_observe;
    v->d.draft     = veiled_draft;
    if (d->warm) v->d.warm = veiled_warm;
    if (d->set_pool) v->d.set_pool = veiled_set_pool;
    v->d.close = veiled_close;
    if (!d->begin) return &v->d;
    v->d.begin = veiled_begin;
    v->d.wish  = veiled_wish;
    v->d.take  = veiled_take;
    v->d.end   = veiled_end;
    v->d.need  = veiled_need;
    return &v->d;
}
