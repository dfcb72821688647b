/* Frames of a video: an AVI file with pixels as they are, written here. */
#include "base/buf.h"
#include "decode/worker.h"
#include "test.h"
#include "unit/media/rules.h"

enum { W = 64, H = 48 };

static void put_le(buf *b, int n, uint32_t v)
{
    for (int i = 0; i < n; i++) buf_putc(b, (char)(v >> 8 * i));
}

static size_t begin_chunk(buf *b, const char *name, const char *type)
{
    buf_puts(b, name);
    put_le(b, 4, 0);
    size_t at = b->n;
    buf_puts(b, type);
    return at;
}

static void end_chunk(buf *b, size_t at)
{
    uint32_t n = (uint32_t)(b->n - at);
    for (size_t i = 0; i < 4; i++) b->p[at - 4 + i] = (char)(n >> 8 * i);
}

/* Frame i has the color (i, 2 i, 255 - i). */
static void write_avi(buf *b, int n_frames, int fps)
{
    size_t riff = begin_chunk(b, "RIFF", "AVI "), hdrl = begin_chunk(b, "LIST", "hdrl"),
           at                      = begin_chunk(b, "avih", "");
    const uint32_t main_header[14] = {1000000u / (uint32_t)fps, 0, 0, 0, (uint32_t)n_frames, 0, 1, 0, W, H};
    for (int i = 0; i < 14; i++) put_le(b, 4, main_header[i]);
    end_chunk(b, at);
    size_t strl               = begin_chunk(b, "LIST", "strl");
    at                        = begin_chunk(b, "strh", "vidsDIB ");
    const uint32_t stream[12] = {0, 0, 0, 1, (uint32_t)fps, 0, (uint32_t)n_frames, 0, 0, 0, 0, W | H << 16};
    for (int i = 0; i < 12; i++) put_le(b, 4, stream[i]);
    end_chunk(b, at);
    at                       = begin_chunk(b, "strf", "");
    const uint32_t image[10] = {40, W, H, 1 | 24 << 16, 0, W * H * 3, 0, 0, 0, 0};
    for (int i = 0; i < 10; i++) put_le(b, 4, image[i]);
    end_chunk(b, at);
    end_chunk(b, strl);
    end_chunk(b, hdrl);
    size_t movi = begin_chunk(b, "LIST", "movi");
    for (int i = 0; i < n_frames; i++) {
        at = begin_chunk(b, "00db", "");
        for (int k = 0; k < W * H; k++) put_le(b, 3, (uint32_t)(i << 16 | (2 * i & 255) << 8 | (255 - i)));
        end_chunk(b, at);
    }
    end_chunk(b, movi);
    end_chunk(b, riff);
}

static decode_job job_of(const buf *file, int max_frames)
{
    return (decode_job){.is_video = true,
                        .patches  = rule_rows(70),
                        .frames   = {.max_frames = max_frames, .stamp = FRAME_STAMP_CLOCK},
                        .file     = buf_str(file)};
}

/* Returns false when there are no libraries here. */
static bool run_job(test_case *t, decode_worker *w, decoded *out, const decode_job *job)
{
    err e;
    if (decode_worker_run(w, out, job, &e)) return true;
    if (strstr(e.text, "FFmpeg"))
        test_skip(t, "%s", e.text);
    else
        CHECK_MSG(false, "%s", e.text);
    return false;
}

TEST(decode_video_takes_frames_by_the_rule)
{
    decode_worker *w = decode_worker_new(decode_default_limits());
    decoded        d;
    buf            b;
    buf_init(&b, 1 << 24);
    write_avi(&b, 100, 10);
    decode_job job = job_of(&b, 5);
    if (run_job(t, w, &d, &job)) {
        CHECK_INT(d.n, 5);
        CHECK_INT(d.source_width, W);
        CHECK_INT(d.source_height, H);
        for (int i = 0; i < d.n; i++) {
            CHECK_NEAR(d.seconds[i], i * 2, 1e-9);
            CHECK_INT(d.frames[i].width, 432);
            CHECK_INT(d.frames[i].height, 336);
            for (size_t k = 0; k < picture_bytes(&d.frames[i]); k += 9999) {
                int want = (const int[]){i * 20, i * 40, 255 - i * 20}[k % 3];
                CHECK_INT(d.frames[i].rgb[k], want);
            }
        }
        decoded_free(&d);
        job.patches          = rule_cells();
        job.patches.min_area = 4096;
        job.frames = (frame_rule){.per_second = 2, .min_frames = 4, .max_frames = 768, .stamp = FRAME_STAMP_SECONDS};
        if (run_job(t, w, &d, &job)) {
            CHECK_INT(d.n, 20);
            CHECK_NEAR(d.seconds[19], 9.9, 1e-9);
            CHECK_INT(d.frames->width, 64);
            CHECK_INT(d.frames->height, 64); /* 48 / 32 is 1.5, rounded to the even 2 */
            decoded_free(&d);
        }
    }
    buf_deinit(&b);
    decode_worker_free(w);
}

TEST(decode_video_refuses_what_is_none)
{
    static const char playlist[] = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
    static const char concat[]   = "ffconcat version 1.0\nfile /etc/passwd\n";
    const str         all[] = {STR("no video"), STR(""), {playlist, sizeof playlist - 1}, {concat, sizeof concat - 1}};
    decode_worker    *w     = decode_worker_new(decode_default_limits());
    decoded           d;
    buf               b;
    buf_init(&b, 1 << 20);
    write_avi(&b, 3, 10);
    decode_job job = job_of(&b, 32);
    if (run_job(t, w, &d, &job)) {
        CHECK_INT(d.n, 3);
        decoded_free(&d);
        err e;
        for (size_t i = 0; i < COUNT(all); i++) {
            job.file = all[i];
            CHECK_FAILS(decode_worker_run(w, &d, &job, &e), e, "not a video");
        }
        uint64_t state = 1;
        for (int i = 0; i < 20; i++) { /* damage costs an error or pixels, never the process's answer */
            for (int k = 0; k < 8; k++) b.p[test_rand(&state) % 400] ^= (char)(1 << test_rand(&state) % 8);
            job.file = (str){b.p, b.n - test_rand(&state) % b.n};
            if (decode_worker_run(w, &d, &job, &e))
                decoded_free(&d);
            else
                CHECK_MSG(e.code == ERR_INPUT || e.code == ERR_TOO_LARGE, "%s", e.text);
        }
    }
    buf_deinit(&b);
    decode_worker_free(w);
}
