/* sched/tier.h - the tiers below the prefix cache, host memory and disk: loads the beginnings of prompts, stores texts
 * that ended.
 *
 *      a job waits ---> tier_ready asks the disk thread ---> packs are read while other requests run ---> admission
 *      a job ends  ---> tier_store remembers its text ---> tier_work copies new pages between steps ---> disk thread
 *
 * A text is stored in pieces that end where later texts are likely to continue: at the end of the prompt, at the end of
 * the response, where the prompt left a text that was in the prefix cache, and every TIER_EVERY tokens of the prompt. A
 * later request finds the longest piece chain that its prompt begins with. The tenant's salt is part of every key.
 *
 * Thread: the engine thread, except tier_open, tier_secret, tier_get_stats and tier_close. */
#ifndef TANDEM_SCHED_TIER_H
#define TANDEM_SCHED_TIER_H
#include "sched/job.h"
#include "store/disk.h"

typedef struct tier tier;

enum { TIER_EVERY = 4096, TIER_MIN = 64 }; /* tokens; less than TIER_MIN are not worth a file or a read */

typedef struct {
    const char *dir;        /* NULL: no directory */
    uint64_t    max_bytes;  /* limit of its files */
    uint64_t    park_bytes; /* limit of the host memory; 0: none */
} tier_options;
/* Opens the tiers. s has images (spec/image.h). `ring` is rung when a request to the disk is done. *out is NULL on
 * failure: errors as disk_open. Without a directory, texts are copied only while the K/V cache is more than half full,
 * or to make room: others are not likely to be evicted. They are not copied while copying them, there and back, takes
 * longer than computing them, as measured. */
bool tier_open(tier **out, spec *s, const tier_options *o, bell *ring, err *e);
/* Call it after tier_finish, or when nothing was stored. Waits for the disk at most 5 s. Accepts NULL. */
void           tier_close(tier *t);
const uint8_t *tier_secret(const tier *t); /* [INDEX_SECRET]: the key of the tenants' salts; NULL: no directory */

/* Starts to read what the disk has of the job's prompt, once. */
void tier_search(tier *t, tandem_job *j, double now, double row_s);
/* Returns whether the job may be admitted: what the disk has of its prompt was read, or nothing is to be read, or it
 * takes too long. Calls tier_search. row_s: seconds of a prompt row; 0: not known. t NULL: true. */
bool tier_ready(tier *t, tandem_job *j, double now, double row_s);
/* Copies a part of what was read for a job that is ready to the prefix cache. Returns true after the last part.
 * Admission copies the rest, so this function is needed only while other requests run: they do not wait for it. */
bool tier_import(tier *t, tandem_job *j);
/* Returns the time at which tier_ready gives up waiting for a job that is not ready. */
double tier_deadline(const tandem_job *j);
/* Sets the images of the request, which are valid until tier_forget. */
void tier_images(const tandem_job *j, lane_request *r);
void tier_forget(tier *t, tandem_job *j); /* frees what was read for the job; accepts t NULL */

/* Remembers the text of a job whose request has ended in its lane. */
void tier_store(tier *t, const tandem_job *j);
/* Copies pages for the disk thread, about max_bytes. Returns whether there is more to copy now. row_s: as above. */
bool tier_work(tier *t, size_t max_bytes, double row_s);
/* Called before a request of n_pos positions is admitted, which may evict texts that are not copied yet. Copies a part
 * of them. Returns true when there is room for the request, or nothing can be copied for now. The lookup of a text that
 * has just ended is waited for, until half a second after its end. */
bool tier_make_room(tier *t, int32_t n_pos, double row_s);
/* Stores what is left, for at most `seconds`. */
void tier_finish(tier *t, double seconds);

void tier_get_stats(tier *t, disk_stats *out); /* zeroes *out when t is NULL */
#endif
