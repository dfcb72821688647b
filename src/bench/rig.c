#include "bench/rig.h"

#include "bench/bare.h"

#include <stdio.h>

int bench_run(const bench_command *c, provenance *from, void *ctx, int argc, char **args)
{
    int n_args, code;
    err e = {0};
    provenance_command(from, c->part, argc, args);
    if (!opt_parse(c->usage, argc, args, &n_args, &code)) return code;
    if (n_args) return opt_usage(c->usage, "'%s' %s", args[0], c->stray ? c->stray : "is not a flag");
    if (!c->check(ctx)) return 2;
    if (c->json && *c->json && !cli_check_output(*c->json, &e)) return cli_fail(&e);
    return c->measure(ctx, &e) ? 0 : cli_fail(&e);
}

bool bench_measure(const measure_plan *plan, bool (*measure_arm)(void *ctx, const measure_run *at, err *e), void *ctx,
                   err *e)
{
    progress_bar bar;
    measure_loop loop;
    measure_run  at;
    bool         ok = true;
    progress_start(&bar, "measuring");
    bar.no_bytes = true;
    for (measure_begin(&loop, plan); ok && measure_next(&loop, &at);) {
        progress_show(&bar, loop.n_begun - 1, measure_total(plan));
        ok = measure_arm(ctx, &at, e);
    }
    progress_end(&bar);
    return ok;
}

void bench_print_interval(interval i, int width, int digits)
{
    char text[96];
    snprintf(text, sizeof text, "%.*f [%.*f, %.*f]", digits, i.median, digits, i.low, digits, i.high);
    printf(" %*s", width, text);
}

bool rig_open(bench_rig *r, method_flags *f, bool with_texts, err *e)
{
    generate_flags *g = &f->gen;
    g->spec.method    = SPEC_AUTO; /* all drafters are wanted */
    g->engine.text    = !f->shape.given;
    if (!bench_choose_model(&f->shape, &g->engine, e) || !bench_choose_drafter(&f->shape, &g->draft, e) ||
        !bare_open(&r->g, g, e))
        return false;
    if (!with_texts || f->shape.given || r->g.tok) return true;
    *e = r->g.no_tok;
    return false;
}

bool rig_note_files(bench_rig *r, const method_flags *f, err *e)
{
    return provenance_files(&r->from, bench_model_path(f), &f->gen.draft, !f->no_hash, e);
}

bool rig_choose_arms(const bench_rig *r, const method_flags *f, arm_choice out[ARMS_MAX], int *n, err *e)
{
    tandem_speculation base = generate_speculation(&f->gen.spec);
    return arms_choose(out, n, f->methods, r->g.spec, &base, e);
}

bool rig_fill_prompts(bench_rig *r, const method_flags *f, int n_random, int n_tokens, err *e)
{
    const char   *path = bench_model_path(f);
    prompt_source from = {.n_vocab = r->g.model->n_vocab, .tok = r->g.tok, .file = f->prompts, .n_tokens = n_tokens};
    if (!path)
        from.n_random = n_random;
    else if (r->g.no_format.code)
        return err_set(e, r->g.no_format.code, "%s", r->g.no_format.text);
    from.format = r->g.format;
    return prompt_set_fill(&r->prompts, &from, e);
}

static void ring_news(void *news) { bell_ring(news); }

bool rig_serve(bench_rig *r, const method_flags *f, int lanes, bell *news, err *e)
{
    sched_options so = {.spec        = r->g.spec,
                        .model       = r->g.model,
                        .tok         = r->g.tok,
                        .n_ctx       = r->g.n_ctx,
                        .max_lanes   = lanes,
                        .step_tokens = r->g.model->max_rows,
                        .wake_s      = SCHED_WAKE_MS / 1e3,
                        .wake        = news ? ring_news : NULL,
                        .wake_ctx    = news};
    settings_init(&so.settings);
    so.settings.default_max_tokens = r->g.n_ctx;
    job_request_init(&r->request, r->g.model);
    if (!generate_apply(&r->request, &f->gen, r->g.model->n_vocab, r->bias, e)) return false;
    r->request.ignore_stop_ids = f->shape.given;
    return spec_warm(r->g.spec, e) && sched_new(&r->sched, &so, e);
}

void rig_close(bench_rig *r, method_flags *f)
{
    sched_free(r->sched);
    prompt_set_deinit(&r->prompts);
    open_close(&r->g);
    provenance_deinit(&r->from);
    shape_free(&f->shape.target);
    shape_free(&f->shape.drafter);
}
