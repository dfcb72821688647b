/* figures/plot.h - draws results as SVG: curves by number of rows, or bars by context size.
 *
 * There is no background. The colours are readable on light and dark pages. */
#ifndef TANDEM_FIGURES_PLOT_H
#define TANDEM_FIGURES_PLOT_H
#include "base/buf.h"
#include "base/err.h"

enum { PLOT_MAX_SERIES = 32, PLOT_MAX_POINTS = 64, PLOT_LABEL = 128 };

typedef struct {
    double x;            /* rows; for bars, the index of the group */
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
    char        group[PLOT_MAX_POINTS][PLOT_LABEL]; /* labels of the groups of bars */
    int         n_groups;
} plot;

/* Adds a result of bench rows (all series with rows), bench lanes or loadtest (`metric` of each arm; NULL: tok_s),
 * bench table (NULL: gen_tps) or bench spec --accept (NULL: the ratio). All results of a plot must be of one kind.
 * After a failure p must not be used. */
bool plot_add(plot *p, str json, const char *metric, err *e);
bool plot_svg(const plot *p, buf *out, err *e);
#endif
