/* server/parts.h - the model and its drafters, described alike in /api/models, /props, /metrics and the log.
 *
 * Each has one name, its id, by which the API finds it, and one path. Thread: the I/O thread. */
#ifndef TANDEM_SERVER_PARTS_H
#define TANDEM_SERVER_PARTS_H
#include "json/json.h"

#include "tandem.h"

typedef struct server server;

typedef struct {
    const char *role;        /* "model", "drafter" */
    const char *id;          /* its name */
    const char *path;        /* as the operator gave it; this and the next two: NULL while they are not known */
    const char *family;      /* the model's family, or the drafter's kind: "dflash", "mtp" */
    const char *fingerprint; /* of its bytes (gguf/fingerprint.h) */
    const char *state;       /* "loaded", "parked", ... */
    const char *error;       /* why it is not loaded; NULL: nothing is wrong */
} model_part;

typedef struct {
    model_part          part[1 + TANDEM_MAX_DRAFTERS]; /* the model first; drafter[i] is part[1 + i] */
    int                 n_drafters;
    tandem_info         info; /* name NULL: it was never loaded */
    tandem_drafter_info drafter[TANDEM_MAX_DRAFTERS];
} model_parts;

/* Describes what is loaded, or was before it was parked. Strings live until the model is loaded or parked; those of a
 * drafter as long as *out. */
void parts_list(model_parts *out, const server *s);
/* Members id, role, path, family, fingerprint, state and error, into an open object. */
void parts_put_members(json_writer *w, const model_part *p);
void parts_log(const server *s); /* a line for each */
#endif
