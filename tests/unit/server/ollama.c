/* Bodies of Ollama's API: each asks the engine for what a chat or text completion's body of the same meaning asks for; and their
 * replies, of scripted events. */
#include "../sched/engine_rig.h"
#include "server/reply.h"

enum { CTX = 256 };

typedef struct {
    test_case     *t;
    tandem        *engine;
    server_request r, other; /* other: what it is compared with */
    server_error   why;
} reading;

static bool open_engine(test_case *t, reading *x)
{
    tandem_options o;
    err            e = {0};
    *x               = (reading){.t = t};
    nano_options(&o);
    o.n_ctx      = CTX;
    o.n_drafters = 0;
    return CHECK_OK(engine_open(&x->engine, &o, &(engine_extra){0}, &e), e);
}

static bool read_body(reading *x, server_request *r, int endpoint, const char *body)
{
    static const char *const aliases[] = {"gemma:4b"};
    buf                      b;
    buf_init(&b, (size_t)1 << 28);
    buf_puts(&b, body);
    request_init(r, endpoint, &b);
    request_name(r, "nano", aliases, 1);
    x->why = (server_error){0};
    return request_read(r, x->engine, (str){0}, &x->why);
}

static bool is_taken(reading *x, int endpoint, const char *body)
{
    test_case *t = x->t;
    return CHECK_MSG(read_body(x, &x->r, endpoint, body), "%s: %s", body, x->why.message);
}

static void refused(reading *x, int endpoint, const char *body, int status, const char *words)
{
    test_case *t = x->t;
    CHECK_MSG(!read_body(x, &x->r, endpoint, body), "%s is taken", body);
    CHECK_MSG(x->why.status == status && strstr(x->why.message, words), "%s: %d '%s' instead of %d '%s'", body,
              x->why.status, x->why.message, status, words);
    request_forget(&x->r);
}

static void same_ask(reading *x, const char *body)
{
    test_case            *t = x->t;
    const tandem_request *a = &x->r.ask, *b = &x->other.ask;
    CHECK_MSG(a->temp == b->temp && a->top_p == b->top_p && a->min_p == b->min_p && a->top_k == b->top_k, "%s", body);
    CHECK_MSG(a->presence_penalty == b->presence_penalty && a->frequency_penalty == b->frequency_penalty &&
                  a->repeat_penalty == b->repeat_penalty,
              "%s", body);
    CHECK_MSG(a->has_seed == b->has_seed && a->seed == b->seed && a->max_tokens == b->max_tokens, "%s", body);
    CHECK_MSG(a->logprobs == b->logprobs && a->spec.method == b->spec.method && a->spec.draft_max == b->spec.draft_max,
              "%s", body);
    CHECK_MSG(a->grammar.kind == b->grammar.kind && a->grammar.n_text == b->grammar.n_text &&
                  (!a->grammar.n_text || !memcmp(a->grammar.text, b->grammar.text, a->grammar.n_text)),
              "%s", body);
    CHECK_INT(x->r.n_stop, x->other.n_stop);
    for (int i = 0; i < x->r.n_stop && i < x->other.n_stop; i++) CHECK_STR(x->r.stop[i], x->other.stop[i]);
    CHECK_INT(x->r.f.stream, x->other.f.stream);
}

static void same_request(reading *x, int endpoint, const char *body, int other, const char *other_body)
{
    test_case *t = x->t;
    if (!is_taken(x, endpoint, body)) return;
    if (CHECK_MSG(read_body(x, &x->other, other, other_body), "%s: %s", other_body, x->why.message)) {
        const server_prompt *a = &x->r.prompt[0], *b = &x->other.prompt[0];
        CHECK_MSG(a->n == b->n && !memcmp(a->ids, b->ids, a->n * sizeof *a->ids), "%s is not %s", body, other_body);
        same_ask(x, body);
    }
    request_forget(&x->other);
    request_forget(&x->r);
}

#define SAYS(role, text)  "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define CHAT(messages, m) "{\"model\":\"nano\",\"messages\":[" messages "]" m "}"
#define WANT(messages, m) "{\"stream\":true,\"messages\":[" messages "]" m "}"
#define THINK             ",\"enable_thinking\":true"
#define CALL(id, city)    "{" id "\"function\":{\"name\":\"get_time\",\"arguments\":{\"city\":\"" city "\"}}}"
#define CALLS(list)       "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" list "]}"
#define RESULT(text, m)   "{\"role\":\"tool\",\"content\":\"" text "\"" m "}"
#define OPTIONS(x)        CHAT(SAYS("user", "Hi"), ",\"options\":{" x "}")
#define FIELDS(x)         WANT(SAYS("user", "Hi"), THINK x)

TEST(ollama_bodies_are_chats)
{
    static const struct {
        const char *body, *chat;
    } k[] = {
        {CHAT(SAYS("user", "Hi"), ""), WANT(SAYS("user", "Hi"), THINK)},
        {CHAT(SAYS("user", "Hi"), ",\"stream\":false,\"think\":false"),
         "{\"messages\":[" SAYS("user", "Hi") "],\"enable_thinking\":false}"},
        {CHAT(SAYS("user", "Hi"), ",\"think\":\"max\""), WANT(SAYS("user", "Hi"), THINK)},
        {CHAT(SAYS("SYSTEM", "Be brief.") "," SAYS("User", "Hi"), ""),
         WANT(SAYS("system", "Be brief.") "," SAYS("user", "Hi"), THINK)},
        {CHAT("{\"role\":\"user\"}," SAYS("user", "x"), ""), WANT(SAYS("user", "") "," SAYS("user", "x"), THINK)},
        {CHAT("{\"role\":\"user\",\"content\":null,\"images\":[]}", ""), WANT(SAYS("user", ""), THINK)},
        /* an answer that was begun */
        {CHAT(SAYS("user", "Hi") "," SAYS("assistant", "Well"), ""),
         WANT(SAYS("user", "Hi") "," SAYS("assistant", "Well"), THINK ",\"continue_final_message\":true")},
        /* results belong to calls by id, by name, in order */
        {CHAT(SAYS("user", "Hi") "," CALLS(CALL("\"id\":\"a\",", "Rome") "," CALL("\"id\":\"b\",", "Oslo")) "," RESULT(
                  "8", ",\"tool_call_id\":\"b\"") "," RESULT("9", ",\"tool_call_id\":\"a\""),
              ""),
         WANT(SAYS("user", "Hi") "," CALLS(CALL("\"id\":\"a\",", "Rome") "," CALL("\"id\":\"b\",", "Oslo")) "," RESULT(
                  "8", ",\"tool_call_id\":\"b\"") "," RESULT("9", ",\"tool_call_id\":\"a\""),
              THINK)},
        {CHAT(SAYS("user", "Hi") "," CALLS(CALL("", "Rome") ",{\"function\":{\"name\":\"noop\"}}") "," RESULT(
                  "9", ",\"tool_name\":\"noop\"") "," RESULT("8", ",\"tool_name\":\"get_time\""),
              ""),
         WANT(
             SAYS("user", "Hi") "," CALLS(CALL(
                 "\"id\":\"a\",",
                 "Rome") ",{\"id\":\"b\",\"function\":{\"name\":"
                         "\"noop\"}}") "," RESULT("9", ",\"tool_call_id\":\"b\"") "," RESULT("8",
                                                                                             ",\"tool_call_id\":\"a\""),
             THINK)},
        {CHAT(SAYS("user", "Hi") "," CALLS(CALL("", "Rome") ",{\"function\":{\"name\":\"noop\"}}") "," RESULT(
                  "8", "") "," RESULT("9", ""),
              ""),
         WANT(
             SAYS("user", "Hi") "," CALLS(CALL(
                 "\"id\":\"a\",",
                 "Rome") ",{\"id\":\"b\",\"function\":{\"name\":"
                         "\"noop\"}}") "," RESULT("8", ",\"tool_call_id\":\"a\"") "," RESULT("9",
                                                                                             ",\"tool_call_id\":\"b\""),
             THINK)},
        {CHAT(SAYS("user",
                   "Hi") "," CALLS(CALL("", "Rome")) ",{\"role\":\"tool\",\"content\":\"x\",\"images\":[\"aGk=\"]}",
              ""),
         WANT(SAYS("user", "Hi") "," CALLS(
                  CALL("\"id\":\"a\",", "Rome")) ","
                                                 "{\"role\":\"tool\",\"content\":[{\"type\":\"image\",\"data\":\"aGk="
                                                 "\"},{\"type\":\"text\",\"text\":\"x\"}],"
                                                 "\"tool_call_id\":\"a\"}",
              THINK)},
        {CHAT("{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"b\"}," SAYS("user", "Hi"), ""),
         WANT("{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"b\"}," SAYS("user", "Hi"), THINK)},
        /* formats, log-probabilities */
        {CHAT(SAYS("user", "Hi"), ",\"format\":\"json\""), FIELDS(",\"response_format\":{\"type\":\"json_object\"}")},
        {CHAT(SAYS("user", "Hi"), ",\"format\":{\"type\":\"boolean\"}"),
         FIELDS(",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"boolean\"}}}")},
        {CHAT(SAYS("user", "Hi"), ",\"format\":\"\",\"options\":null,\"tools\":null"), FIELDS("")},
        {CHAT(SAYS("user", "Hi"), ",\"logprobs\":true,\"top_logprobs\":3"),
         FIELDS(",\"logprobs\":true,\"top_logprobs\":3")},
        {CHAT(SAYS("user", "Hi"), ",\"top_logprobs\":3"), FIELDS("")},
        /* options */
        {OPTIONS("\"temperature\":0.5,\"top_k\":7.0,\"top_p\":0.25,\"min_p\":0.125,\"seed\":9,\"num_predict\":11,"
                 "\"stop\":[\"a\",\"b\"]"),
         FIELDS(",\"temperature\":0.5,\"top_k\":7,\"top_p\":0.25,\"min_p\":0.125,\"seed\":9,\"max_tokens\":11,\"stop\":"
                "[\"a\",\"b\"]")},
        {OPTIONS("\"presence_penalty\":0.5,\"frequency_penalty\":0.25,\"repeat_penalty\":1.5,\"stop\":\"x\""),
         FIELDS(",\"presence_penalty\":0.5,\"frequency_penalty\":0.25,\"repeat_penalty\":1.5,\"stop\":\"x\"")},
        {OPTIONS("\"repeat_penalty\":1.5,\"repeat_last_n\":0"), FIELDS("")},
        {OPTIONS("\"seed\":-1,\"num_predict\":-1,\"num_ctx\":4096"), FIELDS(",\"max_tokens\":-1")},
        {OPTIONS("\"num_predict\":0"), FIELDS(",\"max_tokens\":-1")},
        {OPTIONS("\"num_predict\":1e300"), FIELDS(",\"max_tokens\":2147483647")},
        {OPTIONS("\"draft_num_predict\":0"), FIELDS(",\"speculative\":\"off\"")},
        {OPTIONS("\"draft_num_predict\":3"), FIELDS(",\"speculative\":{\"draft_max\":3}")},
        {OPTIONS("\"num_gpu\":9,\"use_mmap\":false,\"nothing\":[{}],\"numa\":null"), FIELDS("")},
    };
    reading x;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) same_request(&x, FIELD_OLLAMA_CHAT, k[i].body, FIELD_CHAT, k[i].chat);
    same_request(&x, FIELD_OLLAMA_GENERATE, "{\"model\":\"nano\",\"prompt\":\"Hi\"}", FIELD_CHAT, FIELDS(""));
    same_request(&x, FIELD_OLLAMA_GENERATE,
                 "{\"model\":\"nano\",\"prompt\":\"Hi\",\"system\":\"Be brief.\",\"suffix\":\"\"}", FIELD_CHAT,
                 WANT(SAYS("system", "Be brief.") "," SAYS("user", "Hi"), THINK));
    same_request(&x, FIELD_OLLAMA_GENERATE, "{\"model\":\"nano\",\"prompt\":\"Hi\",\"raw\":true,\"logprobs\":true}",
                 FIELD_TEXT, "{\"prompt\":\"Hi\",\"stream\":true,\"logprobs\":0}");
    same_request(&x, FIELD_OLLAMA_GENERATE, "{\"model\":\"nano\",\"prompt\":\"<bos><turn|>Hi\",\"raw\":true}",
                 FIELD_TEXT, "{\"prompt\":[2,16,1720],\"stream\":true}");
    tandem_close(x.engine);
}

TEST(ollama_warns_of_options_without_effect)
{
    reading x;
    if (!open_engine(t, &x)) return;
    is_taken(&x, FIELD_OLLAMA_CHAT, OPTIONS("\"mirostat\":2,\"typical_p\":0.5,\"num_gpu\":1"));
    CHECK_STR(str_of(x.r.warning), STR("option typical_p has no effect; option mirostat has no effect"));
    request_forget(&x.r);
    is_taken(&x, FIELD_OLLAMA_CHAT, OPTIONS("\"repeat_penalty\":1.5,\"repeat_last_n\":64"));
    CHECK(strstr(x.r.warning, "repeat_last_n"));
    request_forget(&x.r);
    is_taken(&x, FIELD_OLLAMA_CHAT, OPTIONS("\"repeat_last_n\":64,\"num_keep\":4"));
    CHECK_STR(str_of(x.r.warning), STR(""));
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(ollama_models_have_names_with_tags)
{
    static const char *const        good[] = {"nano", "nano:latest", "NANO:Latest", "gemma:4b", "Gemma:4B"},
                             *const bad[]  = {"nan",   "nano:",        "nano:late", "nano:latest:latest",
                                              "gemma", "gemma:latest", "x/nano"};
    reading                         x;
    char                            body[128];
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(good); i++)
        for (int old = 0; old < 2; old++) {
            snprintf(body, sizeof body, "{\"%s\":\"%s\",\"messages\":[]}", old ? "name" : "model", good[i]);
            if (is_taken(&x, FIELD_OLLAMA_CHAT, body)) CHECK_STR(x.r.ollama.model, str_of(good[i]));
            request_forget(&x.r);
        }
    for (size_t i = 0; i < COUNT(bad); i++) {
        snprintf(body, sizeof body, "{\"model\":\"%s\"}", bad[i]);
        refused(&x, FIELD_OLLAMA_CHAT, body, 404, "not found");
    }
    tandem_close(x.engine);
}

TEST(ollama_loads_by_keep_alive)
{
    static const struct {
        const char *value, *reason; /* NULL: it is refused */
    } k[] = {{"0", "unload"},         {"0.0", "unload"},
             {"\"0\"", "unload"},     {"\"0s\"", "unload"},
             {"\"-0h0m\"", "unload"}, {"null", "load"},
             {"5", "load"},           {"-1", "load"},
             {"\"5m\"", "load"},      {"\"1h30m\"", "load"},
             {"\"1.5h\"", "load"},    {"\"-1m\"", "load"},
             {"\"+2ms\"", "load"},    {"\"3\\u00b5s\"", "load"},
             {"\"\"", NULL},          {"\"5\"", NULL},
             {"\"m\"", NULL},         {"\"5x\"", NULL},
             {"\"-\"", NULL},         {"\"1..5s\"", NULL},
             {"true", NULL},          {"[]", NULL},
             {"\"5m \"", NULL}};
    reading x;
    char    body[128];
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) {
        snprintf(body, sizeof body, "{\"model\":\"nano\",\"prompt\":\"\",\"keep_alive\":%s}", k[i].value);
        for (int endpoint = FIELD_OLLAMA_CHAT; endpoint <= FIELD_OLLAMA_GENERATE; endpoint *= 2) {
            if (!k[i].reason) {
                refused(&x, endpoint, body, 400, "");
                continue;
            }
            if (is_taken(&x, endpoint, body)) CHECK_STR(str_of(x.r.ollama.loaded), str_of(k[i].reason));
            CHECK(!x.r.n_choices);
            request_forget(&x.r);
        }
    }
    tandem_close(x.engine);
}

TEST(ollama_refuses_what_is_wrong)
{
    static const struct {
        int         endpoint, status;
        const char *body, *words;
    } k[] = {
        {FIELD_OLLAMA_CHAT, 400, "", "missing request body"},
        {FIELD_OLLAMA_CHAT, 400, "[]", "must be a JSON object"},
        {FIELD_OLLAMA_CHAT, 400, "{}", "model is required"},
        {FIELD_OLLAMA_CHAT, 400, "{\"model\":\"\",\"name\":null}", "model is required"},
        {FIELD_OLLAMA_CHAT, 400, "{\"model\":7}", "'model' must be a string"},
        {FIELD_OLLAMA_CHAT, 400, "{\"model\":\"nano\",\"messages\":{}}", "'messages' must be a list"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("7", ""), "'messages[0]' must be an object"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"content\":\"x\"}", ""), "'messages[0].role'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("robot", "x"), ""), "messages[0].role"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"role\":\"user\",\"content\":[]}", ""),
         "'messages[0].content' must be a string"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"role\":\"user\",\"images\":7}", ""), "'messages[0].images'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"role\":\"user\",\"images\":[\"aGk=\"]}", ""), "text only"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"role\":\"user\",\"thinking\":7}", ""), "'messages[0].thinking'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT("{\"role\":\"assistant\",\"tool_calls\":7}", ""),
         "'messages[0].tool_calls' must be a list"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(CALLS("{}"), ""), "'messages[0].tool_calls'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(CALLS("{\"id\":7,\"function\":{\"name\":\"x\"}}"), ""),
         "'messages[0].tool_calls'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(RESULT("x", ",\"tool_name\":7"), ""), "'messages[0].tool_name'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(RESULT("x", ",\"tool_call_id\":7"), ""), "'messages[0].tool_call_id'"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"stream\":1"), "'stream' must be true or false"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"truncate\":1"), "'truncate' must be true or false"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"think\":\"much\""), "'think' must be"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"format\":\"yaml\""), "'format' must be"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"format\":[]"), "'format' must be"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"options\":[]"), "'options' must be an object"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"logprobs\":1"), "'logprobs' must be true or false"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"top_logprobs\":1.5"), "between 0 and 20"},
        {FIELD_OLLAMA_CHAT, 400, CHAT(SAYS("user", "Hi"), ",\"tools\":7"), "tools"},
        {FIELD_OLLAMA_CHAT, 400, OPTIONS("\"temperature\":-1"), "'options.temperature' must be a number from 0"},
        {FIELD_OLLAMA_CHAT, 400, OPTIONS("\"num_ctx\":5"), "maximum context length is 5 tokens"},
        {FIELD_OLLAMA_CHAT, 400, OPTIONS("\"stop\":[7]"), "option \"stop\" must be of type array"},
        {FIELD_OLLAMA_CHAT, 400, OPTIONS("\"numa\":7"), "option \"numa\" must be of type boolean"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":7}", "'prompt' must be a string"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"raw\":7}", "'raw' must be true or false"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"suffix\":\"y\"}",
         "\"nano\" does not support insert"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"context\":[1]}",
         "'context' is not supported"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"template\":\"y\"}",
         "'template' is not supported"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"raw\":true,\"system\":\"y\"}",
         "raw mode does not support"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"images\":[\"aGk=\"]}", "text only"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"images\":7}", "'images' must be a list"},
        {FIELD_OLLAMA_GENERATE, 400, "{\"model\":\"nano\",\"prompt\":\"x\",\"raw\":true,\"images\":[\"aGk=\"]}",
         "raw mode"},
    };
    reading x;
    buf     b;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) refused(&x, k[i].endpoint, k[i].body, k[i].status, k[i].words);
    refused(&x, FIELD_OLLAMA_CHAT,
            "{\"model\":\"nano\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
            "\"options\":{\"seed\":1e300}}",
            400, "must be below");
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"model\":\"nano\",\"raw\":true,\"prompt\":\"");
    for (int i = 0; i < 2000; i++) buf_puts(&b, "7,");
    buf_puts(&b, "\"}");
    buf_putc(&b, 0);
    refused(&x, FIELD_OLLAMA_GENERATE, b.p, 400, "maximum context length is 256 tokens");
    buf_deinit(&b);
    tandem_close(x.engine);
}

/* --- long conversations ---------------------------------------------------------------------------*/
/* A system's text, the last n of 40 turns, and a question. */
static void put_turns(buf *b, int n, const char *more, int n_ctx)
{
    buf_clear(b);
    buf_puts(b, "{\"model\":\"nano\",\"messages\":[" SAYS("system", "Be brief."));
    for (int i = 40 - n; i < 40; i++)
        buf_printf(b, "," SAYS("user", "My number is %d.") "," SAYS("assistant", "Good."), 100 + i * i);
    buf_printf(b, "," SAYS("user", "Hi") "]%s,\"options\":{\"num_ctx\":%d}}", more, n_ctx);
    buf_putc(b, 0);
}

/* The prompt is that of so many turns alone, and one more does not fit. */
static void check_left_out(reading *x, int n_ctx)
{
    test_case *t = x->t;
    buf        b;
    int        n = 0;
    buf_init(&b, 1 << 20);
    put_turns(&b, 40, "", n_ctx);
    refused(x, FIELD_OLLAMA_CHAT, b.p, 400, "maximum context length is");
    put_turns(&b, 40, ",\"truncate\":true", n_ctx);
    if (is_taken(x, FIELD_OLLAMA_CHAT, b.p)) {
        n = (int)(x->r.chat->n - 2) / 2;
        put_turns(&b, n, "", n_ctx);
        CHECK_MSG(read_body(x, &x->other, FIELD_OLLAMA_CHAT, b.p), "%d turns: %s", n, x->why.message);
        CHECK(x->r.prompt[0].n == x->other.prompt[0].n &&
              !memcmp(x->r.prompt[0].ids, x->other.prompt[0].ids, x->r.prompt[0].n * sizeof(int32_t)));
        request_forget(&x->other);
    }
    request_forget(&x->r);
    put_turns(&b, n + 1, "", n_ctx);
    refused(x, FIELD_OLLAMA_CHAT, b.p, 400, "maximum context length is");
    buf_deinit(&b);
}

TEST(ollama_leaves_out_the_oldest_turns)
{
    reading x;
    buf     b;
    if (!open_engine(t, &x)) return;
    buf_init(&b, 1 << 20);
    for (int n_ctx = 24; n_ctx <= CTX; n_ctx += 8) check_left_out(&x, n_ctx);
    put_turns(&b, 1, ",\"truncate\":true", 8);
    refused(&x, FIELD_OLLAMA_CHAT, b.p, 400, "maximum context length is 8 tokens"); /* the last turn stays */
    put_turns(&b, 2, ",\"truncate\":true", CTX);
    if (is_taken(&x, FIELD_OLLAMA_CHAT, b.p)) CHECK_INT(x.r.chat->n, 6);
    request_forget(&x.r);
    put_turns(&b, 0, "", 60);
    if (is_taken(&x, FIELD_OLLAMA_CHAT, b.p)) CHECK_INT((size_t)x.r.ask.max_tokens + x.r.prompt[0].n, 61);
    request_forget(&x.r);
    buf_deinit(&b);
    tandem_close(x.engine);
}

/* --- replies --------------------------------------------------------------------------------------*/
typedef struct {
    server_request q;
    reply          r;
    server_choice  c;
    tandem_result  result;
} play;

static void play_begin(play *p, bool is_chat, bool stream)
{
    *p                = (play){.result = {.finish = TANDEM_FINISH_STOP}};
    p->q.f.n          = 1;
    p->q.f.stream     = stream;
    p->q.ollama       = (ollama_call){.model = STR("na\"no"), .is_chat = is_chat};
    p->q.ask.logprobs = -1;
    reply_init(&p->r, &reply_ollama, &p->q, NULL, "nano");
    p->r.since = p->r.opened;
    choice_init(&p->c, &p->r, 0);
    if (stream) reply_begin(&p->c);
}

/* One letter for the kind, then the text: r reasoning, c content, n a call's name, a its arguments; "." ends a call, "/" is the
 * end of a poll. */
static void tell(play *p, const char *script)
{
    static const char kinds[] = "rcna.";
    static const int  kind[]  = {CHAT_EVENT_REASONING, CHAT_EVENT_CONTENT, CHAT_EVENT_CALL_NAME, CHAT_EVENT_CALL_ARGS,
                                 CHAT_EVENT_CALL_DONE};
    if (script[0] == '/') {
        if (p->r.stream) p->r.format->flush(&p->c);
        return;
    }
    chat_event ev = {.kind = (chat_event_kind)kind[strchr(kinds, script[0]) - kinds], .text = str_of(script + 1)};
    p->r.format->on_event(&p->c, &ev);
    p->c.events.n_calls += ev.kind == CHAT_EVENT_CALL_NAME;
}

/* Writes the lines without their heads and their counts, with 'x' for the letters of ids. */
static void play_end(play *p, char *out, size_t cap)
{
    size_t n    = 0;
    p->c.result = &p->result;
    if (p->r.stream) {
        reply_end(&p->c, &p->c, 1, true);
        p->r.format->done(&p->r, &p->c, 1);
    } else {
        p->r.format->put_whole(&p->r, &p->c, 1);
    }
    buf_putc(&p->r.out, 0);
    for (char *id = p->r.out.p; (id = strstr(id, "\"call_")); id += 6) memset(id + 6, 'x', 24);
    for (char *line = strtok(p->r.out.p, "\n"); line; line = strtok(NULL, "\n")) {
        char *body = strstr(line, "Z\","), *counts = strstr(line, ",\"total_duration\"");
        if (counts) *counts = 0;
        n += (size_t)snprintf(out + n, cap - n, "%s\n",
                              str_starts(str_of(line), "{\"model\":\"na\\\"no\",\"created_at\":\"") && body ? body + 3
                                                                                                            : line);
    }
    choice_deinit(&p->c);
    reply_deinit(&p->r);
}

#define LINE(content) "\"message\":{\"role\":\"assistant\",\"content\":" content "},\"done\":false}\n"
#define LAST(content)                                                                                                  \
    "\"message\":{\"role\":\"assistant\",\"content\":" content "},\"done\":true,\"done_reason\":\"stop\"\n"
#define MADE(i, n, a)                                                                                                  \
    "{\"id\":\"call_xxxxxxxxxxxxxxxxxxxxxxxx\",\"function\":{\"index\":" #i ",\"name\":\"" n "\",\"arguments\":" a "}" \
    "}"

TEST(ollama_replies)
{
    static const char *const script[] = {
        "rwhy", "/", "r not", "cso \"", "/", "cit\"", "nadd", "a{\"x\":", "/", "a1}", ".", "nsub", "a{}", ".", "/"};
    static const char whole[] = LAST("\"so \\\"it\\\"\",\"thinking\":\"why not\",\"tool_calls\":[" MADE(
        0, "add", "{\"x\":1}") "," MADE(1, "sub", "{}") "]");
    static const char lines[] = LINE("\"\",\"thinking\":\"why\"") LINE("\"\",\"thinking\":\" not\"") LINE("\"so \\\"\"")
        LINE("\"it\\\"\"") LINE("\"\",\"tool_calls\":[" MADE(0, "add", "{\"x\":1}") "]")
            LINE("\"\",\"tool_calls\":[" MADE(1, "sub", "{}") "]") LAST("\"\"");
    for (int stream = 0; stream < 2; stream++) {
        play p;
        char out[4096] = "";
        play_begin(&p, true, stream);
        for (size_t i = 0; i < COUNT(script); i++) tell(&p, script[i]);
        play_end(&p, out, sizeof out);
        CHECK_STR(str_of(out), str_of(stream ? lines : whole));
    }
}

TEST(ollama_replies_to_generate)
{
    static const char whole[] = "\"response\":\"a\\nb\",\"thinking\":\"t\",\"done\":true,\"done_reason\":\"length\"\n";
    static const char lines[] =
        "\"response\":\"\",\"thinking\":\"t\",\"done\":false}\n\"response\":\"a\\nb\",\"done\":false}\n"
        "\"response\":\"\",\"done\":true,\"done_reason\":\"length\"\n";
    for (int stream = 0; stream < 2; stream++) {
        play p;
        char out[4096] = "";
        play_begin(&p, false, stream);
        p.result.finish = TANDEM_FINISH_LENGTH;
        tell(&p, "rt");
        tell(&p, "ca\nb");
        play_end(&p, out, sizeof out);
        CHECK_STR(str_of(out), str_of(stream ? lines : whole));
    }
}

/* A ping and an error are lines, too; durations are above 0 even where nothing took time. */
TEST(ollama_lines_are_never_empty)
{
    for (int is_chat = 0; is_chat < 2; is_chat++) {
        play                     p;
        server_error             why = {.status = 504, .message = "It \"ran\"\nout."};
        const json_value        *v;
        arena                    mem;
        static const char *const above[] = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"};
        arena_init(&mem, 1 << 20);
        play_begin(&p, is_chat, true);
        p.r.format->ping(&p.r);
        CHECK(p.r.out.n && memchr(p.r.out.p, '\n', p.r.out.n) == p.r.out.p + p.r.out.n - 1);
        CHECK(json_parse(&v, &mem, buf_str(&p.r.out), NULL, NULL) && !json_get(v, "done")->b);
        CHECK(json_get(is_chat ? json_get(v, "message") : v, is_chat ? "content" : "response"));
        buf_clear(&p.r.out);
        p.r.format->fail(&p.r, &p.c, 1, &why);
        CHECK_STR(buf_str(&p.r.out),
                  STR("{\"error\":\"It \\\"ran\\\"\\nout.\",\"prompt_eval_count\":0,\"eval_count\":0}\n"));
        buf_clear(&p.r.out);
        p.c.result = &p.result;
        reply_end(&p.c, &p.c, 1, true);
        CHECK(json_parse(&v, &mem, buf_str(&p.r.out), NULL, NULL));
        for (size_t i = 0; i < COUNT(above); i++) CHECK(json_get(v, above[i])->i > 0);
        choice_deinit(&p.c);
        reply_deinit(&p.r);
        arena_deinit(&mem);
    }
}
