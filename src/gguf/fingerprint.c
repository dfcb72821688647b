#include "gguf/fingerprint.h"

#include "base/sha256.h"

#include <stdio.h>
#include <sys/stat.h>

enum { WHOLE = 64 << 20, PLACES = 64, PIECE = 64 << 10 };

static void put_sampled(sha256 *s, str bytes)
{
    uint64_t size = bytes.n;
    sha256_put(s, &size, sizeof size);
    for (size_t i = 0; i < PLACES; i++) sha256_put(s, bytes.s + (bytes.n - PIECE) * i / (PLACES - 1), PIECE);
}

/* Returns whether only some of the bytes were read. */
static bool put_bytes(sha256 *s, str bytes)
{
    bool sampled = bytes.n > WHOLE;
    if (sampled)
        put_sampled(s, bytes);
    else
        sha256_put(s, bytes.s, bytes.n);
    return sampled;
}

static void finish_hash(sha256 *s, bool sampled, char out[FINGERPRINT_MAX])
{
    char hex[65];
    sha256_hex(s, hex);
    snprintf(out, FINGERPRINT_MAX, "%s:%s", sampled ? "sha256-sampled" : "sha256", hex);
}

void fingerprint_checkpoint(const checkpoint *cp, char out[FINGERPRINT_MAX])
{
    sha256 s;
    sha256_init(&s);
    bool        sampled = put_bytes(&s, (str){cp->config_text.p, cp->config_text.n});
    const maps *files   = checkpoint_files(cp);
    sampled |= put_bytes(&s, (str){cp->image.p, cp->image.n});
    for (size_t i = 0; i < files->n; i++) sampled |= put_bytes(&s, (str){files->file[i].map.p, files->file[i].map.n});
    finish_hash(&s, sampled, out);
}

void fingerprint_stamp(const checkpoint *cp, const char *fingerprint, char out[FINGERPRINT_STAMP_MAX])
{
    const maps *files   = checkpoint_files(cp);
    bool        sampled = false;
    sha256      s;
    char        hex[65];
    sha256_init(&s);
    for (size_t i = 0; i < files->n; i++) {
        struct stat st;
        if (files->file[i].map.n <= WHOLE || stat(files->file[i].path, &st) < 0) continue;
        int64_t changed[2] = {st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        sha256_put(&s, changed, sizeof changed);
        sampled = true;
    }
    sha256_hex(&s, hex);
    snprintf(out, FINGERPRINT_STAMP_MAX, "%s%s%.16s", fingerprint, sampled ? " " : "", sampled ? hex : "");
}
