#include "load/drive.h"

#include <stdlib.h>

/* Reads "NAME{labels} VALUE" or "NAME VALUE". Returns false when the line has another name or no value. */
static bool value_of(str line, const char *prefix, const char *name, double *out)
{
    size_t n = strlen(prefix) + strlen(name);
    if (line.n <= n || !str_starts(line, prefix) || memcmp(line.s + strlen(prefix), name, strlen(name)) != 0)
        return false;
    str rest = {line.s + n, line.n - n};
    if (rest.s[0] != ' ' && rest.s[0] != '{') return false;
    while (rest.n && (rest.s[rest.n - 1] == '\r' || rest.s[rest.n - 1] == ' ')) rest.n--;
    size_t digits = 0;
    while (digits < rest.n && rest.s[rest.n - 1 - digits] != ' ') digits++;
    return str_to_f64((str){rest.s + rest.n - digits, digits}, out);
}

static load_counters read_named(str page, const char *prefix)
{
    load_counters c = {0};
    for (size_t at = 0, n; at < page.n; at += n + 1) {
        const char *end  = memchr(page.s + at, '\n', page.n - at);
        str         line = {page.s + at, n = end ? (size_t)(end - page.s) - at : page.n - at};
        double      x;
        if (value_of(line, prefix, "spec_decode_num_drafts_total", &x)) c.rounds += x;
        if (value_of(line, prefix, "spec_decode_num_accepted_tokens_total", &x)) c.accepted += x;
        if (value_of(line, prefix, "spec_decode_num_draft_tokens_total", &x)) {
            c.drafted += x;
            c.reported = true;
        }
    }
    return c;
}

load_counters load_counters_read(str page)
{
    load_counters c = read_named(page, "vllm:");
    return c.reported ? c : read_named(page, "tandem_");
}
