#include "http/client.h"

#include <stdio.h>

static bool is_path(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] <= 0x20 || (unsigned char)s.s[i] >= 0x7f || strchr("?#\"<>\\^`{|}", s.s[i]))
            return false;
    return true;
}

static bool is_host(str s, bool v6)
{
    for (size_t i = 0; i < s.n; i++) {
        char c     = s.s[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && !strchr(v6 ? ":.%" : "-._", c)) return false;
    }
    return s.n > 0;
}

/* Parses host, host:port, [v6] or [v6]:port. */
static bool parse_authority(http_url *u, str s, err *e)
{
    bool        v6   = s.n && s.s[0] == '[';
    const char *end  = v6 ? memchr(s.s, ']', s.n) : s.n ? memchr(s.s, ':', s.n) : NULL;
    str         host = {s.s + v6, end ? (size_t)(end - s.s) - v6 : s.n - v6}, port = {0};
    size_t      used = host.n + 2 * (size_t)v6;
    int64_t     n    = u->is_tls ? 443 : 80;
    if ((v6 && !end) || !is_host(host, v6) || host.n >= sizeof u->host)
        return err_set(e, ERR_INPUT, "'%.*s' is not the name of a host", STR_ARG(s));
    if (used < s.n) {
        port = (str){s.s + used + 1, s.n - used - 1};
        if (s.s[used] != ':' || !str_to_i64(port, &n) || n < 1 || n > 65535)
            return err_set(e, ERR_INPUT, "'%.*s' is not a port from 1 to 65535", STR_ARG(port));
    }
    memcpy(u->host, host.s, host.n);
    u->host[host.n] = 0;
    u->port         = (int)n;
    snprintf(u->authority, sizeof u->authority, "%.*s", (int)s.n, s.s);
    return true;
}

bool http_url_parse(http_url *out, str text, err *e)
{
    static const char *const schemes[] = {"http://", "https://"};
    str                      rest      = {0};
    *out                               = (http_url){0};
    for (int i = 0; i < 2; i++)
        if (str_starts(text, schemes[i])) {
            rest        = (str){text.s + strlen(schemes[i]), text.n - strlen(schemes[i])};
            out->is_tls = i == 1;
        }
    if (!rest.s) return err_set(e, ERR_INPUT, "'%.*s' does not begin with http:// or https://", STR_ARG(text));
    const char *slash = rest.n ? memchr(rest.s, '/', rest.n) : NULL;
    str         host  = {rest.s, slash ? (size_t)(slash - rest.s) : rest.n};
    str         path  = {rest.s + host.n, rest.n - host.n};
    if (!parse_authority(out, host, e)) return false;
    while (path.n && path.s[path.n - 1] == '/') path.n--;
    if (!is_path(path) || path.n >= sizeof out->path)
        return err_set(e, ERR_INPUT, "'%.*s' is not a path", STR_ARG(path));
    if (path.n) memcpy(out->path, path.s, path.n);
    return true;
}
