/* load/answer.h - one streamed reply as it comes: what it says about tokens and time, and what is wrong with it. */
#ifndef TANDEM_LOAD_ANSWER_H
#define TANDEM_LOAD_ANSWER_H
#include "base/arena.h"
#include "http/response.h"
#include "load/sse.h"

/* Times by clock_s; first and last of the pieces that had text in them. */
typedef struct {
    double  due, first, last, end;
    int64_t pieces;
    int64_t prompt_tokens, completion_tokens, cached_tokens; /* completion_tokens: without usage, the pieces */
    int64_t drafted, accepted;
    double  acceptance_length; /* 0: not told */
    bool    has_usage;
} load_sample;

/* Times between pieces, of many answers. */
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
    arena       mem; /* of one event's tree */
    buf         refusal;
    int         status;
    bool        is_stream, is_finished; /* finished: a reason to finish, or [DONE] */
    err         wrong;                  /* code ERR_NONE: nothing so far */
} load_answer;

void load_answer_init(load_answer *a);
void load_answer_deinit(load_answer *a);
void load_answer_begin(load_answer *a, double due, load_gaps *gaps); /* the next one */
void load_answer_head(load_answer *a, const http_response *r);
void load_answer_body(load_answer *a, str bytes, double now);
/* It ended: whole (why NULL) or not. False: it is no answer, and e says why. */
bool load_answer_end(load_answer *a, double now, const err *why, err *e);
/* What an error's body says to people: the JSON error of several kinds of servers, or its text. */
void load_error_text(buf *out, str body);
#endif
