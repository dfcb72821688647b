#include "sched/job.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "ops/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { MAX_PRIORITY = 100 };

/* --- what requests are made for -----------------------------------------------------------------*/
bool job_maker_init(job_maker *m, const target *model, const tok *t, int n_ctx, int max_lanes, err *e)
{
    *m = (job_maker){.model = model, .tok = t, .n_ctx = n_ctx, .max_span = model->max_rows};
    tok_ids_init(&m->stops, TANDEM_MAX_STOP_IDS);
    for (int i = 0; i < model->n_stop_ids; i++) tok_ids_put(&m->stops, model->stop_id[i]);
    if (t) tok_stop_ids(t, &m->stops);
    if (getrandom(m->secret, sizeof m->secret, 0) != (ssize_t)sizeof m->secret)
        return err_set(e, ERR_IO, "cannot get random numbers from the system: %s", strerror(errno));
    m->grammars = grammar_cache_new(t, m->stops.p, m->stops.n, max_lanes);
    return !m->stops.failed || err_set(e, ERR_UNAVAILABLE, "no memory for stop tokens");
}

void job_maker_deinit(job_maker *m)
{
    grammar_cache_free(m->grammars);
    tok_ids_deinit(&m->stops);
}

/* --- checks -------------------------------------------------------------------------------------*/
static bool in_range(const char *name, double x, double min, double max, err *e)
{
    return (x >= min && x <= max) ||
           err_set(e, ERR_INPUT, "%s must be between %.10g and %.10g, got %.10g", name, min, max, x);
}

static bool check_sampling(const tandem_request *r, err *e)
{
    return in_range("temp", r->temp, 0, 100, e) && in_range("top_p", r->top_p, 0, 1, e) &&
           in_range("min_p", r->min_p, 0, 1, e) && in_range("top_k", r->top_k, 0, 1 << 22, e) &&
           in_range("choice", r->choice, 0, 1 << 20, e) &&
           in_range("repeat_penalty", r->repeat_penalty, 0.01, 100, e) &&
           in_range("presence_penalty", r->presence_penalty, -100, 100, e) &&
           in_range("frequency_penalty", r->frequency_penalty, -100, 100, e) &&
           in_range("logprobs", r->logprobs, -1, TANDEM_MAX_LOGPROBS, e);
}

bool job_check_speculation(const tandem_speculation *s, err *e)
{
    return in_range("spec.method", s->method, TANDEM_SPEC_OFF, TANDEM_SPEC_AUTO, e) &&
           in_range("spec.draft_max", s->draft_max, 0, DRAFT_MAX, e) &&
           in_range("spec.tree_budget", s->tree_budget, 0, DRAFT_MAX, e) &&
           in_range("spec.tree_temp", s->tree_temp, 0, 100, e) &&
           in_range("spec.draft_noise", s->draft_noise, 0, 1, e) &&
           in_range("spec.draft_tail", s->draft_tail, 0, DRAFT_MAX, e);
}

static int limited(int asked, int limit) { return limit && (!asked || asked > limit) ? limit : asked; }

void job_limit_speculation(tandem_speculation *s, const tandem_speculation *limit)
{
    if (s->method != TANDEM_SPEC_OFF && limit->method != TANDEM_SPEC_AUTO) s->method = limit->method;
    s->draft_max   = limited(s->draft_max, limit->draft_max);
    s->tree_budget = limited(s->tree_budget, limit->tree_budget);
}

static bool check_limits(const tandem_request *r, err *e)
{
    return in_range("max_tokens", r->max_tokens, -1, INT32_MAX, e) &&
           (!r->prompt_logprobs || r->logprobs >= 0 ||
            err_set(e, ERR_INPUT, "prompt_logprobs needs logprobs to be 0 or more")) &&
           in_range("min_tokens", r->min_tokens, 0, INT32_MAX, e) &&
           in_range("priority", r->priority, -MAX_PRIORITY, MAX_PRIORITY, e) &&
           in_range("time_limit_s", r->time_limit_s, 0, 1e9, e) &&
           in_range("stop_ids", (double)r->n_stop_ids, 0, TANDEM_MAX_STOP_IDS, e);
}

void job_request_init(tandem_request *r, const target *m)
{
    *r = (tandem_request){.max_tokens     = -1,
                          .temp           = m->defaults.temp,
                          .top_p          = m->defaults.top_p,
                          .min_p          = m->defaults.min_p,
                          .top_k          = m->defaults.top_k,
                          .repeat_penalty = 1,
                          .logprobs       = -1,
                          .spec.method    = TANDEM_SPEC_AUTO};
}

/* --- what decides the text ----------------------------------------------------------------------*/
static bool put_bias(logit_bias *room, int *n, const target *m, tandem_bias b, err *e)
{
    if (b.token < 0 || b.token >= m->n_vocab)
        return err_set(e, ERR_INPUT, "bias: token %d is not in the vocabulary of %d", b.token, m->n_vocab);
    if (isnan(b.bias) || b.bias == INFINITY)
        return err_set(e, ERR_INPUT, "bias: the value of token %d is not a number", b.token);
    for (int i = 0; i < *n; i++)
        if (room[i].token == b.token) return err_set(e, ERR_INPUT, "bias: token %d appears twice", b.token);
    room[(*n)++] = (logit_bias){b.token, b.bias};
    return true;
}

/* The request's biases, and a ban on what the model's files say is never to be picked. */
static bool choose_biases(penalty_params *p, const target *m, const tandem_request *r, logit_bias *room, err *e)
{
    p->bias = room;
    if (!in_range("bias: the number of entries", (double)r->n_bias, 0, TANDEM_MAX_BIAS, e)) return false;
    for (size_t i = 0; i < r->n_bias; i++)
        if (!put_bias(room, &p->n_bias, m, r->bias[i], e)) return false;
    for (int i = 0; i < m->n_suppress_ids; i++) {
        int k = 0;
        while (k < p->n_bias && room[k].token != m->suppress_id[i]) k++;
        room[k] = (logit_bias){m->suppress_id[i], -INFINITY};
        p->n_bias += k == p->n_bias;
    }
    return true;
}

void job_settle_seed(tandem_request *r)
{
    if (!r->has_seed && getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed) r->seed = (uint64_t)clock_ns();
    r->has_seed = true;
}

spec_settings job_spec_settings(const tandem_speculation *s)
{
    return (spec_settings){.method        = (int)s->method,
                           .draft_max     = s->draft_max,
                           .tree_budget   = s->tree_budget,
                           .tree_temp     = s->tree_temp,
                           .no_chain_seed = s->no_chain_seed,
                           .draft_noise   = s->draft_noise,
                           .draft_tail    = s->draft_tail};
}

bool job_lane_options(lane_options *out, const target *model, const tandem_request *r, logit_bias *room, err *e)
{
    const tandem_speculation *s = &r->spec;
    _Static_assert((int)TANDEM_SPEC_NGRAM == (int)SPEC_NGRAM && (int)TANDEM_SPEC_AUTO == (int)SPEC_AUTO &&
                       (int)TANDEM_SPEC_METHODS == (int)SPEC_COUNTED,
                   "one list");
    if (!check_sampling(r, e) || !job_check_speculation(s, e)) return false;
    *out = (lane_options){
        .params  = {.temp  = r->temp,
                    .top_p = r->top_p,
                    .min_p = r->min_p,
                    .top_k = r->top_k,
                    .seed  = sampling_choice_seed(r->seed, r->choice)},
        .penalty = {.repeat = r->repeat_penalty, .presence = r->presence_penalty, .frequency = r->frequency_penalty},
        .n_top   = r->logprobs,
        .score_prompt = r->prompt_logprobs,
        .spec         = job_spec_settings(s)};
    return choose_biases(&out->penalty, model, r, room, e);
}

/* --- a new job ----------------------------------------------------------------------------------*/
static bool no_memory(err *e) { return err_set(e, ERR_UNAVAILABLE, "no memory for this request now"); }

static bool put_text_prompt(tandem_job *j, const tandem_request *r, err *e)
{
    const tok *t = j->maker->tok;
    if (!t) return err_set(e, ERR_INPUT, "the model has no tokenizer: the prompt must be token ids");
    if (tok_add_bos(t)) tok_ids_put(&j->prompt, tok_bos(t));
    return tok_encode(t, &j->prompt, (str){r->text, r->n_text ? r->n_text : strlen(r->text)}, false, e);
}

/* Checks the length first, so that the error of a prompt that never fits is deterministic. */
static bool check_context(const job_maker *m, size_t n_prompt, int32_t max_tokens, err *e)
{
    size_t room = (size_t)m->n_ctx - (max_tokens != 0);
    if (n_prompt == 0) return err_set(e, ERR_INPUT, "the prompt is empty");
    if (n_prompt <= room) return true;
    err_set(e, ERR_CONTEXT, "the prompt has %zu tokens and the context holds %d, including the response", n_prompt,
            m->n_ctx);
    return err_blame(e, NULL, m->n_ctx);
}

static bool take_prompt(tandem_job *j, const tandem_request *r, err *e)
{
    const job_maker *m = j->maker;
    tok_ids_init(&j->prompt, TANDEM_MAX_PROMPT);
    if (!r->ids && r->text && !put_text_prompt(j, r, e)) return false;
    if (!check_context(m, r->ids ? r->n_ids : j->prompt.n, r->max_tokens, e)) return false;
    if (r->ids) tok_ids_put_n(&j->prompt, r->ids, r->n_ids);
    if (j->prompt.failed) return no_memory(e);
    for (size_t i = 0; i < j->prompt.n; i++)
        if (j->prompt.p[i] < 0 || j->prompt.p[i] >= m->model->n_vocab)
            return err_set(e, ERR_INPUT, "token %d of the prompt is not in the vocabulary of %d", j->prompt.p[i],
                           m->model->n_vocab);
    return true;
}

static bool check_span(const tandem_job *j, const media_rules *m, const media_span *s, err *e)
{
    const patch_rule *r  = s->is_video ? &m->video : &m->image;
    int32_t           id = s->is_video ? m->video_id : m->image_id;
    if (s->n < 1 || s->first < 0 || (size_t)s->first + (size_t)s->n > j->prompt.n)
        return err_set(e, ERR_INPUT, "a picture has the tokens %d to %d of a prompt of %zu", s->first,
                       s->first + s->n - 1, j->prompt.n);
    if (s->n != patch_cells(r, s->width, s->height))
        return err_set(e, ERR_INPUT, "a picture of %d x %d pixels takes %d tokens, got %d", s->width, s->height,
                       patch_cells(r, s->width, s->height), s->n);
    for (int32_t i = 0; i < s->n; i++)
        if (j->prompt.p[s->first + i] != id)
            return err_set(e, ERR_INPUT, "token %d of the prompt is %d, expected %d for a %s", s->first + i,
                           j->prompt.p[s->first + i], id, s->is_video ? "video" : "picture");
    if (j->maker->model->sees_ahead && s->n > j->maker->max_span)
        return err_set(e, ERR_INPUT,
                       "a picture has %d tokens, which run in one step, and a step has room for %d (--step-tokens)",
                       s->n, j->maker->max_span);
    return true;
}

/* Checks the pictures, counts their tokens, and marks these. */
static bool take_media(tandem_job *j, const tandem_request *r, err *e)
{
    const media_rules *m = j->maker->model->media;
    size_t             n = (size_t)media_prompt_spans(j->media);
    if (!n) return true;
    if (!m) return err_set(e, ERR_INPUT, "the model reads text only, and the prompt has pictures");
    if (r->prompt_logprobs) return err_set(e, ERR_INPUT, "prompt_logprobs and pictures exclude each other");
    j->held = arena_try(&j->mem, n, sizeof *j->held);
    j->soft = arena_try(&j->mem, n, sizeof *j->soft);
    if (!j->held || !j->soft) return no_memory(e);
    tandem_usage *u = &j->result.usage;
    for (int i = 0; i < media_prompt_spans(j->media); i++) {
        const media_span *s = media_prompt_span(j->media, i);
        if (!check_span(j, m, s, e)) return false;
        *(s->is_video ? &u->video_tokens : &u->image_tokens) += s->n;
        if ((size_t)(s->first + s->n) == j->prompt.n)
            return err_set(e, ERR_INPUT, "the prompt ends with a picture, expected a token after it");
    }
    media_prompt_mark(j->media, j->prompt.p, j->prompt.n);
    return true;
}

/* One token lies beyond the context: it is decided, but nothing follows it. */
static void choose_length(tandem_job *j, const settings *now, const tandem_request *r)
{
    int32_t asked = r->max_tokens >= 0 ? r->max_tokens : (int32_t)now->default_max_tokens;
    int32_t room  = j->maker->n_ctx + 1 - (int32_t)j->prompt.n;
    j->max_out    = asked < room ? asked : room;
    j->cut        = asked > room;
}

/* Takes room for the log-probabilities of the prompt; nothing is known before its first token. */
static bool take_scores(tandem_job *j, size_t each, err *e)
{
    if (!j->opt.score_prompt) return true;
    j->scores = arena_try(&j->mem, j->prompt.n, each * sizeof *j->scores);
    for (size_t i = 0; j->scores && i < each; i++) j->scores[i] = (token_logprob){.id = -1};
    return j->scores || no_memory(e);
}

static bool take_room(tandem_job *j, err *e)
{
    size_t each = (size_t)(1 + j->opt.n_top), n = (size_t)j->max_out;
    j->token    = arena_try(&j->mem, n + !n, sizeof *j->token);
    j->drafted  = arena_try(&j->mem, n + !n, sizeof *j->drafted);
    j->logprobs = each ? arena_try(&j->mem, n + !n, each * sizeof *j->logprobs) : NULL;
    return (j->token && j->drafted && (j->logprobs || !each)) ? take_scores(j, each, e) : no_memory(e);
}

static bool copy_stops(tandem_job *j, const tandem_request *r, err *e)
{
    stop_init(&j->stop);
    j->ignore_stops = r->ignore_stop_ids;
    j->n_stop_ids   = r->n_stop_ids;
    j->stop_id      = arena_try(&j->mem, r->n_stop_ids + 1, sizeof *j->stop_id);
    if (!j->stop_id) return no_memory(e);
    if (r->n_stop_ids) memcpy(j->stop_id, r->stop_ids, r->n_stop_ids * sizeof *j->stop_id);
    if (r->n_stop && !j->maker->tok)
        return err_set(e, ERR_INPUT, "the model has no tokenizer: stop strings cannot be used");
    for (size_t i = 0; i < r->n_stop; i++) {
        char *copy = arena_str(&j->mem, str_of(r->stop[i]));
        if (!copy) return no_memory(e);
        if (!stop_add(&j->stop, str_of(copy)))
            return err_set(e, ERR_INPUT, "stop takes up to %d texts of 1 to %d bytes", STOP_MAX_STRINGS,
                           STOP_MAX_BYTES);
    }
    j->text_stop = j->stop;
    return true;
}

/* Compiling is the longest part of a submission: it comes last. */
static bool take_grammar(tandem_job *j, const tandem_request *r, response_grammar *compiled, err *e)
{
    const tandem_grammar *g = &r->grammar;
    grammar_source        x = {g, j->salt, NULL};
    j->begins = (guide_begins){.in_thought = g->in_thought, .may_think = g->may_think, .may_call = g->may_call};
    if (compiled) j->compiled = response_grammar_hold(compiled);
    return compiled || g->kind == TANDEM_GRAMMAR_NONE || grammar_cache_take(j->maker->grammars, &x, &j->compiled, e);
}

/* Copies the tokens that cannot be picked before min_tokens are there: those that would end the answer. */
static bool take_ends(tandem_job *j, const tandem_request *r, err *e)
{
    const tok_ids *own = &j->maker->stops;
    size_t         n   = r->ignore_stop_ids ? 0 : own->n;
    if (!r->min_tokens) return true;
    if (r->grammar.kind != TANDEM_GRAMMAR_NONE)
        return err_set(e, ERR_INPUT, "min_tokens and a grammar exclude each other");
    int32_t *id = arena_try(&j->mem, n + r->n_stop_ids + 1, sizeof *id);
    if (!id) return no_memory(e);
    if (n) memcpy(id, own->p, n * sizeof *id);
    if (r->n_stop_ids) memcpy(id + n, r->stop_ids, r->n_stop_ids * sizeof *id);
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (id[n + i] < 0 || id[n + i] >= j->maker->model->n_vocab)
            return err_set(e, ERR_INPUT, "stop_ids: token %d is not in the vocabulary of %d", id[n + i],
                           j->maker->model->n_vocab);
    j->opt.min_tokens = r->min_tokens;
    j->opt.end_id     = id;
    j->opt.n_ends     = (int)(n + r->n_stop_ids);
    return true;
}

static bool take_options(tandem_job *j, const tandem_request *r, err *e)
{
    logit_bias *room = arena_try(&j->mem, JOB_MAX_BIAS, sizeof *room);
    if (!room) return no_memory(e);
    if (!check_limits(r, e) || !job_lane_options(&j->opt, j->maker->model, r, room, e) ||
        !in_range("n_continued", (double)r->n_continued, 0, (double)j->prompt.n, e))
        return false;
    if (j->maker->limit) {
        tandem_speculation s = r->spec;
        job_limit_speculation(&s, j->maker->limit);
        j->opt.spec = job_spec_settings(&s);
    }
    j->opt.n_continued = (int32_t)r->n_continued;
    return take_ends(j, r, e);
}

static double deadline_of(double from, double seconds, int64_t setting_ms)
{
    if (seconds > 0) return from + seconds;
    return setting_ms == SETTING_UNLIMITED ? INFINITY : from + (double)setting_ms / 1e3;
}

uint64_t job_salt(const job_maker *m, const char *name)
{
    sha256 s;
    char   hex[65];
    sha256_init(&s);
    sha256_put(&s, m->secret, sizeof m->secret);
    sha256_put(&s, name, strlen(name));
    sha256_hex(&s, hex);
    hex[16] = 0;
    return strtoull(hex, NULL, 16);
}

grammar_source job_form_source(const job_maker *m, const tandem_request *r, const atomic_bool *cancel)
{
    return (grammar_source){&r->grammar, r->tenant ? job_salt(m, r->tenant) : 0, cancel};
}

static void take_rest(tandem_job *j, const settings *now, const tandem_request *r)
{
    snprintf(j->id, sizeof j->id, "%s", r->id ? r->id : "");
    j->priority         = r->priority;
    j->is_repeat        = r->choice > 0;
    j->salt             = r->tenant ? job_salt(j->maker, r->tenant) : 0;
    j->account_key      = r->account ? job_salt(j->maker, r->account) : 0;
    j->kind             = r->kind ? str_hash(str_of(r->kind)) : 0;
    j->on_token         = r->on_token;
    j->on_token_ctx     = r->on_token_ctx;
    j->wake             = r->wake;
    j->wake_ctx         = r->wake_ctx;
    j->wakes_on_prefill = r->wake_on_prefill;
    j->submitted        = clock_s();
    j->deadline         = deadline_of(j->submitted, r->time_limit_s, now->request_timeout_ms);
    j->queue_deadline   = deadline_of(j->submitted, 0, now->queue_timeout_ms);
    if (j->maker->tok) {
        tok_stream_init(&j->stream, j->maker->tok, false);
        tok_stream_init(&j->text, j->maker->tok, false);
    }
    tandem_usage *u  = &j->result.usage;
    u->prompt_tokens = (int32_t)j->prompt.n;
    u->seed          = r->seed;
    u->route_reason  = "";
    atomic_init(&j->stop_at, -1);
}

static bool fill_job(tandem_job *j, const settings *now, const tandem_request *r, response_grammar *compiled, err *e)
{
    if (!take_prompt(j, r, e) || !take_media(j, r, e) || !take_options(j, r, e) || !copy_stops(j, r, e)) return false;
    choose_length(j, now, r);
    take_rest(j, now, r);
    return take_room(j, e) && take_grammar(j, r, compiled, e);
}

bool job_new(tandem_job **out, const job_maker *m, const settings *now, const tandem_request *r, media_prompt *media,
             response_grammar *compiled, err *e)
{
    tandem_request seeded = *r;
    tandem_job    *j      = mem_try(sizeof *j);
    *out                  = NULL;
    if (!j) return no_memory(e);
    job_settle_seed(&seeded);
    j->maker = m;
    j->media = media_prompt_share(media);
    arena_init(&j->mem, SIZE_MAX / 2);
    buf_init(&j->read, TOK_MAX_INPUT);
    atomic_store(&j->holders, 1);
    if (fill_job(j, now, &seeded, compiled, e)) {
        *out = j;
        return true;
    }
    job_drop(j);
    return false;
}

void job_drop(tandem_job *j)
{
    if (atomic_fetch_sub(&j->holders, 1) > 1) return;
    response_grammar_drop(j->compiled);
    media_prompt_drop(j->media);
    tok_ids_deinit(&j->prompt);
    buf_deinit(&j->read);
    arena_deinit(&j->mem);
    mem_free(j);
}

/* --- tokens -------------------------------------------------------------------------------------*/
static bool is_among(const int32_t *id, size_t n, int32_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (id[i] == wanted) return true;
    return false;
}

static bool is_stop(const tandem_job *j, int32_t id)
{
    return ((!j->ignore_stops || j->compiled) && is_among(j->maker->stops.p, j->maker->stops.n, id)) ||
           is_among(j->stop_id, j->n_stop_ids, id);
}

bool job_scratch_init(job_scratch *s, const tok *t, err *e)
{
    enum { ROOM = TOK_MAX_TEXT_BYTES + STOP_MAX_BYTES + 64 };
    static const char blank[ROOM];
    buf_init(&s->text, ROOM);
    buf_init(&s->safe, ROOM);
    if (t && (!buf_put(&s->text, blank, ROOM) || !buf_put(&s->safe, blank, ROOM)))
        return err_set(e, ERR_UNAVAILABLE, "no memory to find stop strings");
    return true;
}

void job_scratch_deinit(job_scratch *s)
{
    buf_deinit(&s->text);
    buf_deinit(&s->safe);
}

static bool meets_stop_string(tandem_job *j, int32_t id, job_scratch *s)
{
    if (!j->stop.n_strings) return false;
    buf_clear(&s->text);
    buf_clear(&s->safe);
    tok_stream_put(&j->stream, id, &s->text);
    return stop_put(&j->stop, buf_str(&s->text), &s->safe);
}

/* The caller's own function may allocate what it likes. */
static bool caller_ends_it(tandem_job *j, int32_t id)
{
    if (!j->on_token) return false;
    const char *scope = fault_scope();
    fault_scope_set(NULL);
    bool more = j->on_token(j->on_token_ctx, id);
    fault_scope_set(scope);
    return !more;
}

static void store_token(tandem_job *j, int32_t id, spec_method drafted, const token_logprob *probs)
{
    size_t each = (size_t)(1 + j->opt.n_top);
    if (j->logprobs) memcpy(j->logprobs + (size_t)j->n_kept * each, probs, each * sizeof *probs);
    j->drafted[j->n_kept] = (uint8_t)drafted;
    j->token[j->n_kept++] = id;
}

void job_keep_scores(tandem_job *j, const spec_scores *found)
{
    size_t each = (size_t)(1 + j->opt.n_top);
    for (int i = 0; j->scores && i < found->n; i++)
        memcpy(j->scores + (size_t)(found->first + i) * each, found->item + (size_t)i * (size_t)found->stride,
               each * sizeof *j->scores);
}

void job_note_progress(tandem_job *j, int n)
{
    j->progressed |= j->wakes_on_prefill && atomic_load_explicit(&j->n_done, memory_order_relaxed) != n;
    atomic_store(&j->n_done, n);
}

static tandem_finish end_at(tandem_job *j, int32_t id, job_scratch *s)
{
    if (is_stop(j, id)) {
        atomic_store_explicit(&j->stop_at, j->n_kept - 1, memory_order_relaxed);
        return j->closed ? TANDEM_FINISH_LENGTH : TANDEM_FINISH_STOP;
    }
    if (meets_stop_string(j, id, s) || caller_ends_it(j, id)) return TANDEM_FINISH_STOP_STRING;
    if (j->n_kept < j->max_out) return TANDEM_FINISH_NONE;
    j->result.context_full = j->cut;
    return TANDEM_FINISH_LENGTH;
}

static void note_round(tandem_job *j, const spec_out *out)
{
    long long n = atomic_load_explicit(&j->n_rounds, memory_order_relaxed);
    unsigned  x = (unsigned)out->method | (unsigned)out->n_draft << 8 | (unsigned)(out->n - 1) << 16;
    atomic_store_explicit(&j->round[n % JOB_ROUNDS], x, memory_order_relaxed);
    atomic_store(&j->n_rounds, n + 1);
}

int job_keep(tandem_job *j, const spec_out *out, job_scratch *s)
{
    int            n      = 0;
    tandem_finish *finish = &j->result.finish;
    if (out->n > 0) note_round(j, out);
    if (out->n > 0 && j->max_out == 0) *finish = TANDEM_FINISH_LENGTH;
    for (; n < out->n && !*finish; n++) {
        if (atomic_load_explicit(&j->cancelled, memory_order_relaxed)) {
            *finish = TANDEM_FINISH_CANCELLED;
            break;
        }
        store_token(j, out->token[n], n < out->n - 1 ? out->method : SPEC_OFF, out->logprob[n]);
        j->closed |= out->closing[n];
        *finish = end_at(j, out->token[n], s);
    }
    return n;
}

static void notify_reader(tandem_job *j)
{
    bell_ring(&j->news);
    if (j->wake) j->wake(j->wake_ctx);
}

bool job_wake_reader(tandem_job *j, double now)
{
    if (!j->news_waits) return false;
    j->news_waits = false;
    j->woken      = now;
    notify_reader(j);
    return true;
}

bool job_publish(tandem_job *j, double now, double quiet_s)
{
    if (atomic_load_explicit(&j->n_out, memory_order_relaxed) == j->n_kept && !j->progressed) return false;
    atomic_store(&j->n_out, j->n_kept);
    j->progressed = false;
    j->news_waits = true;
    return now - j->woken >= quiet_s && job_wake_reader(j, now);
}

void job_finish(tandem_job *j)
{
    response_grammar_drop(j->compiled); /* the job may outlive the engine */
    j->compiled                       = NULL;
    j->result.usage.completion_tokens = j->n_kept;
    atomic_store(&j->n_out, j->n_kept);
    atomic_store(&j->done, true);
    notify_reader(j);
    job_drop(j);
}
