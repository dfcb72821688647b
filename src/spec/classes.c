/* Records by request class: a list of up to a few hundred, searched linearly once per request. */
#include "base/mem.h"
#include "spec/policy.h"

#include <assert.h>

typedef struct {
    uint64_t key;
    uint64_t used; /* time of the last use; 0: free */
    policy   p;
} class_entry;

struct policy_classes {
    int         max;
    uint64_t    now;
    class_entry at[];
};

policy_classes *policy_classes_new(int max_classes)
{
    assert(max_classes > 0);
    policy_classes *s = xalloc(sizeof *s + (size_t)max_classes * sizeof s->at[0]);
    s->max            = max_classes;
    return s;
}

void policy_classes_free(policy_classes *s) { mem_free(s); }

static class_entry *find_class(policy_classes *s, uint64_t key)
{
    for (int i = 0; i < s->max; i++)
        if (s->at[i].used && s->at[i].key == key) return &s->at[i];
    return NULL;
}

static class_entry *make_room(policy_classes *s)
{
    class_entry *oldest = &s->at[0];
    for (int i = 1; i < s->max; i++)
        if (s->at[i].used < oldest->used) oldest = &s->at[i];
    return oldest;
}

bool policy_classes_seed(policy_classes *s, uint64_t key, policy *p)
{
    class_entry *c = find_class(s, key);
    if (!c) return false;
    c->used = ++s->now;
    policy_seed(p, &c->p);
    return true;
}

/* Combines the new counts with half of the old ones, because a class may change. */
static void add_known(policy *p, const policy *known)
{
    for (int m = 0; m < SPEC_METHODS; m++) survival_add(&p->record[m], &known->record[m], 0.5);
}

void policy_classes_learn(policy_classes *s, uint64_t key, const policy *p)
{
    class_entry *c   = find_class(s, key);
    policy       sum = *p;
    if (c)
        add_known(&sum, &c->p);
    else
        c = make_room(s);
    *c = (class_entry){.key = key, .used = ++s->now, .p = sum};
}
