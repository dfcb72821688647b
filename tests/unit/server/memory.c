/* Requests for which there is no memory: each allocation that may fail is made to fail once. */
#include "base/fault.h"
#include "base/mem.h"
#include "server_rig.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

static const struct {
    const char *method, *path, *body;
} asked[] = {
    {"POST", "/v1/chat/completions",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
     "short.\"},{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":3,"
     "\"n\":2,\"stop\":[\"xyz\"]}"},
    {"POST", "/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":3,\"response_format\":{\"type\":\"json_"
     "schema\","
     "\"json_schema\":{\"name\":\"a\",\"schema\":{\"enum\":[1,2,3]}}}}"},
    {"POST", "/v1/completions", "{\"prompt\":[\"Once\",\"Twice\"],\"max_tokens\":3,\"logprobs\":2}"},
    {"POST", "/v1/completions", "{\"prompt\":[\"Once\",[5,6]],\"max_tokens\":2,\"logprobs\":1,\"echo\":true,\"n\":2}"},
    {"POST", "/completion",
     "{\"prompt\":{\"prompt_string\":\"Once\"},\"n_predict\":3,\"n_probs\":2,\"logit_bias\":[[\"a b\",-1]],"
     "\"response_fields\":[\"content\",\"generation_settings/seed\"]}"},
    {"POST", "/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"We\"}],"
     "\"max_tokens\":2,\"continue_final_message\":true,\"guided_choice\":[\"a\",\"b\"]}"},
    {"POST", "/v1/responses", "{\"input\":\"Hi\",\"instructions\":\"Be short.\",\"max_output_tokens\":3}"},
    {"POST", "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":3}"},
    {"POST", "/tokenize", "{\"content\":\"some words to be counted\"}"},
    {"GET", "/props", ""},
    {"GET", "/metrics", ""},
};

/* Asks without an allocation of its own: it would count. Returns the status, 0: no reply came. */
static int ask_plainly(const server_rig *r, size_t which, char *got_text, size_t cap)
{
    test_case *t = r->t;
    char       text[1024];
    int        fd = rig_connect(r),
        n         = snprintf(text, sizeof text,
                             "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                             asked[which].method, asked[which].path, strlen(asked[which].body), asked[which].body);
    CHECK(write(fd, text, (size_t)n) == n);
    size_t got = 0;
    for (ssize_t k; (k = read(fd, got_text + got, cap - 1 - got)) > 0;) got += (size_t)k;
    got_text[got] = 0;
    close(fd);
    return got > 12 ? atoi(got_text + 9) : 0;
}

/* One request whose n-th allocation fails; false: it had fewer. */
static bool ask_with_fault(const server_rig *r, size_t which, long n, int *unanswered)
{
    static char got_text[1 << 20];
    test_case  *t = r->t;
    fault_fail_nth(n);
    int  status = ask_plainly(r, which, got_text, sizeof got_text);
    bool failed = fault_tries() >= n;
    fault_fail_nth(0);
    *unanswered += !status;
    CHECK_MSG(!status || status == 200 || status == 503 || status == 529,
              "%s: allocation %ld fails, and the reply is %.300s", asked[which].path, n, got_text);
    return failed;
}

TEST(server_answers_when_there_is_no_memory)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(asked); i++) {
        int  unanswered = 0;
        long n          = 1;
        while (n < 2000 && ask_with_fault(&r, i, n, &unanswered)) n++;
        CHECK_MSG(n > 3 && unanswered * 4 < n, "%s: %ld allocations, and %d replies are missing", asked[i].path, n,
                  unanswered);
        rig_ask(&r, asked[i].method, asked[i].path, "", asked[i].body, &a);
        CHECK_INT(a.status, 200);
        rig_reply_deinit(&a);
    }
    rig_wait_idle(&r);
    rig_stop(&r);
}
