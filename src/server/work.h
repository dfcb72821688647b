/* server/work.h - worker threads for work that is too slow for the I/O thread: parsing, rendering, tokenising,
 * compiling grammars, fetching and decoding pictures, loading a model.
 *
 *      I/O thread: work_put ---> worker: run ---> wake ---> I/O thread: work_collect, which calls done
 *
 * Every item that was put and not withdrawn is run, or skipped at shutdown. Then its `done` is called once. Slow
 * items may take seconds: quick items go first, and slow ones never occupy all of two or more workers. Grammars have a
 * worker of their own, media have two, which serve the clients in turns, so that expensive ones delay neither other
 * requests nor other clients' grammars and media. All functions are called on the I/O thread. */
#ifndef TANDEM_SERVER_WORK_H
#define TANDEM_SERVER_WORK_H
#include "base/err.h"

#include <stdint.h>

typedef enum { WORK_QUICK, WORK_SLOW, WORK_GRAMMAR, WORK_MEDIA, WORK_KINDS } work_kind;

typedef struct work      work;
typedef struct work_item work_item;
struct work_item { /* a member of the job, zeroed at first; belongs to the workers from work_put until `done` */
    void (*run)(work_item *item);  /* called on a worker */
    void (*done)(work_item *item); /* called by work_collect; may free the item */
    work_item *next;
    work_kind  kind;
    uint64_t   share;   /* for WORK_GRAMMAR and WORK_MEDIA: identifies the client */
    bool       skipped; /* set before `done`: the item was not run */
};

/* Starts n_threads workers, at most 8, and those for grammars and media. wake is called on a worker when an item can be
 * collected, with a lock held: it must not call functions of work. *out is NULL on failure. */
bool work_new(work **out, int n_threads, void (*wake)(void *ctx), void *ctx, err *e);
/* Returns whether the queue of this kind is full or, for grammars and media, this share of it. work_put does not check
 * that. */
bool work_is_full(work *w, work_kind kind, uint64_t share);
void work_put(work *w, work_item *item); /* queues an item; run, done, kind and share are set */
/* Removes an item that has not been started. Returns false if it was started already. */
bool work_withdraw(work *w, work_item *item);
void work_collect(work *w); /* calls `done` of all finished and skipped items */
void work_skip(work *w);    /* marks all items that have not been started as skipped, for work_collect */
/* Returns the longest time in seconds that a worker has spent on its current item, slow items and media excluded. */
double work_longest_s(work *w);
/* Skips all items that have not been started and ends the workers. Returns false when one still runs after wait_s; the
 * work must not be freed then. */
bool work_stop(work *w, double wait_s);
void work_free(work *w); /* stops without a timeout and collects; w may be NULL */
#endif
