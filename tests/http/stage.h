/* tests/http/stage.h - the toy server in a process of its own, so that its memory, descriptors and time can be read. */
#ifndef TANDEM_TEST_HTTP_STAGE_H
#define TANDEM_TEST_HTTP_STAGE_H
#include "unit/http/client.h"
#include "unit/http/toy.h"

#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* memory and time are not what they are */
#else
enum { SANITIZED = 0 };
#endif

typedef struct {
    http_options o;
    double       event_s;
    int          n_descriptors; /* limit; 0: as it is */
    bool         tls;
} setup;

typedef struct {
    pid_t pid;
    int   port;
    bool  tls;
    char  dir[64];
} stage;

void setup_init(setup *s); /* the defaults, and no limit on one address */
void stage_open(stage *g, const setup *s);
bool stage_close(stage *g); /* false: it did not end well */
bool stage_connect(const stage *g, client *c);
long stage_memory_kib(const stage *g); /* anonymous */
int  stage_descriptors(const stage *g);
long stage_cpu_us(const stage *g); /* the I/O thread's CPU time */
int  stage_log_lines(const stage *g);
long stage_stat(const stage *g, const char *name);
bool stage_stat_becomes(const stage *g, const char *name, long value, double seconds);
#endif
