/* cli/options.h - one table per command drives parsing, --help and the environment.
 *
 * Flag --top-k has the environment variable TANDEM_TOP_K, with the same checks; the command line overrides it. A
 * variable has the same meaning in all commands. An empty variable counts as unset. A TANDEM_ variable that the command
 * does not use is reported by a warning. Both `--flag value` and `--flag=value` work; `--` ends the flags. */
#ifndef TANDEM_CLI_OPTIONS_H
#define TANDEM_CLI_OPTIONS_H
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    OPT_FLAG,   /* bool; no value on the command line, in the environment 0 or 1 */
    OPT_SWITCH, /* bool; alone it is on, and 0, 1, on or off may follow */
    OPT_INT,    /* int */
    OPT_U64,    /* uint64_t */
    OPT_BYTES,  /* uint64_t, at least 1; 500000000, 500M, 2G: powers of 1000 */
    OPT_REAL,   /* float */
    OPT_STR,    /* const char * */
    OPT_CHOICE, /* int: index into choices */
    OPT_LIST,   /* opt_list: may be given several times */
    OPT_PARSED, /* written by the option's `parse` */
} opt_kind;

enum { OPT_LIST_MAX = 64 };
typedef struct {
    const char *item[OPT_LIST_MAX]; /* borrowed from the arguments or the environment */
    int         n;
    bool        from_environment; /* one item, which the first one on the command line replaces */
} opt_list;

typedef struct {
    const char *name;   /* without the dashes */
    char        letter; /* 0: none */
    opt_kind    kind;
    void *dest; /* a variable of the type of the kind; holds the default, and is changed only if the user gave it */
    const char        *arg;                               /* the value's name in --help */
    const char        *help;                              /* one line */
    double             min, max;                          /* OPT_INT, OPT_REAL: inclusive, always checked */
    const char *const *choices;                           /* OPT_CHOICE: names, NULL at the end */
    bool (*parse)(void *dest, const char *value, err *e); /* OPT_PARSED */
    bool       *given;    /* set to true when the user gave it, also in the environment; may be NULL */
    const char *variable; /* environment variable without "TANDEM_"; NULL: derived from the name */
} option;

typedef struct {
    const char   *command, *usage, *about; /* its name; its line and its text in --help */
    const option *opts;
    size_t        n;
} opt_spec;

/* Parses the environment and the flags, and sets up the log. Strings are borrowed. On success the positional arguments
 * are moved to args[0 .. *n_args - 1]. On false the process should end with *code: 0 after --help or --version, 2 after
 * an error message. */
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
extern int               opt_log_level;    /* log_level; a command may change it before opt_parse: the default */
extern bool              opt_log_json;     /* log lines are JSON */
extern const char *const opt_log_levels[]; /* names by log_level, then NULL */
#endif
