/* tests/unit/grammar/schemas.h - schemas with documents that fit and documents that do not. Written with Q for quotes. */
#ifndef TANDEM_TEST_GRAMMAR_SCHEMAS_H
#define TANDEM_TEST_GRAMMAR_SCHEMAS_H
#include <stddef.h>

typedef struct {
    const char *schema, *yes[7], *no[9]; /* a single quote stands for a double one */
} schema_row;
extern const schema_row schema_rows[];
extern const size_t     n_schema_rows;
#endif
