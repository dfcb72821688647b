/* server/work.h - what is too slow for the I/O thread: parsing, rendering, tokenising, loading a model.
 *
 *      I/O thread: work_put ---> a worker: run ---> wake ---> I/O thread: work_collect, which calls done
 *
 * Everything that was put and is not withdrawn is run, or skipped at the end, and its done is called, once each. What may take
 * seconds is slow: it waits for what is not, and never has all workers. */
#ifndef TANDEM_SERVER_WORK_H
#define TANDEM_SERVER_WORK_H
#include "base/err.h"

typedef struct work      work;
typedef struct work_item work_item;
struct work_item { /* inside what it is about; its owner's again when done is called */
    void (*run)(work_item *item);
    void (*done)(work_item *item);
    work_item *next;
    bool       slow;
    bool       skipped; /* told to done: it was not run */
};

/* wake: called on a worker whenever something is to be collected. */
bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e);
/* As many wait as may: another one would wait for too long. */
bool work_is_full(work *w, bool slow);
void work_put(work *w, work_item *item);
/* It was not begun, and will not be: it is its owner's again. False: it was. */
bool work_withdraw(work *w, work_item *item);
void work_collect(work *w);
void work_skip(work *w); /* what was not begun; it is to be collected */
void work_free(work *w); /* skips what is left, and collects; NULL is fine */
#endif
