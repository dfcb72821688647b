#include "server/keys_inside.h"

#include "base/fault.h"
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

/* A key opens where all 64 characters of its hash are the same, and two hashes that differ in one are two keys. */
TEST(server_keys_compare_the_whole_hash)
{
    for (int i = 0; i < 64; i++) {
        char  text[256], other[65];
        keys *k;
        err   e = {0};
        snprintf(other, sizeof other, "%s", hash_of("one"));
        other[i] = other[i] == '0' ? '1' : '0';
        snprintf(text, sizeof text, "%s stranger\n", other);
        if (!CHECK_OK(keys_read(&k, str_of(text), &e), e)) return;
        CHECK_MSG(!keys_find(k, STR("one")), "a hash that differs at %d opens", i);
        keys_free(k);
        snprintf(text, sizeof text, "%s stranger\n%s owner\n", other, hash_of("one"));
        if (!CHECK_OK(keys_read(&k, str_of(text), &e), e)) return;
        check_tenant(t, k, "one", "owner");
        keys_free(k);
    }
}

/* The table grows; every key keeps its own tenant, and the limits are the ones that are named. */
TEST(server_keys_up_to_their_limits)
{
    buf   text;
    char  key[KEY_MAX + 2], name[KEY_NAME_MAX + 2];
    keys *k;
    err   e = {0};
    buf_init(&text, 64 << 20);
    for (int i = 0; i < KEYS_MAX; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        buf_printf(&text, "%s n%d\n", hash_of(key), i);
    }
    if (!CHECK_OK(keys_read(&k, buf_str(&text), &e), e)) return;
    CHECK_INT(keys_count(k), KEYS_MAX);
    for (int i = 0; i < KEYS_MAX; i += i < 40 ? 1 : 97) {
        snprintf(key, sizeof key, "key-%d", i);
        snprintf(name, sizeof name, "n%d", i);
        check_tenant(t, k, key, name);
    }
    keys_free(k);
    buf_printf(&text, "%s last\n", hash_of("one more"));
    CHECK_FAILS(keys_read(&k, buf_str(&text), &e), e, "more than");
    CHECK(!k);
    for (int over = 0; over < 2; over++) {
        memset(key, 'k', sizeof key);
        memset(name, 'n', sizeof name);
        key[KEY_MAX + over] = name[KEY_NAME_MAX + over] = 0;
        buf_clear(&text);
        buf_printf(&text, "%s %s\n", hash_of("one"), name);
        bool ok = keys_read(&k, buf_str(&text), &e);
        CHECK(ok == !over);
        if (ok) check_tenant(t, k, "one", name);
        keys_free(k);
        buf_clear(&text);
        buf_printf(&text, "%s\n", hash_of(key));
        if (!CHECK_OK(keys_read(&k, buf_str(&text), &e), e)) return;
        CHECK((keys_find(k, str_of(key)) == NULL) == over);
        keys_free(k);
        CHECK(keys_of_one(&k, str_of(key), "x", &e) == !over);
        keys_free(k);
    }
    buf_deinit(&text);
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
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "only a name may follow");
    snprintf(text, sizeof text, "%s ali\"ce\n", hash_of("one"));
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "only a name may follow");
    snprintf(text, sizeof text, "%s a\n\n%s b\n", hash_of("one"), hash_of("one"));
    CHECK_FAILS(keys_read(&k, str_of(text), &e), e, "line 3: duplicate key");
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

/* A line is appended behind whatever stands there, on a line of its own. */
TEST(server_keys_are_appended_to_any_file)
{
    static const char *const before[] = {"", "#", "\n", "# x", "# x\n"}, *const want[] = {"k\n", "#\nk\n", "\nk\n",
                                                                                          "# x\nk\n", "# x\nk\n"};
    for (size_t i = 0; i < COUNT(before); i++) {
        char path[512], text[64] = "";
        err  e = {0};
        snprintf(path, sizeof path, "%s", test_tmp_file("any.keys", before[i], strlen(before[i])));
        CHECK_OK(key_append(path, STR("k\n"), &e), e);
        FILE *f = fopen(path, "r");
        if (f) text[fread(text, 1, sizeof text - 1, f)] = 0;
        if (f) fclose(f);
        CHECK_STR(str_of(text), str_of(want[i]));
    }
}

TEST(server_keys_without_memory)
{
    buf   text;
    char  key[16];
    keys *k;
    long  n = 1;
    buf_init(&text, 1 << 20);
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        buf_printf(&text, "%s\n", hash_of(key));
    }
    for (bool more = true; more; n++) {
        err e = {0};
        fault_fail_nth(n);
        bool ok = keys_read(&k, buf_str(&text), &e);
        more    = fault_tries() >= n;
        fault_fail_nth(0);
        CHECK(ok == (k != NULL) && ok == !more);
        if (!ok) CHECK_MSG(e.code == ERR_UNAVAILABLE && strstr(e.text, "no memory for"), "%s", e.text);
        keys_free(k);
    }
    CHECK_MSG(n > 3, "the list grew %ld times", n - 2);
    err e = {0};
    fault_fail_nth(1);
    CHECK(!keys_of_one(&k, STR("pass"), "default", &e) && !k);
    fault_fail_nth(0);
    CHECK_INT(e.code, ERR_UNAVAILABLE);
    buf_deinit(&text);
}
