/* decode/worker.h - decodes pictures and videos in a process that can do nothing else.
 *
 * The process is this program, started again with DECODE_WORKER_COMMAND. It has no environment, no files except a
 * socket, no network, and limits of memory and time; a filter kills it at any system call that decoding does not need.
 * It starts with the first job, ends when idle, and is replaced after a crash or a timeout. A damaged file costs its
 * sender an error message. */
#ifndef TANDEM_DECODE_WORKER_H
#define TANDEM_DECODE_WORKER_H
#include "base/str.h"
#include "media/frames.h"
#include "media/patches.h"

#include <stdatomic.h>

#define DECODE_WORKER_COMMAND "decode-worker"     /* the first argument of the process; the second: picture or video */
#define DECODE_MAX_FILE       ((size_t)64 << 20)  /* bytes of a picture or video file */
#define DECODE_MAX_PIXELS     ((size_t)512 << 20) /* bytes of all frames of a result */

/* A file, and what a model reads of it. */
typedef struct {
    bool       is_video;
    patch_rule patches;
    frame_rule frames; /* with is_video */
    str        file;   /* borrowed */
    /* Set by another thread when the result is not needed any more: the job ends soon. NULL: never. */
    const atomic_bool *cancel;
} decode_job;

/* Pictures in the model's target size: one, or the frames of a video. */
typedef struct {
    int      n;
    picture *frames;  /* [n], all of one size */
    double  *seconds; /* [n] the times of the frames */
    int      source_width, source_height;
} decoded;

void decoded_free(decoded *d); /* frees and empties *d */

typedef struct decode_worker decode_worker;

typedef struct {
    double timeout_s; /* wall-clock time of a job */
    int    cpu_s;     /* processor time of a job, in seconds */
    double idle_s;    /* the process ends after this time without a job */
} decode_limits;

decode_limits decode_default_limits(void); /* 30 s, 20 s, 60 s */
/* Starts no process yet. */
decode_worker *decode_worker_new(decode_limits limits);
/* Ends the processes; no job may run. w may be NULL. */
void decode_worker_free(decode_worker *w);
/* Decodes a file, resizes it for the model, and blocks meanwhile. Jobs of several threads run one after another.
 * ERR_INPUT and ERR_TOO_LARGE: the file is at fault, also when it crashed the process or took too long.
 * ERR_UNAVAILABLE: no process, library or memory, or cancelled. *out is empty on failure. */
bool decode_worker_run(decode_worker *w, decoded *out, const decode_job *job, err *e);

/* Runs the process: reads jobs from descriptor 3 until it is closed. Returns the exit status. */
int decode_worker_main(int argc, char **args);
#endif
