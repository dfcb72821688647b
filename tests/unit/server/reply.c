/* chat.completion and text_completion without a model: scripted events become objects and chunks. */
#include "test.h"

#include "sched/open.h"
#include "server/reply.h"

/* One letter for the kind, then the text: r reasoning, c content, n a call's name, a its arguments; "." ends a call. */
static chat_event event_of(const char *script)
{
    static const char kinds[] = "rcna.";
    static const int  kind[]  = {CHAT_EVENT_REASONING, CHAT_EVENT_CONTENT, CHAT_EVENT_CALL_NAME, CHAT_EVENT_CALL_ARGS,
                                 CHAT_EVENT_CALL_DONE};
    chat_event        ev      = {.text = str_of(script + 1)};
    ev.kind                   = kind[strchr(kinds, script[0]) - kinds];
    return ev;
}

typedef struct {
    server_request q;
    reply          r;
    server_choice  c[2];
    tandem_result  result;
    int            n;
} play;

static void play_begin(play *p, const reply_format *format, int n, bool stream, bool with_usage)
{
    *p                   = (play){.n = n, .result = {.finish = TANDEM_FINISH_STOP}};
    p->q.f.n             = n;
    p->q.f.stream        = stream;
    p->q.f.include_usage = with_usage;
    p->q.ask.logprobs    = -1;
    reply_init(&p->r, format, &p->q, NULL, "a \"model\"");
    for (int i = 0; i < n; i++) choice_init(&p->c[i], &p->r, i);
    for (int i = 0; stream && i < n; i++) reply_begin(&p->c[i]);
}

static void tell(play *p, int i, const char *script)
{
    chat_event ev = event_of(script);
    p->r.format->on_event(&p->c[i], &ev);
    p->c[i].events.n_calls += ev.kind == CHAT_EVENT_CALL_NAME;
}

static void play_end(play *p)
{
    for (int i = 0; i < p->n; i++) p->c[i].result = &p->result;
    if (p->r.stream) {
        for (int i = 0; i < p->n; i++) reply_end(&p->c[i], p->c, p->n, i == p->n - 1);
        p->r.format->done(&p->r, p->c, p->n);
    } else {
        p->r.format->put_whole(&p->r, p->c, p->n);
    }
}

static void play_deinit(play *p)
{
    for (int i = 0; i < p->n; i++) choice_deinit(&p->c[i]);
    reply_deinit(&p->r);
}

static const char *text_of(play *p)
{
    buf_putc(&p->r.out, 0);
    return p->r.out.p;
}

static void says(test_case *t, play *p, const char *const *parts, size_t n)
{
    const char *at = text_of(p), *all = at;
    for (size_t i = 0; i < n; i++) {
        const char *found = strstr(at, parts[i]);
        if (!CHECK_MSG(found, "'%s' is not in its place in %s", parts[i], all)) return;
        at = found + strlen(parts[i]);
    }
}
#define SAYS(p, ...) says(t, p, (const char *const[]){__VA_ARGS__}, COUNT(((const char *const[]){__VA_ARGS__})))

TEST(reply_chat_is_whole)
{
    play p;
    play_begin(&p, &reply_chat, 2, false, false);
    tell(&p, 0, "rwhy");
    tell(&p, 0, "cso ");
    tell(&p, 0, "c\"it\"");
    tell(&p, 1, "nadd");
    tell(&p, 1, "a{\"x\":");
    tell(&p, 1, "a1}");
    tell(&p, 1, ".");
    tell(&p, 1, "nsub");
    tell(&p, 1, "a{}");
    tell(&p, 1, ".");
    play_end(&p);
    SAYS(&p, "{\"id\":\"chatcmpl-", "\"object\":\"chat.completion\",",
         "\"model\":\"a \\\"model\\\"\",\"system_fingerprint\":\"\",\"choices\":[{\"index\":0,",
         "\"message\":{\"role\":\"assistant\",\"reasoning_content\":\"why\",\"content\":\"so \\\"it\\\"\"},"
         "\"logprobs\":null,\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":"
         "null,"
         "\"tool_calls\":[{\"id\":\"call_",
         "\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"x\\\":1}\"}},{\"id\":\"call_",
         "\"function\":{\"name\":\"sub\",\"arguments\":\"{}\"}}]},\"logprobs\":null,\"finish_reason\":\"tool_calls\"}],"
         "\"usage\":{\"prompt_tokens\":0,",
         "\"reasoning_tokens\":0}},\"timings\":{", "}}");
    CHECK(!reply_lost(&p.r, p.c, 2));
    play_deinit(&p);
    play_begin(&p, &reply_chat, 1, false, false);
    p.result.finish = TANDEM_FINISH_LENGTH;
    play_end(&p);
    SAYS(&p, "\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"length\"");
    play_deinit(&p);
    play_begin(&p, &reply_chat, 1, false, false); /* content beside a call */
    tell(&p, 0, "cone");
    tell(&p, 0, "nadd");
    tell(&p, 0, ".");
    play_end(&p);
    SAYS(&p, "\"content\":\"one\",\"tool_calls\":[", "\"arguments\":\"\"}}]}");
    play_deinit(&p);
}

TEST(reply_chat_is_told_in_chunks)
{
#define DELTA(x) "\"choices\":[{\"index\":0,\"delta\":{" x "},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
    play p;
    play_begin(&p, &reply_chat, 1, true, false);
    tell(&p, 0, "rwh");
    tell(&p, 0, "ry");
    tell(&p, 0, "cso");
    reply_chat.flush(&p.c[0]);
    reply_chat.flush(&p.c[0]); /* nothing is new */
    tell(&p, 0, "c on");
    tell(&p, 0, "nadd");
    tell(&p, 0, "a{");
    tell(&p, 0, "a}");
    tell(&p, 0, ".");
    tell(&p, 0, "nsub");
    tell(&p, 0, "a1");
    play_end(&p);
    SAYS(&p, "data: {\"id\":\"chatcmpl-", "\"object\":\"chat.completion.chunk\"",
         DELTA("\"role\":\"assistant\",\"content\":\"\"") "data: ", DELTA("\"reasoning_content\":\"why\"") "data: ",
         DELTA("\"content\":\"so\"") "data: ", DELTA("\"content\":\" on\"") "data: ",
         "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_", "\"name\":\"add\",\"arguments\":\"\"}}]}",
         DELTA("\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]") "data: ",
         "\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"call_",
         DELTA("\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"1\"}}]") "data: ",
         "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"}],\"timings\":{", "}}\n\ndata: [DONE]\n\n");
    CHECK(!strstr(p.r.out.p, "\"usage\""));
    play_deinit(&p);
    play_begin(&p, &reply_chat, 1, true, true);
    tell(&p, 0, "cso");
    play_end(&p);
    SAYS(&p, "\"finish_reason\":null}],\"usage\":null}\n\n", "\"content\":\"so\"", "\"usage\":null}\n\n",
         "\"finish_reason\":\"stop\"}],\"usage\":null}\n\n", "\"choices\":[],\"usage\":{\"prompt_tokens\":0",
         "\"timings\":{", "}}\n\ndata: [DONE]\n\n");
    play_deinit(&p);
}

TEST(reply_text_is_whole_or_in_chunks)
{
    play p;
    play_begin(&p, &reply_text, 2, false, false);
    tell(&p, 0, "cone");
    tell(&p, 0, "c\ntwo");
    play_end(&p);
    SAYS(&p, "{\"id\":\"cmpl-", "\"object\":\"text_completion\"",
         "{\"index\":0,\"text\":\"one\\ntwo\",\"logprobs\":null,\"finish_reason\":\"stop\"},"
         "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{");
    play_deinit(&p);
    play_begin(&p, &reply_text, 2, true, false);
    tell(&p, 1, "cone");
    reply_text.flush(&p.c[0]);
    reply_text.flush(&p.c[1]);
    tell(&p, 1, "ctwo");
    play_end(&p);
    SAYS(&p, "data: {\"id\":\"cmpl-",
         "{\"index\":1,\"text\":\"one\",\"logprobs\":null,\"finish_reason\":null}]}\n\ndata: ",
         "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\ndata: ",
         "{\"index\":1,\"text\":\"two\",\"logprobs\":null,\"finish_reason\":null}]}\n\ndata: ",
         "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"timings\":{", "data: [DONE]\n\n");
    play_deinit(&p);
}

/* An error ends a stream behind what its answers used, and has no end as a good one has. */
TEST(reply_fails_with_its_usage)
{
    static const server_error why = {.status = 503, .code = "unavailable", .message = "Later."};
    play                      p;
    play_begin(&p, &reply_chat, 1, true, false);
    reply_chat.fail(&p.r, p.c, 1, &why);
    reply_chat.ping(&p.r);
    SAYS(
        &p, "\"choices\":[],\"usage\":{", "\"timings\":{",
        "data: "
        "{\"error\":{\"message\":\"Later.\",\"type\":\"overloaded_error\",\"param\":null,\"code\":\"unavailable\"}}\n\n"
        ": ping\n\n");
    CHECK(!strstr(p.r.out.p, "[DONE]"));
    buf_clear(&p.r.out);
    reply_chat.put_error(&p.r.out, p.c, 1, &why);
    SAYS(&p, "{\"error\":{\"message\":\"Later.\"", "},\"usage\":{", "}}}");
    buf_clear(&p.r.out);
    reply_chat.put_error(&p.r.out, p.c, 0, &why);
    CHECK(!strstr(text_of(&p), "usage"));
    play_deinit(&p);
}

/* Every buffer that had no room is a loss, of whichever answer. */
TEST(reply_knows_what_was_lost)
{
    play p;
    play_begin(&p, &reply_chat, 2, false, false);
    CHECK(!reply_lost(&p.r, p.c, 2));
    bool *const failed[] = {&p.r.head.failed, &p.r.tail.failed,       &p.r.out.failed,
                            &p.c[1].lost,     &p.c[0].part[0].failed, &p.c[1].part[CHOICE_PARTS - 1].failed};
    for (size_t i = 0; i < COUNT(failed); i++) {
        *failed[i] = true;
        CHECK(reply_lost(&p.r, p.c, 2));
        *failed[i] = false;
    }
    p.c[1].part[1].failed = true;
    reply_put_part(&p.r, &p.c[1], 1);
    CHECK(p.c[1].lost && !p.c[0].lost); /* though the part is empty now */
    play_deinit(&p);
}

TEST(reply_numbers_and_ids)
{
    static const int numbers[] = {0, 7, 9, 10, 11, 99, 100, 12345};
    char             want[16], id[2][REPLY_ID_MAX];
    buf              b;
    buf_init(&b, 100);
    for (size_t i = 0; i < COUNT(numbers); i++) {
        buf_clear(&b);
        reply_put_index(&b, numbers[i]);
        snprintf(want, sizeof want, "%d", numbers[i]);
        CHECK_STR(buf_str(&b), str_of(want));
    }
    buf_deinit(&b);
    CHECK(reply_logprob(-1.5) == -1.5 && reply_logprob(-9998.5) == -9998.5 && reply_logprob(-10000) == -9999);
    CHECK(reply_logprob(-INFINITY) == -9999 && reply_logprob(0) == 0);
    for (int i = 0; i < 2; i++) reply_make_id(id[i], sizeof id[i], "call_", 24);
    CHECK(strlen(id[0]) == 29 && str_starts(str_of(id[0]), "call_") && strcmp(id[0], id[1]));
    reply_make_id(id[0], 10, "call_", 24); /* as much as there is room for */
    CHECK_INT(strlen(id[0]), 9);
    reply_make_id(id[0], sizeof id[0], "x", 0);
    CHECK_STR(str_of(id[0]), STR("x"));
}

/* Any id is a token, the first one of the vocabulary too; the list ends where there are no more. */
TEST(reply_logprobs_of_any_token)
{
    static const tandem_logprob probs[] = {{5, -0.5f}, {0, -1}, {7, -INFINITY}, {-1, 0}, {8, 0}};
    tandem_token                x       = {.id = 5, .logprobs = probs};
    const json_value           *v;
    tok                        *words;
    arena                       mem;
    buf                         b;
    err                         e = {0};
    if (!CHECK_OK(open_tok(&words, test_path("models/nano/target.gguf"), &e), e)) return;
    arena_init(&mem, 1 << 20);
    buf_init(&b, 1 << 16);
    for (int n = 0; n <= 4; n++) reply_put_logprobs(&b, words, &x, n, false);
    buf all;
    buf_init(&all, 1 << 16);
    buf_printf(&all, "[%.*s]", (int)b.n, b.p);
    if (CHECK_OK(json_parse(&v, &mem, buf_str(&all), NULL, &e), e) && CHECK(v->n == 5))
        for (size_t n = 0; n <= 4; n++) {
            const json_value *top = json_get(&v->item[n], "top_logprobs");
            CHECK_NEAR(json_get(&v->item[n], "logprob")->d, -0.5, 0);
            CHECK_INT(top->n, n < 2 ? n : 2);
            if (n > 1) CHECK_NEAR(json_get(&top->item[1], "logprob")->d, -9999, 0);
            str bytes = tok_bytes(words, 5);
            CHECK_INT(json_get(&v->item[n], "bytes")->n, bytes.n);
        }
    buf_deinit(&all);
    buf_deinit(&b);
    arena_deinit(&mem);
    tok_free(words);
}
