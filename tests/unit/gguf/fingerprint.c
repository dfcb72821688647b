#include "gguf/fingerprint.h"

#include "base/mem.h"
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *tmp_path(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

static bool fingerprint_path(const char *path, char out[FINGERPRINT_MAX], err *e)
{
    checkpoint *cp;
    if (!checkpoint_open(&cp, path, e)) return false;
    fingerprint_checkpoint(cp, out);
    checkpoint_close(cp);
    return true;
}

/* Fingerprints any bytes, in place of the image of a small model. */
static void fingerprint_bytes(test_case *t, str bytes, char out[FINGERPRINT_MAX])
{
    file_map    small = {0};
    checkpoint *cp    = NULL;
    err         e     = {0};
    CHECK_OK(file_map_open(&small, test_path("models/nano/mtp.gguf"), &e), e);
    if (CHECK_OK(checkpoint_open_bytes(&cp, "image", (str){small.p, small.n}, &e), e)) {
        cp->image = (file_map){.p = bytes.s, .n = bytes.n};
        fingerprint_checkpoint(cp, out);
    }
    checkpoint_close(cp);
    file_map_close(&small);
}

TEST(fingerprint_tells_bytes_apart)
{
    char   mark[FINGERPRINT_MAX], other[FINGERPRINT_MAX];
    size_t n   = (size_t)100 << 20;
    char  *big = xalloc(n);
    fingerprint_bytes(t, STR("abc"), mark);
    CHECK_STR(str_of(mark), STR("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    fingerprint_bytes(t, (str){big, n}, mark);
    CHECK(str_starts(str_of(mark), "sha256-sampled:"));
    big[n - 1] = 1;
    fingerprint_bytes(t, (str){big, n}, other);
    CHECK(strcmp(mark, other));
    fingerprint_bytes(t, (str){big, n - 1}, other);
    CHECK(strcmp(mark, other));
    mem_free(big);
}

/* A copy of a model's directory and something beside it, with a byte of one of the files changed. */
#define COPIED "tests/golden/gemma4-dense"
static void copy_model(test_case *t, const char *file, char out[FINGERPRINT_MAX])
{
    static const char *const files[] = {"config.json", "model.safetensors", "README"};
    char                     from[600];
    err                      e = {0};
    mkdir(tmp_path("copied"), 0777);
    for (size_t i = 0; i < COUNT(files); i++) {
        file_map m = {0};
        char     to[64];
        snprintf(from, sizeof from, "%s/%s", test_path(COPIED), files[i]);
        snprintf(to, sizeof to, "copied/%s", files[i]);
        bool  there = file_exists(from) && file_map_open(&m, from, &e);
        char *copy  = xalloc(m.n + 1);
        if (there) memcpy(copy, m.p, m.n);
        if (!strcmp(file, files[i])) copy[m.n ? m.n - 1 : 0] ^= 1;
        test_tmp_file(to, copy, there ? m.n : 1);
        mem_free(copy);
        if (there) file_map_close(&m);
    }
    CHECK_OK(fingerprint_path(tmp_path("copied"), out, &e), e);
}

TEST(fingerprint_of_a_models_files)
{
    char     same[FINGERPRINT_MAX], other[FINGERPRINT_MAX], whole[FINGERPRINT_MAX];
    file_map m = {0};
    err      e = {0};
    CHECK_OK(fingerprint_path(test_path("models/nano/mtp.gguf"), same, &e), e);
    CHECK_OK(file_map_open(&m, test_path("models/nano/mtp.gguf"), &e), e);
    fingerprint_bytes(t, (str){m.p, m.n}, whole);
    CHECK_STR(str_of(same), str_of(whole));
    checkpoint *image = NULL; /* the same file in memory */
    if (CHECK_OK(checkpoint_open_bytes(&image, "image", (str){m.p, m.n}, &e), e)) fingerprint_checkpoint(image, same);
    checkpoint_close(image);
    CHECK_STR(str_of(same), str_of(whole));
    file_map_close(&m);
    copy_model(t, "", same);
    copy_model(t, "README", other);
    CHECK_STR(str_of(same), str_of(other));
    copy_model(t, "model.safetensors", other);
    CHECK(strcmp(same, other));
    CHECK_FAILS(fingerprint_path(tmp_path("not-there"), other, &e), e, "not-there");
}

static void stamp_path(test_case *t, const char *path, char mark[FINGERPRINT_MAX], char out[FINGERPRINT_STAMP_MAX])
{
    checkpoint *cp;
    err         e = {0};
    if (!CHECK_OK(checkpoint_open(&cp, path, &e), e)) return;
    fingerprint_checkpoint(cp, mark);
    fingerprint_stamp(cp, mark, out);
    checkpoint_close(cp);
}

/* The time of modification counts for files that are sampled only. */
TEST(fingerprint_stamp_has_the_times_of_sampled_files)
{
    static const struct timespec times[][2]               = {{{1000, 0}, {1000, 0}}, {{2000, 0}, {2000, 0}}};
    char                         mark[2][FINGERPRINT_MAX] = {0}, stamp[2][FINGERPRINT_STAMP_MAX] = {0};
    file_map                     m = {0};
    err                          e = {0};
    if (!CHECK_OK(file_map_open(&m, test_path("models/nano/mtp.gguf"), &e), e)) return;
    test_tmp_file("times.gguf", m.p, m.n);
    file_map_close(&m);
    for (int large = 0; large < 2; large++) {
        if (large) CHECK(truncate(tmp_path("times.gguf"), 65 << 20) == 0);
        for (int i = 0; i < 2; i++) {
            CHECK(utimensat(AT_FDCWD, tmp_path("times.gguf"), times[i], 0) == 0);
            stamp_path(t, tmp_path("times.gguf"), mark[i], stamp[i]);
        }
        CHECK_STR(str_of(mark[0]), str_of(mark[1]));
        CHECK_INT(strcmp(stamp[0], stamp[1]) != 0, large);
        CHECK(str_starts(str_of(stamp[0]), mark[0]));
    }
    unlink(tmp_path("times.gguf"));
}
