#include "ops/ref/table.h"

#include <assert.h>

void ref_embed(queue *q, dev y, const weight *table, dev ids, int n_rows, float scale)
{
    (void)q;
    const int32_t *id = ids.p;
    float         *yr = y.p;
    for (int r = 0; r < n_rows; r++, yr += table->n_in) {
        if (id[r] < 0) continue;
        assert(id[r] < table->n_out);
        const float *row = weight_mat(table, 0) + (size_t)id[r] * (size_t)table->n_in;
        for (int i = 0; i < table->n_in; i++) yr[i] = row[i] * scale;
    }
}
