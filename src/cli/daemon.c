#include "daemon/daemon.h"
#include "cli/service.h"

#include <errno.h>
#include <ftw.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    service_flags service;
    int           queue;
    /* --lines */
    bool        lines, tree, no_chain_seed, daemon, fast_rollback;
    const char *banner;
    int         stream_fd, tree_budget;
    float       tree_temp;
} flags = {.service = SERVICE_DEFAULTS, .queue = 64, .stream_fd = -1};

static const option opts[] = {
    OPT_SERVICE(flags.service),
    {.name = "queue",
     .kind = OPT_INT,
     .dest = &flags.queue,
     .arg  = "N",
     .min  = 0,
     .max  = 4096,
     .help = "requests that wait for a lane; more are refused as busy (default 64)"},
    {.name = "lines",
     .kind = OPT_FLAG,
     .dest = &flags.lines,
     .help = "speak lucebox's line protocol; the model and its drafter may be given as arguments"},
    {.name = "stream-fd",
     .kind = OPT_INT,
     .dest = &flags.stream_fd,
     .arg  = "N",
     .min  = 0,
     .max  = 1 << 20,
     .help = "--lines: descriptor for token ids as int32"},
    {.name = "banner",
     .kind = OPT_STR,
     .dest = &flags.banner,
     .arg  = "NAME",
     .help = "--lines: word before -daemon in the first line (default: the family of the model)"},
    {.name = "ddtree", .kind = OPT_FLAG, .dest = &flags.tree, .help = "--lines: draft trees"},
    {.name = "ddtree-budget",
     .kind = OPT_INT,
     .dest = &flags.tree_budget,
     .arg  = "N",
     .min  = 1,
     .max  = TANDEM_MAX_DRAFT,
     .help = "--lines: maximum of draft tokens in a tree (default 22)"},
    {.name = "ddtree-temp",
     .kind = OPT_REAL,
     .dest = &flags.tree_temp,
     .arg  = "T",
     .min  = 0.001,
     .max  = 100,
     .help = "--lines: above 1: wider trees; below 1: deeper trees (default 1)"},
    {.name = "ddtree-no-chain-seed",
     .kind = OPT_FLAG,
     .dest = &flags.no_chain_seed,
     .help = "--lines: trees need not contain the likeliest chain"},
    {.name = "daemon", .kind = OPT_FLAG, .dest = &flags.daemon, .help = "--lines: accepted, has no effect"},
    {.name = "fast-rollback",
     .kind = OPT_FLAG,
     .dest = &flags.fast_rollback,
     .help = "--lines: accepted, has no effect"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "daemon", "daemon [-m MODEL] [FLAGS] [--lines [MODEL [DRAFTER]]]",
    "Serves one program over standard input and output: JSON lines, or with --lines an older protocol "
    "(docs/daemon.md).\n"
    "Standard output carries the protocol only. The end of the input lets running requests finish; SIGTERM ends them.",
    opts, COUNT(opts)};

static bool open_engine(void *ctx, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx, err *e)
{
    service_extra x = {.name = cli_id(flags.service.engine.path), .wake_ms = 2, .wake = wake, .wake_ctx = wake_ctx};
    (void)ctx;
    return service_open(out, &flags.service, &x, e);
}

/* Sets the engine's queue to what the daemon admits, unless --set has another value. */
static void set_queue(void)
{
    static char    text[16];
    service_flags *f = &flags.service;
    for (int i = 0; i < f->set.n; i++)
        if (!strcmp(f->given[i].name, "queue_max")) return;
    if (f->set.n == OPT_LIST_MAX) return;
    snprintf(text, sizeof text, "%d", flags.queue + TANDEM_MAX_LANES);
    f->given[f->set.n++] = (tandem_setting){"queue_max", text};
}

static int run_lines(daemon_io *io, const daemon_options *engine)
{
    daemon_lines_options o = {.engine = *engine, .stream_fd = flags.stream_fd, .banner = flags.banner};
    o.spec                 = generate_speculation(&flags.service.spec);
    if (flags.tree) o.spec.method = TANDEM_SPEC_TREE;
    if (flags.tree_budget) o.spec.tree_budget = flags.tree_budget;
    if (flags.tree_temp > 0) o.spec.tree_temp = flags.tree_temp;
    if (flags.no_chain_seed) o.spec.no_chain_seed = true;
    return daemon_run_lines(io, &o);
}

static int run_daemon(daemon_io *io)
{
    err            e = {0};
    daemon_options o = {.open = open_engine, .max_waiting = flags.queue};
    if (!cli_resolve_model(&flags.service.engine.path, &e)) return cli_fail(&e);
    return flags.lines ? run_lines(io, &o) : daemon_run(io, &o);
}

/* Takes the model and its drafter from the arguments. */
static int take_arguments(int n_args, char **args)
{
    opt_list *drafters = &flags.service.draft.paths;
    if (n_args && !flags.lines) return opt_usage(&usage, "unexpected argument '%s': use -m for the model", args[0]);
    if (n_args > 2) return opt_usage(&usage, "unexpected argument '%s'", args[2]);
    if (n_args) flags.service.engine.path = args[0];
    if (n_args == 2 && drafters->n == OPT_LIST_MAX) return opt_usage(&usage, "too many drafters");
    if (n_args == 2) drafters->item[drafters->n++] = args[1];
    if (flags.daemon || flags.fast_rollback)
        fprintf(stderr, "tandem: %s has no effect\n", flags.fast_rollback ? "--fast-rollback" : "--daemon");
    return 0;
}

/* --- snapshots without --session-dir ------------------------------------------------------------*/
static char private_dir[64];

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *where)
{
    (void)st, (void)flag, (void)where;
    return remove(path);
}

/* Makes a directory for the snapshots of this process. */
static bool make_private_dir(err *e)
{
    if (flags.service.session_dir) return true;
    snprintf(private_dir, sizeof private_dir, "/tmp/tandem-XXXXXX");
    if (!mkdtemp(private_dir)) {
        private_dir[0] = 0;
        return err_set(e, ERR_IO, "cannot create a directory for snapshots: %s", strerror(errno));
    }
    flags.service.session_dir = private_dir;
    return true;
}

static void remove_private_dir(void)
{
    if (private_dir[0]) nftw(private_dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int cmd_daemon(int argc, char **args)
{
    int       n_args, code;
    daemon_io io;
    err       e = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if ((code = take_arguments(n_args, args))) return code;
    if (!service_check(&flags.service, &usage)) return 2;
    set_queue();
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* fixed, so that large buffers are returned to the system when freed */
    signal(SIGPIPE, SIG_IGN);
    if (!make_private_dir(&e)) return cli_fail(&e);
    if (!daemon_io_init(&io, DAEMON_MAX_LINE, &e)) return cli_fail(&e);
    code = run_daemon(&io);
    remove_private_dir();
    daemon_io_deinit(&io);
    return code;
}
