/* figures/result.h - writes the result of a measurement: one JSON object, whose first member "bench" names the
 * measurement. Also reads lists of numbers from the command line. */
#ifndef TANDEM_FIGURES_RESULT_H
#define TANDEM_FIGURES_RESULT_H
#include "base/buf.h"
#include "base/err.h"
#include "figures/stats.h"
#include "json/json.h"

/* Writes the members key (the median), key_low and key_high. NaN becomes null. key: at most 58 bytes. */
void result_interval(json_writer *w, const char *key, interval i);

/* Parses a list such as "1,2,4": 1 to max_n numbers from min to max. Sets out[0..*n). On failure *n is the number of
 * numbers before the error. */
bool result_numbers(const char *text, int *out, int max_n, int *n, int min, int max, err *e);
/* Writes the text to a file, replacing its contents. After a failure the file may have a part of the text. */
bool result_write(const char *path, str text, err *e);

/* A result in progress. */
typedef struct {
    buf         text;
    json_writer w;
} result_doc;
/* Opens the object and writes the member "bench". Returns &r->w, for the other members. */
json_writer *result_begin(result_doc *r, const char *bench);
/* Closes the object, writes it to a file, or with path NULL as a line to stdout, and frees r's memory, also on
 * failure. */
bool result_end(result_doc *r, const char *path, err *e);
#endif
