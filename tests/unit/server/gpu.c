/* The state of GPUs, from a library that is made up here. */
#include "server/gpu.h"

#include "base/mem.h"
#include "test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static atomic_int began, ended;
static int        init(void)
{
    began++;
    return 0;
}
static int shut_down(void)
{
    ended++;
    return 0;
}
static int fail(void) { return 15; }
static int count(unsigned *n) { return *n = 20, 0; }
static int handle(unsigned i, void **out)
{
    static char gpu[20];
    *out = &gpu[i];
    return i == 1 ? 15 : 0; /* one that was lost */
}
static int name(void *gpu, char *out, unsigned cap)
{
    (void)gpu;
    memset(out, 'x', cap); /* without its NUL */
    return 0;
}
static int temperature(void *gpu, int sensor, unsigned *celsius)
{
    return (void)gpu, *celsius = 61 + (unsigned)sensor, 0;
}
static int power(void *gpu, unsigned *milliwatts) { return (void)gpu, *milliwatts = 312500, 0; }
static int utilisation(void *gpu, unsigned out[2]) { return (void)gpu, out[0] = 97, out[1] = 40, 0; }
static int memory(void *gpu, unsigned long long out[3]) { return (void)gpu, out[0] = 80, out[1] = 30, out[2] = 50, 0; }
static int clock_of(void *gpu, int which, unsigned *mhz) { return (void)gpu, *mhz = which == 1 ? 1980 : 3201, 0; }
static int power_state(void *gpu, int *state) { return (void)gpu, *state = 2, 0; }
static int power_limit(void *gpu, unsigned *milliwatts) { return (void)gpu, *milliwatts = 700000, 0; }

static void *find(void *library, const char *wanted)
{
    static const struct {
        const char *name;
        void       *f;
    } all[] = {{"nvmlInit_v2", init},
               {"nvmlShutdown", shut_down},
               {"nvmlDeviceGetCount_v2", count},
               {"nvmlDeviceGetHandleByIndex_v2", handle},
               {"nvmlDeviceGetName", name},
               {"nvmlDeviceGetTemperature", temperature},
               {"nvmlDeviceGetPowerUsage", power},
               {"nvmlDeviceGetUtilizationRates", utilisation},
               {"nvmlDeviceGetMemoryInfo", memory},
               {"nvmlDeviceGetClockInfo", clock_of},
               {"nvmlDeviceGetPerformanceState", power_state},
               {"nvmlDeviceGetPowerManagementLimit", power_limit}};
    (void)library;
    for (size_t i = 0; i < COUNT(all); i++)
        if (!strcmp(wanted, all[i].name)) return all[i].f;
    return NULL;
}

/* A driver that refuses to say anything but how many GPUs there are. */
static void *find_silent(void *library, const char *wanted)
{
    bool talks = !strcmp(wanted, "nvmlInit_v2") || !strcmp(wanted, "nvmlShutdown") ||
                 !strcmp(wanted, "nvmlDeviceGetCount_v2") || !strcmp(wanted, "nvmlDeviceGetHandleByIndex_v2");
    return talks ? find(library, wanted) : (void *)fail;
}
static void *find_old(void *library, const char *wanted)
{
    return strcmp(wanted, "nvmlDeviceGetPowerUsage") ? find(library, wanted) : NULL;
}

static void *find_no_clocks(void *library, const char *wanted)
{
    return strcmp(wanted, "nvmlDeviceGetClockInfo") ? find(library, wanted) : NULL;
}

TEST(gpu_read_has_clocks_and_power_states)
{
    gpu_state s[GPU_MAX];
    int       before = began - ended;
    CHECK_INT(gpu_read(find, s), GPU_MAX);
    CHECK(s[0].sm_mhz == 1980 && s[0].memory_mhz == 3201 && s[0].power_state == 2);
    CHECK_NEAR(s[0].power_limit_w, 700, 1e-9);
    CHECK_INT(gpu_read(find_no_clocks, s), GPU_MAX);
    CHECK(s[0].sm_mhz == -1 && s[0].memory_mhz == -1 && s[0].power_state == 2);
    CHECK_INT(gpu_read(find_silent, s), GPU_MAX);
    CHECK(s[0].sm_mhz == -1 && s[0].power_state == -1 && s[0].power_limit_w < 0);
    CHECK_INT(gpu_read(find_old, s), 0);
    CHECK_INT(began - ended, before);
    CHECK(gpu_read(NULL, s) >= 0); /* whatever this machine has */
}

static int wait_for_state(gpu_watch *w, gpu_state out[GPU_MAX])
{
    int n = 0;
    for (int i = 0; i < 2000 && !n; i++) {
        n = gpu_watch_get(w, out);
        if (!n) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return n;
}

TEST(gpu_watch_reads_what_the_driver_reports)
{
    gpu_state  s[GPU_MAX];
    int        before = began - ended;
    gpu_watch *w      = gpu_watch_start(find);
    CHECK_INT(wait_for_state(w, s), GPU_MAX); /* 19 of 20 can be read */
    CHECK_INT(strlen(s[0].name), sizeof s[0].name - 1);
    CHECK_INT(s[0].temperature_c, 61);
    CHECK_NEAR(s[0].power_w, 312.5, 1e-9);
    CHECK_NEAR(s[0].utilisation, 0.97, 1e-9);
    CHECK(s[0].memory_bytes == 80 && s[0].memory_used_bytes == 50);
    gpu_watch_stop(w);
    CHECK(began > 0 && began - ended == before); /* the library was closed */
}

TEST(gpu_watch_without_answers)
{
    gpu_state  s[GPU_MAX];
    gpu_watch *w = gpu_watch_start(find_silent);
    CHECK_INT(wait_for_state(w, s), GPU_MAX);
    CHECK(!s[0].name[0] && s[0].temperature_c < 0 && s[0].power_w < 0 && s[0].utilisation < 0 && s[0].memory_bytes < 0);
    gpu_watch_stop(w);
    w = gpu_watch_start(find_old); /* a function is missing */
    CHECK_INT(gpu_watch_get(w, s), 0);
    gpu_watch_stop(w);
    w = gpu_watch_start(NULL); /* whatever this machine has */
    CHECK(gpu_watch_get(w, s) >= 0);
    gpu_watch_stop(w);
    gpu_watch_stop(NULL);
}
