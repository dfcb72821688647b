/* daemon/daemon.h - serves one client over standard input and output: JSON lines (docs/daemon.md).
 *
 *      line ---> command.c ---> an operation: answer.c generates, tasks.c does the rest ---> events, one line each
 *
 * One thread, the caller of daemon_run, owns all state; workers read requests and load models, and the engine thread
 * makes tokens. Both wake it and never wait for it. Every operation ends with exactly one final line. */
#ifndef TANDEM_DAEMON_DAEMON_H
#define TANDEM_DAEMON_DAEMON_H
#include "daemon/io.h"
#include "tandem.h"

typedef struct {
    /* Opens the engine, at start and after it was parked. Called on the caller's thread or a worker. wake: as
     * tandem_options.wake. */
    bool (*open)(void *ctx, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx, err *e);
    void *open_ctx;
    int   max_waiting; /* generate operations that wait for a lane; more are refused with "busy" */
} daemon_options;

/* Loads the model and serves until the input ends, `quit`, a signal, or the client closes the output. io is set up by
 * daemon_io_init, so that nothing else has written to it. Returns the exit status of the process. */
int daemon_run(daemon_io *io, const daemon_options *o);

/* Options of the older line protocol (daemon_run_lines). */
typedef struct {
    daemon_options     engine;
    int                stream_fd; /* token ids are written there as int32; -1: none */
    const char        *banner;    /* word before "-daemon" in the first line; NULL: from the family of the model */
    tandem_speculation spec;
} daemon_lines_options;
/* Serves lucebox's line protocol: one command at a time, its status on the output, token ids on stream_fd. Returns the
 * exit status of the process. */
int daemon_run_lines(daemon_io *io, const daemon_lines_options *o);

/* Maximum length of a line in bytes. */
enum { DAEMON_MAX_LINE = 16 << 20 };
#endif
