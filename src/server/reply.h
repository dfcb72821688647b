/* server/reply.h - answers as the client gets them: one JSON object, or events as they come.
 *
 * Both are made from the same events of the same choices: an event stream's pieces, joined, are the object's texts, byte for
 * byte. Text is escaped once, when it comes.
 *
 *      whole   choice ---> parts of each choice ---> reply_whole
 *      stream  choice ---> the open part ---> a chunk when the kind changes or the poll ends ---> reply.out
 *
 * A form is what one API's replies look like, errors included; forms keep what they need of a choice in its parts.
 * reply_completions.c is what the chat's and the text's have in common. */
#ifndef TANDEM_SERVER_REPLY_H
#define TANDEM_SERVER_REPLY_H
#include "server/answer.h"
#include "server/record.h"

enum { REPLY_ID_MAX = 48 };
/* A prefix and so many letters and digits that nobody can guess. */
void reply_make_id(char *out, size_t cap, const char *prefix, int n);

typedef struct reply reply;
typedef struct {
    void (*open)(reply *r, const char *model);       /* what is known before the first token */
    void (*begin)(reply *r, server_choice *c);       /* of a stream; NULL: nothing */
    void (*on_progress)(reply *r, server_choice *c); /* of a stream: an event without text; NULL: there is none */
    void (*on_prompt)(reply *r, server_choice *c, size_t from, size_t n); /* as choice_sink's; NULL: there is none */
    void (*on_event)(reply *r, server_choice *c, const chat_event *ev);
    void (*on_token)(reply *r, server_choice *c, const tandem_token *x); /* with log-probabilities; NULL: not told */
    void (*flush)(reply *r, server_choice *c); /* of a stream: the open part, if there is one */
    /* Of a stream: a choice has all its tokens. last: nothing of the others is to come. */
    void (*end)(reply *r, server_choice *c, const server_choice *all, int n, bool last);
    void (*done)(reply *r, const server_choice *all, int n);                          /* of a stream: all ended well */
    void (*fail)(reply *r, const server_choice *all, int n, const server_error *why); /* of a stream: with the usage */
    void (*ping)(reply *r);
    void (*put_whole)(reply *r, server_choice *all, int n); /* one object */
    /* An error's body; with choices, what they used is beside it. */
    void (*put_error)(buf *out, const server_choice *all, int n, const server_error *why);
    int         overloaded; /* the status of a server that has no room, in place of 503; 0: none */
    const char *id_field;   /* that has the request's id, too; NULL: none */
    /* Why a stream is refused, as events behind a 200, where clients look for it there; false: an error it is. May be NULL. */
    bool (*put_refused)(buf *out, const char *model, const server_error *why);
    const char *stream_type; /* the Content-Type of a stream; NULL: events */
} reply_form;
extern const reply_form reply_chat, reply_text, reply_native, reply_messages, reply_responses, reply_ollama;

struct reply {
    const reply_form     *form;
    const server_request *request;
    const tok            *tok;
    bool                  stream, with_usage, with_logprobs;
    buf                   out;           /* bytes for the client; the owner takes them */
    buf                   head;          /* the form's: what every object begins with */
    buf                   tail;          /* the form's: members at the end of the last one */
    double                since, opened; /* clock_s of the request's head, and of reply_init */
};

void        reply_init(reply *r, const reply_form *form, const server_request *q, const tok *t, const char *model);
void        reply_deinit(reply *r);
choice_sink reply_sink(reply *r);
/* Some of it found no room: what is in out must not be sent, or it would look whole. */
bool reply_lost(const reply *r, const server_choice *all, int n);
void reply_begin(reply *r, server_choice *c); /* of a stream; nothing the second time */
void reply_end(reply *r, server_choice *c, const server_choice *all, int n, bool last);

/* --- for the forms --- */
void   reply_put_index(buf *out, int i);
void   reply_put_part(reply *r, server_choice *c, int part);      /* and empties it */
void   reply_put_token(json_writer *w, const tok *t, int32_t id); /* as a string */
double reply_logprob(double x);                                   /* what JSON can hold */
/* Appends the log-probabilities of one token to a list: {"token":...,"top_logprobs":[...]}. with_ids: with token ids. */
void reply_put_logprobs(buf *out, const tok *t, const tandem_token *x, int n_top, bool with_ids);
/* Tokens and times of choices together. */
typedef struct {
    record_sums sums;
    int64_t     reasoning_tokens;
} reply_usage;
void reply_sum(reply_usage *out, const server_choice *all, int n);
/* The same of a choice so far. */
void reply_put_live_timings(buf *out, const server_choice *c);
void reply_put_timings(buf *out, const server_choice *all, int n); /* "timings":{...} */

/* --- reply_completions.c: chat.completion's and text_completion's envelope --- */
typedef struct {
    const char *id_prefix, *object, *chunk_object;
} completions_names;
void completions_open(reply *r, const char *model, const completions_names *names);
void completions_chunk(reply *r, const server_choice *c);         /* up to the choice's own members */
void completions_chunk_end(reply *r, const char *reason);         /* its finish reason, and the rest */
void completions_last(reply *r, const server_choice *all, int n); /* before the last choice's last chunk */
void completions_done(reply *r, const server_choice *all, int n);
void completions_fail(reply *r, const server_choice *all, int n, const server_error *why);
void completions_ping(reply *r);
void completions_whole(reply *r, server_choice *all, int n,
                       void (*put)(reply *r, server_choice *c, const char *reason));
void completions_error(buf *out, const server_choice *all, int n, const server_error *why);
#endif
