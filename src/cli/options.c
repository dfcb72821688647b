#include "cli/options.h"

#include "base/log.h"
#include "base/str.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int               opt_log_level    = LOG_WARN;
bool              opt_log_json     = false;
const char *const opt_log_levels[] = {"error", "warn", "info", "debug", NULL};

int opt_usage(const opt_spec *spec, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "tandem %s: ", spec->command);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nSee: tandem %s --help\n", spec->command);
    return 2;
}

static void env_name(const option *o, char out[64])
{
    int n = snprintf(out, 64, "TANDEM_%s", o->variable ? o->variable : o->name);
    if (o->variable) return;
    for (int i = 7; i < n; i++) out[i] = o->name[i - 7] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static int print_help(const opt_spec *spec)
{
    printf("usage: tandem %s\n\n%s\n\n", spec->usage, spec->about);
    for (size_t i = 0; i < spec->n; i++) {
        const option *o = &spec->opts[i];
        char          column[64], letter[8] = "    ", env[64];
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(column, sizeof column, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        env_name(o, env);
        printf("  %-28s %s [%s]\n", column, o->help, env);
    }
    printf("  %-28s %s\n", "    --help", "this text");
    return 0;
}

/* --- values -------------------------------------------------------------------------------------*/
/* Sets an option. `from`: the flag or variable as the user wrote it, for messages. */
static bool bad_value(const opt_spec *spec, const option *o, const char *from, const char *value)
{
    if (o->kind == OPT_CHOICE) {
        char list[256] = "";
        for (int i = 0; o->choices[i]; i++) {
            size_t n = strlen(list);
            snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", o->choices[i]);
        }
        opt_usage(spec, "%s: '%s' is not one of: %s", from, value, list);
    } else if (o->kind == OPT_LIST) {
        opt_usage(spec, "%s: the list has more than %d entries", from, OPT_LIST_MAX);
    } else if (o->kind == OPT_FLAG) {
        opt_usage(spec, "%s: '%s' is neither 0 nor 1", from, value);
    } else if (o->kind == OPT_SWITCH) {
        opt_usage(spec, "%s: '%s' is neither on nor off", from, value);
    } else if (o->kind == OPT_U64) {
        opt_usage(spec, "%s: '%s' is not a whole number from 0 to 2^64 - 1", from, value);
    } else if (o->kind == OPT_BYTES) {
        opt_usage(spec, "%s: '%s' is not a number of bytes such as 500000000, 500M or 2G", from, value);
    } else {
        opt_usage(spec, "%s: '%s' is not a %s from %.15g to %.15g", from, value,
                  o->kind == OPT_INT ? "whole number" : "number", o->min, o->max);
    }
    return false;
}

static bool parse_bytes(str s, uint64_t *out)
{
    static const char units[] = "KMG";
    uint64_t          unit    = 1;
    const char       *at      = s.n ? memchr(units, toupper((unsigned char)s.s[s.n - 1]), 3) : NULL;
    for (const char *u = units; at && u <= at; u++) unit *= 1000;
    uint64_t n;
    if (!str_to_u64((str){s.s, s.n - (at != NULL)}, &n)) return false;
    return n > 0 && !__builtin_mul_overflow(n, unit, out);
}

static bool parse_number(const option *o, str s)
{
    int64_t i;
    double  d;
    if (o->kind == OPT_U64) return str_to_u64(s, o->dest);
    if (o->kind == OPT_BYTES) return parse_bytes(s, o->dest);
    if (o->kind == OPT_INT) {
        if (!str_to_i64(s, &i) || (double)i < o->min || (double)i > o->max) return false;
        *(int *)o->dest = (int)i;
        return true;
    }
    if (!str_to_f64(s, &d) || d < o->min || d > o->max) return false;
    *(float *)o->dest = (float)d;
    return true;
}

static bool parse_choice(const option *o, const char *value)
{
    for (int i = 0; o->choices[i]; i++)
        if (!strcmp(value, o->choices[i])) {
            *(int *)o->dest = i;
            return true;
        }
    return false;
}

static bool add_item(opt_list *list, const char *value)
{
    if (list->from_environment) *list = (opt_list){0};
    if (list->n == OPT_LIST_MAX) return false;
    list->item[list->n++] = value;
    return true;
}

/* -1: neither */
static int switch_of(const char *value)
{
    if (!strcmp(value, "1") || !strcmp(value, "on")) return 1;
    return !strcmp(value, "0") || !strcmp(value, "off") ? 0 : -1;
}

static bool set_value(const opt_spec *spec, const option *o, const char *from, const char *value)
{
    bool ok  = true;
    err  why = {0};
    switch (o->kind) {
    case OPT_FLAG:
        ok               = !strcmp(value, "0") || !strcmp(value, "1");
        *(bool *)o->dest = !strcmp(value, "1");
        break;
    case OPT_SWITCH:
        ok               = switch_of(value) >= 0;
        *(bool *)o->dest = switch_of(value) == 1;
        break;
    case OPT_STR: *(const char **)o->dest = value; break;
    case OPT_CHOICE: ok = parse_choice(o, value); break;
    case OPT_LIST: ok = add_item(o->dest, value); break;
    case OPT_PARSED: ok = o->parse(o->dest, value, &why); break;
    default: ok = parse_number(o, str_of(value)); break;
    }
    if (!ok && why.code) return opt_usage(spec, "%s: %s", from, why.text), false;
    if (!ok) return bad_value(spec, o, from, value);
    if (o->given) *o->given = true;
    return true;
}

static bool read_environment(const opt_spec *spec)
{
    for (size_t i = 0; i < spec->n; i++) {
        char name[64];
        env_name(&spec->opts[i], name);
        const char *value = getenv(name);
        if (!value || !*value) continue;
        if (!set_value(spec, &spec->opts[i], name, value)) return false;
        if (spec->opts[i].kind == OPT_LIST) ((opt_list *)spec->opts[i].dest)->from_environment = true;
    }
    return true;
}

/* --- variables that a command does not use -------------------------------------------------------*/
/* Returns the number of characters to insert, remove or replace to get from a to b. Compares at most 63 characters. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[64], n = strnlen(b, 63);
    for (size_t k = 0; k <= n; k++) row[k] = k;
    for (size_t i = 0; i < 63 && a[i]; i++) {
        size_t diagonal = row[0];
        row[0]          = i + 1;
        for (size_t k = 0; k < n; k++) {
            size_t replaced = diagonal + (a[i] != b[k]), other = (row[k] < row[k + 1] ? row[k] : row[k + 1]) + 1;
            diagonal   = row[k + 1];
            row[k + 1] = replaced < other ? replaced : other;
        }
    }
    return row[n];
}

/* Writes the name of the command's variable that is most like `name`. Returns whether they are the same. */
static bool nearest_variable(const opt_spec *spec, const char *name, char out[64])
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < spec->n; i++) {
        char known[64];
        env_name(&spec->opts[i], known);
        size_t distance = edit_distance(name, known);
        if (distance >= best) continue;
        best = distance;
        memcpy(out, known, sizeof known);
    }
    return best == 0;
}

static void report_unused_variables(const opt_spec *spec)
{
    for (char **at = environ; *at; at++) {
        char        name[64], nearest[64] = "";
        const char *equals = strchr(*at, '=');
        if (strncmp(*at, "TANDEM_", 7) != 0 || !equals || !equals[1]) continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - *at), *at);
        if (!nearest_variable(spec, name, nearest))
            log_event(LOG_WARN, "environment", "tandem %s does not use %s; the nearest variable that it uses is %s",
                      spec->command, name, nearest);
    }
}

/* --- the command line ---------------------------------------------------------------------------*/
static const option *find_long(const opt_spec *spec, str name)
{
    for (size_t i = 0; i < spec->n; i++)
        if (str_is(name, spec->opts[i].name)) return &spec->opts[i];
    return NULL;
}

static const option *find_letter(const opt_spec *spec, char letter)
{
    for (size_t i = 0; i < spec->n; i++)
        if (spec->opts[i].letter == letter) return &spec->opts[i];
    return NULL;
}

/* Parses the flag at args[*at] and its value. Moves *at to its last word. */
static bool parse_flag(const opt_spec *spec, int argc, char **args, int *at)
{
    const char *word = args[*at], *equals = NULL;
    bool        is_long = word[1] == '-';
    str         name    = str_of(word + (is_long ? 2 : 1));
    if (is_long && (equals = strchr(word, '='))) name.n = (size_t)(equals - name.s);
    const option *o = is_long ? find_long(spec, name) : name.n == 1 ? find_letter(spec, word[1]) : NULL;
    char          from[64];
    snprintf(from, sizeof from, "%s%.*s", is_long ? "--" : "-", STR_ARG(name));
    if (!o) return opt_usage(spec, "unknown flag %s", from), false;
    if (o->kind == OPT_FLAG) {
        if (equals) return opt_usage(spec, "%s takes no value", from), false;
        return set_value(spec, o, from, "1");
    }
    if (equals) return set_value(spec, o, from, equals + 1);
    if (o->kind == OPT_SWITCH && (*at + 1 >= argc || switch_of(args[*at + 1]) < 0))
        return set_value(spec, o, from, "1");
    if (*at + 1 >= argc) return opt_usage(spec, "%s needs a value: %s", from, o->arg), false;
    return set_value(spec, o, from, args[++*at]);
}

bool opt_parse(const opt_spec *spec, int argc, char **args, int *n_args, int *code)
{
    bool flags = true;
    *n_args    = 0;
    *code      = 2;
    for (int i = 0; i < argc && strcmp(args[i], "--"); i++)
        if (!strcmp(args[i], "--help") || !strcmp(args[i], "-h")) {
            *code = print_help(spec);
            return false;
        } else if (!strcmp(args[i], "--version")) {
            *code = printf("tandem %s\n", TANDEM_VERSION) < 0;
            return false;
        }
    if (!read_environment(spec)) return false;
    for (int i = 0; i < argc; i++) {
        if (flags && !strcmp(args[i], "--"))
            flags = false;
        else if (!flags || args[i][0] != '-' || !args[i][1])
            args[(*n_args)++] = args[i];
        else if (!parse_flag(spec, argc, args, &i))
            return false;
    }
    log_setup((log_level)opt_log_level, opt_log_json);
    report_unused_variables(spec);
    return true;
}
