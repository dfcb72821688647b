/* The first byte selects: base64, a data URL, or the numbers of a request to the decoder and of its reply. What is
 * accepted is within the limits. */
#include "decode/message.h"
#include "decode/source.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 1 << 16 };

static void read_source(str text, bool is_url)
{
    source_options o = source_default_options();
    buf            b;
    err            e = {0};
    o.max_bytes      = MAX_BYTES;
    if (is_url && !str_starts(text, "data:")) return; /* no file and no network here */
    buf_init(&b, MAX_BYTES);
    bool ok = is_url ? source_load(&b, &o, text, &e) : source_base64(&b, text, &e);
    assert(ok || e.text[0]);
    assert(b.n <= MAX_BYTES && b.n <= text.n);
    buf_deinit(&b);
}

static void read_messages(str bytes)
{
    int64_t      in[REQUEST_NUMBERS] = {0};
    decode_job   job;
    decode_reply r;
    if (bytes.n) memcpy(in, bytes.s, bytes.n < sizeof in ? bytes.n : sizeof in);
    if (!decode_request_read(&job, in)) return;
    assert(job.file.n <= DECODE_MAX_FILE && job.patches.cell % job.patches.patch == 0);
    assert(!job.is_video || (job.frames.max_frames >= 1 && job.frames.max_frames <= FRAMES_MAX));
    int64_t reply[REPLY_NUMBERS] = {0};
    if (bytes.n > sizeof in)
        memcpy(reply, bytes.s + sizeof in, bytes.n - sizeof in < sizeof reply ? bytes.n - sizeof in : sizeof reply);
    if (!decode_reply_read(&r, reply, &job) || r.code != ERR_NONE) return;
    assert(r.n_frames >= 1 && r.n_frames <= (job.is_video ? job.frames.max_frames : 1));
    assert((size_t)r.width * (size_t)r.height * 3 * (size_t)r.n_frames <= DECODE_MAX_PIXELS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str rest = {(const char *)data + 1, size ? size - 1 : 0};
    if (!size) return 0;
    if (data[0] % 3 == 2)
        read_messages(rest);
    else
        read_source(rest, data[0] % 3 == 1);
    return 0;
}
