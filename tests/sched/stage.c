#include "stage.h"

#include "base/inside.h"
#include "base/mem.h"
#include "media/prompt.h"
#include "sched/engine.h"
#include "sched/inside.h"
#include "spec/inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const sampling_way sampling_ways[] = {
    {.name = "greedy", .top_p = 1, .repeat = 1, .logprobs = true},
    {.name = "greedy, long", .top_p = 1, .repeat = 1, .past_stops = true},
    {.name = "temp 0.8", .temp = 0.8f, .top_p = 0.95f, .repeat = 1, .past_stops = true},
    {.name      = "penalties",
     .temp      = 0.7f,
     .top_p     = 1,
     .top_k     = 40,
     .repeat    = 1.15f,
     .presence  = 0.3f,
     .frequency = 0.2f,
     .biased    = true,
     .logprobs  = true},
};
_Static_assert(COUNT(sampling_ways) == N_WAYS, "a number for other files");

uint64_t draw(uint64_t *state, uint64_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (*state >> 33) % n;
}

static void fail(const char *what, const tandem_error *e)
{
    fprintf(stderr, "FAILED: %s: %s\n", what, e->text);
    exit(1);
}

/* --- prompts --------------------------------------------------------------------------------------*/
static void add_prompt(prompt_set *p, const int32_t *ids, int n)
{
    p->prompt[p->n_prompts].p   = arena_new_n(&p->texts.mem, int32_t, n);
    p->prompt[p->n_prompts++].n = (size_t)n;
    memcpy(p->prompt[p->n_prompts - 1].p, ids, (size_t)n * sizeof *ids);
}

/* --- pictures -------------------------------------------------------------------------------------*/
enum { TURN = 15, USER = 591, NEWLINE = 281, BOI = 17, EOI = 18, IMAGE = 19, CELL = 48 }; /* tokens of nano */

/* Returns where the first question of a prompt begins: after <|turn>user\n. */
static size_t question_at(const tandem_ids *p)
{
    for (size_t i = 2; i < p->n; i++)
        if (p->p[i - 2] == TURN && p->p[i - 1] == USER && p->p[i] == NEWLINE) return i + 1;
    return 1;
}

/* Up to three squares on a light ground, as nano-vision knows them. Their colors differ. */
static void paint(picture *x, uint64_t seed)
{
    static const uint8_t colors[][3] = {{220, 40, 40}, {40, 80, 220}, {40, 160, 60}, {245, 140, 30}, {20, 20, 20}};
    uint64_t             state = seed * 7919 + 13, n = 1 + draw(&state, 3), ground = 205 + draw(&state, 51);
    memset(x->rgb, (int)ground, picture_bytes(x));
    for (uint64_t k = 0; k < n; k++) { /* each in its third of the width */
        uint64_t       w = (uint64_t)x->width, h = (uint64_t)x->height, side = w / 8 + draw(&state, w / 6);
        uint64_t       x0 = k * w / 3 + draw(&state, w / 3 - side), y0 = draw(&state, h - side);
        const uint8_t *rgb = colors[(seed + k) % COUNT(colors)];
        for (uint64_t y = y0; y < y0 + side; y++)
            for (uint64_t i = x0; i < x0 + side; i++) memcpy(x->rgb + (y * w + i) * 3, rgb, 3);
    }
}

media_prompt *stage_add_picture(tandem_ids *prompt, arena *mem, int n, uint64_t seed)
{
    size_t     at = question_at(prompt), n_soft = (size_t)(n * n);
    media_span x   = {.first = (int32_t)at + 1, .n = n * n, .width = n * CELL, .height = n * CELL};
    err        e   = {0};
    int32_t   *ids = arena_new_n(mem, int32_t, n_soft + 2 + prompt->n);
    if (!picture_new(&x.frames[0], x.width, x.height, &e)) fail("a picture", &(tandem_error){0});
    paint(&x.frames[0], seed);
    memcpy(ids, prompt->p, at * sizeof *ids);
    ids[at] = BOI;
    for (size_t i = 0; i < n_soft; i++) ids[at + 1 + i] = IMAGE;
    ids[at + 1 + n_soft] = EOI;
    memcpy(ids + at + 2 + n_soft, prompt->p + at, (prompt->n - at) * sizeof *ids);
    prompt->p = ids;
    prompt->n += n_soft + 2;
    return media_prompt_new(&x, 1);
}

static bool has_pictures(void) { return stage_model && !strcmp(stage_model->name, "nano-vision"); }

static const int side[] = {1, 3, 5, 8};
int              stage_picture_rows(void) { return has_pictures() ? 8 * 8 : 0; }

static void add_pictures(prompt_set *p)
{
    for (int i = 0; i < p->n_prompts; i++)
        if (i % 3 != 2)
            p->media[i] = stage_add_picture(&p->prompt[i], &p->texts.mem, side[i % (int)COUNT(side)], (uint64_t)i / 2);
}

bool stage_submit(tandem *t, const prompt_set *p, const tandem_request *r, tandem_job **out, tandem_error *e)
{
    err why = {0};
    int i   = 0;
    while (i < p->n_prompts && p->prompt[i].p != r->ids) i++;
    if (i == p->n_prompts || !p->media[i]) return tandem_submit(t, r, out, e);
    if (engine_submit(t, r, p->media[i], NULL, out, &why)) return true;
    snprintf(e->text, sizeof e->text, "%s", why.text);
    return false;
}

/* Conversations one after the other, of different lengths; the first of them are the same in all. */
static void add_long(prompt_set *p, int i)
{
    static int32_t ids[4096];
    int            n = 1, length = 200 + i % 4 * 190;
    ids[0] = p->texts.samples[0].prompt[0];
    for (int k = 3; n < length; k = (k + 31 + (n > length / 2) * i) % p->texts.n_samples) {
        const sample *x = &p->texts.samples[k];
        if (x->n_prompt + x->n_answer > 300) continue;
        memcpy(ids + n, x->prompt + 1, (size_t)(x->n_prompt - 1) * sizeof *ids);
        n += x->n_prompt - 1;
        if (n >= length) break;
        memcpy(ids + n, x->answer, (size_t)x->n_answer * sizeof *ids);
        n += x->n_answer;
    }
    add_prompt(p, ids, n);
}

void prompts_open(prompt_set *p, int n_short, int n_long)
{
    *p = (prompt_set){0};
    arena_init(&p->texts.mem, 64 << 20);
    rig_read_samples(&p->texts, stage_model && stage_model->samples ? stage_model->samples : RIG_SAMPLES);
    if (stage_model && stage_model->random) rig_limit_ids(&p->texts, 512);
    for (int i = 0; i < n_short; i++) {
        const sample *s = &p->texts.samples[i * 11 % p->texts.n_samples];
        add_prompt(p, s->prompt, s->n_prompt);
    }
    p->n_short = p->n_prompts;
    for (int i = 0; i < n_long; i++) add_long(p, i);
    if (has_pictures()) add_pictures(p);
}

void prompts_close(prompt_set *p)
{
    for (int i = 0; i < p->n_prompts; i++) media_prompt_drop(p->media[i]);
    mem_free(p->texts.samples);
    arena_deinit(&p->texts.mem);
}

/* --- engines --------------------------------------------------------------------------------------*/
const char      *stage_kv;
const rig_model *stage_model;
static oracle   *known; /* NULL: the drafters are real */

void stage_learn(const int32_t *prompt, size_t n_prompt, const int32_t *text, size_t n)
{
    static int32_t all[4096];
    if (!stage_model || !stage_model->random) return;
    if (!known) known = rig_oracle_new(stage_model);
    memcpy(all, prompt, n_prompt * sizeof *all);
    memcpy(all + n_prompt, text, n * sizeof *all);
    oracle_learn(known, all, n_prompt + n);
}

/* The engine has not run anything yet. */
static void wrap_drafters(spec *s)
{
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        draft_slot *k = &s->slots[i];
        if (!k->given) continue;
        k->src.wrap     = rig_oracle_wrap;
        k->src.wrap_ctx = known;
        if (k->d) k->d = rig_oracle_wrap(known, k->d);
    }
}

void stage_options(tandem_options *o, prompt_set *p, tandem_drafter drafters[2])
{
    const rig_model *m = stage_model ? stage_model : rig_find_model("nano");
    tandem_options_init(o);
    if (stage_kv) o->kv_type = o->kv_sliding = o->kv_draft = stage_kv;
    o->path       = rig_path(m->model, p->path[0]);
    drafters[0]   = (tandem_drafter){.path = rig_path(m->drafters[0], p->path[1])};
    drafters[1]   = (tandem_drafter){.path = rig_path(m->drafters[1], p->path[2])};
    o->drafters   = drafters;
    o->n_drafters = 2;
    if (has_pictures()) o->mmproj = rig_path("models/nano-vision/mmproj.gguf", p->path[3]);
    o->n_ctx  = 1536;
    o->device = "cpu";
}

void need_set(tandem *t, const char *name, const char *value)
{
    tandem_error e = {0};
    if (!tandem_set(t, name, value, &e)) fail(name, &e);
}

tandem *need_engine(const tandem_options *o)
{
    tandem      *t;
    tandem_error e = {0};
    if (!tandem_open(&t, o, &e)) fail("opening the engine", &e);
    need_set(t, "queue_max", "1000");
    if (known) wrap_drafters(t->m.spec);
    return t;
}

void request_for(tandem_request *r, const tandem *t, const tandem_ids *prompt, int way, uint64_t seed, int max_tokens)
{
    static const tandem_bias bias[] = {{291, 1.5f}, {283, -INFINITY}};
    static const tandem_bias few[]  = {{40, 60}, {41, 60}, {42, 60}, {43, 60}}; /* n-grams repeat themselves */
    bool                     random = stage_model && stage_model->random;
    const sampling_way      *w      = &sampling_ways[way];
    tandem_request_init(t, r);
    r->ids               = prompt->p;
    r->n_ids             = prompt->n;
    r->max_tokens        = max_tokens;
    r->temp              = w->temp;
    r->top_p             = w->top_p;
    r->min_p             = 0;
    r->top_k             = w->top_k;
    r->has_seed          = true;
    r->seed              = seed;
    r->repeat_penalty    = w->repeat;
    r->presence_penalty  = w->presence;
    r->frequency_penalty = w->frequency;
    r->bias              = random ? few : bias;
    r->n_bias            = !w->biased ? 0 : random ? COUNT(few) : COUNT(bias);
    r->logprobs          = w->logprobs ? 1 : -1;
    r->ignore_stop_ids   = w->past_stops;
}

/* --- answers --------------------------------------------------------------------------------------*/
int reply_take(reply *to, tandem_job *j, int max)
{
    tandem_token some[32];
    size_t       n;
    int          before = to->n;
    while (to->n - before < max &&
           (n = tandem_poll(j, some, (size_t)(max - (to->n - before) < 32 ? max - (to->n - before) : 32))))
        for (size_t i = 0; i < n; i++) {
            to->logprob[to->n] = some[i].logprobs ? some[i].logprobs[0].logprob : 0;
            to->token[to->n++] = some[i].id;
        }
    return to->n - before;
}

void reply_rest(reply *to, tandem_job *j)
{
    while (!tandem_job_result(j)) {
        tandem_wait(j, -1);
        reply_take(to, j, RIG_MAX_TOKENS - to->n);
    }
    reply_take(to, j, RIG_MAX_TOKENS - to->n);
    to->result = *tandem_job_result(j);
    tandem_release(j);
}

bool reply_of(reply *to, tandem *t, const prompt_set *p, const tandem_request *r, tandem_error *e)
{
    tandem_job *j;
    to->n = 0;
    if (!stage_submit(t, p, r, &j, e)) return false;
    reply_rest(to, j);
    return true;
}

bool reply_begins(const reply *a, const reply *b)
{
    return a->n <= b->n && memcmp(a->token, b->token, (size_t)a->n * sizeof *a->token) == 0 &&
           memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob) == 0;
}

bool reply_same(const reply *a, const reply *b) { return a->n == b->n && reply_begins(a, b); }
