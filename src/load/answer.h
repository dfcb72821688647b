/* load/answer.h - reads one streamed response: its tokens, times and errors. */
#ifndef TANDEM_LOAD_ANSWER_H
#define TANDEM_LOAD_ANSWER_H
#include "base/arena.h"
#include "http/response.h"
#include "load/sse.h"

/* Measurements of a response. Times are clock_s; first and last refer to events with text. */
typedef struct {
    double  due, first, last, end;
    int64_t pieces;
    int64_t prompt_tokens, completion_tokens,
        cached_tokens; /* completion_tokens: number of events if there is no usage */
    int64_t drafted, accepted;
    double  acceptance_length; /* 0: not reported */
    bool    has_usage;
} load_sample;

/* Times between events of many responses. */
enum { LOAD_MAX_GAPS = 1 << 22 };
typedef struct {
    double *s;
    size_t  n, cap;
} load_gaps;

typedef struct {
    load_sample s;
    double      now;
    load_gaps  *gaps;
    sse_reader  events;
    arena       mem; /* tree of the current event */
    buf         refusal;
    int         status;
    bool        is_stream, is_finished; /* finished: a finish reason or [DONE] was received */
    err         wrong;                  /* ERR_NONE: no error so far */
} load_answer;

void load_answer_init(load_answer *a);
void load_answer_deinit(load_answer *a);
void load_answer_begin(load_answer *a, double due, load_gaps *gaps); /* begins the next response */
void load_answer_head(load_answer *a, const http_response *r);
void load_answer_body(load_answer *a, str bytes, double now);
/* Ends a response; `why` is the reason if it is incomplete, else NULL. Returns false if the response is not valid. */
bool load_answer_end(load_answer *a, double now, const err *why, err *e);
/* Writes the message of an error body: from the JSON of several kinds of servers, or its text. */
void load_error_text(buf *out, str body);
#endif
