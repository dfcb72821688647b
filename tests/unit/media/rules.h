/* tests/unit/media/rules.h - patch rules like those of the models. */
#ifndef TANDEM_TEST_MEDIA_RULES_H
#define TANDEM_TEST_MEDIA_RULES_H
#include "media/patches.h"

/* Gemma 4 with a budget of soft tokens. */
static inline patch_rule rule_rows(int budget)
{
    return (patch_rule){
        .fit = PATCH_FIT_BUDGET, .order = PATCH_ORDER_ROWS, .patch = 16, .cell = 48, .frames = 1, .max_cells = budget};
}

/* Qwen 3.5, still pictures. */
static inline patch_rule rule_cells(void)
{
    return (patch_rule){.fit      = PATCH_FIT_AREA,
                        .order    = PATCH_ORDER_CELLS,
                        .patch    = 16,
                        .cell     = 32,
                        .frames   = 2,
                        .min_area = 65536,
                        .max_area = 16777216};
}
#endif
