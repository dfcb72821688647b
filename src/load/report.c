#include "load/inside.h"

#include "base/mem.h"
#include "figures/result.h"

#include <math.h>
#include <stdio.h>

static const char *const ratio_names[LOAD_RATIOS] = {"tok_s", "ttft_ms", "tpot_ms", "e2e_ms"};

/* --- adding -------------------------------------------------------------------------------------*/
#define PUT(list, value, e) put(&(list).x, &(list).n, &(list).cap, (value), (e))

static bool put(double **x, size_t *n, size_t *cap, double value, err *e)
{
    if (*n == *cap) {
        size_t more = *cap ? 2 * *cap : 256;
        void  *got  = mem_try_resize(*x, more * sizeof **x);
        if (!got) return err_set(e, ERR_UNAVAILABLE, "no memory for the results");
        *x   = got;
        *cap = more;
    }
    (*x)[(*n)++] = value;
    return true;
}

static bool add_sample(load_tally *t, const load_sample *s, err *e)
{
    t->answered++;
    t->prompt_tokens += s->prompt_tokens;
    t->completion_tokens += s->completion_tokens;
    t->cached_tokens += s->cached_tokens;
    t->counted += !s->has_usage;
    if (s->acceptance_length > 0) {
        t->length_sum += s->acceptance_length;
        t->n_lengths++;
    }
    if (!PUT(t->e2e, (s->end - s->due) * 1e3, e)) return false;
    if (!s->pieces) return true;
    if (!PUT(t->ttft, (s->first - s->due) * 1e3, e)) return false;
    return s->completion_tokens < 2 || PUT(t->tpot, (s->last - s->first) * 1e3 / (double)(s->completion_tokens - 1), e);
}

/* Prefers the numbers in responses: the server's counters include the requests of other clients. */
static void add_speculation(load_tally *t, const load_run *r)
{
    double drafted = 0, accepted = 0;
    for (size_t i = 0; i < r->n; i++) {
        drafted += (double)r->sample[i].drafted;
        accepted += (double)r->sample[i].accepted;
    }
    if (drafted == 0 && r->speculation.reported) {
        drafted  = r->speculation.drafted;
        accepted = r->speculation.accepted;
    }
    if (r->speculation.reported) t->rounds += r->speculation.rounds;
    t->drafted += drafted;
    t->accepted += accepted;
}

static void add_reason(load_tally *t, const load_reason *x)
{
    int i = 0;
    while (i < t->n_reasons && strcmp(t->reason[i].why.text, x->why.text) != 0) i++;
    if (i == LOAD_MAX_REASONS) i--;
    if (i == t->n_reasons) t->reason[t->n_reasons++].why = x->why;
    t->reason[i].n += x->n;
}

static double median_from(const double *x, size_t from, size_t n)
{
    if (from == n) return NAN;
    double *copy = xnew_n(double, n - from);
    memcpy(copy, x + from, (n - from) * sizeof *x);
    double m = stats_spread(copy, n - from).median;
    mem_free(copy);
    return m;
}

static void add_pair(load_tally *t, const load_run *r, const size_t from[3])
{
    double prompt = 0, completion = 0;
    int    i = t->n_pairs;
    if (i == LOAD_MAX_PAIRS) return;
    for (size_t k = 0; k < r->n; k++) {
        prompt += (double)r->sample[k].prompt_tokens;
        completion += (double)r->sample[k].completion_tokens;
    }
    t->tok_s[i]               = r->seconds > 0 ? completion / r->seconds : 0;
    t->total_s[i]             = r->seconds > 0 ? (completion + prompt) / r->seconds : 0;
    t->of_pair[LOAD_TOK_S][i] = t->tok_s[i];
    t->of_pair[LOAD_TTFT][i]  = median_from(t->ttft.x, from[0], t->ttft.n);
    t->of_pair[LOAD_TPOT][i]  = median_from(t->tpot.x, from[1], t->tpot.n);
    t->of_pair[LOAD_E2E][i]   = median_from(t->e2e.x, from[2], t->e2e.n);
    t->n_pairs++;
}

bool load_tally_add(load_tally *t, const load_run *r, err *e)
{
    size_t from[3] = {t->ttft.n, t->tpot.n, t->e2e.n};
    for (size_t i = 0; i < r->n; i++)
        if (!add_sample(t, &r->sample[i], e)) return false;
    for (size_t i = 0; i < r->gaps.n; i++)
        if (!PUT(t->itl, r->gaps.s[i] * 1e3, e)) return false;
    t->failed += r->failed;
    t->cut += r->cut;
    t->seconds += r->seconds;
    add_speculation(t, r);
    for (int i = 0; i < r->n_reasons; i++) add_reason(t, &r->reason[i]);
    add_pair(t, r, from);
    return true;
}

void load_tally_deinit(load_tally *t)
{
    mem_free(t->ttft.x);
    mem_free(t->tpot.x);
    mem_free(t->itl.x);
    mem_free(t->e2e.x);
    *t = (load_tally){0};
}

/* --- figures ------------------------------------------------------------------------------------*/
double load_acceptance_length(const load_tally *t)
{
    if (t->n_lengths) return t->length_sum / (double)t->n_lengths;
    return t->rounds > 0 ? 1 + t->accepted / t->rounds : NAN;
}

double load_acceptance_rate(const load_tally *t) { return t->drafted > 0 ? t->accepted / t->drafted : NAN; }

interval load_ratio_of(const load_tally *a, const load_tally *b, load_ratio which)
{
    int n = a->n_pairs < b->n_pairs ? a->n_pairs : b->n_pairs;
    return stats_ratio(a->of_pair[which], b->of_pair[which], n);
}

/* --- for people ---------------------------------------------------------------------------------*/
static void put_number(buf *out, int width, double x)
{
    int digits = fabs(x) < 100 ? 2 : fabs(x) < 1000 ? 1 : 0;
    if (isnan(x))
        buf_printf(out, " %*s", width, "-");
    else
        buf_printf(out, " %*.*f", width, digits, x);
}

void load_put_head(buf *out)
{
    static const char *const times[] = {"TTFT ms", "TPOT ms", "ITL ms", "E2E ms"};
    buf_printf(out, "%-7s %-16s %6s %6s %9s %9s", "", "", "", "", "output", "total");
    for (int i = 0; i < 4; i++) buf_printf(out, "  %-22s", times[i]);
    buf_printf(out, "  %s\n", "acceptance");
    buf_printf(out, "%-7s %-16s %6s %6s %9s %9s", "users", "server", "done", "failed", "tok/s", "tok/s");
    for (int i = 0; i < 4; i++) buf_printf(out, " %7s %7s %7s", "mean", "median", "p99");
    buf_printf(out, " %7s %6s %7s\n", "length", "rate", "cached");
}

static void put_spread(buf *out, double *x, size_t n)
{
    spread s = stats_spread(x, n);
    put_number(out, 7, s.mean);
    put_number(out, 7, s.median);
    put_number(out, 7, s.p99);
}

void load_put_row(buf *out, const char *users, const char *name, load_tally *t)
{
    buf_printf(out, "%-7s %-16.40s %6lld %6lld", users, name, (long long)t->answered, (long long)t->failed);
    put_number(out, 9, stats_median(t->tok_s, t->n_pairs).median);
    put_number(out, 9, stats_median(t->total_s, t->n_pairs).median);
    put_spread(out, t->ttft.x, t->ttft.n);
    put_spread(out, t->tpot.x, t->tpot.n);
    put_spread(out, t->itl.x, t->itl.n);
    put_spread(out, t->e2e.x, t->e2e.n);
    put_number(out, 7, load_acceptance_length(t));
    put_number(out, 6, load_acceptance_rate(t));
    buf_printf(out, " %7lld\n", (long long)t->cached_tokens);
}

void load_put_ratios(buf *out, const char *users, const char *a, const char *b, const load_tally *x,
                     const load_tally *y)
{
    static const char *const says[LOAD_RATIOS] = {"output tok/s", "TTFT", "TPOT", "E2E"};
    buf_printf(out, "%-7s %s / %s:", users, a, b);
    for (int i = 0; i < LOAD_RATIOS; i++) {
        interval r = load_ratio_of(x, y, (load_ratio)i);
        buf_printf(out, "%s %s ", i ? "," : "", says[i]);
        if (isnan(r.median))
            buf_putc(out, '-');
        else
            buf_printf(out, "%.2f [%.2f, %.2f]", r.median, r.low, r.high);
    }
    buf_putc(out, '\n');
}

void load_put_reasons(buf *out, const load_tally *t)
{
    for (int i = 0; i < t->n_reasons; i++)
        buf_printf(out, "  %lld failed: %s\n", (long long)t->reason[i].n, t->reason[i].why.text);
    if (t->cut) buf_printf(out, "  %lld were cut\n", (long long)t->cut);
    if (t->counted)
        buf_printf(out, "  %lld responses had no usage: their tokens are counted by events\n", (long long)t->counted);
}

/* --- for programs -------------------------------------------------------------------------------*/
static void put_json_spread(json_writer *w, const char *key, double *x, size_t n)
{
    spread s = stats_spread(x, n);
    char   name[64];
    json_member_real(w, key, s.median);
    snprintf(name, sizeof name, "%s_mean", key);
    json_member_real(w, name, s.mean);
    snprintf(name, sizeof name, "%s_p99", key);
    json_member_real(w, name, s.p99);
}

static void put_json_reasons(json_writer *w, const load_tally *t)
{
    json_key(w, "failures");
    json_begin_array(w);
    for (int i = 0; i < t->n_reasons; i++) {
        json_begin_object(w);
        json_member_str(w, "reason", t->reason[i].why.text);
        json_member_int(w, "requests", t->reason[i].n);
        json_end(w);
    }
    json_end(w);
}

void load_put_json(json_writer *w, const char *name, load_tally *t)
{
    json_begin_object(w);
    json_member_str(w, "name", name);
    json_member_int(w, "answered", t->answered);
    json_member_int(w, "failed", t->failed);
    json_member_int(w, "cut", t->cut);
    json_member_real(w, "seconds", t->seconds);
    json_member_int(w, "prompt_tokens", t->prompt_tokens);
    json_member_int(w, "completion_tokens", t->completion_tokens);
    json_member_int(w, "cached_tokens", t->cached_tokens);
    json_member_bool(w, "tokens_by_pieces", t->counted > 0);
    result_interval(w, "tok_s", stats_median(t->tok_s, t->n_pairs));
    result_interval(w, "total_tok_s", stats_median(t->total_s, t->n_pairs));
    put_json_spread(w, "ttft_ms", t->ttft.x, t->ttft.n);
    put_json_spread(w, "tpot_ms", t->tpot.x, t->tpot.n);
    put_json_spread(w, "itl_ms", t->itl.x, t->itl.n);
    put_json_spread(w, "e2e_ms", t->e2e.x, t->e2e.n);
    json_member_real(w, "acceptance_length", load_acceptance_length(t));
    json_member_real(w, "acceptance_rate", load_acceptance_rate(t));
    put_json_reasons(w, t);
    json_end(w);
}

void load_put_json_ratios(json_writer *w, const load_tally *a, const load_tally *b)
{
    json_key(w, "ratios");
    json_begin_object(w);
    for (int i = 0; i < LOAD_RATIOS; i++) result_interval(w, ratio_names[i], load_ratio_of(a, b, (load_ratio)i));
    json_end(w);
}
