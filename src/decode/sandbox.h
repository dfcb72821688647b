/* decode/sandbox.h - removes the rights of this process that decoding does not need. */
#ifndef TANDEM_DECODE_SANDBOX_H
#define TANDEM_DECODE_SANDBOX_H
#include "base/err.h"

/* Limits the memory of this process to 2 GiB and forbids core dumps and new privileges. From then on,
 * opening a file fails, and any system call except for reading, writing and memory kills the process. Cannot be
 * undone. */
bool decode_sandbox_enter(err *e);
#endif
