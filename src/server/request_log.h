/* server/request_log.h - a line for every request that ended: who, how much, how fast, how it was speculated and how it ended.
 *
 *      request: id=req-7f3a endpoint=/v1/chat/completions status=200 finish=stop prompt=31 cached=16 tokens=58 ...
 *
 * docs/operating.md lists the fields. Nothing of a prompt or an answer is in it, nor a key. */
#ifndef TANDEM_SERVER_REQUEST_LOG_H
#define TANDEM_SERVER_REQUEST_LOG_H
#include "base/log.h"
#include "server/record.h"

enum { REQUEST_LOG_FIELDS = 26 };
size_t request_log_fields(log_field out[REQUEST_LOG_FIELDS], const server_record *r);
void   request_log(log_level l, const server_record *r);
#endif
