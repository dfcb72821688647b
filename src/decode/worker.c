/* The process that decodes: reads jobs from its socket, one after another. */
#include "decode/worker.h"

#include "base/mem.h"
#include "decode/inside.h"
#include "decode/message.h"
#include "decode/sandbox.h"
#include "decode/video.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOCKET = 3 };

static bool read_all(void *to, size_t n)
{
    for (char *p = to; n;) {
        ssize_t got = read(SOCKET, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

static bool write_all(const void *from, size_t n)
{
    for (const char *p = from; n;) {
        ssize_t put = write(SOCKET, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put;
        n -= (size_t)put;
    }
    return true;
}

static bool decode_still(decoded *out, const decode_job *job, err *e)
{
    picture full;
    int     width, height;
    bool    ok;
    if (!decode_picture(&full, job->file, e)) return false;
    out->frames        = mem_try(sizeof *out->frames);
    out->seconds       = mem_try(sizeof *out->seconds);
    out->n             = 1;
    out->source_width  = full.width;
    out->source_height = full.height;
    ok                 = (out->frames && out->seconds) || err_set(e, ERR_UNAVAILABLE, "no memory for a picture");
    ok                 = ok && patch_target_size(&width, &height, &job->patches, full.width, full.height, 0, e) &&
         picture_resize(out->frames, &full, width, height, e);
    picture_free(&full);
    return ok;
}

static bool reply_error(const err *why)
{
    int64_t      numbers[REPLY_NUMBERS];
    decode_reply r = {.code = why->code, .n_text = strlen(why->text)};
    decode_reply_write(numbers, &r);
    return write_all(numbers, sizeof numbers) && write_all(why->text, r.n_text);
}

static bool reply_frames(const decoded *d)
{
    int64_t      numbers[REPLY_NUMBERS];
    decode_reply r = {.n_frames      = d->n,
                      .width         = d->frames->width,
                      .height        = d->frames->height,
                      .source_width  = d->source_width,
                      .source_height = d->source_height};
    decode_reply_write(numbers, &r);
    bool ok = write_all(numbers, sizeof numbers) && write_all(d->seconds, (size_t)d->n * sizeof *d->seconds);
    for (int i = 0; ok && i < d->n; i++) ok = write_all(d->frames[i].rgb, picture_bytes(&d->frames[i]));
    return ok;
}

/* Handles one job. Returns false when the socket was closed, or something else than a job came. */
static bool handle_job(const err *unable)
{
    int64_t    numbers[REQUEST_NUMBERS];
    decode_job job;
    decoded    d = {0};
    err        e = {0};
    if (!read_all(numbers, sizeof numbers) || !decode_request_read(&job, numbers)) return false;
    char *file = mem_try(job.file.n);
    if (!file || !read_all(file, job.file.n)) return false;
    job.file.s = file;
    bool ok    = !unable->text[0] && (job.is_video ? decode_video : decode_still)(&d, &job, &e);
    bool sent  = ok ? reply_frames(&d) : reply_error(unable->text[0] ? unable : &e);
    decoded_free(&d);
    mem_free(file);
    mem_trim();
    return sent;
}

int decode_worker_main(int argc, char **args)
{
    err           unable  = {0};
    struct pollfd p       = {.fd = SOCKET, .events = POLLIN};
    bool          video   = argc > 0 && !strcmp(args[0], "video");
    int           idle_ms = argc > 1 ? atoi(args[1]) : -1;
    if ((!video || decode_video_load(&unable)) && !decode_sandbox_enter(&unable) && unable.code == ERR_IO)
        unable.code = ERR_UNAVAILABLE;
    while (poll(&p, 1, idle_ms) > 0)
        if (!handle_job(&unable)) break;
    return 0;
}
