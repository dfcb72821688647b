#include "decode/message.h"

#define MAGIC 0x31616964656d64 /* "dmedia1" */

void decode_request_write(int64_t out[REQUEST_NUMBERS], const decode_job *job)
{
    const patch_rule *p          = &job->patches;
    const frame_rule *f          = &job->frames;
    int64_t           per_second = 0;
    memcpy(&per_second, &f->per_second, sizeof per_second);
    const int64_t all[REQUEST_NUMBERS] = {
        MAGIC,     (int64_t)job->file.n, job->is_video, p->fit,      p->order,      p->patch,      p->cell,
        p->frames, p->max_cells,         p->min_area,   p->max_area, f->min_frames, f->max_frames, (int64_t)f->stamp,
        per_second};
    memcpy(out, all, sizeof all);
}

static bool within(int64_t v, int64_t lo, int64_t hi) { return v >= lo && v <= hi; }

bool decode_request_read(decode_job *job, const int64_t in[REQUEST_NUMBERS])
{
    double per_second;
    memcpy(&per_second, &in[14], sizeof per_second);
    if (in[0] != MAGIC || !within(in[1], 0, (int64_t)DECODE_MAX_FILE) || !within(in[2], 0, 1)) return false;
    if (!within(in[3], 0, PATCH_FIT_AREA) || !within(in[4], 0, PATCH_ORDER_CELLS) || !within(in[5], 1, 1024) ||
        !within(in[6], in[5], 1024) || in[6] % in[5] || !within(in[7], 1, 2))
        return false;
    if (!within(in[8], 0, 1 << 16) || !within(in[9], 0, PICTURE_MAX_PIXELS) || !within(in[10], in[9], (int64_t)1 << 32))
        return false;
    if (in[3] == PATCH_FIT_BUDGET ? in[8] < 1 : in[10] < in[6] * in[6]) return false;
    if (in[2] && (!within(in[11], 0, FRAMES_MAX) || !within(in[12], 1, FRAMES_MAX) ||
                  !within(in[13], 0, FRAME_STAMP_SECONDS) || !(per_second >= 0 && per_second <= 1000)))
        return false;
    *job = (decode_job){.is_video = in[2],
                        .patches  = {.fit       = (patch_fit)in[3],
                                     .order     = (patch_order)in[4],
                                     .patch     = (int)in[5],
                                     .cell      = (int)in[6],
                                     .frames    = (int)in[7],
                                     .max_cells = (int)in[8],
                                     .min_area  = in[9],
                                     .max_area  = in[10]},
                        .file     = {NULL, (size_t)in[1]}};
    if (in[2])
        job->frames = (frame_rule){.min_frames = (int)in[11],
                                   .max_frames = (int)in[12],
                                   .stamp      = (frame_stamp)in[13],
                                   .per_second = per_second};
    return true;
}

void decode_reply_write(int64_t out[REPLY_NUMBERS], const decode_reply *r)
{
    const int64_t all[REPLY_NUMBERS] = {MAGIC,    r->code,   (int64_t)r->n_text, r->n_frames,
                                        r->width, r->height, r->source_width,    r->source_height};
    memcpy(out, all, sizeof all);
}

bool decode_reply_read(decode_reply *r, const int64_t in[REPLY_NUMBERS], const decode_job *job)
{
    int width, height;
    if (in[0] != MAGIC || !within(in[1], ERR_NONE, ERR_CONTEXT)) return false;
    *r = (decode_reply){.code = (err_code)in[1]};
    if (r->code != ERR_NONE) {
        r->n_text = (size_t)in[2];
        return within(in[2], 1, sizeof((err *)0)->text - 1);
    }
    if (!within(in[3], 1, job->is_video ? job->frames.max_frames : 1) || !within(in[6], 1, PICTURE_MAX_SIDE) ||
        !within(in[7], 1, PICTURE_MAX_SIDE) || in[6] * in[7] > PICTURE_MAX_PIXELS)
        return false;
    int n = (int)in[3];
    if (!patch_target_size(&width, &height, &job->patches, (int)in[6], (int)in[7], job->is_video ? n : 0, NULL))
        return false;
    if (in[4] != width || in[5] != height || (size_t)width * (size_t)height * 3 > DECODE_MAX_PIXELS / (size_t)n)
        return false;
    r->n_frames      = n;
    r->width         = width;
    r->height        = height;
    r->source_width  = (int)in[6];
    r->source_height = (int)in[7];
    return true;
}
