/* sched/session.h - saved sessions: a text with its K/V, recurrent states and drafter K/V in one file, per owner.
 *
 *      DIR/<hash of the owner>/<name>.session      a pack (store/pack.h): an image of the text (kv/image.h), all its
 *                                                  tokens, the sampling options, the caller's note
 *
 * A restore adds the image to the prefix cache: the next request with this text continues there, with the same bytes,
 * and drafts in its first round. Tokens after the last whole page are run again. Files are written as pack_save does.
 * Only the directory of an owner is searched for it, so that the session of another owner looks like a missing one.
 *
 * Any thread may call these functions. They block: the engine thread copies pages between its steps. */
#ifndef TANDEM_SCHED_SESSION_H
#define TANDEM_SCHED_SESSION_H
#include "sched/sched.h"

typedef struct session_store session_store;

/* Opens the directory and creates it if it is missing. *out is NULL on failure. */
bool session_store_open(session_store **out, const char *dir, err *e);
void session_store_close(session_store *s); /* accepts NULL */

/* As the functions of tandem.h. */
bool   session_save(session_store *s, sched *engine, const tandem_session *x, tandem_session_info *out, err *e);
bool   session_restore(session_store *s, sched *engine, const tandem_session *x, tandem_session_content *content,
                       tandem_session_info *out, err *e);
bool   session_delete(session_store *s, const char *owner, const char *name, err *e);
size_t session_list(session_store *s, const char *owner, tandem_session_info *out, size_t max);
#endif
