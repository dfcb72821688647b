/* The loop against an oracle that shares only the target's logits with it: it runs one row at a time, and applies biases,
 * penalties, grammar and sampling by their definitions. Comparing the loop's methods with each other cannot find a fault
 * that all of them have. */
#include "grammar/rig.h"
#include "ops/sampling.h"
#include "spec_rig.h"

enum { N_PROMPT = RIG_PROMPT, MAX_OUT = 64, CTX = 256, LANES = RIG_LANES };

/* What a request asks for; the answer is a function of it. */
typedef struct {
    const char    *name;
    sample_params  params;
    penalty_params penalty;
    int            n_top;
    const char    *grammar; /* GBNF; NULL: none */
    int            n_want;
} wish;

typedef struct {
    int           n;
    int32_t       token[MAX_OUT];
    bool          closing[MAX_OUT];
    token_logprob shown[MAX_OUT][1 + SPEC_MAX_TOP];
} answer;

typedef struct {
    spec_rig      r;
    target       *m; /* the rig's */
    guide_markers markers;
    kv_pool      *kv; /* the oracle's */
    kv_seq       *seq;
    step          st;
    float        *logits;
    token_logprob ranked[SPEC_MAX_TOP];
    guide        *watch; /* of the lane whose guesses are looked at; NULL: of none */
    test_case    *t;
    int           n_rounds, most_guesses; /* rounds that were looked at; guesses of one of them */
    int           n_want;                 /* tokens of the lane's answer */
    int           n_ends;                 /* chains that ended before their plan did, for want of words */
} court;

/* A chain that ends before its plan does ends where the grammar has nothing to say, if it had anything at the anchor. */
static void check_chain_end(test_case *t, court *c, const spec_round *r, const grammar_state *at)
{
    int32_t id[DRAFT_MAX];
    int     left = c->n_want - (r->n_text - N_PROMPT);
    for (int i = 0; i < r->n; i++)
        if (r->parent[i] != i) return;
    if (r->n >= r->n_want || guide_draft(c->watch, at[0], left, id, DRAFT_MAX) == 0) return;
    CHECK_INT(guide_draft(c->watch, at[r->n], left - r->n, id, r->n_want - r->n), 0);
    c->n_ends++;
}

/* No guess is one that the grammar does not allow after the guesses on its path, and none is more than was planned. */
static void look_at_round(void *ctx, const spec_round *r)
{
    court        *c = ctx;
    test_case    *t = c->t;
    grammar_state at[1 + DRAFT_MAX];
    if (!c->watch) return;
    at[0] = guide_begin(c->watch, &(guide_begins){0});
    for (int i = N_PROMPT; i < r->n_text; i++) {
        grammar_state next = guide_take(c->watch, at[0], r->text[i]);
        guide_drop(c->watch, at[0]);
        at[0] = next;
    }
    CHECK_INT(r->n <= r->n_want, true);
    for (int i = 0; i < r->n; i++) {
        CHECK(r->parent[i] >= 0 && r->parent[i] <= i);
        at[1 + i] = guide_take(c->watch, at[r->parent[i]], r->token[i]);
        CHECK_MSG(guide_goes_on(at[1 + i]), "guess %d of %d after %d tokens is not allowed", i, r->n, r->n_text);
    }
    check_chain_end(t, c, r, at);
    for (int i = 0; i <= r->n; i++) guide_drop(c->watch, at[i]);
    c->n_rounds++;
    c->most_guesses = r->n > c->most_guesses ? r->n : c->most_guesses;
}

static bool open_court(test_case *t, court *c)
{
    err e           = {0};
    *c              = (court){.t = t};
    spec_options so = {.n_ctx        = CTX,
                       .max_lanes    = LANES,
                       .kv_type      = KV_TYPES_ALL(CACHE_F16),
                       .on_round     = look_at_round,
                       .on_round_ctx = c};
    if (!spec_rig_open(t, &c->r, &so, true)) return false;
    c->m      = c->r.m;
    c->logits = xnew_n(float, (size_t)c->m->n_vocab);
    step_init(&c->st, 1);
    kv_pool_spec kvs = {.classes = c->m->kv_class, .n_classes = c->m->n_kv_classes, .max_lanes = 1, .max_slots = CTX};
    return CHECK(kv_bytes_for(&kvs, CTX, &kvs.max_bytes)) && CHECK_OK(kv_pool_new(&c->kv, c->m->o, &kvs, &e), e) &&
           CHECK_OK(guide_markers_init(&c->markers, rig_nano()->tok, &rig_nano()->end, 1, &e), e);
}

static void close_court(court *c)
{
    kv_pool_free(c->kv);
    spec_rig_close(&c->r);
    guide_markers_deinit(&c->markers);
    mem_free(c->logits);
    step_deinit(&c->st);
}

static guide *guide_for(test_case *t, court *c, const wish *w)
{
    err      e = {0};
    grammar *g;
    guide   *out = NULL;
    if (w->grammar && CHECK_OK(grammar_from_gbnf(&g, str_of(w->grammar), NULL, &e), e))
        CHECK_OK(guide_new(&out, g, false, rig_nano()->vocab, &c->markers, &e), e);
    return out;
}

/* --- the oracle -----------------------------------------------------------------------------------*/
/* One token through the target; its logits, as the target made them. */
static void run_row(test_case *t, court *c, int32_t token)
{
    err     e   = {0};
    int32_t pos = kv_seq_len(c->seq);
    CHECK_OK(kv_seq_grow(c->seq, pos + 1, &e), e);
    step_clear(&c->st);
    step_add(&c->st, 0, pos, token, true);
    CHECK_OK(c->m->step(c->m, c->kv, &c->st, &e), e);
    c->m->head(c->m, 0, 1);
    c->m->o->download(c->m->q, c->logits, c->m->logits, (size_t)c->m->n_vocab * sizeof(float));
    c->m->o->sync(c->m->q);
}

/* The n likeliest tokens in order, a tie to the lower id. */
static void rank(court *c, int n)
{
    for (int k = 0; k < n; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < c->m->n_vocab; i++) {
            bool taken = false;
            for (int j = 0; j < k; j++) taken |= c->ranked[j].id == i;
            if (!taken && (best < 0 || c->logits[i] > c->logits[best])) best = i;
        }
        c->ranked[k] = (token_logprob){best, c->logits[best]};
    }
}

static double log_sum(const court *c)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < c->m->n_vocab; i++) most = fmax(most, (double)c->logits[i]);
    for (int i = 0; i < c->m->n_vocab; i++) sum += exp((double)c->logits[i] - most);
    return most + log(sum);
}

/* Bias, then the repetition penalty on what prompt and answer contain, then presence and frequency of the answer. */
static void penalise(court *c, const wish *w, const answer *a)
{
    for (int32_t id = 0; id < c->m->n_vocab; id++) {
        float *x     = &c->logits[id];
        int    n_out = 0, n_in = 0;
        for (int i = 0; i < a->n; i++) n_out += a->token[i] == id;
        for (int i = 0; i < N_PROMPT; i++) n_in += rig_prompt[i] == id;
        for (int i = 0; i < w->penalty.n_bias; i++)
            if (w->penalty.bias[i].token == id) *x += w->penalty.bias[i].bias;
        if (n_in + n_out && w->penalty.repeat != 1) *x = *x > 0 ? *x / w->penalty.repeat : *x * w->penalty.repeat;
        if (n_out) *x -= w->penalty.presence + w->penalty.frequency * (float)n_out;
    }
}

static void judge(test_case *t, court *c, const wish *w, guide *g, grammar_state at, answer *a)
{
    static sampling_candidate scratch[8192];
    sample_params             p   = w->params;
    double                    sum = log_sum(c);
    float                    *raw = xnew_n(float, (size_t)c->m->n_vocab);
    memcpy(raw, c->logits, (size_t)c->m->n_vocab * sizeof *raw);
    rank(c, w->n_top);
    penalise(c, w, a);
    if (g) {
        const uint64_t *mask = guide_mask(g, at, NULL);
        CHECK(mask);
        for (int32_t i = 0; i < c->m->n_vocab; i++)
            if ((size_t)i >= guide_mask_words(g) * 64 || !(mask[i >> 6] >> (i & 63) & 1)) c->logits[i] = -INFINITY;
    }
    p.pos            = N_PROMPT + a->n;
    int32_t pick     = sampling_pick(c->logits, c->m->n_vocab, &p, scratch);
    int32_t kept     = g ? guide_settle(g, at, pick, w->n_want - a->n) : pick;
    a->closing[a->n] = kept != pick;
    a->token[a->n]   = kept;
    if (w->n_top >= 0) a->shown[a->n][0] = (token_logprob){kept, (float)((double)raw[kept] - sum)};
    for (int i = 0; i < w->n_top; i++)
        a->shown[a->n][1 + i] = (token_logprob){c->ranked[i].id, (float)((double)c->ranked[i].logprob - sum)};
    a->n++;
    mem_free(raw);
}

static void oracle(test_case *t, court *c, const wish *w, answer *a)
{
    guide        *g  = guide_for(t, c, w);
    grammar_state at = g ? guide_begin(g, &(guide_begins){0}) : GRAMMAR_NO;
    a->n             = 0;
    c->seq           = kv_seq_new(c->kv, 0);
    for (int i = 0; i < N_PROMPT; i++) run_row(t, c, rig_prompt[i]);
    while (a->n < w->n_want && (!g || guide_goes_on(at))) {
        judge(t, c, w, g, at, a);
        if (g) {
            grammar_state next = guide_take(g, at, a->token[a->n - 1]);
            guide_drop(g, at);
            at = next;
        }
        run_row(t, c, a->token[a->n - 1]);
    }
    if (g) guide_drop(g, at);
    guide_free(g);
    kv_seq_free(c->seq);
}

/* --- drafts that are as right as the test wants ----------------------------------------------------*/
static struct {
    const int32_t *text; /* the lane's */
    const answer  *truth;
    int            wrong_every; /* guess of a chain; 0: none */
} script[LANES];

/* A chain of the answer's own tokens; a tree in which these are never the first candidates. */
static bool draft_truth(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    (void)kv, (void)e;
    for (int k = 0; k < n_jobs; k++) {
        draft_job *j = jobs[k];
        int        i = 0;
        while (script[i].text != j->text) i++;
        const answer *a = script[i].truth;
        for (j->n = 0; j->n < j->n_want && j->n_text - N_PROMPT + j->n < a->n; j->n++) {
            int     at    = j->n_text - N_PROMPT + j->n;
            int32_t right = a->token[at], wrong = (right + 7) % d->t->n_vocab;
            bool    miss    = script[i].wrong_every && at % script[i].wrong_every == 0;
            j->token[j->n]  = miss ? wrong : right;
            j->top[j->n][0] = (token_logprob){wrong, -0.6f};
            if (j->n_top > 1) j->top[j->n][1] = (token_logprob){right, -0.9f};
            for (int r = 2; r < j->n_top; r++) j->top[j->n][r] = (token_logprob){-1, 0};
        }
    }
    return true;
}

/* --- the loop -------------------------------------------------------------------------------------*/
static void check_token(test_case *t, const wish *w, const spec_out *x, int i, const answer *a, int at, int method)
{
    CHECK_MSG(x->token[i] == a->token[at], "%s, method %d: token %d is %d, expected %d", w->name, method, at,
              x->token[i], a->token[at]);
    CHECK_INT(x->closing[i], a->closing[at]);
    for (int k = 0; k <= w->n_top; k++)
        CHECK_MSG(x->logprob[i][k].id == a->shown[at][k].id &&
                      fabs((double)(x->logprob[i][k].logprob - a->shown[at][k].logprob)) < 1e-3,
                  "%s, method %d: token %d, log-probability %d is %g of %d, expected %g of %d", w->name, method, at, k,
                  (double)x->logprob[i][k].logprob, x->logprob[i][k].id, (double)a->shown[at][k].logprob,
                  a->shown[at][k].id);
}

/* All of these requests at once, each in its lane. Returns how many guesses were right. */
static int64_t run_loop(test_case *t, court *c, const wish *const *w, const answer *a, int n_lanes, int method)
{
    guide  *g[LANES] = {0};
    int     n[LANES] = {0};
    err     e        = {0};
    size_t  reused;
    int64_t accepted = 0;
    for (int i = 0; i < n_lanes; i++) {
        g[i]           = guide_for(t, c, w[i]);
        lane_request r = {.opt      = {.params  = w[i]->params,
                                       .penalty = w[i]->penalty,
                                       .n_top   = w[i]->n_top,
                                       .spec    = {.method = method, .draft_max = 12}},
                          .prompt   = rig_prompt,
                          .n_prompt = N_PROMPT,
                          .max_new  = w[i]->n_want,
                          .guide    = g[i]};
        CHECK_OK(spec_lane_begin(c->r.l[i], &r, &reused, &e), e);
        script[i].text  = c->r.l[i]->text;
        script[i].truth = &a[i];
    }
    for (;;) {
        spec_lane *some[LANES];
        int        who[LANES], n_some = 0;
        for (int i = 0; i < n_lanes; i++) {
            if (n[i] == a[i].n) continue;
            spec_lane_limit(c->r.l[i], w[i]->n_want - n[i]);
            who[n_some]    = i;
            some[n_some++] = c->r.l[i];
        }
        if (n_some == 0 || !CHECK_OK(spec_step_alone(c->r.s, some, n_some, &e), e)) break;
        for (int k = 0; k < n_some; k++) {
            int             i = who[k];
            const spec_out *x = spec_lane_out(some[k]);
            if (!CHECK_MSG(!x->problem, "%s: %s", w[i]->name, x->problem)) n[i] = a[i].n;
            for (int j = 0; j < x->n && n[i] < a[i].n; j++) check_token(t, w[i], x, j, &a[i], n[i]++, method);
            spec_lane_keep(some[k], x->n);
        }
        if (t->n_failed) break;
    }
    for (int i = 0; i < n_lanes; i++) {
        accepted += spec_lane_stats(c->r.l[i])->accepted;
        spec_lane_end(c->r.l[i]);
        guide_free(g[i]);
    }
    return accepted;
}

static const logit_bias some_bias[] = {{281, 1.5f}, {599, -INFINITY}, {300, -2}};
static const wish       wishes[]    = {
             {"plain", {.top_p = 1}, {.repeat = 1}, 5, NULL, 40},
             {"penalties", {.top_p = 1}, {.repeat = 1.3f, .frequency = 0.2f, .presence = 0.3f}, 3, NULL, 40},
             {"liking what was said", {.top_p = 1}, {.repeat = 1, .frequency = -0.3f}, 0, NULL, 40},
             {"biases", {.temp = 1, .top_p = 1, .seed = 5}, {.repeat = 1, .bias = some_bias, .n_bias = 3}, 20, NULL, 40},
             {"all of it",
              {.temp = 0.8f, .top_p = 0.9f, .seed = 6},
              {.repeat = 1.1f, .presence = 0.5f, .bias = some_bias, .n_bias = 3},
              2,
              NULL,
              40},
             {"not shown", {.temp = 0.8f, .top_p = 1, .seed = 7}, {.repeat = 1.2f, .frequency = 0.4f}, -1, NULL, 40},
             {"grammar", {.temp = 1, .top_p = 1, .seed = 8}, {.repeat = 1}, 4, "root ::= ([a-z ]{3,20} \"\\n\")+", 40},
             {"grammar and penalties",
              {.temp = 1, .top_p = 1, .seed = 9},
              {.repeat = 1.2f, .frequency = 0.3f, .bias = some_bias, .n_bias = 3},
              2,
              "root ::= \"{\" [a-z]{2,9} (\", \" [a-z]{2,9}){8} \"}\"",
              60},
             {"grammar that must end",
              {.temp = 1, .top_p = 1, .seed = 1},
              {.repeat = 1},
              -1,
              "root ::= ([a-z ]{1,90} \".\"){2}",
              30},
};

/* Each request alone, by all methods, with drafts that are right, half right, and the drafters' own. */
TEST_LONG(spec_tokens_and_log_probabilities_are_the_oracles)
{
    static answer a;
    court         c;
    if (open_court(t, &c)) {
        drafter *d                                                        = c.r.s->slots[DRAFTER_DFLASH].d;
        bool (*own)(drafter *, kv_pool *, draft_job *const *, int, err *) = d->draft;
        for (size_t i = 0; i < COUNT(wishes); i++) {
            const wish *w = &wishes[i];
            oracle(t, &c, w, &a);
            CHECK(a.n >= 20);
            d->draft = draft_truth;
            for (int every = 0; every < 5; every += 2) {
                script[0].wrong_every = every;
                int64_t right         = run_loop(t, &c, &w, &a, 1, SPEC_DFLASH);
                CHECK_MSG(right > a.n / 4, "%s: %lld of %d guesses were right", w->name, (long long)right, a.n);
            }
            CHECK(run_loop(t, &c, &w, &a, 1, SPEC_TREE) > a.n / 3);
            d->draft = own;
            for (int m = SPEC_OFF; m <= SPEC_AUTO; m++) run_loop(t, &c, &w, &a, 1, m);
        }
    }
    close_court(&c);
}

/* Requests for which the best logit, the best few or all of them are needed, in the same steps: each has its own text. */
TEST(spec_lanes_together_are_judged_by_what_each_needs)
{
    static const wish mixed[] = {
        {"greedy", {.top_p = 1}, {.repeat = 1}, -1, NULL, 24},
        {"greedy with penalties", {.top_p = 1}, {.repeat = 1.3f, .presence = 0.4f}, -1, NULL, 24},
        {"the best few", {.temp = 1.5f, .top_p = 1, .top_k = 40, .seed = 21}, {.repeat = 1}, -1, NULL, 24},
        {"all", {.temp = 1.5f, .top_p = 1, .seed = 22}, {.repeat = 1}, -1, NULL, 24},
        {"greedy, shown", {.top_p = 1}, {.repeat = 1}, 2, NULL, 24},
        {"greedy, biased", {.top_p = 1}, {.repeat = 1, .bias = some_bias, .n_bias = 3}, -1, NULL, 24},
    };
    static answer a[COUNT(mixed)], pair[2];
    static court  c;
    if (open_court(t, &c)) {
        for (size_t i = 0; i < COUNT(mixed); i++) oracle(t, &c, &mixed[i], &a[i]);
        for (size_t i = 0; i < COUNT(mixed); i++)
            for (size_t k = 0; k < COUNT(mixed); k++) {
                const wish *w[2] = {&mixed[i], &mixed[k]};
                pair[0]          = a[i];
                pair[1]          = a[k];
                run_loop(t, &c, w, pair, 2, SPEC_MTP);
            }
    }
    close_court(&c);
}

/* --- changes of logits that do not fit into one piece ----------------------------------------------*/
static void (*real_change)(queue *q, dev logits, int n_vocab, dev items, int n_items);
static int most_items, n_pieces;

static void counted_change(queue *q, dev logits, int n_vocab, dev items, int n_items)
{
    most_items = n_items > most_items ? n_items : most_items;
    n_pieces++;
    real_change(q, logits, n_vocab, items, n_items);
}

/* Four requests in the same steps, with room for so few changes that each step needs several pieces: no piece is larger
 * than the room, and every row is judged with its own changes. */
TEST_LONG(spec_changes_of_logits_go_in_pieces_that_fit)
{
    static answer      a[LANES];
    static const wish *w[LANES] = {&wishes[1], &wishes[4], &wishes[3], &wishes[7]};
    court              c;
    if (open_court(t, &c)) {
        drafter *d = c.r.s->slots[DRAFTER_DFLASH].d;
        ops     *o = (ops *)c.m->o;
        for (int i = 0; i < LANES; i++) {
            oracle(t, &c, w[i], &a[i]);
            script[i].wrong_every = 0;
        }
        d->draft         = draft_truth;
        real_change      = o->change_logits;
        o->change_logits = counted_change;
        int all          = c.r.s->max_changes;
        /* a row has at most 17 distinct tokens of the prompt, 60 of the answer, 3 of the bias, 64 of a draft */
        for (int room = 144; room < 176; room += 5)
            for (int m = SPEC_DFLASH; m <= SPEC_TREE; m++) {
                most_items = n_pieces = 0;
                c.r.s->max_changes    = room;
                CHECK(run_loop(t, &c, w, a, LANES, m) > 30);
                CHECK_MSG(most_items <= room && n_pieces > 20, "%d changes at once with room for %d, %d pieces",
                          most_items, room, n_pieces);
            }
        c.r.s->max_changes = all;
        n_pieces           = 0; /* with all the room that there is, a step of few rows is one piece */
        run_loop(t, &c, w, a, 1, SPEC_DFLASH);
        const tandem_spec_counts *st = spec_lane_stats(c.r.l[0]);
        CHECK(st->rounds > 2);
        CHECK_INT(n_pieces, st->rounds + st->plain_rounds);
        o->change_logits = real_change;
    }
    close_court(&c);
}

/* --- guesses of a grammar ---------------------------------------------------------------------------*/
static const wish recital = {
    .name    = "words that must follow",
    .params  = {.top_p = 1},
    .penalty = {.repeat = 1},
    .n_top   = -1,
    .grammar = "root ::= (\"the same words again and again \" [a-z]){30}",
    .n_want  = 60,
};

/* Makes the model cut the words as the grammar's drafts do. The last token of the draft is left out: the grammar ends
 * it before its word ends, and inside the words it would compete with the longer ones. */
static void favour_guesses(test_case *t, court *c, wish *w, int n_least)
{
    static logit_bias bias[DRAFT_MAX];
    int32_t           id[DRAFT_MAX];
    guide            *g  = guide_for(t, c, w);
    grammar_state     at = guide_begin(g, &(guide_begins){0});
    int               n  = guide_draft(g, at, 1000, id, DRAFT_MAX);
    CHECK(n >= n_least);
    for (int i = 0; i < n - (n > 1); i++) {
        int k = 0;
        while (k < w->penalty.n_bias && bias[k].token != id[i]) k++;
        bias[k] = (logit_bias){id[i], 100};
        w->penalty.n_bias += k == w->penalty.n_bias;
    }
    w->penalty.bias = bias;
    guide_drop(g, at);
    guide_free(g);
}

/* A drafter whose every third guess is not allowed: it is cut there, and what the grammar knows to follow is added, no
 * further than the plan and the length limit reach. */
TEST(spec_guesses_keep_to_the_grammar_and_go_on_with_it)
{
    static answer a;
    static court  c;
    wish          easy = recital;
    const wish   *w    = &easy;
    if (open_court(t, &c)) {
        drafter *d = c.r.s->slots[DRAFTER_DFLASH].d;
        favour_guesses(t, &c, &easy, 6);
        oracle(t, &c, w, &a);
        d->draft = draft_truth;
        c.watch  = guide_for(t, &c, w);
        c.n_want = w->n_want;
        for (int m = SPEC_DFLASH; m <= SPEC_NGRAM; m++) {
            script[0].wrong_every = 3;
            c.n_rounds = c.most_guesses = 0;
            int64_t right               = run_loop(t, &c, &w, &a, 1, m);
            CHECK_MSG(c.n_rounds > 0 && c.n_rounds < 30, "method %d: %d rounds", m, c.n_rounds);
            CHECK_MSG(right > 30, "method %d: %lld of %d tokens were guessed", m, (long long)right, a.n);
            CHECK_MSG(c.most_guesses > 3, "method %d: %d guesses at most", m, c.most_guesses);
        }
        c.n_rounds = 0;
        CHECK_INT(run_loop(t, &c, &w, &a, 1, SPEC_OFF), 0);
        CHECK_INT(c.n_rounds, 0); /* off: the grammar's guesses too */
        guide_free(c.watch);
    }
    close_court(&c);
}

/* Where the grammar has less to say than a drafter, the drafter's guesses go first, and what must follow their end is added. */
TEST(spec_guesses_of_a_drafter_go_on_with_the_grammar)
{
    static answer a;
    static court  c;
    wish          mixed = recital;
    const wish   *w     = &mixed;
    mixed.grammar       = "root ::= (\" the \" [a-z])+";
    if (open_court(t, &c)) {
        favour_guesses(t, &c, &mixed, 1);
        oracle(t, &c, w, &a);
        c.r.s->slots[DRAFTER_DFLASH].d->draft = draft_truth;
        c.watch                               = guide_for(t, &c, w);
        c.n_want                              = w->n_want;
        for (int every = 2; every <= 5; every++) {
            script[0].wrong_every = every;
            c.n_rounds = c.n_ends = 0;
            int64_t right         = run_loop(t, &c, &w, &a, 1, SPEC_DFLASH);
            CHECK_MSG(c.n_ends > 2 && right > 20, "every %d: %d ends in %d rounds, %lld right", every, c.n_ends,
                      c.n_rounds, (long long)right);
        }
        guide_free(c.watch);
    }
    close_court(&c);
}

/* A model that cuts the words in other ways than the grammar's guesses is not offered any more of them, for a while. */
TEST(spec_guesses_of_a_grammar_end_when_they_are_wrong)
{
    static answer a;
    static court  c;
    wish          hot = recital;
    const wish   *w   = &hot;
    hot.params.temp   = 100;
    hot.grammar       = "root ::= ([a-z] \"the\"){30}";
    if (open_court(t, &c)) {
        oracle(t, &c, w, &a);
        run_loop(t, &c, &w, &a, 1, SPEC_NGRAM);
        const tandem_spec_counts *st = spec_lane_stats(c.r.l[0]);
        CHECK_MSG(st->rounds >= 1 && st->rounds <= 12, "%lld rounds with guesses, %lld without", (long long)st->rounds,
                  (long long)st->plain_rounds);
    }
    close_court(&c);
}

/* --- work on masks ----------------------------------------------------------------------------------*/
static const wish prose = {
    .name    = "lines of letters",
    .params  = {.temp = 1, .top_p = 1, .seed = 8},
    .penalty = {.repeat = 1},
    .n_top   = -1,
    .grammar = "root ::= ([a-z ]{3,20} \"\\n\")+",
    .n_want  = 24,
};

/* Begins w in the court's first lane, held to g. */
static void begin_guided(test_case *t, court *c, const wish *w, guide *g, int method)
{
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt      = {.params = w->params, .penalty = w->penalty, .n_top = -1, .spec.method = method},
                      .prompt   = rig_prompt,
                      .n_prompt = N_PROMPT,
                      .max_new  = w->n_want,
                      .guide    = g};
    CHECK_OK(spec_lane_begin(c->r.l[0], &r, &reused, &e), e);
}

/* A mask is made in as many portions as it takes: each takes what it used from the work it was given, all of it is counted
 * as the request's, and a step whose mask is ready has none left to do. */
TEST(spec_masks_are_made_in_portions)
{
    static answer a;
    static court  c;
    err           e = {0};
    if (open_court(t, &c)) {
        oracle(t, &c, &prose, &a);
        guide     *g = guide_for(t, &c, &prose);
        spec_lane *l = c.r.l[0];
        CHECK(!spec_lane_is_guided(l));
        begin_guided(t, &c, &prose, g, SPEC_OFF);
        CHECK(spec_lane_is_guided(l));
        CHECK_INT(spec_lane_mask_work(l), 0);
        int     n_later = 0;
        int64_t used = 0, born = guide_work(g);
        for (int i = 0; i < a.n && !t->n_failed; i++) {
            bool ready = false;
            for (int k = 0; k < 100000 && !ready; k++) {
                int64_t portion = 50, left = portion;
                ready = spec_lane_prepare(l, &left);
                used += portion - left;
                CHECK(left <= portion && (ready || left <= 0));
                n_later += !ready;
            }
            CHECK(ready);
            spec_lane_limit(l, a.n - i);
            int64_t none = 0, before = spec_lane_mask_work(l);
            CHECK(spec_lane_prepare(l, &none) && none == 0); /* nothing is left to do */
            CHECK_INT(spec_lane_mask_work(l), before);
            int64_t masks = guide_stats(g).masks - guide_stats(g).cached;
            if (!CHECK_OK(spec_step_alone(c.r.s, &l, 1, &e), e)) break;
            CHECK_INT(guide_stats(g).masks - guide_stats(g).cached, masks);
            CHECK_INT(spec_lane_out(l)->token[0], a.token[i]);
            spec_lane_keep(l, 1);
            CHECK_INT(spec_lane_mask_work(l), guide_work(g) - born);
        }
        CHECK_MSG(n_later > 10 && used > 500, "%d portions were not enough, %lld steps", n_later, (long long)used);
        CHECK(used <= spec_lane_mask_work(l));
        begin_guided(t, &c, &prose, NULL, SPEC_OFF); /* the next request is free */
        int64_t work = 7;
        CHECK(!spec_lane_is_guided(l) && spec_lane_prepare(l, &work) && work == 7);
        CHECK_INT(spec_lane_mask_work(l), 0);
        spec_lane_end(l);
        guide_free(g);
    }
    close_court(&c);
}

/* Guesses whose masks would need more work than was granted are left out, and the text is the same. */
TEST(spec_guesses_wait_for_their_masks)
{
    static const int64_t grant[] = {0, 200, 2000, INT64_MAX};
    static answer        a;
    static court         c;
    err                  e = {0};
    if (open_court(t, &c)) {
        int64_t guesses[COUNT(grant)] = {0};
        oracle(t, &c, &prose, &a);
        c.r.s->slots[DRAFTER_DFLASH].d->draft = draft_truth;
        for (size_t i = 0; i < COUNT(grant); i++) {
            spec_lane *l = c.r.l[0];
            guide     *g = guide_for(t, &c, &prose);
            begin_guided(t, &c, &prose, g, SPEC_DFLASH);
            script[0].text        = l->text;
            script[0].truth       = &a;
            script[0].wrong_every = 0;
            int64_t born          = guide_work(g);
            for (int n = 0; n < a.n && !t->n_failed;) {
                int64_t enough = INT64_MAX;
                CHECK(spec_lane_prepare(l, &enough));
                spec_lane_limit(l, a.n - n);
                spec_grant_mask_work(c.r.s, grant[i]);
                if (!CHECK_OK(spec_step_alone(c.r.s, &l, 1, &e), e)) break;
                const spec_out *x = spec_lane_out(l);
                CHECK(!x->problem);
                for (int j = 0; j < x->n; j++) CHECK_INT(x->token[j], a.token[n++]);
                spec_lane_keep(l, x->n);
            }
            guesses[i] = spec_lane_stats(l)->drafted;
            CHECK_INT(spec_lane_mask_work(l), guide_work(g) - born);
            spec_lane_end(l);
            guide_free(g);
        }
        CHECK_MSG(guesses[0] < guesses[1] && guesses[1] < guesses[2] && guesses[2] < guesses[3],
                  "%lld, %lld, %lld, %lld guesses", (long long)guesses[0], (long long)guesses[1], (long long)guesses[2],
                  (long long)guesses[3]);
        const tandem_spec_counts *st = spec_lane_stats(c.r.l[0]);
        CHECK_INT(st->drafted + st->rounds + st->plain_rounds, a.n); /* none is left out of what fits */
    }
    close_court(&c);
}

/* A machine can follow so many places at once: those of guesses and of tokens that became text are given back, also when
 * guesses are left out. */
TEST(spec_places_in_a_grammar_are_given_back)
{
    enum { GUESSES = 8, KEPT = 4, ROUNDS = 2300 };
    static court c;
    wish         endless = prose;
    endless.grammar      = "root ::= [a-z]{0,100000} \"1\"";
    if (open_court(t, &c)) {
        spec_lane *l   = c.r.l[0];
        guide     *g   = guide_for(t, &c, &endless);
        int32_t    one = tok_find(rig_nano()->tok, STR("a")), letters[GUESSES];
        for (int i = 0; i < GUESSES; i++) letters[i] = one;
        begin_guided(t, &c, &endless, g, SPEC_DFLASH);
        for (int round = 0; round < ROUNDS && !t->n_failed; round++) {
            tree_start(&l->tree, one);
            tree_add_chain(&l->tree, letters, NULL, GUESSES);
            spec_grant_mask_work(c.r.s, round % 2 ? 0 : INT64_MAX);
            lane_guide_tree(l);
            if (round % 2 == 0) CHECK_INT(l->tree.n, 1 + GUESSES);
            memcpy(l->out.token, letters, sizeof letters);
            lane_guide_keep(l, KEPT);
            CHECK_MSG(guide_goes_on(l->at), "after %d rounds the answer stands at %d", round, l->at);
        }
        CHECK(guide_stats(g).sweeps > 0);
        spec_lane_end(l);
        guide_free(g);
    }
    close_court(&c);
}

/* A grammar that cannot be followed any further ends its own request with the reason; the one beside it goes on. */
TEST(spec_a_grammar_that_cannot_be_followed_says_so)
{
    enum { LEVELS = 16 }; /* after n letters 2^n stacks */
    static char   text[4096];
    static answer a;
    static court  c;
    err           e = {0};
    size_t        reused;
    wish          bad = prose;
    int n = snprintf(text, sizeof text, "root ::= a0\nb ::= \"y\"\nc ::= \"z\" \"z\"\na%d ::= \"x\"\n", LEVELS);
    for (int i = 0; i < LEVELS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "a%d ::= \"x\" a%d b | \"x\" a%d c\n", i, i + 1, i + 1);
    bad.grammar = text;
    if (open_court(t, &c)) {
        oracle(t, &c, &wishes[1], &a);
        for (int m = SPEC_OFF; m <= SPEC_AUTO; m++) {
            const wish  *w     = &wishes[1];
            guide       *g     = guide_for(t, &c, &bad);
            lane_request other = {.opt      = {.params = w->params, .penalty = w->penalty, .n_top = w->n_top},
                                  .prompt   = rig_prompt,
                                  .n_prompt = N_PROMPT};
            begin_guided(t, &c, &bad, g, m);
            CHECK_OK(spec_lane_begin(c.r.l[1], &other, &reused, &e), e);
            const spec_out *x = spec_lane_out(c.r.l[0]), *y = spec_lane_out(c.r.l[1]);
            for (int i = 0; i < LEVELS + 2 && !t->n_failed && !x->problem; i++) {
                if (!CHECK_OK(spec_step_alone(c.r.s, c.r.l, 2, &e), e)) break;
                check_token(t, w, y, 0, &a, i, m);
                spec_lane_keep(c.r.l[1], 1);
                CHECK((x->n == 0) == (x->problem != NULL));
                if (x->n) spec_lane_keep(c.r.l[0], x->n);
            }
            CHECK_MSG(x->problem && strstr(x->problem, "ambiguous") && x->problem_code == ERR_TOO_LARGE,
                      "method %d: %s", m, x->problem ? x->problem : "no problem");
            for (int i = 0; i < 2; i++) spec_lane_end(c.r.l[i]);
            guide_free(g);
        }
    }
    close_court(&c);
}

/* --- nothing to pick --------------------------------------------------------------------------------*/
/* A request that bans every token ends with a sentence at once, and the request in the same step does not notice. */
TEST(spec_a_request_without_tokens_says_so)
{
    static answer a;
    static court  c;
    err           e = {0};
    size_t        reused;
    const wish   *w = &wishes[1];
    if (open_court(t, &c)) {
        logit_bias *all = xnew_n(logit_bias, (size_t)c.m->n_vocab);
        for (int32_t i = 0; i < c.m->n_vocab; i++) all[i] = (logit_bias){i, -INFINITY};
        oracle(t, &c, w, &a);
        lane_request none       = {.opt = spec_rig_options(SPEC_DFLASH), .prompt = rig_prompt, .n_prompt = N_PROMPT};
        lane_request some       = none;
        none.opt.penalty.bias   = all;
        none.opt.penalty.n_bias = c.m->n_vocab;
        some.opt.params         = w->params;
        some.opt.penalty        = w->penalty;
        some.opt.n_top          = w->n_top;
        CHECK_OK(spec_lane_begin(c.r.l[0], &none, &reused, &e), e);
        CHECK_OK(spec_lane_begin(c.r.l[1], &some, &reused, &e), e);
        if (CHECK_OK(spec_step_alone(c.r.s, c.r.l, 2, &e), e)) {
            const spec_out *x = spec_lane_out(c.r.l[0]), *y = spec_lane_out(c.r.l[1]);
            CHECK_INT(x->n, 0);
            CHECK(x->problem && strstr(x->problem, "no token can be picked") && x->problem_code == ERR_FORMAT);
            CHECK(!y->problem && y->n == 1);
            if (y->n) check_token(t, w, y, 0, &a, 0, SPEC_DFLASH);
        }
        spec_lane_end(c.r.l[0]);
        none.opt.penalty.n_bias = 0; /* the lane's next request has nothing of it */
        CHECK_OK(spec_lane_begin(c.r.l[0], &none, &reused, &e), e);
        CHECK(!spec_lane_out(c.r.l[0])->problem);
        if (CHECK_OK(spec_step_alone(c.r.s, c.r.l, 1, &e), e)) CHECK_INT(spec_lane_out(c.r.l[0])->n, 1);
        mem_free(all);
    }
    close_court(&c);
}

/* --- waiting ----------------------------------------------------------------------------------------*/
static void (*real_sync)(queue *q);
static int n_syncs;

static void counted_sync(queue *q)
{
    n_syncs++;
    real_sync(q);
}

/* The host waits once a step; twice where a grammar has changed the logits that log-probabilities are shown of. */
TEST(spec_waits_as_often_as_it_must)
{
    static answer a;
    static court  c;
    if (open_court(t, &c)) {
        ops *o    = (ops *)c.m->o;
        real_sync = o->sync;
        for (size_t i = 0; i < COUNT(wishes); i++) {
            const wish *w = &wishes[i];
            oracle(t, &c, w, &a);
            n_syncs = 0;
            o->sync = counted_sync;
            run_loop(t, &c, &w, &a, 1, SPEC_NGRAM);
            o->sync                      = real_sync;
            const tandem_spec_counts *st = spec_lane_stats(c.r.l[0]);
            CHECK_MSG(n_syncs == (st->rounds + st->plain_rounds) * (w->grammar && w->n_top >= 0 ? 2 : 1),
                      "%s: %d for %lld", w->name, n_syncs, (long long)(st->rounds + st->plain_rounds));
        }
    }
    close_court(&c);
}
