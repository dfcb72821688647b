/* bench/provenance.h - the provenance of a result: everything needed to judge or repeat a measurement. */
#ifndef TANDEM_BENCH_PROVENANCE_H
#define TANDEM_BENCH_PROVENANCE_H
#include "cli/cli.h"
#include "json/json.h"

typedef struct {
    buf command; /* as it was given */
    buf files;   /* JSON objects {path, bytes, sha256} with commas between them, without brackets */
} provenance;    /* a zeroed one is empty */

#define OPT_NO_HASH(f)                                                                                                 \
    {                                                                                                                  \
        .name = "no-hash", .kind = OPT_FLAG, .dest = &(f),                                                             \
        .help = "do not compute the SHA-256 of the files for the results"                                              \
    }

/* Records "tandem bench PART ARGS". Call it once, before the flags are parsed, because parsing moves the arguments. */
void provenance_command(provenance *p, const char *part, int argc, char **args);
/* Adds the files of a model: all parts of a GGUF, or config.json and safetensors of a directory. path NULL: adds
 * nothing. Without hash the member sha256 is left out. Returns false if the model cannot be opened. */
bool provenance_file(provenance *p, const char *path, bool hash, err *e);
/* Adds the files of the model (NULL: it has none) and of the drafters, as provenance_file. */
bool provenance_files(provenance *p, const char *model, const draft_options *d, bool hash, err *e);
/* Writes the member "provenance" of the open object: version, commit, command, files, and the layers, size, backend,
 * device, processor and threads of g, which must not be NULL; on a GPU also clocks and power states. model, a name, and
 * kv are written as given. */
void provenance_put(const provenance *p, json_writer *w, const opened_model *g, const char *model, const kv_types *kv);
void provenance_deinit(provenance *p);
#endif
