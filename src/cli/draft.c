#include "base/mem.h"
#include "cli/cli.h"
#include "ops/sampling.h"

#include <stdio.h>

enum { DEFAULT_DRAFT = 4, ROOMY_CTX = 64 };

static struct {
    engine_options engine;
    const char    *drafter, *ids, *out;
    int            n_draft;
} flags = {.engine = {.kv = {.types = KV_TYPES_ALL(CACHE_F32)}}, .n_draft = DEFAULT_DRAFT};

static const option opts[] = {
    OPT_ENGINE(flags.engine),
    OPT_KV_TYPE(flags.engine, "f32"),
    OPT_KV_SLIDING(flags.engine),
    OPT_SPARSE(flags.engine),
    OPT_KV_DRAFT(flags.engine),
    {.name = "draft",
     .kind = OPT_STR,
     .dest = &flags.drafter,
     .arg  = "DRAFTER",
     .help = "drafter: GGUF file, directory, nano, nano-qwen or nano-vision (the DFlash drafter)"},
    OPT_IDS(flags.ids),
    OPT_OUTPUT(flags.out),
    {.name = "draft-max",
     .kind = OPT_INT,
     .dest = &flags.n_draft,
     .arg  = "N",
     .min  = 1,
     .max  = DRAFT_MAX,
     .help = "rows of a drafter that drafts token by token, such as MTP (default 4)"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "draft", "draft [-m MODEL] --draft D --ids LIST -o FILE [FLAGS]",
    "Writes one draft after the given ids and the model's greedy next token, computed with f32 K/V. Tensors: `next`\n"
    "[1], that token; `draft_hidden` [rows, width] and `draft_logits` [rows, vocabulary], before any softcap;\n"
    "`draft_tokens` [rows], the likeliest token of each row; for drafters that read hidden states of the model, these\n"
    "as `context_features` [tokens, width]. DFlash: all rows of the block, the row of `next` first; row i drafts the\n"
    "token i places after `next`, row 0 drafts none. MTP: --draft-max rows with a draft token each. DSpark and\n"
    "DFlash-2: `draft_hidden` of all rows of the block; `draft_logits` and `draft_tokens` of the rows with a draft "
    "token,\n"
    "logits after the softcap, DSpark's with the bias of the token before; `confidence` [rows], if the drafter has it.",
    opts, COUNT(opts)};

typedef struct {
    opened_model g;
    checkpoint  *files; /* files of the drafter */
    drafter     *d;
    draft_lane  *lane;
    tok_ids      ids; /* at the end also the next token */
    draft_job    job;
    int32_t      token[DRAFT_MAX + 1];       /* [rows] */
    float       *features, *hidden, *logits; /* [T][F], [hidden rows][H], [rows][V] */
} work;

static size_t feature_width(const work *w) { return (size_t)w->d->n_capture * (size_t)w->g.model->n_embd; }
static int    n_rows(const work *w) { return w->job.n + w->d->n_lead; }
static int    n_hidden_rows(const work *w) { return w->d->n_hidden_rows ? w->d->n_hidden_rows : n_rows(w); }

/* Uses a context as long as the text, like the reference. */
static bool open_drafter(work *w, err *e)
{
    int             T   = (int)w->ids.n;
    drafter_options opt = {
        .n_ctx = T > ROOMY_CTX ? T : ROOMY_CTX, .kv_type = flags.engine.kv.types.draft, .keep_rows = true};
    return drafter_open(&w->d, w->g.model, w->files, &opt, e) && w->d->lane_new(w->d, &w->lane, e) &&
           w->g.model->capture(w->g.model, w->d->capture_id, w->d->n_capture, e);
}

static bool take_memory(work *w, err *e)
{
    size_t n, rows = DRAFT_MAX + 1, hidden = (size_t)w->d->n_hidden_rows;
    if (hidden < rows) hidden = rows;
    bool ok = size_mul(&n, w->ids.n, feature_width(w)) && (!n || (w->features = mem_try_n(n, sizeof(float)))) &&
              (w->hidden = mem_try_n(hidden * (size_t)w->d->n_draft_hidden, sizeof(float))) &&
              (w->logits = mem_try_n(rows * (size_t)w->g.model->n_vocab, sizeof(float)));
    return ok || err_set(e, ERR_LIMIT, "no memory for the results of %zu tokens", w->ids.n);
}

static void download_floats(const work *w, float *to, dev from, size_t n)
{
    const target *m = w->g.model;
    m->o->download(m->q, to, from, n * sizeof(float));
    m->o->sync(m->q);
}

/* Runs one step of the target and passes its results to the drafter. */
static bool feed(work *w, int from, int rows, err *e)
{
    opened_model *g       = &w->g;
    target       *m       = g->model;
    int32_t      *row     = xnew_n(int32_t, (size_t)rows);
    bool          is_last = from + rows == (int)w->ids.n;
    size_t        F       = feature_width(w);
    draft_rows    kept    = {.pos = from, .row = row, .token = w->ids.p + from, .n = rows, .hidden = is_last ? 0 : -1};
    step_clear(&g->step);
    for (int i = 0; i < rows; i++) {
        row[i] = i;
        step_add(&g->step, kv_lane_index(g->lane_kv), from + i, w->ids.p[from + i], is_last && i == rows - 1);
    }
    bool ok = kv_lane_grow(g->lane_kv, rows, 0, e) && m->step(m, g->kv, &g->step, e);
    if (ok) kv_lane_commit(g->lane_kv, NULL, 0);
    if (ok && F) download_floats(w, w->features + (size_t)from * F, m->features, (size_t)rows * F);
    ok = ok && w->d->observe(w->d, w->lane, &kept, e);
    mem_free(row);
    return ok;
}

static bool run_target(work *w, err *e)
{
    opened_model *g = &w->g;
    int32_t       next;
    int           T = (int)w->ids.n, max = g->model->max_rows;
    for (int from = 0; from < T; from += max)
        if (!feed(w, from, T - from < max ? T - from : max, e)) return false;
    g->model->head(g->model, 0, 1);
    download_floats(w, w->logits, g->model->logits, (size_t)g->model->n_vocab);
    if (!g->model->o->check(g->model->q, e)) return false;
    next = sampling_argmax(w->logits, g->model->n_vocab);
    if (next < 0) return err_set(e, ERR_FORMAT, "no token can be picked: the weights are damaged");
    return tok_ids_put(&w->ids, next) || err_set(e, ERR_LIMIT, "too many token ids");
}

static bool run_drafter(work *w, err *e)
{
    int        max = w->d->max_draft, n = w->d->one_pass || flags.n_draft > max ? max : flags.n_draft;
    draft_job *jobs[] = {&w->job};
    w->job            = (draft_job){.lane    = w->lane,
                                    .kv_lane = kv_lane_index(w->g.lane_kv),
                                    .text    = w->ids.p,
                                    .n_text  = (int32_t)w->ids.n,
                                    .params  = {.top_p = 1},
                                    .n_want  = n};
    if (!w->d->draft(w->d, w->g.kv, jobs, 1, e)) return false;
    if (!w->job.n) return err_set(e, ERR_INPUT, "the drafter has no draft token after this text");
    int rows = n_rows(w), lead = w->d->n_lead, V = w->g.model->n_vocab;
    download_floats(w, w->hidden, w->d->draft_hidden, (size_t)n_hidden_rows(w) * (size_t)w->d->n_draft_hidden);
    download_floats(w, w->logits, w->d->draft_logits, (size_t)rows * (size_t)V);
    for (int i = 0; i < rows; i++) w->token[i] = i < lead ? sampling_argmax(w->logits, V) : w->job.token[i - lead];
    return w->g.model->o->check(w->g.model->q, e);
}

static bool write_results(const work *w, err *e)
{
    int64_t         T = (int64_t)w->ids.n - 1, F = (int64_t)feature_width(w), rows = n_rows(w);
    safetensors_out t[6] = {
        {"next", QUANT_I32, 1, {1, 1, 1, 1}, &w->ids.p[T]},
        {"draft_tokens", QUANT_I32, 1, {rows, 1, 1, 1}, w->token},
        {"draft_logits", QUANT_F32, 2, {w->g.model->n_vocab, rows, 1, 1}, w->logits},
        {"draft_hidden", QUANT_F32, 2, {w->d->n_draft_hidden, n_hidden_rows(w), 1, 1}, w->hidden},
    };
    size_t n = 4;
    if (F) t[n++] = (safetensors_out){"context_features", QUANT_F32, 2, {F, T, 1, 1}, w->features};
    if (w->d->confident) t[n++] = (safetensors_out){"confidence", QUANT_F32, 1, {w->job.n, 1, 1, 1}, w->job.confidence};
    return safetensors_write(flags.out, t, n, e);
}

static bool open_and_run(work *w, err *e)
{
    flags.engine.n_ctx = (int)w->ids.n;
    if (!checkpoint_open(&w->files, flags.drafter, e) || !cli_open_pages(&w->g, &flags.engine, e)) return false;
    for (size_t i = 0; i < w->ids.n; i++)
        if (w->ids.p[i] >= w->g.model->n_vocab)
            return err_set(e, ERR_INPUT, "token id %d is not in the vocabulary of %d", w->ids.p[i],
                           w->g.model->n_vocab);
    return open_drafter(w, e) && take_memory(w, e) && run_target(w, e) && run_drafter(w, e) && write_results(w, e);
}

static void close_all(work *w)
{
    mem_free(w->features);
    mem_free(w->hidden);
    mem_free(w->logits);
    tok_ids_deinit(&w->ids);
    if (w->d) w->d->lane_free(w->d, w->lane);
    drafter_close(w->d);
    open_close(&w->g);
    checkpoint_close(w->files);
}

/* Selects the first of the two drafters of a built-in model, DFlash. */
static bool resolve_drafter(err *e)
{
    draft_options d = {.paths = {.item = {flags.drafter}, .n = 1}};
    if (!cli_resolve_drafters(&d, flags.engine.path, NULL, e)) return false;
    if (!d.paths.n) return err_set(e, ERR_INPUT, "there is no drafter: --draft is %s", flags.drafter);
    flags.drafter = d.paths.item[0];
    return true;
}

int cmd_draft(int argc, char **args)
{
    int  n_args, code;
    err  e = {0};
    work w = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (!flags.drafter) return opt_usage(&usage, "--draft D is missing");
    if (!flags.ids) return opt_usage(&usage, "--ids LIST is missing");
    if (!flags.out) return opt_usage(&usage, "-o FILE is missing");
    if (n_args) return opt_usage(&usage, "unexpected argument '%s'", args[0]);
    if (!cli_resolve_model(&flags.engine.path, &e) || !resolve_drafter(&e)) return cli_fail(&e);
    tok_ids_init(&w.ids, 1 << 24);
    if (!cli_parse_ids(&w.ids, str_of(flags.ids), 0, &e)) return opt_usage(&usage, "--ids: %s", e.text);
    if (!w.ids.n) return opt_usage(&usage, "--ids is empty");
    bool ok = cli_check_output(flags.out, &e) && open_and_run(&w, &e);
    close_all(&w);
    return ok ? 0 : cli_fail(&e);
}
