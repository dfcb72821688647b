#include "figures/plot.h"

#include "base/mem.h"
#include "json/json.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 760, LEFT = 72, RIGHT = 20, TOP = 44, HEIGHT = 320, UNDER = 56, LEGEND_LINE = 18, MAX_TICKS = 8 };

static const char *const colours[] = {"#3b82c4", "#d9822b", "#3a9e5c", "#c8504d",
                                      "#8e6cc0", "#9a7458", "#cf6fae", "#7f8c2a"};
static const char        grey[]    = "#808080";

/* --- reading --------------------------------------------------------------------------------------*/
static bool get_number(const json_value *o, const char *key, double *out)
{
    const json_value *v = json_get(o, key);
    if (!v || (v->kind != JSON_INT && v->kind != JSON_REAL) || v->d < 0) return false;
    *out = v->d;
    return true;
}

static str get_text(const json_value *o, const char *key)
{
    const json_value *v = json_get(o, key);
    return v && v->kind == JSON_STRING ? v->s : (str){0};
}

static size_t n_items(const json_value *v) { return v && v->kind == JSON_ARRAY ? v->n : 0; }

static void set_label(char out[PLOT_LABEL], str s)
{
    size_t n = s.n < PLOT_LABEL - 1 ? s.n : PLOT_LABEL - 1;
    if (n < s.n) n -= utf8_open_tail(s.s, n);
    if (n) memcpy(out, s.s, n);
    out[n] = 0;
}

static plot_series *add_series(plot *p, str label, err *e)
{
    if (p->n_series == PLOT_MAX_SERIES) {
        err_set(e, ERR_INPUT, "there are more than %d curves", PLOT_MAX_SERIES);
        return NULL;
    }
    plot_series *s = &p->series[p->n_series++];
    *s             = (plot_series){0};
    set_label(s->label, label);
    return s;
}

/* Reads a value with its interval: key, key_low, key_high. */
static bool add_point(plot_series *s, const json_value *o, double x, const char *key, err *e)
{
    char       name[PLOT_LABEL];
    plot_point pt = {.x = x};
    if (s->n == PLOT_MAX_POINTS) return err_set(e, ERR_INPUT, "a curve has more than %d points", PLOT_MAX_POINTS);
    if (!get_number(o, key, &pt.y)) return err_set(e, ERR_FORMAT, "'%s' has a point without %s", s->label, key);
    pt.low = pt.high = pt.y;
    snprintf(name, sizeof name, "%.100s_low", key);
    get_number(o, name, &pt.low);
    snprintf(name, sizeof name, "%.100s_high", key);
    get_number(o, name, &pt.high);
    s->point[s->n++] = pt;
    return true;
}

static bool read_curve(plot *p, const json_value *o, err *e)
{
    const json_value *points = json_get(o, "points");
    if (str_is(get_text(o, "kind"), "prefill")) return true;
    plot_series *s = add_series(p, get_text(o, "label"), e);
    for (size_t i = 0; s && i < n_items(points); i++) {
        double rows;
        if (!get_number(&points->item[i], "rows", &rows) || rows < 1)
            return err_set(e, ERR_FORMAT, "'%s' has a point without rows", s->label);
        if (!add_point(s, &points->item[i], rows, "tok_s", e)) return false;
    }
    return s != NULL;
}

/* Adds a group: a context size, or an acceptance of bench spec. */
static int find_group(plot *p, const json_value *cell)
{
    char              text[PLOT_LABEL];
    double            context = 0, accept;
    const json_value *probe   = json_get(cell, "probe");
    get_number(cell, "context", &context);
    if (get_number(cell, "accept", &accept))
        snprintf(text, sizeof text, "%g tokens a round", accept);
    else
        snprintf(text, sizeof text, "%.0f%s", context, probe && probe->b ? ", probe" : "");
    for (int i = 0; i < p->n_groups; i++)
        if (!strcmp(p->group[i], text)) return i;
    if (p->n_groups == PLOT_MAX_POINTS) return -1;
    strcpy(p->group[p->n_groups], text);
    return p->n_groups++;
}

static plot_series *find_series(plot *p, int from, str label, err *e)
{
    for (int i = from; i < p->n_series; i++)
        if (str_is(label, p->series[i].label)) return &p->series[i];
    return add_series(p, label, e);
}

/* Adds the bars of a result. from: first series of this file. */
static bool read_bars(plot *p, const json_value *cell, int from, const char *metric, err *e)
{
    const json_value *arms  = json_get(cell, "arms");
    int               group = find_group(p, cell);
    if (group < 0) return err_set(e, ERR_INPUT, "there are more than %d sizes", PLOT_MAX_POINTS);
    for (size_t i = 0; i < n_items(arms); i++) {
        plot_series *s = find_series(p, from, get_text(&arms->item[i], "name"), e);
        if (!s || !add_point(s, &arms->item[i], group, metric, e)) return false;
    }
    return true;
}

static bool read_spec(plot *p, const json_value *o, const char *metric, err *e)
{
    if (!json_get(o, "accept")) return err_set(e, ERR_FORMAT, "only results of bench spec --accept can be drawn");
    return read_bars(p, o, 0, metric, e);
}

/* Adds a point to the curve of each arm, for a number of users. */
static bool read_users(plot *p, const json_value *cell, int from, const char *metric, err *e)
{
    const json_value *arms = json_get(cell, "arms");
    double            users;
    if (!get_number(cell, "users", &users) || users < 1) return err_set(e, ERR_FORMAT, "a cell has no users");
    for (size_t i = 0; i < n_items(arms); i++) {
        plot_series *s = find_series(p, from, get_text(&arms->item[i], "name"), e);
        if (!s || !add_point(s, &arms->item[i], users, metric, e)) return false;
    }
    return true;
}

/* The kinds of results and how each is drawn. */
typedef struct {
    const char *bench, *list, *metric, *x_label;
    plot_kind   kind;
    bool        fixed; /* the metric cannot be chosen */
} result_kind;
static const result_kind kinds[] = {
    {"rows", "series", "tokens per second", "rows of a step", PLOT_CURVES, true},
    {"lanes", "cells", "tok_s", "concurrent users", PLOT_CURVES, false},
    {"loadtest", "cells", "tok_s", "concurrent users", PLOT_CURVES, false},
    {"table", "cells", "gen_tps", "context, tokens", PLOT_BARS, false},
    {"spec", NULL, "ratio", "accepted", PLOT_BARS, false},
};

static bool read_items(plot *p, const result_kind *k, const json_value *o, const char *metric, err *e)
{
    const json_value *list = k->list ? json_get(o, k->list) : NULL;
    int               from = p->n_series;
    if (!k->list) return read_spec(p, o, metric, e);
    for (size_t i = 0; i < n_items(list); i++) {
        const json_value *x = &list->item[i];
        if (!(k->kind == PLOT_BARS ? read_bars(p, x, from, metric, e)
              : k->fixed           ? read_curve(p, x, e)
                                   : read_users(p, x, from, metric, e)))
            return false;
    }
    return true;
}

static bool read_result(plot *p, const json_value *o, const char *metric, err *e)
{
    str                what = get_text(o, "bench");
    const result_kind *k    = kinds;
    while (k < kinds + COUNT(kinds) && !str_is(what, k->bench)) k++;
    if (k == kinds + COUNT(kinds))
        return err_set(e, ERR_FORMAT, "it is not a result of bench rows, lanes, table or spec, or of loadtest");
    if (k->fixed || !metric) metric = k->metric;
    if (p->kind != PLOT_EMPTY &&
        (p->kind != k->kind || strcmp(p->x_label, k->x_label) != 0 || strcmp(p->y_label, metric) != 0))
        return err_set(e, ERR_INPUT, "results of different kinds cannot be drawn in one plot");
    p->kind = k->kind;
    snprintf(p->x_label, sizeof p->x_label, "%s", k->x_label);
    snprintf(p->y_label, sizeof p->y_label, "%s", metric);
    return read_items(p, k, o, metric, e);
}

bool plot_add(plot *p, str json, const char *metric, err *e)
{
    const json_value *v;
    arena             mem;
    arena_init(&mem, (size_t)64 << 20);
    bool ok = json_parse(&v, &mem, json, NULL, e) && read_result(p, v, metric, e);
    arena_deinit(&mem);
    return ok;
}

/* --- drawing --------------------------------------------------------------------------------------*/
typedef struct {
    const plot *p;
    buf        *out;
    double      top;    /* maximum of the y axis */
    double      x0, x1; /* log2 of rows; for bars, 0 and the number of groups */
} canvas;

static double x_at(const canvas *c, double x) { return LEFT + (x - c->x0) / (c->x1 - c->x0) * (WIDTH - LEFT - RIGHT); }
static double y_at(const canvas *c, double y) { return TOP + (1 - y / c->top) * HEIGHT; }

static void put_text(buf *out, double x, double y, const char *anchor, const char *text)
{
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (const char *s = text; *s; s++) {
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"')
            buf_printf(out, "&#%d;", *s);
        else if ((unsigned char)*s >= ' ')
            buf_putc(out, *s);
    }
    buf_puts(out, "</text>\n");
}

static void put_line(buf *out, double x1, double y1, double x2, double y2, const char *colour, double width)
{
    buf_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.2g\"/>\n", x1,
               y1, x2, y2, colour, width);
}

/* Returns the tick distance, 1, 2 or 5 times a power of ten, such that MAX_TICKS reach the top. */
static double tick_of(double top)
{
    double unit = pow(10, floor(log10(top / MAX_TICKS)));
    for (int i = 0;; i++) {
        double t = unit * (i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 5) * pow(10, i / 3);
        if (t * MAX_TICKS >= top) return t;
    }
}

static void draw_y_axis(canvas *c, double highest)
{
    double tick = tick_of(highest);
    c->top      = ceil(highest / tick) * tick;
    for (double y = 0; y <= c->top * 1.001; y += tick) {
        char text[32];
        snprintf(text, sizeof text, "%.6g", y);
        put_line(c->out, LEFT, y_at(c, y), WIDTH - RIGHT, y_at(c, y), grey, y == 0 ? 1 : 0.3);
        put_text(c->out, LEFT - 8, y_at(c, y) + 4, "end", text);
    }
    buf_printf(c->out, "<g transform=\"translate(16 %d) rotate(-90)\">\n", TOP + HEIGHT / 2);
    put_text(c->out, 0, 0, "middle", c->p->y_label);
    buf_puts(c->out, "</g>\n");
}

static void draw_x_rows(canvas *c)
{
    for (double e = c->x0; e <= c->x1; e++) {
        char text[32];
        snprintf(text, sizeof text, "%.0f", exp2(e));
        put_line(c->out, x_at(c, e), TOP + HEIGHT, x_at(c, e), TOP + HEIGHT + 5, grey, 1);
        put_text(c->out, x_at(c, e), TOP + HEIGHT + 20, "middle", text);
    }
    put_text(c->out, (LEFT + WIDTH - RIGHT) / 2.0, TOP + HEIGHT + 42, "middle", c->p->x_label);
}

static void draw_x_groups(canvas *c)
{
    for (int i = 0; i < c->p->n_groups; i++)
        put_text(c->out, x_at(c, i + 0.5), TOP + HEIGHT + 20, "middle", c->p->group[i]);
    put_text(c->out, (LEFT + WIDTH - RIGHT) / 2.0, TOP + HEIGHT + 42, "middle", c->p->x_label);
}

static const char *colour_of(int i) { return colours[i % (int)COUNT(colours)]; }
/* Returns the dash pattern of a curve: colours repeat dashed, then dotted. */
static const char *dash_of(int i)
{
    static const char *const dashes[] = {"", " stroke-dasharray=\"8 4\"", " stroke-dasharray=\"2 3\"",
                                         " stroke-dasharray=\"8 3 2 3\""};
    return dashes[i / (int)COUNT(colours) % 4];
}

static void draw_interval(const canvas *c, double x, const plot_point *pt, const char *colour)
{
    if (pt->high > pt->low) put_line(c->out, x, y_at(c, pt->low), x, y_at(c, pt->high), colour, 1.2);
}

static void draw_curve(const canvas *c, int i)
{
    const plot_series *s = &c->p->series[i];
    buf_printf(c->out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour_of(i),
               dash_of(i));
    for (int k = 0; k < s->n; k++)
        buf_printf(c->out, "%s%.1f,%.1f", k ? " " : "", x_at(c, log2(s->point[k].x)), y_at(c, s->point[k].y));
    buf_puts(c->out, "\"/>\n");
    for (int k = 0; k < s->n; k++) {
        double x = x_at(c, log2(s->point[k].x));
        draw_interval(c, x, &s->point[k], colour_of(i));
        buf_printf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y_at(c, s->point[k].y),
                   colour_of(i));
    }
}

static void draw_bars(const canvas *c, int i)
{
    const plot_series *s     = &c->p->series[i];
    double             width = (x_at(c, 1) - x_at(c, 0)) * 0.8 / c->p->n_series;
    for (int k = 0; k < s->n; k++) {
        double x = x_at(c, s->point[k].x + 0.1) + i * width, y = y_at(c, s->point[k].y);
        buf_printf(c->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y,
                   width * 0.9, TOP + HEIGHT - y, colour_of(i));
        draw_interval(c, x + width * 0.45, &s->point[k], grey);
    }
}

static void draw_legend(const canvas *c)
{
    for (int i = 0; i < c->p->n_series; i++) {
        double y = TOP + HEIGHT + UNDER + LEGEND_LINE * (i + 0.5);
        buf_printf(c->out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%d\"%s/>\n",
                   LEFT, y, LEFT + 28, y, colour_of(i), c->p->kind == PLOT_BARS ? 9 : 2,
                   c->p->kind == PLOT_BARS ? "" : dash_of(i));
        put_text(c->out, LEFT + 36, y + 4, "start", c->p->series[i].label);
    }
}

/* Computes the ranges of both axes. */
static double find_range(canvas *c)
{
    double highest = 0, min = INFINITY, max = 0;
    for (int i = 0; i < c->p->n_series; i++)
        for (int k = 0; k < c->p->series[i].n; k++) {
            const plot_point *pt = &c->p->series[i].point[k];
            highest              = fmax(highest, fmax(pt->y, pt->high));
            min                  = fmin(min, pt->x);
            max                  = fmax(max, pt->x);
        }
    bool bars = c->p->kind == PLOT_BARS;
    c->x0     = bars ? 0 : floor(log2(min));
    c->x1     = bars ? c->p->n_groups : fmax(ceil(log2(max)), c->x0 + 1);
    return highest;
}

bool plot_svg(const plot *p, buf *out, err *e)
{
    canvas c       = {.p = p, .out = out};
    double highest = find_range(&c);
    int    height  = TOP + HEIGHT + UNDER + LEGEND_LINE * p->n_series + 12;
    if (!(highest > 0)) return err_set(e, ERR_INPUT, "there are no points to draw");
    if (highest < 1e-100 || highest > 1e100)
        return err_set(e, ERR_INPUT, "%g is not a rate that can be drawn", highest);
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
               "font-family=\"sans-serif\" font-size=\"12\" fill=\"%s\">\n",
               WIDTH, height, WIDTH, height, grey);
    buf_puts(out, "<g font-size=\"15\">\n");
    put_text(out, (LEFT + WIDTH - RIGHT) / 2.0, 24, "middle", p->title);
    buf_puts(out, "</g>\n");
    draw_y_axis(&c, highest);
    if (p->kind == PLOT_BARS)
        draw_x_groups(&c);
    else
        draw_x_rows(&c);
    for (int i = 0; i < p->n_series; i++)
        if (p->kind == PLOT_BARS)
            draw_bars(&c, i);
        else
            draw_curve(&c, i);
    draw_legend(&c);
    buf_puts(out, "</svg>\n");
    return !out->failed || err_set(e, ERR_LIMIT, "the plot is too large");
}
