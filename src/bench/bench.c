/* tandem bench: offline measurements, selected by the name of the part; the default is the table. */
#include "bench/bench.h"

#include "cli/cli.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **args);
} parts[] = {{"table", bench_table}, {"rows", bench_rows},  {"spec", bench_spec}, {"raw", bench_raw},
             {"lanes", bench_lanes}, {"plot", bench_plot},  {"kv", bench_kv},     {"pick", bench_pick},
             {"shape", bench_shape}, {"serve", bench_serve}};

int cmd_bench(int argc, char **args)
{
    for (size_t i = 0; argc > 0 && i < COUNT(parts); i++)
        if (!strcmp(args[0], parts[i].name)) return parts[i].run(argc - 1, args + 1);
    return bench_table(argc, args);
}
