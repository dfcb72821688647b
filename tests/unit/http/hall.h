/* tests/unit/http/hall.h - a server that is driven without its loop: addresses and the time are the test's. */
#ifndef TANDEM_TEST_HTTP_HALL_H
#define TANDEM_TEST_HTTP_HALL_H
#include "http/inside.h"
#include "test.h"

typedef struct {
    test_case   *t;
    http_server *s;
    char         path[256];
    bool         waits; /* requests are left running */
    int          n_lost, n_delivered;
} hall;

void      hall_open(hall *h, test_case *t, const http_options *o); /* NULL: the defaults */
void      hall_close(hall *h, const int *fd, int n);               /* and the clients' ends */
http_from hall_v4(int a, int b, int c, int d);
/* A connection of this address that has said `text`; returns the client's end. */
int  hall_arrive(hall *h, const http_from *from, const char *text);
void hall_say(hall *h, int fd, conn *c, const char *text);
/* Lets the seconds pass in ticks of a quarter, and checks every timeout. */
void hall_pass(hall *h, double seconds);
/* 0: the server closed it; -1: it is open and silent; else the status that came. */
int  hall_look(int fd);
void hall_read(int fd); /* throws away what came */

extern const char hall_half[], hall_whole[]; /* requests */
#endif
