/* Fields of other servers: every one is kept, refused or named in a warning, and docs/api.md says which. */
#include "request_rig.h"

#include "base/file.h"
#include "base/mem.h"
#include "server/tables_inside.h"

#include <math.h>
#include <stdio.h>

/* --- the table ----------------------------------------------------------------------------------*/
static int place_of(const dialect_field *f)
{
    if (f->endpoint & FIELD_CHAT) return FIELD_CHAT;
    if (f->endpoint & FIELD_MESSAGES) return FIELD_MESSAGES;
    return f->endpoint & FIELD_RESPONSES ? FIELD_RESPONSES : FIELD_NATIVE;
}

/* A body with the field, for place_of; a point in the name makes a path. */
static const char *with_field(const dialect_field *f, const char *value)
{
    static char body[512];
    char        member[256];
    const char *dot = strchr(f->name, '.');
    if (dot)
        snprintf(member, sizeof member, ",\"%.*s\":{\"type\":\"enabled\",\"%s\":%s}", (int)(dot - f->name), f->name,
                 dot + 1, value);
    else
        snprintf(member, sizeof member, ",\"%s\":%s", f->name, value);
    switch (place_of(f)) {
    case FIELD_CHAT: snprintf(body, sizeof body, CHAT("%s"), member); break;
    case FIELD_MESSAGES: snprintf(body, sizeof body, MESSAGES("%s"), member); break;
    case FIELD_RESPONSES: snprintf(body, sizeof body, INPUT("%s"), member); break;
    default: snprintf(body, sizeof body, TEXT("%s"), member); break;
    }
    return body;
}

TEST(dialects_are_kept_refused_or_warned_of)
{
    reading x;
    if (!open_engine(t, &x)) return;
    for (int i = 0; i < n_dialect_fields; i++) {
        const dialect_field *f    = &dialect_table[i];
        const char          *body = with_field(f, "[3.5]");
        char                 quoted[96];
        if (strchr(f->name, '.') && f->rule == DIALECT_IDLE) continue;
        snprintf(quoted, sizeof quoted, "'%s'", f->name);
        if (f->rule == DIALECT_REFUSED) {
            refused(&x, place_of(f), body, f->name, quoted);
            CHECK_STR(str_of(x.why.code), STR("unsupported_parameter"));
            continue;
        }
        ask(&x, place_of(f), body);
        CHECK_MSG(f->rule == DIALECT_WARNED ? strstr(x.r.warning, quoted) != NULL : !x.r.warning[0],
                  "%s: the warning is '%s'", f->name, x.r.warning);
        request_forget(&x.r);
    }
    tandem_close(x.engine);
}

/* What clients send by default is no reason to warn. */
TEST(dialects_that_are_off_change_nothing)
{
    reading x;
    if (!open_engine(t, &x)) return;
    for (int i = 0; i < n_dialect_fields; i++) {
        const dialect_field *f = &dialect_table[i];
        char                 off[64];
        if (f->rule == DIALECT_IDLE) continue;
        for (const char *p = f->off;; p += strcspn(p, " ") + (p[strcspn(p, " ")] == ' ')) {
            snprintf(off, sizeof off, "%.*s", (int)strcspn(p, " "), p);
            ask(&x, place_of(f), with_field(f, off[0] ? off : "null"));
            CHECK_MSG(!x.r.warning[0], "%s: %s is warned of: %s", f->name, off, x.r.warning);
            request_forget(&x.r);
            if (!*p) break;
        }
    }
    refused(&x, FIELD_TEXT, TEXT(",\"mirostat\":2,\"mirostat_tau\":5.0"), "mirostat", "set it to 0");
    refused(&x, FIELD_RESPONSES, INPUT(",\"min_keep\":3"), "min_keep", "set it to 0 1");
    refused(&x, FIELD_RESPONSES, INPUT(",\"max_tokens\":3"), "max_tokens", "use max_output_tokens");
    refused(&x, FIELD_RESPONSES, INPUT(",\"stop\":[\"a\"]"), "stop", "is not supported");
    refused(&x, FIELD_RESPONSES, INPUT(",\"n\":2"), "n", "is not supported");
    refused(&x, FIELD_MESSAGES, MESSAGES(",\"stop\":\"a\""), "stop", "stop_sequences");
    refused(&x, FIELD_MESSAGES, MESSAGES(",\"n\":2"), "n", "is not supported");
    tandem_close(x.engine);
}

static bool is_kept(const char *name, int endpoint)
{
    for (int i = 0; i < fields_generate.n; i++)
        if (!strcmp(fields_generate.row[i].name, name) && fields_generate.row[i].endpoint & endpoint) return true;
    return false;
}

TEST(dialects_are_in_one_table_only)
{
    for (int i = 0; i < n_dialect_fields; i++) {
        const dialect_field *f = &dialect_table[i];
        CHECK_MSG(!is_kept(f->name, f->endpoint), "%s is kept, too", f->name);
        for (int k = 0; k < i; k++)
            CHECK_MSG(strcmp(f->name, dialect_table[k].name) || !(f->endpoint & dialect_table[k].endpoint),
                      "%s appears twice", f->name);
    }
}

/* Every sampling field of vLLM's and llama.cpp's protocols is in one of the tables. */
TEST(dialects_know_all_sampling_fields)
{
    static const char *const vllm[]  = {"n",
                                        "stream_options.continuous_usage_stats",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repetition_penalty",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "seed",
                                        "stop",
                                        "stop_token_ids",
                                        "ignore_eos",
                                        "max_tokens",
                                        "min_tokens",
                                        "logprobs",
                                        "prompt_logprobs",
                                        "logprob_token_ids",
                                        "skip_special_tokens",
                                        "spaces_between_special_tokens",
                                        "include_stop_str_in_output",
                                        "truncate_prompt_tokens",
                                        "truncation_side",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "guided_decoding_backend",
                                        "guided_whitespace_pattern",
                                        "logit_bias",
                                        "allowed_token_ids",
                                        "bad_words",
                                        "thinking_token_budget",
                                        "repetition_detection",
                                        "use_beam_search",
                                        "length_penalty",
                                        "watermarking",
                                        "echo",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        "add_special_tokens",
                                        "documents",
                                        "chat_template",
                                        "chat_template_kwargs",
                                        "priority",
                                        "return_token_ids",
                                        "return_tokens_as_token_ids",
                                        "cache_salt",
                                        "vllm_xargs",
                                        "include_reasoning",
                                        "reasoning_effort"};
    static const char *const llama[] = {"temperature",
                                        "dynatemp_range",
                                        "dynatemp_exponent",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "top_n_sigma",
                                        "n_predict",
                                        "n_indent",
                                        "n_keep",
                                        "n_discard",
                                        "n_cache_reuse",
                                        "stream",
                                        "stop",
                                        "typical_p",
                                        "repeat_penalty",
                                        "repeat_last_n",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "dry_multiplier",
                                        "dry_base",
                                        "dry_allowed_length",
                                        "dry_penalty_last_n",
                                        "dry_sequence_breakers",
                                        "xtc_probability",
                                        "xtc_threshold",
                                        "mirostat",
                                        "mirostat_tau",
                                        "mirostat_eta",
                                        "grammar",
                                        "json_schema",
                                        "seed",
                                        "ignore_eos",
                                        "logit_bias",
                                        "min_keep",
                                        "t_max_predict_ms",
                                        "id_slot",
                                        "cache_prompt",
                                        "samplers",
                                        "post_sampling_probs",
                                        "lora",
                                        "thinking_budget_tokens",
                                        "reasoning_format",
                                        "parse_tool_calls",
                                        "speculative.n_max",
                                        "adaptive_target",
                                        "adaptive_decay"};
    const char *const       *lists[] = {vllm, llama};
    size_t                   sizes[] = {COUNT(vllm), COUNT(llama)};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < sizes[k]; i++) {
            bool known = is_kept(lists[k][i], FIELD_GENERATE);
            for (int j = 0; j < n_dialect_fields; j++) known |= !strcmp(dialect_table[j].name, lists[k][i]);
            CHECK_MSG(known, "%s is dropped", lists[k][i]);
        }
}

/* --- what is kept -------------------------------------------------------------------------------*/
TEST(dialects_n_predict_is_max_tokens)
{
    reading x;
    if (!open_engine(t, &x)) return;
    CHECK_INT(ask(&x, FIELD_TEXT, TEXT(",\"n_predict\":7"))->max_tokens, 7);
    request_forget(&x.r);
    CHECK_INT(ask(&x, FIELD_CHAT, CHAT(",\"max_tokens\":3,\"n_predict\":7"))->max_tokens, 7);
    request_forget(&x.r);
    CHECK_INT(ask(&x, FIELD_CHAT, CHAT(",\"n_predict\":-1"))->max_tokens, INT32_MAX);
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(dialects_stop_token_ids_end_the_answer)
{
    reading x;
    if (!open_engine(t, &x)) return;
    const tandem_request *a = ask(&x, FIELD_CHAT, CHAT(",\"stop_token_ids\":[5,300]"));
    CHECK(a->n_stop_ids == 2 && a->stop_ids[0] == 5 && a->stop_ids[1] == 300);
    request_forget(&x.r);
    taken(&x, FIELD_TEXT, TEXT(",\"stop_token_ids\":[]"));
    refused(&x, FIELD_TEXT, TEXT(",\"stop_token_ids\":[99999]"), "stop_token_ids", "token ids below");
    refused(&x, FIELD_TEXT, TEXT(",\"stop_token_ids\":[\"a\"]"), "stop_token_ids", "token ids below");
    tandem_close(x.engine);
}

TEST(dialects_logit_bias_by_pairs_and_texts)
{
    reading x;
    if (!open_engine(t, &x)) return;
    const tandem_request *a = ask(&x, FIELD_TEXT, TEXT(",\"logit_bias\":[[5,1.5],[6,false],[\"What is\",-2]]"));
    CHECK(a->n_bias >= 4 && a->bias[0].token == 5 && a->bias[0].bias == 1.5f);
    CHECK(a->bias[1].token == 6 && isinf(a->bias[1].bias) && a->bias[1].bias < 0);
    tok_ids ids;
    err     e = {0};
    tok_ids_init(&ids, 64);
    CHECK_OK(tok_encode(engine_tok(x.engine), &ids, STR("What is"), false, &e), e);
    CHECK_INT(a->n_bias, 2 + ids.n);
    for (size_t i = 0; i < ids.n; i++) CHECK(a->bias[2 + i].token == ids.p[i] && a->bias[2 + i].bias == -2);
    request_forget(&x.r);
    a = ask(&x, FIELD_CHAT, CHAT(",\"logit_bias\":{\"What is\":-2,\"7\":false}"));
    CHECK(a->n_bias == ids.n + 1 && a->bias[0].token == ids.p[0] && a->bias[ids.n].token == 7);
    request_forget(&x.r);
    tok_ids_deinit(&ids);
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":[[5,1],[5,2]]"), "logit_bias", "twice");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":[[5,true]]"), "logit_bias", "of token 5 must be");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":[5]"), "logit_bias", "pairs");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":[[\"\",1]]"), "logit_bias", "empty text");
    refused(&x, FIELD_TEXT, TEXT(",\"logit_bias\":5"), "logit_bias", "an object or a list");
    tandem_close(x.engine);
}

#define SCHEMA "{\"type\":\"object\"}"
TEST(dialects_of_constraints)
{
    static const struct {
        const char         *body, *grammar_field;
        tandem_grammar_kind kind;
        const char         *text; /* NULL: none */
    } k[] = {
        {CHAT(",\"response_format\":{\"type\":\"json_object\",\"value\":" SCHEMA "}"), "response_format",
         TANDEM_GRAMMAR_SCHEMA, SCHEMA},
        {CHAT(",\"response_format\":{\"type\":\"json_object\",\"schema\":" SCHEMA "}"), "response_format",
         TANDEM_GRAMMAR_SCHEMA, SCHEMA},
        {CHAT(",\"structured_outputs\":{\"json\":" SCHEMA "}"), "structured_outputs.json", TANDEM_GRAMMAR_SCHEMA,
         SCHEMA},
        {CHAT(",\"structured_outputs\":{\"json\":\"{}\"}"), "structured_outputs.json", TANDEM_GRAMMAR_SCHEMA, "{}"},
        {CHAT(",\"structured_outputs\":{\"regex\":\"[a-c]+\"}"), "structured_outputs.regex", TANDEM_GRAMMAR_REGEX,
         "[a-c]+"},
        {CHAT(",\"structured_outputs\":{\"choice\":[\"a\\\"b\",\"c\\n\"]}"), "structured_outputs.choice",
         TANDEM_GRAMMAR_GBNF, "root ::= \"a\\\"b\" | \"c\\x0A\""},
        {CHAT(",\"structured_outputs\":{\"grammar\":\"root ::= \\\"x\\\"\"}"), "structured_outputs.grammar",
         TANDEM_GRAMMAR_GBNF, "root ::= \"x\""},
        {CHAT(",\"structured_outputs\":{\"json_object\":true,\"disable_any_whitespace\":false}"),
         "structured_outputs.json_object", TANDEM_GRAMMAR_OBJECT, NULL},
        {CHAT(",\"structured_outputs\":{\"json_object\":false}"), NULL, TANDEM_GRAMMAR_NONE, NULL},
        {CHAT(",\"guided_json\":" SCHEMA), "guided_json", TANDEM_GRAMMAR_SCHEMA, SCHEMA},
        {CHAT(",\"guided_regex\":\"a+\""), "guided_regex", TANDEM_GRAMMAR_REGEX, "a+"},
        {CHAT(",\"guided_choice\":[\"yes\",\"no\"]"), "guided_choice", TANDEM_GRAMMAR_GBNF,
         "root ::= \"yes\" | \"no\""},
        {CHAT(",\"guided_grammar\":\"root ::= \\\"x\\\"\""), "guided_grammar", TANDEM_GRAMMAR_GBNF, "root ::= \"x\""},
    };
    reading x;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(k); i++) {
        const tandem_grammar *g = &ask(&x, FIELD_CHAT, k[i].body)->grammar;
        CHECK_MSG(g->kind == k[i].kind &&
                      (k[i].grammar_field ? x.r.grammar_field && !strcmp(x.r.grammar_field, k[i].grammar_field)
                                          : !x.r.grammar_field),
                  "%s: kind %d, held by %s", k[i].body, (int)g->kind,
                  x.r.grammar_field ? x.r.grammar_field : "nothing");
        if (k[i].text) CHECK_STR(((str){g->text, g->n_text}), str_of(k[i].text));
        request_forget(&x.r);
    }
    refused(&x, FIELD_TEXT, TEXT(",\"guided_regex\":\"a\",\"guided_choice\":[\"b\"]"), "guided_regex",
            "exclude each other");
    refused(&x, FIELD_TEXT, TEXT(",\"guided_choice\":[\"a\",5]"), "guided_choice", "a list of texts");
    refused(&x, FIELD_TEXT, TEXT(",\"guided_json\":5"), "guided_json", "a JSON Schema");
    refused(&x, FIELD_TEXT, TEXT(",\"guided_json\":\"5\""), "guided_json", "a JSON Schema");
    refused(&x, FIELD_TEXT, TEXT(",\"guided_json\":\"\""), "guided_json", "is not the text of a JSON Schema");
    refused(&x, FIELD_CHAT, CHAT(",\"structured_outputs\":{\"json\":\"\"}"), "structured_outputs.json",
            "is not the text of a JSON Schema");
    refused(&x, FIELD_CHAT, CHAT(",\"guided_json\":\"{},\\\"x\\\":1\""), "guided_json",
            "is not the text of a JSON Schema");
    refused(&x, FIELD_TEXT, TEXT(",\"structured_outputs\":{\"regx\":\"a\"}"), "structured_outputs",
            "has no member 'regx'");
    refused(&x, FIELD_TEXT, TEXT(",\"structured_outputs\":{\"structural_tag\":\"{}\"}"),
            "structured_outputs.structural_tag", "not supported");
    refused(&x, FIELD_TEXT, TEXT(",\"structured_outputs\":{\"disable_any_whitespace\":true}"),
            "structured_outputs.disable_any_whitespace", "not supported");
    refused(&x, FIELD_TEXT, TEXT(",\"structured_outputs\":{\"json_object\":1}"), "structured_outputs.json_object",
            "true");
    tandem_close(x.engine);
}

#define FUNCTIONS ",\"functions\":[{\"name\":\"add\",\"parameters\":" SCHEMA "},{\"name\":\"sub\"}]"
TEST(dialects_functions_are_tools)
{
    reading x;
    if (!open_engine(t, &x)) return;
    ask(&x, FIELD_CHAT, CHAT(FUNCTIONS));
    CHECK(x.r.chat->n_tools == 2 && str_is(x.r.chat->tool[1].name, "sub") && x.r.chat->by_functions && x.r.one_call);
    CHECK(!x.r.grammar_field);
    request_forget(&x.r);
    ask(&x, FIELD_CHAT, CHAT(FUNCTIONS ",\"function_call\":\"auto\""));
    CHECK(!x.r.grammar_field && x.r.chat->n_tools == 2);
    request_forget(&x.r);
    ask(&x, FIELD_CHAT, CHAT(FUNCTIONS ",\"function_call\":\"none\""));
    CHECK(x.r.no_calls && !x.r.chat->n_tools);
    request_forget(&x.r);
    const tandem_grammar *g = &ask(&x, FIELD_CHAT, CHAT(FUNCTIONS ",\"function_call\":{\"name\":\"sub\"}"))->grammar;
    CHECK(g->kind == TANDEM_GRAMMAR_TOOL_CALL && memmem(g->text, g->n_text, "sub", 3));
    CHECK(!memmem(g->text, g->n_text, "add", 3));
    request_forget(&x.r);
    refused(&x, FIELD_CHAT, CHAT(FUNCTIONS ",\"function_call\":{\"name\":\"mul\"}"), "function_call", "'mul'");
    refused(&x, FIELD_CHAT, CHAT(FUNCTIONS ",\"function_call\":5"), "function_call", "name a function");
    refused(&x, FIELD_CHAT, CHAT(TOOL FUNCTIONS), "tools", "exclude each other");
    refused(&x, FIELD_CHAT, CHAT(",\"functions\":[{}]"), "functions[0].name", "missing");
    tandem_close(x.engine);
}

/* The former shape of calls and their answers renders as the present one. */
TEST(dialects_function_messages_are_tool_messages)
{
#define ASK "{\"role\":\"user\",\"content\":\"Hi\"},"
    static const char *const body[] = {
        "{\"messages\":[" ASK
        "{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"add\",\"arguments\":"
        "\"{\\\"a\\\":1}\"}},{\"role\":\"function\",\"name\":\"add\",\"content\":\"3\"}]}",
        "{\"messages\":[" ASK
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
        "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\","
        "\"content\":\"3\"}]}"};
    reading x;
    buf     text[2];
    if (!open_engine(t, &x)) return;
    for (int i = 0; i < 2; i++) {
        buf b;
        buf_init(&b, 1 << 16);
        buf_init(&text[i], 1 << 16);
        buf_puts(&b, body[i]);
        request_init(&x.r, FIELD_CHAT, &b);
        CHECK_MSG(request_render(&x.r, x.engine, &text[i], &x.why), "%s: %s", body[i], x.why.message);
        request_forget(&x.r);
    }
    CHECK_STR(buf_str(&text[0]), buf_str(&text[1]));
    CHECK(memmem(text[0].p, text[0].n, "call:add{a:1}", 13));
    for (int i = 0; i < 2; i++) buf_deinit(&text[i]);
    tandem_close(x.engine);
}

TEST(dialects_the_last_message_is_continued)
{
#define BEGUN(more)                                                                                                    \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Well, \"}]" more "}"
    reading x;
    buf     b, text;
    if (!open_engine(t, &x)) return;
    buf_init(&b, 1 << 16);
    buf_init(&text, 1 << 16);
    buf_puts(&b, BEGUN(",\"continue_final_message\":true,\"add_generation_prompt\":false"));
    request_init(&x.r, FIELD_CHAT, &b);
    CHECK_MSG(request_render(&x.r, x.engine, &text, &x.why), "%s", x.why.message);
    request_forget(&x.r);
    CHECK_MSG(text.n > 7 && !memcmp(text.p + text.n - 6, "Well, ", 6), "the prompt is %.*s", (int)text.n, text.p);
    str turn = STR("<|turn>model\n");
    CHECK(memmem(text.p, text.n, turn.s, turn.n) && !memmem(text.p, text.n, "Well, <turn|>", 13));
    buf_deinit(&text);
    taken(&x, FIELD_CHAT, BEGUN(",\"continue_final_message\":true"));
    taken(&x, FIELD_CHAT, BEGUN(",\"add_generation_prompt\":false"));
    refused(&x, FIELD_CHAT, BEGUN(",\"continue_final_message\":true,\"add_generation_prompt\":true"),
            "continue_final_message", "exclude each other");
    refused(&x, FIELD_CHAT, CHAT(",\"continue_final_message\":true"), "messages[0]", "cannot be continued");
    tandem_close(x.engine);
}

TEST(dialects_errors_tell_the_context)
{
    reading x;
    buf     b;
    char    prompt[512], want[96];
    if (!open_engine(t, &x)) return;
    memset(prompt, 'q', sizeof prompt);
    memcpy(prompt, "{\"prompt\":\"", 11);
    memcpy(prompt + sizeof prompt - 3, "\"}", 3);
    refused(&x, FIELD_TEXT, prompt, "prompt", "maximum context length");
    CHECK_INT(x.why.n_ctx, CTX);
    CHECK(x.why.n_prompt_tokens > CTX);
    buf_init(&b, 1 << 16);
    error_put(&b, &x.why);
    snprintf(want, sizeof want, "\"n_prompt_tokens\":%lld,\"n_ctx\":%d}", (long long)x.why.n_prompt_tokens, CTX);
    CHECK_MSG(memmem(b.p, b.n, want, strlen(want)), "%.*s has no %s", (int)b.n, b.p, want);
    buf_deinit(&b);
    tandem_close(x.engine);
}

TEST(dialects_min_tokens)
{
    reading x;
    if (!open_engine(t, &x)) return;
    CHECK_INT(ask(&x, FIELD_CHAT, CHAT(",\"min_tokens\":5"))->min_tokens, 5);
    request_forget(&x.r);
    refused(&x, FIELD_CHAT, CHAT(",\"min_tokens\":5,\"response_format\":{\"type\":\"json_object\"}"), "min_tokens",
            "'response_format'");
    tandem_close(x.engine);
}

TEST(dialects_add_special_tokens)
{
    reading x;
    if (!open_engine(t, &x)) return;
    ask(&x, FIELD_TEXT, TEXT(",\"add_special_tokens\":true"));
    size_t n = x.r.prompt[0].n;
    CHECK_INT(x.r.prompt[0].ids[0], tok_bos(engine_tok(x.engine)));
    request_forget(&x.r);
    ask(&x, FIELD_TEXT, TEXT(",\"add_special_tokens\":false"));
    CHECK_INT(x.r.prompt[0].n, n - 1);
    CHECK(x.r.prompt[0].ids[0] != tok_bos(engine_tok(x.engine)));
    request_forget(&x.r);
    tandem_close(x.engine);
}

TEST(dialects_warn_of_tools_that_are_not_functions)
{
    reading x;
    if (!open_engine(t, &x)) return;
    ask(&x, FIELD_CHAT,
        CHAT(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}},"
             "{\"type\":\"custom\",\"custom\":{\"name\":\"sql\"}}]"));
    CHECK_STR(str_of(x.r.warning), STR("tools[1] is ignored: its type is 'custom', not 'function'"));
    request_forget(&x.r);
    ask(&x, FIELD_CHAT, CHAT(TOOL));
    CHECK_STR(str_of(x.r.warning), STR(""));
    request_forget(&x.r);
    ask(&x, FIELD_CHAT, CHAT(",\"tools\":[]"));
    CHECK_STR(str_of(x.r.warning), STR(""));
    request_forget(&x.r);
    tandem_close(x.engine);
}

/* A reply has each member once, and what it repeats is counted among the memory of requests. */
TEST(dialects_response_fields_are_paths)
{
    static const char *const bad[] = {"[5]", "[null]", "[\"\"]", "[\"content\",\"content\"]"};
    char                     body[256];
    reading                  x;
    if (!open_engine(t, &x)) return;
    for (size_t i = 0; i < COUNT(bad); i++) {
        snprintf(body, sizeof body, TEXT(",\"response_fields\":%s"), bad[i]);
        refused(&x, FIELD_NATIVE, body, "response_fields", "each once");
    }
    taken(&x, FIELD_NATIVE, TEXT(",\"response_fields\":[\"content\",\"prompt\"]"));
    ask(&x, FIELD_NATIVE, TEXT(",\"n\":4,\"grammar\":\"root ::= [a-z]\""));
    CHECK(request_repeat_bytes(&x.r) >= (size_t)4 * (14 + 8 * x.r.prompt[0].n));
    request_forget(&x.r);
    ask(&x, FIELD_TEXT, TEXT(",\"n\":4"));
    CHECK_INT(request_repeat_bytes(&x.r), 0);
    request_forget(&x.r);
    tandem_close(x.engine);
}
