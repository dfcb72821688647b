/* server/parts.h - describes the model and its drafters for /api/models, /props, /metrics and the log.
 *
 * Each part has an id, by which the API finds it, and a path. The I/O thread is the only caller. */
#ifndef TANDEM_SERVER_PARTS_H
#define TANDEM_SERVER_PARTS_H
#include "json/json.h"

#include "tandem.h"

typedef struct server server;

typedef struct {
    const char *role;        /* "model", "drafter" */
    const char *id;          /* its name */
    const char *path;        /* as given by the operator; NULL while unknown, like the next two */
    const char *family;      /* the model's family, or the drafter's kind: "dflash", "mtp" */
    const char *fingerprint; /* hash of its bytes (gguf/fingerprint.h) */
    const char *state;       /* "loaded", "parked", ... */
    const char *error;       /* why it is not loaded; NULL: no error */
} model_part;

typedef struct {
    model_part          part[1 + TANDEM_MAX_DRAFTERS]; /* the model first; drafter[i] is part[1 + i] */
    int                 n_drafters;
    tandem_info         info; /* name NULL: it was never loaded */
    tandem_drafter_info drafter[TANDEM_MAX_DRAFTERS];
} model_parts;

/* Describes the model and drafters that are loaded, or were before parking. The strings are valid until the model is
 * loaded or parked; fingerprint and error of a drafter point into *out, which must not move. */
void parts_list(model_parts *out, const server *s);
/* Writes the members id, role, path, family, fingerprint, state and error of an open object; null where unknown. */
void parts_put_members(json_writer *w, const model_part *p);
/* Writes the member input_modalities: "text", and "image" and "video" where the model accepts them. */
void parts_put_modalities(json_writer *w, const tandem_info *i);
void parts_log(const server *s); /* logs one line per part */
#endif
