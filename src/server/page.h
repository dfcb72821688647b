/* server/page.h - the page at /, which describes the server and shows how to call it. It has no scripts and loads
 * nothing from other servers. */
#ifndef TANDEM_SERVER_PAGE_H
#define TANDEM_SERVER_PAGE_H
#include "base/buf.h"

/* Its Content-Security-Policy. */
#define PAGE_POLICY                                                                                                    \
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "      \
    "'none'"

/* A part of the page: constant data. */
typedef struct {
    const char *type; /* Content-Type; NULL: unknown path */
    str         body;
    bool        is_template; /* page_fill writes what is sent; false: `body` is */
} page_part;
page_part page_find(str path);      /* "/", "/page.css", "/favicon.svg", "/favicon.ico" */
page_part page_for_strangers(void); /* "/" for a client without a key: how to send one */
/* Appends `body` with {{model}}, {{version}} and {{base}} replaced, HTML-escaped. base: such as
 * "http://127.0.0.1:8080". */
void page_fill(buf *out, str body, const char *model, const char *base);
#endif
