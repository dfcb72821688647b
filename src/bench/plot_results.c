/* tandem bench plot: results of the other parts as SVG. */
#include "base/file.h"
#include "bench/bench.h"
#include "cli/cli.h"
#include "figures/plot.h"
#include "figures/result.h"

#include <stdio.h>

static struct {
    const char *out, *title, *metric;
} flags = {.title = ""};

static const option opts[] = {
    {.name = "output", .letter = 'o', .kind = OPT_STR, .dest = &flags.out, .arg = "FILE", .help = "SVG file to write"},
    {.name = "title", .kind = OPT_STR, .dest = &flags.title, .arg = "TEXT", .help = "title of the plot"},
    {.name = "metric",
     .kind = OPT_STR,
     .dest = &flags.metric,
     .arg  = "NAME",
     .help = "of a table: gen_tps (default), wall_tg_tps, pp_tps, ttft_ms, tpot_ms, e2e_ms, peak_bytes ...; of bench "
             "spec: ratio; of loadtest: tok_s, ttft_ms, tpot_ms, itl_ms, e2e_ms, and _mean, _p99 of times"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench plot", "bench plot RESULT.json... -o OUT.svg",
    "Draws results that the other parts and loadtest wrote with --json: curves over the rows or the users, bars by\n"
    "context size, or of bench spec --accept bars by what is accepted.",
    opts, COUNT(opts)};

static bool add_files(plot *p, int n, char **paths, err *e)
{
    for (int i = 0; i < n; i++) {
        file_map m = {0};
        if (!file_map_open(&m, paths[i], e)) return false;
        bool ok = plot_add(p, (str){m.p, m.n}, flags.metric, e);
        file_map_close(&m);
        if (!ok) return err_wrap(e, "%s", paths[i]);
    }
    return true;
}

int bench_plot(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    buf out;
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (!n_args) return opt_usage(&usage, "no results given: name files that bench wrote with --json");
    if (!flags.out) return opt_usage(&usage, "-o FILE is missing");
    plot *p = xnew(plot);
    buf_init(&out, (size_t)16 << 20);
    snprintf(p->title, sizeof p->title, "%s", flags.title);
    bool ok = add_files(p, n_args, args, &e) && plot_svg(p, &out, &e) && result_write(flags.out, buf_str(&out), &e);
    buf_deinit(&out);
    mem_free(p);
    return ok ? 0 : cli_fail(&e);
}
