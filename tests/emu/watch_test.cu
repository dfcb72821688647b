/* tests/emu/watch_test.cu - plants kernels that use memory before they may, and kernels that do not, and checks that the
 * emulator finds the former. */
#include "ops/cuda/device.cuh"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 64, BLOCKS = 2, MAX_STEPS = 5, MAX_OUTPUT = 1024 };

/* A letter is what a kernel does: */
static __global__ void do_kernel(const char *letters, int *x)
{
    alignas(16) __shared__ char room[16];
    __shared__ uint64_t         gate;
    volatile int                sink;
    int                        *mine = x + blockIdx.x * THREADS + threadIdx.x;
    for (const char *c = letters; *c; c++) switch (*c) {
        case 'L': let_next_start(); break;
        case 'W': wait_for_previous(); break;
        case 'B': __syncthreads(); break;
        case 'r': sink = *mine; break;
        case '2': sink = read_l2(mine); break;
        case 'w': *mine = 1; break;
        case 'a': atomicAdd(mine, 1); break;
        case 'c': /* a bulk copy */
            if (threadIdx.x == 0) gate_init(&gate), gate_copy(&gate, room, x, sizeof room);
            gate_wait_block(&gate, 0);
            break;
        case '0': /* goes on in block 0 alone */
            if (blockIdx.x) return;
        }
    (void)sink;
}

/* A step is a word of run_step's, or the letters of a kernel that starts early; of a plain launch, after '!'. */
typedef struct {
    const char *name, *error; /* error: part of the message; NULL: none */
    const char *step[MAX_STEPS];
} test_case;
static const test_case cases[] = {
    {"a read after the wait", NULL, {"LWw", "LWr"}},
    {"a read before the wait", "do_kernel reads", {"LWw", "LrW"}},
    {"a read before the wait, without let_next_start", "do_kernel reads", {"Ww", "rW"}},
    {"the writer", "last written by do_kernel", {"LWw", "LrW"}},
    {"a copy before the wait", "do_kernel reads", {"LWw", "LcW"}},
    {"a copy after the wait", NULL, {"LWw", "LWc"}},
    {"a read of what no kernel wrote", NULL, {"LrW"}},
    {"a write before the wait", "do_kernel writes", {"LWr", "LwW"}},
    {"an atomic operation before the wait", "do_kernel ", {"LWr", "LaW"}},
    {"a kernel that never waits", "never waits", {"LWw", "L"}},
    {"two kernels before, which the last one did not wait for", "do_kernel reads", {"LWw", "LW", "LrW"}},
    {"two kernels before, which the last one waited for first", NULL, {"LWw", "WL", "LrW"}},
    {"two kernels before, which a block of the last one did not wait for", "do_kernel reads", {"LWw", "0W", "LrW"}},
    {"a plain launch reads", NULL, {"LWw", "!r"}},
    {"a plain launch between", NULL, {"LWw", "!", "LrW"}},
    {"a plain launch wrote", "do_kernel reads", {"!w", "LrW"}},
    {"read_l2 of what was written before the next kernel started", NULL, {"WwBL", "L2W"}},
    {"read_l2 of what was written later", "do_kernel reads", {"WLw", "L2W"}},
    {"a wait of the host between", NULL, {"LWw", "sync", "LrW"}},
    {"a copy of the host between", NULL, {"LWw", "copy", "LrW"}},
    {"other memory at the same place", NULL, {"LWw", "again", "LrW"}},
    {"in a graph", "do_kernel reads", {"record", "LWw", "LrW", "play"}},
    {"in a graph that waits", NULL, {"record", "LWw", "LWr", "play"}},
    {"before a graph", NULL, {"LWw", "record", "LrW", "play"}},
};

static void run_step(const char *step, void **x)
{
    enum { BYTES = BLOCKS * THREADS * sizeof(int) };
    cudaStream_t s    = NULL;
    cudaGraph_t  g    = NULL;
    char         host = 0;
    if (!strcmp(step, "sync")) {
        cudaStreamSynchronize(s);
    } else if (!strcmp(step, "copy")) {
        cudaMemcpyAsync(&host, *x, sizeof host, cudaMemcpyDeviceToHost, s);
    } else if (!strcmp(step, "again")) {
        if (*x) cudaFree(*x);
        cudaMalloc(x, BYTES);
        cudaMemset(*x, 0, BYTES);
    } else if (!strcmp(step, "record")) {
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    } else if (!strcmp(step, "play")) {
        cudaStreamEndCapture(s, &g);
        cudaGraphLaunch(g, s);
    } else if (*step == '!') {
        LAUNCH(do_kernel, BLOCKS, THREADS, 0, s, step + 1, (int *)*x);
    } else {
        LAUNCH_EARLY(do_kernel, BLOCKS, THREADS, 0, s, step, (int *)*x);
    }
}

/* Runs a case in a process of its own. Returns whether it ended as it should. */
static bool run_case(const test_case *c)
{
    char   output[MAX_OUTPUT] = "";
    size_t n                  = 0;
    int    ends[2], status = 0;
    if (pipe(ends)) return false;
    pid_t pid = fork();
    if (pid == 0) {
        void *x = NULL;
        dup2(ends[1], STDERR_FILENO);
        run_step("again", &x);
        for (int i = 0; i < MAX_STEPS && c->step[i]; i++) run_step(c->step[i], &x);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; n < sizeof output - 1 && (got = read(ends[0], output + n, sizeof output - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    bool ok = pid > 0 && waitpid(pid, &status, 0) == pid;
    if (c->error)
        ok = ok && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(output, c->error);
    else
        ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok)
        printf("FAILED: %s: expected %s, got status %d and: %s\n", c->name, c->error ? c->error : "no error", status,
               output);
    return ok;
}

int main(void)
{
    int failed = 0, n = (int)(sizeof cases / sizeof *cases);
    for (int i = 0; i < n; i++) failed += !run_case(&cases[i]);
    printf("waits of kernels: %d cases, %d failed\n", n, failed);
    return failed != 0;
}
