/* server/server.h - serves an engine over HTTP: options and the main loop. The rest of the module is in
 * server/inside.h. */
#ifndef TANDEM_SERVER_SERVER_H
#define TANDEM_SERVER_SERVER_H
#include "http/http.h"
#include "sched/engine.h"

#include "tandem.h"

typedef struct {
    http_options http;
    /* Opens the engine, which the server closes; called on a worker thread while the server replies 503, and again for
     * each reload. The engine must call `wake` when a job has news (tandem_options.wake). changed: as for engine_open.
     */
    bool (*open)(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                 err *e);
    void              *open_ctx;
    const char        *model;   /* its name in responses and in the settings file */
    const char *const *aliases; /* further names of the model */
    size_t             n_aliases;
    const char *const *cors; /* origins whose pages may call, as for origin_allowed */
    size_t             n_cors;
    double             grace_s; /* time for running responses after the first signal to stop */
    size_t
        max_held_bytes; /* max bytes of all requests together: prompts, tools, replies. Default: 1 GiB, and 256 MiB for
                        http.max_bodies; an eighth and a sixteenth of the memory of the process if that is less */
    double ping_s;      /* an idle stream gets a comment after this time */
    /* Called once, on the I/O thread, when the model is loaded for the first time; may be NULL. */
    void (*ready)(void *ctx, const http_server *h);
    void *ready_ctx;

    /* Files of keys (keys.h), reloaded on SIGHUP, or instead of api_key_file a single key in clear text. NULL: none. */
    const char        *api_key_file, *api_key, *admin_key_file;
    const char *const *names; /* host names of this server in addition to localhost and addresses (origin.h) */
    size_t             n_names;
    const char        *replica_id;    /* sent in every reply; NULL: host name and port; empty: not sent */
    double             hang_s;        /* a step that takes longer is reported as hanging; 0: never */
    const char        *settings_path; /* settings file for changes while the model is parked; NULL: none */
    bool               no_ollama;     /* do not serve Ollama's endpoints */
    bool               sessions;      /* the engine has a directory for sessions */
    const char        *state_dir;     /* directory of the results of benchmarks; NULL: they live in memory */
    bool               media_fetch;   /* images and videos may be fetched by http and https */
    const char        *media_dir;     /* they may be files below this directory; NULL: no files */
    /* The process exits after server_run: SIGTERM and SIGINT stay handled until then. */
    bool exits_next;
} server_options;

/* Sets the defaults: 127.0.0.1 port 8080, model "tandem", 30 s of grace, pings after 15 s, hang_s 60. `open` is left to
 * the caller. */
void server_options_init(server_options *o);
/* Serves until SIGTERM or SIGINT, which let running responses finish within grace_s. A second signal cuts them. *o must
 * not change meanwhile; e is not NULL. Returns false if the sockets or keys cannot be used or the first load fails.
 * Ends the process with code 0 instead of returning if the model is still being loaded, or a worker does not end.
 * Handles signals of the whole process, so only one server can run. */
bool server_run(const server_options *o, err *e);
#endif
