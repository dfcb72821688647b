/* server/live_sessions.h - the last text of each named conversation: what a request with "session" leaves to be saved.
 *
 * A client names a conversation in its requests; when a response ends, its prompt and tokens replace the text before.
 * The names of an owner are its own. Each owner has a limited number; the one used longest ago makes room.
 * Used by one thread, except live_sessions_continued. */
#ifndef TANDEM_SERVER_LIVE_SESSIONS_H
#define TANDEM_SERVER_LIVE_SESSIONS_H
#include "sched/engine.h"
#include "server/keys.h"

#include <pthread.h>

enum { LIVE_SESSIONS_PER_OWNER = 32, LIVE_SESSIONS_MAX = 1024 };

typedef struct {
    char           owner[KEY_NAME_MAX + 1], name[TANDEM_SESSION_NAME + 1];
    char          *tenant; /* tenant of its cached prefixes; NULL: none */
    tok_ids        ids;
    int32_t        n_prompt;
    tandem_request options; /* only numbers: sampling and penalties */
    uint64_t       used;
} live_session;

typedef struct {
    pthread_mutex_t lock; /* held while the list changes, and by live_sessions_continued */
    live_session   *item[LIVE_SESSIONS_MAX];
    int             n;
    uint64_t        clock;
} live_sessions;

void live_sessions_init(live_sessions *l);
void live_sessions_deinit(live_sessions *l);
/* Stores the text of a job that has ended. Does nothing without memory. */
void live_sessions_note(live_sessions *l, const char *owner, const char *name, const tandem_job *j,
                        const tandem_request *r);
/* Stores the text of a restored session. */
void live_sessions_put(live_sessions *l, const char *owner, const char *name, const char *tenant,
                       const tandem_session_content *c);
/* Returns the session, valid until the next call; NULL: there is none. */
const live_session *live_sessions_find(const live_sessions *l, const char *owner, const char *name);
void                live_sessions_drop(live_sessions *l, const char *owner, const char *name);
/* Returns engine_continued of the session for a prompt; 0: there is none. Any thread may call it. */
size_t live_sessions_continued(live_sessions *l, const char *owner, const char *name, const int32_t *prompt, size_t n);
/* Copies a session for another thread. Returns NULL without memory. The caller frees it with live_session_free. */
live_session *live_session_copy(const live_session *x);
void          live_session_free(live_session *x); /* accepts NULL */
/* Fills what tandem_session_save needs, except owner and name. Borrows x. */
void live_session_describe(const live_session *x, tandem_session *out);
#endif
