/* tests/unit/spec/spec_rig.h - nano with its drafters in a loop of given options, on the cpu backend with one thread. */
#ifndef TANDEM_TEST_SPEC_RIG_H
#define TANDEM_TEST_SPEC_RIG_H
#include "spec/inside.h"
#include "test.h"

enum { RIG_LANES = 4, RIG_PROMPT = 20 };
extern const int32_t rig_prompt[RIG_PROMPT]; /* a question of nano's */

typedef struct {
    target    *m;
    spec      *s;
    spec_lane *l[RIG_LANES]; /* max_lanes of the options, at most RIG_LANES */
} spec_rig;

/* Fails the test, and returns false, when something cannot be opened; spec_rig_close works then too. */
bool spec_rig_open(test_case *t, spec_rig *g, const spec_options *o, bool with_drafters);
/* The same with another model and its drafters; NULL: no more of them. */
bool spec_rig_open_of(test_case *t, spec_rig *g, const spec_options *o, const char *model,
                      const char *const drafters[2]);
void spec_rig_close(spec_rig *g);
/* Returns options without sampling noise, penalties and log-probabilities. */
lane_options spec_rig_options(int method);
#endif
