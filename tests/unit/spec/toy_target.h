/* tests/unit/spec/toy_target.h - a target with recurrent layers whose next token is a plain function of the whole
 * text, and drafters that are right most of the time.
 *
 * A row's logits depend on three things, each of which alone would give away a wrong commit:
 *   - a hash of all tokens in order, a state whose kept rows are inputs (the token), applied by `replay`;
 *   - the last three tokens, a state whose kept rows are whole states;
 *   - a sum over the K of every position of the row's path, read from the pages.
 * All memory is the host's: it works on the backends "ref" and "cpu". */
#ifndef TANDEM_TEST_TOY_TARGET_H
#define TANDEM_TEST_TOY_TARGET_H
#include "spec/inside.h"
#include "test.h"

enum { TOY_WINDOW = 3 };

/* Mistakes that a test plants, to see that they are found. */
typedef enum {
    TOY_CORRECT,
    TOY_REPLAYS_NEXT_ROW, /* of kept inputs: the last one applied is that of the row after it */
    TOY_SKIPS_LAST_ROW,   /* of kept inputs: the last one is not applied */
    TOY_KEEPS_PARENT,     /* of whole states: a row keeps its parent's */
    TOY_CHANGES_LIVE,     /* a kept row changes the live state */
} toy_mistake;

typedef struct {
    uint32_t hash[2];
    int32_t  last[TOY_WINDOW];
} toy_state;

typedef struct {
    target      t; /* first: a target * is a toy * */
    ops        *o;
    toy_mistake mistake;
    float      *favour;                 /* [n_vocab] added to the logits; NULL: nothing */
    toy_state   row[STEP_DEFAULT_ROWS]; /* after each row of the step */
    int64_t     n_rows, n_replays;      /* so far: rows run, rows applied by replay */
} toy;

/* Fails the test, and returns NULL, when something cannot be opened. */
toy *toy_target_open(test_case *t, const char *device, int n_vocab, int max_rows, int max_kept_rows);
void toy_target_close(toy *y);
/* Returns the likeliest token after the text. */
int32_t toy_next(const toy *y, const int32_t *text, int32_t n);
/* Gives the loop a drafter that knows the text and errs now and then. */
void toy_add_drafter(spec *s, toy *y, spec_method m);
#endif
