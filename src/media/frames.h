/* media/frames.h - which frames of a video a model sees, and the time stamps in its prompt. */
#ifndef TANDEM_MEDIA_FRAMES_H
#define TANDEM_MEDIA_FRAMES_H
#include <stddef.h>
#include <stdint.h>

#define FRAMES_MAX       768
#define FRAMES_UNKNOWN_S 24.0 /* frames per second of a video that does not state it */

typedef enum {
    FRAME_STAMP_CLOCK,   /* "01:05 " before each step, a space also after the one before */
    FRAME_STAMP_SECONDS, /* "<65.5 seconds>" before each step: the mean time of its frames */
} frame_stamp;

/* Constants of a model, the last one bounded by a setting. */
typedef struct {
    double      per_second; /* frames taken of a second of video; 0: max_frames of the whole video */
    int         min_frames; /* with per_second; no more than the video has */
    int         max_frames; /* 1 .. FRAMES_MAX */
    frame_stamp stamp;
} frame_rule;

/* Writes the indices of the frames to take from a video of `total` frames (1 to 2^50), in ascending order. Returns
 * their number, at most r->max_frames and total. source_fps <= 0: unknown. */
int frames_pick(int64_t index[FRAMES_MAX], const frame_rule *r, int64_t total, double source_fps);
/* Writes the text before step i of a video whose frames have the given times in seconds, `each` frames a step. Returns
 * its length in bytes. */
size_t frames_stamp(char out[48], const frame_rule *r, const double *seconds, int n_frames, int each, int i);
#endif
