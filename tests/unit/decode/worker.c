/* The process that decodes: results, errors, crashes, limits. */
#include "decode/worker.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "decode/inside.h"
#include "decode/message.h"
#include "decode/sandbox.h"
#include "test.h"
#include "unit/media/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool run_file(decode_worker *w, decoded *out, const char *name, const patch_rule *r, err *e)
{
    char     path[256];
    file_map f;
    snprintf(path, sizeof path, "tests/golden/vision-images/%s", name);
    if (!file_map_open(&f, test_path(path), e)) return false;
    decode_job job = {.patches = *r, .file = {f.p, f.n}};
    bool       ok  = decode_worker_run(w, out, &job, e);
    file_map_close(&f);
    return ok;
}

TEST(decode_worker_resizes_for_a_model)
{
    decode_worker *w    = decode_worker_new(decode_default_limits());
    patch_rule     rows = rule_rows(70), cells = rule_cells();
    decoded        d;
    err            e;
    for (int i = 0; i < 2; i++) {
        if (!CHECK_OK(run_file(w, &d, "rotated.jpg", i ? &cells : &rows, &e), e)) break;
        CHECK_INT(d.n, 1);
        CHECK_INT(d.source_width, 50);
        CHECK_INT(d.source_height, 80);
        CHECK_INT(d.frames->width, i ? 224 : 288);
        CHECK_INT(d.frames->height, i ? 352 : 480);
        decoded_free(&d);
    }
    decode_worker_free(w);
}

TEST(decode_worker_reports_a_damaged_file_and_goes_on)
{
    decode_worker *w   = decode_worker_new(decode_default_limits());
    patch_rule     r   = rule_rows(70);
    decode_job     job = {.patches = r, .file = STR("this is no picture at all")};
    decoded        d;
    err            e;
    CHECK_FAILS(decode_worker_run(w, &d, &job, &e), e, "not a picture");
    CHECK_INT(e.code, ERR_INPUT);
    CHECK(!d.frames);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    decode_worker_free(w);
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

static void *kill_soon(void *pid)
{
    sleep_ms(50);
    kill(*(const int *)pid, SIGSEGV);
    kill(*(const int *)pid, SIGCONT);
    return NULL;
}

TEST(decode_worker_survives_a_crash)
{
    decode_worker *w = decode_worker_new(decode_default_limits());
    patch_rule     r = rule_rows(70);
    pthread_t      thread;
    decoded        d;
    err            e;
    CHECK_INT(decode_worker_pid(w), 0);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    int pid = decode_worker_pid(w);
    CHECK(pid > 0);
    kill(pid, SIGSTOP); /* it cannot finish the job before the signal */
    if (!CHECK(thread_start(&thread, kill_soon, &pid))) return;
    CHECK_FAILS(run_file(w, &d, "rgb.png", &r, &e), e, "ended with signal 11");
    CHECK_INT(e.code, ERR_INPUT);
    pthread_join(thread, NULL);
    CHECK_INT(decode_worker_pid(w), 0);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    CHECK(decode_worker_pid(w) > 0 && decode_worker_pid(w) != pid);
    siginfo_t info;
    kill(decode_worker_pid(w), SIGKILL); /* between two jobs: the next one is not affected */
    waitid(P_PID, (id_t)decode_worker_pid(w), &info, WEXITED | WNOWAIT);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    decode_worker_free(w);
}

TEST(decode_worker_has_a_timeout)
{
    decode_limits l = decode_default_limits();
    patch_rule    r = rule_rows(70);
    decoded       d;
    err           e;
    l.timeout_s      = 0.2;
    decode_worker *w = decode_worker_new(l);
    for (int i = 0; i < 20 && !decode_worker_pid(w); i++) /* a busy machine may need longer than that to start it */
        if (run_file(w, &d, "rgb.png", &r, &e)) decoded_free(&d);
    int pid = decode_worker_pid(w);
    if (CHECK(pid)) {
        kill(pid, SIGSTOP);
        CHECK_FAILS(run_file(w, &d, "rgb.png", &r, &e), e, "takes too long");
        CHECK_INT(decode_worker_pid(w), 0);
        CHECK(kill(pid, 0) && errno == ESRCH);
    }
    decode_worker_free(w);
}

static void *cancel_soon(void *cancel)
{
    sleep_ms(50);
    atomic_store((atomic_bool *)cancel, true);
    return NULL;
}

/* A job that hangs ends soon after it was cancelled, and the next one gets a new process. */
TEST(decode_worker_cancels)
{
    decode_worker *w      = decode_worker_new(decode_default_limits());
    patch_rule     r      = rule_rows(70);
    atomic_bool    cancel = false;
    decode_job     job    = {.patches = r, .file = STR("not read"), .cancel = &cancel};
    decoded        d;
    pthread_t      thread;
    err            e;
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    kill(decode_worker_pid(w), SIGSTOP);
    double start = clock_s();
    if (!CHECK(thread_start(&thread, cancel_soon, &cancel))) return;
    CHECK_FAILS(decode_worker_run(w, &d, &job, &e), e, "cancelled");
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    CHECK(clock_s() - start < 10);
    pthread_join(thread, NULL);
    CHECK_FAILS(decode_worker_run(w, &d, &job, &e), e, "cancelled"); /* before it begins */
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    decode_worker_free(w);
}

TEST(decode_worker_ends_when_idle)
{
    decode_limits l = decode_default_limits();
    patch_rule    r = rule_rows(70);
    decoded       d;
    err           e;
    l.idle_s         = 0.05;
    decode_worker *w = decode_worker_new(l);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    siginfo_t info = {0};
    int       pid  = decode_worker_pid(w);
    CHECK(!waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
    CHECK_INT(info.si_code, CLD_EXITED);
    CHECK_INT(info.si_status, 0);
    CHECK_OK(run_file(w, &d, "rgb.png", &r, &e), e);
    decoded_free(&d);
    decode_worker_free(w);
}

TEST(decode_worker_refuses_large_files)
{
    decode_worker *w   = decode_worker_new(decode_default_limits());
    decode_job     job = {.patches = rule_rows(70), .file = {"", DECODE_MAX_FILE + 1}};
    decoded        d;
    err            e;
    CHECK_FAILS(decode_worker_run(w, &d, &job, &e), e, "the limit is 67108864");
    CHECK_INT(e.code, ERR_TOO_LARGE);
    CHECK_INT(decode_worker_pid(w), 0);
    decode_worker_free(w);
}

/* Tries something in the sandbox. Returns the status of the process: 0 if the attempt was refused as it should be. */
static int status_of_attempt(int what)
{
    int   status = -1;
    pid_t pid    = fork();
    if (!pid) {
        err e;
        if (!decode_sandbox_enter(&e)) _exit(100);
        if (what == 0) _exit(open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES ? 0 : 1);
        if (what == 1) _exit(socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EACCES ? 0 : 1);
        if (what == 2)
            _exit(mmap(NULL, (size_t)3 << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 0 : 1);
        if (what == 3) execl("/bin/true", "true", (char *)NULL);
        if (what == 4) mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (what == 5) kill(getppid(), 0);
        _exit(2);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(decode_sandbox_refuses_files_network_and_programs)
{
    CHECK_INT(status_of_attempt(0), 0);
    CHECK_INT(status_of_attempt(1), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK_INT(status_of_attempt(2), 0);
#endif
    for (int what = 3; what < 6; what++) CHECK_INT(status_of_attempt(what), SIGSYS);
}

TEST(decode_messages_are_checked)
{
    decode_job   job = {.is_video = true, .patches = rule_cells(), .file = STR("abc")}, back;
    decode_reply r   = {.n_frames = 4, .width = 96, .height = 64, .source_width = 96, .source_height = 64}, got;
    int64_t      in[REQUEST_NUMBERS], reply[REPLY_NUMBERS];
    job.frames           = (frame_rule){.per_second = 2, .min_frames = 4, .max_frames = 8};
    job.patches.min_area = 4096;
    decode_request_write(in, &job);
    CHECK(decode_request_read(&back, in));
    CHECK_INT(back.file.n, 3);
    CHECK(!memcmp(&back.patches, &job.patches, sizeof job.patches) && back.frames.per_second == 2);
    for (int i = 0; i < 14; i++) { /* no number may be arbitrary */
        int64_t old = in[i];
        in[i]       = INT64_MAX;
        CHECK_MSG(!decode_request_read(&back, in), "number %d is not checked", i);
        in[i] = -1;
        CHECK_MSG(!decode_request_read(&back, in), "number %d may be negative", i);
        in[i] = old;
    }
    decode_reply_write(reply, &r);
    CHECK(decode_reply_read(&got, reply, &job));
    CHECK_INT(got.width, 96);
    for (int i = 0; i < REPLY_NUMBERS; i++) {
        if (i == 2) continue; /* the length of a sentence, which it has not */
        int64_t old = reply[i];
        reply[i]    = old + (i == 3 ? 6 : 4096);
        CHECK_MSG(!decode_reply_read(&got, reply, &job), "number %d is not checked", i);
        reply[i] = old;
    }
    reply[1] = ERR_INPUT;
    reply[2] = 511;
    CHECK(decode_reply_read(&got, reply, &job));
    reply[2] = 512;
    CHECK(!decode_reply_read(&got, reply, &job));
    reply[2] = 0;
    CHECK(!decode_reply_read(&got, reply, &job));
}
