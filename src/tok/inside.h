/* tok/inside.h - a function of tok that only tests use. */
#ifndef TANDEM_TOK_INSIDE_H
#define TANDEM_TOK_INSIDE_H
#include "tok/tok.h"

/* Reads a tokenizer.json in memory. */
bool tok_from_json_bytes(tok **out, str text, const tok_family *f, err *e);
#endif
