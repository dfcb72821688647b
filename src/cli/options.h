/* cli/options.h - one table per command drives parsing, --help and the environment.
 *
 * Flag --top-k has the environment variable TANDEM_TOP_K, with the same checks; the command line overrides it. A
 * variable has the same meaning in all commands. A TANDEM_ variable that the command does not use is reported by a
 * warning. Both `--flag value` and `--flag=value` work; `--` ends the flags. */
#ifndef TANDEM_CLI_OPTIONS_H
#define TANDEM_CLI_OPTIONS_H
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    OPT_FLAG,   /* bool; no value, in the environment 0 or 1 */
    OPT_SWITCH, /* bool; alone it is on, and 0, 1, on or off may follow */
    OPT_INT,    /* int */
    OPT_U64,    /* uint64_t */
    OPT_BYTES,  /* uint64_t; 500000000, 500M, 2G: powers of 1000 */
    OPT_REAL,   /* float */
    OPT_STR,    /* const char * */
    OPT_CHOICE, /* int: index into choices */
    OPT_LIST,   /* opt_list: may be given several times */
    OPT_PARSED, /* written by the option's `parse` */
} opt_kind;

enum { OPT_LIST_MAX = 64 };
typedef struct {
    const char *item[OPT_LIST_MAX];
    int         n;
    bool        from_environment; /* replaced by the first one on the command line */
} opt_list;

typedef struct {
    const char        *name;   /* without the dashes */
    char               letter; /* 0: none */
    opt_kind           kind;
    void              *dest;
    const char        *arg;  /* the value's name in --help */
    const char        *help; /* one line */
    double             min, max;
    const char *const *choices; /* NULL at the end */
    bool (*parse)(void *dest, const char *value, err *e);
    bool       *given;    /* set when the user gave it; may be NULL */
    const char *variable; /* environment variable, if not derived from the name */
} option;

typedef struct {
    const char   *command, *usage, *about;
    const option *opts;
    size_t        n;
} opt_spec;

/* Parses the flags. On success the positional arguments are args[0 .. *n_args - 1]. On false the process should end
 * with *code: 0 after --help, 2 after an error message. */
bool opt_parse(const opt_spec *spec, int argc, char **args, int *n_args, int *code);
/* Prints a message about wrong usage to stderr. Returns 2. */
int opt_usage(const opt_spec *spec, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Flags that every command has: --log-level, --log-json. */
#define OPT_LOGGING OPT_LOGGING_FROM("warn")
#define OPT_LOGGING_FROM(level)                                                                                        \
    {.name    = "log-level",                                                                                           \
     .kind    = OPT_CHOICE,                                                                                            \
     .dest    = &opt_log_level,                                                                                        \
     .arg     = "LEVEL",                                                                                               \
     .choices = opt_log_levels,                                                                                        \
     .help    = "error, warn, info or debug (default " level ")"},                                                        \
    {                                                                                                                  \
        .name = "log-json", .kind = OPT_FLAG, .dest = &opt_log_json, .help = "log lines as JSON"                       \
    }
extern int               opt_log_level;
extern bool              opt_log_json;
extern const char *const opt_log_levels[];
#endif
