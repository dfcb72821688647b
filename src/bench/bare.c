#include "bench/bare.h"

#include "base/clock.h"

#include <limits.h>

bool bare_open(opened_model *g, generate_flags *f, err *e)
{
    if (!cli_open_loop(g, &f->engine, e) || !cli_resolve_drafters(&f->draft, f->engine.path, NULL, e)) return false;
    cli_add_drafters(g, &f->draft, f->engine.kv.types.draft);
    return true;
}

bool bare_init(bare *a, opened_model *g, const tok *t, const generate_flags *f, err *e)
{
    tandem_request r;
    tandem_bias    bias[TANDEM_MAX_BIAS];
    *a = (bare){.g = g, .max_tokens = f->max_tokens};
    tok_ids_init(&a->stops, 1024);
    for (int i = 0; i < g->model->n_stop_ids; i++) tok_ids_put(&a->stops, g->model->stop_id[i]);
    if (t) tok_stop_ids(t, &a->stops);
    job_request_init(&r, g->model);
    if (!generate_apply(&r, f, g->model->n_vocab, bias, e)) return false;
    job_settle_seed(&r);
    return job_lane_options(&a->lane, g->model, &r, a->bias, e);
}

void bare_deinit(bare *a) { tok_ids_deinit(&a->stops); }

bool bare_check(const bare *a, const tok_ids *prompt, err *e)
{
    return generate_check(prompt, a->g->n_ctx, a->g->model->n_vocab, a->max_tokens, e);
}

static bool is_stop(const bare *a, int32_t id)
{
    for (size_t i = 0; i < a->stops.n; i++)
        if (a->stops.p[i] == id) return true;
    return false;
}

static int token_limit(const bare *a) { return a->max_tokens >= 0 ? a->max_tokens : INT_MAX; }

/* Delivers the tokens of one step one by one, up to the end of the response. */
static bool take_tokens(bare *a)
{
    const spec_out *out  = spec_lane_out(a->g->lane);
    bool            more = a->n_out < token_limit(a);
    int             n    = 0;
    while (more && n < out->n) {
        int32_t id = out->token[n++];
        a->n_out++;
        more = a->on_token(a->ctx, id) && (a->ignore_eos || !is_stop(a, id)) && a->n_out < token_limit(a);
    }
    spec_lane_keep(a->g->lane, n);
    return more;
}

static bool run_lane(bare *a, err *e)
{
    spec_lane *l     = a->g->lane;
    double     start = clock_s();
    bool       more  = true;
    while (more && !spec_lane_full(l)) {
        spec_lane_limit(l, token_limit(a) - a->n_out);
        bool prompt = a->n_out == 0;
        if (!spec_step_alone(a->g->spec, &l, 1, e)) return false;
        if (prompt) a->prefill_s = clock_s() - start;
        if (spec_lane_out(l)->problem) return err_set(e, ERR_FORMAT, "%s", spec_lane_out(l)->problem);
        more = spec_lane_out(l)->n == 0 || take_tokens(a);
    }
    a->decode_s = clock_s() - start - a->prefill_s;
    return true;
}

bool bare_run(bare *a, const tok_ids *prompt, err *e)
{
    lane_request r = {
        .opt = a->lane, .prompt = prompt->p, .n_prompt = prompt->n, .max_new = a->max_tokens > 0 ? a->max_tokens : 0};
    a->n_out    = 0;
    a->n_prompt = prompt->n;
    bool ok     = spec_lane_begin(a->g->lane, &r, &a->n_reused, e) && run_lane(a, e);
    spec_lane_end(a->g->lane);
    return ok;
}
