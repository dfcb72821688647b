#include "rig.h"

#include "base/file.h"
#include "base/inside.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

static void need(bool ok, const err *e)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s\n", e->text);
    exit(1);
}

const char *rig_path(const char *path, char out[4096])
{
    const char *moved = getenv("TANDEM_ROOT"); /* programs that were built elsewhere */
    if (path[0] == '/')
        snprintf(out, 4096, "%s", path);
    else
        snprintf(out, 4096, "%s/%s", moved ? moved : TANDEM_ROOT, path);
    return out;
}

/* --- models ---------------------------------------------------------------------------------------*/
static const rig_model models[] = {
    {"nano", "models/nano/target.gguf", {"models/nano/dflash.gguf", "models/nano/mtp.gguf"}, RIG_SAMPLES, false},
    {"nano-vision", "models/nano/target.gguf", {"models/nano/dflash.gguf", "models/nano/mtp.gguf"}, RIG_SAMPLES, false},
    {"nano-qwen",
     "models/nano-qwen/target.gguf",
     {"models/nano-qwen/dflash.gguf", "models/nano-qwen/target.gguf"},
     "tests/golden/nano-qwen/dflash-acceptance.json",
     false},
    {"qwen35-dense",
     "tests/golden/qwen35-dense",
     {"tests/golden/qwen35-dense-dflash", "tests/golden/qwen35-dense"},
     NULL,
     true},
    {"qwen35-moe",
     "tests/golden/qwen35-moe",
     {"tests/golden/qwen35-dense-dflash", "tests/golden/qwen35-moe"},
     NULL,
     true},
    {"qwen35-dspark",
     "tests/golden/qwen35-dense",
     {"tests/golden/qwen35-dense-dspark", "tests/golden/qwen35-dense"},
     NULL,
     true},
    {"gemma4-dspark", "tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dspark", NULL}, NULL, true},
    {"gemma4-dflash2", "tests/golden/gemma4-dense", {"tests/golden/gemma4-dense-dflash2", NULL}, NULL, true},
};

const rig_model *rig_find_model(const char *name)
{
    for (size_t i = 0; i < COUNT(models); i++)
        if (!strcmp(models[i].name, name)) return &models[i];
    fprintf(stderr, "no model '%s', but", name);
    for (size_t i = 0; i < COUNT(models); i++) fprintf(stderr, " %s", models[i].name);
    fputc('\n', stderr);
    exit(2);
}

oracle *rig_oracle_new(const rig_model *m) { return m->random ? oracle_new(1) : NULL; }

static bool (*oracle_draft)(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e);

/* Makes every other second candidate right. The oracle's are the right id plus 2. */
static bool draft_branches(drafter *d, kv_pool *kv, draft_job *const *jobs, int n_jobs, err *e)
{
    int n_vocab = d->t->n_vocab;
    if (!oracle_draft(d, kv, jobs, n_jobs, e)) return false;
    for (int i = 0; i < n_jobs; i++)
        for (int k = 0; k < jobs[i]->n && jobs[i]->n_top > 1; k++)
            if ((jobs[i]->n_text + k) % 2) jobs[i]->top[k][1].id = (jobs[i]->top[k][1].id + n_vocab - 2) % n_vocab;
    return true;
}

drafter *rig_oracle_wrap(void *ctx, drafter *d)
{
    drafter *v   = oracle_wrap(ctx, d);
    err      e   = {0};
    oracle_draft = v->draft;
    v->draft     = draft_branches;
    need(oracle_accept(ctx, 3, &e), &e);
    return v;
}

/* --- prompts --------------------------------------------------------------------------------------*/
static int read_ids(rig *g, const json_value *v, int32_t **out)
{
    *out = arena_new_n(&g->mem, int32_t, v->n);
    for (size_t i = 0; i < v->n; i++) (*out)[i] = (int32_t)v->item[i].i;
    return (int)v->n;
}

static void read_sample(rig *g, sample *s, const json_value *v)
{
    const json_value *rounds = json_get(v, "rounds");
    double            sum    = 0;
    s->kind                  = json_get(v, "class")->s;
    s->n_prompt              = read_ids(g, json_get(v, "prompt"), &s->prompt);
    s->n_answer              = read_ids(g, json_get(v, "answer"), &s->answer);
    for (size_t i = 0; i < rounds->n; i++) sum += (double)rounds->item[i].i;
    s->n_rounds   = (int)rounds->n;
    s->mean_round = rounds->n ? sum / (double)rounds->n : 0;
}

void rig_read_samples(rig *g, const char *path)
{
    char              full[4096];
    file_map          map = {0};
    const json_value *all;
    err               e = {0};
    need(file_map_open(&map, rig_path(path, full), &e), &e);
    need(json_parse(&all, &g->mem, (str){map.p, map.n}, NULL, &e), &e);
    g->n_samples = (int)all->n;
    g->samples   = xnew_n(sample, all->n);
    for (int i = 0; i < g->n_samples; i++) read_sample(g, &g->samples[i], &all->item[i]);
}

void rig_limit_ids(rig *g, int n_vocab)
{
    for (int i = 0; i < g->n_samples; i++) {
        sample *s = &g->samples[i];
        for (int k = 0; k < s->n_prompt; k++) s->prompt[k] = 2 + s->prompt[k] % (n_vocab - 2);
        for (int k = 0; k < s->n_answer; k++) s->answer[k] = 2 + s->answer[k] % (n_vocab - 2);
    }
}

void rig_open(rig *g, const rig_options *o)
{
    char          full[4096];
    checkpoint   *cp;
    err           e  = {0};
    model_options mo = {.device = o->device, .n_threads = o->n_threads};
    *g               = (rig){0};
    arena_init(&g->mem, 64 << 20);
    need(checkpoint_open(&cp, rig_path(o->model ? o->model : models[0].model, full), &e), &e);
    need(model_open(&g->model, cp, &mo, &e), &e);
    checkpoint_close(cp);
    need(spec_new(&g->spec, g->model, &o->loop, &e), &e);
    for (int i = 0; i < (o->n_drafters ? o->n_drafters : 2); i++) {
        const char *path =
            rig_path(o->drafters[i] ? o->drafters[i] : models[0].drafters[i], arena_alloc(&g->mem, 4096));
        spec_draft_source src = {.path     = path,
                                 .opt      = {.kv_type = o->loop.kv_type.draft, .n_ctx = o->draft_ctx},
                                 .wrap     = o->oracle ? rig_oracle_wrap : NULL,
                                 .wrap_ctx = o->oracle};
        need(spec_add_drafter(g->spec, &src, &e), &e);
    }
    rig_read_samples(g, o->samples ? o->samples : RIG_SAMPLES);
    if (o->n_vocab) rig_limit_ids(g, o->n_vocab);
}

void rig_close(rig *g)
{
    spec_free(g->spec);
    model_close(g->model);
    mem_free(g->samples);
    arena_deinit(&g->mem);
}

bool rig_is_stop(const rig *g, int32_t id)
{
    for (int i = 0; i < g->model->n_stop_ids; i++)
        if (g->model->stop_id[i] == id) return true;
    return false;
}

void rig_answer(rig *g, spec_lane *l, const lane_options *o, const sample *s, int max_tokens, keep_fn *keep, void *ctx,
                answer *out)
{
    err    e = {0};
    size_t reused;
    bool   more = true;
    out->n      = 0;
    need(spec_lane_begin(l, &(lane_request){.opt = *o, .prompt = s->prompt, .n_prompt = (size_t)s->n_prompt}, &reused,
                         &e),
         &e);
    while (more && !spec_lane_full(l)) {
        spec_lane_limit(l, max_tokens - out->n);
        need(spec_step_alone(g->spec, &l, 1, &e), &e);
        const spec_out *x = spec_lane_out(l);
        int             n = x->n && keep ? keep(ctx, x->n) : x->n, k = 0;
        for (; more && k < n; k++) {
            out->logprob[out->n] = o->n_top >= 0 ? x->logprob[k][0].logprob : 0;
            out->token[out->n++] = x->token[k];
            more                 = !rig_is_stop(g, x->token[k]) && out->n < max_tokens;
        }
        if (x->n) spec_lane_keep(l, k);
    }
    out->stats = *spec_lane_stats(l);
}
