/* Compares with llhttp, the parser of Node.js, in its strict mode: it must accept every request that we accept, with
 * the same method, target, fields and body. We refuse more, on purpose. Two differences are evened out:
 *
 *   - blanks at the end of a value: llhttp keeps them, so they are removed before the comparison;
 *   - Upgrade: we ignore it, so llhttp is set to ignore it. */
#include "http_stream.h"

#include <llhttp.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    buf  text, body, url;
    bool in_value, complete;
    int  keeps_alive;
} theirs;

/* Values are put as "name: value\n" once they are whole. */
static void end_value(theirs *t)
{
    while (t->text.n && (t->text.p[t->text.n - 1] == ' ' || t->text.p[t->text.n - 1] == '\t')) t->text.n--;
    buf_putc(&t->text, '\n');
}

static int on_name(llhttp_t *p, const char *s, size_t n) { return !buf_put(&((theirs *)p->data)->text, s, n); }
static int on_name_end(llhttp_t *p) { return !buf_putc(&((theirs *)p->data)->text, ':'); }
static int on_value(llhttp_t *p, const char *s, size_t n) { return !buf_put(&((theirs *)p->data)->text, s, n); }
static int on_url(llhttp_t *p, const char *s, size_t n) { return !buf_put(&((theirs *)p->data)->url, s, n); }
static int on_body(llhttp_t *p, const char *s, size_t n) { return !buf_put(&((theirs *)p->data)->body, s, n); }

static int on_value_end(llhttp_t *p)
{
    end_value(p->data);
    return 0;
}

static int on_head_end(llhttp_t *p)
{
    theirs *t      = p->data;
    p->upgrade     = 0;
    t->keeps_alive = llhttp_should_keep_alive(p);
    return 0;
}

static int on_end(llhttp_t *p)
{
    theirs *t   = p->data;
    t->complete = true;
    return HPE_PAUSED;
}

static void write_fields(buf *out, const http_head *h)
{
    buf_init(out, 1 << 20);
    for (size_t i = 0; i < h->n_fields; i++) {
        buf_put(out, h->field[i].name.s, h->field[i].name.n);
        buf_putc(out, ':');
        buf_put(out, h->field[i].value.s, h->field[i].value.n);
        buf_putc(out, '\n');
    }
}

static void check_same(const one_request *r, str bytes)
{
    llhttp_settings_t settings;
    llhttp_t          p;
    theirs            t = {0};
    buf               fields;

    llhttp_settings_init(&settings);
    settings.on_url                   = on_url;
    settings.on_header_field          = on_name;
    settings.on_header_field_complete = on_name_end;
    settings.on_header_value          = on_value;
    settings.on_header_value_complete = on_value_end;
    settings.on_headers_complete      = on_head_end;
    settings.on_body                  = on_body;
    settings.on_message_complete      = on_end;
    llhttp_init(&p, HTTP_REQUEST, &settings);
    p.data = &t;
    buf_init(&t.text, 1 << 20);
    buf_init(&t.body, 1 << 20);
    buf_init(&t.url, 1 << 20);

    llhttp_errno_t why = llhttp_execute(&p, bytes.s, bytes.n);
    if (why != HPE_PAUSED || !t.complete)
        fprintf(stderr, "llhttp: %s: %s\n", llhttp_errno_name(why), llhttp_get_error_reason(&p));
    MUST(why == HPE_PAUSED && t.complete);
    MUST(llhttp_get_error_pos(&p) == bytes.s + bytes.n);
    write_fields(&fields, &r->head);
    MUST(str_is(r->head.method, llhttp_method_name((llhttp_method_t)p.method)));
    MUST(p.http_major == 1 && p.http_minor == r->head.minor);
    MUST(str_eq(r->head.target, buf_str(&t.url)));
    MUST(str_eq(buf_str(&fields), buf_str(&t.text)));
    MUST(str_eq(buf_str(&r->body), buf_str(&t.body)));
    MUST(!r->head.keep_alive || t.keeps_alive);
    buf_deinit(&fields);
    buf_deinit(&t.text);
    buf_deinit(&t.body);
    buf_deinit(&t.url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    str    in = {(const char *)data, size};
    size_t at = 0;
    bool   go = true;
    while (go && at < in.n) {
        one_request r;
        read_request(&r, in, at, piece_all, NULL);
        go = is_accepted(&r);
        if (go) check_same(&r, (str){in.s + at, r.at - at});
        at = r.at;
        drop_request(&r);
    }
    return 0;
}
