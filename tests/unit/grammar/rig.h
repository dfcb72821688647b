/* tests/unit/grammar/rig.h - vocabularies for the grammar's tests, and a judge of documents that shares nothing with the
 * compiler: the JSON reader and a plain walk over the schema. */
#ifndef TANDEM_TEST_GRAMMAR_RIG_H
#define TANDEM_TEST_GRAMMAR_RIG_H
#include "grammar/inside.h"
#include "test.h"

typedef struct {
    tok           *tok;
    grammar_vocab *vocab;
    int32_t        end;
} rig_vocab;

rig_vocab *rig_nano(void);  /* nano's own vocabulary; made once, never freed, here and below */
rig_vocab *rig_bytes(void); /* a few hundred tokens: bytes, pieces of JSON, Gemma's markers */
rig_vocab *rig_large(void); /* 262,144 made-up tokens, in form much like Gemma's */

/* Fails the test, and gives NULL, when it does not compile. */
grammar_machine *rig_gbnf(test_case *t, rig_vocab *v, const char *text);
grammar_machine *rig_schema(test_case *t, rig_vocab *v, const char *schema);
void             rig_free(grammar_machine *m); /* and its grammar */

typedef enum { RIG_NO, RIG_PART, RIG_WHOLE } rig_verdict; /* refused; a beginning; a complete text */
rig_verdict rig_follow(grammar_machine *m, str text);
/* Returns whether only a stop token may follow. */
bool rig_must_end(grammar_machine *m, const rig_vocab *v, grammar_state s);
/* Returns the only token that must come next, -1 when there are several. */
int32_t rig_next(grammar_machine *m, grammar_state s);

/* Whether a document fits a schema: both texts. Understands what the tests use; aborts on other keywords. */
bool rig_fits(str document, const char *schema,
              bool *twice); /* twice: an object has a key twice, nothing else is said */
#endif
