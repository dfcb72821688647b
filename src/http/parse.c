#include "http/parse.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

static const http_verdict fine;

static http_verdict verdict_of(int status, const char *why) { return (http_verdict){status, why}; }
static http_verdict bad_request(const char *why) { return verdict_of(400, why); }
static http_verdict too_large(void) { return verdict_of(413, "The request's body is too large."); }

/* --- characters ----------------------------------------------------------------------------------- */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alnum(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_token(char c) { return is_alnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)); }
static bool is_blank(char c) { return c == ' ' || c == '\t'; }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* --- the head's bytes ----------------------------------------------------------------------------- */
void http_scan_init(http_scan *s, size_t max_head)
{
    *s = (http_scan){0};
    buf_init(&s->bytes, max_head);
}

void http_scan_deinit(http_scan *s) { buf_deinit(&s->bytes); }

/* Skips one empty line before the request (RFC 9112 2.2). */
static http_verdict end_line(http_scan *s)
{
    if (s->in_line)
        s->n_lines++;
    else if (s->n_lines)
        s->done = true;
    else if (s->n_blank++)
        return bad_request("The request begins with empty lines.");
    s->in_line = false;
    return fine;
}

static http_verdict scan_byte(http_scan *s, char c)
{
    unsigned char u    = (unsigned char)c;
    char          last = s->last;

    s->last = c;
    if (c == '\n')
        return last == '\r' ? end_line(s) : bad_request("A line of the request ends without a carriage return.");
    if (last == '\r') return bad_request("The request's head has a carriage return without a line feed.");
    if (c == '\r') return fine;
    if ((u < 0x20 && c != '\t') || u == 0x7f) return bad_request("The request's head has a control character.");
    s->in_line = true;
    return fine;
}

http_verdict http_scan_feed(http_scan *s, str in, size_t *used)
{
    http_verdict v    = fine;
    size_t       i    = 0;
    size_t       room = s->bytes.max - s->bytes.n;

    assert(!s->done);
    while (i < in.n && i < room && !s->done && !v.status) v = scan_byte(s, in.s[i++]);
    if (i < in.n && !s->done && !v.status) v = verdict_of(431, "The request's head is too long.");
    if (!buf_put(&s->bytes, in.s, i) && !v.status) v = verdict_of(503, "There is no memory for the request.");
    *used = i;
    return v;
}

/* --- the head taken apart ------------------------------------------------------------------------- */
/* Returns the next line without its CR LF, which the scan has checked. */
static str next_line(str *rest)
{
    const char *end  = memchr(rest->s, '\r', rest->n);
    str         line = {rest->s, (size_t)(end - rest->s)};
    rest->s += line.n + 2;
    rest->n -= line.n + 2;
    return line;
}

/* Cuts *rest at the first `c`. Returns the part before it and moves *rest after it; s NULL: there is none. */
static str cut_at(str *rest, char c)
{
    const char *p = rest->n ? memchr(rest->s, c, rest->n) : NULL;
    if (!p) return (str){0};
    str head = {rest->s, (size_t)(p - rest->s)};
    rest->s += head.n + 1;
    rest->n -= head.n + 1;
    return head;
}

static str trim(str s)
{
    while (s.n && is_blank(s.s[0])) s = (str){s.s + 1, s.n - 1};
    while (s.n && is_blank(s.s[s.n - 1])) s.n--;
    return s;
}

static http_verdict parse_method(http_head *h)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(h->method, known[i])) return fine;
    if (!h->method.n) return bad_request("The request line has no method.");
    for (size_t i = 0; i < h->method.n; i++)
        if (!is_token(h->method.s[i])) return bad_request("The request's method is not a token.");
    return verdict_of(501, "The request's method is not supported.");
}

static http_verdict parse_version(http_head *h, str v)
{
    if (v.n != 8 || memcmp(v.s, "HTTP/", 5) || !is_digit(v.s[5]) || v.s[6] != '.' || !is_digit(v.s[7]))
        return bad_request("The request line does not end with a version of HTTP.");
    if (v.s[5] != '1' || v.s[7] > '1') return verdict_of(505, "This server speaks HTTP/1.1 and HTTP/1.0.");
    h->minor = v.s[7] - '0';
    return fine;
}

static http_verdict check_target(const http_head *h)
{
    if (!h->target.n || (h->target.s[0] != '/' && !(str_is(h->target, "*") && str_is(h->method, "OPTIONS"))))
        return bad_request("The request's target does not begin with a slash.");
    for (size_t i = 0; i < h->target.n; i++)
        if ((unsigned char)h->target.s[i] <= 0x20 || (unsigned char)h->target.s[i] >= 0x7f || h->target.s[i] == '#')
            return bad_request("The request's target has an invalid character.");
    return fine;
}

static http_verdict parse_request_line(http_head *h, str line)
{
    http_verdict v;
    str          rest = line, at;
    if (at = cut_at(&rest, ' '), !at.s) return bad_request("The request line is not a method, a target and a version.");
    h->method = at;
    if (at = cut_at(&rest, ' '), !at.s) return bad_request("The request line is not a method, a target and a version.");
    h->target = at;
    if (v = parse_method(h), v.status) return v;
    if (v = check_target(h), v.status) return v;
    return parse_version(h, rest);
}

static http_verdict parse_field(http_field *f, str line)
{
    str rest = line;
    if (is_blank(line.s[0])) return bad_request("A header line is folded.");
    str name = cut_at(&rest, ':');
    if (!name.n) return bad_request("A header line has no name.");
    for (size_t i = 0; i < name.n; i++)
        if (!is_token(name.s[i])) return bad_request("A header's name has an invalid character.");
    *f = (http_field){name, trim(rest)};
    return fine;
}

/* Refuses a tab next to a value that decides where the body ends, because parsers treat it differently. */
static bool has_tab_beside(str v)
{
    for (const char *p = v.s; p[-1] != ':'; p--)
        if (p[-1] == '\t') return true;
    for (const char *p = v.s + v.n; *p != '\r'; p++)
        if (*p == '\t') return true;
    return false;
}

static http_verdict parse_length(http_head *h, str v, size_t max_body)
{
    if (h->has_length) return bad_request("Content-Length appears twice.");
    h->has_length = true;
    if (!v.n || has_tab_beside(v)) return bad_request("Content-Length is not a number.");
    for (size_t i = 0; i < v.n; i++) {
        if (!is_digit(v.s[i])) return bad_request("Content-Length is not a number.");
        if (h->length <= max_body) h->length = h->length * 10 + (uint64_t)(v.s[i] - '0');
    }
    return fine;
}

static bool is_host(str v)
{
    for (size_t i = 0; i < v.n; i++)
        if (!is_alnum(v.s[i]) && !strchr("-._~:[]%!$&'()*+,;=", v.s[i])) return false;
    return true;
}

/* Clears keep_alive when the list "a, b, c" contains close. */
static void parse_connection(http_head *h, str v)
{
    while (v.n) {
        str word = cut_at(&v, ',');
        if (!word.s) {
            word = v;
            v.n  = 0;
        }
        if (str_is_nocase(trim(word), STR("close"))) h->keep_alive = false;
    }
}

static http_verdict parse_coding(http_head *h, str v)
{
    if (h->chunked) return bad_request("Transfer-Encoding appears twice.");
    if (!str_is_nocase(v, STR("chunked")) || has_tab_beside(v))
        return bad_request("Transfer-Encoding is not 'chunked'.");
    h->chunked = true;
    return fine;
}

static http_verdict read_fields(http_head *h, size_t max_body)
{
    http_verdict v;
    int          hosts = 0;
    for (size_t i = 0; i < h->n_fields; i++) {
        str name = h->field[i].name, value = h->field[i].value;
        if (str_is_nocase(name, STR("content-length"))) {
            if (v = parse_length(h, value, max_body), v.status) return v;
        } else if (str_is_nocase(name, STR("transfer-encoding"))) {
            if (v = parse_coding(h, value), v.status) return v;
        } else if (str_is_nocase(name, STR("host"))) {
            if (hosts++) return bad_request("Host appears twice.");
            if (!is_host(value)) return bad_request("Host is not the name of a host.");
        } else if (str_is_nocase(name, STR("connection"))) {
            parse_connection(h, value);
        } else if (str_is_nocase(name, STR("expect")) && h->minor) {
            if (!str_is_nocase(value, STR("100-continue"))) return verdict_of(417, "Expect is not '100-continue'.");
            h->expects_continue = true;
        }
    }
    if (h->minor && !hosts) return bad_request("Host is missing.");
    if (h->chunked && h->has_length) return bad_request("Content-Length and Transfer-Encoding exclude each other.");
    if (h->chunked && !h->minor) return bad_request("HTTP/1.0 has no Transfer-Encoding.");
    if (h->length > max_body) return too_large();
    return fine;
}

static http_verdict decode_path(http_head *h, char *out)
{
    str raw = h->target, q = h->target, p = cut_at(&q, '?');
    if (p.s) {
        raw      = p;
        h->query = q;
    }
    size_t n = 0;
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.s[i];
        if (c == '%') {
            int high = i + 2 < raw.n ? hex_digit(raw.s[i + 1]) : -1;
            int low  = high >= 0 ? hex_digit(raw.s[i + 2]) : -1;
            if (low < 0 || !(high | low))
                return bad_request("A '%' in the request's target is not followed by two digits.");
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[n++] = c;
    }
    h->path = (str){out, n};
    return fine;
}

http_verdict http_head_parse(http_head *out, const http_scan *s, size_t max_fields, size_t max_body)
{
    http_verdict v;
    str          rest = buf_str(&s->bytes);

    assert(s->done);
    *out = (http_head){.keep_alive = true, .n_fields = s->n_lines - 1};
    if (out->n_fields > max_fields) return verdict_of(431, "The request has too many header lines.");
    if (s->n_blank) next_line(&rest);
    if (v = parse_request_line(out, next_line(&rest)), v.status) return v;
    /* one allocation: the fields, then the decoded path, which is not longer than the path */
    out->field = mem_try(out->n_fields * sizeof *out->field + out->target.n);
    if (!out->field) return verdict_of(503, "There is no memory for the request.");
    for (size_t i = 0; i < out->n_fields; i++)
        if (v = parse_field(&out->field[i], next_line(&rest)), v.status) return v;
    if (v = decode_path(out, (char *)(out->field + out->n_fields)), v.status) return v;
    if (v = read_fields(out, max_body), v.status) return v;
    out->keep_alive = out->keep_alive && out->minor;
    return fine;
}

/* --- the body ------------------------------------------------------------------------------------- */
http_verdict http_body_check(const http_body *b)
{
    return b->state == BODY_COUNTED && b->bytes_left > b->max ? too_large() : fine;
}

void http_body_init(http_body *b, const http_head *h, size_t max_body)
{
    *b = (http_body){.max = max_body, .bytes_left = h->length};
    if (h->chunked)
        b->state = BODY_SIZE_FIRST;
    else if (h->length)
        b->state = BODY_COUNTED;
}

static http_verdict read_size_digit(http_body *b, char c)
{
    int d = hex_digit(c);
    if (d < 0) return bad_request("A chunk's size is not a number.");
    if (b->digits++ >= 16) return bad_request("A chunk's size has too many digits.");
    b->bytes_left = b->bytes_left << 4 | (uint64_t)d;
    b->state      = BODY_SIZE;
    if (b->bytes_left > b->max - b->total) return too_large();
    return fine;
}

static http_verdict expect_byte(http_body *b, char c, char want, http_body_state next)
{
    if (c != want) return bad_request("A chunk of the body is not followed by CRLF.");
    b->state = next;
    return fine;
}

static http_verdict read_frame_byte(http_body *b, char c)
{
    switch (b->state) {
    case BODY_SIZE_FIRST:
        b->bytes_left = 0;
        b->digits     = 0;
        return read_size_digit(b, c);
    case BODY_SIZE:
        if (c != '\r') return read_size_digit(b, c);
        b->state = BODY_SIZE_LF;
        return fine;
    case BODY_SIZE_LF:
        b->total += b->bytes_left;
        return expect_byte(b, c, '\n', b->bytes_left ? BODY_DATA : BODY_END_CR);
    case BODY_DATA_CR: return expect_byte(b, c, '\r', BODY_DATA_LF);
    case BODY_DATA_LF: return expect_byte(b, c, '\n', BODY_SIZE_FIRST);
    case BODY_END_CR:
        return c == '\r' ? expect_byte(b, c, '\r', BODY_END_LF) : bad_request("Trailers are not supported.");
    default: return expect_byte(b, c, '\n', BODY_DONE);
    }
}

http_verdict http_body_read(http_body *b, str in, size_t *used, buf *out)
{
    http_verdict v = fine;
    size_t       i = 0;
    while (i < in.n && b->state != BODY_DONE && !v.status) {
        if (b->state != BODY_DATA && b->state != BODY_COUNTED) {
            v = read_frame_byte(b, in.s[i++]);
            continue;
        }
        size_t n = in.n - i < b->bytes_left ? in.n - i : (size_t)b->bytes_left;
        if (!buf_put(out, in.s + i, n)) v = verdict_of(503, "There is no memory for the request.");
        i += n;
        b->bytes_left -= n;
        if (!b->bytes_left) b->state = b->state == BODY_DATA ? BODY_DATA_CR : BODY_DONE;
    }
    *used = i;
    return v;
}
