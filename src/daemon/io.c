#include "daemon/io.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CHUNK      = 1 << 16,
    WRITE      = 4096, /* a pipe that is ready takes this many bytes without blocking */
    MAX_UNSENT = 1 << 30,
};

bool daemon_io_init(daemon_io *io, size_t max_line, err *e)
{
    *io = (daemon_io){.in = -1, .out = -1, .wake = -1};
    line_reader_init(&io->lines, max_line);
    buf_init(&io->unsent, MAX_UNSENT);
    io->chunk = xalloc(CHUNK);
    io->in    = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    io->out   = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    io->wake  = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->in >= 0 && io->out >= 0 && io->wake >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) return true;
    err_set(e, ERR_IO, "cannot use standard input and output: %s", strerror(errno));
    daemon_io_deinit(io);
    return false;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void daemon_io_deinit(daemon_io *io)
{
    if (!io->chunk) return;
    close_fd(&io->in);
    close_fd(&io->out);
    close_fd(&io->wake);
    line_reader_deinit(&io->lines);
    buf_deinit(&io->unsent);
    mem_free(io->chunk);
    *io = (daemon_io){0};
}

void daemon_io_wake(void *io)
{
    int      saved = errno;
    uint64_t one   = 1;
    ssize_t  n     = write(((daemon_io *)io)->wake, &one, sizeof one); /* it fails only when the counter is full */
    (void)n;
    errno = saved;
}

/* --- signals ------------------------------------------------------------------------------------*/
static daemon_io            *signalled; /* the io to wake */
static volatile sig_atomic_t n_signals;

static void on_signal(int sig)
{
    n_signals = n_signals + 1;
    if (sig == SIGINT && n_signals > 1) _exit(130);
    daemon_io_wake(signalled);
}

void daemon_io_catch_signals(daemon_io *io)
{
    static const int ending[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction act      = {.sa_handler = on_signal};
    signalled                 = io;
    for (size_t i = 0; i < COUNT(ending); i++) sigaction(ending[i], &act, NULL);
}

int daemon_io_signals(void) { return (int)n_signals; }

/* --- input --------------------------------------------------------------------------------------*/
static void read_chunk(daemon_io *io)
{
    ssize_t n = read(io->in, io->chunk, CHUNK);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
        close_fd(&io->in);
        return;
    }
    io->rest = (str){io->chunk, (size_t)n};
}

line_kind daemon_io_line(daemon_io *io, str *line)
{
    line_kind k = io->rest.n ? line_reader_next(&io->lines, &io->rest, line) : LINE_NONE;
    if (k != LINE_NONE || io->rest.n || io->in >= 0) return k;
    k            = line_reader_finish(&io->lines, line);
    io->finished = k == LINE_NONE;
    return k;
}

/* --- output -------------------------------------------------------------------------------------*/
static void close_output(daemon_io *io, int error)
{
    io->error = error;
    close_fd(&io->out);
    buf_deinit(&io->unsent);
    io->n_written = 0;
    io->n_sent    = io->n_put;
}

void daemon_io_put(daemon_io *io, str bytes)
{
    if (io->out < 0) return;
    if (!buf_put(&io->unsent, bytes.s, bytes.n))
        close_output(io, ENOMEM); /* a protocol with a gap would mislead the client */
    else
        io->n_put += bytes.n;
}

static ssize_t write_some(int fd, const char *p, size_t n)
{
    ssize_t done = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done >= 0 || errno != ENOTSOCK) return done;
    return write(fd, p, n < WRITE ? n : WRITE);
}

static bool is_writable(int fd)
{
    struct pollfd p = {fd, POLLOUT, 0};
    return poll(&p, 1, 0) == 1 && p.revents;
}

void daemon_io_write(daemon_io *io)
{
    while (io->out >= 0 && io->n_written < io->unsent.n && is_writable(io->out)) {
        ssize_t n = write_some(io->out, io->unsent.p + io->n_written, io->unsent.n - io->n_written);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (n < 0) {
            close_output(io, errno);
            return;
        }
        io->n_written += (size_t)n;
        io->n_sent += (size_t)n;
    }
    if (io->n_written == io->unsent.n) {
        buf_clear(&io->unsent);
        io->n_written = 0;
    } else if (io->n_written > io->unsent.n / 2) {
        buf_drop_front(&io->unsent, io->n_written);
        io->n_written = 0;
    }
}

void daemon_io_wait(daemon_io *io, bool reads, int timeout_ms)
{
    uint64_t      count;
    bool          more = io->rest.n || (io->in < 0 && !io->finished);
    struct pollfd p[3] = {{io->wake, POLLIN, 0},
                          {reads && !io->rest.n ? io->in : -1, POLLIN, 0},
                          {io->out, daemon_io_unsent(io) ? POLLOUT : 0, 0}};
    if (poll(p, 3, reads && more ? 0 : timeout_ms) < 0) return; /* EINTR */
    if (p[0].revents && read(io->wake, &count, sizeof count) < 0) return;
    if (p[1].revents) read_chunk(io);
    if (p[2].revents & (POLLERR | POLLNVAL) && !(p[2].revents & POLLOUT)) close_output(io, EPIPE);
    daemon_io_write(io);
}

void daemon_io_flush(daemon_io *io, double seconds)
{
    double until = clock_s() + seconds;
    while (daemon_io_unsent(io) && clock_s() < until) daemon_io_wait(io, false, 100);
}
