#include "server/errors.h"

#include "json/json.h"

#include <stdarg.h>
#include <stdio.h>

bool error_set(server_error *x, int status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    *x = (server_error){.status = status, .code = code};
    snprintf(x->param, sizeof x->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(x->message, sizeof x->message, fmt, ap);
    va_end(ap);
    return false;
}

bool error_context(server_error *x, const char *param, const char *noun, int n_ctx, size_t n_prompt)
{
    error_set(x, 400, param, "context_length_exceeded",
              "This model's maximum context length is %d tokens. However, your %s resulted in %zu tokens. "
              "Please reduce the length of the %s.",
              n_ctx, noun, n_prompt, noun);
    x->n_ctx           = n_ctx;
    x->n_prompt_tokens = (int64_t)n_prompt;
    return false;
}

bool error_shutting_down(server_error *x)
{
    return error_set(x, 503, NULL, "draining", "The server is shutting down.");
}

bool error_drained(server_error *x)
{
    return error_set(x, 503, NULL, "draining", "The server is not accepting new requests. Please try again later.");
}

bool error_no_media(server_error *x, const char *param)
{
    return error_set(x, 400, param, "unsupported_value", "This model accepts text only: no images, audio or video.");
}

/* Maps an error to a status. Reports internal errors without details. */
bool error_take(server_error *x, const err *e, const char *param, bool running)
{
    if (e->field[0]) param = e->field;
    switch (e->code) {
    case ERR_BUSY:
        return error_set(x, running ? 503 : 429, NULL, running ? "unavailable" : "busy",
                         "The server is busy. Please try again later.");
    case ERR_UNAVAILABLE:
        return error_set(x, 503, NULL, "unavailable",
                         "The server cannot take this request now. Please try again later.");
    case ERR_INPUT: return error_set(x, 400, param, NULL, "%s", e->text);
    case ERR_CONTEXT:
        error_set(x, 400, param, "context_length_exceeded", "%s", e->text);
        x->n_ctx = (int)e->limit;
        return false;
    case ERR_TOO_LARGE:
        if (!param) return error_set(x, 413, NULL, "request_too_large", "%s", e->text);
        return error_set(x, 400, param, NULL, "'%s' is over a limit: %s.", param, e->text);
    case ERR_NOT_FOUND:
        if (!running) return error_set(x, 404, param, "not_found", "%s", e->text);
        break;
    case ERR_FORMAT:
        if (!running) return error_set(x, 400, param, NULL, "%s", e->text);
        break;
    default: break;
    }
    return error_set(x, 500, NULL, "internal_error", "The server failed to answer this request.");
}

bool error_body(server_error *x, const err *e)
{
    if (e->code == ERR_UNAVAILABLE) return error_no_memory(x);
    if (e->code == ERR_TOO_LARGE)
        return error_set(x, 413, NULL, "request_too_large", "The body is too large or too deep: %s.", e->text);
    return error_set(x, 400, NULL, "invalid_json", "The body is not JSON: %s.", e->text);
}

bool error_no_memory(server_error *x) { return error_take(x, &(err){.code = ERR_UNAVAILABLE}, NULL, false); }

const char *error_type(int status)
{
    switch (status) {
    case 401:
    case 403: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

int error_retry_after(int status) { return status == 429 || status == 503 ? 1 : 0; }

static void put_member(json_writer *w, const char *key, const char *value)
{
    json_key(w, key);
    if (value && value[0])
        json_put_str(w, str_of(value));
    else
        json_put_null(w);
}

void error_put(buf *out, const server_error *x)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    put_member(&w, "message", x->message);
    put_member(&w, "type", error_type(x->status));
    put_member(&w, "param", x->param);
    put_member(&w, "code", x->code);
    if (x->n_prompt_tokens) json_member_int(&w, "n_prompt_tokens", x->n_prompt_tokens);
    if (x->n_ctx) json_member_int(&w, "n_ctx", x->n_ctx);
    json_end(&w);
}
