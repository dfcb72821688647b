/* daemon/lines_command.h - parses a command of the older line protocol: words separated by blanks (docs/daemon.md).
 *
 *      /tmp/prompt.bin 128 samp=0.8,0.9,40 snap=64:3 */
#ifndef TANDEM_DAEMON_LINES_COMMAND_H
#define TANDEM_DAEMON_LINES_COMMAND_H
#include "base/str.h"

typedef enum {
    LINES_EMPTY,
    LINES_PROMPT, /* PATH N: raw int32 ids */
    LINES_GENERATE,
    /* generate IN N OUT: files with a count before the ids */
    LINES_RESTORE, /* RESTORE S PATH N: continues from a slot */
    LINES_SNAPSHOT,
    LINES_FREE_SNAPSHOT,
    LINES_LIST_SLOTS,
    LINES_BAD_SLOT, /* a command with a slot that does not exist */
    LINES_PARK,
    LINES_UNPARK,
    LINES_FREE_DRAFTER,
    LINES_COMPRESS,
    LINES_QUIT,
    LINES_BAD,     /* a known command with wrong arguments */
    LINES_UNKNOWN, /* another word */
} lines_kind;

enum { LINES_DRAFT = 1, LINES_TARGET = 2, LINES_MAX_PATH = 4096, LINES_SLOTS = 64 };

typedef struct {
    lines_kind kind;
    char       path[LINES_MAX_PATH], out[LINES_MAX_PATH]; /* files; out: of generate only */
    int32_t    n;                                         /* maximum of tokens */
    int        slot;                                      /* for RESTORE, SNAPSHOT, FREE_SNAPSHOT */
    int        snap_slot;                                 /* slot of snap=L:S; -1: there is none */
    int32_t    snap_len;                                  /* its L */
    int        what;                                      /* park, unpark: bits */
    bool       sampled;                                   /* there is samp=; without it, greedy */
    double     temp, top_p, repeat, frequency, presence;
    int32_t    top_k;
    uint64_t   seed; /* 0: none */
} lines_command;

/* Parses a line into *out. */
void lines_command_read(lines_command *out, str line);
#endif
