/* http/parse.h - the strict parser of requests: takes bytes in chunks of any size; no sockets.
 *
 * http_scan collects a head up to its empty line, http_head_parse parses it, and http_body_read reads a body. The sizes
 * of the chunks do not change the result. A refusal has a status and a fixed message without bytes of the client.
 *
 * Refused, in addition to malformed requests: bare LF and CR, folded lines, blanks before a colon, Content-Length
 * together with Transfer-Encoding or twice, codings other than `chunked`, chunk extensions and trailers, a second Host
 * or none in HTTP/1.1, versions other than 1.0 and 1.1, unknown methods, targets that do not begin with a slash (except
 * `OPTIONS *`). */
#ifndef TANDEM_HTTP_PARSE_H
#define TANDEM_HTTP_PARSE_H
#include "http/http.h"

typedef struct {
    int         status; /* 0: valid so far; else the HTTP status of the refusal */
    const char *why;    /* a constant sentence; NULL if valid */
} http_verdict;

/* Collects the bytes of a head. */
typedef struct {
    buf    bytes;            /* its maximum is that of a head: 431 above it */
    size_t n_lines, n_blank; /* complete lines; empty lines before the first */
    bool   in_line;          /* the current line has a character */
    bool   done;             /* the head is complete */
    char   last;             /* the last byte */
} http_scan;

void http_scan_init(http_scan *s, size_t max_head);
void http_scan_deinit(http_scan *s);
/* Adds bytes up to the empty line that ends the head, and sets *used to their number. Not after `done`. */
http_verdict http_scan_feed(http_scan *s, str in, size_t *used);

typedef struct {
    str         method, target, query; /* point into the scan, as the fields do */
    str         path;                  /* percent-decoded; in the memory of `field` */
    int         minor;                 /* minor version: 0 or 1 */
    http_field *field;
    size_t      n_fields;
    bool        has_length, chunked; /* Content-Length, Transfer-Encoding */
    uint64_t    length;
    bool        keep_alive, expects_continue; /* keep_alive: false also for HTTP/1.0 */
} http_head;

/* Parses a complete scan, which must outlive *out. The caller frees out->field with mem_free, also after a refusal.
 * A Content-Length over max_body is refused with 413. */
http_verdict http_head_parse(http_head *out, const http_scan *s, size_t max_fields, size_t max_body);

/* The state of reading a body. A chunk is size CR LF, bytes, CR LF; the last has size 0. */
typedef enum {
    BODY_DONE,
    BODY_COUNTED, /* `bytes_left` bytes */
    BODY_SIZE_FIRST,
    BODY_SIZE,
    BODY_SIZE_LF,
    BODY_DATA,
    BODY_DATA_CR,
    BODY_DATA_LF,
    BODY_END_CR,
    BODY_END_LF
} http_body_state;
typedef struct {
    http_body_state state;
    uint64_t        bytes_left; /* bytes left of the body or chunk */
    uint64_t        total;      /* sizes of all chunks so far */
    uint64_t        max;        /* maximum of total */
    int             digits;     /* digits of the size read so far */
} http_body;

void         http_body_init(http_body *b, const http_head *h, size_t max_body); /* BODY_DONE: there is no body */
http_verdict http_body_check(const http_body *b); /* checks Content-Length against max, which may have been lowered */
/* Appends bytes of the body to out, without the framing of chunks, and sets *used to the bytes of `in` that it used.
 * Stops after the end of the body, where state is BODY_DONE. */
http_verdict http_body_read(http_body *b, str in, size_t *used, buf *out);

#endif
