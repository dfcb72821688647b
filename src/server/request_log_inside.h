/* server/request_log_inside.h - the fields of a line of the request log, for request_log.c and its tests. */
#ifndef TANDEM_SERVER_REQUEST_LOG_INSIDE_H
#define TANDEM_SERVER_REQUEST_LOG_INSIDE_H
#include "server/request_log.h"

enum { REQUEST_LOG_FIELDS = 26 };
/* Writes the fields, which borrow from r, and returns their number. */
size_t request_log_fields(log_field out[REQUEST_LOG_FIELDS], const server_record *r);
#endif
