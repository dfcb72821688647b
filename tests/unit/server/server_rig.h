/* tests/unit/server/server_rig.h - the server with nano on a port of its own, and a client that reads all it is told. */
#ifndef TANDEM_TEST_SERVER_RIG_H
#define TANDEM_TEST_SERVER_RIG_H
#include "test.h"

#include "server/inside.h"
#include "server/route.h"
#include "json/json.h"

#include <pthread.h>
#include <semaphore.h>

typedef struct {
    test_case     *t;
    server_options opt; /* a test changes what it likes before rig_start */
    tandem_options engine_opt;
    tandem        *engine; /* once it is loaded */
    int            port;
    pthread_t      thread;
    sem_t          ready;
    bool           ok; /* of server_run */
    err            e;
} server_rig;

void  rig_init(server_rig *r, test_case *t);
void  rig_start(server_rig *r); /* waits until the model is loaded */
void *rig_run(void *rig);       /* the server's thread, for a test that starts it itself */
void  rig_stop(server_rig *r);  /* SIGTERM, and waits until it has ended well */

typedef struct {
    int   status;
    buf   head, body; /* the body without its chunks; both end with a NUL that is not counted */
    bool  complete;   /* it ended as HTTP says */
    arena mem;
} rig_reply;
void rig_reply_deinit(rig_reply *r);

int  rig_connect(const server_rig *r);
void rig_reset(int fd); /* closes it by a reset, which is seen at once */
void rig_send(int fd, const char *method, const char *path, const char *fields, const char *body);
void rig_send_text(int fd, const char *text); /* as it is */
/* Until the end of the reply; closes. */
void rig_read(int fd, rig_reply *out);
void rig_ask(const server_rig *r, const char *method, const char *path, const char *fields, const char *body,
             rig_reply *out);
void rig_post(const server_rig *r, const char *path, const char *body, rig_reply *out);
/* The nth allocation fails while the server is asked, and none of the client's. */
void rig_post_with_fault(const server_rig *r, const char *path, const char *body, long nth, rig_reply *out);
str  rig_field(const rig_reply *r, const char *name);
/* The body as JSON; NULL when it is none. */
const json_value *rig_json(rig_reply *r);
/* Asks, expects the status, and returns the body as JSON. */
const json_value *rig_ask_json(const server_rig *r, const char *method, const char *path, const char *body,
                               rig_reply *out, int status);
/* Asks, and expects the status and the text at a place of the reply. */
void rig_expect(const server_rig *r, const char *method, const char *path, const char *body, int status, const char *at,
                const char *want);
/* v["a"]["b"][0] is rig_at(v, "a.b.0"); NULL when there is none. */
const json_value *rig_at(const json_value *v, const char *path);
str               rig_str(const json_value *v, const char *path); /* empty when it is none */
int64_t           rig_int(const json_value *v, const char *path); /* -1 */
/* The next event of a stream, *at from 0 on: its data, NULL at the end. [DONE] is given as it is. */
bool rig_event(const rig_reply *r, size_t *at, str *data);
/* Until the engine has nothing to do; its pages and lanes must be free then. */
void rig_wait_idle(const server_rig *r);
/* Appends the text of a reply and counts its log-probabilities. Returns false when the reply is an error or is cut. */
typedef bool rig_read_fn(rig_reply *a, buf *text, size_t *n_logprobs);
/* Checks that every reply is whole or an error when one allocation of its request fails, streamed or not. first: the
 * members of a request that puts the prompt into the cache; members: those of the requests that are checked. */
void rig_check_lost_bytes(test_case *t, const char *path, const char *first, const char *members,
                          rig_read_fn *told_whole);
#endif
