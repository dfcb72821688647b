/* tests/unit/chat/transcript.h - a parser's events as one text, to compare. */
#ifndef TANDEM_TEST_CHAT_TRANSCRIPT_H
#define TANDEM_TEST_CHAT_TRANSCRIPT_H
#include "chat/gemma4.h"

/* R(reasoning) C(content) number:name(arguments), and a bar for a call's end. */
typedef struct {
    buf             text;
    chat_event_kind last;
    bool            open;
} transcript;

void transcript_note(void *transcript, const chat_event *ev); /* an on_event; its text needs buf_init */
void transcript_close(transcript *x);                         /* closes the open parenthesis */
#endif
