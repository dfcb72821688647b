#include "server/keys.h"

#include "base/sha256.h"
#include "test.h"

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *hash_of(const char *key)
{
    static char hex[4][65];
    static int  at;
    sha256      s;
    at = (at + 1) % 4;
    sha256_init(&s);
    sha256_put(&s, key, strlen(key));
    sha256_hex(&s, hex[at]);
    return hex[at];
}

static void check_tenant(test_case *t, const keys *k, const char *key, const char *want)
{
    const char *got = keys_find(k, str_of(key));
    CHECK_MSG(got && strcmp(got, want) == 0, "the tenant of '%s' is %s, expected %s", key, got ? got : "nobody", want);
}

TEST(server_keys_find_their_tenants)
{
    char  text[1024], upper[65];
    keys *k;
    err   e = {0};
    for (int i = 0; i < 65; i++) {
        char c   = hash_of("three")[i];
        upper[i] = c >= 'a' && c <= 'f' ? (char)(c - 'a' + 'A') : c;
    }
    snprintf(text, sizeof text, "# a comment\n\n%s alice\r\n  %s  -\n\t%s bob@work.example_1\n%s alice", hash_of("one"),
             hash_of("two"), upper, hash_of("four"));
    if (!CHECK_OK(keys_read(&k, str_of(text), &e), e)) return;
    CHECK_INT(keys_count(k), 4);
    check_tenant(t, k, "one", "alice");
    check_tenant(t, k, "two", hash_of("two"));
    check_tenant(t, k, "three", "bob@work.example_1");
    check_tenant(t, k, "four", "alice"); /* a second key of the same tenant */
    CHECK(!keys_find(k, str_of("five")) && !keys_find(k, STR("")) && !keys_find(k, (str){0}));
    CHECK(!keys_find(k, str_of(hash_of("one")))); /* the hash itself opens nothing */
    CHECK(!keys_find(NULL, str_of("one")));
    keys_free(k);
}

/* Whatever is wrong, what stands in the file is not repeated: it may be a key. */
TEST(server_keys_refuse_what_is_no_hash)
{
    keys *k;
    err   e = {0};
    char  text[512];
    CHECK_FAILS(keys_read(&k, STR("sk-my-own-plain-key alice\n"), &e), e, "printf %s \"$KEY\" | sha256sum");
    CHECK(!strstr(e.text, "sk-my") && !k);
    snprintf(text, sizeof text, "%s\nX%s\n", hash_of("one"), hash_of("two") + 1);
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "line 2 is not the SHA-256");
    snprintf(text, sizeof text, "%s alice bob\n", hash_of("one"));
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "may be one name");
    snprintf(text, sizeof text, "%s ali\"ce\n", hash_of("one"));
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "may be one name");
    snprintf(text, sizeof text, "%s a\n\n%s b\n", hash_of("one"), hash_of("one"));
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "line 3: this key is there already");
    CHECK_FAILS(keys_read(&k, STR("# nothing\n"), &e), e, "no key");
    CHECK_FAILS(keys_read(&k, STR(""), &e), e, "no key");
    CHECK_FAILS(keys_load(&k, "/nowhere/keys", &e), e, "/nowhere/keys");
}

TEST(server_keys_of_the_command_line)
{
    static char long_key[KEY_MAX + 2];
    keys       *k;
    err         e = {0};
    if (CHECK_OK(keys_of_one(&k, STR("pass"), "default", &e), e)) check_tenant(t, k, "pass", "default");
    CHECK(!keys_find(k, STR("pas")) && !keys_find(k, STR("passs")));
    keys_free(k);
    memset(long_key, 'x', KEY_MAX + 1);
    CHECK_FAILS(keys_of_one(&k, STR(""), "default", &e), e, "1 to 512");
    CHECK_FAILS(keys_of_one(&k, str_of(long_key), "default", &e), e, "1 to 512");
}

TEST(server_keys_of_a_request)
{
    const str none = {0};
    CHECK_STR(key_of_fields(STR("Bearer abc"), none), STR("abc"));
    CHECK_STR(key_of_fields(STR("bEARER   abc \t"), none), STR("abc"));
    CHECK_STR(key_of_fields(none, STR("xyz")), STR("xyz"));
    CHECK_STR(key_of_fields(STR("Bearer abc"), STR("xyz")), STR("abc"));
    CHECK_STR(key_of_fields(STR("Basic abc"), STR("xyz")), STR("xyz")); /* a proxy's, not ours */
    CHECK_INT(key_of_fields(STR("Basic abc"), none).n, 0);
    CHECK_INT(key_of_fields(STR("Bearer"), none).n, 0);
    CHECK_INT(key_of_fields(STR("Bearer "), none).n, 0);
    CHECK_INT(key_of_fields(none, none).n, 0);
}

TEST(server_keys_made_here_open)
{
    char        key[2][KEY_MAX], path[4096];
    buf         line;
    keys       *k;
    err         e = {0};
    struct stat st;
    snprintf(path, sizeof path, "%s/made.keys", test_tmp_dir());
    for (int i = 0; i < 2; i++) {
        buf_init(&line, 1024);
        CHECK_OK(key_make(key[i], &line, i ? "carol" : NULL, &e), e);
        CHECK_OK(key_append(path, buf_str(&line), &e), e);
        buf_deinit(&line);
    }
    CHECK(strcmp(key[0], key[1]) != 0 && strlen(key[0]) == 7 + 64);
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    if (CHECK_OK(keys_load(&k, path, &e), e)) {
        check_tenant(t, k, key[1], "carol");
        check_tenant(t, k, key[0], hash_of(key[0]));
    }
    keys_free(k);
    CHECK(truncate(path, st.st_size - 1) == 0); /* the last line is left open */
    buf_init(&line, 1024);
    CHECK_OK(key_make(key[0], &line, "dave", &e) && key_append(path, buf_str(&line), &e), e);
    buf_deinit(&line);
    if (CHECK_OK(keys_load(&k, path, &e), e)) {
        check_tenant(t, k, key[1], "carol");
        check_tenant(t, k, key[0], "dave");
    }
    keys_free(k);
    buf_init(&line, 1024);
    CHECK_FAILS(key_make(key[0], &line, "no spaces", &e), e, "letters, digits");
    buf_deinit(&line);
    CHECK_FAILS(key_append("/nowhere/keys", STR("x"), &e), e, "cannot write /nowhere/keys");
}

TEST(server_keys_read_again)
{
    char  text[256], path[512];
    keys *k;
    err   e = {0};
    snprintf(text, sizeof text, "%s alice\n", hash_of("one"));
    snprintf(path, sizeof path, "%s", test_tmp_file("again.keys", text, strlen(text)));
    if (!CHECK_OK(keys_load(&k, path, &e), e)) return;
    test_tmp_file("again.keys", "plain\n", 6);
    CHECK_FAILS(keys_reload(&k, path, &e), e, "not the SHA-256");
    check_tenant(t, k, "one", "alice");
    snprintf(text, sizeof text, "%s bob\n", hash_of("two"));
    test_tmp_file("again.keys", text, strlen(text));
    CHECK_OK(keys_reload(&k, path, &e), e);
    CHECK(!keys_find(k, STR("one")));
    check_tenant(t, k, "two", "bob");
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 100; i++) CHECK_OK(keys_reload(&k, path, &e), e);
    CHECK(mallinfo2().uordblks < before + 10000); /* 100 lists take over 200,000 bytes */
    keys_free(k);
}
