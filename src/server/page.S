/* The page at / and what it loads, and the files of the dashboard, inside the library. */
    .macro blob name, file
    .global \name, \name\()_end
\name:
    .incbin "\file"
\name\()_end:
    .endm

    .macro ui_blob name, file
    blob \name, web/dist/\file
    .endm

    .section .rodata
    blob page_html, src/server/web/index.html
    blob page_locked, src/server/web/locked.html
    blob page_css, src/server/web/page.css
    blob page_icon, src/server/web/favicon.svg
#define UI_FILE(name, file, etag) ui_blob name, file
#include "web/files.inc"
    .section .note.GNU-stack, "", %progbits
