#include "base/mem.h"
#include "cli/cli.h"
#include "cli/spans.h"

#include <stdio.h>

static struct {
    engine_options engine;
    const char    *ids, *out;
    bool           hidden;
    picture_flags  media;
} flags = {.engine = {.kv = {.types = KV_TYPES_ALL(CACHE_F32)}}};

static const option opts[] = {
    OPT_ENGINE(flags.engine),
    OPT_KV_TYPE(flags.engine, "f32"),
    OPT_KV_SLIDING(flags.engine),
    OPT_SPARSE(flags.engine),
    OPT_IDS(flags.ids),
    OPT_OUTPUT(flags.out),
    {.name = "hidden",
     .kind = OPT_FLAG,
     .dest = &flags.hidden,
     .help = "also hidden.L: 0 the embeddings, L before layer L, the last after the final norm"},
    {.name = "image",
     .kind = OPT_LIST,
     .dest = &flags.media.images,
     .arg  = "FILE",
     .help = "picture for the next run of image tokens in LIST (repeatable)"},
    {.name = "video",
     .kind = OPT_LIST,
     .dest = &flags.media.videos,
     .arg  = "FILE",
     .help = "video for the next runs of video tokens: a file, or frames as pictures with commas (repeatable)"},
    {.name = "image-tokens",
     .kind = OPT_INT,
     .dest = &flags.media.budget,
     .arg  = "N",
     .min  = 1,
     .max  = 1 << 16,
     .help = "soft tokens of a picture, for models with budgets (default: the model's)"},
    OPT_MMPROJ(flags.engine),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "logits", "logits [-m MODEL] --ids LIST -o FILE [FLAGS]",
    "Writes the tensor `logits` [tokens, vocabulary], after the softcap, computed with f32 K/V. With pictures also\n"
    "`soft_tokens` and `video_soft_tokens` [tokens, width].",
    opts, COUNT(opts)};

typedef struct {
    opened_model g;
    tok_ids      ids;
    float       *logits, *hidden; /* [T][V], [n_layers + 1][T][H] */

    media_prompt *media;   /* NULL: no pictures */
    float        *soft[2]; /* [n_soft][H]: soft tokens of pictures, and of videos */
    size_t        n_soft[2];
} work;

/* Encodes all pictures. */
static bool encode_spans(work *w, err *e)
{
    target *m = w->g.model;
    size_t  H = (size_t)m->n_embd, at[2] = {0, 0};
    for (int i = 0; i < media_prompt_spans(w->media); i++) {
        const media_span *s = media_prompt_span(w->media, i);
        w->n_soft[s->is_video] += (size_t)s->n;
    }
    for (int k = 0; k < 2; k++)
        if (w->n_soft[k] && !(w->soft[k] = mem_try_n(w->n_soft[k], H * sizeof(float))))
            return err_set(e, ERR_UNAVAILABLE, "no memory for %zu soft tokens", w->n_soft[k]);
    for (int i = 0; i < media_prompt_spans(w->media); i++) {
        const media_span *s = media_prompt_span(w->media, i);
        size_t           *n = &at[s->is_video];
        if (!target_encode(m, s, w->soft[s->is_video] + *n * H, e)) return false;
        *n += (size_t)s->n;
    }
    return true;
}

/* Sets the embeddings, the positions and the view of the rows of spans in a step from position `from` on. */
static void add_soft_rows(work *w, int from, int rows)
{
    target *m = w->g.model;
    step   *s = &w->g.step;
    size_t  H = (size_t)m->n_embd, at[2] = {0, 0};
    int     k = 0;
    step_clear(s);
    for (int pos = from; pos < from + rows;) {
        const media_span *x = k < media_prompt_spans(w->media) ? media_prompt_span(w->media, k) : NULL;
        if (x && pos >= x->first + x->n) {
            at[x->is_video] += (size_t)x->n;
            k++;
            continue;
        }
        bool soft = x && pos >= x->first;
        int  end = soft ? x->first + x->n : x ? x->first : from + rows, n = 0;
        for (; pos < end && pos < from + rows; pos++, n++) {
            step_add(s, kv_lane_index(w->g.lane_kv), pos, soft ? 0 : w->ids.p[pos], true);
            media_prompt_place(w->media, m->media ? m->media->image.cell : 1, pos,
                               s->section + ROPE_SECTIONS * (s->n_rows - 1));
        }
        if (!soft || !n) continue;
        step_embed(s, s->n_rows - n, n, w->soft[x->is_video] + (at[x->is_video] + (size_t)(pos - n - x->first)) * H);
        for (int i = s->n_rows - n; m->sees_ahead && i < s->n_rows; i++) step_see_ahead(s, i, x->first + x->n - 1);
    }
}

static bool take_memory(work *w, err *e)
{
    size_t        n, T = w->ids.n;
    const target *m  = w->g.model;
    bool          ok = size_mul(&n, T, (size_t)m->n_vocab) && (w->logits = mem_try_n(n, sizeof(float)));
    if (ok && flags.hidden)
        ok = size_mul(&n, T * (size_t)m->n_embd, (size_t)m->n_layers + 1) && (w->hidden = mem_try_n(n, sizeof(float)));
    return ok || err_set(e, ERR_LIMIT, "no memory for the results of %zu tokens", T);
}

static bool capture_all(target *m, err *e)
{
    int ids[1024];
    if (!flags.hidden) return true;
    for (int i = 0; i < m->n_layers; i++) ids[i] = i;
    return m->capture(m, ids, m->n_layers, e);
}

/* Copies the results of one step, from position `from` on. */
static void collect(work *w, int from, int rows, float *features)
{
    target *m = w->g.model;
    size_t  V = (size_t)m->n_vocab, H = (size_t)m->n_embd, T = w->ids.n, L = (size_t)m->n_layers;
    for (int first = 0; first < rows; first += HEAD_ROWS) {
        int n = rows - first < HEAD_ROWS ? rows - first : HEAD_ROWS;
        m->head(m, first, n);
        m->o->download(m->q, w->logits + (size_t)(from + first) * V, m->logits, (size_t)n * V * sizeof(float));
        m->o->sync(m->q);
    }
    if (!flags.hidden) return;
    m->o->download(m->q, w->hidden + (L * T + (size_t)from) * H, m->hidden, (size_t)rows * H * sizeof(float));
    m->o->download(m->q, features, m->features, (size_t)rows * L * H * sizeof(float));
    m->o->sync(m->q);
    for (size_t r = 0; r < (size_t)rows; r++)
        for (size_t l = 0; l < L; l++)
            memcpy(w->hidden + (l * T + (size_t)from + r) * H, features + (r * L + l) * H, H * sizeof(float));
}

static bool run_steps(work *w, err *e)
{
    opened_model *g = &w->g;
    target       *m = g->model;
    int           T = (int)w->ids.n;
    float *features = flags.hidden ? xnew_n(float, (size_t)m->max_rows *(size_t)m->n_layers *(size_t)m->n_embd) : NULL;
    bool   ok       = true;
    for (int from = 0, rows; ok && from < T; from += rows) {
        rows = T - from < m->max_rows ? T - from : m->max_rows;
        if (m->sees_ahead) rows = media_prompt_chunk(w->media, from, rows);
        if (!rows) {
            ok = err_set(e, ERR_LIMIT, "the picture at token %d has more rows than a step, which has %d", from,
                         m->max_rows);
            break;
        }
        add_soft_rows(w, from, rows);
        ok = kv_lane_grow(g->lane_kv, rows, 0, e) && m->step(m, g->kv, &g->step, e);
        if (ok) kv_lane_commit(g->lane_kv, NULL, 0);
        if (ok) collect(w, from, rows, features);
        ok = ok && m->o->check(m->q, e);
    }
    mem_free(features);
    return ok;
}

static bool write_results(const work *w, err *e)
{
    const target    *m = w->g.model;
    size_t           T = w->ids.n, n = 0;
    safetensors_out *t = xnew_n(safetensors_out, (size_t)m->n_layers + 4);
    char(*name)[24]    = xalloc_n((size_t)m->n_layers + 1, sizeof *name);
    t[n++]             = (safetensors_out){"logits", QUANT_F32, 2, {m->n_vocab, (int64_t)T, 1, 1}, w->logits};
    for (int l = 0; flags.hidden && l <= m->n_layers; l++) {
        snprintf(name[l], sizeof name[l], "hidden.%d", l);
        t[n++] = (safetensors_out){
            name[l], QUANT_F32, 2, {m->n_embd, (int64_t)T, 1, 1}, w->hidden + (size_t)l * T * (size_t)m->n_embd};
    }
    for (int k = 0; k < 2; k++)
        if (w->n_soft[k])
            t[n++] = (safetensors_out){k ? "video_soft_tokens" : "soft_tokens",
                                       QUANT_F32,
                                       2,
                                       {m->n_embd, (int64_t)w->n_soft[k], 1, 1},
                                       w->soft[k]};
    bool ok = safetensors_write(flags.out, t, n, e);
    mem_free(name);
    mem_free(t);
    return ok;
}

static bool open_and_run(work *w, err *e)
{
    flags.engine.n_ctx = (int)w->ids.n;
    if (!cli_open_pages(&w->g, &flags.engine, e)) return false;
    for (size_t i = 0; i < w->ids.n; i++)
        if (w->ids.p[i] >= w->g.model->n_vocab)
            return err_set(e, ERR_INPUT, "token id %d is not in the vocabulary of %d", w->ids.p[i],
                           w->g.model->n_vocab);
    return cli_load_spans(&w->media, &flags.media, w->g.model->media, &w->ids, e) && encode_spans(w, e) &&
           take_memory(w, e) && capture_all(w->g.model, e) && run_steps(w, e) && write_results(w, e);
}

int cmd_logits(int argc, char **args)
{
    int  n_args, code;
    err  e = {0};
    work w = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (!flags.ids) return opt_usage(&usage, "--ids LIST is missing");
    if (!flags.out) return opt_usage(&usage, "-o FILE is missing");
    if (n_args) return opt_usage(&usage, "unexpected argument '%s'", args[0]);
    if (!cli_resolve_model(&flags.engine.path, &e)) return cli_fail(&e);
    tok_ids_init(&w.ids, 1 << 24);
    if (!cli_parse_ids(&w.ids, str_of(flags.ids), 0, &e)) return opt_usage(&usage, "--ids: %s", e.text);
    if (!w.ids.n) return opt_usage(&usage, "--ids is empty");
    bool ok = cli_check_output(flags.out, &e) && open_and_run(&w, &e);
    mem_free(w.logits);
    mem_free(w.hidden);
    mem_free(w.soft[0]);
    mem_free(w.soft[1]);
    media_prompt_drop(w.media);
    tok_ids_deinit(&w.ids);
    open_close(&w.g);
    return ok ? 0 : cli_fail(&e);
}
