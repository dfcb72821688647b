#include "daemon/command.h"

#include "daemon/lines_command.h"
#include "test.h"

static bool read_line(arena *mem, command *c, const char *line, command_error *why)
{
    *why = (command_error){0};
    arena_init(mem, 1 << 20);
    return command_read(c, mem, str_of(line), 7, why);
}

static void check_refused(test_case *t, const char *line, const char *code, const char *words, bool has_id)
{
    arena         mem;
    command       c;
    command_error why;
    bool          ok = read_line(&mem, &c, line, &why);
    CHECK_MSG(!ok && why.code && !strcmp(why.code, code) && strstr(why.message, words) && (c.id != NULL) == has_id,
              "%s: %s, '%s', %s an id", line, ok ? "taken" : why.code, why.message, c.id ? "with" : "without");
    arena_deinit(&mem);
}

TEST(daemon_commands_are_refused_by_name)
{
    check_refused(t, "{", "bad_json", "line 7 is not JSON", false);
    check_refused(t, "[1]", "bad_json", "not a JSON object", false);
    check_refused(t, "{\"op\":\"ping\"}", "missing_id", "no id", false);
    check_refused(t, "{\"id\":null,\"op\":\"ping\"}", "missing_id", "no id", false);
    check_refused(t, "{\"id\":\"\",\"op\":\"ping\"}", "missing_id", "1 to 128 bytes", false);
    check_refused(t, "{\"id\":1.5,\"op\":\"ping\"}", "missing_id", "must be an integer", false);
    check_refused(t, "{\"id\":1}", "bad_request", "no op", true);
    check_refused(t, "{\"id\":1,\"op\":\"pong\"}", "unknown_op", "'pong'", true);
    check_refused(t, "{\"id\":1,\"op\":\"ping\",\"x\":1}", "bad_request", "unknown field 'x' of ping", true);
    check_refused(t, "{\"id\":1,\"op\":\"generate\",\"n\":2}", "bad_request", "unknown field 'n'", true);
    check_refused(t, "{\"id\":1,\"op\":\"generate\",\"temprature\":2}", "bad_request", "'temprature'", true);
}

TEST(daemon_commands_keep_id_and_meta)
{
    arena         mem;
    command       c;
    command_error why;
    bool          flag = true;
    str           s    = {0};
    CHECK(read_line(&mem, &c,
                    "{\"id\":\"a\",\"op\":\"generate\",\"meta\":[1],\"stream\":false,\"prompt\":\"x\","
                    "\"temperature\":0,\"response_format\":{}}",
                    &why));
    CHECK_INT(c.op, OP_GENERATE);
    CHECK_STR(c.id->s, STR("a"));
    CHECK(c.meta && c.meta->kind == JSON_ARRAY);
    CHECK(command_bool(&c, "stream", &flag, &why) && !flag);
    CHECK(command_str(&c, "prompt", &s, &why));
    CHECK_STR(s, STR("x"));
    CHECK(!command_str(&c, "stream", &s, &why));
    CHECK(!command_bool(&c, "prompt", &flag, &why));
    arena_deinit(&mem);
}

static lines_command parse(const char *line)
{
    lines_command c;
    lines_command_read(&c, str_of(line));
    return c;
}

TEST(daemon_older_commands_are_read)
{
    lines_command c = parse("/tmp/a.bin 128 samp=0.8,0.9,40,1.1,7\r");
    CHECK_INT(c.kind, LINES_PROMPT);
    CHECK_STR(str_of(c.path), STR("/tmp/a.bin"));
    CHECK_INT(c.n, 128);
    CHECK(c.sampled && c.temp == 0.8 && c.top_p == 0.9 && c.top_k == 40 && c.repeat == 1.1 && c.seed == 7);
    c = parse("generate samp=0.5 in 3 out");
    CHECK_INT(c.kind, LINES_GENERATE);
    CHECK(c.sampled && c.temp == 0.5 && c.top_p == 1 && c.repeat == 1);
    CHECK_STR(str_of(c.out), STR("out"));
    CHECK_INT(parse("a/b 3").kind, LINES_PROMPT);
    CHECK_INT(parse("  ").kind, LINES_EMPTY);
    CHECK_INT(parse("park").what, LINES_DRAFT | LINES_TARGET);
    CHECK_INT(parse("unpark draft").what, LINES_DRAFT);
    CHECK_INT(parse("park target").what, LINES_TARGET);
    CHECK_INT(parse("free drafter").kind, LINES_FREE_DRAFTER);
    CHECK_INT(parse("drafter free").kind, LINES_FREE_DRAFTER);
    CHECK_INT(parse("exit").kind, LINES_QUIT);
    c = parse("RESTORE 3 /tmp/a 9 snap=64:5");
    CHECK(c.kind == LINES_RESTORE && c.slot == 3 && c.n == 9 && c.snap_slot == 5 && c.snap_len == 64);
    CHECK_INT(parse("/a 1 snap=x").snap_slot, -1);
    CHECK_INT(parse("/a 1 snap=4:64").snap_slot, -1);
    CHECK_INT(parse("SNAPSHOT 63").kind, LINES_SNAPSHOT);
    CHECK_INT(parse("SNAPSHOT 64").kind, LINES_BAD_SLOT);
    CHECK_INT(parse("SNAPSHOT").kind, LINES_BAD);
    CHECK_INT(parse("FREE_SNAPSHOT 0").kind, LINES_FREE_SNAPSHOT);
    CHECK_INT(parse("LIST_SLOTS").kind, LINES_LIST_SLOTS);
}

TEST(daemon_older_commands_with_wrong_arguments_are_bad)
{
    static const char *const bad[] = {
        "/a",        "/a x",          "/a -1",         "/a 1 2",     "/a 99999999999",           "generate a",
        "park half", "/a 1 samp=hot", "/a 1 samp=1,2", "/a 1 samp=", "/a 1 samp=1,1,1,1,1,1,1,1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(parse(bad[i]).kind == LINES_BAD, "'%s' is %d", bad[i], parse(bad[i]).kind);
    CHECK_INT(parse("hello").kind, LINES_UNKNOWN);
}
