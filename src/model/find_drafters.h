/* model/find_drafters.h - finds the drafters that lie next to a model, by the names and the headers of files.
 *
 * Searched, in this order:
 *     1. the directory of a GGUF file, or the Hugging Face directory itself; in a cache of Hugging Face
 *        (models--ORG--NAME/snapshots/HASH/...) also the snapshot
 *     2. the directories next to it; in a cache the other models' snapshots; for a model that is a directory also the
 *        GGUF files next to it
 * A name is that of a drafter if it begins with "mtp-" or contains "-dflash", "dspark" or "-assistant", in any case, or
 * is one of these words. In 1. every other GGUF file is a candidate, too, and its header decides.
 *
 * The work is bounded: directories of more than FIND_MAX_ENTRIES entries are passed over, at most FIND_MAX candidates
 * are opened, and of each only the header is read. A symbolic link is followed if it stays in the directory that is
 * searched, or leads to the blobs of its own model in a cache. */
#ifndef TANDEM_MODEL_FIND_DRAFTERS_H
#define TANDEM_MODEL_FIND_DRAFTERS_H
#include "model/drafter.h"

enum { FIND_MAX = 64, FIND_MAX_ENTRIES = 4096 };

typedef struct {
    char path[4096];
    int  kind;     /* drafter_kind; -1: not known */
    bool taken;    /* at most one of each kind */
    char why[512]; /* why it fits and is taken, or why it is passed over */
} found_drafter;

/* Returns the candidates, and the directories that were passed over, in the order of the search; *n of them. Free the
 * array with mem_free. If several fit, the one is taken that is nearest in the order above; then the one
 * whose name has the longest common beginning with that of the model; then the smallest; then the first by path. */
found_drafter *find_drafters(const checkpoint *model, int *n);
#endif
