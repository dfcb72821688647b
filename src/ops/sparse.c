#include "ops/sparse.h"

#include <stdio.h>

bool sparse_parse(sparse_params *out, str text, err *e)
{
    double share;
    if (!str_to_f64(text, &share) || !(share >= 0 && share < 1))
        return err_set(e, ERR_INPUT, "the share of sparse attention must be from 0 to below 1, got '%.*s'",
                       STR_ARG(text));
    *out = (sparse_params){(uint32_t)(share * SPARSE_ONE), SPARSE_SINK, SPARSE_NEAR, SPARSE_MIN_CTX};
    if (!out->drop) *out = (sparse_params){0};
    return true;
}

double sparse_share(const sparse_params *s)
{
    char   out[SPARSE_TEXT];
    double share = 0;
    str_to_f64(str_of(sparse_text(s, out)), &share);
    return share;
}

/* Finds the shortest text. */
const char *sparse_text(const sparse_params *s, char out[SPARSE_TEXT])
{
    sparse_params got = {0};
    for (int digits = 1; digits <= 12; digits++) {
        snprintf(out, SPARSE_TEXT, "%.*g", digits, (double)s->drop / SPARSE_ONE);
        if (sparse_parse(&got, str_of(out), NULL) && got.drop == s->drop) break;
    }
    return out;
}
