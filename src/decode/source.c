#include "decode/source.h"

#include "base/clock.h"
#include "base/mem.h"
#include "decode/address.h"
#include "decode/worker.h"
#include "http/client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_URL = 8 << 10, MAX_REDIRECTS = 5 };
#define CHECK_S 0.1 /* between two checks of `cancel` */

source_options source_default_options(void) { return (source_options){.max_bytes = DECODE_MAX_FILE, .fetch_s = 20}; }

static bool too_large(size_t limit, err *e)
{
    return err_set(e, ERR_TOO_LARGE, "the file has more than %zu bytes", limit);
}

static bool check_buf(const buf *out, err *e)
{
    if (!out->failed) return true;
    return out->over ? too_large(out->max, e) : err_set(e, ERR_UNAVAILABLE, "no memory for the file");
}

/* --- base64 -------------------------------------------------------------------------------------*/
static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

bool source_base64(buf *out, str text, err *e)
{
    char     piece[3 << 10];
    size_t   n     = 0;
    uint32_t bits  = 0;
    int      count = 0; /* digits in `bits` */
    while (text.n && (text.s[text.n - 1] == '=' || text.s[text.n - 1] == '\n' || text.s[text.n - 1] == '\r')) text.n--;
    for (size_t i = 0; i < text.n; i++) {
        int d = base64_digit(text.s[i]);
        if (d < 0 && (text.s[i] == '\n' || text.s[i] == '\r')) continue;
        if (d < 0) return err_set(e, ERR_INPUT, "the data are not base64: character %zu is invalid", i + 1);
        bits = bits << 6 | (uint32_t)d;
        if (++count < 4) continue;
        for (int k = 2; k >= 0; k--) piece[n++] = (char)(bits >> 8 * k);
        count = 0;
        if (n == sizeof piece) {
            buf_put(out, piece, n);
            n = 0;
        }
    }
    if (count == 1) return err_set(e, ERR_INPUT, "the data are not base64: they end early");
    if (count) bits <<= 6 * (4 - count);
    for (int k = 2; count && k > 3 - count; k--) piece[n++] = (char)(bits >> 8 * k);
    buf_put(out, piece, n);
    return check_buf(out, e);
}

/* data:[type][;parameter...];base64,DATA */
static bool load_data(buf *out, str url, err *e)
{
    const char *comma = memchr(url.s, ',', url.n < 256 ? url.n : 256);
    str         head  = {url.s, comma ? (size_t)(comma - url.s) : 0};
    if (!comma || !str_ends(head, ";base64"))
        return err_set(e, ERR_INPUT, "a data URL must have the form data:image/png;base64,...");
    return source_base64(out, (str){comma + 1, url.n - head.n - 1}, e);
}

/* --- files --------------------------------------------------------------------------------------*/
static bool is_hex(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Decodes %XX. Returns false for a NUL byte, or when the path does not fit. */
static bool decode_path(char *out, size_t cap, str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++, n++) {
        char c = s.s[i];
        if (c == '%' && i + 2 < s.n && is_hex(s.s[i + 1]) && is_hex(s.s[i + 2])) {
            c = (char)strtol((const char[]){s.s[i + 1], s.s[i + 2], 0}, NULL, 16);
            i += 2;
        }
        if (!c || n + 1 >= cap) return false;
        out[n] = c;
    }
    out[n] = 0;
    return true;
}

/* Opens a file below dir; symbolic links that lead out of it are refused by the kernel. */
static int open_below(const char *dir, const char *path)
{
    struct open_how how    = {.flags   = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                              .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int             parent = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    long            fd     = parent < 0 ? -1 : syscall(SYS_openat2, parent, path, &how, sizeof how);
    int             why    = errno;
    if (parent >= 0) close(parent);
    errno = why;
    return (int)fd;
}

/* Returns the part of an absolute path below dir; NULL: it is not below it. */
static const char *below(const char *dir, const char *path)
{
    size_t n = strlen(dir);
    while (n && dir[n - 1] == '/') n--;
    if (strncmp(path, dir, n) || path[n] != '/') return NULL;
    for (path += n; *path == '/';) path++;
    return *path ? path : NULL;
}

static bool read_file(buf *out, int fd, size_t max, err *e)
{
    char        piece[64 << 10];
    struct stat st;
    ssize_t     n;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return err_set(e, ERR_INPUT, "the path is not that of a regular file");
    if ((uint64_t)st.st_size > max) return too_large(max, e);
    while ((n = read(fd, piece, sizeof piece)) > 0) {
        if (out->n + (size_t)n > max) return too_large(max, e);
        buf_put(out, piece, (size_t)n);
    }
    if (n < 0) return err_set(e, ERR_INPUT, "the file cannot be read: %s", strerror(errno));
    return check_buf(out, e);
}

static bool load_file(buf *out, const source_options *o, str url, err *e)
{
    char path[4096];
    if (!o->dir) return err_set(e, ERR_INPUT, "file URLs are not allowed: the server has no --media-dir");
    if (!str_starts(url, "file:///") || !decode_path(path, sizeof path, (str){url.s + 7, url.n - 7}))
        return err_set(e, ERR_INPUT, "a file URL must have the form file:///PATH");
    const char *rest = below(o->dir, path);
    int         fd   = rest ? open_below(o->dir, rest) : -1;
    if (!rest) return err_set(e, ERR_INPUT, "the file is not below the server's media directory");
    if (fd < 0 && errno == ENOENT)
        return err_set(e, ERR_INPUT, "there is no such file in the server's media directory");
    if (fd < 0) return err_set(e, ERR_INPUT, "the file in the server's media directory cannot be opened");
    bool ok = read_file(out, fd, o->max_bytes, e);
    close(fd);
    return ok;
}

/* --- http ---------------------------------------------------------------------------------------*/
typedef struct {
    buf *out;
    int  status; /* 0: no response yet */
    char location[MAX_URL + 1];
    bool ended, ok;
    err  why;
} fetching;

static void on_head(void *ctx, const http_response *r)
{
    fetching *f  = ctx;
    str       to = http_response_field(r, "Location");
    f->status    = r->status;
    if (to.n <= MAX_URL) snprintf(f->location, sizeof f->location, "%.*s", (int)to.n, to.n ? to.s : "");
}

static void on_body(void *ctx, str bytes)
{
    fetching *f = ctx;
    if (f->status == 200) buf_put(f->out, bytes.s, bytes.n);
}

static void on_end(void *ctx, const err *why)
{
    fetching *f = ctx;
    f->ended    = true;
    f->ok       = !why;
    if (why) f->why = *why;
}

/* Splits a URL into that of its server and the path with the query. The fragment is dropped. */
static bool split_url(http_url *server, char *path, size_t cap, str url, err *e)
{
    size_t scheme = str_starts(url, "https://") ? 8 : str_starts(url, "http://") ? 7 : 0, end = scheme, n = 0;
    if (url.n > MAX_URL) return err_set(e, ERR_INPUT, "the URL has more than %d characters", MAX_URL);
    while (end < url.n && !strchr("/?#", url.s[end])) end++;
    if (!http_url_parse(server, (str){url.s, end}, e)) return false;
    if (end == url.n || url.s[end] != '/') path[n++] = '/';
    for (size_t i = end; i < url.n && url.s[i] != '#'; i++) {
        if ((unsigned char)url.s[i] <= ' ' || (unsigned char)url.s[i] >= 0x7f || n + 1 >= cap)
            return err_set(e, ERR_INPUT, "the URL has a character that must be escaped");
        path[n++] = url.s[i];
    }
    path[n] = 0;
    return true;
}

static bool fetch_once(fetching *f, const source_options *o, str url, double deadline, err *e)
{
    http_client_options ho;
    http_client        *c = NULL;
    http_url            server;
    char                path[MAX_URL + 2];
    const http_field    accept = {STR("Accept"), STR("image/*, video/*")};
    http_client_options_init(&ho);
    ho.total_s   = deadline - clock_s();
    ho.connect_s = ho.total_s;
    ho.max_body  = o->max_bytes;
    ho.allows    = o->allows ? o->allows : address_is_public;
    if (ho.total_s <= 0) return err_set(e, ERR_INPUT, "the fetch took longer than %g s", o->fetch_s);
    if (!split_url(&server, path, sizeof path, url, e) || !http_client_open(&c, &server, &ho, e)) return false;
    f->status      = 0;
    f->ended       = false;
    f->location[0] = 0;
    http_fetch_start(c, path, &accept, 1, (str){0}, &(http_fetch_handler){on_head, on_body, on_end, f});
    bool cancelled = false;
    while (!f->ended && !(cancelled = o->cancel && atomic_load(o->cancel)))
        http_client_poll(c, fmin(clock_s() + CHECK_S, deadline + 1));
    http_client_close(c);
    if (cancelled) return err_set(e, ERR_UNAVAILABLE, "cancelled");
    if (!f->ok) *e = f->why;
    return f->ok;
}

/* Replaces *url by the target of a redirect: an absolute URL, or a path on the same server. */
static bool follow(char *url, size_t cap, const char *to, err *e)
{
    char   next[MAX_URL + 1];
    str    now    = str_of(url);
    size_t scheme = str_starts(now, "https://") ? 8 : 7, host = scheme;
    while (host < now.n && !strchr("/?#", url[host])) host++;
    int n;
    if (!strncmp(to, "http://", 7) || !strncmp(to, "https://", 8))
        n = snprintf(next, sizeof next, "%s", to);
    else if (!strncmp(to, "//", 2))
        n = snprintf(next, sizeof next, "%.*s%s", (int)scheme - 2, url, to);
    else if (to[0] == '/')
        n = snprintf(next, sizeof next, "%.*s%s", (int)host, url, to);
    else
        return err_set(e, ERR_INPUT, "the server redirects to another kind of URL");
    if (n < 0 || (size_t)n >= sizeof next || (size_t)n >= cap)
        return err_set(e, ERR_INPUT, "the server redirects to a URL that is too long");
    if (scheme == 8 && strncmp(next, "https://", 8))
        return err_set(e, ERR_INPUT, "the server redirects from https to http");
    memcpy(url, next, (size_t)n + 1);
    return true;
}

static bool load_http(buf *out, const source_options *o, str first, err *e)
{
    fetching f        = {.out = out};
    double   deadline = clock_s() + o->fetch_s;
    char     url[MAX_URL + 1];
    if (!o->fetch)
        return err_set(e, ERR_INPUT,
                       "URLs are not fetched by this server (--media-fetch is off): send the file as a data URL");
    if (first.n > MAX_URL || memchr(first.s, 0, first.n))
        return err_set(e, ERR_INPUT, "a URL has at most %d characters", MAX_URL);
    memcpy(url, first.s, first.n);
    url[first.n] = 0;
    for (int i = 0; i <= MAX_REDIRECTS; i++) {
        if (!fetch_once(&f, o, str_of(url), deadline, e)) {
            if (e->code != ERR_TOO_LARGE && e->code != ERR_UNAVAILABLE) e->code = ERR_INPUT;
            return err_wrap(e, "the URL cannot be fetched");
        }
        if (f.status == 200) return check_buf(out, e);
        bool redirects = f.status == 301 || f.status == 302 || f.status == 303 || f.status == 307 || f.status == 308;
        if (!redirects || !f.location[0])
            return err_set(e, ERR_INPUT, "the URL cannot be fetched: the server's status is %d", f.status);
        if (!follow(url, sizeof url, f.location, e)) return err_wrap(e, "the URL cannot be fetched");
    }
    return err_set(e, ERR_INPUT, "the URL cannot be fetched: more than %d redirects", MAX_REDIRECTS);
}

bool source_load(buf *out, const source_options *o, str url, err *e)
{
    if (str_starts(url, "data:")) return load_data(out, url, e);
    if (str_starts(url, "file:")) return load_file(out, o, url, e);
    if (str_starts(url, "http://") || str_starts(url, "https://")) return load_http(out, o, url, e);
    return err_set(e, ERR_INPUT, "the URL must begin with data:, http://, https:// or file:");
}
