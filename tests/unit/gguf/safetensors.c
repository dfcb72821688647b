#include "gguf/safetensors.h"

#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "gguf/inside.h"
#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/* A file of this header and n bytes of data: 0, 1, 2, ... */
static void build(buf *b, const char *header, size_t n)
{
    uint64_t len = strlen(header);
    buf_init(b, 1 << 20);
    buf_put(b, &len, sizeof len);
    buf_puts(b, header);
    for (size_t i = 0; i < n; i++) buf_putc(b, (char)i);
}

/* Whether it is accepted; it is closed again. */
static bool accepts(const char *header, size_t n, err *e)
{
    buf          b;
    safetensors *s;
    build(&b, header, n);
    char *exact = xalloc(b.n); /* so that a sanitizer sees one byte too many */
    memcpy(exact, b.p, b.n);
    bool ok = safetensors_open_bytes(&s, (str){exact, b.n}, e);
    safetensors_close(s); /* NULL after a refusal */
    mem_free(exact);
    buf_deinit(&b);
    return ok;
}

#define ENTRY(dtype, shape, from, to)                                                                                  \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

TEST(safetensors_reads_shapes_turned_round)
{
    buf          b;
    err          e = {0};
    safetensors *s = NULL;
    build(&b,
          "{\"__metadata__\":{\"format\":\"pt\"}, \"m\":" ENTRY("BF16", "[2,3]", 4, 16) ",\"s\":" ENTRY(
              "F32", "[]", 0, 4) ",\"l\\u0061st\":" ENTRY("U8", "[1,1,2,1,3,1]", 16, 22) "}   ",
          22);
    if (!CHECK_OK(safetensors_open_bytes(&s, buf_str(&b), &e), e)) return;
    const tensor_table *tt = safetensors_tensors(s);
    CHECK_INT(tensor_count(tt), 3);
    const tensor *m = tensor_find(tt, STR("m")), *x = tensor_find(tt, STR("s")), *l = tensor_find(tt, STR("last"));
    if (CHECK(m && x && l)) {
        CHECK(m->type == QUANT_BF16 && m->n_dims == 2 && m->dim[0] == 3 && m->dim[1] == 2 && m->dim[2] == 1);
        CHECK(m->bytes == 12 && *(const char *)m->data == 4);
        CHECK(x->n_dims == 1 && x->dim[0] == 1 && x->dim[3] == 1 && x->bytes == 4 && *(const char *)x->data == 0);
        CHECK(l->type == QUANT_I8 && l->n_dims == 4);
        CHECK(l->dim[0] == 1 && l->dim[1] == 3 && l->dim[2] == 1 && l->dim[3] == 2);
    }
    CHECK_INT(safetensors_bytes(s), 0); /* nothing is mapped */
    safetensors_close(s);
    safetensors_close(NULL);
    buf_deinit(&b);
}

TEST(safetensors_knows_its_types)
{
    static const struct {
        const char *header;
        size_t      bytes;
    } cases[] = {
        {"{\"a\":" ENTRY("F64", "[2]", 0, 16) "}", 16},
        {"{\"a\":" ENTRY("F32", "[2]", 0, 8) "}", 8},
        {"{\"a\":" ENTRY("F16", "[2]", 0, 4) "}", 4},
        {"{\"a\":" ENTRY("BF16", "[2]", 0, 4) "}", 4},
        {"{\"a\":" ENTRY("I64", "[2]", 0, 16) "}", 16},
        {"{\"a\":" ENTRY("I32", "[2]", 0, 8) "}", 8},
        {"{\"a\":" ENTRY("I16", "[2]", 0, 4) "}", 4},
        {"{\"a\":" ENTRY("I8", "[2]", 0, 2) "}", 2},
        {"{\"a\":" ENTRY("U8", "[2]", 0, 2) "}", 2},
        {"{\"a\":" ENTRY("BOOL", "[2]", 0, 2) "}", 2},
        {"{}", 0},
    };
    err e = {0};
    for (size_t k = 0; k < COUNT(cases); k++) CHECK_OK(accepts(cases[k].header, cases[k].bytes, &e), e);
}

/* --- wrong files -------------------------------------------------------------------------------- */
static const struct {
    const char *header;
    size_t      bytes;
    const char *want;
} mistakes[] = {
    {"", 0, "end of the text"},
    {"[]", 0, "its header is not an object"},
    {"{} x", 0, "line 1"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4), 4, "line 1"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "'a' in __metadata__ is not a string"},
    {"{\"a\":7}", 0, "tensor 'a' is not described by an object"},
    {"{\"\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "a tensor without a name"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"a\":" ENTRY("F32", "[1]", 4, 8) "}", 8, "'a'"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a' has no dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor 'a' has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 'a' has no data_offsets"},
    {"{\"a\":" ENTRY("F8_E4M3", "[1]", 0, 1) "}", 1, "tensor 'a' has the dtype 'F8_E4M3', which is not supported"},
    {"{\"a\":{\"dtype\":3}}", 0, "tensor 'a' has a dtype that is not a string"},
    {"{\"a\":" ENTRY("F32", "3", 0, 4) "}", 4, "tensor 'a' has a shape that is not an array"},
    {"{\"a\":" ENTRY("F32", "[0]", 0, 0) "}", 0, "tensor 'a' has a dimension that is not a positive integer"},
    {"{\"a\":" ENTRY("F32", "[-1]", 0, 4) "}", 4, "tensor 'a' has a dimension that is not a positive integer"},
    {"{\"a\":" ENTRY("F32", "[1.5]", 0, 4) "}", 4, "tensor 'a' has a dimension that is not a positive integer"},
    {"{\"a\":" ENTRY("F32", "[[1]]", 0, 4) "}", 4, "tensor 'a' has a dimension that is not a positive integer"},
    {"{\"a\":" ENTRY("F32", "[2,1,1,4611686018427387904,4]", 0, 8) "}", 8, "tensor 'a' is too large"},
    {"{\"a\":" ENTRY("F32", "[4611686018427387904,4611686018427387904]", 0, 4) "}", 4, "tensor 'a' is too large"},
    {"{\"a\":" ENTRY("F64", "[9223372036854775807]", 0, 4) "}", 4, "tensor 'a' is too large"},
    {"{\"a\":" ENTRY("F32", "[9223372036854775808]", 0, 4) "}", 4, "not a positive integer"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 5) "}", 5, "tensor 'a' has 5 bytes, but its shape and dtype need 4"},
    {"{\"a\":" ENTRY("F32", "[1]", 4, 0) "}", 4, "tensor 'a' has the offsets 4 to 0, outside"},
    {"{\"a\":" ENTRY("F32", "[1]", -4, 0) "}", 4, "tensor 'a' has the offsets -4 to 0, outside"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 3, "tensor 'a' has the offsets 0 to 4, outside the 3 bytes of data"},
    {"{\"a\":" ENTRY("F32", "[1]", -9223372036854775808, 9223372036854775807) "}", 4, "outside the 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets that are not two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets that are not two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{}}}", 4, "data_offsets that is not an array"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 2, 6) "}", 6,
     "tensor 'b' starts at offset 2, inside another tensor"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) ",\"b\":" ENTRY("F32", "[1]", 0, 4) "}", 4, "inside another tensor"},
    {"{\"b\":" ENTRY("F32", "[1]", 8, 12) ",\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 12,
     "tensor 'b' starts at offset 8, after a gap"},
    {"{\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 6, "2 bytes after the last tensor"},
};

TEST(safetensors_refuses_each_mistake_with_its_sentence)
{
    for (size_t k = 0; k < COUNT(mistakes); k++) {
        err e = {0};
        CHECK_FAILS(accepts(mistakes[k].header, mistakes[k].bytes, &e), e, mistakes[k].want);
    }
}

TEST(safetensors_checks_the_length_of_its_header)
{
    err          e = {0};
    safetensors *s;
    char         bytes[16] = "\x09\0\0\0\0\0\0\0{}      ";
    CHECK_FAILS(safetensors_open_bytes(&s, (str){bytes, 0}, &e), e, "has 0 bytes, too few");
    CHECK_FAILS(safetensors_open_bytes(&s, (str){bytes, 7}, &e), e, "has 7 bytes, too few");
    CHECK_FAILS(safetensors_open_bytes(&s, (str){bytes, 16}, &e), e, "a header of 9 bytes, but the file has 16");
    memset(bytes, 0xff, 8);
    CHECK_FAILS(safetensors_open_bytes(&s, (str){bytes, 16}, &e), e, "a header of 18446744073709551615 bytes");
    memcpy(bytes, "\x01\xe1\xf5\x05\0\0\0\0", 8);
    CHECK_FAILS(safetensors_open_bytes(&s, (str){bytes, 16}, &e), e, "a header of 100000001 bytes, expected at most");
    memcpy(bytes, "\x08\0\0\0\0\0\0\0", 8);
    CHECK_OK(safetensors_open_bytes(&s, (str){bytes, 16}, &e), e);
    safetensors_close(s);
}

/* --- writing ------------------------------------------------------------------------------------ */
static const char *tmp_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp_dir(), name);
    return path;
}

static const float           some_floats[6] = {1, 2, 3, 4, 5, 6};
static const int32_t         some_ints[3]   = {7, -8, 9};
static const safetensors_out some[]         = {
            {"logits", QUANT_F32, 2, {3, 2}, some_floats},
            {"a \"name\"", QUANT_I32, 1, {3}, some_ints},
            {"one", QUANT_I64, 0, {0}, &(int64_t){-1}},
};

static int n_files_like(const char *part)
{
    int            n = 0;
    DIR           *d = opendir(test_tmp_dir());
    struct dirent *f;
    while (d && (f = readdir(d))) n += strstr(f->d_name, part) != NULL;
    if (d) closedir(d);
    return n;
}

TEST(safetensors_written_is_read_again)
{
    const char  *path = tmp_path("out.safetensors");
    err          e    = {0};
    safetensors *s    = NULL;
    for (int i = 0; i < 2; i++) CHECK_OK(safetensors_write(path, some, COUNT(some), &e), e); /* the second replaces */
    if (!CHECK_OK(safetensors_open(&s, path, &e), e)) return;
    const tensor *x = tensor_find(safetensors_tensors(s), STR("logits"));
    const tensor *y = tensor_find(safetensors_tensors(s), STR("a \"name\""));
    const tensor *z = tensor_find(safetensors_tensors(s), STR("one"));
    if (CHECK(x && y && z)) {
        CHECK(x->n_dims == 2 && x->dim[0] == 3 && x->dim[1] == 2 && !memcmp(x->data, some_floats, 24));
        CHECK(y->n_dims == 1 && y->dim[0] == 3 && y->type == QUANT_I32 && !memcmp(y->data, some_ints, 12));
        CHECK(z->n_dims == 1 && z->dim[0] == 1 && z->type == QUANT_I64 && !memcmp(z->data, &(int64_t){-1}, 8));
        CHECK_INT((uintptr_t)x->data % 8, 0); /* a mapping starts on a page */
    }
    CHECK(safetensors_bytes(s) > 44);
    safetensors_close(s);
    CHECK_INT(n_files_like("out.safetensors"), 1);
}

TEST(safetensors_write_leaves_nothing_behind_when_it_fails)
{
    err           e = {0};
    struct rlimit was, small;
    char          path[512];
    snprintf(path, sizeof path, "%s", tmp_path("full.safetensors"));
    float                *large = xnew_n(float, 100000);
    const safetensors_out x     = {"large", QUANT_F32, 1, {100000}, large};
    getrlimit(RLIMIT_FSIZE, &was);
    small                = was;
    small.rlim_cur       = 100000; /* stands for a full disk */
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    bool ok = safetensors_write(path, &x, 1, &e);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, handler);
    CHECK(!ok && e.code == ERR_IO && strstr(e.text, "full.safetensors"));
    CHECK_INT(n_files_like("full"), 0);
    mem_free(large);

    CHECK_FAILS(safetensors_write(test_tmp_dir(), some, 1, &e), e, "cannot write"); /* a directory is in the way */
    CHECK_FAILS(safetensors_write("/nonexistent/x", some, 1, &e), e, "cannot write /nonexistent/x");
    CHECK_FAILS(safetensors_write(path, &(safetensors_out){"x", QUANT_F64, 2, {INT64_MAX, 2}, NULL}, 1, &e), e,
                "tensor 'x' is too large");
    fault_fail_nth(1);
    CHECK_FAILS(safetensors_write(path, some, COUNT(some), &e), e, "no memory");
    CHECK_INT(n_files_like("full"), 0);
}

/* --- shards ------------------------------------------------------------------------------------- */
static void write_text(const char *name, const char *text) { test_tmp_file(name, text, strlen(text)); }

static void write_shards(const char *index)
{
    err e = {0};
    unlink(tmp_path("model.safetensors"));
    if (!safetensors_write(tmp_path("s1"), &some[0], 1, &e)) printf("%s\n", e.text);
    if (!safetensors_write(tmp_path("s2"), &some[1], 2, &e)) printf("%s\n", e.text);
    write_text("model.safetensors.index.json", index);
}

static const char good_index[] = "{\"metadata\":{\"total_size\":44},\"weight_map\":{\"one\":\"s2\",\"logits\":\"s1\","
                                 "\"a \\\"name\\\"\":\"s2\"}}";

TEST(safetensors_shards_are_one_model)
{
    err          e = {0};
    safetensors *s = NULL;
    write_shards(good_index);
    if (CHECK_OK(safetensors_open(&s, test_tmp_dir(), &e), e)) {
        CHECK_INT(tensor_count(safetensors_tensors(s)), 3);
        const tensor *x = tensor_find(safetensors_tensors(s), STR("logits"));
        CHECK(x && !memcmp(x->data, some_floats, 24));
        safetensors_drop(s, x);
        CHECK(x && !memcmp(x->data, some_floats, 24));
    }
    safetensors_close(s);
}

TEST(safetensors_refuses_wrong_shards)
{
    static const char *const cases[][2] = {
        {"[]", "index.json: it is not an object"},
        {"{}", "its weight_map is missing or empty"},
        {"{\"weight_map\":{}}", "its weight_map is missing or empty"},
        {"{\"weight_map\":[]}", "weight_map is not an object"},
        {"{\"weight_map\":{\"logits\":1}}", "weight_map gives tensor 'logits' no file name"},
        {"{\"weight_map\":{\"logits\":\"\"}}", "names the file ''"},
        {"{\"weight_map\":{\"logits\":\".\"}}", "names the file '.'"},
        {"{\"weight_map\":{\"logits\":\"../s1\"}}", "names the file '../s1'"},
        {"{\"weight_map\":{\"logits\":\"/etc/passwd\"}}", "names the file '/etc/passwd'"},
        {"{\"weight_map\":{\"logits\":\"sub/s1\"}}", "names the file 'sub/s1'"},
        {"{\"weight_map\":{\"logits\":\"s1\\u0000x\"}}", "names the file 's1"},
        {"{\"weight_map\":{\"logits\":\"s9\"}}", "s9: No such file"},
        {"{\"weight_map\":{\"logits\":\"s2\"}}", "tensor 'logits' is not in 's2', where weight_map has it"},
        {"{\"weight_map\":{\"logits\":\"s1\",\"one\":\"s2\",\"absent\":\"s1\"}}", "tensor 'absent' is not in 's1'"},
        {"{\"weight_map\":{\"one\":\"s2\",\"logits\":\"s1\",\"a \\\"name\\\"\":\"s1\"}}", "is not in 's1'"},
        {"{\"weight_map\":{\"logits\":\"s1\"}} x", "line 1"},
    };
    for (size_t k = 0; k < COUNT(cases); k++) {
        err          e = {0};
        safetensors *s = NULL;
        write_shards(cases[k][0]);
        CHECK_FAILS(safetensors_open(&s, test_tmp_dir(), &e), e, cases[k][1]);
        CHECK(s == NULL);
    }
}

TEST(safetensors_refuses_a_name_in_two_shards)
{
    err          e = {0};
    safetensors *s = NULL;
    write_shards("{\"weight_map\":{\"one\":\"s2\",\"logits\":\"s1\"}}");
    if (!safetensors_write(tmp_path("s1"), some, 3, &e)) printf("%s\n", e.text);
    CHECK_FAILS(safetensors_open(&s, test_tmp_dir(), &e), e, "appears twice");
}

TEST(safetensors_missing_files_are_named)
{
    err          e = {0};
    safetensors *s;
    unlink(tmp_path("model.safetensors"));
    unlink(tmp_path("model.safetensors.index.json"));
    CHECK_FAILS(safetensors_open(&s, test_tmp_dir(), &e), e, "has neither model.safetensors nor");
    CHECK_INT(e.code, ERR_NOT_FOUND);
    CHECK_FAILS(safetensors_open(&s, tmp_path("absent"), &e), e, "absent: No such file");
    CHECK_FAILS(safetensors_open(&s, test_tmp_file("empty", "", 0), &e), e, "cannot load");
}

TEST(safetensors_every_failed_allocation_is_an_error)
{
    safetensors *s  = NULL;
    bool         ok = false;
    long         n  = 0;
    write_shards(good_index);
    while (!ok && n < 200) {
        err e = {0};
        fault_fail_nth(++n);
        ok = safetensors_open(&s, test_tmp_dir(), &e);
        fault_fail_nth(0);
        CHECK_MSG(ok || (!s && e.text[0]), "no sentence when allocation %ld fails", n);
    }
    CHECK(ok && n > 8);
    safetensors_close(s);
}
