/* tok/inside.h - functions of tok that only tests use. */
#ifndef TANDEM_TOK_INSIDE_H
#define TANDEM_TOK_INSIDE_H
#include "tok/tok.h"

/* Read a tokenizer.json as one of a family, from a file or from memory. f may be NULL: no family. */
bool tok_from_json(tok **out, const char *path, const tok_family *f, err *e);
bool tok_from_json_bytes(tok **out, str text, const tok_family *f, err *e);
#endif
