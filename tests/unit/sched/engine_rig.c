#include "engine_rig.h"

#include "sched/engine.h"

#include <string.h>
#include <time.h>

const int32_t nano_prompt[NANO_PROMPT] = {2,   15, 591, 281, 285, 349, 630, 280, 290, 283,
                                          283, 16, 281, 15,  590, 281, 13,  599, 281, 14};

void nano_options(tandem_options *o)
{
    static char           path[3][4096];
    static tandem_drafter drafters[2];
    static const char    *files[] = {"models/nano/target.gguf", "models/nano/dflash.gguf", "models/nano/mtp.gguf"};
    for (int i = 0; i < 3; i++) snprintf(path[i], sizeof path[i], "%s", test_path(files[i]));
    for (int i = 0; i < 2; i++) drafters[i] = (tandem_drafter){.path = path[1 + i]};
    tandem_options_init(o);
    o->path       = path[0];
    o->device     = "cpu";
    o->n_threads  = 1;
    o->n_ctx      = 256;
    o->max_lanes  = 4;
    o->wake_ms    = 0; /* tests go step by step */
    o->drafters   = drafters;
    o->n_drafters = 2;
}

void nano_setting(tandem_options *o, const char *name, const char *value)
{
    static tandem_setting list[8];
    list[o->n_settings++] = (tandem_setting){name, value};
    o->settings           = list;
}

bool nano_open(test_case *t, tandem **out, const tandem_options *o)
{
    tandem_error e = {0};
    return CHECK_OK(tandem_open(out, o, &e), e);
}

void nano_request(const tandem *t, tandem_request *r, int n)
{
    tandem_request_init(t, r);
    r->ids             = nano_prompt;
    r->n_ids           = NANO_PROMPT;
    r->temp            = 0;
    r->max_tokens      = n;
    r->ignore_stop_ids = true;
}

tandem_job *nano_submit(test_case *t, tandem *e, const tandem_request *r)
{
    tandem_error why = {0};
    tandem_job  *j   = NULL;
    CHECK_OK(tandem_submit(e, r, &j, &why), why);
    return j;
}

void nano_collect(tandem_job *j, nano_answer *out)
{
    tandem_token x[16];
    *out = (nano_answer){0};
    for (;;) {
        bool   over = tandem_wait(j, -1) && tandem_job_result(j);
        size_t n    = tandem_poll(j, x, COUNT(x));
        for (size_t i = 0; i < n && out->n < NANO_MAX_OUT; i++) out->token[out->n++] = x[i].id;
        if (over && n == 0) break;
    }
    out->result = *tandem_job_result(j);
    tandem_release(j);
}

void nano_ask(test_case *t, tandem *e, const tandem_request *r, nano_answer *out)
{
    tandem_job *j = nano_submit(t, e, r);
    if (j) nano_collect(j, out);
}

void nano_same(test_case *t, const nano_answer *a, const nano_answer *b)
{
    CHECK_INT(a->n, b->n);
    for (int i = 0; i < a->n && i < b->n; i++)
        if (!CHECK_MSG(a->token[i] == b->token[i], "token %d is %d, expected %d", i, a->token[i], b->token[i])) return;
}

void nano_check_idle(test_case *t, tandem *e)
{
    tandem_stats s;
    for (int i = 0; i < 2000; i++) {
        tandem_get_stats(e, &s);
        if (!s.running && !s.queued && !s.kv_pinned_bytes) return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK_INT(s.running, 0);
    CHECK_INT(s.queued, 0);
    CHECK_INT(s.kv_pinned_bytes, 0);
}

size_t nano_routing(const tandem *e, const char *request_id, int n, char *out, size_t cap)
{
    buf         text;
    json_writer w;
    buf_init(&text, cap - 1);
    json_writer_init(&w, &text);
    engine_put_routing(e, request_id, n, &w);
    size_t length = text.n;
    if (length) memcpy(out, text.p, length);
    out[length] = 0;
    buf_deinit(&text);
    return length;
}
