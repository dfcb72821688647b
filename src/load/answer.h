/* load/answer.h - reads one streamed response of an OpenAI-compatible server: its tokens, times and errors.
 *
 *      load_answer_init, then for each response: begin, head, body ..., end; at last load_answer_deinit
 *
 * The first error is kept in `wrong` and returned by load_answer_end; the rest of the response is then ignored. Nothing
 * here locks: a load_answer and its load_gaps belong to one thread. */
#ifndef TANDEM_LOAD_ANSWER_H
#define TANDEM_LOAD_ANSWER_H
#include "base/arena.h"
#include "http/response.h"
#include "load/sse.h"

/* Measurements of a response, complete after load_answer_end. A piece is an event with text, reasoning or tool
 * calls. */
typedef struct {
    double  due, end;    /* seconds of clock_s: the times given to load_answer_begin and load_answer_end */
    double  first, last; /* arrival of the first and last piece; 0 without pieces */
    int64_t pieces;
    int64_t prompt_tokens, cached_tokens; /* as the server reports; 0: not reported */
    int64_t completion_tokens;            /* as the server reports; the number of pieces if there is no usage */
    int64_t drafted, accepted;            /* draft tokens, if the server reports them */
    double  acceptance_length;            /* 0: not reported */
    bool    has_usage;                    /* the server reported completion_tokens */
} load_sample;

/* Seconds between consecutive pieces of a response, for many responses, failed ones included. Begins zeroed; the caller
 * frees s with mem_free. Above LOAD_MAX_GAPS, or without memory, gaps are not recorded. */
enum { LOAD_MAX_GAPS = 1 << 22 };
typedef struct {
    double *s;
    size_t  n, cap; /* gaps in use, allocated */
} load_gaps;

typedef struct {
    load_sample s;
    double      now;  /* the argument of load_answer_body */
    load_gaps  *gaps; /* borrowed */
    sse_reader  events;
    arena       mem;         /* tree of the current event */
    buf        *said;        /* gets the text of the response, without thoughts; NULL: nobody wants it */
    buf         refusal;     /* the body of a response that is not a stream, at most its first 64 KiB */
    int         status;      /* HTTP status; 0: no head yet */
    bool        is_stream;   /* the content type is text/event-stream */
    bool        is_finished; /* a finish reason or [DONE] was received */
    err         wrong;       /* ERR_NONE: no error so far */
} load_answer;

void load_answer_init(load_answer *a); /* *a must not be moved afterwards */
void load_answer_deinit(load_answer *a);
/* Begins the next response. due: the time at which its request was to be sent. Borrows gaps, not NULL, and adds to it
 * until load_answer_end. Discards a response that was not ended. Sets `said` to NULL; the caller may then set it. */
void load_answer_begin(load_answer *a, double due, load_gaps *gaps);
void load_answer_head(load_answer *a, const http_response *r); /* call it once, when the head is complete */
void load_answer_body(load_answer *a, str bytes, double now);  /* reads bytes of the body that came at `now` */
/* Ends a response; `why` is the reason if it is incomplete, else NULL. Returns false and sets e, which may be NULL, if
 * the status is not 200, the body is not an event stream, an event is an error or not JSON, or the stream is incomplete
 * or has no tokens. */
bool load_answer_end(load_answer *a, double now, const err *why, err *e);
/* Appends the message of an error body, from the JSON of several kinds of servers, else the body itself: one line of
 * about 160 bytes at most, without control characters. */
void load_error_text(buf *out, str body);
#endif
