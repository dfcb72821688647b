/* figures/plot.h - draws results of `tandem bench` and `tandem loadtest` as SVG: curves by number of rows or users (on
 * a logarithmic scale), or bars by context size or acceptance.
 *
 * There is no background. The colours are readable on light and dark pages. */
#ifndef TANDEM_FIGURES_PLOT_H
#define TANDEM_FIGURES_PLOT_H
#include "base/buf.h"
#include "base/err.h"

enum { PLOT_MAX_SERIES = 32, PLOT_MAX_POINTS = 64, PLOT_LABEL = 128 }; /* a longer label is cut */

typedef struct {
    double x;            /* rows or users; for bars, the index of the group */
    double y, low, high; /* the value and its interval; low == high: no interval is drawn */
} plot_point;

typedef struct {
    char       label[PLOT_LABEL];
    plot_point point[PLOT_MAX_POINTS];
    int        n;
} plot_series;

typedef enum { PLOT_EMPTY, PLOT_CURVES, PLOT_BARS } plot_kind;
/* Begins zeroed; has nothing to free. The caller may set the title, plot_add sets the rest. */
typedef struct {
    plot_kind   kind;
    char        title[PLOT_LABEL], x_label[PLOT_LABEL], y_label[PLOT_LABEL];
    plot_series series[PLOT_MAX_SERIES];
    int         n_series;
    char        group[PLOT_MAX_POINTS][PLOT_LABEL]; /* labels of the groups of bars */
    int         n_groups;
} plot;

/* Adds a result, the text of a JSON object with the member "bench". metric: the member of each arm that is drawn; NULL:
 * tok_s for bench lanes and loadtest, gen_tps for bench table, ratio for bench spec --accept. For bench rows, the
 * metric is ignored and all series except those of prefill are drawn. All results of a plot must have the same kind, x
 * axis and metric. Keeps no pointer. After a failure p must not be used. */
bool plot_add(plot *p, str json, const char *metric, err *e);
/* Appends the SVG document. Fails when there is no point above 0, or out is full. */
bool plot_svg(const plot *p, buf *out, err *e);
#endif
