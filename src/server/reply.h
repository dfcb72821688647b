/* server/reply.h - answers as the client gets them: one JSON object, or events as they come.
 *
 * Both are made from the same events of the same choices: an event stream's pieces, joined, are the object's texts, byte for
 * byte. Text is escaped once, when it comes.
 *
 *      whole   choice ---> parts of each choice ---> reply_whole
 *      stream  choice ---> the open part ---> a chunk when the kind changes or the poll ends ---> reply.out
 *
 * reply_chat.c and reply_text.c are the two forms; what they share is here. */
#ifndef TANDEM_SERVER_REPLY_H
#define TANDEM_SERVER_REPLY_H
#include "server/answer.h"
#include "server/record.h"

enum { REPLY_ID_MAX = 48 };
/* A prefix and so many letters and digits that nobody can guess. */
void reply_make_id(char *out, size_t cap, const char *prefix, int n);

typedef struct reply      reply;
typedef struct reply_form reply_form;
struct reply {
    const reply_form *form;
    const tok        *tok;
    bool              stream, with_usage, with_logprobs;
    buf               out;  /* bytes for the client; the owner takes them */
    buf               head; /* what every object begins with, up to its choices */
    buf               tail; /* members at the end of the last one */
};

/* A form of reply: how a choice looks. */
struct reply_form {
    const char *id_prefix, *object, *chunk_object;
    void (*begin)(reply *r, server_choice *c); /* of a stream */
    void (*on_event)(reply *r, server_choice *c, const gemma4_event *ev);
    void (*on_token)(reply *r, server_choice *c, const tandem_token *x);
    void (*flush)(reply *r, server_choice *c);                   /* of a stream: the open part, if there is one */
    void (*end)(reply *r, server_choice *c, const char *reason); /* of a stream */
    void (*put_whole)(reply *r, server_choice *c, const char *reason);
};
extern const reply_form reply_chat, reply_text;

void        reply_init(reply *r, const server_request *q, const tok *t, const char *model);
void        reply_deinit(reply *r);
choice_sink reply_sink(reply *r);

/* --- a stream: after any of these, out is to be sent --- */
void reply_begin(reply *r, server_choice *c); /* nothing the second time */
void reply_flush(reply *r, server_choice *c);
/* A choice has all its tokens. last: nothing of the others is to come. */
void reply_end(reply *r, server_choice *c, const server_choice *all, int n, bool last);
void reply_done(reply *r, const server_choice *all, int n); /* all ended well: the usage, if asked for, and the end */
void reply_fail(reply *r, const server_choice *all, int n, const server_error *why); /* the usage, and the error */
void reply_ping(reply *r);

/* Some of it found no room: what is in out must not be sent, or it would look whole. */
bool reply_lost(const reply *r, const server_choice *all, int n);

/* --- one object --- */
void reply_whole(reply *r, server_choice *all, int n);
/* An error's body; with choices, what they used is beside it. */
void reply_error(buf *out, const server_choice *all, int n, const server_error *why);

/* --- for the forms --- */
void   reply_put_part(reply *r, server_choice *c, int part);      /* and empties it */
void   reply_chunk(reply *r, const server_choice *c);             /* up to the choice's own members */
void   reply_chunk_end(reply *r, const char *reason);             /* its finish reason, and the rest */
void   reply_put_token(json_writer *w, const tok *t, int32_t id); /* as a string */
double reply_logprob(double x);                                   /* what JSON can hold */
#endif
