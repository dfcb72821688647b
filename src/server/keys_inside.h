/* server/keys_inside.h - reads the text of a key file, for keys.c and its tests. */
#ifndef TANDEM_SERVER_KEYS_INSIDE_H
#define TANDEM_SERVER_KEYS_INSIDE_H
#include "server/keys.h"

/* Reads the text of a file as keys_load does. */
bool keys_read(keys **out, str text, err *e);
#endif
