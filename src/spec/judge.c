/* The target's verdict: the token that it picks after each row of the step. */
#include "spec/inside.h"

static void upload_params(spec *s, int first, int n)
{
    sample_params rows[HEAD_ROWS];
    for (int i = 0; i < n; i++) {
        rows[i]     = s->judged[first + i].lane->opt.params;
        rows[i].pos = s->step.pos[s->step.want[first + i]] + 1;
    }
    s->t->o->upload(s->t->q, s->params, rows, (size_t)n * sizeof *rows);
}

/* Every row is judged by its own text: the lane's, and the guesses on the way to the row. */
static int row_changes(spec *s, const judged_row *j)
{
    spec_lane        *l = j->lane;
    const draft_tree *t = &l->tree;
    for (int r = j->node; r > 0; r = t->parent[r]) history_push(l->history, t->token[r]);
    int n = history_changes(l->history, &l->opt.penalty, 0, s->host_changes);
    for (int r = j->node; r > 0; r = t->parent[r]) history_pop(l->history, t->token[r]);
    return n;
}

static void pick_changed(spec *s, int row, const judged_row *j)
{
    const ops *o = s->t->o;
    queue     *q = s->t->q;
    int        n = row_changes(s, j), V = s->t->n_vocab;
    dev        logits = dev_at_f32(s->t->logits, (size_t)row * (size_t)V);
    o->upload(q, s->changes, s->host_changes, (size_t)n * sizeof(logit_change));
    o->change_logits(q, logits, V, s->changes, n);
    o->sample(q, dev_at(s->picked, (size_t)row * sizeof(int32_t)), logits,
              dev_at(s->params, (size_t)row * sizeof(sample_params)), 1, V);
    if (j->lane->opt.n_top >= 0) o->restore_logits(q, logits, V, s->changes, n);
}

/* Rows that nothing changes go together. */
static void pick_piece(spec *s, int first, int n)
{
    const ops *o = s->t->o;
    int        V = s->t->n_vocab;
    for (int i = 0, end; i < n; i = end) {
        const judged_row *j = &s->judged[first + i];
        end                 = i + 1;
        if (j->lane->counting) {
            pick_changed(s, i, j);
            continue;
        }
        while (end < n && !s->judged[first + end].lane->counting) end++;
        o->sample(s->t->q, dev_at(s->picked, (size_t)i * sizeof(int32_t)),
                  dev_at_f32(s->t->logits, (size_t)i * (size_t)V), dev_at(s->params, (size_t)i * sizeof(sample_params)),
                  end - i, V);
    }
    o->download(s->t->q, s->pick + first, s->picked, (size_t)n * sizeof(int32_t));
}

static int most_asked(const spec *s, int first, int n)
{
    int most = -1;
    for (int i = 0; i < n; i++)
        if (s->judged[first + i].lane->opt.n_top > most) most = s->judged[first + i].lane->opt.n_top;
    return most;
}

/* Of the logits as the target made them; into the place of each row, where the walk will look for them. */
static void logprobs_piece(spec *s, int first, int n)
{
    const ops *o = s->t->o;
    int        k = most_asked(s, first, n);
    if (k < 0) return;
    o->logprobs(s->t->q, s->logprobs, s->t->logits, s->picked, n, s->t->n_vocab, k);
    o->download(s->t->q, s->host_logprobs + (size_t)first * (1 + SPEC_MAX_TOP), s->logprobs,
                (size_t)(n * (1 + k)) * sizeof(token_logprob));
    o->sync(s->t->q);
    token_logprob *at = s->host_logprobs + (size_t)first * (1 + SPEC_MAX_TOP);
    for (int i = n - 1; i > 0; i--) /* rows of 1 + k to rows of 1 + SPEC_MAX_TOP, from the end */
        memmove(at + (size_t)i * (1 + SPEC_MAX_TOP), at + (size_t)i * (size_t)(1 + k), (size_t)(1 + k) * sizeof *at);
}

bool judge_rows(spec *s, err *e)
{
    for (int first = 0; first < s->step.n_want; first += HEAD_ROWS) {
        int n = s->step.n_want - first < HEAD_ROWS ? s->step.n_want - first : HEAD_ROWS;
        s->t->head(s->t, first, n);
        upload_params(s, first, n);
        pick_piece(s, first, n);
        logprobs_piece(s, first, n);
    }
    s->t->o->sync(s->t->q);
    if (!s->t->o->check(s->t->q, e)) return false;
    for (int i = 0; i < s->step.n_want; i++)
        if (s->pick[i] < 0 && s->judged[i].node == 0)
            return err_set(e, ERR_FORMAT, "no token can be picked: all are banned, or the weights are damaged");
    return true;
}
