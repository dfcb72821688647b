#include "server/page.h"

#include "base/mem.h"

extern const char page_html[], page_html_end[], page_locked[], page_locked_end[], page_css[], page_css_end[],
    page_icon[], page_icon_end[];

page_part page_find(str path)
{
    const struct {
        const char *path;
        page_part   part;
    } parts[] = {
        {"/", {"text/html; charset=utf-8", {page_html, (size_t)(page_html_end - page_html)}, true}},
        {"/page.css", {"text/css; charset=utf-8", {page_css, (size_t)(page_css_end - page_css)}, false}},
        {"/favicon.svg", {"image/svg+xml", {page_icon, (size_t)(page_icon_end - page_icon)}, false}},
        {"/favicon.ico", {"image/svg+xml", {page_icon, (size_t)(page_icon_end - page_icon)}, false}},
    };
    for (size_t i = 0; i < COUNT(parts); i++)
        if (str_is(path, parts[i].path)) return parts[i].part;
    return (page_part){0};
}

page_part page_for_strangers(void)
{
    return (page_part){"text/html; charset=utf-8", {page_locked, (size_t)(page_locked_end - page_locked)}, true};
}

static const char *escape_of(char c)
{
    switch (c) {
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '&': return "&amp;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

static void put_escaped(buf *out, const char *s)
{
    for (; *s; s++) {
        const char *as = escape_of(*s);
        if (as)
            buf_puts(out, as);
        else
            buf_putc(out, *s);
    }
}

void page_fill(buf *out, str body, const char *model, const char *base)
{
    const struct {
        const char *name, *value;
    } fills[] = {{"{{model}}", model}, {"{{version}}", TANDEM_VERSION}, {"{{base}}", base}};
    while (body.n) {
        size_t k = 0;
        while (k < COUNT(fills) && !str_starts(body, fills[k].name)) k++;
        if (k < COUNT(fills))
            put_escaped(out, fills[k].value);
        else
            buf_putc(out, body.s[0]);
        size_t used = k < COUNT(fills) ? strlen(fills[k].name) : 1;
        body.s += used;
        body.n -= used;
    }
}
