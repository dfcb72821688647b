#include "server/origin.h"

#include <arpa/inet.h>

static bool is_port(str s)
{
    if (!s.n || s.n > 5) return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.s[i] < '0' || s.s[i] > '9') return false;
    return true;
}

/* "name:80" to "name", "[::1]:80" to "::1"; empty when it is neither. */
static str host_name(str host)
{
    bool        bracket = host.n && host.s[0] == '[';
    const char *end     = !host.n ? NULL : memchr(host.s, bracket ? ']' : ':', host.n);
    if (bracket && !end) return (str){0};
    str name = {host.s + bracket, (size_t)((end ? end : host.s + host.n) - host.s) - bracket};
    str rest = {name.s + name.n + bracket, host.n - name.n - 2 * (size_t)bracket};
    if (rest.n && (rest.s[0] != ':' || !is_port((str){rest.s + 1, rest.n - 1}))) return (str){0};
    return name;
}

static bool is_address(str name)
{
    char            text[INET6_ADDRSTRLEN];
    struct in6_addr a;
    if (!name.n || name.n >= sizeof text) return false;
    memcpy(text, name.s, name.n);
    text[name.n] = 0;
    return inet_pton(AF_INET, text, &a) == 1 || inet_pton(AF_INET6, text, &a) == 1;
}

static bool is_ours(str name, const char *const *names, size_t n_names)
{
    if (str_is_nocase(name, STR("localhost")) || is_address(name)) return true;
    for (size_t i = 0; i < n_names; i++)
        if (str_is_nocase(name, str_of(names[i]))) return true;
    return false;
}

static str without_scheme(str origin)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++)
        if (str_starts(origin, schemes[i])) return (str){origin.s + strlen(schemes[i]), origin.n - strlen(schemes[i])};
    return (str){0};
}

bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e)
{
    if (!is_ours(host_name(host), names, n_names))
        return err_set(e, ERR_INPUT, "the Host of this request is not a name of this server");
    str from = without_scheme(origin);
    return !origin.s || (from.n && str_is_nocase(from, host)) ||
           err_set(e, ERR_INPUT, "this request comes from a page of another origin");
}
