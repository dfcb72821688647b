#include "daemon/command.h"

#include "base/mem.h"
#include "server/fields.h"

#include <stdarg.h>
#include <stdio.h>

const char *const command_ops[] = {
    "generate",      "cancel",        "park",          "unpark", "tokenize", "detokenize", "snapshot_save",
    "snapshot_load", "snapshot_list", "snapshot_drop", "stats",  "ping",     "quit",       NULL};
_Static_assert(COUNT(command_ops) == OP_COUNT + 1, "a name for each operation");

/* Bytes that the tree of a line may take: ten bytes of a hostile line make a hundred of a tree. */
enum { TREE_MEMORY = 160 << 20 };

/* Fields of each operation in addition to id, op and meta, separated by blanks. The fields of generate
 * that the HTTP API has are in server/fields.c. */
static const char *const op_fields[] = {
    [OP_GENERATE]      = "prompt ids messages raw text stream unpark reasoning from save",
    [OP_CANCEL]        = "target",
    [OP_PARK]          = "what wait",
    [OP_UNPARK]        = "what",
    [OP_TOKENIZE]      = "text markers",
    [OP_DETOKENIZE]    = "ids markers",
    [OP_SNAPSHOT_SAVE] = "session name to",
    [OP_SNAPSHOT_LOAD] = "name",
    [OP_SNAPSHOT_LIST] = "",
    [OP_SNAPSHOT_DROP] = "name",
    [OP_STATS]         = "",
    [OP_PING]          = "",
    [OP_QUIT]          = "mode",
};
/* Fields of the HTTP API that make no sense here. */
static const char not_here[] = "model stream_options n best_of return_progress timings_per_token echo suffix "
                               "max_completion_tokens n_predict cache_salt session id_slot functions function_call";

bool command_fail(command_error *x, const char *code, const char *field, const char *fmt, ...)
{
    va_list ap;
    *x = (command_error){.code = code};
    snprintf(x->field, sizeof x->field, "%s", field ? field : "");
    va_start(ap, fmt);
    vsnprintf(x->message, sizeof x->message, fmt, ap);
    va_end(ap);
    return false;
}

static bool has_word(const char *words, str word)
{
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, " ");
        if (str_eq(word, (str){p, n})) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static bool is_http_field(str key)
{
    if (has_word(not_here, key)) return false;
    for (int i = 0; i < fields_generate.n; i++)
        if (fields_generate.row[i].endpoint & FIELD_BOTH && str_is(key, fields_generate.row[i].name)) return true;
    return false;
}

static bool check_fields(const command *c, command_error *why)
{
    for (size_t i = 0; i < c->root->n; i++) {
        str key = c->root->member[i].key;
        if (has_word("id op meta", key) || has_word(op_fields[c->op], key)) continue;
        if (c->op == OP_GENERATE && is_http_field(key)) continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(key.n < 63 ? key.n : 63), key.s);
        return command_fail(why, "bad_request", name, "unknown field '%s' of %s", name, command_ops[c->op]);
    }
    return true;
}

static bool read_id(command *c, command_error *why)
{
    const json_value *v = json_find(c->root, "id");
    if (!v) return command_fail(why, "missing_id", "id", "the line has no id");
    if (v->kind != JSON_INT && (v->kind != JSON_STRING || !v->s.n || v->s.n > COMMAND_MAX_ID))
        return command_fail(why, "missing_id", "id", "the id must be an integer or a string of 1 to %d bytes",
                            COMMAND_MAX_ID);
    c->id = v;
    return true;
}

static bool read_op(command *c, command_error *why)
{
    const json_value *v = json_find(c->root, "op");
    if (!v || v->kind != JSON_STRING) return command_fail(why, "bad_request", "op", "the line has no op");
    for (int i = 0; i < OP_COUNT; i++)
        if (str_is(v->s, command_ops[i])) {
            c->op = (command_op)i;
            return true;
        }
    return command_fail(why, "unknown_op", "op", "there is no operation '%.*s'", STR_ARG(v->s));
}

bool command_read(command *out, arena *mem, str line, int64_t number, command_error *why)
{
    json_limits limits = {.max_memory = TREE_MEMORY};
    err         e      = {0};
    *out               = (command){0};
    if (!json_parse(&out->root, mem, line, &limits, &e))
        return command_fail(why, e.code == ERR_FORMAT ? "bad_json" : "too_large", NULL, "line %lld is not JSON: %s",
                            (long long)number, e.text);
    if (out->root->kind != JSON_OBJECT)
        return command_fail(why, "bad_json", NULL, "line %lld is not a JSON object", (long long)number);
    if (!read_id(out, why) || !read_op(out, why)) return false;
    out->meta = json_get(out->root, "meta");
    return check_fields(out, why);
}

bool command_str(const command *c, const char *name, str *out, command_error *why)
{
    const json_value *v = json_find(c->root, name);
    if (!v) return true;
    if (v->kind != JSON_STRING) return command_fail(why, "bad_request", name, "'%s' must be a string", name);
    *out = v->s;
    return true;
}

bool command_bool(const command *c, const char *name, bool *out, command_error *why)
{
    const json_value *v = json_find(c->root, name);
    if (!v) return true;
    if (v->kind != JSON_BOOL) return command_fail(why, "bad_request", name, "'%s' must be true or false", name);
    *out = v->b;
    return true;
}
