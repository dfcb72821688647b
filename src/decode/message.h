/* decode/message.h - messages between the server and the process that decodes.
 *
 *      request: 16 numbers, the file             reply: 8 numbers, then the time stamps and pixels, or a sentence
 *
 * Numbers are int64 in the byte order of the machine: both ends are the same program. Neither end trusts the other: a
 * decoder may have taken over its process. */
#ifndef TANDEM_DECODE_MESSAGE_H
#define TANDEM_DECODE_MESSAGE_H
#include "base/str.h"
#include "decode/worker.h"

enum { REQUEST_NUMBERS = 16, REPLY_NUMBERS = 8 };

/* Writes the numbers of a request. */
void decode_request_write(int64_t out[REQUEST_NUMBERS], const decode_job *job);
/* Reads and checks the numbers of a request. job->file.n is set, job->file.s is NULL. Returns false for a request that
 * decode_request_write does not write. */
bool decode_request_read(decode_job *job, const int64_t in[REQUEST_NUMBERS]);

/* The numbers of a reply. */
typedef struct {
    err_code code; /* ERR_NONE: pixels follow, else a sentence */
    size_t   n_text;
    int      n_frames, width, height, source_width, source_height;
} decode_reply;

void decode_reply_write(int64_t out[REPLY_NUMBERS], const decode_reply *r);
/* Reads the numbers of a reply and checks that they can be a reply to the job: the size is the one that follows from
 * the size of the source. Returns false if not. */
bool decode_reply_read(decode_reply *r, const int64_t in[REPLY_NUMBERS], const decode_job *job);
#endif
