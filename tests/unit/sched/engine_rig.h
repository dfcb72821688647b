/* tests/unit/sched/engine_rig.h - the engine with nano, and answers as arrays. */
#ifndef TANDEM_TEST_SCHED_RIG_H
#define TANDEM_TEST_SCHED_RIG_H
#include "test.h"

#include "tandem.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { NANO_SLOW = 1 }; /* long tests do less */
#else
enum { NANO_SLOW = 0 };
#endif
#if defined(__SANITIZE_THREAD__)
enum { NANO_SLOWEST = 1 }; /* still less: what threads do to each other shows in few rounds */
#else
enum { NANO_SLOWEST = 0 };
#endif
enum { NANO_MAX_OUT = 512, NANO_PROMPT = 20 };
extern const int32_t nano_prompt[NANO_PROMPT];

/* nano on one thread with both its drafters, 256 positions; a test changes what it likes. */
void nano_options(tandem_options *o);
void nano_setting(tandem_options *o, const char *name, const char *value);
bool nano_open(test_case *t, tandem **out, const tandem_options *o);
/* Greedy, nano_prompt, n tokens whatever they are. */
void        nano_request(const tandem *t, tandem_request *r, int n);
tandem_job *nano_submit(test_case *t, tandem *e, const tandem_request *r);

typedef struct {
    int32_t       token[NANO_MAX_OUT];
    int           n;
    tandem_result result;
} nano_answer;
/* All of it, then the job is released. */
void nano_collect(tandem_job *j, nano_answer *out);
void nano_ask(test_case *t, tandem *e, const tandem_request *r, nano_answer *out);
void nano_same(test_case *t, const nano_answer *a, const nano_answer *b);
/* Writes engine_put_routing's array with a NUL; returns its length. */
size_t nano_routing(const tandem *e, const char *request_id, int n, char *out, size_t cap);
/* Waits until the engine is idle again; its pages and lanes must be, too. */
void nano_check_idle(test_case *t, tandem *e);
#endif
