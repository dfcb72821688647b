/* bench/arms.h - the ways of decoding that a comparison has side by side. The first two are plain decoding, so that what
 * they differ by shows the noise. */
#ifndef TANDEM_BENCH_ARMS_H
#define TANDEM_BENCH_ARMS_H
#include "spec/spec.h"
#include "tandem.h"
#include "tok/tok.h"
#include "json/json.h"

enum { ARMS_MAX = 16 };
typedef struct {
    char               name[32];
    tandem_speculation spec;
} arm_choice;

#define ARMS_HELP                                                                                                      \
    "arms in addition to off, such as dflash:7,tree:22,mtp:3,ngram,auto (default: all that the drafters allow)"
/* "dflash:7,tree:22,auto"; off and plain may be in the list, they run anyway. Before a model is there. */
bool arms_check(const char *list, err *e);
/* list NULL: all methods that s has drafters for, and auto. base: the settings that a method's own number changes. */
bool arms_choose(arm_choice out[ARMS_MAX], int *n, const char *list, const spec *s, const tandem_speculation *base,
                 err *e);
/* Whether an arm wrote what the first one did; the first one's text is kept in *was. */
bool arms_agree(tok_ids *was, const tok_ids *text, bool first);
/* One member, "rounds": how many each method had, plain decoding too. */
void arms_put_rounds(json_writer *w, const tandem_spec_counts *s);
#endif
