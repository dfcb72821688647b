/* bench/arms.h - the methods that a benchmark compares. The first two are plain decoding; their difference shows the
 * noise. */
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
/* Checks "dflash:7,tree:22,auto" before a model is opened. off and plain always run and may be in the list. */
bool arms_check(const char *list, err *e);
/* Sets up the arms. list NULL: all methods that s has drafters for, and auto. base: options that the number of a method
 * overrides. */
bool arms_choose(arm_choice out[ARMS_MAX], int *n, const char *list, const spec *s, const tandem_speculation *base,
                 err *e);
/* Returns whether an arm wrote the same text as the first one, which is stored in *was. */
bool arms_agree(tok_ids *was, const tok_ids *text, bool first);
/* Writes the member "rounds": the number of rounds of each method, including plain decoding. */
void arms_put_rounds(json_writer *w, const tandem_spec_counts *s);
#endif
