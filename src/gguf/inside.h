/* gguf/inside.h - a function of gguf that only tests use. */
#ifndef TANDEM_GGUF_INSIDE_H
#define TANDEM_GGUF_INSIDE_H
#include "gguf/safetensors.h"

/* Reads one file in memory, borrowed until safetensors_close. */
bool safetensors_open_bytes(safetensors **out, str bytes, err *e);
#endif
