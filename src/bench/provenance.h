/* bench/provenance.h - where a result comes from: all that one needs to judge it, or to measure it again. */
#ifndef TANDEM_BENCH_PROVENANCE_H
#define TANDEM_BENCH_PROVENANCE_H
#include "cli/cli.h"
#include "json/json.h"

typedef struct {
    buf command; /* as it was given */
    buf files;   /* JSON: an array of {path, bytes, sha256} */
} provenance;    /* a zeroed one is empty */

#define OPT_NO_HASH(f)                                                                                                 \
    {                                                                                                                  \
        .name = "no-hash", .kind = OPT_FLAG, .dest = &(f),                                                             \
        .help = "do not compute the SHA-256 of the files for the results"                                              \
    }

/* Before the flags are parsed: that moves the arguments. */
void provenance_command(provenance *p, const char *part, int argc, char **args);
/* The files of a model: all parts of a GGUF, a directory's config.json and safetensors; NULL: none. hash: read them all. */
bool provenance_file(provenance *p, const char *path, bool hash, err *e);
/* The model (NULL: it has no file) and the drafters. */
bool provenance_files(provenance *p, const char *model, const draft_options *d, bool hash, err *e);
/* One member, "provenance", of the object that is being written. */
void provenance_put(const provenance *p, json_writer *w, const opened_model *g, const char *model, cache_types kv);
void provenance_deinit(provenance *p);
#endif
