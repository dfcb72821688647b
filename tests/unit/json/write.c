#include "json/json.h"

#include "test.h"

static void check_text(test_case *t, buf *b, str expected)
{
    CHECK(!b->failed);
    CHECK_STR(buf_str(b), expected);
    buf_clear(b);
}

TEST(json_writer_puts_commas_and_colons)
{
    buf         b;
    json_writer w;
    buf_init(&b, 1000);
    json_writer_init(&w, &b);
    json_begin_object(&w);
    json_key(&w, "a");
    json_put_int(&w, INT64_MIN);
    json_key_str(&w, STR("b\0c"));
    json_begin_array(&w);
    json_begin_array(&w);
    json_end(&w);
    json_put_bool(&w, true);
    json_put_bool(&w, false);
    json_begin_object(&w);
    json_end(&w);
    json_put_null(&w);
    json_put_str(&w, STR("x\"\n"));
    json_end(&w);
    json_key(&w, "d");
    json_begin_object(&w);
    json_key(&w, "e");
    json_put_real(&w, -2);
    json_key(&w, "f");
    json_put_real(&w, 1e-9);
    json_end(&w);
    json_end(&w);
    CHECK_INT(w.depth, 0);
    check_text(t, &b,
               STR("{\"a\":-9223372036854775808,\"b\\u0000c\":[[],true,false,{},null,\"x\\\"\\n\"],"
                   "\"d\":{\"e\":-2.0,\"f\":1e-9}}"));
    buf_deinit(&b);
}

TEST(json_writer_puts_null_for_what_is_no_number)
{
    buf         b;
    json_writer w;
    buf_init(&b, 1000);
    json_writer_init(&w, &b);
    json_begin_array(&w);
    json_put_real(&w, NAN);
    json_put_real(&w, INFINITY);
    json_put_real(&w, -INFINITY);
    json_put_real(&w, 0.5);
    json_end(&w);
    check_text(t, &b, STR("[null,null,null,0.5]"));
    buf_deinit(&b);
}

TEST(json_writer_puts_a_lone_value)
{
    buf         b;
    json_writer w;
    buf_init(&b, 1000);
    json_writer_init(&w, &b);
    json_put_int(&w, 7);
    check_text(t, &b, STR("7"));
    json_writer_init(&w, &b);
    json_put_str(&w, STR("\xff"));
    check_text(t, &b, STR("\"\xef\xbf\xbd\"")); /* never text that a strict reader refuses */
    buf_deinit(&b);
}

TEST(json_writer_reaches_its_depth_with_objects_and_arrays_mixed)
{
    buf               b;
    json_writer       w;
    arena             a;
    const json_value *v;
    err               e = {0};
    buf_init(&b, 10000);
    arena_init(&a, 1 << 20);
    json_writer_init(&w, &b);
    for (int i = 0; i < JSON_WRITER_DEPTH; i++) {
        if (i % 3)
            json_begin_array(&w);
        else
            json_begin_object(&w);
        if (i % 3 == 0) json_key(&w, "k");
    }
    json_put_int(&w, 1);
    for (int i = 0; i < JSON_WRITER_DEPTH; i++) json_end(&w);
    CHECK_OK(json_parse(&v, &a, buf_str(&b), NULL, &e), e); /* as deep as the reader goes */

    buf again;
    buf_init(&again, 10000);
    json_writer_init(&w, &again);
    json_put_value(&w, v);
    check_text(t, &again, buf_str(&b));
    json_writer_init(&w, &again); /* one deeper is too deep: an error, no crash */
    json_begin_array(&w);
    json_put_value(&w, v);
    json_end(&w);
    CHECK(again.failed);
    buf_deinit(&again);
    arena_deinit(&a);
    buf_deinit(&b);
}

TEST(json_writer_shows_a_full_buffer)
{
    buf         b;
    json_writer w;
    buf_init(&b, 8);
    json_writer_init(&w, &b);
    json_begin_array(&w);
    json_put_str(&w, STR("1234567"));
    json_end(&w);
    CHECK(b.failed && b.n <= 8);
    buf_deinit(&b);
}
