#include "server/page.h"

#include "test.h"

static const char *text_of(buf *b)
{
    buf_putc(b, 0);
    return b->p;
}

TEST(server_page_is_all_here)
{
    buf b;
    buf_init(&b, 1 << 20);
    page_part p = page_find(STR("/"));
    CHECK(p.is_template && strcmp(p.type, "text/html; charset=utf-8") == 0);
    page_fill(&b, p.body, "nano", "http://127.0.0.1:8080");
    const char *html = text_of(&b);
    CHECK(strstr(html, "curl http://127.0.0.1:8080/v1/chat/completions") && strstr(html, "<strong>nano</strong>"));
    CHECK(strstr(html, "</html>") && !strstr(html, "{{"));
    /* what the policy does not let it do, it does not try */
    CHECK(!strstr(html, "<script") && !strstr(html, "<style") && !strstr(html, "style=") && !strstr(html, "onclick"));
    for (const char *at = html; (at = strstr(at, "=\"/")); at++) { /* all that it loads or links to */
        size_t n    = strcspn(at + 2, "\"");
        str    path = {at + 2, n};
        if (str_ends(path, ".css") || str_ends(path, ".svg"))
            CHECK_MSG(page_find(path).type, "there is no %.*s", STR_ARG(path));
    }
    CHECK(!strstr(html, "src=\"http") && !strstr(html, "href=\"http"));
    buf_deinit(&b);
}

TEST(server_page_parts)
{
    CHECK(!page_find(STR("/nothing")).type && !page_find(STR("")).type);
    CHECK_STR(str_of(page_find(STR("/favicon.ico")).type), STR("image/svg+xml"));
    CHECK(str_starts(page_find(STR("/favicon.svg")).body, "<svg"));
    CHECK(page_find(STR("/page.css")).body.n > 100 && !page_find(STR("/page.css")).is_template);
}

TEST(server_page_escapes_names)
{
    buf b;
    buf_init(&b, 4096);
    page_fill(&b, STR("{{model}}|{{base}}|{{other}}{{model"), "<b>\"x\"&'y'", "{{model}}");
    CHECK_STR(str_of(text_of(&b)), STR("&lt;b&gt;&quot;x&quot;&amp;&#39;y&#39;|{{model}}|{{other}}{{model"));
    buf_deinit(&b);
}
