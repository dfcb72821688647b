#include "base/file.h"
#include "base/log.h"
#include "cli/service.h"
#include "server/origin.h"
#include "server/server.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static struct {
    service_flags service;
    int           port, grace_s, hang_s;
    const char   *host, *unix_path, *tls_cert, *tls_key, *replica_id;
    const char   *api_key_file, *api_key, *admin_key_file;
    opt_list      allow_host, cors, alias;
    uint64_t      request_bytes, body_bytes; /* 0: not given */
    bool          no_ollama, media_fetch;
    const char   *media_dir;
} flags = {.service = SERVICE_DEFAULTS, .port = 8080, .host = "127.0.0.1", .grace_s = 30, .hang_s = 60};

static const option opts[] = {
    OPT_SERVICE(flags.service),
    {.name = "host",
     .kind = OPT_STR,
     .dest = &flags.host,
     .arg  = "ADDRESS",
     .help = "address to listen on; addresses other than loopback need --api-key-file (default 127.0.0.1)"},
    {.name = "port",
     .kind = OPT_INT,
     .dest = &flags.port,
     .arg  = "N",
     .min  = 0,
     .max  = 65535,
     .help = "port to listen on; 0: any that is free (default 8080)"},
    {.name = "unix",
     .kind = OPT_STR,
     .dest = &flags.unix_path,
     .arg  = "PATH",
     .help = "a unix socket to listen on in addition to the port; with --host '' instead of it"},
    {.name = "tls-cert",
     .kind = OPT_STR,
     .dest = &flags.tls_cert,
     .arg  = "FILE",
     .help = "certificate chain, PEM: HTTPS"},
    {.name = "tls-key", .kind = OPT_STR, .dest = &flags.tls_key, .arg = "FILE", .help = "its private key, PEM"},
    {.name = "cors",
     .kind = OPT_LIST,
     .dest = &flags.cors,
     .arg  = "ORIGIN",
     .help = "let pages of this origin call, such as https://example.org; localhost: this machine, any port; *: all; "
             "may be repeated (default: none)"},
    {.name = "alias",
     .kind = OPT_LIST,
     .dest = &flags.alias,
     .arg  = "NAME",
     .help = "the model's name in responses; further ones are listed in /v1/models"},
    {.name = "replica-id",
     .kind = OPT_STR,
     .dest = &flags.replica_id,
     .arg  = "NAME",
     .help = "X-Replica-Id of every reply; empty: none (default: this machine's name and the port)"},
    {.name = "grace",
     .kind = OPT_INT,
     .dest = &flags.grace_s,
     .arg  = "SECONDS",
     .min  = 0,
     .max  = 86400,
     .help = "grace period for running requests after SIGTERM; a second signal ends them (default 30)"},
    {.name = "api-key-file",
     .kind = OPT_STR,
     .dest = &flags.api_key_file,
     .arg  = "FILE",
     .help = "hashes of valid API keys (docs/operating.md); all endpoints except /health and /ui/ then need one"},
    {.name = "api-key", .kind = OPT_STR, .dest = &flags.api_key, .arg = "KEY", .help = "one API key as plain text"},
    {.name = "admin-key-file",
     .kind = OPT_STR,
     .dest = &flags.admin_key_file,
     .arg  = "FILE",
     .help = "the same for admin paths"},
    {.name = "allow-host",
     .kind = OPT_LIST,
     .dest = &flags.allow_host,
     .arg  = "NAME",
     .help = "valid values of Host, separated by commas, checked on admin paths and on a server without keys; *: any "
             "(default: localhost and numeric addresses)"},
    {.name = "request-memory",
     .kind = OPT_BYTES,
     .dest = &flags.request_bytes,
     .arg  = "BYTES",
     .help = "memory limit of all requests together, such as 500M; above it they get a 503 (default 1.07G, or an "
             "eighth of what the machine, the cgroup and ulimit -v leave)"},
    {.name = "body-memory",
     .kind = OPT_BYTES,
     .dest = &flags.body_bytes,
     .arg  = "BYTES",
     .help = "the same for the bodies of requests (default 268M, or a sixteenth)"},
    {.name = "slot-save-path",
     .kind = OPT_STR,
     .dest = &flags.service.session_dir,
     .arg  = "DIR",
     .help = "the same as --session-dir, as llama.cpp's server has it"},
    {.name = "no-ollama",
     .kind = OPT_FLAG,
     .dest = &flags.no_ollama,
     .help = "disable the endpoints of Ollama's API (docs/api.md)"},
    {.name = "media-fetch",
     .kind = OPT_FLAG,
     .dest = &flags.media_fetch,
     .help = "fetch images and videos that requests refer to by http and https, from public addresses only"},
    {.name = "media-dir",
     .kind = OPT_STR,
     .dest = &flags.media_dir,
     .arg  = "DIR",
     .help = "let requests refer to images and videos below this directory: file:///DIR/... (default: none)"},
    {.name = "watchdog",
     .kind = OPT_INT,
     .dest = &flags.hang_s,
     .arg  = "SECONDS",
     .min  = 0,
     .max  = 86400,
     .help = "time of a step after which /health reports a hang; 0: never (default 60)"},
    OPT_LOGGING_FROM("info"),
};
static const opt_spec usage = {
    "serve", "serve [-m MODEL] [FLAGS]",
    "Answers OpenAI's, Anthropic's and Ollama's clients over HTTP: chat completions with tools and thinking, text "
    "completions, streamed or whole.\n"
    "docs/api.md lists the endpoints. SIGTERM and Ctrl-C let running requests finish.",
    opts, COUNT(opts)};

/* --- the engine ---------------------------------------------------------------------------------*/
static checkpoint *first_files; /* checked at the start and lent to the first load; later loads open the files again */

/* Minimum time between chunks of a stream; tokens in between are sent together, because each chunk costs time. */
enum { WAKE_MS = 8 };

static bool open_engine(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                        err *e)
{
    engine_extra  lent = {.files = first_files, .need_tok = "the model has no tokenizer", .changed = changed};
    service_extra x    = {
           .name = flags.alias.item[0], .engine = lent, .wake_ms = WAKE_MS, .wake = wake, .wake_ctx = wake_ctx};
    bool ok = service_open(out, &flags.service, &x, e);
    (void)ctx;
    checkpoint_close(first_files);
    first_files = NULL;
    return ok;
}

/* --- the server ---------------------------------------------------------------------------------*/
static void print_ready(void *ctx, const http_server *h)
{
    const server_options *o      = ctx;
    const char           *scheme = o->http.tls_cert ? "https" : "http";
    bool                  v6     = o->http.host && strchr(o->http.host, ':');
    char                  url[128];
    if (o->http.host)
        snprintf(url, sizeof url, "%s://%s%s%s:%d", scheme, v6 ? "[" : "", o->http.host, v6 ? "]" : "", http_port(h));
    const char *where = o->http.host ? url : o->http.unix_path;
    if (opt_log_json) {
        log_event(LOG_INFO, "ready", "%s is served at %s", o->model, where);
        return;
    }
    fprintf(stderr, "tandem: %s is served at %s\n", o->model, where);
    if (!o->http.host) return;
    fprintf(stderr,
            "\n  %s/ui/    the dashboard\n"
            "  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d "
            "'{\"messages\":[{\"role\":\"user\",\"content\":\"What is 27 plus 58?\"}]}'\n\n",
            url, url, o->api_key || o->api_key_file ? " -H \"Authorization: Bearer $KEY\"" : "");
}

static int check_usage(int n_args, char **args)
{
    if (n_args) return opt_usage(&usage, "unexpected argument '%s': use -m for the model", args[0]);
    if (!service_check(&flags.service, &usage)) return 2;
    for (int i = 0; i < flags.allow_host.n; i++) {
        err e = {0};
        if (!origin_names_check(flags.allow_host.item[i], &e)) return opt_usage(&usage, "--allow-host: %s", e.text);
    }
    for (int i = 0; i < flags.cors.n; i++) {
        err e = {0};
        if (!origin_list_check(flags.cors.item[i], &e)) return opt_usage(&usage, "--cors: %s", e.text);
    }
    for (int i = 0; i < flags.alias.n; i++)
        if (!flags.alias.item[i][0]) return opt_usage(&usage, "--alias: the name is empty");
    if (!flags.tls_cert != !flags.tls_key) return opt_usage(&usage, "--tls-cert and --tls-key must be given together");
    if (flags.api_key && flags.api_key_file)
        return opt_usage(&usage, "--api-key and --api-key-file exclude each other");
    if (!flags.host[0] && !flags.unix_path) return opt_usage(&usage, "--host '' needs --unix: there is no address");
    if (flags.host[0] && !http_host_is_local(flags.host) && !flags.api_key && !flags.api_key_file)
        return opt_usage(&usage, "--host %s is reachable from other machines and needs --api-key-file", flags.host);
    return 0;
}

/* Replaces the directory by its absolute path without links, as file URLs name it. */
static bool resolve_media_dir(err *e)
{
    static char path[PATH_MAX];
    if (!flags.media_dir) return true;
    if (!realpath(flags.media_dir, path))
        return err_set(e, ERR_INPUT, "--media-dir %s: %s", flags.media_dir, strerror(errno));
    flags.media_dir = path;
    return true;
}

/* Raises the soft limit of file descriptors to the number that all connections need, up to the hard limit. */
static void raise_descriptors(const http_options *o)
{
    enum { OTHERS = 256 };
    struct rlimit r;
    rlim_t        need = (rlim_t)(o->max_connections + o->reserved + OTHERS);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= need) return;
    r.rlim_cur = r.rlim_max < need ? r.rlim_max : need;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

int cmd_serve(int argc, char **args)
{
    int            n_args, code;
    err            e = {0};
    server_options o;
    opt_log_level = LOG_INFO;
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* fixed, so that large buffers are returned to the system when freed */
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if ((code = check_usage(n_args, args))) return code;
    server_options_init(&o);
    if (!resolve_media_dir(&e)) return cli_fail(&e);
    if (!cli_resolve_model(&flags.service.engine.path, &e) ||
        !checkpoint_open(&first_files, flags.service.engine.path, &e) ||
        !service_find_drafters(&flags.service, first_files, &e))
        return cli_fail(&e);
    if (!flags.alias.n) flags.alias.item[flags.alias.n++] = cli_id(flags.service.engine.path);
    o.model          = flags.alias.item[0];
    o.aliases        = flags.alias.item + 1;
    o.n_aliases      = (size_t)flags.alias.n - 1;
    o.http.host      = flags.host[0] ? flags.host : NULL;
    o.http.port      = flags.port;
    o.http.unix_path = flags.unix_path;
    o.http.tls_cert  = flags.tls_cert;
    o.http.tls_key   = flags.tls_key;
    o.open           = open_engine;
    o.cors           = flags.cors.item;
    o.n_cors         = (size_t)flags.cors.n;
    o.grace_s        = flags.grace_s;
    o.replica_id     = flags.replica_id;
    o.api_key_file   = flags.api_key_file;
    o.api_key        = flags.api_key;
    o.admin_key_file = flags.admin_key_file;
    o.names          = flags.allow_host.item;
    o.n_names        = (size_t)flags.allow_host.n;
    o.hang_s         = flags.hang_s;
    o.settings_path  = flags.service.settings;
    o.exits_next     = true;
    o.no_ollama      = flags.no_ollama;
    o.sessions       = flags.service.session_dir;
    o.state_dir      = flags.service.session_dir;
    o.media_fetch    = flags.media_fetch;
    o.media_dir      = flags.media_dir;
    if (flags.request_bytes) o.max_held_bytes = flags.request_bytes;
    if (flags.body_bytes) o.http.max_bodies = flags.body_bytes;
    o.ready     = print_ready;
    o.ready_ctx = &o;
    raise_descriptors(&o.http);
    bool ok = server_run(&o, &e);
    checkpoint_close(first_files);
    return ok ? 0 : cli_fail(&e);
}
