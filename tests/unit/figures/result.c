#include "figures/result.h"

#include "base/file.h"
#include "base/mem.h"
#include "test.h"

#include <limits.h>

TEST(figures_result_that_is_too_large_is_not_written)
{
    enum { MiB = 1 << 20 };
    result_doc doc;
    err        e    = {0};
    char      *text = xalloc(MiB), path[PATH_MAX];
    memset(text, 'x', MiB);
    file_join(path, sizeof path, test_tmp_dir(), "result.json");
    for (int n = 1; n <= 17; n += 16) { /* one fits into the limit of 16 MiB, 17 do not */
        json_writer *w = result_begin(&doc, "rows");
        json_key(w, "list");
        json_begin_array(w);
        for (int i = 0; i < n; i++) json_put_str(w, (str){text, MiB});
        json_end(w);
        CHECK(result_end(&doc, path, &e) == (n == 1));
        CHECK(file_exists(path) == (n == 1));
        remove(path);
    }
    CHECK_INT(e.code, ERR_LIMIT);
    mem_free(text);
}
