/* What the writer writes the reader reads; what cannot be written leaves nothing behind. */
#include "gguf/gguf_write.h"

#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *out_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

/* Files in the scratch directory whose names start so. */
static int n_files(const char *start)
{
    DIR           *d = opendir(test_tmp_dir());
    struct dirent *f;
    int            n = 0;
    while (d && (f = readdir(d))) n += str_starts(str_of(f->d_name), start);
    if (d) closedir(d);
    return n;
}

static void remove_files(const char *start)
{
    DIR           *d = opendir(test_tmp_dir());
    struct dirent *f;
    while (d && (f = readdir(d)))
        if (str_starts(str_of(f->d_name), start)) unlink(out_path(f->d_name));
    if (d) closedir(d);
}

static void put_value(gguf_writer *w, const char *key, gguf_type type, const void *data)
{
    gguf_put_value(w, &(gguf_value){.key = str_of(key), .type = type, .item = type, .n = 1, .data = data});
}

static void put_all_kinds(gguf_writer *w)
{
    put_value(w, "u8", GGUF_U8, &(uint8_t){200});
    put_value(w, "i8", GGUF_I8, &(int8_t){-100});
    put_value(w, "u16", GGUF_U16, &(uint16_t){60000});
    put_value(w, "i16", GGUF_I16, &(int16_t){-30000});
    gguf_put_u32(w, "u32", 4000000000u);
    gguf_put_i32(w, "i32", -2000000000);
    put_value(w, "u64", GGUF_U64, &(uint64_t){(uint64_t)1 << 62});
    put_value(w, "i64", GGUF_I64, &(int64_t){INT64_MIN});
    gguf_put_f32(w, "f32", 1.5f);
    put_value(w, "f64", GGUF_F64, &(double){0.1});
    gguf_put_bool(w, "yes", true);
    gguf_put_str(w, "str", STR("a\0b"));
    gguf_put_strings(w, "none");
    gguf_put_strings(w, "strings");
    gguf_put_item(w, STR("one"));
    gguf_put_item(w, STR(""));
    gguf_put_item(w, STR("three"));
    gguf_put_array(w, "i32s", GGUF_I32, (int32_t[]){1, -2, 3}, 3);
    gguf_put_array(w, "bools", GGUF_BOOL, (uint8_t[]){1, 0}, 2);
    gguf_put_array(w, "f64s", GGUF_F64, (double[]){0.25}, 1);
}

static const struct {
    const char *key;
    int64_t     v;
} ints[] = {{"u8", 200},
            {"i8", -100},
            {"u16", 60000},
            {"i16", -30000},
            {"u32", 4000000000},
            {"i32", -2000000000},
            {"u64", (int64_t)1 << 62},
            {"i64", INT64_MIN}};

static void check_all_kinds(test_case *t, const gguf *g)
{
    int64_t i;
    double  d;
    bool    b;
    str     s;
    for (size_t k = 0; k < COUNT(ints); k++) {
        CHECK(gguf_int(gguf_find(g, ints[k].key), &i));
        CHECK_INT(i, ints[k].v);
    }
    CHECK(gguf_real(gguf_find(g, "f32"), &d) && d == 1.5);
    CHECK(gguf_real(gguf_find(g, "f64"), &d) && d == 0.1);
    CHECK(gguf_bool(gguf_find(g, "yes"), &b) && b);
    CHECK(gguf_str(gguf_find(g, "str"), &s) && s.n == 3 && !memcmp(s.s, "a\0b", 3));
    const gguf_value *none = gguf_find(g, "none"), *strings = gguf_find(g, "strings");
    CHECK(none && none->n == 0 && strings && strings->n == 3);
    const char *at = strings->data;
    CHECK_STR(gguf_next_str(&at), STR("one"));
    CHECK_STR(gguf_next_str(&at), STR(""));
    CHECK_STR(gguf_next_str(&at), STR("three"));
    CHECK(gguf_item_int(gguf_find(g, "i32s"), 1, &i) && i == -2);
    CHECK(gguf_item_int(gguf_find(g, "bools"), 0, &i) && i == 1);
    CHECK(gguf_find(g, "f64s") && gguf_find(g, "f64s")->item == GGUF_F64);
}

/* Tensors of odd sizes: tensor k has k + 1 rows of 3 floats, all of them k. */
enum { N_TENSORS = 9 };

static void put_tensors(gguf_writer *w)
{
    for (int k = 0; k < N_TENSORS; k++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%d", k);
        gguf_put_tensor(w, &(tensor){.name = str_of(name), .type = QUANT_F32, .n_dims = 2, .dim = {3, k + 1}});
    }
}

/* The data in pieces that do not care where a tensor ends. */
static bool put_data(gguf_writer *w, err *e)
{
    float  all[3 * N_TENSORS * (N_TENSORS + 1) / 2];
    size_t n = 0, piece = 7;
    for (int k = 0; k < N_TENSORS; k++)
        for (int i = 0; i < 3 * (k + 1); i++) all[n++] = (float)k;
    for (size_t at = 0; at < sizeof all; at += piece, piece = piece * 2 % 101)
        if (!gguf_writer_data(w, (const char *)all + at, sizeof all - at < piece ? sizeof all - at : piece, e))
            return false;
    return true;
}

static void check_tensors(test_case *t, const gguf *g)
{
    if (!CHECK(tensor_count(gguf_tensors(g)) == N_TENSORS)) return;
    for (int k = 0; k < N_TENSORS; k++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%d", k);
        const tensor *x = tensor_find(gguf_tensors(g), str_of(name));
        if (!CHECK(x && x->type == QUANT_F32 && x->n_dims == 2 && x->dim[0] == 3 && x->dim[1] == k + 1)) continue;
        for (size_t i = 0; i < x->bytes; i += sizeof(float)) {
            float f;
            memcpy(&f, (const char *)x->data + i, sizeof f);
            CHECK(f == (float)k);
        }
    }
}

static bool write_all(const char *path, uint64_t part_bytes, err *e)
{
    gguf_writer *w = gguf_writer_new();
    put_all_kinds(w);
    put_tensors(w);
    bool ok = gguf_writer_begin(w, path, part_bytes, e) && put_data(w, e) && gguf_writer_end(w, e);
    gguf_writer_free(w);
    return ok;
}

TEST(gguf_write_is_read_back)
{
    err   e = {0};
    gguf *g;
    CHECK_OK(write_all(out_path("w.gguf"), 0, &e), e);
    if (!CHECK_OK(gguf_open(&g, out_path("w.gguf"), &e), e)) return;
    CHECK_INT(gguf_n_values(g), 17);
    check_all_kinds(t, g);
    check_tensors(t, g);
    gguf_close(g);
    CHECK_INT(n_files("w.gguf"), 1);
}

TEST(gguf_write_splits_at_every_size)
{
    static const uint64_t sizes[] = {1, 500, 600, 700, 1000, 100000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        char  name[64], first[96];
        err   e = {0};
        gguf *g;
        snprintf(name, sizeof name, "split%zu.gguf", i);
        CHECK_OK(write_all(out_path(name), sizes[i], &e), e);
        snprintf(first, sizeof first, "split%zu", i);
        int n = n_files(first);
        snprintf(first, sizeof first, "split%zu-%05d-of-%05d.gguf", i, n, n);
        if (!CHECK_OK(gguf_open(&g, out_path(n > 1 ? first : name), &e), e)) continue;
        check_all_kinds(t, g);
        check_tensors(t, g);
        gguf_close(g);
        CHECK_INT(n, i == 0 ? N_TENSORS : i == COUNT(sizes) - 1 ? 1 : n);
    }
}

TEST(gguf_write_refuses_two_of_a_name)
{
    err          e = {0};
    gguf_writer *w = gguf_writer_new();
    gguf_put_u32(w, "same", 1);
    gguf_put_str(w, "same", STR("x"));
    CHECK_FAILS(gguf_writer_begin(w, out_path("twice.gguf"), 0, &e), e, "key 'same' appears twice");
    gguf_writer_free(w);
    w = gguf_writer_new();
    put_tensors(w);
    put_tensors(w);
    CHECK_FAILS(gguf_writer_begin(w, out_path("twice.gguf"), 0, &e), e, "tensor 'tensor.0' appears twice");
    gguf_writer_free(w);
    CHECK_INT(n_files("twice"), 0);
}

TEST(gguf_write_leaves_nothing_when_it_is_given_up)
{
    err          e = {0};
    gguf_writer *w = gguf_writer_new();
    put_tensors(w);
    CHECK_OK(gguf_writer_begin(w, out_path("half.gguf"), 200, &e), e);
    CHECK_OK(gguf_writer_data(w, (char[500]){0}, 500, &e), e);
    CHECK(n_files("half") > 1); /* temporary ones */
    gguf_writer_free(w);
    CHECK_INT(n_files("half"), 0);
    CHECK_FAILS(write_all(out_path("no/such/place.gguf"), 0, &e), e, "cannot write");
    CHECK_FAILS(write_all("/dev/null", 0, &e), e, "not a regular file");
    CHECK_FAILS(write_all(test_tmp_dir(), 0, &e), e, "not a regular file");
}

/* Limits the size of files, as a full disk would. */
TEST(gguf_write_leaves_nothing_when_the_disk_is_full)
{
    struct rlimit before, small;
    err           e  = {0};
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    for (rlim_t limit = 0; limit < 2048; limit += 100) {
        small.rlim_cur = limit;
        setrlimit(RLIMIT_FSIZE, &small);
        bool ok = write_all(out_path("full.gguf"), limit % 200 ? 300 : 0, &e);
        setrlimit(RLIMIT_FSIZE, &before);
        if (limit < 500) CHECK_MSG(!ok && strstr(e.text, "cannot write"), "limit %d: %s", (int)limit, e.text);
        if (!ok) CHECK_INT(n_files("full"), 0);
        remove_files("full");
    }
    signal(SIGXFSZ, old);
}

TEST(gguf_write_replaces_a_file_only_when_complete)
{
    err          e = {0};
    struct stat  st;
    gguf        *g;
    gguf_writer *w = gguf_writer_new();
    test_tmp_file("old.gguf", "old", 3);
    put_tensors(w);
    CHECK_OK(gguf_writer_begin(w, out_path("old.gguf"), 0, &e), e);
    CHECK(stat(out_path("old.gguf"), &st) == 0 && st.st_size == 3);
    gguf_writer_free(w);
    CHECK(stat(out_path("old.gguf"), &st) == 0 && st.st_size == 3);
    CHECK_OK(write_all(out_path("old.gguf"), 0, &e), e);
    CHECK_OK(gguf_open(&g, out_path("old.gguf"), &e), e);
    w = gguf_writer_new();
    gguf_writer_protect(w, g);
    CHECK_FAILS(gguf_writer_begin(w, out_path("old.gguf"), 0, &e), e, "it is the file that is being read");
    gguf_writer_free(w);
    gguf_close(g);
}
