/* server/page.h - the page at /: what this is and how to call it. No script runs on it, and it loads nothing from elsewhere. */
#ifndef TANDEM_SERVER_PAGE_H
#define TANDEM_SERVER_PAGE_H
#include "base/buf.h"

/* What a browser may do with it. */
#define PAGE_POLICY                                                                                                    \
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "      \
    "'none'"

typedef struct {
    const char *type; /* NULL: there is nothing at this path */
    str         body;
    bool        is_template; /* for page_fill */
} page_part;
page_part page_find(str path);      /* "/", "/page.css", "/favicon.svg", "/favicon.ico" */
page_part page_for_strangers(void); /* "/" for whoever has no key: how to send one */
/* {{model}}, {{version}} and {{base}}, an address such as "http://127.0.0.1:8080", become what they stand for, as text. */
void page_fill(buf *out, str body, const char *model, const char *base);
#endif
