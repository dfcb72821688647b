#include "figures/result.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

void result_interval(json_writer *w, const char *key, interval i)
{
    char name[64];
    json_member_real(w, key, i.median);
    snprintf(name, sizeof name, "%s_low", key);
    json_member_real(w, name, i.low);
    snprintf(name, sizeof name, "%s_high", key);
    json_member_real(w, name, i.high);
}

bool result_numbers(const char *text, int *out, int max_n, int *n, int min, int max, err *e)
{
    *n = 0;
    for (const char *at = text; *at;) {
        str     word = str_next_word(&at);
        int64_t i;
        if (!str_to_i64(word, &i) || i < min || i > max)
            return err_set(e, ERR_INPUT, "'%.*s' is not a number from %d to %d", STR_ARG(word), min, max);
        if (*n == max_n) return err_set(e, ERR_INPUT, "the list has more than %d entries", max_n);
        out[(*n)++] = (int)i;
    }
    return *n > 0 || err_set(e, ERR_INPUT, "the list is empty");
}

bool result_write(const char *path, str text, err *e)
{
    FILE *f  = fopen(path, "w");
    bool  ok = f && fwrite(text.s, 1, text.n, f) == text.n;
    ok       = f && fclose(f) == 0 && ok;
    return ok || err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

json_writer *result_begin(result_doc *r, const char *bench)
{
    buf_init(&r->text, 1 << 24);
    json_writer_init(&r->w, &r->text);
    json_begin_object(&r->w);
    json_member_str(&r->w, "bench", bench);
    return &r->w;
}

bool result_end(result_doc *r, const char *path, err *e)
{
    json_end(&r->w);
    bool ok = !r->text.failed || err_set(e, ERR_LIMIT, "the result is larger than %zu MiB", r->text.max >> 20);
    if (ok && path) ok = result_write(path, buf_str(&r->text), e);
    if (ok && !path) printf("%.*s\n", (int)r->text.n, r->text.p);
    buf_deinit(&r->text);
    return ok;
}
