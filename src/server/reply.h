/* server/reply.h - writes responses: one JSON object, or an event stream.
 *
 * Both are made from the same events, so that the texts of a stream, joined, equal the texts of the object byte for
 * byte. Text is escaped once, when it arrives.
 *
 *      whole   choice_poll ---> on_event: parts of each choice ---> put_whole ---> reply.out
 *      stream  choice_poll ---> on_event: the open part ---> flush: a chunk ---> reply.out
 *
 * A reply_format is the table of callbacks of one API, errors included. It receives the events of the parser directly
 * and keeps its state in the parts of the choice. reply_completions.c has the common code of chat and text completions.
 * Called on the I/O thread, except reply_init, which a worker may call. */
#ifndef TANDEM_SERVER_REPLY_H
#define TANDEM_SERVER_REPLY_H
#include "server/choice.h"
#include "server/record.h"

enum { REPLY_ID_MAX = 48 };
/* Writes a prefix and n random letters and digits, with a NUL; cut to cap bytes. */
void reply_make_id(char *out, size_t cap, const char *prefix, int n);

typedef struct {
    void (*open)(reply *r, const char *model); /* writes r->head and r->tail before the first token */
    void (*begin)(server_choice *c);           /* stream only; may be NULL */
    /* Writes an event without text, with the members in reply.tail, while the prompt is run. Stream only, and only if
     * the request asks for it; may be NULL. */
    void (*on_progress)(server_choice *c);
    /* Receives n tokens of the prompt of a request with echo, before all other events; with from == 0 the text of the
     * prompt as well. May be NULL. */
    void (*on_prompt)(server_choice *c, size_t from, size_t n);
    void (*on_event)(void *choice, const chat_event *ev); /* the callback of the choice's chat_stream */
    /* Receives a token after its events, only with log-probabilities or for /completion; a stop token only with echo.
     * May be NULL. */
    void (*on_token)(server_choice *c, const tandem_token *x);
    bool every_token;                /* on_token receives all tokens, stop tokens included */
    void (*flush)(server_choice *c); /* stream only: writes the open part */
    /* For a stream: a choice has all its tokens. last: all other choices have ended. */
    void (*end)(server_choice *c, const server_choice *all, int n, bool last);
    void (*done)(reply *r, const server_choice *all, int n); /* stream only: all choices succeeded */
    void (*fail)(reply *r, const server_choice *all, int n,
                 const server_error *why); /* stream only: writes usage and error */
    void (*ping)(reply *r); /* stream only: writes an event without meaning, to keep the connection open */
    void (*put_whole)(reply *r, server_choice *all, int n); /* writes the whole response to r->out */
    /* Appends the body of an error, with the usage of the choices if n > 0. */
    void (*put_error)(buf *out, const server_choice *all, int n, const server_error *why);
    int         overloaded; /* status for overload instead of 503; 0: 503 */
    const char *id_field;   /* a second header with the request id; NULL: none */
    /* Appends the error of a refused stream as events after a 200, for clients that expect it there. Returns false to
     * send a normal error. May be NULL. */
    bool (*put_refused)(buf *out, const char *model, const server_error *why);
    const char *stream_type; /* Content-Type of a stream; NULL: text/event-stream */
} reply_format;
extern const reply_format reply_chat, reply_text, reply_native, reply_messages, reply_responses, reply_ollama;

struct reply {
    const reply_format   *format;
    const server_request *request;
    const tok            *tok;
    bool                  stream, with_usage, with_logprobs;
    buf                   out;           /* bytes for the client; the owner of the reply sends and clears them */
    buf                   head;          /* written by the format: the start of every object */
    buf                   tail;          /* members at the end of the next object, or of the last one */
    double                since, opened; /* clock_s of the head of the request, and of reply_init */
};

/* Sets all fields except `since`, and calls format->open. Borrows q and t. */
void reply_init(reply *r, const reply_format *format, const server_request *q, const tok *t, const char *model);
void reply_deinit(reply *r);
/* Returns whether part of it was lost for lack of memory. r->out must not be sent then, since it would look
 * complete. */
bool reply_lost(const reply *r, const server_choice *all, int n);
void reply_begin(server_choice *c); /* stream only: calls format->begin; a second call does nothing */
void reply_end(server_choice *c, const server_choice *all, int n, bool last); /* stream only: flush and format->end */

/* --- for the formats --- */
void   reply_put_index(buf *out, int i);                          /* appends the digits of i, 0 or more */
void   reply_put_part(reply *r, server_choice *c, int part);      /* appends a part to r->out and clears it */
void   reply_put_token(json_writer *w, const tok *t, int32_t id); /* writes its text as a string */
double reply_logprob(double x);                                   /* returns a number that JSON can hold */
/* Appends the log-probabilities of one token to a list: {"token":...,"top_logprobs":[...]}, after a comma if `out` is
 * not empty. with_ids: adds token ids. */
void reply_put_logprobs(buf *out, const tok *t, const tandem_token *x, int n_top, bool with_ids);
/* Sums of tokens and times over choices. */
typedef struct {
    record_sums sums;
    int64_t     reasoning_tokens;
} reply_usage;
void reply_sum(reply_usage *out, const server_choice *all, int n);
/* Appends the members image_tokens and video_tokens, after a comma, if the prompt has images or videos. */
void reply_put_media(buf *out, const reply_usage *u);
void reply_put_progress(buf *out, const tandem_progress *p); /* appends "prompt_progress":{...} */
/* Appends "timings":{...} of a choice that is running. */
void reply_put_live_timings(buf *out, const server_choice *c);
void reply_put_timings(buf *out, const server_choice *all, int n); /* appends "timings":{...} of ended choices */

/* --- reply_completions.c: the common envelope of chat.completion and text_completion --- */
typedef struct {
    const char *id_prefix, *object, *chunk_object;
} completions_names;
void completions_open(reply *r, const char *model, const completions_names *names);
void completions_chunk(reply *r, const server_choice *c); /* begins an event, up to the members of the choice */
void completions_chunk_end(reply *r, const char *reason); /* ends it with the finish reason */
/* Writes timings into r->tail before the last event, unless an event with usage follows, which has them. */
void completions_last(reply *r, const server_choice *all, int n);
void completions_done(reply *r, const server_choice *all, int n);
void completions_fail(reply *r, const server_choice *all, int n, const server_error *why);
void completions_ping(reply *r);
/* Writes the whole object; put writes the members of each choice after its index. */
void completions_whole(reply *r, server_choice *all, int n,
                       void (*put)(reply *r, server_choice *c, const char *reason));
void completions_error(buf *out, const server_choice *all, int n, const server_error *why);
#endif
