/* figures/result.h - writes the result of a measurement: one JSON object that begins with the name of the part. */
#ifndef TANDEM_FIGURES_RESULT_H
#define TANDEM_FIGURES_RESULT_H
#include "base/buf.h"
#include "base/err.h"
#include "figures/stats.h"
#include "json/json.h"

/* Writes key, key_low and key_high. */
void result_interval(json_writer *w, const char *key, interval i);

/* Parses "1,2,4": up to max_n numbers from min to max. */
bool result_numbers(const char *text, int *out, int max_n, int *n, int min, int max, err *e);
/* Writes the text to a file. */
bool result_write(const char *path, str text, err *e);

/* A result in progress. */
typedef struct {
    buf         text;
    json_writer w;
} result_doc;
json_writer *result_begin(result_doc *r, const char *part);
bool         result_end(result_doc *r, const char *path, err *e); /* writes and frees; path NULL: a line on stdout */
#endif
