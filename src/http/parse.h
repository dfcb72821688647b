/* http/parse.h - the strict reader of requests: bytes in, in any pieces; no sockets.
 *
 * A head is gathered up to its empty line (http_scan), then taken apart in one go (http_head_parse); a body is read by
 * http_body_read. Where the pieces were cut changes nothing. What is refused has a status for the client and a fixed
 * sentence without a byte of his.
 *
 * Refused, beyond what is malformed: bare LF and CR, folded lines, blanks before a colon, Content-Length beside
 * Transfer-Encoding or twice, codings other than `chunked`, chunk extensions and trailers, a missing or a second Host,
 * versions other than 1.0 and 1.1, methods that are not in the list, targets that do not begin with a slash. */
#ifndef TANDEM_HTTP_PARSE_H
#define TANDEM_HTTP_PARSE_H
#include "http/http.h"

typedef struct {
    int         status; /* 0: fine so far */
    const char *why;
} http_verdict;

/* The bytes of a head as they come. */
typedef struct {
    buf    bytes;            /* with its ceiling: a longer head is a 431 */
    size_t n_lines, n_blank; /* that ended: with something in them; before the first of those */
    bool   in_line, done;
    char   last;
} http_scan;

void         http_scan_init(http_scan *s, size_t max_head);
void         http_scan_deinit(http_scan *s);
http_verdict http_scan_feed(http_scan *s, str in, size_t *used); /* stops behind the empty line */

typedef struct {
    str         method, target, path, query; /* in the bytes of the scan; path: behind the fields */
    int         minor;
    http_field *field;
    size_t      n_fields;
    bool        has_length, chunked;
    uint64_t    length;
    bool        keep_alive, expects_continue;
} http_head;

/* Of a scan that is done. out->field is the caller's to mem_free, also after a refusal. */
http_verdict http_head_parse(http_head *out, const http_scan *s, size_t max_fields, size_t max_body);

/* What is left of a body. Chunks: size CR LF, bytes, CR LF; the last has size 0. */
typedef enum {
    BODY_DONE,
    BODY_COUNTED, /* `left` bytes */
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
    uint64_t        left;   /* of the body, or of the chunk */
    uint64_t        total;  /* of all chunks so far, the one whose size was just read included */
    uint64_t        max;    /* of total */
    int             digits; /* of the size being read */
} http_body;

void         http_body_init(http_body *b, const http_head *h, size_t max_body);
http_verdict http_body_check(const http_body *b); /* its head's length against max, which may be less by now */
/* Puts what belongs to the body into out; stops behind the body's end, where state is BODY_DONE. */
http_verdict http_body_read(http_body *b, str in, size_t *used, buf *out);

#endif
