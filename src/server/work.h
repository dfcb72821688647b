/* server/work.h - what is too slow for the I/O thread: parsing, rendering, tokenising, compiling grammars, loading a model.
 *
 *      I/O thread: work_put ---> a worker: run ---> wake ---> I/O thread: work_collect, which calls done
 *
 * Everything that was put and is not withdrawn is run, or skipped at the end, and its done is called, once each. Slow items may
 * take seconds: they wait for quick ones and never have all workers. Grammars have a worker of their own, which serves the
 * shares that wait in turns, so costly ones delay neither other requests nor other clients' grammars for long. */
#ifndef TANDEM_SERVER_WORK_H
#define TANDEM_SERVER_WORK_H
#include "base/err.h"

#include <stdint.h>

typedef enum { WORK_QUICK, WORK_SLOW, WORK_GRAMMAR, WORK_KINDS } work_kind;

typedef struct work      work;
typedef struct work_item work_item;
struct work_item { /* inside what it is about; its owner's again when done is called */
    void (*run)(work_item *item);
    void (*done)(work_item *item);
    work_item *next;
    work_kind  kind;
    uint64_t   share;   /* of WORK_GRAMMAR: whose it is */
    bool       skipped; /* told to done: it was not run */
};

/* Starts n_threads workers, and one for grammars. wake: called on a worker whenever something is to be collected. */
bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e);
/* As many wait as may, in all or of this share: another one would wait for too long. */
bool work_is_full(work *w, work_kind kind, uint64_t share);
void work_put(work *w, work_item *item);
/* It was not begun, and will not be: it is its owner's again. False: it was. */
bool work_withdraw(work *w, work_item *item);
void work_collect(work *w);
void work_skip(work *w); /* what was not begun; it is to be collected */
/* Seconds that a worker has spent on one item that is not slow; the longest of all workers. */
double work_longest_s(work *w);
/* Skips what was not begun and lets the workers end. Returns false when one of them still runs after wait_s: the work must
 * not be freed then. */
bool work_stop(work *w, double wait_s);
void work_free(work *w); /* stops without a limit, and collects; NULL is fine */
#endif
