/* spec/method.h - the methods of drafting: their names and the drafters that they use. CONTRIBUTING.md explains chain
 * and tree. */
#ifndef TANDEM_SPEC_METHOD_H
#define TANDEM_SPEC_METHOD_H
#include "model/drafter.h"

typedef enum {
    SPEC_OFF,                 /* plain decoding, without draft tokens */
    SPEC_DFLASH,              /* chains of the DFlash drafter */
    SPEC_TREE,                /* trees of the DFlash drafter */
    SPEC_MTP,                 /* chains of the MTP drafter */
    SPEC_NGRAM,               /* chains that are copied from earlier in the text */
    SPEC_METHODS,             /* the methods before this one can be planned by the policy */
    SPEC_AUTO = SPEC_METHODS, /* requests only: the policy plans each round */
    SPEC_GRAMMAR,             /* results only: the grammar of the request leaves no other token */
    SPEC_COUNTED,             /* counters are arrays of this size; that of SPEC_AUTO stays 0 */
} spec_method;

/* The names that a request may use, "off" to "auto", then NULL. */
extern const char *const spec_method_names[];
/* Returns the name of any method, NULL for an unknown one. */
const char *spec_method_name(int m);
/* Returns the drafter that the method uses. m is SPEC_DFLASH, SPEC_TREE, SPEC_MTP or SPEC_NGRAM. */
drafter_kind spec_method_drafter(spec_method m);
/* Returns the method that drafts chains with a drafter of this kind. */
spec_method spec_chain_method(drafter_kind k);
/* Returns whether the method uses a drafter that is opened from a file. m may be any method. */
bool spec_needs_file(spec_method m);
#endif
