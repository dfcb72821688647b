/* spec/method.h - the methods of drafting: their names and the drafters that they use. */
#ifndef TANDEM_SPEC_METHOD_H
#define TANDEM_SPEC_METHOD_H
#include "model/drafter.h"

typedef enum {
    SPEC_OFF,
    SPEC_DFLASH,
    SPEC_TREE,
    SPEC_MTP,
    SPEC_NGRAM,
    SPEC_METHODS,             /* the methods before this one can be planned by the policy */
    SPEC_AUTO = SPEC_METHODS, /* requests only: the policy plans each round */
    SPEC_GRAMMAR,             /* results only: the grammar of the request leaves no other token */
    SPEC_COUNTED,             /* counters are arrays of this size; that of SPEC_AUTO stays 0 */
} spec_method;

/* The names that a request may use, "off" to "auto", then NULL. */
extern const char *const spec_method_names[];
/* Returns the name of any method, NULL for an unknown one. */
const char *spec_method_name(int m);
/* Returns the drafter that the method uses: for SPEC_DFLASH, SPEC_TREE, SPEC_MTP and SPEC_NGRAM. */
drafter_kind spec_method_drafter(spec_method m);
/* Returns the method that drafts chains with a drafter of this kind. */
spec_method spec_chain_method(drafter_kind k);
/* Returns true when the method uses a drafter that is opened from a file. */
bool spec_needs_file(spec_method m);
#endif
