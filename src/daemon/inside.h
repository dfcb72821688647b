/* daemon/inside.h - the state of the daemon, for the files of this module. */
#ifndef TANDEM_DAEMON_INSIDE_H
#define TANDEM_DAEMON_INSIDE_H
#include "daemon/command.h"
#include "daemon/daemon.h"
#include "server/errors.h"
#include "server/live_sessions.h"
#include "server/media.h"
#include "server/work.h"

#include <stdatomic.h>

typedef struct daemon_state daemon_state;
typedef struct daemon_op    daemon_op;

enum { DAEMON_FINGERPRINT = 96 };
typedef enum { ENGINE_OPEN, ENGINE_PARKING, ENGINE_PARKED, ENGINE_LOADING } engine_state;

struct daemon_state {
    daemon_io            *io;
    const daemon_options *opt;
    work                 *work;
    tandem               *engine; /* NULL unless state is ENGINE_OPEN */
    engine_state          state;
    char                  fingerprint[DAEMON_FINGERPRINT]; /* identifies the files of the model */
    daemon_op            *first, **end;                    /* open operations in the order of their lines */
    int                   n_open, n_generating;
    size_t                held_bytes; /* bytes of the lines of open operations */
    buf                   line;       /* the event that is being written */
    live_sessions         sessions;   /* texts of generate with "save" */
    media_access          media;      /* images and videos come as data URLs */
    atomic_size_t         pixel_bytes;
    bool                  closing; /* no new operations: the input ended, quit, or a signal */
    double                stop_at; /* clock_s until which workers are waited for after a signal; 0: there was none */
    int                   code;    /* exit status */
};

/* An open operation. Structs of its kind begin with it. */
struct daemon_op {
    work_item     item;
    daemon_state *d;
    daemon_op    *next;
    command_op    kind;
    buf           id, meta;                         /* as JSON; meta is empty when there is none */
    size_t        held_bytes;                       /* as counted in daemon.held_bytes */
    bool          with_worker;                      /* a worker uses it */
    bool          unpark;                           /* generate: load the model if it is parked */
    bool          ended;                            /* its final line was written; freed after the next pump */
    char          name[2][TANDEM_SESSION_NAME + 1]; /* snapshots that it reads or writes; empty: none */
    atomic_bool   cancelled;
    uint64_t      put_end;          /* daemon_io.n_put after its last event */
    size_t        unsent;           /* bytes of its events since all of them were last sent */
    void (*pump)(daemon_op *op);    /* advances it; called after every wake-up while it is open */
    void (*release)(daemon_op *op); /* frees its own members; may be NULL */
};

/* Writes an event: event_begin, further members as ',"key":value' into the buffer, event_end. */
buf *event_begin(daemon_op *op, const char *type);
void event_end(daemon_op *op);
/* Write a final line. */
void op_result(daemon_op *op); /* {"type":"result"} without members */
void op_fail(daemon_op *op, const command_error *why);
void op_fail_server(daemon_op *op, const server_error *why); /* an error of the HTTP layer's request reader */
void op_fail_engine(daemon_op *op, const err *e);
/* Returns whether the operation must pause because the client does not read its events. */
bool op_must_pause(const daemon_op *op);

/* Allocates an operation of `bytes` for a command and appends it to the list of open ones. Copies id and meta. */
void *op_new(daemon_state *d, const command *c, size_t bytes, void (*pump)(daemon_op *op));
/* Starts the operation of a command. On failure nothing was started. */
bool answer_start(daemon_state *d, const command *c, size_t line_bytes, command_error *why);
bool task_start(daemon_state *d, const command *c, size_t line_bytes, command_error *why);
bool snapshot_start(daemon_state *d, const command *c, command_error *why);
/* Returns whether an operation that parks the model is open and comes before `before` (NULL: anywhere) in the list. */
bool task_parks(const daemon_state *d, const daemon_op *before);
/* Returns whether an earlier operation with one of its snapshots is open. */
bool op_waits_for_name(const daemon_op *op);
/* Reads the name of a snapshot; an absent field keeps *out. */
bool op_read_name(const command *c, const char *field, char out[TANDEM_SESSION_NAME + 1], command_error *why);
void op_fail_snapshot(daemon_op *op, const tandem_error *e); /* writes the final line of a failed snapshot */
/* Loads the parked model if an operation waits for it. Called after every wake-up. */
void task_load_wanted(daemon_state *d);
/* Notifies the operations that wait for it that `op` ended as cancelled. */
void task_note_cancelled(daemon_state *d, const daemon_op *op);
void daemon_cancel_all(daemon_state *d);

/* Puts the JSON text of a list of parked parts: "draft", "target". */
void daemon_put_parked(const daemon_state *d, buf *out);

/* --- engine.c: shared by both protocols --- */
/* Opens the engine. fingerprint: that of the model, set by the first call (empty before); later calls fail with
 * ERR_FORMAT when the files have changed. *out is NULL on failure. */
bool daemon_open_engine(tandem **out, const daemon_options *o, daemon_io *io, char fingerprint[DAEMON_FINGERPRINT],
                        err *e);
/* Parks or unparks all drafters. Returns how many changed and adds the size of their weights to *bytes. */
int daemon_turn_drafters(tandem *t, bool park, uint64_t *bytes, err *e);
#endif
