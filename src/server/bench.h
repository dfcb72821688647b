/* server/bench.h - POST /api/bench: measures the speed of the serving engine, through its queue (docs/admin.md).
 *
 *      for each repeat, number of lanes, method:  one cell, with that number of lanes busy
 *
 * Its requests have the lowest priority. All prompts of a cell differ, and no cell hits the cached prefixes of another.
 * All methods get the same prompts and must give the same text. One benchmark runs at a time; it ends when its client
 * disconnects.
 *
 * Thread: the I/O thread. A worker makes the prompts. */
#ifndef TANDEM_SERVER_BENCH_H
#define TANDEM_SERVER_BENCH_H
#include "server/inside.h"

void bench_endpoint(server *s, server_call *c); /* handler of the route */
void bench_list(server *s, server_call *c);     /* handler of GET: earlier results, the newest first */
/* Polls the responses of the running benchmark and submits the next ones. Does nothing if none runs. */
void bench_pump(server *s);
/* Cancels the responses of the running benchmark; bench_pump ends it when they are done. Does nothing if none runs. */
void bench_cut(server *s);
#endif
