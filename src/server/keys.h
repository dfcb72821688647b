/* server/keys.h - API keys, stored as SHA-256 hashes.
 *
 * A file has one key per line: its hash as printed by `sha256sum`, and an optional name:
 *
 *      # printf %s "$KEY" | sha256sum, or tandem key --file keys.txt alice
 *      2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
 *
 * Keys with the same name belong to one tenant, so that keys can be rotated. The tenant of a key without a name is its
 * hash. Keys in clear text are refused. Comparison takes constant time.
 *
 * One thread at a time uses a list. */
#ifndef TANDEM_SERVER_KEYS_H
#define TANDEM_SERVER_KEYS_H
#include "base/buf.h"
#include "base/err.h"

enum { KEYS_MAX = 4096, KEY_NAME_MAX = 64, KEY_MAX = 512 }; /* max keys of a list, bytes of a name and of a key */

typedef struct keys keys; /* NULL is an empty list, for all functions */
/* Reads a file. ERR_FORMAT: a line is wrong, a key appears twice, or there is none; messages never contain
 * the line. *out is NULL on failure. Free the list with keys_free. */
bool keys_load(keys **out, const char *path, err *e);
/* Makes a list of one key, given in clear text, of 1 to KEY_MAX bytes; its tenant is `name`. */
bool keys_of_one(keys **out, str key, const char *name, err *e);
/* Reloads the file and frees the old list. On failure *k is unchanged. */
bool   keys_reload(keys **k, const char *path, err *e);
void   keys_free(keys *k);
size_t keys_count(const keys *k);
/* Returns the tenant of a key, at most KEY_NAME_MAX bytes, valid until keys_reload or keys_free; NULL: unknown key. */
const char *keys_find(const keys *k, str key);

/* Returns the key of a request: "Authorization: Bearer KEY", else "x-api-key: KEY". s NULL: the header is absent. The
 * result is a part of its arguments; s NULL: there is none. */
str key_of_fields(str authorization, str x_api_key);

/* Makes a key of 256 random bits, with a NUL, and appends its line for a file to `line`. name: letters, digits and
 * "._-@"; may be NULL. */
bool key_make(char key[KEY_MAX], buf *line, const char *name, err *e);
/* Appends a line of key_make to a file, after a newline if its last line has none. Creates the file with mode 0600
 * if it does not exist. */
bool key_append(const char *path, str line, err *e);
#endif
