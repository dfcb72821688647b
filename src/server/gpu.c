#include "server/gpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* The functions of NVML that are used. All return 0 on success. */
typedef struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, void **out);
    int (*name)(void *gpu, char *out, unsigned cap);
    int (*temperature)(void *gpu, int sensor, unsigned *celsius);
    int (*power)(void *gpu, unsigned *milliwatts);
    int (*utilisation)(void *gpu, unsigned out[2]);      /* percent: the GPU, its memory */
    int (*memory)(void *gpu, unsigned long long out[3]); /* bytes: all, free, used */
    /* The following may be NULL. */
    int (*clock)(void *gpu, int which, unsigned *mhz);
    int (*power_state)(void *gpu, int *state);
    int (*power_limit)(void *gpu, unsigned *milliwatts);
    void *library; /* NULL: not loaded */
} nvml;
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, POWER_STATES = 16 };

struct gpu_watch {
    void *(*find)(void *library, const char *name);
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    bool            ending;
    double          asked; /* clock_s of the last question */
    gpu_state       state[GPU_MAX];
    int             n;
};

/* Fills in *v, which is zeroed. Call unload in any case. */
static bool load(nvml *v, void *(*find)(void *library, const char *name))
{
    const struct {
        void      **to;
        const char *name;
    } all[] = {{(void **)&v->init, "nvmlInit_v2"},
               {(void **)&v->shutdown, "nvmlShutdown"},
               {(void **)&v->count, "nvmlDeviceGetCount_v2"},
               {(void **)&v->handle, "nvmlDeviceGetHandleByIndex_v2"},
               {(void **)&v->name, "nvmlDeviceGetName"},
               {(void **)&v->temperature, "nvmlDeviceGetTemperature"},
               {(void **)&v->power, "nvmlDeviceGetPowerUsage"},
               {(void **)&v->utilisation, "nvmlDeviceGetUtilizationRates"},
               {(void **)&v->memory, "nvmlDeviceGetMemoryInfo"},
               {(void **)&v->clock, "nvmlDeviceGetClockInfo"},
               {(void **)&v->power_state, "nvmlDeviceGetPerformanceState"},
               {(void **)&v->power_limit, "nvmlDeviceGetPowerManagementLimit"}};
    enum { OPTIONAL = 3 }; /* the last ones */
    if (!find) {
        find       = dlsym;
        v->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!v->library) return false;
    }
    for (size_t i = 0; i < COUNT(all); i++)
        if (!(*all[i].to = find(v->library, all[i].name)) && i < COUNT(all) - OPTIONAL) return false;
    return v->init() == 0;
}

static void unload(nvml *v, bool loaded)
{
    if (loaded) v->shutdown();
    if (v->library) dlclose(v->library);
}

static int read_clock(const nvml *v, void *gpu, int which)
{
    unsigned mhz;
    return v->clock && !v->clock(gpu, which, &mhz) && mhz < INT_MAX ? (int)mhz : -1;
}

static void read_power(const nvml *v, void *gpu, gpu_state *s)
{
    unsigned milliwatts;
    int      state;
    s->power_state   = v->power_state && !v->power_state(gpu, &state) && state < POWER_STATES ? state : -1;
    s->power_limit_w = v->power_limit && !v->power_limit(gpu, &milliwatts) ? milliwatts / 1e3 : -1;
}

static void read_gpu(const nvml *v, void *gpu, gpu_state *s)
{
    unsigned           celsius, milliwatts, percent[2];
    unsigned long long memory[3];
    *s =
        (gpu_state){.temperature_c = -1, .power_w = -1, .utilisation = -1, .memory_bytes = -1, .memory_used_bytes = -1};
    if (v->name(gpu, s->name, sizeof s->name)) s->name[0] = 0;
    s->name[sizeof s->name - 1] = 0;
    if (!v->temperature(gpu, 0, &celsius)) s->temperature_c = (int)celsius;
    if (!v->power(gpu, &milliwatts)) s->power_w = milliwatts / 1e3;
    if (!v->utilisation(gpu, percent)) s->utilisation = percent[0] / 1e2;
    s->sm_mhz     = read_clock(v, gpu, CLOCK_SM);
    s->memory_mhz = read_clock(v, gpu, CLOCK_MEMORY);
    read_power(v, gpu, s);
    if (v->memory(gpu, memory)) return;
    s->memory_bytes      = (int64_t)memory[0];
    s->memory_used_bytes = (int64_t)memory[2];
}

static int read_gpus(const nvml *v, gpu_state out[GPU_MAX])
{
    unsigned n = 0;
    void    *gpu;
    int      got = 0;
    if (v->count(&n)) return 0;
    for (unsigned i = 0; i < n && got < GPU_MAX; i++)
        if (!v->handle(i, &gpu)) read_gpu(v, gpu, &out[got++]);
    return got;
}

/* Waits a second, or until the end. Called with the lock held. */
static void wait_second(gpu_watch *w)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&w->wake, &w->lock, &until);
}

static void *watch_gpus(void *arg)
{
    enum { IDLE_S = 5 };
    gpu_watch *w      = arg;
    nvml       v      = {0};
    bool       loaded = load(&v, w->find);
    pthread_mutex_lock(&w->lock);
    while (loaded && !w->ending) {
        gpu_state now[GPU_MAX];
        bool      wanted = clock_s() - w->asked < IDLE_S;
        pthread_mutex_unlock(&w->lock);
        int n = wanted ? read_gpus(&v, now) : 0;
        pthread_mutex_lock(&w->lock);
        if (wanted) {
            memcpy(w->state, now, (size_t)n * sizeof *now);
            w->n = n;
        }
        if (!w->ending) wait_second(w);
    }
    pthread_mutex_unlock(&w->lock);
    unload(&v, loaded);
    return NULL;
}

int gpu_read(void *(*find)(void *library, const char *name), gpu_state out[GPU_MAX])
{
    nvml v      = {0};
    bool loaded = load(&v, find);
    int  n      = loaded ? read_gpus(&v, out) : 0;
    unload(&v, loaded);
    return n;
}

gpu_watch *gpu_watch_start(void *(*find)(void *library, const char *name))
{
    gpu_watch *w = xnew(gpu_watch);
    w->find      = find;
    w->asked     = clock_s();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    if (!thread_start(&w->thread, watch_gpus, w)) {
        mem_free(w);
        return NULL;
    }
    return w;
}

void gpu_watch_stop(gpu_watch *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

int gpu_watch_get(gpu_watch *w, gpu_state out[GPU_MAX])
{
    pthread_mutex_lock(&w->lock);
    int n    = w->n;
    w->asked = clock_s();
    memcpy(out, w->state, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&w->lock);
    return n;
}
