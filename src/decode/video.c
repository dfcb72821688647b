#include "decode/video.h"

#if __has_include(<libavformat/avformat.h>) && __has_include(<libswscale/swscale.h>)
#include "base/mem.h"
#include "decode/inside.h"

#include <dlfcn.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libswscale/swscale.h>
#include <math.h>

enum { BUFFER = 1 << 16, MAX_PACKETS = 1 << 22 };

/* Containers and codecs that are read. Others, such as playlists, refer to more files. */
#define FORMATS "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,ogg,gif,asf,h264,hevc"
#define CODECS                                                                                                         \
    "h264,hevc,vp8,vp9,av1,libdav1d,libaom-av1,mpeg4,mpeg2video,mpeg1video,mjpeg,theora,gif,h263,flv,wmv1,wmv2,wmv3,"  \
    "msmpeg4,msmpeg4v2,rawvideo,ffv1,png,qtrle"

#define FUNCTIONS(X)                                                                                                   \
    X(FORMAT, avformat_alloc_context)                                                                                  \
    X(FORMAT, avformat_open_input)                                                                                     \
    X(FORMAT, avformat_close_input)                                                                                    \
    X(FORMAT, avformat_find_stream_info)                                                                               \
    X(FORMAT, av_find_best_stream)                                                                                     \
    X(FORMAT, av_read_frame)                                                                                           \
    X(FORMAT, av_guess_frame_rate)                                                                                     \
    X(FORMAT, avio_alloc_context)                                                                                      \
    X(FORMAT, avio_context_free)                                                                                       \
    X(FORMAT, av_stream_get_side_data)                                                                                 \
    X(CODEC, avcodec_alloc_context3)                                                                                   \
    X(CODEC, avcodec_free_context)                                                                                     \
    X(CODEC, avcodec_parameters_to_context)                                                                            \
    X(CODEC, avcodec_open2)                                                                                            \
    X(CODEC, avcodec_send_packet)                                                                                      \
    X(CODEC, avcodec_receive_frame)                                                                                    \
    X(CODEC, av_packet_alloc)                                                                                          \
    X(CODEC, av_packet_free)                                                                                           \
    X(CODEC, av_packet_unref)                                                                                          \
    X(UTIL, av_frame_alloc)                                                                                            \
    X(UTIL, av_frame_free)                                                                                             \
    X(UTIL, av_malloc)                                                                                                 \
    X(UTIL, av_freep)                                                                                                  \
    X(UTIL, av_dict_set)                                                                                               \
    X(UTIL, av_dict_free)                                                                                              \
    X(UTIL, av_log_set_level)                                                                                          \
    X(UTIL, av_display_rotation_get)                                                                                   \
    X(SCALE, sws_getCachedContext)                                                                                     \
    X(SCALE, sws_scale)                                                                                                \
    X(SCALE, sws_freeContext)

#define DECLARE(library, name) __typeof__(name) *name;
static struct {
    FUNCTIONS(DECLARE)
} ff;
#undef DECLARE

enum { UTIL, CODEC, FORMAT, SCALE, LIBRARIES };

bool decode_video_load(err *e)
{
#define NAME(library, version) "lib" library ".so." AV_STRINGIFY(version)
    static const char *const names[LIBRARIES] = {[UTIL]   = NAME("avutil", LIBAVUTIL_VERSION_MAJOR),
                                                 [CODEC]  = NAME("avcodec", LIBAVCODEC_VERSION_MAJOR),
                                                 [FORMAT] = NAME("avformat", LIBAVFORMAT_VERSION_MAJOR),
                                                 [SCALE]  = NAME("swscale", LIBSWSCALE_VERSION_MAJOR)};
    void                    *library[LIBRARIES];
    for (int i = 0; i < LIBRARIES; i++)
        if (!(library[i] = dlopen(names[i], RTLD_NOW | RTLD_LOCAL)))
            return err_set(
                e, ERR_UNAVAILABLE,
                "videos need FFmpeg's libraries: install libavformat, libavcodec and libswscale (%s is missing)",
                names[i]);
#define LOAD(from, name)                                                                                               \
    if (!(ff.name = (__typeof__(name) *)dlsym(library[from], #name)))                                                  \
        return err_set(e, ERR_UNAVAILABLE, "videos need FFmpeg's libraries: %s has no function %s", names[from], #name);
    FUNCTIONS(LOAD)
#undef LOAD
    ff.av_log_set_level(AV_LOG_QUIET);
    return true;
}

typedef struct {
    str    file;
    size_t at;
} source;

typedef struct {
    AVFormatContext   *format;
    AVIOContext       *io;
    AVCodecContext    *codec;
    AVPacket          *packet;
    AVFrame           *frame;
    struct SwsContext *scale;
    source             in;
    int                stream, orientation;
    int64_t            n_packets; /* in the stream */
    double             fps;       /* 0: unknown */
} video;

static int on_read(void *ctx, uint8_t *to, int n)
{
    source *s    = ctx;
    size_t  left = s->file.n - s->at;
    if (!left) return AVERROR_EOF;
    size_t take = (size_t)n < left ? (size_t)n : left;
    memcpy(to, s->file.s + s->at, take);
    s->at += take;
    return (int)take;
}

static int64_t on_seek(void *ctx, int64_t to, int whence)
{
    source *s = ctx;
    whence &= ~AVSEEK_FORCE;
    if (whence == AVSEEK_SIZE) return (int64_t)s->file.n;
    if (whence == SEEK_CUR) to += (int64_t)s->at;
    if (whence == SEEK_END) to += (int64_t)s->file.n;
    if (to < 0 || (uint64_t)to > s->file.n) return AVERROR(EINVAL);
    s->at = (size_t)to;
    return to;
}

static void close_input(video *v)
{
    ff.avformat_close_input(&v->format);
    if (v->io) ff.av_freep(&v->io->buffer);
    ff.avio_context_free(&v->io);
}

static void close_video(video *v)
{
    ff.sws_freeContext(v->scale);
    ff.av_frame_free(&v->frame);
    ff.av_packet_free(&v->packet);
    ff.avcodec_free_context(&v->codec);
    close_input(v);
}

static bool no_memory(err *e) { return err_set(e, ERR_UNAVAILABLE, "no memory to decode a video"); }

static bool open_input(video *v, err *e)
{
    AVDictionary  *options = NULL;
    unsigned char *buffer  = ff.av_malloc(BUFFER);
    v->in.at               = 0;
    v->io                  = buffer ? ff.avio_alloc_context(buffer, BUFFER, 0, &v->in, on_read, NULL, on_seek) : NULL;
    v->format              = v->io ? ff.avformat_alloc_context() : NULL;
    if (!v->format) return no_memory(e);
    v->format->pb = v->io;
    v->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    ff.av_dict_set(&options, "format_whitelist", FORMATS, 0);
    ff.av_dict_set(&options, "codec_whitelist", CODECS, 0);
    ff.av_dict_set(&options, "protocol_whitelist", "", 0);
    int failed = ff.avformat_open_input(&v->format, NULL, NULL, &options);
    ff.av_dict_free(&options);
    return failed >= 0 || err_set(e, ERR_INPUT, "the file is not a video that can be read");
}

static int orientation_of(const AVStream *s)
{
    const uint8_t *matrix = ff.av_stream_get_side_data(s, AV_PKT_DATA_DISPLAYMATRIX, NULL);
    double         turn   = matrix ? ff.av_display_rotation_get((const int32_t *)(const void *)matrix) : 0;
    int            right  = isfinite(turn) ? (int)lrint(-turn / 90) & 3 : 0; /* quarter turns clockwise */
    return (const int[]){1, 6, 3, 8}[right];
}

static bool find_stream(video *v, err *e)
{
    const AVCodec *decoder = NULL;
    if (ff.avformat_find_stream_info(v->format, NULL) < 0)
        return err_set(e, ERR_INPUT, "the video is damaged: its streams cannot be read");
    v->stream = ff.av_find_best_stream(v->format, AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
    if (v->stream < 0 || !decoder) return err_set(e, ERR_INPUT, "the file has no video stream that can be decoded");
    AVStream  *s    = v->format->streams[v->stream];
    AVRational rate = ff.av_guess_frame_rate(v->format, s, NULL);
    v->fps          = rate.num > 0 && rate.den > 0 ? (double)rate.num / rate.den : 0;
    v->orientation  = orientation_of(s);
    v->codec        = ff.avcodec_alloc_context3(decoder);
    if (!v->codec) return no_memory(e);
    v->codec->thread_count = 1; /* the process can start no thread */
    v->codec->max_pixels   = PICTURE_MAX_PIXELS;
    if (ff.avcodec_parameters_to_context(v->codec, s->codecpar) < 0 || ff.avcodec_open2(v->codec, decoder, NULL) < 0)
        return err_set(e, ERR_INPUT, "the video's codec cannot be opened");
    return true;
}

/* Counts the packets of the stream, which are its frames, and opens the input again. */
static bool count_packets(video *v, err *e)
{
    while (ff.av_read_frame(v->format, v->packet) >= 0) {
        v->n_packets += v->packet->stream_index == v->stream;
        ff.av_packet_unref(v->packet);
        if (v->n_packets > MAX_PACKETS) return err_set(e, ERR_TOO_LARGE, "a video has at most %d frames", MAX_PACKETS);
    }
    if (!v->n_packets) return err_set(e, ERR_INPUT, "the video has no frames");
    close_input(v);
    return open_input(v, e) && (ff.avformat_find_stream_info(v->format, NULL) >= 0 ||
                                err_set(e, ERR_INPUT, "the video is damaged: its streams cannot be read"));
}

/* Decodes the next frame of the stream into v->frame. Returns false at the end. */
static bool next_frame(video *v)
{
    for (;;) {
        int got = ff.avcodec_receive_frame(v->codec, v->frame);
        if (got >= 0) return true;
        if (got != AVERROR(EAGAIN)) return false;
        if (ff.av_read_frame(v->format, v->packet) < 0) {
            if (ff.avcodec_send_packet(v->codec, NULL) < 0) return false;
            continue;
        }
        if (v->packet->stream_index == v->stream) ff.avcodec_send_packet(v->codec, v->packet); /* damaged: skipped */
        ff.av_packet_unref(v->packet);
    }
}

static bool to_rgb(picture *out, video *v, err *e)
{
    const AVFrame *f = v->frame;
    if (!picture_new(out, f->width, f->height, e)) return false;
    v->scale = ff.sws_getCachedContext(v->scale, f->width, f->height, (enum AVPixelFormat)f->format, f->width,
                                       f->height, AV_PIX_FMT_RGB24, SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT,
                                       NULL, NULL, NULL);
    /* The rows of the library may be longer than ours: its vector code writes whole vectors. */
    size_t   stride = ((size_t)f->width * 3 + 127) & ~(size_t)63;
    uint8_t *rows   = v->scale ? ff.av_malloc(stride * (size_t)f->height) : NULL;
    bool     ok     = rows && ff.sws_scale(v->scale, (const uint8_t *const *)f->data, f->linesize, 0, f->height,
                                           (uint8_t *const[]){rows}, (const int[]){(int)stride}) == f->height;
    for (int y = 0; ok && y < f->height; y++)
        memcpy(out->rgb + (size_t)y * (size_t)f->width * 3, rows + (size_t)y * stride, (size_t)f->width * 3);
    ff.av_freep(&rows);
    if (!ok) err_set(e, ERR_INPUT, "the video has frames of an unknown format");
    ok = ok && decode_orient(out, v->orientation, e);
    if (!ok) picture_free(out);
    return ok;
}

/* Converts the current frame to out->frames[i]. The first one determines the target size. */
static bool take_frame(decoded *out, const decode_job *job, video *v, int i, err *e)
{
    picture full;
    int     width = i ? out->frames->width : 0, height = i ? out->frames->height : 0;
    if (!to_rgb(&full, v, e)) return false;
    bool ok = true;
    if (!i) {
        out->source_width  = full.width;
        out->source_height = full.height;
        ok                 = patch_target_size(&width, &height, &job->patches, full.width, full.height, out->n, e);
        if (ok && (size_t)width * (size_t)height * 3 > DECODE_MAX_PIXELS / (size_t)out->n)
            ok = err_set(e, ERR_TOO_LARGE, "%d frames of %d x %d are too many", out->n, width, height);
    }
    ok = ok && picture_resize(&out->frames[i], &full, width, height, e);
    picture_free(&full);
    return ok;
}

/* Decodes in order up to the last selected frame. If the video has fewer frames than packets, the last is repeated. */
static bool take_frames(decoded *out, const decode_job *job, video *v, const int64_t *index, err *e)
{
    int  taken = 0;
    bool ok    = true;
    for (int64_t at = 0; ok && taken < out->n && next_frame(v); at++)
        while (ok && taken < out->n && index[taken] == at) ok = take_frame(out, job, v, taken, e) && ++taken;
    if (ok && !taken) return err_set(e, ERR_INPUT, "the video is damaged: no frame can be decoded");
    for (; ok && taken < out->n; taken++) {
        const picture *last = &out->frames[taken - 1];
        ok                  = picture_resize(&out->frames[taken], last, last->width, last->height, e);
    }
    return ok;
}

static bool decode_opened(decoded *out, const decode_job *job, video *v, err *e)
{
    int64_t index[FRAMES_MAX];
    v->packet = ff.av_packet_alloc();
    v->frame  = ff.av_frame_alloc();
    if (!v->packet || !v->frame) return no_memory(e);
    if (!open_input(v, e) || !find_stream(v, e) || !count_packets(v, e)) return false;
    out->n       = frames_pick(index, &job->frames, v->n_packets, v->fps);
    out->frames  = mem_try_n((size_t)out->n, sizeof *out->frames);
    out->seconds = mem_try_n((size_t)out->n, sizeof *out->seconds);
    if (!out->frames || !out->seconds) return no_memory(e);
    for (int i = 0; i < out->n; i++)
        out->seconds[i] = fmin((double)index[i] / (v->fps > 0 ? v->fps : FRAMES_UNKNOWN_S), 1e8);
    return take_frames(out, job, v, index, e);
}

bool decode_video(decoded *out, const decode_job *job, err *e)
{
    video v  = {.in = {.file = job->file}};
    bool  ok = decode_opened(out, job, &v, e);
    close_video(&v);
    return ok;
}

#else
bool decode_video_load(err *e)
{
    return err_set(e, ERR_UNAVAILABLE, "this program was built without FFmpeg's libraries, and cannot read videos");
}

bool decode_video(decoded *out, const decode_job *job, err *e)
{
    (void)out, (void)job;
    return decode_video_load(e);
}
#endif
