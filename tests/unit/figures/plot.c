#include "figures/plot.h"

#include "test.h"

static const char curves[] =
    "{\"bench\":\"rows\",\"series\":["
    "{\"label\":\"a <b> & \\\"c\\\"\",\"kind\":\"rows\",\"points\":[{\"rows\":1,\"tok_s\":20.5},"
    "{\"rows\":8,\"tok_s\":80,\"tok_s_low\":70,\"tok_s_high\":95}]},"
    "{\"label\":\"prompt\",\"kind\":\"prefill\",\"points\":[{\"tokens\":512,\"tok_s\":900}]},"
    "{\"label\":\"peer\",\"points\":[{\"rows\":1,\"tok_s\":10},{\"rows\":32,\"tok_s\":40}]}]}";
static const char bars[] = "{\"bench\":\"table\",\"cells\":["
                           "{\"context\":512,\"probe\":false,\"arms\":[{\"name\":\"off\",\"gen_tps\":5.0},{\"name\":"
                           "\"auto\",\"gen_tps\":7.5}]},"
                           "{\"context\":512,\"probe\":true,\"arms\":[{\"name\":\"off\",\"gen_tps\":4.0},{\"name\":"
                           "\"auto\",\"gen_tps\":7.0}]}]}";

static int count(str s, const char *what)
{
    int n = 0;
    for (size_t i = 0; i + strlen(what) <= s.n; i++) n += !memcmp(s.s + i, what, strlen(what));
    return n;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* name="value" ... up to the end of the tag; NULL when it is not so. */
static const char *skip_attributes(const char *p, const char *end)
{
    while (p < end && *p == ' ') {
        const char *name = ++p;
        while (p < end && is_name(*p)) p++;
        if (p == name || p + 1 >= end || p[0] != '=' || p[1] != '"') return NULL;
        for (p += 2; p < end && *p != '"'; p++)
            if (*p == '<' || *p == '&') return NULL;
        if (p++ == end) return NULL;
    }
    return p;
}

/* Elements that open and close in order, quoted attributes, no bare < or & in texts, one root. */
static bool well_formed(str s)
{
    const char *open[16], *p = s.s, *end = s.s + s.n;
    size_t      len[16];
    int         depth = 0, roots = 0;
    while (p < end) {
        if (*p == '&') {
            const char *semicolon = memchr(p, ';', (size_t)(end - p));
            if (!semicolon || semicolon - p > 8 || p[1] != '#') return false;
        }
        if (*p != '<') {
            if (depth == 0 && *p != '\n') return false;
            p++;
            continue;
        }
        bool        closing = p[1] == '/';
        const char *name    = p += 1 + closing;
        while (p < end && is_name(*p)) p++;
        size_t n = (size_t)(p - name);
        if (closing) {
            if (!depth || len[depth - 1] != n || memcmp(open[depth - 1], name, n) || *p++ != '>') return false;
            depth--;
            continue;
        }
        roots += depth == 0;
        p = skip_attributes(p, end);
        if (!n || !p || p >= end || depth == 16) return false;
        bool empty = *p == '/';
        p += empty;
        if (p >= end || *p++ != '>') return false;
        if (!empty) open[depth] = name, len[depth++] = n;
    }
    return depth == 0 && roots == 1;
}

TEST(plot_checker_can_fail)
{
    CHECK(well_formed(STR("<a b=\"c\"><d/>x &#38; y</a>\n")));
    CHECK(!well_formed(STR("<a><b></a></b>")));
    CHECK(!well_formed(STR("<a b=c/>")));
    CHECK(!well_formed(STR("<a>x & y</a>")));
    CHECK(!well_formed(STR("<a/><b/>")));
    CHECK(!well_formed(STR("<a>")));
}

static void draw(test_case *t, const char *json, buf *out)
{
    plot *p = xnew(plot);
    err   e = {0};
    snprintf(p->title, sizeof p->title, "one & <two>");
    CHECK_OK(plot_add(p, str_of(json), "gen_tps", &e), e);
    CHECK_OK(plot_svg(p, out, &e), e);
    CHECK(well_formed(buf_str(out)));
    mem_free(p);
}

TEST(plot_curves)
{
    buf out;
    buf_init(&out, 1 << 20);
    draw(t, curves, &out);
    str s = buf_str(&out);
    CHECK_INT(count(s, "<polyline"), 2); /* the prefill is no curve over rows */
    CHECK_INT(count(s, "<circle"), 4);
    CHECK_INT(count(s, ">peer</text>"), 1);
    CHECK_INT(count(s, ">a &#60;b&#62; &#38; &#34;c&#34;</text>"), 1);
    CHECK_INT(count(s, ">rows of a step</text>"), 1);
    for (const char *tick = "1\0002\0004\0008\00016\00032\0"; *tick; tick += strlen(tick) + 1) {
        char text[32];
        snprintf(text, sizeof text, "\"middle\">%s</text>", tick);
        CHECK_MSG(count(s, text) == 1, "no tick at %s rows", tick);
    }
    buf_deinit(&out);
}

TEST(plot_bars)
{
    buf out;
    buf_init(&out, 1 << 20);
    draw(t, bars, &out);
    str s = buf_str(&out);
    CHECK_INT(count(s, "<rect"), 4);
    CHECK_INT(count(s, ">512, probe</text>"), 1);
    CHECK_INT(count(s, ">auto</text>"), 1);
    CHECK_INT(count(s, ">gen_tps</text>"), 1);
    buf_deinit(&out);
}

TEST(plot_draws_ratios_by_acceptance)
{
    static const char *const files[] = {"{\"bench\":\"spec\",\"accept\":7.7,\"arms\":[{\"name\":\"off\",\"ratio\":1},"
                                        "{\"name\":\"auto\",\"ratio\":1.4,\"ratio_low\":1.3,\"ratio_high\":1.5}]}",
                                        "{\"bench\":\"spec\",\"accept\":1.5,\"arms\":[{\"name\":\"off\",\"ratio\":1},"
                                        "{\"name\":\"auto\",\"ratio\":0.99}]}"};
    buf                      out;
    err                      e = {0};
    plot                    *p = xnew(plot);
    buf_init(&out, 1 << 20);
    for (size_t i = 0; i < COUNT(files); i++) CHECK_OK(plot_add(p, str_of(files[i]), NULL, &e), e);
    CHECK_OK(plot_svg(p, &out, &e), e);
    str s = buf_str(&out);
    CHECK_INT(count(s, "<rect"), 4);
    CHECK_INT(count(s, ">7.7 tokens a round</text>"), 1);
    CHECK_INT(count(s, ">auto</text>"), 1);
    CHECK_INT(count(s, ">ratio</text>"), 1);
    buf_deinit(&out);
    mem_free(p);
}

TEST(plot_refuses)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"bench\":\"spec\"}",
        "{\"bench\":\"rows\",\"series\":[{\"label\":\"x\",\"points\":[{\"tok_s\":1}]}]}",
        "{\"bench\":\"rows\",\"series\":[{\"label\":\"x\",\"points\":[{\"rows\":0,\"tok_s\":1}]}]}",
        "{\"bench\":\"rows\",\"series\":[{\"label\":\"x\",\"points\":[{\"rows\":1,\"tok_s\":null}]}]}",
        "{\"bench\":\"table\",\"cells\":[{\"context\":1,\"arms\":[{\"name\":\"off\",\"pp_tps\":1}]}]}",
    };
    buf   out;
    plot *p = xnew(plot);
    err   e = {0};
    buf_init(&out, 1 << 20);
    for (size_t i = 0; i < COUNT(bad); i++) {
        *p = (plot){0};
        CHECK_MSG(!plot_add(p, str_of(bad[i]), "gen_tps", &e), "taken: %s", bad[i]);
    }
    *p = (plot){0};
    CHECK_OK(plot_add(p, str_of(curves), "gen_tps", &e), e);
    CHECK(!plot_add(p, str_of(bars), "gen_tps", &e) && strstr(e.text, "one plot"));
    *p = (plot){0};
    CHECK_OK(plot_add(p, STR("{\"bench\":\"rows\",\"series\":[]}"), "gen_tps", &e), e);
    CHECK(!plot_svg(p, &out, &e) && strstr(e.text, "no points to draw"));
    static const char *const beyond[] = {"1e-323", "1e101", "1.7e308"}; /* an axis would never end */
    for (size_t i = 0; i < COUNT(beyond); i++) {
        char text[160];
        snprintf(text, sizeof text, "{\"bench\":\"rows\",\"series\":[{\"points\":[{\"rows\":1,\"tok_s\":%s}]}]}",
                 beyond[i]);
        *p = (plot){0};
        CHECK_OK(plot_add(p, str_of(text), "gen_tps", &e), e);
        CHECK(!plot_svg(p, &out, &e) && strstr(e.text, "can be drawn"));
    }
    buf_deinit(&out);
    mem_free(p);
}
