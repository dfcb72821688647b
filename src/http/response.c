#include "http/response.h"

#include "http/parse.h"

#include <assert.h>

enum { MAX_LINE = 16 << 10, MAX_INTERIM = 8, MAX_SIZE_DIGITS = 15 };

void http_response_init(http_response *r)
{
    *r = (http_response){0};
    buf_init(&r->head, RESPONSE_MAX_HEAD);
    buf_init(&r->line, MAX_LINE);
}

void http_response_deinit(http_response *r)
{
    buf_deinit(&r->head);
    buf_deinit(&r->line);
}

void http_response_reset(http_response *r)
{
    r->state      = RESPONSE_HEAD;
    r->status     = 0;
    r->n_interim  = 0;
    r->bytes_left = 0;
    buf_clear(&r->head);
    buf_clear(&r->line);
}

/* --- the head -----------------------------------------------------------------------------------*/
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static str trim(str s)
{
    while (s.n && (s.s[0] == ' ' || s.s[0] == '\t')) s = (str){s.s + 1, s.n - 1};
    while (s.n && (s.s[s.n - 1] == ' ' || s.s[s.n - 1] == '\t')) s.n--;
    return s;
}

/* Returns the next line of a head without its LF. */
static str next_line(str *rest)
{
    const char *end  = memchr(rest->s, '\n', rest->n);
    str         line = {rest->s, (size_t)(end - rest->s)};
    rest->s += line.n + 1;
    rest->n -= line.n + 1;
    return line;
}

static bool cut_field(str line, str *name, str *value)
{
    const char *colon = line.n ? memchr(line.s, ':', line.n) : NULL;
    if (!colon || colon == line.s) return false;
    *name  = (str){line.s, (size_t)(colon - line.s)};
    *value = trim((str){colon + 1, line.n - name->n - 1});
    return true;
}

/* Returns the next field with this name from *at on and moves *at after it; s NULL: there is none. */
static str find_field(str *at, const char *name)
{
    while (at->n) {
        str key, value;
        if (cut_field(next_line(at), &key, &value) && str_is_nocase(key, str_of(name))) return value;
    }
    return (str){0};
}

str http_response_field(const http_response *r, const char *name)
{
    str at = buf_str(&r->head);
    if (at.n) next_line(&at);
    return find_field(&at, name);
}

/* Returns true if the list "a, b, c" has this word. */
static bool has_word(str list, const char *word)
{
    while (list.n) {
        const char *comma = memchr(list.s, ',', list.n);
        size_t      n     = comma ? (size_t)(comma - list.s) : list.n;
        if (str_is_nocase(trim((str){list.s, n}), str_of(word))) return true;
        list.s += n + (comma != NULL);
        list.n -= n + (comma != NULL);
    }
    return false;
}

static bool parse_status(http_response *r, str line, err *e)
{
    if (!str_starts(line, "HTTP/1.") || line.n < 12 || !is_digit(line.s[7]) || line.s[8] != ' ' ||
        !is_digit(line.s[9]) || !is_digit(line.s[10]) || !is_digit(line.s[11]) || (line.n > 12 && line.s[12] != ' '))
        return err_set(e, ERR_FORMAT, "the server does not speak HTTP/1.1");
    r->status     = (line.s[9] - '0') * 100 + (line.s[10] - '0') * 10 + line.s[11] - '0';
    r->keep_alive = line.s[7] != '0';
    return r->status >= 100 || err_set(e, ERR_FORMAT, "the reply's status is %d", r->status);
}

static bool parse_length(http_response *r, str value, err *e)
{
    uint64_t n;
    if (!value.n || !is_digit(value.s[0]) || !str_to_u64(value, &n))
        return err_set(e, ERR_FORMAT, "the reply's Content-Length is not a number");
    r->bytes_left = n;
    r->state      = n ? RESPONSE_COUNTED : RESPONSE_DONE;
    return true;
}

/* Determines how the body ends. */
static bool frame_body(http_response *r, err *e)
{
    str all = buf_str(&r->head);
    next_line(&all);
    str at = all, length = find_field(&at, "content-length"), second = find_field(&at, "content-length");
    str coding     = http_response_field(r, "transfer-encoding");
    str connection = http_response_field(r, "connection");
    if (has_word(connection, "close")) r->keep_alive = false;
    if (r->status == 204 || r->status == 304) {
        r->state = RESPONSE_DONE;
        return true;
    }
    if (coding.s) {
        if (!str_is_nocase(coding, STR("chunked")))
            return err_set(e, ERR_FORMAT, "the reply's Transfer-Encoding is not chunked");
        if (length.s) return err_set(e, ERR_FORMAT, "the reply has both Content-Length and Transfer-Encoding");
        r->state = RESPONSE_SIZE;
        return true;
    }
    if (length.s) {
        if (second.s && !str_eq(length, second)) return err_set(e, ERR_FORMAT, "the reply has two Content-Lengths");
        return parse_length(r, length, e);
    }
    r->state      = RESPONSE_TO_END;
    r->keep_alive = false;
    return true;
}

static bool check_fields(const http_response *r, err *e)
{
    str all = buf_str(&r->head), name, value;
    next_line(&all);
    while (all.n)
        if (!cut_field(next_line(&all), &name, &value))
            return err_set(e, ERR_FORMAT, "a line of the reply's head has no name");
    return true;
}

static bool end_head(http_response *r, err *e)
{
    str rest = buf_str(&r->head);
    if (!parse_status(r, next_line(&rest), e) || !check_fields(r, e)) return false;
    if (r->status >= 200) return frame_body(r, e);
    if (r->status == 101) return err_set(e, ERR_FORMAT, "the server switches protocols, which is not supported");
    if (++r->n_interim > MAX_INTERIM) return err_set(e, ERR_FORMAT, "the server sends too many interim responses");
    buf_clear(&r->head);
    return true;
}

/* --- lines --------------------------------------------------------------------------------------*/
/* Appends bytes up to an LF. Sets *whole when it was found; the line then has no line end. */
static bool gather_line(http_response *r, str in, size_t *used, bool *whole, err *e)
{
    const char *end = memchr(in.s, '\n', in.n);
    *used           = end ? (size_t)(end - in.s) + 1 : in.n;
    *whole          = end != NULL;
    if (!buf_put(&r->line, in.s, *used - *whole))
        return err_set(e, ERR_TOO_LARGE, "a line of the reply is longer than %d KiB", MAX_LINE >> 10);
    if (*whole && r->line.n && r->line.p[r->line.n - 1] == '\r') r->line.n--;
    return true;
}

static bool has_control(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (((unsigned char)s.s[i] < 0x20 && s.s[i] != '\t') || s.s[i] == 0x7f) return true;
    return false;
}

static bool take_head_line(http_response *r, err *e)
{
    str line = buf_str(&r->line);
    if (!r->head.n && !str_starts(line, "HTTP/1.")) return err_set(e, ERR_FORMAT, "the server does not speak HTTP/1.1");
    if (!line.n) return end_head(r, e);
    if (has_control(line)) return err_set(e, ERR_FORMAT, "there is a control character in the reply's head");
    if (!buf_put(&r->head, line.s, line.n) || !buf_putc(&r->head, '\n'))
        return err_set(e, ERR_TOO_LARGE, "the reply's head is longer than %d KiB", RESPONSE_MAX_HEAD >> 10);
    return true;
}

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_size_line(http_response *r, err *e)
{
    str    line   = buf_str(&r->line);
    size_t i      = 0;
    r->bytes_left = 0;
    for (; i < line.n && hex_digit(line.s[i]) >= 0; i++) {
        if (i == MAX_SIZE_DIGITS) return err_set(e, ERR_FORMAT, "a chunk of the reply is too large");
        r->bytes_left = r->bytes_left << 4 | (uint64_t)hex_digit(line.s[i]);
    }
    if (!i || (i < line.n && line.s[i] != ';' && line.s[i] != ' ' && line.s[i] != '\t'))
        return err_set(e, ERR_FORMAT, "the size of a chunk of the reply is not a number");
    r->state = r->bytes_left ? RESPONSE_DATA : RESPONSE_TRAILER;
    return true;
}

/* Skips trailers; together they may be as long as a head. */
static bool take_trailer(http_response *r, err *e)
{
    if (!r->line.n) {
        r->state = RESPONSE_DONE;
        return true;
    }
    r->bytes_left += r->line.n;
    return r->bytes_left <= RESPONSE_MAX_HEAD || err_set(e, ERR_TOO_LARGE, "the reply's trailers are too long");
}

static bool take_line(http_response *r, err *e)
{
    switch (r->state) {
    case RESPONSE_HEAD: return take_head_line(r, e);
    case RESPONSE_SIZE: return take_size_line(r, e);
    case RESPONSE_DATA_END:
        r->state = RESPONSE_SIZE;
        return !r->line.n || err_set(e, ERR_FORMAT, "a chunk of the reply is not followed by CRLF");
    default: return take_trailer(r, e);
    }
}

/* --- the whole ----------------------------------------------------------------------------------*/
static str take_body(http_response *r, str in)
{
    if (r->state == RESPONSE_TO_END) return in;
    str piece = {in.s, in.n < r->bytes_left ? in.n : (size_t)r->bytes_left};
    r->bytes_left -= piece.n;
    if (!r->bytes_left) r->state = r->state == RESPONSE_DATA ? RESPONSE_DATA_END : RESPONSE_DONE;
    return piece;
}

bool http_response_feed(http_response *r, str in, size_t *used, str *body, err *e)
{
    bool whole;
    assert(in.n && r->state != RESPONSE_DONE);
    *body = (str){0};
    if (r->state == RESPONSE_COUNTED || r->state == RESPONSE_DATA || r->state == RESPONSE_TO_END) {
        *body = take_body(r, in);
        *used = body->n;
        return true;
    }
    if (!gather_line(r, in, used, &whole, e)) return false;
    if (!whole) return true;
    bool ok = take_line(r, e);
    buf_clear(&r->line);
    return ok;
}

bool http_response_end(http_response *r, err *e)
{
    if (r->state == RESPONSE_TO_END) r->state = RESPONSE_DONE;
    if (r->state == RESPONSE_DONE) return true;
    return err_set(e, ERR_IO,
                   r->state == RESPONSE_HEAD ? "the server closed the connection without a response"
                                             : "the server closed the connection in the middle of its response");
}
