/* Recording steps and drafts in advance. */
#include "base/clock.h"
#include "base/log.h"
#include "spec/inside.h"

static bool record_all(spec *s, err *e)
{
    const ops *o = s->t->o;
    queue     *q = s->t->q;
    s->t->warm(s->t, s->kv);
    for (int i = 0; i < DRAFTER_KINDS; i++) {
        drafter *d = s->slots[i].d;
        if (d && d->warm) d->warm(d, s->kv);
    }
    o->sample(q, s->picked, s->t->logits, s->params, 1, s->t->n_vocab);
    o->sync(q);
    return o->check(q, e);
}

bool spec_warm(spec *s, err *e)
{
    double start = clock_s();
    s->warm      = true;
    if (!s->t->warm || !s->t->o->recordings || !s->kv) return true;
    uint64_t before = spec_recordings(s).recorded;
    if (!record_all(s, e)) return false;
    graph_counts now = spec_recordings(s);
    if (now.recorded > before)
        log_event(LOG_INFO, "device", "%d graphs of steps, %.1f MB, recorded in %.2f s", now.n, (double)now.bytes / 1e6,
                  clock_s() - start);
    return true;
}

void warm_again(spec *s)
{
    err why = {0};
    if (s->warm && !spec_warm(s, &why)) log_event(LOG_WARN, "device", "%s", why.text);
}

graph_counts spec_recordings(const spec *s)
{
    graph_counts none = {0};
    return s->t->o->recordings ? s->t->o->recordings(s->t->q) : none;
}
