/* server/keys.h - who may ask: API keys, known by their SHA-256 alone.
 *
 * A file has a key a line, its hash as `sha256sum` prints it and, if wanted, a name:
 *
 *      # printf %s "$KEY" | sha256sum, or tandem key --file keys.txt alice
 *      2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
 *
 * Keys of one name are one tenant: a new key can be put beside the old one. A tenant without a name is its key's hash.
 * A key in the clear is refused, so that a file that gets lost tells nothing. Guessing is made no easier by time: every
 * hash is compared in full.
 *
 * Thread: one at a time. */
#ifndef TANDEM_SERVER_KEYS_H
#define TANDEM_SERVER_KEYS_H
#include "base/buf.h"
#include "base/err.h"

enum { KEYS_MAX = 4096, KEY_NAME_MAX = 64, KEY_MAX = 512 }; /* keys of a list; bytes of a name, of a key */

typedef struct keys keys; /* NULL is an empty list */
bool                keys_load(keys **out, const char *path, err *e);
bool                keys_read(keys **out, str text, err *e);
/* A list of one key, given in the clear; its tenant is `name`. */
bool keys_of_one(keys **out, str key, const char *name, err *e);
/* Reads the file again and frees the old list. On failure *k is unchanged. */
bool   keys_reload(keys **k, const char *path, err *e);
void   keys_free(keys *k);
size_t keys_count(const keys *k);
/* Returns the tenant that has this key, at most KEY_NAME_MAX bytes, good until keys_reload or keys_free; NULL: none has. */
const char *keys_find(const keys *k, str key);

/* The key of a request by its fields, s NULL where they are absent: "Authorization: Bearer KEY", else "x-api-key: KEY". */
str key_of_fields(str authorization, str x_api_key);

/* A new key of 256 random bits, and its line in a file. name: NULL or of letters, digits and "._-@". */
bool key_make(char key[KEY_MAX], buf *line, const char *name, err *e);
/* Appends a line; a file that is not there is made, for its owner alone. */
bool key_append(const char *path, str line, err *e);
#endif
