/* Ollama's API over HTTP: lines that, joined, are the whole reply, errors that are a string, and no answer that lost bytes and
 * looks whole. */
#include "server_rig.h"

#define SUM  "\"model\":\"nano\",\"think\":false,\"options\":{\"temperature\":0},\"logprobs\":true,"
#define CHAT SUM "\"messages\":[{\"role\":\"user\",\"content\":\"What is 27 plus 58?\"}]"
#define TEXT SUM "\"prompt\":\"What is 27 plus 58?\""

static void add(buf *to, str s) { buf_put(to, s.s, s.n); }

/* Adds the texts of the lines up to the last one; false: the reply was not told whole, and does not look so. */
static bool told_whole(rig_reply *a, buf *content, size_t *n_logprobs)
{
    str               rest = buf_str(&a->body);
    bool              done = false;
    const json_value *v;
    *n_logprobs = 0;
    if (a->status != 200 || !a->complete) return false;
    while (rest.n && !done) {
        const char *end  = memchr(rest.s, '\n', rest.n);
        str         line = {rest.s, end ? (size_t)(end - rest.s) : rest.n};
        rest             = (str){line.s + line.n + (end != NULL), rest.n - line.n - (end != NULL)};
        if (!json_parse(&v, &a->mem, line, NULL, NULL)) return true; /* and what is missing shows */
        const json_value *list = rig_at(v, "logprobs");
        add(content, rig_str(v, "message.content"));
        add(content, rig_str(v, "response"));
        *n_logprobs += list ? list->n : 0;
        done = json_get(v, "done") && json_get(v, "done")->b;
    }
    return done && !rest.n;
}

TEST_LONG(server_ollama_tells_no_chat_that_lost_bytes) { rig_check_lost_bytes(t, "/api/chat", CHAT, CHAT, told_whole); }
TEST_LONG(server_ollama_tells_no_text_that_lost_bytes)
{
    rig_check_lost_bytes(t, "/api/generate", TEXT, TEXT, told_whole);
}

TEST(server_ollama_streams_what_it_says_whole)
{
    static const char *const path[] = {"/api/chat", "/api/generate"}, *const members[] = {CHAT, TEXT};
    server_rig r;
    rig_reply  a;
    char       body[512];
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(path); i++) {
        buf    text[2];
        size_t n[2];
        for (int stream = 0; stream < 2; stream++) {
            buf_init(&text[stream], 1 << 20);
            snprintf(body, sizeof body, "{%s%s}", stream ? "" : "\"stream\":false,", members[i]);
            rig_post(&r, path[i], body, &a);
            CHECK(told_whole(&a, &text[stream], &n[stream]));
            CHECK_STR(rig_field(&a, "Content-Type"), stream ? STR("application/x-ndjson") : STR("application/json"));
            rig_reply_deinit(&a);
        }
        CHECK_STR(buf_str(&text[1]), buf_str(&text[0]));
        CHECK_INT(n[1], n[0]);
        buf_deinit(&text[0]);
        buf_deinit(&text[1]);
    }
    rig_stop(&r);
}

TEST(server_ollama_can_be_off)
{
    server_rig r;
    rig_reply  a;
    rig_init(&r, t);
    r.opt.no_ollama = true;
    rig_start(&r);
    rig_post(&r, "/api/chat", "{" CHAT "}", &a);
    CHECK_INT(a.status, 404);
    CHECK_STR(rig_str(rig_json(&a), "error.code"), STR("not_found")); /* in OpenAI's shape: there is no other */
    rig_reply_deinit(&a);
    rig_stop(&r);
}
