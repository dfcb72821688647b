/* figures/result.h - what a measurement writes: one JSON object, which begins with what was measured. */
#ifndef TANDEM_FIGURES_RESULT_H
#define TANDEM_FIGURES_RESULT_H
#include "base/buf.h"
#include "base/err.h"
#include "figures/stats.h"
#include "json/json.h"

/* key, key_low, key_high */
void result_interval(json_writer *w, const char *key, interval i);

/* "1,2,4": numbers from min to max, at most `max_n`. */
bool result_numbers(const char *text, int *out, int max_n, int *n, int min, int max, err *e);
/* The whole text into a file. */
bool result_write(const char *path, str text, err *e);

/* One object, which begins with the part's name. */
typedef struct {
    buf         text;
    json_writer w;
} result_doc;
json_writer *result_begin(result_doc *r, const char *part);
bool         result_end(result_doc *r, const char *path, err *e); /* NULL: as a line on standard output. Frees */
#endif
