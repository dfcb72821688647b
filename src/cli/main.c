#include "cli/cli.h"
#include "decode/worker.h"
#include "model/family.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **args);
} commands[] = {
    {"serve", "serve a model over HTTP", cmd_serve},
    {"run", "answer one prompt", cmd_run},
    {"chat", "chat with a model", cmd_chat},
    {"daemon", "serve one program over standard input and output", cmd_daemon},
    {"logits", "write the logits of given token ids to a file", cmd_logits},
    {"draft", "write one draft after given token ids to a file", cmd_draft},
    {"tokenize", "convert text to token ids", cmd_tokenize},
    {"detokenize", "convert token ids to text", cmd_detokenize},
    {"bench", "measure prefill, decoding, steps and speculation", cmd_bench},
    {"loadtest", "measure a server under load", cmd_loadtest},
    {"inspect", "show the contents of a model file or directory", cmd_inspect},
    {"convert", "convert a Hugging Face directory to a GGUF file", cmd_convert},
    {"quantize", "convert a GGUF file to another type", cmd_quantize},
    {"key", "create an API key for the server", cmd_key},
};

static int print_help(FILE *f)
{
    buf titles;
    buf_init(&titles, 256);
    family_put_titles(&titles);
    fprintf(f, "tandem %s: runs %.*s models from GGUF files and Hugging Face directories\n\n", TANDEM_VERSION,
            STR_ARG(buf_str(&titles)));
    buf_deinit(&titles);
    fprintf(f, "usage: tandem COMMAND [FLAGS]\n\n");
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(f, "  %-12s %s\n", commands[i].name, commands[i].about);
    fprintf(f, "\nRun tandem COMMAND --help for the flags of a command, tandem --version for the version.\n");
    return f == stdout ? 0 : 2;
}

/* Handles SIGBUS: a model file shrank while it was mapped. Prints a message and ends the process. */
static void on_bus_error(int sig)
{
    static const char text[] = "tandem: a file became shorter while it was being read\n";
    ssize_t           n      = write(STDERR_FILENO, text, sizeof text - 1);
    (void)sig, (void)n;
    _exit(1);
}

/* Keeps 0, 1 and 2 from being reused for a file where they are closed. Reads of 0 and writes to 1 and 2 still fail. */
static void fill_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) return print_help(stderr);
    const char *name = argv[1];
    if (!strcmp(name, DECODE_WORKER_COMMAND))
        return decode_worker_main(argc - 2, argv + 2); /* started by this program */
    fill_descriptors();
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) return print_help(stdout);
    if (!strcmp(name, "--version")) return printf("tandem %s\n", TANDEM_VERSION) < 0;
    for (size_t i = 0; i < COUNT(commands); i++)
        if (!strcmp(name, commands[i].name)) return commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "tandem: unknown command '%s'. Commands:", name);
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(stderr, " %s", commands[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    err e = {0};
    sigaction(SIGBUS, &(struct sigaction){.sa_handler = on_bus_error}, NULL);
    int code = run_command(argc, argv);
    return cli_flush(&e) || code ? code : cli_fail(&e);
}
