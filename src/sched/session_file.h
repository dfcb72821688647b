/* sched/session_file.h - the sections of a session's file in addition to those of its image. */
#ifndef TANDEM_SCHED_SESSION_FILE_H
#define TANDEM_SCHED_SESSION_FILE_H
#include "store/pack.h"

#include "tandem.h"

enum {
    SESSION_PACK   = 2, /* pack.kind */
    SESSION_FORMAT = 1, /* id of the section SESSION_OPTIONS */
    /* Kinds of sections; kv/image.h has 1 to 15. */
    SESSION_OPTIONS = 16, /* JSON: length of the prompt and sampling options; n: number of tokens */
    SESSION_TOKENS  = 17, /* int32 */
    SESSION_NOTE    = 18, /* bytes of the caller */
};

/* Adds the sections of a session to a pack. x->ids are valid tokens. Fails without memory. */
bool session_put(pack *p, const tandem_session *x, err *e);
/* Reads a pack whose sections are loaded. Checks everything: ids are below n_vocab, options are in their ranges.
 * ERR_FORMAT: the reason. The caller frees *out with tandem_session_content_free, also after a failure. */
bool session_get(const pack *p, int n_vocab, tandem_session_content *out, err *e);
/* Checks that a pack is a session of this format, of which only the header is needed. *n_tokens: of its text. */
bool session_check(const pack *p, int32_t *n_tokens, err *e);
#endif
