#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "gguf/recode.h"

#include <stdio.h>

static struct {
    int      n_threads;
    uint64_t split_bytes;
} flags;

static const option opts[] = {
    OPT_THREADS(flags.n_threads),
    OPT_SPLIT(flags.split_bytes),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "quantize", "quantize IN.gguf OUT.gguf TYPE [FLAGS]",
    "Writes the model with its matrices as TYPE: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k "
    "q6_k iq4_nl iq4_xs mxfp4.",
    opts, COUNT(opts)};

static bool quantize(char **args, quant_type want, err *e)
{
    progress_bar   bar;
    size_t         n_lossy;
    recode_options opt = {.n_threads    = cli_threads(flags.n_threads),
                          .progress     = progress_show,
                          .progress_ctx = &bar,
                          .part_bytes   = flags.split_bytes,
                          .stop         = &cli_stop};
    cli_catch_stop();
    progress_start(&bar, "quantizing");
    bool ok = recode_file(args[0], args[1], want, &opt, &n_lossy, e);
    progress_end(&bar);
    if (!ok) cli_end_stopped();
    if (ok && n_lossy && !quant_is_float(want))
        log_event(LOG_WARN, "quantize",
                  "%zu tensors were quantised before: quantising again loses more than from the "
                  "original",
                  n_lossy);
    return ok;
}

int cmd_quantize(int argc, char **args)
{
    int        n_args, code;
    err        e = {0};
    quant_type want;
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args < 3) return opt_usage(&usage, "expected three arguments: a file to read, a file to write and a type");
    if (n_args > 3) return opt_usage(&usage, "unexpected argument '%s'", args[3]);
    if (!quant_parse(args[2], &want) || !quant_can_quantise(want))
        return opt_usage(&usage, "'%s' is not a type that can be written", args[2]);
    return quantize(args, want, &e) ? 0 : cli_fail(&e);
}
