#include "base/sha256.h"

#include "test.h"

static void check_hash(test_case *t, const char *text, size_t times, size_t piece, const char *want)
{
    sha256 s;
    char   hex[65];
    size_t n   = strlen(text) * times;
    char  *all = xnew_n(char, n + 1);
    for (size_t i = 0; i < n; i++) all[i] = text[i % strlen(text)];
    sha256_init(&s);
    for (size_t at = 0; at < n; at += piece) sha256_put(&s, all + at, n - at < piece ? n - at : piece);
    sha256_hex(&s, hex);
    CHECK_STR(str_of(hex), str_of(want));
    mem_free(all);
}

/* The examples of the standard, in pieces of all sizes around a block. */
TEST(sha256)
{
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    for (size_t piece = 1; piece < 200; piece++) {
        check_hash(t, "abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check_hash(t, two, 1, piece, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    check_hash(t, "abc", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash(t, "a", 1000000, 4096, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
