/* Pictures from the file to the patches, bit for bit as the models' reference processors make them
 * (tests/golden/vision-images). */
#include "base/file.h"
#include "base/sha256.h"
#include "decode/decode.h"
#include "media/patches.h"
#include "test.h"
#include "unit/media/rules.h"
#include "json/json.h"

static void check_hash(test_case *t, const char *what, const void *p, size_t n, const json_value *want)
{
    sha256 s;
    char   hex[65];
    sha256_init(&s);
    sha256_put(&s, p, n);
    sha256_hex(&s, hex);
    CHECK_MSG(want && str_is(want->s, hex), "the hash of the %s is %s", what, hex);
}

static void check_patches(test_case *t, const patch_rule *r, const picture *p, const json_value *want)
{
    int      P    = patch_count(r, p->width, p->height), x, y;
    size_t   each = (size_t)patch_values(r);
    uint8_t *byte = xnew_n(uint8_t, (size_t)P * each);
    for (int i = 0; i < P; i++) {
        patch_position(&x, &y, r, p->width, i);
        patch_write(byte + (size_t)i * each, r, (const picture *const[]){p, p}, x, y);
    }
    check_hash(t, "patches", byte, (size_t)P * each, json_get(want, "patches_sha256"));
    mem_free(byte);
}

static void check_rule(test_case *t, const patch_rule *r, const picture *p, const json_value *want)
{
    int     w = 0, h = 0;
    picture small;
    err     e;
    if (!CHECK(want)) return;
    CHECK_OK(patch_target_size(&w, &h, r, p->width, p->height, 0, &e), e);
    CHECK_INT(w, json_get(want, "width")->i);
    CHECK_INT(h, json_get(want, "height")->i);
    CHECK_INT(patch_cells(r, w, h), json_get(want, "soft_tokens")->i);
    if (!CHECK_OK(picture_resize(&small, p, w, h, &e), e)) return;
    check_hash(t, "resized picture", small.rgb, picture_bytes(&small), json_get(want, "resized_sha256"));
    check_patches(t, r, &small, want);
    picture_free(&small);
}

static void check_picture(test_case *t, str name, const json_value *want)
{
    char     path[256];
    file_map f;
    picture  p;
    err      e;
    snprintf(path, sizeof path, "tests/golden/vision-images/%.*s", STR_ARG(name));
    if (!CHECK_OK(file_map_open(&f, test_path(path), &e), e)) return;
    if (CHECK_OK(decode_picture(&p, (str){f.p, f.n}, &e), e)) {
        patch_rule small = rule_rows(70), usual = rule_rows(280), cells = rule_cells();
        CHECK_INT(p.width, json_get(want, "width")->i);
        CHECK_INT(p.height, json_get(want, "height")->i);
        check_hash(t, path, p.rgb, picture_bytes(&p), json_get(want, "rgb_sha256"));
        check_rule(t, &small, &p, json_get(want, "gemma4_70"));
        check_rule(t, &usual, &p, json_get(want, "gemma4_280"));
        check_rule(t, &cells, &p, json_get(want, "qwen35"));
        picture_free(&p);
    }
    file_map_close(&f);
}

TEST(decode_golden_pictures)
{
    arena             a;
    file_map          f;
    const json_value *all;
    err               e;
    arena_init(&a, 1 << 20);
    if (!CHECK_OK(file_map_open(&f, test_path("tests/golden/vision-images/expected.json"), &e), e)) return;
    if (CHECK_OK(json_parse(&all, &a, (str){f.p, f.n}, NULL, &e), e)) {
        const json_value *images = json_get(all, "images");
        CHECK_INT(images->n, 8);
        for (size_t i = 0; i < images->n; i++) check_picture(t, images->member[i].key, &images->member[i].value);
    }
    file_map_close(&f);
    arena_deinit(&a);
}
