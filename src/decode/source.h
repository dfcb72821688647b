/* decode/source.h - the bytes of a picture or video that a request refers to.
 *
 *      data:image/png;base64,...    part of the request
 *      http://..., https://...      only where the operator allows it
 *      file:///DIR/...              only below a directory that the operator names */
#ifndef TANDEM_DECODE_SOURCE_H
#define TANDEM_DECODE_SOURCE_H
#include "base/buf.h"
#include "base/err.h"

#include <stdatomic.h>

struct sockaddr;

typedef struct {
    bool        fetch;     /* http and https are allowed */
    const char *dir;       /* file: below this directory is allowed; NULL: not */
    size_t      max_bytes; /* maximum of a file */
    double      fetch_s;   /* timeout of a fetch, with its redirects */
    /* Returns whether an address may be connected to. NULL: address_is_public. Tests allow a server on this machine. */
    bool (*allows)(const struct sockaddr *address);
    const atomic_bool *cancel; /* set by another thread to end a fetch soon; NULL: never */
} source_options;

source_options source_default_options(void); /* neither fetch nor dir; DECODE_MAX_FILE, 20 s */
/* Appends the bytes that the URL refers to, to out, whose maximum is at least o->max_bytes. Blocks for a fetch.
 * ERR_INPUT: the URL is invalid or not allowed, or a server refused; ERR_TOO_LARGE: over max_bytes; ERR_UNAVAILABLE: no
 * memory, or cancelled. */
bool source_load(buf *out, const source_options *o, str url, err *e);
/* Appends the bytes of a base64 text. Line breaks are skipped, padding may be missing, - and _ stand for + and /.
 * Errors as above, with out->max as the limit. */
bool source_base64(buf *out, str text, err *e);
#endif
