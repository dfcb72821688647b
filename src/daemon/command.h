/* daemon/command.h - parses a line of the daemon's protocol: a JSON object with an id and an operation.
 *
 *      {"id":7,"op":"cancel","target":"a","meta":{"any":"thing"}}
 *
 * A command borrows from its line and its arena. Every field of an operation is in one table; an unknown one is refused
 * by its name. Any thread may use these functions. */
#ifndef TANDEM_DAEMON_COMMAND_H
#define TANDEM_DAEMON_COMMAND_H
#include "json/json.h"

typedef enum {
    OP_GENERATE,
    OP_CANCEL,
    OP_PARK,
    OP_UNPARK,
    OP_TOKENIZE,
    OP_DETOKENIZE,
    OP_SNAPSHOT_SAVE,
    OP_SNAPSHOT_LOAD,
    OP_SNAPSHOT_LIST,
    OP_SNAPSHOT_DROP,
    OP_STATS,
    OP_PING,
    OP_QUIT,
    OP_COUNT,
} command_op;
extern const char *const command_ops[]; /* their names; NULL at the end */

enum { COMMAND_MAX_ID = 128, COMMAND_MAX_CODE = 32 };

/* Error of a command: {"type":"error","code":...,"message":...}. */
typedef struct {
    const char *code; /* static; NULL: no error */
    char        message[640];
    char        field[128]; /* the field at fault; empty: none */
    int64_t     limit, got; /* for "context"; 0: absent */
} command_error;
/* Sets all members and returns false. field may be NULL. */
bool command_fail(command_error *x, const char *code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

typedef struct {
    const json_value *root;
    const json_value *id;   /* a string or an integer; NULL: missing or invalid */
    const json_value *meta; /* echoed with every event; NULL: none */
    command_op        op;
} command;

/* Parses a line. number: its number, for messages. When it fails, out->id is set if the line has a valid one. */
bool command_read(command *out, arena *mem, str line, int64_t number, command_error *why);
/* Returns a string or boolean field. Fails when the field has another type; an absent one keeps *out. */
bool command_str(const command *c, const char *name, str *out, command_error *why);
bool command_bool(const command *c, const char *name, bool *out, command_error *why);
#endif
