#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

int cli_fail(const err *e)
{
    static const char own[] = "/proc/self/fd/"; /* here lie the parts of built-in models: their names are shown */
    const char       *at    = strstr(e->text, own);
    char              path[32];
    if (at) {
        size_t n = sizeof own - 1 + strspn(at + sizeof own - 1, "0123456789");
        snprintf(path, sizeof path, "%.*s", (int)n, at);
        fprintf(stderr, "tandem: %.*s%s%s\n", (int)(at - e->text), e->text, cli_path_name(path), at + strlen(path));
    } else {
        fprintf(stderr, "tandem: %s\n", e->text);
    }
    return 1;
}

void cli_print(str s)
{
    if (s.n) fwrite(s.s, 1, s.n, stdout);
}

bool cli_flush(err *e)
{
    return (fflush(stdout) == 0 && !ferror(stdout)) ||
           err_set(e, ERR_IO, "cannot write to standard output: %s", strerror(errno));
}

static bool read_stdin(buf *out, err *e)
{
    char    chunk[65536];
    ssize_t n;
    if (isatty(STDIN_FILENO)) fprintf(stderr, "Type the text; Ctrl-D on a line of its own ends it.\n");
    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(e, ERR_IO, "cannot read standard input: %s", strerror(errno));
        if (!buf_put(out, chunk, (size_t)n))
            return err_set(e, ERR_TOO_LARGE, "standard input is larger than %zu MiB", out->max >> 20);
    }
    return true;
}

bool cli_input(buf *out, int n_args, char **args, err *e)
{
    if (n_args == 0) return read_stdin(out, e);
    for (int i = 0; i < n_args; i++) {
        if (i) buf_putc(out, ' ');
        buf_puts(out, args[i]);
    }
    return !out->failed || err_set(e, ERR_TOO_LARGE, "the arguments are too long");
}

static bool is_separator(char c) { return c == ' ' || c == ',' || c == '\t' || c == '\n' || c == '\r'; }

bool cli_parse_ids(tok_ids *out, str text, int32_t n_vocab, err *e)
{
    for (size_t i = 0; i < text.n;) {
        if (is_separator(text.s[i])) {
            i++;
            continue;
        }
        size_t  from = i;
        int64_t id;
        while (i < text.n && !is_separator(text.s[i])) i++;
        str word = {text.s + from, i - from};
        if (!str_to_i64(word, &id) || id < 0 || id > INT32_MAX)
            return err_set(e, ERR_INPUT, "'%.*s' is not a token id", STR_ARG(word));
        if (n_vocab && id >= n_vocab)
            return err_set(e, ERR_INPUT, "token id %lld is not in the vocabulary of %d", (long long)id, n_vocab);
        if (!tok_ids_put(out, (int32_t)id)) return err_set(e, ERR_TOO_LARGE, "too many token ids");
    }
    return true;
}

int cli_threads(int asked)
{
    int max = cpu_allowed();
    if (asked <= max) return asked;
    log_event(LOG_INFO, "threads", "%d threads are requested, but there are only %d processors", asked, max);
    return max;
}

bool cli_check_output(const char *path, err *e)
{
    char        dir[4096];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return access(dir, W_OK) == 0 || err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

/* --- signals ------------------------------------------------------------------------------------*/
volatile sig_atomic_t cli_stop;
static void           on_stop(int sig) { cli_stop = sig; }

void cli_catch_stop(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act       = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    for (size_t i = 0; i < COUNT(signals); i++) /* ignored ones stay ignored, as nohup wants */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &act, NULL);
}

void cli_end_stopped(void)
{
    if (!cli_stop) return;
    signal(cli_stop, SIG_DFL);
    raise(cli_stop);
}

/* --- progress -----------------------------------------------------------------------------------*/
void progress_start(progress_bar *b, const char *what)
{
    *b = (progress_bar){.what = what, .start = clock_s(), .quiet = !isatty(STDERR_FILENO)};
}

void progress_show(void *bar, size_t done, size_t total)
{
    progress_bar *b   = bar;
    double        now = clock_s(), passed = now - b->start;
    if (b->quiet || passed < 1 || now - b->shown < 0.1) return;
    double part = total ? (double)done / (double)total : 1, rate = (double)done / passed;
    double left      = rate > 0 ? (double)(total - done) / rate : 0;
    char   speed[32] = "";
    b->shown         = now;
    if (!b->no_bytes) snprintf(speed, sizeof speed, "%.0f MB/s, ", rate / 1e6);
    char line[41];
    for (int i = 0; i < 40; i++) line[i] = i < (int)(part * 40) ? '#' : '.';
    line[40] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f%%  %s%.0f s left ", b->what, line, part * 100, speed, left);
    b->open = true;
}

void progress_end(progress_bar *b)
{
    if (b->open) fprintf(stderr, "\r%80s\r", "");
    b->open = false;
}
