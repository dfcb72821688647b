/* tests/unit/http/toy.h - a small application on http, for tests: a thread makes events as an engine does.
 *
 *   /hello  /echo  /big?BYTES  whole replies              /wait          no answer
 *   /stream?EVENTS             a text each event          /flood         as much as the client takes
 *   /cut                       a text, then cut           /refused       404 before the body
 *   /split                     a field with a line break  /stats         "name value" lines
 *   /drain                     http_drain */
#ifndef TANDEM_TEST_HTTP_TOY_H
#define TANDEM_TEST_HTTP_TOY_H
#include "http/http.h"

typedef struct toy toy;

bool toy_open(toy **out, const http_options *o, double event_s, err *e); /* event_s 0: as fast as it can */
int  toy_port(const toy *t);
void toy_run(toy *t); /* until toy_stop */
void toy_stop(toy *t);
void toy_close(toy *t);
bool toy_start(toy *t); /* toy_run on a thread of its own, which toy_close joins */
/* A certificate for tests and its key, signed by itself. */
bool toy_certificate(const char *cert_path, const char *key_path);
#endif
