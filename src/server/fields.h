/* server/fields.h - the table of request fields: type, limits and default of each. Any thread may use it.
 *
 * fields_read ignores fields that are not in the table (dialects.c then refuses some of them), null counts as absent,
 * and an invalid value is refused with the field's name. A name with a point is a member of an object; it is read if
 * the object is one. Fields that accept several types (FIELD_ANY: prompt, stop, tool_choice, speculative) are only
 * found here; the files that translate a request check and read them. */
#ifndef TANDEM_SERVER_FIELDS_H
#define TANDEM_SERVER_FIELDS_H
#include "server/errors.h"
#include "json/json.h"

enum { /* endpoints, and sets of them, as bits */
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
#define FIELD_ABSENT INT64_MIN /* the value of an absent FIELD_INT or FIELD_MOST without a default */

/* The kind of a field: the C type of its value, and the meaning of min and max. Absent strings have s NULL, absent
 * json_values are NULL. */
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

/* --- fields by API ------------------------------------------------------------------------------*/
typedef struct { /* POST /v1/chat/completions */
    const json_value *chat_template_kwargs, *functions, *function_call;
    int               enable_thinking, kwargs_thinking, kwargs_preserve, kwargs_prompt;
    int               add_generation_prompt, continue_final_message;
    int64_t           max_completion_tokens;
} chat_fields;

typedef struct { /* POST /v1/completions; the prompt of /completion */
    const json_value *prompt;
    str               suffix;
    int               echo, add_special_tokens;
    int64_t           best_of, text_logprobs;
} text_fields;

typedef struct { /* POST /completion */
    int64_t           n_probs;
    int               return_tokens;
    const json_value *response_fields;
} native_fields;

typedef struct { /* POST /v1/responses */
    str               instructions, summary;
    int               background;
    const json_value *input, *include, *reasoning, *text, *previous_response_id, *conversation, *stored_prompt;
    const json_value *allowed_tools; /* not a field: a member of tool_choice */
} responses_fields;

typedef struct { /* POST /v1/messages */
    const json_value *system, *thinking, *thread, *output_config;
    str               choice_type, choice_name, thinking_type; /* members of tool_choice and thinking */
    int               one_tool_call;
} messages_fields;

/* Fields of a request that generates text: common ones, and those of its API. */
typedef struct {
    str model, reasoning_effort, cache_salt, session, response_type;
    int stream, include_usage, want_logprobs, parallel_tool_calls, ignore_eos, return_progress, timings_per_token,
        return_drafts;
    int64_t           n, max_tokens, n_predict, min_tokens, top_k, seed, top_logprobs, id_slot;
    double            temperature, top_p, min_p, presence_penalty, frequency_penalty, repeat_penalty;
    const json_value *messages, *stop, *stop_token_ids, *logit_bias, *tools, *tool_choice, *stream_options;
    /* Constraints of the response. */
    const json_value *response_format, *json_schema, *structured_outputs, *guided_json, *guided_choice;
    str               grammar, guided_regex, guided_grammar;
    /* Speculation. */
    const json_value *speculative;
    str               spec_method;
    int               spec_enabled, chain_seed;
    int64_t           draft_max, tree_budget, draft_tail;
    double            tree_temp, draft_noise;

    chat_fields      chat;
    text_fields      text;
    native_fields    native;
    responses_fields responses;
    messages_fields  messages_api;
} server_fields;

typedef struct {                       /* POST /tokenize and /detokenize */
    str               content, prompt; /* prompt: vLLM's name of the text */
    int               add_special, add_special_tokens, parse_special, with_pieces;
    const json_value *tokens;
} tokenize_fields;

typedef struct { /* POST /api/models/ID/park and unpark */
    double grace_s;
    int    wait;
} park_fields;

enum { BENCH_MAX_METHODS = 7, BENCH_MAX_PROMPTS = 64 }; /* all methods, and the base again as a control */
typedef struct {                                        /* POST /api/bench */
    const json_value *concurrency, *methods;
    int64_t           prompt_tokens, output_tokens, requests, repeats, max_seconds;
    double            temperature;
    int               stream;
    const json_value *prompts;
} bench_fields;

typedef struct {
    const char *name;
    field_kind  kind;
    int         endpoint; /* the endpoints that have it */
    double      min, max, default_value;
    size_t      at;    /* offset in the struct of its table */
    const char *about; /* its meaning, for the docs; for FIELD_ANY, the accepted values */
} field_info;

typedef struct {
    const field_info *row;
    int               n;
    size_t            bytes; /* size of the struct */
} field_table;
extern const field_table fields_generate, fields_tokenize, fields_park, fields_bench;

/* Reads the fields of an endpoint from an object into the struct of the table, which borrows the body. Absent fields,
 * and those of other endpoints, get their defaults. Fails with 400 and the name of the first invalid field. */
bool fields_read(void *out, const field_table *t, const json_value *body, int endpoint, server_error *why);
/* Returns the name that clients of an endpoint have for a field of chat completions: a constant, or `name`. */
const char *field_name(int endpoint, const char *name);
/* Returns a member of a body by its path, "a.b"; NULL where it is absent or null. Each key has less than 64 bytes. */
const json_value *fields_find(const json_value *body, const char *path);
#endif
