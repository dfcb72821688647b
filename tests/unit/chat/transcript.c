#include "chat/transcript.h"

void transcript_close(transcript *x)
{
    if (x->open) buf_putc(&x->text, ')');
    x->open = false;
}

void transcript_note(void *ctx, const chat_event *ev)
{
    transcript *x = ctx;
    if (x->open && ev->kind == x->last) { /* goes on */
        buf_put(&x->text, ev->text.s, ev->text.n);
        return;
    }
    transcript_close(x);
    if (ev->kind == CHAT_EVENT_REASONING) buf_puts(&x->text, "R(");
    if (ev->kind == CHAT_EVENT_CONTENT) buf_puts(&x->text, "C(");
    if (ev->kind == CHAT_EVENT_CALL_NAME) buf_printf(&x->text, "%d:", ev->call);
    if (ev->kind == CHAT_EVENT_CALL_ARGS) buf_puts(&x->text, "(");
    buf_put(&x->text, ev->text.s, ev->text.n);
    if (ev->kind == CHAT_EVENT_CALL_DONE) buf_puts(&x->text, "|");
    x->open = ev->kind != CHAT_EVENT_CALL_NAME && ev->kind != CHAT_EVENT_CALL_DONE;
    x->last = ev->kind;
}
