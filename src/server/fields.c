#include "server/tables_inside.h"

#include "base/mem.h"
#include "chat/chat.h"
#include "tok/stop.h"

#include "tandem.h"

#include <math.h>
#include <stdio.h>

#define AT(member) offsetof(server_fields, member)
#define T(member)  offsetof(tokenize_fields, member)
#define P(member)  offsetof(park_fields, member)
#define B(member)  offsetof(bench_fields, member)
#define MOST_INT   ((double)INT64_MAX)
#define NONE       ((double)FIELD_ABSENT)
/* clang-format off */
static const field_info generate_rows[] = {
    {"model",                 FIELD_STRING, FIELD_ANSWERS, 0, 512, 0, AT(model),
     "any name; the reply repeats that of the model"},
    {"messages",              FIELD_ARRAY,  FIELD_CHAT, 1, CHAT_MAX_MESSAGES, 0, AT(messages), "the conversation"},
    {"prompt",                FIELD_ANY,    FIELD_TEXTS, 0, 0, 0, AT(text.prompt),
     "a text, token ids, or a list of either"},
    {"stream",                FIELD_BOOL,   FIELD_ANSWERS, 0, 1, 0, AT(stream),
     "server-sent events as the answer grows"},
    {"stream_options",        FIELD_OBJECT, FIELD_BOTH, 0, 64, 0, AT(stream_options), "include_usage"},
    {"stream_options.include_usage", FIELD_BOOL, FIELD_BOTH, 0, 1, 0, AT(include_usage), "a last event with the usage"},
    {"return_progress",       FIELD_BOOL,   FIELD_GENERATE, 0, 1, 0, AT(return_progress),
     "events while the prompt is run"},
    {"timings_per_token",     FIELD_BOOL,   FIELD_GENERATE, 0, 1, 0, AT(timings_per_token),
     "timings in every event of a stream"},
    {"return_drafts",         FIELD_BOOL,   FIELD_CHAT, 0, 1, 0, AT(return_drafts),
     "which text was drafted, in every event of a stream"},
    {"n",                     FIELD_INT,    FIELD_GENERATE, 1, 32, 1, AT(n), "answers"},
    {"n_cmpl",                FIELD_INT,    FIELD_NATIVE, 1, 32, 1, AT(n), "the same"},
    {"best_of",               FIELD_INT,    FIELD_TEXT, 1, 1, 1, AT(text.best_of), "only 1"},
    {"max_tokens",            FIELD_MOST,   FIELD_GENERATE, -1, INT32_MAX, NONE, AT(max_tokens),
     "cut to what the context has left; -1: all of that"},
    {"max_completion_tokens", FIELD_MOST,   FIELD_CHAT, -1, INT32_MAX, NONE, AT(chat.max_completion_tokens),
     "the same; this one wins"},
    {"n_predict",              FIELD_MOST,   FIELD_GENERATE, -1, INT32_MAX, NONE, AT(n_predict),
     "llama.cpp's max_tokens; this one wins over both"},
    {"temperature",           FIELD_REAL,   FIELD_ANSWERS, 0, 100, NAN, AT(temperature),
     "0: greedy; otherwise as the model's files advise"},
    {"top_p",                 FIELD_REAL,   FIELD_ANSWERS, 0, 1, NAN, AT(top_p), "1: all"},
    {"top_k",                 FIELD_INT,    FIELD_ANSWERS, -1, 1 << 22, NONE, AT(top_k), "0 and -1: all"},
    {"min_p",                 FIELD_REAL,   FIELD_ANSWERS, 0, 1, NAN, AT(min_p), "0: off"},
    {"presence_penalty",      FIELD_REAL,   FIELD_ANSWERS, -100, 100, 0, AT(presence_penalty),
     "of tokens that the answer has"},
    {"frequency_penalty",     FIELD_REAL,   FIELD_ANSWERS, -100, 100, 0, AT(frequency_penalty),
     "for each time that it has them"},
    {"repeat_penalty",        FIELD_REAL,   FIELD_ANSWERS, 0.01, 100, 1, AT(repeat_penalty),
     "of tokens of prompt and answer; 1: off"},
    {"repetition_penalty",    FIELD_REAL,   FIELD_ANSWERS, 0.01, 100, 1, AT(repeat_penalty), "the same"},
    {"seed",                  FIELD_INT,    FIELD_ANSWERS, -MOST_INT, MOST_INT, NONE, AT(seed),
     "decides the text together with prompt and options"},
    {"stop",                  FIELD_ANY,    FIELD_GENERATE, 0, 0, 0, AT(stop),
     "a text, or a list of up to 64, of 1 to 256 bytes"},
    {"ignore_eos",            FIELD_BOOL,   FIELD_ANSWERS, 0, 1, 0, AT(ignore_eos),
     "do not stop at an end-of-text token"},
    {"min_tokens",            FIELD_MOST,   FIELD_ANSWERS, 0, INT32_MAX, 0, AT(min_tokens),
     "the answer does not end by a stop token before it has this many"},
    {"stop_token_ids",         FIELD_ARRAY,  FIELD_ANSWERS, 0, TANDEM_MAX_STOP_IDS, 0, AT(stop_token_ids),
     "token ids that end the answer"},
    {"logit_bias",            FIELD_ANY,    FIELD_ANSWERS, 0, 0, 0, AT(logit_bias),
     "an object or a list of pairs: token ids or texts, and -100 to 100"},
    {"logprobs",              FIELD_BOOL,   FIELD_CHAT, 0, 1, 0, AT(want_logprobs), "log-probabilities of all tokens"},
    {"top_logprobs",          FIELD_INT,    FIELD_CHAT, 0, TANDEM_MAX_LOGPROBS, NONE, AT(top_logprobs),
     "and those of this many likely tokens for each"},
    {"logprobs",              FIELD_INT,    FIELD_TEXT, 0, TANDEM_MAX_LOGPROBS, NONE, AT(text.text_logprobs),
     "both in one"},
    {"n_probs",               FIELD_INT,    FIELD_NATIVE, 0, TANDEM_MAX_LOGPROBS, 0, AT(native.n_probs),
     "log-probabilities of all tokens, and of this many likely ones"},
    {"return_tokens",         FIELD_BOOL,   FIELD_NATIVE, 0, 1, 0, AT(native.return_tokens),
     "token ids, of a reply that is no stream"},
    {"response_fields",       FIELD_ARRAY,  FIELD_NATIVE, 0, 64, 0, AT(native.response_fields),
     "paths of the members that the reply is to have"},
    {"tools",                 FIELD_ARRAY,  FIELD_CHAT, 0, 1024, 0, AT(tools), "functions that may be called"},
    {"tool_choice",           FIELD_ANY,    FIELD_CHAT, 0, 0, 0, AT(tool_choice),
     "auto, none, required, a function, or allowed_tools"},
    {"parallel_tool_calls",   FIELD_BOOL,   FIELD_CHAT, 0, 1, 1, AT(parallel_tool_calls),
     "false: the answer ends with its first call"},
    {"reasoning_effort",      FIELD_STRING, FIELD_CHAT, 0, 32, 0, AT(reasoning_effort),
     "none, or any other: think first"},
    {"enable_thinking",       FIELD_BOOL,   FIELD_CHAT, 0, 1, -1, AT(chat.enable_thinking), "the same, said plainly"},
    {"chat_template_kwargs",  FIELD_OBJECT, FIELD_CHAT, 0, 64, 0, AT(chat.chat_template_kwargs), "enable_thinking"},
    {"chat_template_kwargs.enable_thinking", FIELD_BOOL, FIELD_CHAT, 0, 1, -1, AT(chat.kwargs_thinking),
     "this one wins"},
    {"chat_template_kwargs.preserve_thinking", FIELD_BOOL, FIELD_CHAT, 0, 1, -1, AT(chat.kwargs_preserve),
     "earlier thoughts stay in the prompt"},
    {"chat_template_kwargs.add_generation_prompt", FIELD_BOOL, FIELD_CHAT, 0, 1, -1, AT(chat.kwargs_prompt),
     "false: the last message goes on"},
    {"functions",              FIELD_ARRAY,  FIELD_CHAT, 0, 1024, 0, AT(chat.functions), "the former name of tools"},
    {"function_call",          FIELD_ANY,    FIELD_CHAT, 0, 0, 0, AT(chat.function_call),
     "auto, none, or an object with a name"},
    {"add_generation_prompt",  FIELD_BOOL,   FIELD_CHAT, 0, 1, -1, AT(chat.add_generation_prompt),
     "false: the prompt ends with the last message"},
    {"continue_final_message", FIELD_BOOL,   FIELD_CHAT, 0, 1, 0, AT(chat.continue_final_message),
     "the answer continues the last message, the assistant's"},
    {"response_format",       FIELD_OBJECT, FIELD_GENERATE, 0, 16, 0, AT(response_format), "type, and the schema"},
    {"response_format.type",  FIELD_STRING, FIELD_GENERATE, 0, 64, 0, AT(response_type),
     "text, json_object, json_schema"},
    {"json_schema",           FIELD_ANY,    FIELD_GENERATE, 0, 0, 0, AT(json_schema),
     "a JSON Schema that the answer fits"},
    {"grammar",               FIELD_STRING, FIELD_GENERATE, 0, 1 << 20, 0, AT(grammar), "GBNF that the answer fits"},
    {"structured_outputs",     FIELD_OBJECT, FIELD_GENERATE, 0, 16, 0, AT(structured_outputs),
     "vLLM's: json, regex, choice, grammar or json_object"},
    {"guided_json",            FIELD_ANY,    FIELD_GENERATE, 0, 0, 0, AT(guided_json),
     "a JSON Schema that the answer fits"},
    {"guided_regex",           FIELD_STRING, FIELD_GENERATE, 1, 1 << 16, 0, AT(guided_regex),
     "a regular expression that the answer matches"},
    {"guided_choice",          FIELD_ARRAY,  FIELD_GENERATE, 1, 4096, 0, AT(guided_choice),
     "texts: the answer is one of them"},
    {"guided_grammar",         FIELD_STRING, FIELD_GENERATE, 1, 1 << 20, 0, AT(guided_grammar),
     "GBNF that the answer fits"},
    {"input",                 FIELD_ANY,    FIELD_RESPONSES, 0, 0, 0, AT(responses.input),
     "a text, or a list of items"},
    {"instructions",          FIELD_STRING, FIELD_RESPONSES, 0, TOK_MAX_INPUT, 0, AT(responses.instructions),
     "a system text before the input"},
    {"max_output_tokens",     FIELD_MOST,   FIELD_RESPONSES, -1, INT32_MAX, NONE, AT(max_tokens),
     "cut to what the context has left; -1: all of that"},
    {"top_logprobs",          FIELD_INT,    FIELD_RESPONSES, 0, TANDEM_MAX_LOGPROBS, NONE, AT(top_logprobs),
     "log-probabilities of this many likely tokens"},
    {"include",               FIELD_ARRAY,  FIELD_RESPONSES, 0, 64, 0, AT(responses.include),
     "message.output_text.logprobs, reasoning.encrypted_content"},
    {"tools",                 FIELD_ARRAY,  FIELD_RESPONSES, 0, 1024, 0, AT(tools), "functions that may be called"},
    {"tool_choice",           FIELD_ANY,    FIELD_RESPONSES, 0, 0, 0, AT(tool_choice),
     "auto, none, required or a tool"},
    {"parallel_tool_calls",   FIELD_BOOL,   FIELD_RESPONSES, 0, 1, 1, AT(parallel_tool_calls),
     "false: the answer ends with its first call"},
    {"reasoning",             FIELD_OBJECT, FIELD_RESPONSES, 0, 64, 0, AT(responses.reasoning), "effort, summary"},
    {"reasoning.effort",      FIELD_STRING, FIELD_RESPONSES, 0, 32, 0, AT(reasoning_effort),
     "none, or any other: think first"},
    {"reasoning.summary",     FIELD_STRING, FIELD_RESPONSES, 0, 32, 0, AT(responses.summary),
     "any: the reasoning is sent as its summary"},
    {"text",                  FIELD_OBJECT, FIELD_RESPONSES, 0, 64, 0, AT(responses.text), "format"},
    {"text.format",           FIELD_OBJECT, FIELD_RESPONSES, 0, 64, 0, AT(response_format), "type"},
    {"text.format.type",      FIELD_STRING, FIELD_RESPONSES, 0, 64, 0, AT(response_type),
     "text, json_object or json_schema"},
    {"background",            FIELD_BOOL,   FIELD_RESPONSES, 0, 1, 0, AT(responses.background), "only false"},
    {"previous_response_id",  FIELD_ANY,    FIELD_RESPONSES, 0, 0, 0, AT(responses.previous_response_id), "only null"},
    {"conversation",          FIELD_ANY,    FIELD_RESPONSES, 0, 0, 0, AT(responses.conversation), "only null"},
    {"prompt",                FIELD_ANY,    FIELD_RESPONSES, 0, 0, 0, AT(responses.stored_prompt), "only null"},
    {"speculative",           FIELD_ANY,    FIELD_ANSWERS, 0, 0, 0, AT(speculative),
     "off, auto or a method; or an object"},
    {"speculative.enabled",   FIELD_BOOL,   FIELD_ANSWERS, 0, 1, 1, AT(spec_enabled),
     "false: as off, whatever the method"},
    {"speculative.method",    FIELD_STRING, FIELD_ANSWERS, 0, 32, 0, AT(spec_method), "the same"},
    {"speculative.draft_max", FIELD_INT,    FIELD_ANSWERS, 1, TANDEM_MAX_DRAFT, 0, AT(draft_max),
     "draft tokens in a chain"},
    {"speculative.tree_budget", FIELD_INT,  FIELD_ANSWERS, 1, TANDEM_MAX_DRAFT, 0, AT(tree_budget),
     "draft tokens in a tree"},
    {"speculative.tree_temp", FIELD_REAL,   FIELD_ANSWERS, 0.001, 100, 0, AT(tree_temp),
     "over 1: wider, under 1: deeper"},
    {"speculative.chain_seed", FIELD_BOOL,  FIELD_ANSWERS, 0, 1, -1, AT(chain_seed),
     "start a tree with the likeliest chain"},
    {"speculative.draft_noise", FIELD_REAL, FIELD_ANSWERS, 0, 1, NAN, AT(draft_noise),
     "share of the temperature for draft tokens"},
    {"speculative.draft_tail", FIELD_INT,   FIELD_ANSWERS, 0, TANDEM_MAX_DRAFT, -1, AT(draft_tail),
     "tokens of the text itself after a draft"},
    {"cache_salt",            FIELD_STRING, FIELD_ANSWERS, 1, 256, 0, AT(cache_salt),
     "prefixes are shared only where it is the same"},
    {"session",               FIELD_STRING, FIELD_ANSWERS, 1, TANDEM_SESSION_NAME, 0, AT(session),
     "the conversation that /api/sessions/NAME/save saves"},
    {"id_slot",               FIELD_INT,    FIELD_ANSWERS, -1, 1023, -1, AT(id_slot),
     "the same as session slot-N; -1: none"},
    {"messages",              FIELD_ARRAY,  FIELD_MESSAGES, 1, CHAT_MAX_MESSAGES, 0, AT(messages), "the conversation"},
    {"system",                FIELD_ANY,    FIELD_MESSAGES, 0, 0, 0, AT(messages_api.system),
     "a text, or a list of text blocks"},
    {"max_tokens",            FIELD_MOST,   FIELD_MESSAGES, 0, INT32_MAX, NONE, AT(max_tokens),
     "cut to what the context has left"},
    {"stop_sequences",        FIELD_ARRAY,  FIELD_MESSAGES, 0, STOP_MAX_STRINGS, 0, AT(stop),
     "texts of 1 to 256 bytes"},
    {"tools",                 FIELD_ARRAY,  FIELD_MESSAGES, 0, 1024, 0, AT(tools), "tools that may be used"},
    {"tool_choice",           FIELD_OBJECT, FIELD_MESSAGES, 0, 16, 0, AT(tool_choice), "type"},
    {"tool_choice.type",      FIELD_STRING, FIELD_MESSAGES, 0, 32, 0, AT(messages_api.choice_type),
     "auto, any, tool or none"},
    {"tool_choice.name",      FIELD_STRING, FIELD_MESSAGES, 1, 256, 0, AT(messages_api.choice_name),
     "of a tool that must be used"},
    {"tool_choice.disable_parallel_tool_use", FIELD_BOOL, FIELD_MESSAGES, 0, 1, 0, AT(messages_api.one_tool_call),
     "the answer ends with its first call"},
    {"thinking",              FIELD_OBJECT, FIELD_MESSAGES, 0, 16, 0, AT(messages_api.thinking), "type"},
    {"thinking.type",         FIELD_STRING, FIELD_MESSAGES, 0, 32, 0, AT(messages_api.thinking_type),
     "enabled or adaptive: think first; disabled"},
    {"output_config",         FIELD_OBJECT, FIELD_MESSAGES, 0, 64, 0, AT(messages_api.output_config), "format"},
    {"output_config.format",  FIELD_OBJECT, FIELD_MESSAGES, 0, 64, 0, AT(response_format), "type and schema"},
    {"output_format",         FIELD_OBJECT, FIELD_MESSAGES, 0, 64, 0, AT(response_format), "the same"},
    {"thread",                FIELD_ANY,    FIELD_MESSAGES, 0, 0, 0, AT(messages_api.thread),
     "only null: conversations are not kept"},
    {"add_special_tokens",     FIELD_BOOL,   FIELD_TEXT, 0, 1, 1, AT(text.add_special_tokens),
     "begin with the token that begins a sequence"},
    {"echo",                  FIELD_BOOL,   FIELD_TEXT, 0, 1, 0, AT(text.echo), "the text begins with the prompt"},
    {"suffix",                FIELD_STRING, FIELD_TEXT, 0, 0, 0, AT(text.suffix), "only empty"},
};
static const field_info tokenize_rows[] = {
    {"content",               FIELD_STRING, FIELD_TOKENIZE, 0, TOK_MAX_INPUT, 0, T(content), "the text"},
    {"prompt",                FIELD_STRING, FIELD_TOKENIZE, 0, TOK_MAX_INPUT, 0, T(prompt),
     "the text, as vLLM's clients write it"},
    {"add_special_tokens",    FIELD_BOOL,   FIELD_TOKENIZE, 0, 1, 1, T(add_special_tokens),
     "with prompt: begin with the token that begins a sequence"},
    {"add_special",           FIELD_BOOL,   FIELD_TOKENIZE, 0, 1, 0, T(add_special),
     "begin with the token that begins a sequence"},
    {"parse_special",         FIELD_BOOL,   FIELD_TOKENIZE, 0, 1, 1, T(parse_special),
     "markers such as <|turn> become tokens"},
    {"with_pieces",           FIELD_BOOL,   FIELD_TOKENIZE, 0, 1, 0, T(with_pieces), "each token with its text"},
    {"tokens",                FIELD_ARRAY,  FIELD_DETOKENIZE, 0, 1 << 20, 0, T(tokens), "token ids"},
};
static const field_info park_rows[] = {
    {"grace_s",               FIELD_REAL,   FIELD_PARK, 0, 86400, -1, P(grace_s),
     "seconds for running responses to end"},
    {"wait",                  FIELD_BOOL,   FIELD_PARK, 0, 1, 1, P(wait),
     "false: reply before the change is complete"},
};
static const field_info bench_rows[] = {
    {"concurrency",           FIELD_ARRAY,  FIELD_BENCH, 1, 16, 0, B(concurrency),
     "concurrent responses: a list of numbers"},
    {"methods",               FIELD_ARRAY,  FIELD_BENCH, 1, BENCH_MAX_METHODS, 0, B(methods),
     "off, auto, dflash, tree, mtp, ngram"},
    {"prompt_tokens",         FIELD_INT,    FIELD_BENCH, 1, 1 << 20, 128, B(prompt_tokens),
     "tokens per prompt; the chat format sets the minimum"},
    {"prompts",               FIELD_ARRAY,  FIELD_BENCH, 1, BENCH_MAX_PROMPTS, 0, B(prompts),
     "questions to measure with, instead of generated prompts"},
    {"output_tokens",         FIELD_INT,    FIELD_BENCH, 2, 1 << 16, 64, B(output_tokens), "tokens per response"},
    {"requests",              FIELD_INT,    FIELD_BENCH, 1, 64, 2, B(requests),
     "responses in sequence per lane"},
    {"repeats",               FIELD_INT,    FIELD_BENCH, 1, 50, 9, B(repeats),
     "repetitions of the whole run, interleaved"},
    {"max_seconds",           FIELD_INT,    FIELD_BENCH, 1, 3600, 600, B(max_seconds),
     "then the results so far are sent"},
    {"temperature",           FIELD_REAL,   FIELD_BENCH, 0, 100, NAN, B(temperature), "0, or absent: greedy"},
    {"stream",                FIELD_BOOL,   FIELD_BENCH, 0, 1, 0, B(stream), "server-sent events during the run"},
};
/* clang-format on */
const field_table        fields_generate = {generate_rows, COUNT(generate_rows), sizeof(server_fields)};
const field_table        fields_tokenize = {tokenize_rows, COUNT(tokenize_rows), sizeof(tokenize_fields)};
const field_table        fields_park     = {park_rows, COUNT(park_rows), sizeof(park_fields)};
const field_table        fields_bench    = {bench_rows, COUNT(bench_rows), sizeof(bench_fields)};
const field_table *const field_tables[]  = {&fields_generate, &fields_tokenize, &fields_park, &fields_bench};
const int                n_field_tables  = (int)COUNT(field_tables);

/* Describes a string or a list by its minimum and maximum size. */
static void describe_count(const field_info *f, const char *what, const char *of, char *out, size_t cap)
{
    if (f->max == 0)
        snprintf(out, cap, "an empty %s", what);
    else if (f->min == 0)
        snprintf(out, cap, "a %s of at most %.0f %s", what, f->max, of);
    else
        snprintf(out, cap, "a %s of %.0f to %.0f %s", what, f->min, f->max, of);
}

void field_describe(const field_info *f, char *out, size_t cap)
{
    switch (f->kind) {
    case FIELD_BOOL: snprintf(out, cap, f->max > 0 ? "true or false" : "false"); break;
    case FIELD_INT:
        if (f->min == f->max)
            snprintf(out, cap, "%.17g", f->min);
        else if (f->max >= MOST_INT)
            snprintf(out, cap, "a whole number from -(2^63 - 1) to 2^63 - 1");
        else
            snprintf(out, cap, "a whole number from %.17g to %.17g", f->min, f->max);
        break;
    case FIELD_MOST: snprintf(out, cap, "a whole number from %.17g up", f->min); break;
    case FIELD_REAL: snprintf(out, cap, "a number from %g to %g", f->min, f->max); break;
    case FIELD_STRING: describe_count(f, "string", "bytes", out, cap); break;
    case FIELD_ARRAY: describe_count(f, "list", "items", out, cap); break;
    case FIELD_OBJECT: snprintf(out, cap, "an object of at most %g members", f->max); break;
    case FIELD_ANY: snprintf(out, cap, "%s", f->about); break;
    }
}

/* Names of the other APIs for the fields of chat completions; NULL: the same name. */
static const struct {
    const char *name, *responses, *messages, *ollama;
} field_names[] = {
    {"response_format", "text.format", "output_config.format", "format"},
    {"response_format.type", "text.format.type", "output_config.format.type", "format"},
    {"response_format.json_schema", "text.format", "output_config.format", "format"},
    {"response_format.json_schema.schema", "text.format.schema", "output_config.format.schema", "format"},
    {"response_format.json_schema.name", "text.format.name", "output_config.format.name", "format"},
    {"response_format.json_schema.strict", "text.format.strict", "output_config.format.strict", "format"},
    {"messages", "input", NULL, NULL},
    {"reasoning_effort", "reasoning.effort", NULL, "think"},
    {"stop", NULL, "stop_sequences", "options.stop"},
    {"temperature", NULL, NULL, "options.temperature"},
    {"top_k", NULL, NULL, "options.top_k"},
    {"top_p", NULL, NULL, "options.top_p"},
    {"min_p", NULL, NULL, "options.min_p"},
    {"repeat_penalty", NULL, NULL, "options.repeat_penalty"},
    {"presence_penalty", NULL, NULL, "options.presence_penalty"},
    {"frequency_penalty", NULL, NULL, "options.frequency_penalty"},
    {"seed", NULL, NULL, "options.seed"},
};

const char *field_name(int endpoint, const char *name)
{
    for (size_t i = 0; i < COUNT(field_names); i++) {
        if (strcmp(field_names[i].name, name)) continue;
        const char *own = endpoint & FIELD_RESPONSES  ? field_names[i].responses
                          : endpoint & FIELD_MESSAGES ? field_names[i].messages
                          : endpoint & FIELD_OLLAMA   ? field_names[i].ollama
                                                      : NULL;
        return own ? own : name;
    }
    return name;
}

static bool refuse_value(const field_info *f, int endpoint, server_error *why)
{
    const char *name = field_name(endpoint, f->name);
    char        what[128];
    field_describe(f, what, sizeof what);
    return error_set(why, 400, name, NULL, "'%s' must be %s.", name, what);
}

const json_value *fields_find(const json_value *v, const char *path)
{
    for (;;) {
        char   key[64];
        size_t n = strcspn(path, ".");
        memcpy(key, path, n);
        key[n] = 0;
        v      = json_get(v, key);
        if (!v || v->kind == JSON_NULL) return NULL;
        if (!path[n]) return v;
        path += n + 1;
    }
}

static bool is_number(const json_value *v) { return v->kind == JSON_INT || v->kind == JSON_REAL; }

static bool read_most(const field_info *f, const json_value *v, int64_t *out)
{
    if (!is_number(v) || v->d < f->min || v->d != floor(v->d)) return false;
    *out = (int64_t)fmin(v->d, f->max);
    return true;
}

static bool read_int(const field_info *f, const json_value *v, int64_t *out)
{
    if (!is_number(v) || v->d < f->min || v->d > f->max || v->d != floor(v->d)) return false;
    /* The largest double below 2^63 and all integers are int64 as they are; 2^63 itself is not. */
    if (v->kind == JSON_REAL && fabs(v->d) >= 0x1p63) return false;
    *out = v->kind == JSON_INT ? v->i : (int64_t)v->d;
    return *out != FIELD_ABSENT;
}

static bool sized(const field_info *f, size_t n) { return (double)n >= f->min && (double)n <= f->max; }

static bool read_value(const field_info *f, const json_value *v, void *to)
{
    switch (f->kind) {
    case FIELD_BOOL:
        if (v->kind != JSON_BOOL || v->b > f->max) return false;
        *(int *)to = v->b;
        return true;
    case FIELD_INT: return read_int(f, v, to);
    case FIELD_MOST: return read_most(f, v, to);
    case FIELD_REAL:
        if (!is_number(v) || !(v->d >= f->min && v->d <= f->max)) return false;
        *(double *)to = v->d;
        return true;
    case FIELD_STRING:
        if (v->kind != JSON_STRING || !sized(f, v->s.n)) return false;
        *(str *)to = v->s;
        return true;
    case FIELD_ARRAY:
    case FIELD_OBJECT:
        if (v->kind != (f->kind == FIELD_ARRAY ? JSON_ARRAY : JSON_OBJECT) || !sized(f, v->n)) return false;
        break;
    case FIELD_ANY: break;
    }
    *(const json_value **)to = v;
    return true;
}

static void set_default(const field_info *f, void *to)
{
    if (f->kind == FIELD_BOOL) *(int *)to = (int)f->default_value;
    if (f->kind == FIELD_INT || f->kind == FIELD_MOST) *(int64_t *)to = (int64_t)f->default_value;
    if (f->kind == FIELD_REAL) *(double *)to = f->default_value;
}

bool fields_read(void *out, const field_table *t, const json_value *body, int endpoint, server_error *why)
{
    memset(out, 0, t->bytes);
    for (int i = 0; i < t->n; i++) set_default(&t->row[i], (char *)out + t->row[i].at);
    for (int i = 0; i < t->n; i++) {
        const field_info *f = &t->row[i];
        const json_value *v = f->endpoint & endpoint ? fields_find(body, f->name) : NULL;
        if (v && !read_value(f, v, (char *)out + f->at)) return refuse_value(f, endpoint, why);
    }
    return true;
}
