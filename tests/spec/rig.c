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

void rig_open(rig *g, const rig_options *o)
{
    static const char *const nano[] = {"models/nano/dflash.gguf", "models/nano/mtp.gguf"};
    char                     full[4096];
    checkpoint              *cp;
    err                      e  = {0};
    model_options            mo = {.device = o->device, .n_threads = o->n_threads};
    *g                          = (rig){0};
    arena_init(&g->mem, 64 << 20);
    need(checkpoint_open(&cp, rig_path(o->model ? o->model : "models/nano/target.gguf", full), &e), &e);
    need(model_open(&g->model, cp, &mo, &e), &e);
    checkpoint_close(cp);
    need(spec_new(&g->spec, g->model, &o->loop, &e), &e);
    for (int i = 0; i < (o->n_drafters ? o->n_drafters : 2); i++) {
        const char       *path = rig_path(o->drafters[i] ? o->drafters[i] : nano[i], arena_alloc(&g->mem, 4096));
        spec_draft_source src  = {.path = path, .opt = {.kv_type = o->loop.kv_type.draft, .n_ctx = o->draft_ctx}};
        need(spec_add_drafter(g->spec, &src, &e), &e);
    }
    rig_read_samples(g, o->samples ? o->samples : RIG_SAMPLES);
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
