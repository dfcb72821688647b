/* tests/unit/model/dflash_rig.h - a target and its DFlash drafter with two lanes, for tests of both. */
#ifndef TANDEM_TEST_DFLASH_RIG_H
#define TANDEM_TEST_DFLASH_RIG_H
#include "model/dflash.h"
#include "test.h"

enum { MAX_TEXT = 160, LANES = 2 };

/* A target, its drafter, and lanes in both. */
typedef struct {
    target      *m;
    kv_pool     *kv;
    kv_seq      *seq[LANES];
    drafter     *d;
    draft_lane  *lane[LANES];
    safetensors *ref;
    step         s;
} rig;

typedef struct {
    int32_t id[MAX_TEXT]; /* the anchor last */
    int     n;
} text;

typedef struct {
    draft_job job;
    float    *hidden, *logits; /* [rows of the block][H], [block][V]; of the first job */
    int       block;           /* rows of logits */
} drafted;

extern const drafter_options dflash_rig_exact; /* f32 K/V, rows kept */

/* name: of a golden target, whose drafter is beside it. A rig that failed to open may be closed. */
bool dflash_rig_open(test_case *t, rig *g, const char *name, const char *device);
bool dflash_rig_target(test_case *t, rig *g, const char *name, const char *device); /* without the drafter */
/* kind: what follows the name of the drafter's directory, such as "dspark". */
bool dflash_rig_target_of(test_case *t, rig *g, const char *name, const char *kind, const char *device);
bool dflash_rig_model(test_case *t, rig *g, const char *path, const char *device); /* any target, into a zeroed rig */
bool dflash_rig_drafter(test_case *t, rig *g, const char *path, const drafter_options *opt);
void dflash_rig_drop(rig *g); /* the drafter alone */
void dflash_rig_close(rig *g);
const char *dflash_rig_path(const char *name); /* of a golden target's drafter; as test_path */

const tensor *dflash_rig_golden(test_case *t, const rig *g, int n_case, const char *what);
/* The reference's prompt, and the target's next token. */
text dflash_rig_text(test_case *t, const rig *g, int n_case);
/* Tokens from .. end - 1 of the text through the target, `chunk` at a time, each step's rows shown to the drafter. */
void      dflash_rig_observe(test_case *t, rig *g, int lane, const text *x, int from, int end, int chunk);
draft_job dflash_rig_job(rig *g, int lane, const text *x);
drafted   dflash_rig_draft(test_case *t, rig *g, int lane, const text *x);
void      dflash_rig_free(drafted *r);
/* Bit for bit (promise 1); frees b. */
void dflash_rig_same(test_case *t, const rig *g, const drafted *a, drafted *b, const char *what);
#endif
