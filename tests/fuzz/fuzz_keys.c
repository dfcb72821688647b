/* A file of keys, then the fields of a request, each a line: what is accepted is what it looks like. */
#include "base/buf.h"
#include "server/access.h"
#include "server/keys_inside.h"
#include "server/origin.h"

#include <assert.h>
#include <ctype.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static str next_line(str *text)
{
    const char *end  = text->n ? memchr(text->s, '\n', text->n) : NULL;
    str         line = {text->s, end ? (size_t)(end - text->s) : text->n};
    size_t      used = line.n + (end != NULL);
    text->s += used;
    text->n -= used;
    return line;
}

/* A host that passes is an address, or one of the names: it holds nothing else. */
static void check_host(str host)
{
    static const char *const names[] = {"gpu-box"};
    if (!origin_check(host, (str){0}, names, 1, NULL)) return;
    for (size_t i = 0; i < host.n; i++) assert(isalnum((unsigned char)host.s[i]) || strchr(".:[]-", host.s[i]));
}

static void check_request(const access_rules *r, const access_fields *f)
{
    server_error why = {0};
    access_grant got;
    for (int to = ROUTE_OPEN; to <= ROUTE_OPERATE; to++) {
        bool ok = access_check(r, (route_access)to, f, &got, &why);
        assert(ok || why.status == 401 || why.status == 403);
        assert(!ok || to == ROUTE_OPEN || got.tenant || !keys_count(r->api));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str           text = {(const char *)data, size};
    access_fields f    = {next_line(&text), next_line(&text), next_line(&text), next_line(&text), false};
    access_rules  r    = {0};
    err           e    = {0};
    if (!keys_read(&r.api, text, &e)) assert(e.code && e.text[0] && !r.api);
    check_host(f.host);
    check_request(&r, &f);
    f.authorization = (str){0};
    check_request(&r, &f);
    keys_free(r.api);
    return 0;
}
