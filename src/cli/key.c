#include "cli/cli.h"
#include "server/keys.h"

#include <stdio.h>

static struct {
    const char *file;
} flags;

static const option key_opts[] = {
    {.name = "file", .kind = OPT_STR, .dest = &flags.file, .arg = "FILE", .help = "append the key's line to this file"},
    OPT_LOGGING,
};
static const opt_spec key_spec = {
    "key", "key [--file FILE] [NAME]",
    "Makes a new API key and prints it; with --file its hash, and the NAME, go to a file for tandem serve.", key_opts,
    COUNT(key_opts)};

int cmd_key(int argc, char **args)
{
    char key[KEY_MAX];
    err  e = {0};
    buf  line;
    int  n_args, code;
    if (!opt_parse(&key_spec, argc, args, &n_args, &code)) return code;
    if (n_args > 1) return opt_usage(&key_spec, "unexpected argument '%s'", args[1]);
    buf_init(&line, 1024);
    bool ok = key_make(key, &line, n_args ? args[0] : NULL, &e) &&
              (!flags.file || key_append(flags.file, buf_str(&line), &e));
    if (ok) printf("%s\n", key);
    if (ok && !flags.file) cli_print(buf_str(&line));
    buf_deinit(&line);
    return ok ? 0 : cli_fail(&e);
}
