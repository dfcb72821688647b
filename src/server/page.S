/* The page at / and what it loads, inside the library. */
    .macro blob name, file
    .global \name, \name\()_end
\name:
    .incbin "\file"
\name\()_end:
    .endm

    .section .rodata
    blob page_html, src/server/web/index.html
    blob page_locked, src/server/web/locked.html
    blob page_css, src/server/web/page.css
    blob page_icon, src/server/web/favicon.svg
    .section .note.GNU-stack, "", %progbits
