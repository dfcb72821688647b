#include "model/convert.h"

#include "base/file.h"
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>

static struct {
    const char *out, *type, *tokenizer;
    int         n_threads;
    uint64_t    split_bytes;
} flags;

static const option opts[] = {
    {.name = "output", .letter = 'o', .kind = OPT_STR, .dest = &flags.out, .arg = "FILE", .help = "GGUF file to write"},
    {.name = "type",
     .kind = OPT_STR,
     .dest = &flags.type,
     .arg  = "TYPE",
     .help = "f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 (default: as stored)"},
    {.name = "tokenizer",
     .kind = OPT_STR,
     .dest = &flags.tokenizer,
     .arg  = "PATH",
     .help = "tokenizer.json, or the directory of one, for a drafter that has none of its own"},
    OPT_THREADS(flags.n_threads),
    OPT_SPLIT(flags.split_bytes),
    OPT_LOGGING,
};
static const opt_spec usage = {"convert", "convert DIR -o OUT.gguf [FLAGS]",
                               "Writes a text model, its assistant or a DFlash drafter as a GGUF file that "
                               "llama.cpp loads too.",
                               opts, COUNT(opts)};

static bool convert(const char *dir, convert_options *opt, err *e)
{
    progress_bar bar;
    char         path[PATH_MAX];
    opt->tokenizer = flags.tokenizer;
    if (flags.tokenizer && file_is_dir(flags.tokenizer)) {
        if (!file_join(path, sizeof path, flags.tokenizer, "tokenizer.json"))
            return err_set(e, ERR_INPUT, "the path is too long");
        opt->tokenizer = path;
    }
    opt->recode = (recode_options){.n_threads    = cli_threads(flags.n_threads),
                                   .progress     = progress_show,
                                   .progress_ctx = &bar,
                                   .part_bytes   = flags.split_bytes,
                                   .stop         = &cli_stop};
    cli_catch_stop();
    progress_start(&bar, "converting");
    bool ok = convert_dir(dir, flags.out, opt, e);
    progress_end(&bar);
    if (!ok) cli_end_stopped();
    return ok;
}

int cmd_convert(int argc, char **args)
{
    int             n_args, code;
    err             e   = {0};
    convert_options opt = {.as_stored = true};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (!n_args) return opt_usage(&usage, "which directory?");
    if (n_args > 1) return opt_usage(&usage, "unexpected argument '%s'", args[1]);
    if (!flags.out) return opt_usage(&usage, "-o OUT.gguf is missing");
    if (flags.type && (!quant_parse(flags.type, &opt.type) || !quant_can_quantise(opt.type)))
        return opt_usage(&usage, "--type: '%s' is not a type that can be written", flags.type);
    opt.as_stored = !flags.type;
    return convert(args[0], &opt, &e) ? 0 : cli_fail(&e);
}
