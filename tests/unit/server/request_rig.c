#include "request_rig.h"

bool open_engine(test_case *t, reading *x)
{
    tandem_options o;
    err            e = {0};
    *x               = (reading){.t = t};
    nano_options(&o);
    o.n_ctx      = CTX;
    o.n_drafters = 0;
    return CHECK_OK(engine_open(&x->engine, &o, &(engine_extra){0}, &e), e);
}

bool read_body(reading *x, int endpoint, const char *body)
{
    buf b;
    buf_init(&b, (size_t)1 << 28);
    buf_puts(&b, body);
    request_init(&x->r, endpoint, &b);
    x->why = (server_error){0};
    return request_read(&x->r, x->engine, x->key, &x->why);
}

const tandem_request *ask(reading *x, int endpoint, const char *body)
{
    test_case *t = x->t;
    CHECK_MSG(read_body(x, endpoint, body), "%.100s: %s", body, x->why.message);
    return &x->r.ask;
}

void refused(reading *x, int endpoint, const char *body, const char *param, const char *words)
{
    test_case *t = x->t;
    CHECK_MSG(!read_body(x, endpoint, body), "%.100s is taken", body);
    CHECK_MSG(!strcmp(x->why.param, param), "%.100s: the error is about '%s'", body, x->why.param);
    CHECK_MSG(strstr(x->why.message, words), "%.100s: '%s' does not say '%s'", body, x->why.message, words);
    request_forget(&x->r);
}

void taken(reading *x, int endpoint, const char *body)
{
    ask(x, endpoint, body);
    request_forget(&x->r);
}
