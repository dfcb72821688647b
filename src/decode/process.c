/* The server's end: starts the process, sends it jobs, and does not trust its replies. */
#include "base/clock.h"
#include "base/mem.h"
#include "decode/inside.h"
#include "decode/message.h"
#include "decode/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PICTURES, VIDEOS, KINDS };
enum { VIDEO_FACTOR = 4 }; /* a video may take longer than a picture */

typedef struct {
    pthread_mutex_t    lock; /* held while a job runs */
    pid_t              pid;  /* 0: none */
    int                fd;
    const atomic_bool *cancel; /* decode_job.cancel of the job that runs */
} process;

struct decode_worker {
    decode_limits limits;
    process       process[KINDS];
};

void decoded_free(decoded *d)
{
    for (int i = 0; d->frames && i < d->n; i++) picture_free(&d->frames[i]);
    mem_free(d->frames);
    mem_free(d->seconds);
    *d = (decoded){0};
}

decode_limits decode_default_limits(void) { return (decode_limits){.timeout_s = 30, .cpu_s = 20, .idle_s = 60}; }

decode_worker *decode_worker_new(decode_limits limits)
{
    decode_worker *w = xnew(decode_worker);
    w->limits        = limits;
    for (int i = 0; i < KINDS; i++) {
        pthread_mutex_init(&w->process[i].lock, NULL);
        w->process[i].fd = -1;
    }
    return w;
}

/* Ends the process. Returns its status, as waitpid sets it. */
static int end_process(process *p)
{
    int status = 0;
    if (!p->pid) return 0;
    close(p->fd);
    kill(p->pid, SIGKILL);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {}
    p->pid = 0;
    p->fd  = -1;
    return status;
}

void decode_worker_free(decode_worker *w)
{
    if (!w) return;
    for (int i = 0; i < KINDS; i++) {
        end_process(&w->process[i]);
        pthread_mutex_destroy(&w->process[i].lock);
    }
    mem_free(w);
}

int decode_worker_pid(const decode_worker *w) { return w->process[PICTURES].pid; }

/* Starts the process with a socket as descriptor 3, nothing at 0 to 2, no environment and no other descriptor. */
static int spawn(pid_t *pid, int fd, int kind, double idle_s)
{
    char                       idle[16], command[] = DECODE_WORKER_COMMAND, name[] = "tandem";
    char                       kinds[KINDS][8] = {"picture", "video"};
    char                      *args[] = {name, command, kinds[kind], idle, NULL}, *environment[] = {NULL};
    posix_spawn_file_actions_t a;
    posix_spawnattr_t          attr;
    sigset_t                   all, none;
    snprintf(idle, sizeof idle, "%d", (int)(idle_s * 1000));
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&a);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_adddup2(&a, fd, 3);
    for (int i = 0; i < 3; i++) posix_spawn_file_actions_addopen(&a, i, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_addclosefrom_np(&a, 4);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    int failed = posix_spawn(pid, "/proc/self/exe", &a, &attr, args, environment);
    posix_spawn_file_actions_destroy(&a);
    posix_spawnattr_destroy(&attr);
    return failed;
}

static bool start_process(process *p, int kind, double idle_s, err *e)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        return err_set(e, ERR_UNAVAILABLE, "cannot start the picture decoder: %s", strerror(errno));
    /* dup2 of a descriptor to itself keeps close-on-exec; the socket is never number 3 then. */
    int child  = fcntl(fds[1], F_DUPFD_CLOEXEC, 4);
    int failed = child < 0 ? errno : spawn(&p->pid, child, kind, idle_s);
    close(fds[1]);
    if (child >= 0) close(child);
    if (!failed) {
        p->fd = fds[0];
        fcntl(p->fd, F_SETFL, O_NONBLOCK);
        return true;
    }
    p->pid = 0;
    close(fds[0]);
    return err_set(e, ERR_UNAVAILABLE, "cannot start the picture decoder: %s", strerror(failed));
}

/* Sets the process's limit of processor time to what it has used, plus that of one job. */
static void limit_cpu(const process *p, int cpu_s)
{
    clockid_t       clock;
    struct timespec used = {0};
    struct rlimit   now;
    if (clock_getcpuclockid(p->pid, &clock) || clock_gettime(clock, &used)) return;
    if (prlimit(p->pid, RLIMIT_CPU, NULL, &now)) return;
    now.rlim_cur = (rlim_t)(used.tv_sec + 1 + cpu_s);
    if (now.rlim_cur > now.rlim_max) now.rlim_cur = now.rlim_max;
    prlimit(p->pid, RLIMIT_CPU, &now, NULL);
}

typedef enum { MOVED, CLOSED, LATE, CANCELLED } io_end;

static bool is_cancelled(const process *p) { return p->cancel && atomic_load(p->cancel); }

/* Waits for the descriptor. Returns MOVED when it is ready. */
static io_end wait_for(const process *p, short events, double deadline)
{
    enum { CHECK_MS = 100 }; /* between two checks of `cancel` */
    struct pollfd f = {.fd = p->fd, .events = events};
    for (;;) {
        double left = deadline - clock_s();
        if (is_cancelled(p)) return CANCELLED;
        if (left <= 0) return LATE;
        int n = poll(&f, 1, (int)ceil(fmin(left * 1000, CHECK_MS)));
        if (n > 0) return MOVED;
        if (n < 0 && errno != EINTR) return CLOSED;
    }
}

static io_end send_all(const process *p, const void *from, size_t n, double deadline)
{
    for (const char *at = from; n;) {
        ssize_t sent = send(p->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) {
            io_end how = wait_for(p, POLLOUT, deadline);
            if (how != MOVED) return how;
            continue;
        }
        if (sent <= 0) return CLOSED;
        at += sent;
        n -= (size_t)sent;
    }
    return MOVED;
}

static io_end receive_all(const process *p, void *to, size_t n, double deadline)
{
    for (char *at = to; n;) {
        ssize_t got = recv(p->fd, at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) {
            io_end how = wait_for(p, POLLIN, deadline);
            if (how != MOVED) return how;
            continue;
        }
        if (got <= 0) return CLOSED;
        at += got;
        n -= (size_t)got;
    }
    return MOVED;
}

/* Waits until a process that closed its socket has ended, so that its status can be read; 1 s at most. */
static void wait_for_end(const process *p)
{
    for (int i = 0; i < 100; i++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT | WNOHANG) || info.si_pid) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Ends the process after a failed job and names the reason. `idle`: it may have ended before it saw the job. */
static bool fail(process *p, io_end how, const decode_limits *l, err *e, bool *idle)
{
    if (how == CLOSED) wait_for_end(p);
    int status = end_process(p);
    if (how == CANCELLED) return err_set(e, ERR_UNAVAILABLE, "cancelled");
    *idle = how == CLOSED && WIFEXITED(status) && !WEXITSTATUS(status);
    if (how == LATE || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU))
        return err_set(e, ERR_INPUT,
                       "the file takes too long to decode: the limits are %g s, and %d s of processor time",
                       l->timeout_s, l->cpu_s);
    if (WIFSIGNALED(status))
        return err_set(e, ERR_INPUT, "the file cannot be decoded: the decoder's process ended with signal %d",
                       WTERMSIG(status));
    return err_set(e, ERR_UNAVAILABLE, "the picture decoder ended unexpectedly");
}

static bool refuse_reply(process *p, err *e)
{
    end_process(p);
    return err_set(e, ERR_INPUT, "the file cannot be decoded: the decoder's reply is invalid");
}

static bool alloc_frames(decoded *out, const decode_reply *r, err *e)
{
    out->n             = r->n_frames;
    out->frames        = mem_try_n((size_t)r->n_frames, sizeof *out->frames);
    out->seconds       = mem_try_n((size_t)r->n_frames, sizeof *out->seconds);
    out->source_width  = r->source_width;
    out->source_height = r->source_height;
    bool ok            = (out->frames && out->seconds) || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    for (int i = 0; ok && i < out->n; i++) ok = picture_new(&out->frames[i], r->width, r->height, e);
    return ok;
}

static bool valid_times(const decoded *d)
{
    for (int i = 0; i < d->n; i++)
        if (!(d->seconds[i] >= (i ? d->seconds[i - 1] : 0) && d->seconds[i] < 1e9)) return false;
    return true;
}

static bool receive(process *p, decoded *out, const decode_job *job, const decode_limits *l, double deadline, err *e,
                    bool *idle)
{
    int64_t      numbers[REPLY_NUMBERS];
    decode_reply r;
    io_end       how = receive_all(p, numbers, sizeof numbers, deadline);
    if (how != MOVED) return fail(p, how, l, e, idle);
    if (!decode_reply_read(&r, numbers, job)) return refuse_reply(p, e);
    if (r.code != ERR_NONE) {
        char text[sizeof e->text] = "";
        how                       = receive_all(p, text, r.n_text, deadline);
        return how == MOVED ? err_set(e, r.code, "%s", text) : fail(p, how, l, e, idle);
    }
    if (!alloc_frames(out, &r, e)) {
        end_process(p);
        return false;
    }
    how = receive_all(p, out->seconds, (size_t)out->n * sizeof *out->seconds, deadline);
    for (int i = 0; how == MOVED && i < out->n; i++)
        how = receive_all(p, out->frames[i].rgb, picture_bytes(&out->frames[i]), deadline);
    if (how != MOVED) return fail(p, how, l, e, idle);
    return valid_times(out) || refuse_reply(p, e);
}

/* Forgets a process that ended while it was idle. */
static void forget_ended(process *p)
{
    siginfo_t info = {0};
    if (p->pid && !waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT | WNOHANG) && info.si_pid) end_process(p);
}

static bool run_once(process *p, decoded *out, const decode_job *job, const decode_limits *l, err *e, bool *idle)
{
    int64_t numbers[REQUEST_NUMBERS];
    double  deadline = clock_s() + l->timeout_s;
    if (is_cancelled(p)) return err_set(e, ERR_UNAVAILABLE, "cancelled");
    forget_ended(p);
    if (!p->pid && !start_process(p, job->is_video ? VIDEOS : PICTURES, l->idle_s, e)) return false;
    limit_cpu(p, l->cpu_s);
    decode_request_write(numbers, job);
    io_end how = send_all(p, numbers, sizeof numbers, deadline);
    if (how == MOVED) how = send_all(p, job->file.s, job->file.n, deadline);
    if (how != MOVED) return fail(p, how, l, e, idle);
    return receive(p, out, job, l, deadline, e, idle);
}

bool decode_worker_run(decode_worker *w, decoded *out, const decode_job *job, err *e)
{
    process      *p    = &w->process[job->is_video ? VIDEOS : PICTURES];
    decode_limits l    = w->limits;
    bool          idle = false, ok;

    *out = (decoded){0};
    if (job->file.n > DECODE_MAX_FILE)
        return err_set(e, ERR_TOO_LARGE, "the file has %zu bytes; the limit is %zu", job->file.n, DECODE_MAX_FILE);
    if (job->is_video) {
        l.timeout_s *= VIDEO_FACTOR;
        l.cpu_s *= VIDEO_FACTOR;
    }
    pthread_mutex_lock(&p->lock);
    p->cancel = job->cancel;
    ok        = run_once(p, out, job, &l, e, &idle);
    if (!ok && idle) ok = run_once(p, out, job, &l, e, &idle);
    pthread_mutex_unlock(&p->lock);
    if (!ok) decoded_free(out);
    return ok;
}
