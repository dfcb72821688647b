/* tandem bench shape: writes a generated model to a file, for other programs. */
#include "bench/bench.h"
#include "bench/flags.h"

#include <stdio.h>

static struct {
    shape_flags shape;
    const char *path, *draft_path, *mtp_path;
} flags = {.shape = SHAPE_DEFAULTS};

static const option opts[] = {
    OPT_SHAPE(flags.shape),
    {.name   = "output",
     .letter = 'o',
     .kind   = OPT_STR,
     .dest   = &flags.path,
     .arg    = "FILE",
     .help   = "GGUF file to write"},
    {.name = "draft-out",
     .kind = OPT_STR,
     .dest = &flags.draft_path,
     .arg  = "FILE",
     .help = "GGUF file of its DFlash drafter to write"},
    {.name = "mtp-out",
     .kind = OPT_STR,
     .dest = &flags.mtp_path,
     .arg  = "FILE",
     .help = "GGUF file of its MTP drafter, Gemma's assistant, to write"},
    {.name = "tokenizer",
     .kind = OPT_STR,
     .dest = &flags.shape.spec.tokenizer,
     .arg  = "PATH",
     .help = "GGUF file, Hugging Face directory, tokenizer.json, nano, nano-qwen or nano-vision, whose tokenizer and "
             "chat template "
             "it gets"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench shape", "bench shape --shape SHAPE -o FILE.gguf [--draft-out FILE.gguf] [--mtp-out FILE.gguf] [FLAGS]",
    "Writes a model of random weights: the same file for this program and for others.", opts, COUNT(opts)};

typedef bool shape_maker(shape_image *out, const shape_spec *s, err *e);

static bool write_one(const char *path, shape_maker *make, err *e)
{
    shape_image image = {0};
    bool        ok    = make(&image, &flags.shape.spec, e) && shape_write(&image, path, &cli_stop, e);
    if (ok) printf("%s: %s, %.2f GB\n", path, image.name, (double)image.bytes.n / 1e9);
    shape_free(&image);
    return ok;
}

int bench_shape(int argc, char **args)
{
    int n_args, code;
    err e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args) return opt_usage(&usage, "'%s' is not a flag", args[0]);
    if (!flags.shape.given) return opt_usage(&usage, "--shape is missing");
    const struct {
        const char  *path;
        shape_maker *make;
    } files[] = {{flags.path, shape_target}, {flags.draft_path, shape_drafter}, {flags.mtp_path, shape_assistant}};
    if (!flags.path && !flags.draft_path && !flags.mtp_path) return opt_usage(&usage, "-o is missing");
    for (size_t i = 0; i < COUNT(files); i++)
        if (files[i].path && !cli_check_output(files[i].path, &e)) return cli_fail(&e);
    if (flags.shape.spec.tokenizer && !cli_resolve_model(&flags.shape.spec.tokenizer, &e)) return cli_fail(&e);
    cli_catch_stop();
    for (size_t i = 0; i < COUNT(files); i++)
        if (files[i].path && !write_one(files[i].path, files[i].make, &e)) {
            cli_end_stopped();
            return cli_fail(&e);
        }
    return cli_flush(&e) ? 0 : cli_fail(&e);
}
