/* bench/arms.h - the arms of a benchmark: the decoding methods that it compares. The first two, "off" and "off
 * again", are both plain decoding; their difference shows the noise. */
#ifndef TANDEM_BENCH_ARMS_H
#define TANDEM_BENCH_ARMS_H
#include "spec/spec.h"
#include "tandem.h"
#include "tok/tok.h"
#include "json/json.h"

enum { ARMS_MAX = 16 };
typedef struct {
    char               name[32]; /* as in the list, such as "dflash:7" */
    tandem_speculation spec;
} arm_choice;

#define ARMS_HELP                                                                                                      \
    "arms in addition to off, such as dflash:7,tree:22,mtp:3,ngram,auto (default: all that the drafters allow)"
/* Checks a list such as "dflash:7,tree:22,auto" before a model is opened, also its length. Skips the words off and
 * plain, because plain decoding always runs. NULL is valid, an empty list is not. */
bool arms_check(const char *list, err *e);
/* Sets up the arms: the two plain ones, then those of list, which must have passed arms_check. list NULL: all methods
 * that s has drafters for, and auto. Each arm of the list copies base and sets its method; a number (dflash:7)
 * replaces base's draft_max, or tree_budget for tree. Fails if a method of the list has no drafter. */
bool arms_choose(arm_choice out[ARMS_MAX], int *n, const char *list, const spec *s, const tandem_speculation *base,
                 err *e);
/* Returns whether text equals *was, the text of the first arm. With `first`, replaces *was by a copy of text before
 * that. */
bool arms_agree(tok_ids *was, const tok_ids *text, bool first);
/* Writes the member "rounds": the number of rounds of plain decoding and of each method that had any. */
void arms_put_rounds(json_writer *w, const tandem_spec_counts *s);
#endif
