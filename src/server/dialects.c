#include "server/tables_inside.h"

#include "base/mem.h"

#include <stdlib.h>

#define REFUSED DIALECT_REFUSED
#define WARNED  DIALECT_WARNED
#define IDLE    DIALECT_IDLE
/* clang-format off */
const dialect_field dialect_table[] = {
    /* samplers that are not here */
    {"mirostat",              FIELD_ANSWERS, REFUSED, "0", "sampling towards an entropy"},
    {"mirostat_tau",          FIELD_ANSWERS, IDLE,    "", "of mirostat"},
    {"mirostat_eta",          FIELD_ANSWERS, IDLE,    "", "of mirostat"},
    {"typical_p",             FIELD_ANSWERS, REFUSED, "1", "locally typical sampling"},
    {"tfs_z",                 FIELD_ANSWERS, REFUSED, "1", "tail free sampling"},
    {"top_a",                 FIELD_ANSWERS, REFUSED, "0", "a threshold by the square of the best"},
    {"top_n_sigma",           FIELD_ANSWERS, REFUSED, "0 -1", "a threshold by standard deviations"},
    {"dynatemp_range",        FIELD_ANSWERS, REFUSED, "0", "a temperature by entropy"},
    {"dynatemp_exponent",     FIELD_ANSWERS, IDLE,    "", "of dynatemp_range"},
    {"xtc_probability",       FIELD_ANSWERS, REFUSED, "0", "removal of the likeliest tokens"},
    {"xtc_threshold",         FIELD_ANSWERS, IDLE,    "", "of xtc_probability"},
    {"dry_multiplier",        FIELD_ANSWERS, REFUSED, "0", "a penalty of repeated sequences"},
    {"dry_base",              FIELD_ANSWERS, IDLE,    "", "of dry_multiplier"},
    {"dry_allowed_length",    FIELD_ANSWERS, IDLE,    "", "of dry_multiplier"},
    {"dry_penalty_last_n",    FIELD_ANSWERS, IDLE,    "", "of dry_multiplier"},
    {"dry_sequence_breakers", FIELD_ANSWERS, IDLE,    "", "of dry_multiplier"},
    {"adaptive_target",       FIELD_ANSWERS, REFUSED, "-1", "sampling towards a probability"},
    {"adaptive_decay",        FIELD_ANSWERS, IDLE,    "", "of adaptive_target"},
    {"min_keep",              FIELD_ANSWERS, REFUSED, "0 1", "tokens that top_p and others must leave"},
    {"use_beam_search",       FIELD_ANSWERS, REFUSED, "false", "beam search"},
    {"length_penalty",        FIELD_ANSWERS, IDLE,    "", "of use_beam_search"},
    {"early_stopping",        FIELD_ANSWERS, IDLE,    "", "of use_beam_search"},
    {"watermarking",          FIELD_ANSWERS, REFUSED, "false", "a watermark in the text"},
    {"samplers",              FIELD_ANSWERS, WARNED,  "[]", "their order is fixed: temperature, top_k, top_p, min_p"},
    {"repeat_last_n",         FIELD_ANSWERS, WARNED,  "-1", "penalties count the whole text"},
    {"penalize_nl",           FIELD_ANSWERS, WARNED,  "true", "penalties count line ends too"},
    {"backend_sampling",      FIELD_ANSWERS, IDLE,    "", "where sampling runs"},
    /* which tokens may be picked, and where an answer ends */
    {"bad_words",             FIELD_ANSWERS, REFUSED, "[]", "use logit_bias"},
    {"allowed_token_ids",     FIELD_ANSWERS, REFUSED, "", "use a grammar"},
    {"repetition_detection",  FIELD_ANSWERS, REFUSED, "", "an end when patterns repeat"},
    {"include_stop_str_in_output", FIELD_ANSWERS, REFUSED, "false", "a stop string is never a part of the text"},
    {"n_indent",              FIELD_ANSWERS, REFUSED, "0", "an end by indentation"},
    {"t_max_predict_ms",      FIELD_ANSWERS, REFUSED, "0 -1", "a time limit"},
    {"grammar_lazy",          FIELD_ANSWERS, REFUSED, "false", "a grammar that begins later"},
    {"grammar_triggers",      FIELD_ANSWERS, REFUSED, "[]", "of grammar_lazy"},
    {"preserved_tokens",      FIELD_ANSWERS, IDLE,    "", "of grammar_lazy"},
    {"guided_decoding_backend", FIELD_ANSWERS, IDLE,  "", "there is one"},
    {"guided_whitespace_pattern", FIELD_ANSWERS, WARNED, "",
     "white space between JSON tokens is as in docs/grammar.md"},
    {"thinking_token_budget", FIELD_ANSWERS, WARNED,  "-1", "thoughts have no limit of their own"},
    {"thinking_budget_tokens", FIELD_ANSWERS, WARNED, "-1", "thoughts have no limit of their own"},
    {"thinking_budget",       FIELD_ANSWERS, WARNED,  "-1", "thoughts have no limit of their own"},
    {"reasoning_budget",      FIELD_ANSWERS, WARNED,  "-1", "thoughts have no limit of their own"},
    {"thinking.budget_tokens", FIELD_MESSAGES, WARNED, "", "thoughts have no limit of their own"},
    {"reasoning_budget_message", FIELD_ANSWERS, IDLE, "", "of reasoning_budget"},
    {"reasoning_control",     FIELD_ANSWERS, REFUSED, "false", "an end of the thought on demand"},
    /* constraints that belong to other endpoints */
    {"response_format",       FIELD_FRAMED,  REFUSED, "", "use output_config.format or text.format"},
    {"json_schema",           FIELD_FRAMED,  REFUSED, "", "use output_config.format or text.format"},
    {"grammar",               FIELD_FRAMED,  REFUSED, "\"\"", "chat and text completions have it"},
    {"structured_outputs",    FIELD_FRAMED,  REFUSED, "{}", "chat and text completions have it"},
    {"guided_json",           FIELD_FRAMED,  REFUSED, "", "chat and text completions have it"},
    {"guided_regex",          FIELD_FRAMED,  REFUSED, "", "chat and text completions have it"},
    {"guided_choice",         FIELD_FRAMED,  REFUSED, "", "chat and text completions have it"},
    {"guided_grammar",        FIELD_FRAMED,  REFUSED, "", "chat and text completions have it"},
    {"functions",             FIELD_FRAMED,  REFUSED, "[]", "use tools"},
    {"function_call",         FIELD_FRAMED,  REFUSED, "\"auto\" \"none\"", "use tool_choice"},
    {"n_predict",             FIELD_FRAMED,  REFUSED, "-1", "use max_tokens or max_output_tokens"},
    {"max_tokens",            FIELD_RESPONSES, REFUSED, "-1", "use max_output_tokens"},
    {"n",                     FIELD_FRAMED,  REFUSED, "1", "chat and text completions have it"},
    {"stop",                  FIELD_FRAMED,  REFUSED, "[]", "messages have stop_sequences, responses none"},
    {"continue_final_message", FIELD_FRAMED, REFUSED, "false", "chat completions have it"},
    {"add_generation_prompt", FIELD_FRAMED,  REFUSED, "true", "chat completions have it"},
    {"echo",                  FIELD_NATIVE,  REFUSED, "false", "POST /v1/completions has it"},
    {"logprobs",              FIELD_NATIVE,  WARNED,  "false 0", "use n_probs"},
    {"n_probs",               FIELD_BOTH,    WARNED,  "0", "use logprobs"},
    {"n_cmpl",                FIELD_BOTH,    REFUSED, "1", "use n"},
    {"return_tokens",         FIELD_BOTH,    WARNED,  "false", "POST /completion has it"},
    {"response_fields",       FIELD_BOTH,    WARNED,  "[]", "POST /completion has it"},
    /* the prompt */
    {"truncate_prompt_tokens", FIELD_ANSWERS, REFUSED, "", "prompts are never cut"},
    {"truncation_side",       FIELD_ANSWERS, IDLE,    "", "of truncate_prompt_tokens"},
    {"prompt_embeds",         FIELD_ANSWERS, REFUSED, "[]", "prompts are text or token ids"},
    {"image_data",            FIELD_ANSWERS, REFUSED, "[]", "chat completions have image_url"},
    {"documents",             FIELD_ANSWERS, REFUSED, "[]", "the template has no documents"},
    {"chat_template",         FIELD_ANSWERS, REFUSED, "", "the template is the model's own"},
    {"n_keep",                FIELD_ANSWERS, IDLE,    "", "the context is never shifted"},
    {"n_discard",             FIELD_ANSWERS, IDLE,    "", "the context is never shifted"},
    {"cache_prompt",          FIELD_ANSWERS, IDLE,    "", "the cache never changes the text"},
    {"n_cache_reuse",         FIELD_ANSWERS, IDLE,    "", "the cache never changes the text"},
    {"add_special_tokens",    FIELD_CHAT,    REFUSED, "false", "the template begins the prompt"},
    {"echo",                  FIELD_CHAT,    REFUSED, "false", "the reply is the answer alone"},
    {"lora",                  FIELD_ANSWERS, REFUSED, "[]", "there are no adapters"},
    {"lora_request",          FIELD_ANSWERS, REFUSED, "", "there are no adapters"},
    {"kv_transfer_params",    FIELD_ANSWERS, REFUSED, "{}", "K/V from elsewhere"},
    {"ec_transfer_params",    FIELD_ANSWERS, REFUSED, "{}", "K/V from elsewhere"},
    {"vllm_xargs",            FIELD_ANSWERS, WARNED,  "{}", "arguments of extensions"},
    {"mm_processor_kwargs",   FIELD_ANSWERS, IDLE,    "", "of images"},
    {"media_io_kwargs",       FIELD_ANSWERS, IDLE,    "", "of images"},
    /* the reply */
    {"prompt_logprobs",       FIELD_ANSWERS, REFUSED, "", "use echo with logprobs"},
    {"logprob_token_ids",     FIELD_ANSWERS, REFUSED, "[]", "log-probabilities of given tokens"},
    {"post_sampling_probs",   FIELD_ANSWERS, REFUSED, "false", "log-probabilities are those before sampling"},
    {"return_tokens_as_token_ids", FIELD_ANSWERS, REFUSED, "false", "tokens are shown as text"},
    {"return_token_ids",      FIELD_ANSWERS, WARNED,  "false", "POST /completion has return_tokens"},
    {"return_prompt_text",    FIELD_ANSWERS, WARNED,  "false", "POST /apply-template shows it"},
    {"return_token_offsets",  FIELD_ANSWERS, IDLE,    "", "of another endpoint"},
    {"return_mm_kwargs",      FIELD_ANSWERS, IDLE,    "", "of another endpoint"},
    {"routed_experts_prompt_start", FIELD_ANSWERS, IDLE, "", "experts are not reported"},
    {"skip_special_tokens",   FIELD_ANSWERS, WARNED,  "true", "markers are never written out"},
    {"spaces_between_special_tokens", FIELD_ANSWERS, IDLE, "", "of skip_special_tokens"},
    {"include_reasoning",     FIELD_ANSWERS, WARNED,  "true", "a thought is always shown"},
    {"reasoning_format",      FIELD_ANSWERS, WARNED,  "\"auto\" \"deepseek\"", "a thought is reasoning_content"},
    {"reasoning_in_content",  FIELD_ANSWERS, WARNED,  "false", "a thought is reasoning_content"},
    {"thinking_forced_open",  FIELD_ANSWERS, IDLE,    "", "as the template says"},
    {"generation_prompt",     FIELD_ANSWERS, IDLE,    "", "as the template says"},
    {"parse_tool_calls",      FIELD_ANSWERS, WARNED,  "true", "calls are always tool_calls"},
    {"chat_format",           FIELD_ANSWERS, IDLE,    "", "as the template says"},
    {"stream_options.continuous_usage_stats", FIELD_BOTH, WARNED, "false", "the usage comes at the end"},
    {"audio",                 FIELD_CHAT,    REFUSED, "", "answers are text"},
    {"web_search_options",    FIELD_CHAT,    WARNED,  "", "there is no search"},
    {"stream_interval",       FIELD_ANSWERS, IDLE,    "", "tokens of 8 ms leave together"},
    {"sse_ping_interval",     FIELD_ANSWERS, IDLE,    "", "every 15 s"},
    /* scheduling and speculation */
    {"priority",              FIELD_ANSWERS, WARNED,  "0", "requests are served in turns"},
    {"speculative.n_max",     FIELD_ANSWERS, IDLE,    "", "speculation never changes the text"},
    {"speculative.n_min",     FIELD_ANSWERS, IDLE,    "", "speculation never changes the text"},
    {"speculative.p_min",     FIELD_ANSWERS, IDLE,    "", "speculation never changes the text"},
    {"speculative.type",      FIELD_ANSWERS, IDLE,    "", "speculation never changes the text"},
    {"speculative.ngram_size_n", FIELD_ANSWERS, IDLE, "", "speculation never changes the text"},
    {"speculative.ngram_size_m", FIELD_ANSWERS, IDLE, "", "speculation never changes the text"},
    {"speculative.ngram_m_hits", FIELD_ANSWERS, IDLE, "", "speculation never changes the text"},
};
/* clang-format on */
const int n_dialect_fields = (int)COUNT(dialect_table);

/* Returns whether v is the JSON value that is written as `text`: a number, true, false, a string, or [] or {}. */
static bool is_value(const json_value *v, str text)
{
    char number[32];
    if (str_is(text, "[]")) return v->kind == JSON_ARRAY && !v->n;
    if (str_is(text, "{}")) return v->kind == JSON_OBJECT && !v->n;
    if (str_is(text, "true") || str_is(text, "false")) return v->kind == JSON_BOOL && v->b == str_is(text, "true");
    if (text.s[0] == '"') return v->kind == JSON_STRING && str_eq(v->s, (str){text.s + 1, text.n - 2});
    if ((v->kind != JSON_INT && v->kind != JSON_REAL) || text.n >= sizeof number) return false;
    memcpy(number, text.s, text.n);
    number[text.n] = 0;
    return v->d == strtod(number, NULL);
}

static bool is_off(const dialect_field *f, const json_value *v)
{
    for (const char *p = f->off; *p;) {
        size_t n = strcspn(p, " ");
        if (is_value(v, (str){p, n})) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static bool refuse_field(const dialect_field *f, server_error *why)
{
    if (f->off[0])
        return error_set(why, 400, f->name, "unsupported_parameter",
                         "'%s' is not supported (%s): leave it out, or set it to %s.", f->name, f->about, f->off);
    return error_set(why, 400, f->name, "unsupported_parameter", "'%s' is not supported (%s): leave it out.", f->name,
                     f->about);
}

/* Finds a field. A name with a point is a key or a path. */
static const json_value *find_field(const json_value *body, const char *name)
{
    const json_value *v = json_find(body, name);
    return v ? v : fields_find(body, name);
}

/* Warns of tools that are not functions: they are not in the prompt. */
static void warn_of_tools(server_request *r, const json_value *body)
{
    const json_value *list = json_find(body, "tools");
    if (!list || list->kind != JSON_ARRAY) return;
    for (size_t i = 0; i < list->n; i++) {
        const json_value *type = json_find(&list->item[i], "type");
        if (type && type->kind == JSON_STRING && !str_is(type->s, "function"))
            request_warn(r, "tools[%zu] is ignored: its type is '%.*s', not 'function'", i,
                         type->s.n < 64 ? (int)type->s.n : 64, type->s.s);
    }
}

bool dialects_check(server_request *r, const json_value *body, server_error *why)
{
    if (r->endpoint & FIELD_CHAT) warn_of_tools(r, body);
    for (int i = 0; i < n_dialect_fields; i++) {
        const dialect_field *f = &dialect_table[i];
        const json_value *v = f->endpoint & r->endpoint && f->rule != DIALECT_IDLE ? find_field(body, f->name) : NULL;
        if (!v || is_off(f, v)) continue;
        if (f->rule == DIALECT_REFUSED) return refuse_field(f, why);
        request_warn(r, "'%s' is ignored: %s", f->name, f->about);
    }
    return true;
}
