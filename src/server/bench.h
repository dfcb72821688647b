/* server/bench.h - POST /api/bench: how fast the engine is, measured on the engine that serves, through its queue, beside whoever else
 * is there (docs/admin.md). Its requests go behind all others.
 *
 *      for each repeat, number of lanes, method:  a cell: so many lanes busy until each has had its answers
 *
 * No two prompts of a cell are alike, and nothing of one cell is found in the cache by another (S0-R4); methods get the same prompts and
 * must give the same text. One at a time. It ends when its client leaves.
 *
 * Thread: the I/O thread's, but for the prompts, which a worker makes. */
#ifndef TANDEM_SERVER_BENCH_H
#define TANDEM_SERVER_BENCH_H
#include "server/server.h"

void bench_endpoint(server *s, server_call *c); /* of the route */
/* The one that runs, if there is one: looks for answers; ends it. */
void bench_pump(server *s);
void bench_cut(server *s);
#endif
