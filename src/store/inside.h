/* store/inside.h - functions of store that only its own files and tests use. */
#ifndef TANDEM_STORE_INSIDE_H
#define TANDEM_STORE_INSIDE_H
#include "store/pack.h"

/* Writes the header and all sections, which are loaded, to an empty file. ERR_IO: the reason, such as a full disk. */
bool pack_write(pack *p, int fd, err *e);
/* Loads and checks a section. ERR_UNAVAILABLE: no memory. */
bool pack_load(pack *p, int fd, int section, err *e);
#endif
