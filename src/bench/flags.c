#include "bench/flags.h"

#include "base/log.h"
#include "bench/arms.h"

#include <stdio.h>

static bool check_generate(const generate_flags *f, const opt_spec *usage)
{
    if (!generate_check_flags(f, usage)) return false;
    if (f->spec.method_given || f->stops.n || f->stats || f->system || f->think || f->logprobs >= 0)
        return opt_usage(usage, "--spec, --stop, --stats, --system, --think and --logprobs cannot be used with bench"),
               false;
    if (f->max_tokens == 0 || f->max_tokens == 1)
        return opt_usage(usage, "-n %d leaves nothing to measure: rates count the tokens after the first",
                         f->max_tokens),
               false;
    return true;
}

bool bench_check_shape(const shape_flags *f, const char *path, const opt_spec *usage)
{
    if (f->given && path) return opt_usage(usage, "--shape and --model exclude each other"), false;
    if (!f->given && (f->layers_given || f->quant_given))
        return opt_usage(usage, "--%s needs --shape", f->layers_given ? "layers" : "quant"), false;
    return true;
}

bool bench_choose_model(shape_flags *f, engine_options *opt, err *e)
{
    if (!f->given) return cli_resolve_model(&opt->path, e);
    if (!shape_target(&f->target, &f->spec, e)) return false;
    opt->path  = f->target.name;
    opt->image = f->target.bytes;
    return true;
}

bool bench_choose_drafter(shape_flags *f, draft_options *opt, err *e)
{
    if (!f->given || opt->paths.n) return true;
    if (!shape_drafter(&f->drafter, &f->spec, e)) return false;
    opt->image      = f->drafter.bytes;
    opt->image_name = f->drafter.name;
    return true;
}

bool bench_init_prompts(prompt_maker *p, const opened_model *g, err *e)
{
    const err *why = g->no_tok.code ? &g->no_tok : &g->no_format;
    err        bad = {0};
    if (g->tok && !g->no_format.code && prompts_init(p, g->tok, &g->format, g->model->n_vocab, &bad)) return true;
    if (bad.code) why = &bad;
    if (why->code) log_event(LOG_WARN, "bench", "%s: the prompts are random token ids", why->text);
    prompts_deinit(p);
    return prompts_init(p, NULL, NULL, g->model->n_vocab, e);
}

void bench_print_engine(const opened_model *g, const char *path, const kv_types *kv)
{
    char       kv_text[KV_TYPES_TEXT];
    const ops *o = g->model->o;
    printf("%s on %s (%s kernels), %d threads, K/V %s", cli_path_name(path), g->device.name,
           o->kernels ? o->kernels : "its own", o->n_threads, kv_types_text(kv, kv_text));
}

/* --- of the parts that compare methods ----------------------------------------------------------- */
bool bench_check_methods(method_flags *f, int answer, const opt_spec *usage)
{
    err e = {0};
    if (!check_generate(&f->gen, usage) || !bench_check_shape(&f->shape, f->gen.engine.path, usage)) return false;
    if (!arms_check(f->methods, &e)) return opt_usage(usage, "--methods: %s", e.text), false;
    if (f->shape.given && f->prompts)
        return opt_usage(usage, "--prompts cannot be used with --shape, which has no tokenizer"), false;
    if (!f->gen.seed_given) f->gen.seed = 1, f->gen.seed_given = true;
    if (f->gen.max_tokens < 0) f->gen.max_tokens = answer ? answer : f->shape.given ? 128 : 256;
    return true;
}

const char *bench_model_path(const method_flags *f) { return f->shape.given ? NULL : f->gen.engine.path; }
