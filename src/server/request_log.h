/* server/request_log.h - logs one line per ended request: client, tokens, speed, speculation and how it ended.
 *
 *      request: id=req_k3... endpoint=/chat/completions status=200 sent=all stream=1 total_s=0.41 finish=stop ...
 *
 * docs/operating.md lists the fields. The line contains neither text of the request or response, nor a key. */
#ifndef TANDEM_SERVER_REQUEST_LOG_H
#define TANDEM_SERVER_REQUEST_LOG_H
#include "base/log.h"
#include "server/record.h"

void request_log(log_level l, const server_record *r); /* logs the line at this level */
#endif
