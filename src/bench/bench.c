/* tandem bench: offline measurements, by the name of what is measured. */
#include "bench/bench.h"

#include "cli/cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **args);
} parts[] = {{"rows", bench_rows}, {"spec", bench_spec}};

static const opt_spec usage = {"bench", "bench rows|spec [FLAGS]",
                               "Measures; see bench rows --help, bench spec --help.", NULL, 0};

int cmd_bench(int argc, char **args)
{
    int n_args, code;
    for (size_t i = 0; argc > 0 && i < COUNT(parts); i++)
        if (!strcmp(args[0], parts[i].name)) return parts[i].run(argc - 1, args + 1);
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    return opt_usage(&usage, "bench what? There are: bench rows, bench spec");
}
