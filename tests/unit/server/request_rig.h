/* tests/unit/server/request_rig.h - bodies of requests, read as the server reads them, without a server. */
#ifndef TANDEM_TEST_REQUEST_RIG_H
#define TANDEM_TEST_REQUEST_RIG_H
#include "../sched/engine_rig.h"
#include "server/request.h"

enum { CTX = 64 };

typedef struct {
    test_case     *t;
    tandem        *engine;
    server_request r;
    server_error   why;
    str            key;
} reading;

bool open_engine(test_case *t, reading *x);
bool read_body(reading *x, int endpoint, const char *body);
/* Reads a body that must be good; the caller forgets it. */
const tandem_request *ask(reading *x, int endpoint, const char *body);
/* Checks that a body is refused for this field, in these words. */
void refused(reading *x, int endpoint, const char *body, const char *param, const char *words);
void taken(reading *x, int endpoint, const char *body);

#define TEXT(more)     "{\"prompt\":\"Hi\"" more "}"
#define CHAT(more)     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]" more "}"
#define MESSAGES(more) "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]" more "}"
#define INPUT(more)    "{\"input\":\"Hi\"" more "}"
#define TOOL           ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]"

#endif
