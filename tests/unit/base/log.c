#include "base/log.h"

#include "test.h"

static size_t time_bytes = sizeof "2026-01-01T00:00:00.000Z" - 1;

static const log_field fields[] = {{.kind = LOG_STR, .name = "id", .s = "a1"},
                                   {.kind = LOG_STR, .name = "gone"},
                                   {.kind = LOG_STR, .name = "why", .s = "two \"words\""},
                                   {.kind = LOG_STR, .name = "empty", .s = ""},
                                   {.kind = LOG_INT, .name = "n", .i = -7},
                                   {.kind = LOG_REAL, .name = "rate", .d = 12.5}};

TEST(log_fields_as_text)
{
    test_listen_begin(false);
    log_fields(LOG_INFO, "request", fields, COUNT(fields));
    log_fields(LOG_DEBUG, "request", fields, COUNT(fields)); /* not asked for */
    const char *got = test_listen_end();
    CHECK_STR(str_of(got + time_bytes),
              STR(" info  request: id=a1 why=\"two \\\"words\\\"\" empty=\"\" n=-7 rate=12.5\n"));
}

TEST(log_fields_as_json)
{
    test_listen_begin(true);
    log_fields(LOG_INFO, "request", fields, COUNT(fields));
    const char *got = test_listen_end();
    CHECK(strncmp(got, "{\"ts\":\"", 7) == 0);
    CHECK_STR(str_of(got + 7 + time_bytes),
              STR("\",\"level\":\"info\",\"event\":\"request\",\"id\":\"a1\",\"why\":\"two "
                  "\\\"words\\\"\",\"empty\":\"\",\"n\":-7,\"rate\":12.5}\n"));
}

TEST(log_sentences)
{
    test_listen_begin(false);
    log_event(LOG_WARN, "load", "one\nline of %d", 2);
    CHECK_STR(str_of(test_listen_end() + time_bytes), STR(" warn  load: one line of 2\n"));
    test_listen_begin(true);
    log_event(LOG_WARN, "load", "one\nline of %d", 2);
    CHECK_STR(str_of(test_listen_end() + 7 + time_bytes),
              STR("\",\"level\":\"warn\",\"event\":\"load\",\"message\":\"one\\nline of 2\"}\n"));
}
