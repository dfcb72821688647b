#include "gguf/gguf.h"

#include "base/fault.h"
#include "build_gguf.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

/* A little of everything: the model of most tests here. */
static void build_good(gguf_builder *b)
{
    static const char *const words[] = {"<pad>", "", "h\xC3\xA9"};
    const int64_t            dim[]   = {64, 3};
    uint64_t                 seed    = 5;
    char                     q[2 * 3 * sizeof(block_q4_0)];
    const float              scalar = 2.5f;

    gguf_builder_init(b);
    gguf_builder_str(b, "general.architecture", "gemma4");
    gguf_builder_u32(b, "gemma4.block_count", 2);
    gguf_builder_i32(b, "negative", -7);
    gguf_builder_f32(b, "gemma4.rope.freq_base", 1e6f);
    gguf_builder_bool(b, "yes", true);
    gguf_builder_bool(b, "no", false);
    gguf_builder_arr_i32(b, "heads", (int32_t[]){4, -1, 2}, 3);
    gguf_builder_arr_bool(b, "swa", (bool[]){true, false}, 2);
    gguf_builder_arr_str(b, "tokens", words, COUNT(words));
    gguf_builder_arr_f32(b, "empty", NULL, 0);
    gguf_builder_raw(b, "u64", GGUF_U64, &(uint64_t){UINT64_MAX}, 8);
    gguf_builder_raw(b, "f64", GGUF_F64, &(double){0.1}, 8);
    test_random_blocks(QUANT_Q4_0, &seed, 1, q, 192);
    gguf_builder_tensor(b, "blk.0.w", QUANT_Q4_0, 2, dim, q);
    gguf_builder_tensor(b, "scale", QUANT_F32, 1, (int64_t[]){1}, &scalar);
    gguf_builder_tensor(b, "cube", QUANT_BF16, 3, (int64_t[]){3, 5, 7}, NULL);
}

static bool open_built(gguf **g, const gguf_builder *b, buf *file, err *e)
{
    gguf_builder_bytes(b, file);
    return gguf_open_bytes(g, buf_str(file), e);
}

static void check_good(test_case *t, const gguf *g)
{
    const tensor_table *tt = gguf_tensors(g);
    CHECK_INT(gguf_n_values(g), 12);
    CHECK_STR(gguf_value_at(g, 1)->key, STR("gemma4.block_count"));
    CHECK_INT(tensor_count(tt), 3);
    const tensor *w = tensor_find(tt, STR("blk.0.w"));
    if (!CHECK(w != NULL)) return;
    CHECK(w == tensor_at(tt, 0) && w->type == QUANT_Q4_0 && w->n_dims == 2);
    CHECK(w->dim[0] == 64 && w->dim[1] == 3 && w->dim[2] == 1 && w->dim[3] == 1);
    CHECK_INT(w->bytes, 6 * 18);
    CHECK(*(const float *)tensor_find(tt, STR("scale"))->data == 2.5f);
    CHECK_INT(tensor_find(tt, STR("cube"))->bytes, 2 * 3 * 5 * 7);
    CHECK(!tensor_find(tt, STR("blk.0")) && !tensor_find(tt, STR("")));
}

TEST(gguf_reads_what_was_built)
{
    gguf_builder b;
    err          e = {0};
    gguf        *g;
    build_good(&b);
    for (b.version = 2; b.version <= 3; b.version++) {
        const char *path = gguf_builder_write(&b, "good.gguf");
        if (!CHECK_OK(gguf_open(&g, path, &e), e)) break;
        check_good(t, g);
        CHECK(gguf_bytes(g) > 300 && gguf_bytes(g) < 2000);
        gguf_drop(g, tensor_at(gguf_tensors(g), 0));
        check_good(t, g);
        gguf_close(g);
    }
    gguf_builder_deinit(&b);
    gguf_close(NULL);
}

TEST(gguf_scalars_convert_only_when_they_hold)
{
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    int64_t      i = 0;
    double       d = 0;
    bool         x = false;
    str          s;
    build_good(&b);
    CHECK_OK(open_built(&g, &b, &file, &e), e);
    CHECK(gguf_int(gguf_find(g, "gemma4.block_count"), &i) && i == 2);
    CHECK(gguf_int(gguf_find(g, "negative"), &i) && i == -7);
    CHECK(!gguf_int(gguf_find(g, "u64"), &i) && !gguf_int(gguf_find(g, "yes"), &i) && !gguf_int(NULL, &i));
    CHECK(!gguf_int(gguf_find(g, "heads"), &i) && !gguf_int(gguf_find(g, "f64"), &i));
    CHECK(gguf_real(gguf_find(g, "gemma4.rope.freq_base"), &d) && d == 1e6);
    CHECK(gguf_real(gguf_find(g, "f64"), &d) && d == 0.1);
    CHECK(gguf_real(gguf_find(g, "negative"), &d) && d == -7);
    CHECK(!gguf_real(gguf_find(g, "general.architecture"), &d) && !gguf_real(NULL, &d));
    CHECK(gguf_bool(gguf_find(g, "yes"), &x) && x);
    CHECK(gguf_bool(gguf_find(g, "no"), &x) && !x);
    CHECK(!gguf_bool(gguf_find(g, "negative"), &x) && !gguf_bool(NULL, &x));
    CHECK(gguf_str(gguf_find(g, "general.architecture"), &s) && str_is(s, "gemma4"));
    CHECK(!gguf_str(gguf_find(g, "tokens"), &s) && !gguf_str(gguf_find(g, "absent"), &s));
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_arrays_are_walked)
{
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    int64_t      i = 0;
    build_good(&b);
    CHECK_OK(open_built(&g, &b, &file, &e), e);
    const gguf_value *v = gguf_find(g, "heads");
    CHECK(v->type == GGUF_ARRAY && v->item == GGUF_I32 && v->n == 3);
    CHECK(gguf_item_int(v, 1, &i) && i == -1);
    CHECK(!gguf_item_int(v, 3, &i) && !gguf_item_int(gguf_find(g, "empty"), 0, &i) && !gguf_item_int(NULL, 0, &i));
    CHECK(!gguf_item_int(gguf_find(g, "tokens"), 0, &i) && !gguf_item_int(gguf_find(g, "negative"), 0, &i));
    CHECK(gguf_item_int(gguf_find(g, "swa"), 0, &i) && i == 1);
    CHECK(gguf_item_int(gguf_find(g, "swa"), 1, &i) && i == 0);
    v              = gguf_find(g, "tokens");
    const char *at = v->data;
    CHECK_STR(gguf_next_str(&at), STR("<pad>"));
    CHECK_STR(gguf_next_str(&at), STR(""));
    CHECK_STR(gguf_next_str(&at), STR("h\xC3\xA9"));
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_every_integer_type_is_an_integer)
{
    static const struct {
        uint32_t type;
        int64_t  want;
    } cases[] = {{GGUF_U8, 0xf1},
                 {GGUF_I8, -15},
                 {GGUF_U16, 0xf1f1},
                 {GGUF_I16, -3599},
                 {GGUF_U32, 0xf1f1f1f1},
                 {GGUF_I32, -235802127},
                 {GGUF_I64, -1012762419733073423}};
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    gguf_builder_init(&b);
    for (size_t k = 0; k < COUNT(cases); k++) {
        static const uint8_t bytes_of[] = {1, 1, 2, 2, 4, 4, [GGUF_I64] = 8};
        gguf_builder_raw(&b, (char[]){(char)('a' + k), 0}, cases[k].type, "\xf1\xf1\xf1\xf1\xf1\xf1\xf1\xf1",
                         bytes_of[cases[k].type]);
    }
    if (CHECK_OK(open_built(&g, &b, &file, &e), e))
        for (size_t k = 0; k < COUNT(cases); k++) {
            int64_t i = 0;
            CHECK(gguf_int(gguf_find(g, (char[]){(char)('a' + k), 0}), &i));
            CHECK_INT(i, cases[k].want);
        }
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_alignment_moves_the_data)
{
    static const uint32_t sizes[] = {8, 64, 4096, 65536};
    for (size_t k = 0; k < COUNT(sizes); k++) {
        gguf_builder b;
        buf          file;
        err          e = {0};
        gguf        *g;
        const float  x[2] = {1, 2};
        gguf_builder_init(&b);
        gguf_builder_align(&b, sizes[k]);
        gguf_builder_tensor(&b, "a", QUANT_F32, 1, (int64_t[]){1}, &x[0]);
        gguf_builder_tensor(&b, "b", QUANT_F32, 1, (int64_t[]){1}, &x[1]);
        if (CHECK_OK(open_built(&g, &b, &file, &e), e)) {
            CHECK(*(const float *)tensor_find(gguf_tensors(g), STR("a"))->data == 1);
            CHECK(*(const float *)tensor_find(gguf_tensors(g), STR("b"))->data == 2);
        }
        gguf_close(g);
        buf_deinit(&file);
        gguf_builder_deinit(&b);
    }
}

TEST(gguf_without_tensors_needs_no_data)
{
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    gguf_builder_init(&b);
    gguf_builder_str(&b, "general.architecture", "vocabulary");
    b.alignment = 0; /* no padding either */
    CHECK_OK(open_built(&g, &b, &file, &e), e);
    CHECK_INT(tensor_count(gguf_tensors(g)), 0);
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

/* --- wrong files: each builder makes one mistake ------------------------------------------------ */
#define BIG ((uint64_t)1 << 63)
static void info(gguf_builder *b, const char *name, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset)
{
    gguf_builder_info(b, name, 2, (uint64_t[]){d0, d1}, type, offset);
}
static void bad_version_1(gguf_builder *b) { b->version = 1; }
static void bad_version_4(gguf_builder *b) { b->version = 4; }
static void bad_endian(gguf_builder *b) { b->version = 0x03000000; }
static void bad_n_kv(gguf_builder *b) { b->n_kv = BIG; }
static void bad_n_kv_max(gguf_builder *b) { b->n_kv = UINT64_MAX; }
static void bad_n_tensors(gguf_builder *b) { b->n_tensors = BIG; }
static void bad_one_more_tensor(gguf_builder *b) { b->n_tensors++, b->data.n = 0, b->alignment = 0; }
static void bad_empty_key(gguf_builder *b) { gguf_builder_u32(b, "", 1); }
static void bad_key_twice(gguf_builder *b) { gguf_builder_u32(b, "gemma4.block_count", 1); }
static void bad_key_length(gguf_builder *b) { buf_put(&b->kv, "\xff\xff\xff\xff\xff\xff\xff\xff", 8), b->n_kv++; }
static void bad_type(gguf_builder *b) { gguf_builder_raw(b, "odd", 13, "\0\0\0\0\0\0\0\0", 8); }
static void bad_item_type(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", 99, 1, "\0\0\0\0\0\0\0\0", 8); }
static void bad_nested(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_ARRAY, 1, "\0\0\0\0\0\0\0\0", 8); }
static void bad_count(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_I32, 1000000, "", 0); }
static void bad_count_big(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_F64, BIG, "", 0); }
static void bad_count_wraps(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_U16, BIG + 1, "", 0); }
static void bad_str_count(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_STRING, BIG, "", 0); }
static void bad_str(gguf_builder *b) { gguf_builder_raw(b, "odd", GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8); }
static void bad_str_item(gguf_builder *b)
{
    gguf_builder_raw_arr(b, "odd", GGUF_STRING, 2, "\1\0\0\0\0\0\0\0x\0\0\0\0\0\1\0\0", 17);
}
static void bad_bool(gguf_builder *b) { gguf_builder_raw(b, "odd", GGUF_BOOL, "\2", 1); }
static void bad_bool_item(gguf_builder *b) { gguf_builder_raw_arr(b, "odd", GGUF_BOOL, 2, "\1\xff", 2); }
static void bad_align_0(gguf_builder *b) { gguf_builder_u32(b, "general.alignment", 0); }
static void bad_align_3(gguf_builder *b) { gguf_builder_u32(b, "general.alignment", 3); }
static void bad_align_4(gguf_builder *b) { gguf_builder_u32(b, "general.alignment", 4); }
static void bad_align_24(gguf_builder *b) { gguf_builder_u32(b, "general.alignment", 24); }
static void bad_align_big(gguf_builder *b) { gguf_builder_u32(b, "general.alignment", 131072); }
static void bad_align_minus(gguf_builder *b) { gguf_builder_i32(b, "general.alignment", -32); }
static void bad_align_kind(gguf_builder *b) { gguf_builder_str(b, "general.alignment", "32"); }
static void bad_no_name(gguf_builder *b) { info(b, "", 32, 1, QUANT_F32, 0); }
static void bad_name_twice(gguf_builder *b) { info(b, "scale", 1, 1, QUANT_F32, 256); }
static void bad_rank_0(gguf_builder *b) { gguf_builder_info(b, "odd", 0, NULL, QUANT_F32, 0); }
static void bad_rank_5(gguf_builder *b) { gguf_builder_info(b, "odd", 5, (uint64_t[]){1, 1, 1, 1, 1}, QUANT_F32, 0); }
static void bad_dim_0(gguf_builder *b) { info(b, "odd", 32, 0, QUANT_F32, 0); }
static void bad_dim_big(gguf_builder *b) { info(b, "odd", BIG, 1, QUANT_F32, 0); }
static void bad_elements(gguf_builder *b) { info(b, "odd", BIG / 2, 8, QUANT_F32, 0); }
static void bad_bytes(gguf_builder *b) { info(b, "odd", BIG / 4, 1, QUANT_F64, 0); }
static void bad_tensor_type(gguf_builder *b) { info(b, "odd", 256, 1, 16, 0); }
static void bad_tensor_type_big(gguf_builder *b) { info(b, "odd", 256, 1, 0xffffffff, 0); }
static void bad_block(gguf_builder *b) { info(b, "odd", 48, 2, QUANT_Q4_0, 0); }
static void bad_offset(gguf_builder *b) { info(b, "odd", 1, 1, QUANT_F32, 8); }
static void bad_offset_far(gguf_builder *b) { info(b, "odd", 1, 1, QUANT_F32, 1 << 20); }
static void bad_offset_wraps(gguf_builder *b) { info(b, "odd", 1, 1, QUANT_F32, UINT64_MAX - 31); }
static void bad_end(gguf_builder *b) { info(b, "odd", 64, 1, QUANT_F32, 192); }
static void bad_overlap(gguf_builder *b) { info(b, "odd", 8, 1, QUANT_F32, 96); }
static void bad_same_place(gguf_builder *b) { info(b, "odd", 1, 1, QUANT_F32, 128); }
static void bad_split(gguf_builder *b) { gguf_builder_u16(b, "split.count", 3); }
static void bad_split_kind(gguf_builder *b) { gguf_builder_i32(b, "split.count", -3); }

static const struct {
    void (*build)(gguf_builder *b);
    const char *want;
} mistakes[] = {
    {bad_version_1, "version 1, expected 2 or 3"},
    {bad_version_4, "version 4, expected 2 or 3"},
    {bad_endian, "big-endian"},
    {bad_n_kv, "claims 9223372036854775808 keys"},
    {bad_n_kv_max, "claims 18446744073709551615 keys"},
    {bad_n_tensors, "claims 9223372036854775808 tensors"},
    {bad_one_more_tensor, "the tensor table ends early, at byte"},
    {bad_empty_key, "a key without a name"},
    {bad_key_twice, "key 'gemma4.block_count' appears twice"},
    {bad_key_length, "keys end early"},
    {bad_type, "key 'odd' has the unknown type 13"},
    {bad_item_type, "key 'odd' is an array of the unknown type 99"},
    {bad_nested, "key 'odd' is an array of arrays"},
    {bad_count, "key 'odd' claims 1000000 items"},
    {bad_count_big, "key 'odd' claims 9223372036854775808 items"},
    {bad_count_wraps, "key 'odd' claims 9223372036854775809 items"},
    {bad_str_count, "key 'odd' claims 9223372036854775808 items"},
    {bad_str, "string 0 of key 'odd' runs past the end"},
    {bad_str_item, "string 1 of key 'odd' runs past the end"},
    {bad_bool, "key 'odd' has the boolean 2"},
    {bad_bool_item, "key 'odd' has the boolean 255"},
    {bad_align_0, "general.alignment is 0"},
    {bad_align_3, "general.alignment is 3"},
    {bad_align_4, "general.alignment is 4"},
    {bad_align_24, "general.alignment is 24"},
    {bad_align_big, "general.alignment is 131072"},
    {bad_align_minus, "general.alignment is -32"},
    {bad_align_kind, "general.alignment is not an integer"},
    {bad_no_name, "a tensor without a name"},
    {bad_name_twice, "tensor 'scale' appears twice"},
    {bad_rank_0, "tensor 'odd' has 0 dimensions"},
    {bad_rank_5, "tensor 'odd' has 5 dimensions"},
    {bad_dim_0, "tensor 'odd' has a dimension of 0"},
    {bad_dim_big, "tensor 'odd' has a dimension of 9223372036854775808"},
    {bad_elements, "tensor 'odd' is too large: dimension 1 of 2 is 8"},
    {bad_bytes, "tensor 'odd' is too large: 2305843009213693952 elements"},
    {bad_tensor_type, "tensor 'odd' has the type 16"},
    {bad_tensor_type_big, "tensor 'odd' has the type 4294967295"},
    {bad_block, "tensor 'odd' has rows of 48, not a multiple of Q4_0's block of 32"},
    {bad_offset, "tensor 'odd' has the offset 8, not a multiple of the alignment 32"},
    {bad_offset_far, "tensor 'odd' at offset 1048576 with 4 bytes runs past the end"},
    {bad_offset_wraps, "tensor 'odd' at offset 18446744073709551584 with 4 bytes runs past the end"},
    {bad_end, "tensor 'odd' at offset 192 with 256 bytes runs past the end"},
    {bad_overlap, "tensors 'blk.0.w' and 'odd' overlap"},
    {bad_same_place, "overlap"},
    {bad_split, "one of 3 parts"},
    {bad_split_kind, "split.count is not a number of parts"},
};

TEST(gguf_refuses_each_mistake_with_its_sentence)
{
    for (size_t k = 0; k < COUNT(mistakes); k++) {
        gguf_builder b;
        buf          file;
        err          e = {0};
        gguf        *g = NULL;
        build_good(&b);
        mistakes[k].build(&b);
        CHECK_FAILS(open_built(&g, &b, &file, &e), e, mistakes[k].want);
        CHECK(g == NULL && e.code == ERR_FORMAT);
        buf_deinit(&file);
        gguf_builder_deinit(&b);
    }
}

TEST(gguf_refuses_every_shorter_file)
{
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    build_good(&b);
    gguf_builder_bytes(&b, &file);
    for (size_t n = 0; n < file.n; n++) {
        char *copy = xalloc(n); /* exactly as large, so that a sanitizer sees one byte too many */
        memcpy(copy, file.p, n);
        CHECK_MSG(!gguf_open_bytes(&g, (str){copy, n}, &e) && e.text[0], "%zu of %zu bytes were accepted", n, file.n);
        mem_free(copy);
    }
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_survives_every_changed_byte)
{
    gguf_builder b;
    buf          file;
    gguf        *g;
    int          n_refused = 0;
    build_good(&b);
    gguf_builder_bytes(&b, &file);
    for (size_t i = 0; i < file.n; i++)
        for (int flip = 1; flip < 256; flip *= 2) {
            err e = {0};
            file.p[i] ^= (char)flip;
            bool ok = gguf_open_bytes(&g, buf_str(&file), &e);
            n_refused += !ok;
            CHECK(ok == (g != NULL) && ok == !e.text[0]);
            gguf_close(g);
            file.p[i] ^= (char)flip;
        }
    CHECK(n_refused > 1000);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_file_errors_name_the_file)
{
    err   e = {0};
    gguf *g;
    CHECK_FAILS(gguf_open(&g, "/nonexistent/x.gguf", &e), e, "cannot open /nonexistent/x.gguf");
    CHECK_INT(e.code, ERR_NOT_FOUND);
    CHECK_FAILS(gguf_open(&g, test_tmp_file("empty.gguf", "", 0), &e), e, "empty.gguf: it does not start with");
    CHECK_FAILS(gguf_open(&g, test_tmp_file("zip.gguf", "PK\3\4....................", 24), &e), e,
                "start with \"GGUF\"");
    CHECK_FAILS(gguf_open(&g, test_tmp_file("short.gguf", "GGUF\3\0\0\0", 8), &e), e, "ends early: the file has 8");
    CHECK_FAILS(gguf_open(&g, test_tmp_dir(), &e), e, "is a directory");
}

TEST(gguf_every_failed_allocation_is_an_error)
{
    gguf_builder b;
    buf          file;
    gguf        *g  = NULL;
    bool         ok = false;
    long         n  = 0;
    build_good(&b);
    for (int i = 0; i < 200; i++) /* tables grow more than once */
        gguf_builder_tensor(&b, (char[]){'t', (char)('a' + i / 26), (char)('a' + i % 26), 0}, QUANT_F32, 1,
                            (int64_t[]){1}, NULL);
    for (int i = 0; i < 200; i++) gguf_builder_u32(&b, (char[]){'k', (char)('a' + i / 26), (char)('a' + i % 26), 0}, 1);
    gguf_builder_bytes(&b, &file);
    while (!ok && n < 100) {
        err e = {0};
        fault_fail_nth(++n);
        ok = gguf_open_bytes(&g, buf_str(&file), &e);
        fault_fail_nth(0);
        CHECK(ok || (!g && e.code == ERR_UNAVAILABLE && strstr(e.text, "no memory")));
    }
    CHECK(ok && n > 10);
    CHECK_INT(tensor_count(gguf_tensors(g)), 203);
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

TEST(gguf_many_tensors_are_found_in_time)
{
    enum { N = 20000 };
    gguf_builder b;
    buf          file;
    err          e = {0};
    gguf        *g;
    char         name[32];
    gguf_builder_init(&b);
    for (uint64_t i = 0; i < N; i++) { /* last first, so that sorting has work */
        snprintf(name, sizeof name, "blk.%llu.weight", (unsigned long long)i);
        gguf_builder_info(&b, name, 1, (uint64_t[]){8}, QUANT_F32, 32 * (N - 1 - i));
    }
    for (uint64_t i = 0; i < N; i++) buf_put(&b.data, "0123456789abcdef0123456789abcdef", 32);
    if (CHECK_OK(open_built(&g, &b, &file, &e), e)) {
        for (int i = 0; i < N; i++) {
            snprintf(name, sizeof name, "blk.%d.weight", i);
            CHECK(tensor_find(gguf_tensors(g), str_of(name)) == tensor_at(gguf_tensors(g), (size_t)i));
        }
        CHECK(!tensor_find(gguf_tensors(g), STR("blk.20000.weight")));
    }
    gguf_close(g);
    buf_deinit(&file);
    gguf_builder_deinit(&b);
}

/* --- split models ------------------------------------------------------------------------------- */
typedef struct {
    const char *name; /* of the file */
    int         no, count, total;
    const char *tensor;
} part;

/* count or total 0: without the key. Gives the path. */
static const char *write_part(part p)
{
    gguf_builder b;
    gguf_builder_init(&b);
    if (p.no == 0) gguf_builder_str(&b, "general.architecture", "gemma4");
    if (p.no >= 0) gguf_builder_u16(&b, "split.no", (uint16_t)p.no);
    if (p.count) gguf_builder_u16(&b, "split.count", (uint16_t)p.count);
    if (p.total) gguf_builder_i32(&b, "split.tensors.count", p.total);
    gguf_builder_tensor(&b, p.tensor, QUANT_F32, 1, (int64_t[]){1}, &(float){(float)p.no});
    const char *path = gguf_builder_write(&b, p.name);
    gguf_builder_deinit(&b);
    return path;
}

static const char *write_three(void)
{
    write_part((part){"m-00001-of-00003.gguf", 0, 3, 3, "a"});
    write_part((part){"m-00003-of-00003.gguf", 2, 3, 3, "c"});
    return write_part((part){"m-00002-of-00003.gguf", 1, 3, 3, "b"});
}

TEST(gguf_any_part_opens_the_whole)
{
    char  path[512];
    err   e = {0};
    gguf *g;
    write_three();
    for (int i = 1; i <= 3; i++) {
        snprintf(path, sizeof path, "%s/m-%05d-of-00003.gguf", test_tmp_dir(), i);
        if (!CHECK_OK(gguf_open(&g, path, &e), e)) continue;
        CHECK_INT(tensor_count(gguf_tensors(g)), 3);
        CHECK(*(const float *)tensor_find(gguf_tensors(g), STR("c"))->data == 2.0f);
        CHECK(gguf_find(g, "general.architecture") != NULL);
        gguf_close(g);
    }
}

static void check_split_fails(test_case *t, part p, const char *want)
{
    err         e    = {0};
    gguf       *g    = NULL;
    const char *path = NULL;
    write_three();
    path = write_part(p);
    CHECK_FAILS(gguf_open(&g, path, &e), e, want);
    CHECK(g == NULL);
}

TEST(gguf_refuses_parts_that_do_not_belong)
{
    check_split_fails(t, (part){"m-00002-of-00003.gguf", 0, 3, 3, "b"},
                      "must end in -00001-of-00003.gguf"); /* repeated */
    check_split_fails(t, (part){"m-00002-of-00003.gguf", 3, 3, 3, "b"}, "split.no is 3, expected 0 to 2");
    check_split_fails(t, (part){"m-00002-of-00003.gguf", -1, 3, 3, "b"}, "split.no is missing");
    check_split_fails(t, (part){"m-00002-of-00003.gguf", 1, 2, 3, "b"}, "must end in -00002-of-00002.gguf");
    check_split_fails(t, (part){"m-00001-of-00003.gguf", 0, 3, 9, "a"},
                      "3 parts hold 3 tensors, but split.tensors.count is 9");
    check_split_fails(t, (part){"m-00001-of-00003.gguf", 0, 3, 0, "a"}, "split.tensors.count is missing");
    check_split_fails(t, (part){"m-00001-of-00003.gguf", 0, 3, -1, "a"}, "split.tensors.count is -1");
    check_split_fails(t, (part){"m-00002-of-00003.gguf", 1, 3, 3, "a"}, "tensor 'a' appears twice");
    check_split_fails(t, (part){"model.gguf", 1, 3, 3, "b"}, "must end in -00002-of-00003.gguf");
    check_split_fails(t, (part){"g", 1, 3, 3, "b"}, "must end in -00002-of-00003.gguf");
    check_split_fails(t, (part){"n-00001-of-00002.gguf", 0, 2, 2, "a"}, "part 2 of 2: cannot open");
}

TEST(gguf_refuses_a_wrong_part_behind_a_right_one)
{
    char  path[512];
    err   e = {0};
    gguf *g;
    write_three();
    write_part((part){"m-00003-of-00003.gguf", 1, 3, 3, "c"});
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", test_tmp_dir());
    CHECK_FAILS(gguf_open(&g, path, &e), e, "m-00003-of-00003.gguf: split.no is 1 of 3");
    write_part((part){"m-00003-of-00003.gguf", 2, 0, 3, "c"});
    CHECK_FAILS(gguf_open(&g, path, &e), e, "m-00003-of-00003.gguf: split.count is not 3");
}

TEST(gguf_split_survives_failed_allocations)
{
    char  path[512];
    gguf *g  = NULL;
    bool  ok = false;
    long  n  = 0;
    snprintf(path, sizeof path, "%s", write_three());
    while (!ok && n < 200) {
        err e = {0};
        fault_fail_nth(++n);
        ok = gguf_open(&g, path, &e);
        fault_fail_nth(0);
        CHECK(ok || (!g && e.code == ERR_UNAVAILABLE));
    }
    CHECK(ok && n > 10);
    gguf_close(g);
}
