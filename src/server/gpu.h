/* server/gpu.h - the state of the machine's NVIDIA GPUs, as the management library of their driver (NVML) reports it.
 *
 * The library is loaded when the watch starts; without it there are no GPUs. A thread of the watch reads the state once
 * a second while someone asks for it, because a call may take long. */
#ifndef TANDEM_SERVER_GPU_H
#define TANDEM_SERVER_GPU_H
#include <stdint.h>

enum { GPU_MAX = 16 };
typedef struct {
    char    name[96];
    int     temperature_c; /* this and the following: below 0 if it is not known */
    double  power_w, utilisation;
    int64_t memory_bytes, memory_used_bytes;
    int     sm_mhz, memory_mhz, power_state; /* power_state: 0 is P0, the highest clocks */
    double  power_limit_w;
} gpu_state;

/* Reads the state of all GPUs now, which may take long. Returns their number. find: as for gpu_watch_start. */
int gpu_read(void *(*find)(void *library, const char *name), gpu_state out[GPU_MAX]);

typedef struct gpu_watch gpu_watch;
/* find: a substitute of dlsym, for tests; NULL: the functions of libnvidia-ml.so.1. Returns NULL when the system can
 * start no thread. */
gpu_watch *gpu_watch_start(void *(*find)(void *library, const char *name));
void       gpu_watch_stop(gpu_watch *w); /* accepts NULL */
/* Copies the last state and returns the number of GPUs. The first calls may return 0. Does not block. */
int gpu_watch_get(gpu_watch *w, gpu_state out[GPU_MAX]);
#endif
