#include "server/live_sessions.h"

#include "base/mem.h"

#include <stdio.h>

void live_session_free(live_session *x)
{
    if (!x) return;
    tok_ids_deinit(&x->ids);
    mem_free(x->tenant);
    mem_free(x);
}

void live_sessions_init(live_sessions *l)
{
    *l = (live_sessions){0};
    pthread_mutex_init(&l->lock, NULL);
}

void live_sessions_deinit(live_sessions *l)
{
    for (int i = 0; i < l->n; i++) live_session_free(l->item[i]);
    l->n = 0;
    pthread_mutex_destroy(&l->lock);
}

static int find(const live_sessions *l, const char *owner, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->item[i]->owner, owner) && !strcmp(l->item[i]->name, name)) return i;
    return -1;
}

const live_session *live_sessions_find(const live_sessions *l, const char *owner, const char *name)
{
    int i = find(l, owner, name);
    return i < 0 ? NULL : l->item[i];
}

size_t live_sessions_continued(live_sessions *l, const char *owner, const char *name, const int32_t *prompt, size_t n)
{
    pthread_mutex_lock(&l->lock);
    const live_session *x    = live_sessions_find(l, owner, name);
    tandem_ids          text = x ? (tandem_ids){x->ids.p, x->ids.n} : (tandem_ids){0};
    size_t              k    = x ? engine_continued(&text, x->n_prompt, prompt, n) : 0;
    pthread_mutex_unlock(&l->lock);
    return k;
}

static void drop_at(live_sessions *l, int i)
{
    live_session_free(l->item[i]);
    l->item[i] = l->item[--l->n];
}

static void drop(live_sessions *l, const char *owner, const char *name)
{
    int i = find(l, owner, name);
    if (i >= 0) drop_at(l, i);
}

void live_sessions_drop(live_sessions *l, const char *owner, const char *name)
{
    pthread_mutex_lock(&l->lock);
    drop(l, owner, name);
    pthread_mutex_unlock(&l->lock);
}

/* Makes room for a session of the owner: drops its oldest one, or the oldest of all. */
static void make_room(live_sessions *l, const char *owner)
{
    int own = -1, any = -1, n = 0;
    for (int i = 0; i < l->n; i++) {
        bool mine = !strcmp(l->item[i]->owner, owner);
        n += mine;
        if (mine && (own < 0 || l->item[i]->used < l->item[own]->used)) own = i;
        if (any < 0 || l->item[i]->used < l->item[any]->used) any = i;
    }
    if (n >= LIVE_SESSIONS_PER_OWNER)
        drop_at(l, own);
    else if (l->n == LIVE_SESSIONS_MAX)
        drop_at(l, any);
}

static bool set_tenant(live_session *x, const char *tenant)
{
    size_t n = tenant ? strlen(tenant) + 1 : 0;
    if (!n) return true;
    x->tenant = mem_try(n);
    if (x->tenant) memcpy(x->tenant, tenant, n);
    return x->tenant;
}

static live_session *new_session(const char *owner, const char *name, const char *tenant)
{
    live_session *x = mem_try(sizeof *x);
    if (!x) return NULL;
    tok_ids_init(&x->ids, 2 * (size_t)TANDEM_MAX_PROMPT);
    snprintf(x->owner, sizeof x->owner, "%s", owner);
    snprintf(x->name, sizeof x->name, "%s", name);
    if (set_tenant(x, tenant)) return x;
    live_session_free(x);
    return NULL;
}

/* Adds x, in place of the session with its name. */
static void add(live_sessions *l, live_session *x)
{
    if (!x || x->ids.failed || !x->ids.n) {
        live_session_free(x);
        return;
    }
    pthread_mutex_lock(&l->lock);
    drop(l, x->owner, x->name);
    make_room(l, x->owner);
    x->used         = ++l->clock;
    l->item[l->n++] = x;
    pthread_mutex_unlock(&l->lock);
}

/* Copies the numbers of the sampling options: the pointers of a request do not live as long. */
static tandem_request numbers_of(const tandem_request *r)
{
    return (tandem_request){.temp              = r->temp,
                            .top_p             = r->top_p,
                            .min_p             = r->min_p,
                            .top_k             = r->top_k,
                            .has_seed          = r->has_seed,
                            .seed              = r->seed,
                            .repeat_penalty    = r->repeat_penalty,
                            .presence_penalty  = r->presence_penalty,
                            .frequency_penalty = r->frequency_penalty};
}

void live_sessions_note(live_sessions *l, const char *owner, const char *name, const tandem_job *j,
                        const tandem_request *r)
{
    live_session *x = new_session(owner, name, r->tenant);
    if (x) {
        engine_job_text(j, &x->ids, &x->n_prompt);
        x->options          = numbers_of(r);
        x->options.seed     = tandem_job_result(j)->usage.seed;
        x->options.has_seed = true;
    }
    add(l, x);
}

void live_sessions_put(live_sessions *l, const char *owner, const char *name, const char *tenant,
                       const tandem_session_content *c)
{
    live_session *x = new_session(owner, name, tenant);
    if (x) {
        tok_ids_put_n(&x->ids, c->ids.p, c->ids.n);
        x->n_prompt = c->n_prompt;
        x->options  = (tandem_request){.temp              = c->temp,
                                       .top_p             = c->top_p,
                                       .min_p             = c->min_p,
                                       .top_k             = c->top_k,
                                       .has_seed          = c->has_seed,
                                       .seed              = c->seed,
                                       .repeat_penalty    = c->repeat_penalty,
                                       .presence_penalty  = c->presence_penalty,
                                       .frequency_penalty = c->frequency_penalty};
    }
    add(l, x);
}

live_session *live_session_copy(const live_session *x)
{
    live_session *y = new_session(x->owner, x->name, x->tenant);
    if (!y) return NULL;
    tok_ids_put_n(&y->ids, x->ids.p, x->ids.n);
    y->n_prompt = x->n_prompt;
    y->options  = x->options;
    if (!y->ids.failed) return y;
    live_session_free(y);
    return NULL;
}

void live_session_describe(const live_session *x, tandem_session *out)
{
    *out = (tandem_session){
        .tenant = x->tenant, .ids = x->ids.p, .n_ids = x->ids.n, .n_prompt = x->n_prompt, .request = &x->options};
}
