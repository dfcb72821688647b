/* decode/video.h - frames of a video, through FFmpeg's libraries. They are many and large, and are loaded when the
 * first video comes, in the process that decodes. */
#ifndef TANDEM_DECODE_VIDEO_H
#define TANDEM_DECODE_VIDEO_H
#include "decode/worker.h"

/* Loads the libraries. ERR_UNAVAILABLE: they are not installed, or were not there when this program was built. */
bool decode_video_load(err *e);
/* Decodes and resizes the frames that the job selects. The libraries must be loaded. *out is empty before the call; the
 * caller frees it also after a failure. */
bool decode_video(decoded *out, const decode_job *job, err *e);
#endif
