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

/* Returns the next name of a list separated by commas, and removes it from the list. */
static str next_name(str *list)
{
    const char *comma = list->n ? memchr(list->s, ',', list->n) : NULL;
    str         name  = {list->s, comma ? (size_t)(comma - list->s) : list->n};
    *list             = (str){name.s + name.n + (comma != NULL), list->n - name.n - (comma != NULL)};
    while (name.n && name.s[0] == ' ') name.s++, name.n--;
    while (name.n && name.s[name.n - 1] == ' ') name.n--;
    return name;
}

static bool is_listed(str name, str list)
{
    while (list.n) {
        str one = next_name(&list);
        if (str_is(one, "*") || (one.n && str_is_nocase(name, one))) return true;
    }
    return false;
}

static bool is_ours(str name, const char *const *names, size_t n_names)
{
    if (!name.n) return false;
    if (str_is_nocase(name, STR("localhost")) || is_address(name)) return true;
    for (size_t i = 0; i < n_names; i++)
        if (is_listed(name, str_of(names[i]))) return true;
    return false;
}

static bool is_name(str s)
{
    enum { LONGEST = 253 };
    for (size_t i = 0; i < s.n; i++) {
        char c = (char)(s.s[i] | 0x20);
        if (!(c >= 'a' && c <= 'z') && !(s.s[i] >= '0' && s.s[i] <= '9') && s.s[i] != '-' && s.s[i] != '.' &&
            s.s[i] != '_')
            return false;
    }
    return s.n > 0 && s.n <= LONGEST;
}

bool origin_names_check(const char *list, err *e)
{
    str rest = str_of(list);
    while (rest.n) {
        str name = next_name(&rest);
        if (!str_is(name, "*") && !is_name(name))
            return err_set(e, ERR_INPUT, "'%.*s' is not the name of a host, without a scheme and a port",
                           STR_ARG(name));
    }
    return true;
}

static bool refuse_host(str name, err *e)
{
    if (!is_name(name)) return err_set(e, ERR_INPUT, "the Host of this request is not a name of this server");
    return err_set(e, ERR_INPUT,
                   "the Host of this request, %.*s, is not a name of this server; --allow-host %.*s allows it",
                   STR_ARG(name), STR_ARG(name));
}

static str without_scheme(str origin)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++)
        if (str_starts(origin, schemes[i])) return (str){origin.s + strlen(schemes[i]), origin.n - strlen(schemes[i])};
    return (str){0};
}

str origin_allowed(str origin, const char *const *cors, size_t n)
{
    str  name = host_name(without_scheme(origin)), found = {0};
    bool local = str_is_nocase(name, STR("localhost")) || str_is(name, "127.0.0.1") || str_is(name, "::1");
    for (size_t i = 0; origin.s && i < n; i++)
        for (str rest = str_of(cors[i]); rest.n;) {
            str one = next_name(&rest);
            if (str_is(one, "*")) return one;
            if (str_eq(one, origin) || (local && str_is(one, "localhost"))) found = origin;
        }
    return found;
}

bool origin_list_check(const char *list, err *e)
{
    for (str rest = str_of(list); rest.n;) {
        str one = next_name(&rest), name = host_name(without_scheme(one));
        if (str_is(one, "*") || str_is(one, "localhost") || is_name(name) || is_address(name)) continue;
        return err_set(e, ERR_INPUT, "'%.*s' is not an origin, such as https://example.org", STR_ARG(one));
    }
    return true;
}

bool origin_check(str host, str origin, const char *const *names, size_t n_names, err *e)
{
    str name = host_name(host);
    if (!is_ours(name, names, n_names)) return refuse_host(name, e);
    str from = without_scheme(origin);
    return !origin.s || (from.n && str_is_nocase(from, host)) ||
           err_set(e, ERR_INPUT, "this request comes from a page of another origin; --cors ORIGIN allows it");
}
