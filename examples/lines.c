/* Continues each line of standard input. All lines run at the same time; a line is printed as soon as it is complete.
 *
 *   cc examples/lines.c $(pkg-config --cflags --libs tandem) -o lines
 *   printf 'Once upon a time\nThe answer is\n' | ./lines MODEL
 *
 * It shows an event loop: the engine wakes it through an eventfd, and it polls tokens without blocking. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tandem.h"

enum { MAX_LINES = 64, MAX_LINE = 4096, MAX_TOKENS = 512 };

typedef struct {
    char        prompt[MAX_LINE];
    tandem_job *job;
    int32_t     ids[MAX_TOKENS];
    size_t      n;
} line;

static int fail(const char *what, const tandem_error *e)
{
    fprintf(stderr, "lines: %s: %s\n", what, e->text);
    return 1;
}

/* Called on the engine thread. */
static void wake_loop(void *ctx)
{
    uint64_t one = 1;
    if (write(*(int *)ctx, &one, sizeof one) < 0) return; /* the counter is full: the loop is awake */
}

/* Submits the line as a prompt of its own, with at most 32 tokens to follow. */
static bool submit_line(tandem *t, line *l, tandem_error *e)
{
    tandem_request r;
    tandem_ids     ids;
    if (!tandem_tokenize(t, l->prompt, strlen(l->prompt), false, &ids, e)) return false;
    tandem_request_init(t, &r);
    r.ids   = ids.p;
    r.n_ids = ids.n;
    r.temp  = 0;
    bool ok = tandem_submit(t, &r, &l->job, e);
    tandem_ids_free(&ids);
    return ok;
}

/* Takes the tokens that are there. Returns true when the line is complete; then it is printed. */
static bool poll_line(tandem *t, line *l)
{
    const tandem_result *done = tandem_job_result(l->job); /* asked first: tokens may come in between */
    tandem_token         token[16];
    size_t               n;
    while ((n = tandem_poll(l->job, token, 16)) > 0)
        for (size_t i = 0; i < n; i++)
            if (!token[i].is_stop && l->n < MAX_TOKENS) l->ids[l->n++] = token[i].id;
    if (!done) return false;
    char text[MAX_LINE];
    tandem_detokenize(t, l->ids, l->n, false, text, sizeof text);
    for (char *c = text; (c = strchr(c, '\n'));) *c = ' '; /* one line per prompt */
    printf("%s|%s [%s]\n", l->prompt, text, tandem_finish_name(done->finish));
    tandem_release(l->job);
    l->job = NULL;
    return true;
}

static int read_lines(line *all)
{
    int n = 0;
    while (n < MAX_LINES && fgets(all[n].prompt, sizeof all[n].prompt, stdin)) {
        all[n].prompt[strcspn(all[n].prompt, "\n")] = 0;
        n += all[n].prompt[0] != 0;
    }
    return n;
}

/* Runs the event loop until all lines are printed. */
static void run_loop(tandem *t, line *all, int n, int wake)
{
    for (int n_left = n; n_left > 0;) {
        struct pollfd p = {.fd = wake, .events = POLLIN};
        uint64_t      count;
        if (poll(&p, 1, -1) == 1 && read(wake, &count, sizeof count) < 0) return;
        for (int i = 0; i < n; i++)
            if (all[i].job) n_left -= poll_line(t, &all[i]);
    }
}

int main(int argc, char **argv)
{
    tandem        *t;
    tandem_options o;
    tandem_error   e    = {0};
    int            wake = eventfd(0, 0);
    line          *all  = calloc(MAX_LINES, sizeof *all);
    if (argc != 2 || wake < 0 || !all) {
        fprintf(stderr, "usage: lines MODEL < PROMPTS\n");
        return 2;
    }
    int n = read_lines(all);
    tandem_options_init(&o);
    o.path      = argv[1];
    o.n_ctx     = 512;
    o.max_lanes = 8;
    o.wake      = wake_loop;
    o.wake_ctx  = &wake;
    if (!tandem_open(&t, &o, &e)) return fail(argv[1], &e);
    bool ok = tandem_set(t, "default_max_tokens", "32", &e);
    for (int i = 0; ok && i < n; i++) ok = submit_line(t, &all[i], &e);
    if (ok) run_loop(t, all, n, wake);
    for (int i = 0; i < n; i++) tandem_release(all[i].job);
    tandem_close(t);
    free(all);
    return ok ? 0 : fail("no answer", &e);
}
