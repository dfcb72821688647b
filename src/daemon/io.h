/* daemon/io.h - the standard input and output of a daemon, for one thread that waits for both.
 *
 *      daemon_io_wait ---> lines of the input (daemon_io_line) ---> daemon_io_put ---> the output
 *                 `----> daemon_io_wake, from any thread or a signal handler
 *
 * daemon_io_init moves the output to a descriptor of its own and points descriptor 1 at standard error, so that no
 * library can write into the protocol. Writes never block: bytes that the client does not read wait in memory. */
#ifndef TANDEM_DAEMON_IO_H
#define TANDEM_DAEMON_IO_H
#include "base/err.h"
#include "daemon/line_reader.h"

typedef struct {
    int         in, out, wake; /* descriptors; in -1: it has ended; out -1: it is closed */
    bool        finished;      /* the last line of the input was returned */
    int         error;         /* errno of a failed write; 0: none */
    line_reader lines;
    char       *chunk;  /* bytes read from `in` */
    str         rest;   /* the part of the chunk that was not split into lines */
    buf         unsent; /* output; the first `n_written` bytes of it are written */
    size_t      n_written;
    uint64_t    n_put, n_sent; /* bytes in total */
} daemon_io;

/* Sets up *io for descriptors 0 and 1. max_line: maximum length of a line in bytes. */
bool daemon_io_init(daemon_io *io, size_t max_line, err *e);
void daemon_io_deinit(daemon_io *io); /* accepts all zeros */
/* Makes SIGTERM, SIGINT and SIGHUP wake io instead of ending the process; a second SIGINT ends it with status 130. */
void daemon_io_catch_signals(daemon_io *io);
int  daemon_io_signals(void); /* returns the number of these signals so far */
/* Wakes daemon_io_wait. Any thread; also in a signal handler. io: a daemon_io. */
void daemon_io_wake(void *io);
/* Blocks until there is input (only with `reads`), output can be written, or daemon_io_wake is called. timeout_ms: -1:
 * none. Writes output. */
void daemon_io_wait(daemon_io *io, bool reads, int timeout_ms);
/* Returns the next line. At the end of the input `finished` becomes true. */
line_kind daemon_io_line(daemon_io *io, str *line);
void      daemon_io_put(daemon_io *io, str bytes); /* appends output; ignored once the output is closed */
void      daemon_io_write(daemon_io *io);          /* writes as much as the client takes now */
/* Writes until all output is sent, the output is closed, or `seconds` have passed. */
void daemon_io_flush(daemon_io *io, double seconds);
/* Returns the number of bytes of output that wait. */
static inline size_t daemon_io_unsent(const daemon_io *io) { return (size_t)(io->n_put - io->n_sent); }
#endif
