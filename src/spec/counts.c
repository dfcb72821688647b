#include "spec/counts.h"

static void add_all(int64_t *to, const int64_t *more, int n)
{
    for (int i = 0; i < n; i++) to[i] += more[i];
}

void spec_counts_add(tandem_spec_counts *to, const tandem_spec_counts *more)
{
    to->rounds += more->rounds;
    to->plain_rounds += more->plain_rounds;
    to->drafted += more->drafted;
    to->accepted += more->accepted;
    to->tokens += more->tokens;
    add_all(to->tried_at, more->tried_at, TANDEM_MAX_DRAFT);
    add_all(to->right_at, more->right_at, TANDEM_MAX_DRAFT);
    add_all(to->rounds_by_method, more->rounds_by_method, TANDEM_SPEC_METHODS);
    add_all(to->drafted_by_method, more->drafted_by_method, TANDEM_SPEC_METHODS);
    add_all(to->accepted_by_method, more->accepted_by_method, TANDEM_SPEC_METHODS);
    to->draft_s += more->draft_s;
    to->verify_s += more->verify_s;
    to->commit_s += more->commit_s;
}

double spec_acceptance_length(const tandem_spec_counts *c)
{
    return c->rounds ? 1 + (double)c->accepted / (double)c->rounds : 0;
}

double spec_acceptance_rate(const tandem_spec_counts *c)
{
    return c->drafted ? (double)c->accepted / (double)c->drafted : 0;
}

/* A round without draft tokens generates one token. */
static double generated(const tandem_spec_counts *c) { return (double)(c->tokens + c->plain_rounds); }

double spec_accepted_share(const tandem_spec_counts *c)
{
    return generated(c) > 0 ? (double)c->accepted / generated(c) : 0;
}

double spec_tokens_per_round(const tandem_spec_counts *c)
{
    int64_t rounds = c->rounds + c->plain_rounds;
    return rounds ? generated(c) / (double)rounds : 0;
}
