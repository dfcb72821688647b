/* server/fields.h - the table of request fields: type, limits and default of each.
 *
 * Fields that are not in the table are ignored, null counts as absent, and an invalid value is refused with the field's
 * name. A name with a point is a member of an object; it is read if the object is one. Fields that accept several types
 * (stop, tool_choice, speculative) are only found here; server/request.c reads them. */
#ifndef TANDEM_SERVER_FIELDS_H
#define TANDEM_SERVER_FIELDS_H
#include "server/errors.h"
#include "json/json.h"

enum { /* endpoints */
       FIELD_CHAT       = 1,
       FIELD_TEXT       = 2,
       FIELD_BOTH       = 3,
       FIELD_TOKENIZE   = 4,
       FIELD_DETOKENIZE = 8,
       FIELD_MESSAGES   = 16,
       FIELD_RESPONSES  = 32,
       FIELD_PARK       = 64,
       FIELD_BENCH      = 128,
       /* Ollama's: ollama.c converts their bodies before fields are read */
       FIELD_OLLAMA_CHAT     = 256,
       FIELD_OLLAMA_GENERATE = 512,
       FIELD_NATIVE          = 1024, /* llama.cpp's own /completion */
       FIELD_OLLAMA          = FIELD_OLLAMA_CHAT | FIELD_OLLAMA_GENERATE,
       FIELD_TEXTS           = FIELD_TEXT | FIELD_NATIVE,
       FIELD_GENERATE        = FIELD_CHAT | FIELD_TEXTS,
       FIELD_FRAMED          = FIELD_MESSAGES | FIELD_RESPONSES, /* APIs with their own names for formats */
       FIELD_ANSWERS         = FIELD_GENERATE | FIELD_FRAMED
};
#define FIELD_ABSENT INT64_MIN

typedef enum {
    FIELD_BOOL,   /* int: 0, 1; -1 when absent without a default */
    FIELD_INT,    /* int64_t; a real without a fraction is one */
    FIELD_MOST,   /* int64_t; a larger value is cut to max */
    FIELD_REAL,   /* double; NAN when absent without a default */
    FIELD_STRING, /* str; min and max are bytes */
    FIELD_ARRAY,  /* const json_value *; min and max are items */
    FIELD_OBJECT, /* const json_value *; max members */
    FIELD_ANY,    /* const json_value * */
} field_kind;

typedef struct {
    str model, reasoning_effort, cache_salt, spec_method, response_type, suffix, grammar;
    str choice_type, choice_name, thinking_type; /* Anthropic's tool_choice and thinking */
    int stream, include_usage, want_logprobs, parallel_tool_calls, enable_thinking, kwargs_thinking, kwargs_preserve,
        kwargs_prompt, ignore_eos, echo, add_generation_prompt, continue_final_message, add_special_tokens,
        return_tokens, return_progress, timings_per_token;
    int     spec_enabled, chain_seed, one_tool_call;
    int64_t n, best_of, max_tokens, max_completion_tokens, n_predict, min_tokens, n_probs, top_k, seed, top_logprobs,
        text_logprobs;
    int64_t draft_max, tree_budget;
    double  temperature, top_p, min_p, presence_penalty, frequency_penalty, repeat_penalty, tree_temp, draft_noise;

    str               content, token_prompt; /* /tokenize; token_prompt: vLLM's name */
    int               add_special, parse_special, with_pieces;
    const json_value *tokens;

    double            grace_s; /* parking and bench */
    int               wait;
    const json_value *concurrency, *methods;
    int64_t           prompt_tokens, output_tokens, requests, repeats, max_seconds;

    const json_value *messages, *prompt, *stop, *logit_bias, *tools, *tool_choice, *speculative;
    const json_value *stream_options, *chat_template_kwargs, *response_format, *json_schema, *system, *thinking,
        *thread, *output_config;
    const json_value *stop_token_ids, *functions, *function_call, *structured_outputs, *guided_json, *guided_choice,
        *response_fields;
    str guided_regex, guided_grammar;

    str               instructions, summary; /* /v1/responses */
    int               background;
    const json_value *input, *include, *reasoning, *text, *previous_response_id, *conversation, *stored_prompt;
    const json_value *allowed_tools; /* not a field: a member of tool_choice */
} server_fields;

typedef struct {
    const char *name;
    field_kind  kind;
    int         endpoint;
    double      min, max, default_value;
    size_t      at; /* offset in server_fields */
    const char *about;
} field_info;
extern const field_info field_table[];
extern const int        n_fields;

/* Reads the fields of an endpoint from an object. Absent fields get their defaults. */
bool fields_read(server_fields *out, const json_value *body, int endpoint, server_error *why);
/* Returns the name that clients of an endpoint have for a field of chat completions. Static. */
const char *field_name(int endpoint, const char *name);
/* Returns a member of a body by its path, "a.b"; NULL where it is absent or null. */
const json_value *fields_find(const json_value *body, const char *path);
/* Writes the accepted values: "a whole number from 1 to 32". */
void field_describe(const field_info *f, char *out, size_t cap);
#endif
