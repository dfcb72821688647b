/* From the body of a request to what the engine is asked for, without a server. */
#include "request_rig.h"
#include "server/reply.h"

TEST(request_sampling)
{
    reading               x;
    tandem_request        own;
    const tandem_request *a;
    if (!open_engine(t, &x)) return;
    tandem_request_init(x.engine, &own);
    a = ask(&x, FIELD_TEXT, TEXT(""));
    CHECK(a->temp == own.temp && a->top_p == own.top_p && a->min_p == own.min_p && a->top_k == own.top_k);
    CHECK(a->presence_penalty == 0 && a->frequency_penalty == 0 && a->repeat_penalty == 1 && !a->has_seed && !a->seed);
    CHECK(a->max_tokens == -1 && a->logprobs == -1 && !a->ignore_stop_ids && a->spec.method == TANDEM_SPEC_AUTO);
    request_forget(&x.r);
    a = ask(&x, FIELD_TEXT,
            TEXT(",\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":7,\"presence_penalty\":1.5,"
                 "\"frequency_penalty\":-1.5,\"repeat_penalty\":1.25,\"seed\":-3,\"ignore_eos\":true,"
                 "\"max_tokens\":9,\"max_completion_tokens\":3"));
    CHECK(a->temp == 0.5f && a->top_p == 0.25f && a->min_p == 0.125f && a->top_k == 7);
    CHECK(a->presence_penalty == 1.5f && a->frequency_penalty == -1.5f && a->repeat_penalty == 1.25f);
    CHECK(a->has_seed && a->seed == (uint64_t)-3 && a->ignore_stop_ids && a->max_tokens == 9);
    request_forget(&x.r);
    static const struct {
        const char *body;
        int32_t     max_tokens, top_k;
    } k[] = {{CHAT(",\"max_tokens\":9,\"max_completion_tokens\":3,\"top_k\":0"), 3, 0},
             {CHAT(",\"max_tokens\":0,\"top_k\":-1"), 0, 0},
             {CHAT(",\"max_completion_tokens\":-1,\"max_tokens\":4,\"top_k\":1"), INT32_MAX, 1}};
    for (size_t i = 0; i < COUNT(k); i++) {
        a = ask(&x, FIELD_CHAT, k[i].body);
        CHECK_INT(a->max_tokens, k[i].max_tokens);
        CHECK_INT(a->top_k, k[i].top_k);
        request_forget(&x.r);
    }
    a = ask(&x, FIELD_TEXT, TEXT(",\"seed\":0"));
    CHECK(a->has_seed && !a->seed);
    request_forget(&x.r);
    refused(&x, FIELD_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", "max_tokens", "missing");
    tandem_close(x.engine);
}

TEST(request_logprobs)
{
    reading x;
    if (!open_engine(t, &x)) return;
    static const struct {
        int         endpoint;
        const char *body;
        int         n; /* -1: none */
    } k[] = {{FIELD_CHAT, CHAT(""), -1},
             {FIELD_CHAT, CHAT(",\"logprobs\":true"), 0},
             {FIELD_CHAT, CHAT(",\"logprobs\":false,\"top_logprobs\":0"), -1},
             {FIELD_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":1"), 1},
             {FIELD_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":20"), 20},
             {FIELD_TEXT, TEXT(",\"logprobs\":0"), 0},
             {FIELD_TEXT, TEXT(",\"logprobs\":4"), 4},
             {FIELD_RESPONSES, INPUT(""), -1},
             {FIELD_RESPONSES, INPUT(",\"top_logprobs\":0"), -1},
             {FIELD_RESPONSES, INPUT(",\"top_logprobs\":1"), 1},
             {FIELD_RESPONSES, INPUT(",\"include\":[\"message.output_text.logprobs\"]"), 0}};
    for (size_t i = 0; i < COUNT(k); i++) {
        CHECK_MSG(ask(&x, k[i].endpoint, k[i].body)->logprobs == k[i].n, "%s: %d", k[i].body, x.r.ask.logprobs);
        request_forget(&x.r);
    }
    refused(&x, FIELD_CHAT, CHAT(",\"top_logprobs\":1"), "top_logprobs", "needs 'logprobs'");
    tandem_close(x.engine);
}

/* Each answer may have as many entries as it may have tokens; a reply that is one object has them as text as well. */
TEST(request_logprobs_need_memory)
{
    reading x;
    if (!open_engine(t, &x)) return;
    static const struct {
        int         endpoint;
        const char *body;
        int         tokens; /* of all answers; of prompts of 3 tokens */
        bool        streams;
    } k[] = {{FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":10}", 10, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":10,\"stream\":true}", 10, true},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":10,\"n\":3}", 30, false},
             {FIELD_TEXT, "{\"prompt\":[[5,6,7],[7,6,5]],\"logprobs\":2,\"max_tokens\":10,\"n\":3}", 60, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":61}", 61, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":62}", 62, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":63}", 62, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":0}", 0, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2}", 62, false},
             {FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":10,\"n\":3,\"echo\":true}", 39, false}};
    ask(&x, k[0].endpoint, k[0].body);
    size_t whole = request_logprob_bytes(&x.r, x.engine) / 10, streamed = 3 * sizeof(tandem_logprob);
    request_forget(&x.r);
    CHECK(whole > 10 * streamed);
    for (size_t i = 0; i < COUNT(k); i++) {
        ask(&x, k[i].endpoint, k[i].body);
        CHECK_INT(request_logprob_bytes(&x.r, x.engine), (size_t)k[i].tokens * (k[i].streams ? streamed : whole));
        request_forget(&x.r);
    }
    ask(&x, FIELD_TEXT, "{\"prompt\":[5,6,7],\"logprobs\":2,\"max_tokens\":10,\"echo\":true,\"stream\":true}");
    CHECK_INT(request_logprob_bytes(&x.r, x.engine), 10 * streamed + 3 * whole); /* the prompt's come at once */
    request_forget(&x.r);
    tandem_error why = {0};
    CHECK_OK(tandem_set(x.engine, "default_max_tokens", "5", &why), why);
    ask(&x, FIELD_TEXT, k[8].body);
    CHECK_INT(request_logprob_bytes(&x.r, x.engine), 5 * whole);
    request_forget(&x.r);
    ask(&x, FIELD_TEXT, TEXT(""));
    CHECK_INT(request_logprob_bytes(&x.r, x.engine), 0); /* it asks for none */
    CHECK(request_bytes(&x.r) >= x.r.body.cap + x.r.mem.used);
    request_forget(&x.r);
    /* The last events of a response repeat all of them. */
    ask(&x, FIELD_RESPONSES, INPUT(",\"top_logprobs\":2,\"max_output_tokens\":10,\"stream\":true"));
    CHECK(request_logprob_bytes(&x.r, x.engine) > 10 * whole);
    request_forget(&x.r);
    tandem_close(x.engine);
}

static void put_stops(buf *b, const char *before, int n, int bytes)
{
    buf_clear(b);
    buf_puts(b, before);
    for (int i = 0; i < n; i++) buf_printf(b, "%s\"%0*d\"", i ? "," : "", bytes, i);
    buf_puts(b, "]}");
    buf_putc(b, 0);
}

TEST(request_stops)
{
    static const char messages[] = "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                                   "\"stop_sequences\":[",
                      text[]     = "{\"prompt\":\"Hi\",\"stop\":[";
    reading x;
    buf     b;
    if (!open_engine(t, &x)) return;
    buf_init(&b, 1 << 16);
    ask(&x, FIELD_TEXT, TEXT(",\"stop\":\"end\""));
    CHECK_INT(x.r.n_stop, 1);
    CHECK_STR(x.r.stop[0], STR("end"));
    CHECK_STR(str_of(x.r.stop_text[0]), STR("end"));
    request_forget(&x.r);
    put_stops(&b, text, STOP_MAX_STRINGS, STOP_MAX_BYTES);
    ask(&x, FIELD_TEXT, b.p);
    CHECK_INT(x.r.n_stop, STOP_MAX_STRINGS);
    CHECK(x.r.stop[63].n == STOP_MAX_BYTES && x.r.stop[63].s[STOP_MAX_BYTES - 1] == '3');
    request_forget(&x.r);
    put_stops(&b, text, STOP_MAX_STRINGS + 1, 2);
    refused(&x, FIELD_TEXT, b.p, "stop", "a list of up to 64");
    put_stops(&b, text, 1, STOP_MAX_BYTES + 1);
    refused(&x, FIELD_TEXT, b.p, "stop", "of 1 to 256 bytes");
    put_stops(&b, messages, 1, STOP_MAX_BYTES + 1);
    refused(&x, FIELD_MESSAGES, b.p, "stop_sequences", "'stop_sequences' must be");
    put_stops(&b, text, 0, 0);
    taken(&x, FIELD_TEXT, b.p);
    refused(&x, FIELD_TEXT, TEXT(",\"stop\":\"a\\u0000b\""), "stop", "of 1 to 256 bytes");
    refused(&x, FIELD_TEXT, TEXT(",\"stop\":7"), "stop", "must be a string");
    buf_deinit(&b);
    tandem_close(x.engine);
}

TEST(request_biases)
{
    reading x;
    char    body[300];
    if (!open_engine(t, &x)) return;
    int n_vocab = engine_info(x.engine)->n_vocab, call = tok_find(engine_tok(x.engine), STR("<|tool_call>"));
    snprintf(body, sizeof body, TEXT(",\"logit_bias\":{\"0\":-100,\"%d\":100,\"5\":0.5}"), n_vocab - 1);
    const tandem_request *a = ask(&x, FIELD_TEXT, body);
    CHECK_INT(a->n_bias, 3);
    CHECK(a->bias[0].token == 0 && a->bias[0].bias == -100);
    CHECK(a->bias[1].token == n_vocab - 1 && a->bias[1].bias == 100);
    CHECK(a->bias[2].token == 5 && a->bias[2].bias == 0.5f);
    request_forget(&x.r);
    snprintf(body, sizeof body, TEXT(",\"logit_bias\":{\"%d\":1}"), n_vocab);
    refused(&x, FIELD_TEXT, body, "logit_bias", "which is not a token id below");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":{\"-1\":1}"), "logit_bias", "'-1'");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":{\"5\":100.5}"), "logit_bias", "of token 5 must be a number");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":{\"5\":-100.5}"), "logit_bias", "of token 5 must be a number");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":{\"5\":\"1\"}"), "logit_bias", "of token 5 must be a number");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":{\"5\":1,\"6\":2,\"05\":3}"), "logit_bias", "token 5 twice");
    /* Calls that are not wanted are banned, and a wish for them gives way. */
    if (!CHECK(call >= 0)) return;
    a = ask(&x, FIELD_CHAT, CHAT(TOOL ",\"tool_choice\":\"none\",\"logit_bias\":{\"5\":1}"));
    CHECK(a->n_bias == 2 && a->bias[1].token == call && a->bias[1].bias == -INFINITY);
    request_forget(&x.r);
    snprintf(body, sizeof body, CHAT(TOOL ",\"tool_choice\":\"none\",\"logit_bias\":{\"%d\":9,\"5\":1}"), call);
    a = ask(&x, FIELD_CHAT, body);
    CHECK(a->n_bias == 2 && a->bias[0].token == call && a->bias[0].bias == -INFINITY && a->bias[1].bias == 1);
    request_forget(&x.r);
    CHECK_INT(ask(&x, FIELD_CHAT, CHAT(TOOL))->n_bias, 0);
    request_forget(&x.r);
    CHECK_INT(ask(&x, FIELD_CHAT, CHAT(",\"tool_choice\":\"none\""))->n_bias, 0); /* there are none to ban */
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(request_speculation)
{
    static const char *const names[] = {"off", "dflash", "tree", "mtp", "ngram", "auto"};
    reading                  x;
    char                     body[200];
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(names); i++) {
        int m = 0;
        while (strcmp(tandem_method_name(m), names[i])) m++;
        snprintf(body, sizeof body, TEXT(",\"speculative\":\"%s\""), names[i]);
        CHECK_INT(ask(&x, FIELD_TEXT, body)->spec.method, m);
        request_forget(&x.r);
        snprintf(body, sizeof body, TEXT(",\"speculative\":{\"method\":\"%s\"}"), names[i]);
        CHECK_INT(ask(&x, FIELD_TEXT, body)->spec.method, m);
        request_forget(&x.r);
    }
    const tandem_speculation *s =
        &ask(&x, FIELD_TEXT,
             TEXT(",\"speculative\":{\"draft_max\":5,\"tree_budget\":6,\"tree_temp\":1.5,\"chain_seed\":false,"
                  "\"draft_noise\":0.5,\"draft_tail\":9}"))
             ->spec;
    CHECK(s->method == TANDEM_SPEC_AUTO && s->draft_max == 5 && s->tree_budget == 6 && s->tree_temp == 1.5f &&
          s->no_chain_seed && s->draft_noise == 0.5f && s->draft_tail == 9);
    request_forget(&x.r);
    CHECK(!ask(&x, FIELD_TEXT, TEXT(",\"speculative\":{}"))->spec.no_chain_seed);
    request_forget(&x.r);
    CHECK_INT(ask(&x, FIELD_TEXT, TEXT(",\"speculative\":{\"enabled\":false,\"method\":\"tree\"}"))->spec.method,
              TANDEM_SPEC_OFF);
    request_forget(&x.r);
    refused(&x, FIELD_TEXT, TEXT(",\"speculative\":7"), "speculative", "or an object with a method");
    refused(&x, FIELD_TEXT, TEXT(",\"speculative\":[]"), "speculative", "or an object with a method");
    refused(&x, FIELD_TEXT, TEXT(",\"speculative\":\"\""), "speculative", "not ''");
    refused(&x, FIELD_TEXT, TEXT(",\"speculative\":{\"method\":\"\"}"), "speculative.method", "not ''");
    tandem_close(x.engine);
}

/* {"prompt":[...]} with n items. */
static const char *prompts(buf *b, int n, const char *item, const char *more)
{
    buf_clear(b);
    buf_puts(b, "{\"prompt\":[");
    for (int i = 0; i < n; i++) buf_printf(b, "%s%s", i ? "," : "", item);
    buf_printf(b, "]%s}", more);
    buf_putc(b, 0);
    return b->p;
}

TEST(request_prompts)
{
    reading x;
    buf     b;
    if (!open_engine(t, &x)) return;
    buf_init(&b, 1 << 16);
    ask(&x, FIELD_TEXT, TEXT(",\"n\":3"));
    CHECK(x.r.n_prompts == 1 && x.r.n_choices == 3 && x.r.prompt[0].n >= 1);
    size_t  n     = x.r.prompt[0].n;
    int32_t first = x.r.prompt[0].ids[0];
    request_forget(&x.r);
    CHECK_INT(first == tok_bos(engine_tok(x.engine)), tok_add_bos(engine_tok(x.engine)));
    ask(&x, FIELD_TEXT, "{\"prompt\":[\"Hi\",\"Hi\",[5,6]],\"n\":2}");
    CHECK(x.r.n_prompts == 3 && x.r.n_choices == 6 && x.r.prompt[1].n == n && x.r.prompt[2].n == 2);
    CHECK(x.r.prompt[1].ids[0] == first && !memcmp(x.r.prompt[0].ids, x.r.prompt[1].ids, n * sizeof(int32_t)));
    CHECK(x.r.prompt[2].ids[0] == 5 && x.r.prompt[2].ids[1] == 6);
    request_forget(&x.r);
    taken(&x, FIELD_TEXT, prompts(&b, RECORD_MAX_CHOICES, "[5]", ""));
    refused(&x, FIELD_TEXT, prompts(&b, RECORD_MAX_CHOICES + 1, "[5]", ""), "prompt", "a list of up to 64");
    taken(&x, FIELD_TEXT, prompts(&b, RECORD_MAX_CHOICES / 2, "[5]", ",\"n\":2"));
    refused(&x, FIELD_TEXT, prompts(&b, RECORD_MAX_CHOICES / 2 + 1, "[5]", ",\"n\":2"), "n", "must be at most 64");
    taken(&x, FIELD_TEXT, prompts(&b, CTX - 1, "5", ""));
    taken(&x, FIELD_TEXT, prompts(&b, CTX, "5", ",\"max_tokens\":0"));
    refused(&x, FIELD_TEXT, prompts(&b, CTX, "5", ""), "prompt", "your prompt resulted in 64 tokens");
    refused(&x, FIELD_TEXT, prompts(&b, CTX + 1, "5", ",\"max_tokens\":0"), "prompt", "resulted in 65 tokens");
    CHECK(!strcmp(x.why.code, "context_length_exceeded"));
    refused(&x, FIELD_TEXT, "{\"prompt\":7}", "prompt", "must be a string");
    refused(&x, FIELD_TEXT, "{\"prompt\":[5,[5]]}", "prompt", "must be a string");
    refused(&x, FIELD_TEXT, "{\"prompt\":[[5],7]}", "prompt", "must be a string");
    refused(&x, FIELD_TEXT, "{\"prompt\":[\"a\",[]]}", "prompt", "'prompt' is empty");
    refused(&x, FIELD_TEXT, "{\"prompt\":[0,-1]}", "prompt", "-1, which is not a token id below");
    taken(&x, FIELD_TEXT, "{\"prompt\":[0,4095]}");
    refused(&x, FIELD_TEXT, "{\"prompt\":[0,4096]}", "prompt", "4096, which is not a token id below 4096");
    buf_deinit(&b);
    tandem_close(x.engine);
}

/* A conversation beyond the context is told in the words of each interface. */
TEST(request_conversations_fit_the_context)
{
    static const struct {
        int         endpoint;
        const char *before, *after, *param, *words;
    } k[] = {{FIELD_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}", "messages",
              "your messages resulted in"},
             {FIELD_RESPONSES, "{\"input\":\"", "\"}", "input", "your messages resulted in"},
             {FIELD_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}", "messages",
              "tokens > 63 maximum"}};
    reading x;
    buf     b;
    if (!open_engine(t, &x)) return;
    buf_init(&b, 1 << 16);
    for (size_t i = 0; i < COUNT(k); i++) {
        int most = 0;
        for (int words = 1; words < 100 && !most; words++) { /* the first one that does not fit */
            buf_clear(&b);
            buf_puts(&b, k[i].before);
            for (int w = 0; w < words; w++) buf_puts(&b, "7 ");
            buf_puts(&b, k[i].after);
            buf_putc(&b, 0);
            if (read_body(&x, k[i].endpoint, b.p))
                CHECK(x.r.prompt[0].n < CTX);
            else
                most = words;
            if (most) CHECK(x.r.prompt[0].n >= CTX);
            request_forget(&x.r);
        }
        CHECK(most > 1);
        CHECK_MSG(!strcmp(x.why.param, k[i].param) && strstr(x.why.message, k[i].words), "%s", x.why.message);
    }
    buf_deinit(&b);
    tandem_close(x.engine);
}

/* A key and a salt name a tenant together, and no other pair names the same. */
TEST(request_tenants)
{
    static const struct {
        const char *key, *salt;
    } k[] = {{"", ""}, {"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"1", "1:x"}, {"", "1:1"}};
    char    name[COUNT(k)][64];
    reading x;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) {
        char body[100];
        snprintf(body, sizeof body, k[i].salt[0] ? TEXT(",\"cache_salt\":\"%s\"") : TEXT(""), k[i].salt);
        x.key = str_of(k[i].key);
        ask(&x, FIELD_TEXT, body);
        CHECK_INT(x.r.ask.tenant != NULL, i > 0);
        CHECK(x.r.ask.tenant == x.r.tenant);
        snprintf(name[i], sizeof name[i], "%s", x.r.tenant ? x.r.tenant : "");
        CHECK_STR(str_of(x.r.ask.account ? x.r.ask.account : ""), str_of(k[i].key));
        request_forget(&x.r);
        for (size_t other = 0; other < i; other++) CHECK(strcmp(name[i], name[other]));
    }
    CHECK_STR(str_of(name[3]), STR("2:abc"));
    x.key = STR("");
    ask(&x, FIELD_TEXT, TEXT(",\"cache_salt\":\"a\\u0000b\""));
    CHECK_STR(str_of(x.r.tenant), STR("0:a b"));
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(request_thinking)
{
    static const char *const effort[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    reading                  x;
    char                     body[200];
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(effort); i++) {
        snprintf(body, sizeof body, CHAT(",\"reasoning_effort\":\"%s\""), effort[i]);
        ask(&x, FIELD_CHAT, body);
        CHECK_INT(x.r.chat->thinking, i ? CHAT_YES : CHAT_NO);
        request_forget(&x.r);
        snprintf(body, sizeof body, CHAT(",\"enable_thinking\":%s,\"reasoning_effort\":\"%s\""), i ? "false" : "true",
                 effort[i]);
        ask(&x, FIELD_CHAT, body);
        CHECK_INT(x.r.chat->thinking, i ? CHAT_NO : CHAT_YES); /* what is said plainly */
        request_forget(&x.r);
    }
    refused(&x, FIELD_CHAT, CHAT(",\"reasoning_effort\":\"some\""), "reasoning_effort", "none, minimal");
    refused(&x, FIELD_RESPONSES, INPUT(",\"reasoning\":{\"effort\":\"some\"}"), "reasoning.effort",
            "'reasoning.effort' must be");
    tandem_close(x.engine);
}

static void note_kinds(void *choice, const chat_event *ev)
{
    server_choice *c = choice;
    buf_putc(&c->part[0], ev->kind == CHAT_EVENT_REASONING ? 'R' : 'C');
}

/* The class follows from the fields; the words of the prompt do not matter. */
TEST(request_class)
{
#define OBJECT   ",\"response_format\":{\"type\":\"json_object\"}"
#define THINKING ",\"enable_thinking\":true"
    static const struct {
        int         endpoint;
        const char *body, *kind;
    } k[] = {
        {FIELD_CHAT, CHAT(""), "chat"},
        {FIELD_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"JSON\"}]}", "chat"},
        {FIELD_CHAT, CHAT(THINKING), "chat, thinking"},
        {FIELD_CHAT, CHAT(TOOL), "chat, tools"},
        {FIELD_CHAT, CHAT(TOOL THINKING), "chat, tools, thinking"},
        {FIELD_CHAT, CHAT(OBJECT), "chat, format"},
        {FIELD_CHAT, CHAT(OBJECT THINKING), "chat, format, thinking"},
        {FIELD_CHAT, CHAT(TOOL OBJECT), "chat, format, tools"},
        {FIELD_CHAT, CHAT(TOOL OBJECT THINKING), "chat, format, tools, thinking"},
        {FIELD_MESSAGES, MESSAGES(""), "chat"},
        {FIELD_TEXT, TEXT(""), "text"},
        {FIELD_TEXT, TEXT(",\"guided_regex\":\"a\""), "text, format"},
    };
    reading x;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) {
        CHECK_STR(str_of(ask(&x, k[i].endpoint, k[i].body)->kind), str_of(k[i].kind));
        request_forget(&x.r);
    }
    tandem_close(x.engine);
}

/* An answer that begins with a bare label is read as the request's thinking has it. */
TEST(request_thinking_decides_about_a_bare_thought)
{
    reading x;
    if (!open_engine(t, &x)) return;
    for (int thinking = 0; thinking < 2; thinking++) {
        reply_format  format = {.on_event = note_kinds};
        reply         r      = {.format = &format, .request = &x.r, .tok = engine_tok(x.engine)};
        server_choice c;
        tok_ids       ids;
        err           e;
        ask(&x, FIELD_CHAT, thinking ? CHAT(",\"enable_thinking\":true") : CHAT(""));
        tok_ids_init(&ids, 100);
        CHECK_OK(tok_encode(engine_tok(x.engine), &ids, STR("thought\nnever closed"), false, &e), e);
        CHECK(choice_init(&c, &r, 0));
        for (size_t i = 0; i < ids.n; i++) chat_stream_put(&c.events, ids.p[i]);
        CHECK_OK(chat_stream_finish(&c.events, &e), e);
        str kinds = buf_str(&c.part[0]);
        CHECK_MSG(kinds.n && kinds.s[0] == (thinking ? 'R' : 'C') && !memchr(kinds.s, thinking ? 'C' : 'R', kinds.n),
                  "'%.*s'", STR_ARG(kinds));
        choice_deinit(&c);
        tok_ids_deinit(&ids);
        request_forget(&x.r);
    }
    tandem_close(x.engine);
}

#define SCHEMA     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"
#define JSON_OF(x) ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":" x "}"

#define STRICT ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]"

/* One field decides what an answer is held to; what is wrong with it is told by its name. */
TEST(request_forms)
{
    static const struct {
        int                 endpoint;
        const char         *body, *grammar_field;
        tandem_grammar_kind kind;
        bool                may_call;
    } good[] = {
        {FIELD_CHAT, CHAT(""), NULL, TANDEM_GRAMMAR_NONE, false},
        {FIELD_CHAT, CHAT(TOOL), NULL, TANDEM_GRAMMAR_NONE, false},
        {FIELD_CHAT, CHAT(",\"response_format\":{\"type\":\"text\"}"), NULL, TANDEM_GRAMMAR_NONE, false},
        {FIELD_CHAT, CHAT(",\"response_format\":{\"type\":\"json_object\"}"), "response_format", TANDEM_GRAMMAR_OBJECT,
         false},
        {FIELD_CHAT, CHAT(TOOL ",\"response_format\":{\"type\":\"json_object\"}"), "response_format",
         TANDEM_GRAMMAR_OBJECT, true},
        {FIELD_CHAT, CHAT(JSON_OF("{\"schema\":" SCHEMA "}")), "response_format", TANDEM_GRAMMAR_SCHEMA, false},
        {FIELD_CHAT, CHAT(TOOL JSON_OF("{\"name\":\"n\",\"strict\":true,\"schema\":true}")), "response_format",
         TANDEM_GRAMMAR_SCHEMA, true},
        {FIELD_TEXT, TEXT(",\"response_format\":{\"type\":\"json_object\",\"schema\":" SCHEMA "}"), "response_format",
         TANDEM_GRAMMAR_SCHEMA, false},
        {FIELD_TEXT, TEXT(",\"json_schema\":" SCHEMA), "json_schema", TANDEM_GRAMMAR_SCHEMA, false},
        {FIELD_TEXT, TEXT(",\"grammar\":\"root ::= \\\"x\\\"\""), "grammar", TANDEM_GRAMMAR_GBNF, false},
        {FIELD_CHAT, CHAT(TOOL ",\"grammar\":\"root ::= \\\"x\\\"\""), "grammar", TANDEM_GRAMMAR_GBNF, false},
        {FIELD_CHAT, CHAT(TOOL ",\"tool_choice\":\"required\""), "tool_choice", TANDEM_GRAMMAR_TOOL_CALLS, false},
        {FIELD_CHAT, CHAT(TOOL ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}"),
         "tool_choice", TANDEM_GRAMMAR_TOOL_CALLS, false},
        {FIELD_CHAT, CHAT(TOOL ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false"), "tool_choice",
         TANDEM_GRAMMAR_TOOL_CALL, false},
        {FIELD_CHAT, CHAT(TOOL ",\"tool_choice\":{\"type\":\"function\",\"name\":\"add\"}"), "tool_choice",
         TANDEM_GRAMMAR_TOOL_CALL, false},
        {FIELD_CHAT, CHAT(STRICT), "tools", TANDEM_GRAMMAR_TOOLS, false},
        {FIELD_CHAT, CHAT(STRICT ",\"tool_choice\":\"none\""), NULL, TANDEM_GRAMMAR_NONE, false},
        {FIELD_CHAT, CHAT(STRICT ",\"tool_choice\":\"required\""), "tool_choice", TANDEM_GRAMMAR_TOOL_CALLS, false},
        {FIELD_CHAT, CHAT(STRICT ",\"response_format\":{\"type\":\"json_object\"}"), "response_format",
         TANDEM_GRAMMAR_TOOLS, false},
        {FIELD_RESPONSES, "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true}]}",
         "tools", TANDEM_GRAMMAR_TOOLS, false},
        {FIELD_RESPONSES, "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":false}]}",
         NULL, TANDEM_GRAMMAR_NONE, false},
        {FIELD_MESSAGES,
         "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":[{\"name\":\"f\","
         "\"strict\":true,"
         "\"input_schema\":{}}]}",
         "tools", TANDEM_GRAMMAR_TOOLS, false}};
    static const struct {
        const char *body, *param, *words;
    } bad[] = {{CHAT(JSON_OF("{\"name\":\"\",\"schema\":true}")), "response_format.json_schema.name", "1 to 64 bytes"},
               {CHAT(JSON_OF("{\"name\":7,\"schema\":true}")), "response_format.json_schema.name", "1 to 64 bytes"},
               {CHAT(JSON_OF("{\"strict\":1,\"schema\":true}")), "response_format.json_schema.strict", "true or false"},
               {CHAT(JSON_OF("{\"schema\":7}")), "response_format", "must be an object"},
               {CHAT(JSON_OF("{}")), "response_format.json_schema", "must be a JSON Schema"},
               {CHAT(",\"response_format\":{\"type\":\"yaml\"}"), "response_format.type", "text, json_object"},
               {CHAT(",\"response_format\":{}"), "response_format.type", "text, json_object"},
               {CHAT(",\"json_schema\":7"), "json_schema", "must be a JSON Schema"},
               {CHAT(",\"json_schema\":true,\"response_format\":{\"type\":\"json_object\"}"), "json_schema",
                "exclude each other"},
               {CHAT(",\"json_schema\":true,\"grammar\":\"root ::= \\\"x\\\"\""), "grammar", "exclude each other"},
               {CHAT(",\"tool_choice\":\"required\""), "tool_choice", "there are no 'tools'"},
               {CHAT(TOOL ",\"tool_choice\":{\"type\":\"function\",\"name\":\"sub\"}"), "tool_choice",
                "names 'sub', which is not one"},
               {CHAT(TOOL ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[]}"),
                "tool_choice", "must be auto, none"},
               {CHAT(TOOL ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"maybe\",\"tools\":[{\"type\":"
                          "\"function\",\"name\":\"add\"}]}"),
                "tool_choice", "must be auto, none"}};
    reading x;
    char    body[400];
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(good); i++) {
        const tandem_grammar *g = &ask(&x, good[i].endpoint, good[i].body)->grammar;
        CHECK_MSG(g->kind == good[i].kind && g->may_call == good[i].may_call, "%s: %d", good[i].body, g->kind);
        CHECK_STR(str_of(x.r.grammar_field ? x.r.grammar_field : ""),
                  str_of(good[i].grammar_field ? good[i].grammar_field : ""));
        CHECK_INT(request_needs_compiling(&x.r), g->kind != TANDEM_GRAMMAR_NONE);
        request_forget(&x.r);
    }
    for (size_t i = 0; i < COUNT(bad); i++) refused(&x, FIELD_CHAT, bad[i].body, bad[i].param, bad[i].words);
    for (int n = 64; n <= 65; n++) {
        snprintf(body, sizeof body, CHAT(JSON_OF("{\"name\":\"%0*d\",\"schema\":true}")), n, 0);
        if (n == 64)
            taken(&x, FIELD_CHAT, body);
        else
            refused(&x, FIELD_CHAT, body, "response_format.json_schema.name", "1 to 64 bytes");
    }
    /* In the other interfaces by the names that they have. */
    refused(&x, FIELD_RESPONSES, INPUT(",\"text\":{\"format\":{\"type\":\"yaml\"}}"), "text.format.type",
            "text, json_object");
    refused(&x, FIELD_MESSAGES, MESSAGES(",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":7}}"),
            "output_config.format", "output_config.format");
    tandem_close(x.engine);
}

/* Names of the client's own that are names of fields elsewhere are repeated as they are. */
TEST(request_errors_use_the_names_of_the_api)
{
#define RESPONSE_TOOL(name) ",\"tools\":[{\"type\":\"function\",\"name\":\"" name "\"}]"
    reading x;
    if (!open_engine(t, &x)) return;
    refused(&x, FIELD_RESPONSES,
            INPUT(RESPONSE_TOOL("add") ",\"tool_choice\":{\"type\":\"function\",\"name\":\"response_format\"}"),
            "tool_choice", "names 'response_format', which is not one");
    refused(&x, FIELD_MESSAGES,
            MESSAGES(",\"tools\":[{\"name\":\"add\",\"input_schema\":{}}],"
                     "\"tool_choice\":{\"type\":\"tool\",\"name\":\"response_format\"}"),
            "tool_choice", "names 'response_format', which is not one");
    refused(&x, FIELD_RESPONSES, INPUT(",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":7,\"schema\":{}}}"),
            "text.format.name", "'text.format.name' must be a string");
    refused(&x, FIELD_MESSAGES, MESSAGES(",\"stop_sequences\":[7]"), "stop_sequences", "'stop_sequences' must be");
    refused(&x, FIELD_RESPONSES, INPUT(",\"reasoning\":{\"effort\":\"some\"}"), "reasoning.effort",
            "'reasoning.effort' must be");
    refused(&x, FIELD_CHAT, CHAT(",\"reasoning_effort\":\"some\""), "reasoning_effort", "'reasoning_effort' must be");
    /* A tool of this name is not the reason why the schema of the answer cannot be enforced. */
    atomic_bool cancel = false;
    ask(&x, FIELD_RESPONSES,
        INPUT(",\"tools\":[{\"type\":\"function\",\"name\":\"response_format\",\"strict\":true}],\"text\":{\"format\":"
              "{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"properties\":{\"a\":{\"not\":1}}}}}"));
    CHECK(!request_compile(&x.r, x.engine, &cancel, &x.why));
    CHECK_INT(x.why.status, 400);
    CHECK_STR(str_of(x.why.param), STR("text.format"));
    CHECK_MSG(strstr(x.why.message, "'text.format' cannot be enforced"), "%s", x.why.message);
    request_forget(&x.r);
    tandem_close(x.engine);
}

/* A grammar is compiled once for equal requests of a tenant; an error names the field of one that cannot be enforced. */
TEST(request_forms_are_compiled_once)
{
    static const char good[] = TEXT(",\"json_schema\":" SCHEMA), bad[] = TEXT(",\"grammar\":\"root ::= (\"");
    atomic_bool       cancel = false;
    reading           x;
    if (!open_engine(t, &x)) return;
    ask(&x, FIELD_TEXT, good);
    CHECK(request_needs_compiling(&x.r));
    CHECK_MSG(request_compile(&x.r, x.engine, &cancel, &x.why) && !request_needs_compiling(&x.r), "%s", x.why.message);
    request_forget(&x.r);
    ask(&x, FIELD_TEXT, good);
    CHECK(!request_needs_compiling(&x.r) && x.r.compiled);
    request_forget(&x.r);
    CHECK(!x.r.compiled);
    x.key = STR("other");
    ask(&x, FIELD_TEXT, good);
    CHECK(request_needs_compiling(&x.r));
    atomic_store(&cancel, true);
    CHECK(!request_compile(&x.r, x.engine, &cancel, &x.why));
    CHECK_INT(x.why.status, 503);
    request_forget(&x.r);
    atomic_store(&cancel, false);
    ask(&x, FIELD_TEXT, bad);
    CHECK(!request_compile(&x.r, x.engine, &cancel, &x.why));
    CHECK_MSG(x.why.status == 400 && !strcmp(x.why.param, "grammar") &&
                  strstr(x.why.message, "'grammar' cannot be enforced: "),
              "%s", x.why.message);
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(request_warnings_fit_a_header)
{
    server_request r;
    buf            body;
    buf_init(&body, 16);
    request_init(&r, FIELD_CHAT, &body);
    CHECK_STR(str_of(r.warning), STR(""));
    request_warn(&r, "tool '%s' is not held to its schema", "a\nb\x7F!");
    CHECK_STR(str_of(r.warning), STR("tool 'a?b?!' is not held to its schema"));
    request_warn(&r, "%d of %d", 2, 3);
    CHECK_STR(str_of(r.warning), STR("tool 'a?b?!' is not held to its schema; 2 of 3"));
    for (int i = 0; i < 300; i++) request_warn(&r, "%0*d", i % 20 + 1, 7);
    CHECK(strlen(r.warning) <= REQUEST_WARNING_MAX && strlen(r.warning) > REQUEST_WARNING_MAX - 4);
    request_forget(&r);
}
