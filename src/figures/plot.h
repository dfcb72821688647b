/* figures/plot.h - results as a picture: curves over the number of rows, or bars by context size.
 *
 * Colours and greys are such that they can be read on a light page and on a dark one; there is no background. */
#ifndef TANDEM_FIGURES_PLOT_H
#define TANDEM_FIGURES_PLOT_H
#include "base/buf.h"
#include "base/err.h"

enum { PLOT_MAX_SERIES = 32, PLOT_MAX_POINTS = 64, PLOT_LABEL = 128 };

typedef struct {
    double x;            /* rows; of bars, the group's index */
    double y, low, high; /* low == high: no interval is drawn */
} plot_point;

typedef struct {
    char       label[PLOT_LABEL];
    plot_point point[PLOT_MAX_POINTS];
    int        n;
} plot_series;

typedef enum { PLOT_EMPTY, PLOT_CURVES, PLOT_BARS } plot_kind;
typedef struct {
    plot_kind   kind;
    char        title[PLOT_LABEL], x_label[PLOT_LABEL], y_label[PLOT_LABEL];
    plot_series series[PLOT_MAX_SERIES];
    int         n_series;
    char        group[PLOT_MAX_POINTS][PLOT_LABEL]; /* of bars: what is under them */
    int         n_groups;
} plot;

/* Adds a result of bench rows (all series that have rows), of bench lanes or loadtest (the metric of each arm; NULL:
 * tok_s), of bench table (NULL: gen_tps) or of bench spec with an oracle (NULL: the ratio). Kinds do not mix. On failure p
 * means nothing. */
bool plot_add(plot *p, str json, const char *metric, err *e);
bool plot_svg(const plot *p, buf *out, err *e);
#endif
