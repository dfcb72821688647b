/* Measured costs. The constants are of two kinds: assumptions before anything is measured, and how fast estimates
 * adapt. */
#include "spec/cost.h"

#include "base/num.h"
#include "spec/inside.h"

#include <math.h>
#include <string.h>

static const double ASSUMED_STEP_S  = 0.02;
static const double ASSUMED_PER_ROW = 0.05; /* relative to a step of one row */
/* One draft, or one draft token, relative to a step of one row. */
static const double ASSUMED_DRAFT[SPEC_METHODS] = {[SPEC_DFLASH] = 0.2, [SPEC_TREE] = 0.2, [SPEC_MTP] = 0.05};
static const double IN_STEP = 1.15; /* up to this factor of the expected cost, a step counts as usual */
static const double FAR     = 1.5;  /* from this factor on, other work on the machine may be the reason */
enum { FEW = 3, OLD = 512, FIRST_AGE = 16, PACE_MAX = 48 }; /* FEW: measurements; the others: steps */

static int context_of(int32_t ctx)
{
    int i = 0;
    for (int64_t max_ctx = 1024; i < COST_CONTEXTS - 1 && ctx > max_ctx; max_ctx *= 4) i++;
    return i;
}

/* --- measurements ------------------------------------------------------------------------------- */
/* Adds a measurement. The smallest of the first few counts, because other work can only make a step slower. After
 * that it is a moving average whose weights depend on the steps since the last measurement, so that a value that was
 * not updated for a while (the context has grown) adapts quickly. A measurement far above the average is ignored
 * unless the next one confirms it, and counts as at most twice the average. */
static void note_cost(cost *c, long now, double seconds)
{
    if (!(seconds > 0) || isinf(seconds)) return;
    double share = fmin(0.5, fmax(1.0 / 16, (double)(now - c->at) / 128));
    double far   = FAR * c->seconds;
    if (c->n < FEW)
        c->seconds = c->n ? fmin(c->seconds, seconds) : seconds;
    else if (seconds <= far || c->last > far)
        c->seconds += share * (fmin(seconds, 2 * c->seconds) - c->seconds);
    c->last = seconds;
    c->at   = now;
    if (c->n < 1 << 20) c->n++;
}

/* Returns the bin of a number of rows. Large numbers share bins of an eighth of an octave. Separate bins would be
 * measured too rarely, and the cheapest of a hundred uncertain values is usually an outlier. */
static int bin_of(int rows)
{
    int width = 1;
    while (rows >= 16 * width) width *= 2;
    return min_int((rows + width / 2) / width * width, COST_MAX_ROWS);
}

static void note_at(cost_series *s, int rows, long now, double seconds)
{
    rows    = bin_of(rows);
    s->low  = s->low ? min_int(s->low, rows) : rows;
    s->high = max_int(s->high, rows);
    note_cost(&s->at[rows], now, seconds);
}

static bool is_old(const cost_table *c, const cost *k) { return c->n_steps - k->at > OLD; }

/* --- curves ------------------------------------------------------------------------------------- */
/* The measured costs as a non-decreasing curve: constant over each span of rows, linear between spans. */
typedef struct {
    int    first, last; /* range of rows */
    double seconds, weight;
} span;
typedef struct {
    span at[COST_MAX_ROWS];
    int  n;
} spans;

/* Merges neighbours that decrease into one span at their weighted mean. A value that was measured once hardly moves one
 * that was measured often. */
static void add_span(spans *v, int rows, const cost *k)
{
    v->at[v->n++] = (span){rows, rows, k->seconds, k->n < FEW ? 0.25 : fmin(k->n, 16)};
    for (; v->n > 1 && v->at[v->n - 2].seconds > v->at[v->n - 1].seconds; v->n--) {
        span  *a = &v->at[v->n - 2], *b = &v->at[v->n - 1];
        double sum = a->weight + b->weight;
        *a         = (span){a->first, b->last, (a->seconds * a->weight + b->seconds * b->weight) / sum, sum};
    }
}

/* Fills the curve between the measured rows. */
static double seconds_between(const spans *v, double rows)
{
    int i = 0;
    while (i + 1 < v->n && rows > v->at[i].last) i++;
    if (i == 0 || rows >= v->at[i].first) return v->at[i].seconds;
    const span *a = &v->at[i - 1], *b = &v->at[i];
    return a->seconds + (b->seconds - a->seconds) * (rows - a->last) / (b->first - a->last);
}

/* Estimates the cost of one row from the smallest measured number of rows. */
static double one_row(const spans *v) { return v->at[0].seconds / (1 + ASSUMED_PER_ROW * (v->at[0].first - 1)); }

/* Extrapolates with the slope of the upper half of the measured rows. The slope between two neighbours would be
 * noise. */
static double slope_beyond(const spans *v)
{
    const span *low = &v->at[0], *high = &v->at[v->n - 1];
    double      half = fmax(low->first, high->last / 2.0);
    return half < high->last ? (high->seconds - seconds_between(v, half)) / (high->last - half)
                             : one_row(v) * ASSUMED_PER_ROW;
}

static double spans_at(const spans *v, int rows)
{
    const span *low = &v->at[0], *high = &v->at[v->n - 1];
    if (rows < low->first) return one_row(v) * (1 + ASSUMED_PER_ROW * (rows - 1));
    if (rows <= high->last) return seconds_between(v, rows);
    return high->seconds + slope_beyond(v) * (rows - high->last);
}

static void draw_curve(const spans *v, double *curve)
{
    int    rows = 1;
    double one = one_row(v), slope = slope_beyond(v);
    for (; rows < v->at[0].first; rows++) curve[rows] = one * (1 + ASSUMED_PER_ROW * (rows - 1));
    for (int i = 0; i < v->n; i++) {
        const span *b = &v->at[i], *a = i ? b - 1 : b;
        for (double rise = (b->seconds - a->seconds) / fmax(1, b->first - a->last); rows < b->first; rows++)
            curve[rows] = a->seconds + rise * (rows - a->last);
        for (; rows <= b->last; rows++) curve[rows] = b->seconds;
    }
    const span *high = &v->at[v->n - 1];
    for (; rows <= COST_MAX_ROWS; rows++) curve[rows] = high->seconds + slope * (rows - high->last);
}

/* A series that uses the values of a neighbour, multiplied by `scale`, where it has none of its own. */
typedef struct {
    const cost_series *own, *other; /* other may be NULL */
    double             scale;
} sources;

static bool number_at(const cost_table *c, const sources *from, int rows, cost *out)
{
    *out = from->own->at[rows];
    if (out->seconds > 0 && !is_old(c, out)) return true;
    if (!from->other) return false;
    *out = from->other->at[rows];
    out->seconds *= from->scale;
    out->n = min_int(out->n, FEW - 1); /* own measurements have more weight */
    return out->seconds > 0 && !is_old(c, out);
}

/* Makes the curve. Skips old values, so that a length that was too expensive once is tried again, and values that
 * were measured once and are more than twice what the others predict, because other work on the machine may be the
 * reason. */
static void measured_spans(spans *v, const cost_table *c, const sources *from)
{
    spans sure;
    cost  k;
    int   n_once = 0, low = from->own->low, high = from->own->high;
    if (from->other) {
        low  = min_int(low, from->other->low);
        high = max_int(high, from->other->high);
    }
    v->n = sure.n = 0;
    for (int rows = low; rows <= high; rows++) {
        if (!number_at(c, from, rows, &k)) continue;
        n_once += k.n == 1;
        if (k.n != 1) add_span(&sure, rows, &k);
    }
    if (n_once == 0) {
        memcpy(v->at, sure.at, (size_t)sure.n * sizeof sure.at[0]);
        v->n = sure.n;
        return;
    }
    for (int rows = low; rows <= high; rows++) {
        if (!number_at(c, from, rows, &k)) continue;
        if (k.n != 1 || sure.n == 0 || k.seconds <= 2 * spans_at(&sure, rows)) add_span(v, rows, &k);
    }
}

/* Returns the first step at which a valid value becomes old. */
static long good_until(const cost_table *c, const cost_series *s)
{
    long until = c->n_steps + OLD;
    for (int rows = s->low; rows <= s->high; rows++) {
        const cost *k = &s->at[rows];
        if (k->seconds > 0 && !is_old(c, k) && k->at + OLD < until) until = k->at + OLD;
    }
    return until;
}

static void redraw_series(cost_table *c, cost_series *s, const sources *from)
{
    spans v;
    measured_spans(&v, c, from);
    s->n_known    = v.n;
    s->good_until = good_until(c, s);
    if (v.n > 0) {
        draw_curve(&v, s->curve);
        s->drawn = true;
    } else if (s->drawn)
        for (int rows = 1; rows <= COST_MAX_ROWS; rows++) s->curve[rows] /= 2;
}

static void redraw_alone(cost_table *c, cost_series *s) { redraw_series(c, s, &(sources){.own = s}); }

/* --- contexts ----------------------------------------------------------------------------------- */
/* Returns the nearest context with measurements; of two at equal distance, the shorter one. */
static const cost_series *nearest_context(const cost_table *c, int at)
{
    for (int away = 1; away < COST_CONTEXTS; away++) {
        if (at - away >= 0 && c->step[at - away].n_known > 0) return &c->step[at - away];
        if (at + away < COST_CONTEXTS && c->step[at + away].n_known > 0) return &c->step[at + away];
    }
    return NULL;
}

/* Returns the ratio of step costs between two contexts, from the rows that were measured in the first. */
static double cost_ratio(const cost_table *c, const cost_series *own, const cost_series *other)
{
    double here = 0, there = 0;
    for (int rows = own->low; rows <= own->high; rows++) {
        const cost *k = &own->at[rows];
        if (!(k->seconds > 0) || is_old(c, k)) continue;
        here += k->seconds;
        there += other->curve[rows];
    }
    return there > 0 ? here / there : 1;
}

static void redraw_step(cost_table *c, int at)
{
    cost_series *s    = &c->step[at];
    sources      from = {.own = s, .other = nearest_context(c, at)};
    if (from.other) from.scale = cost_ratio(c, s, from.other);
    redraw_series(c, s, &from);
}

double cost_pace(const cost_table *c) { return 1 + c->slower; }

static double median_recent(const cost_table *c)
{
    double x[COST_RECENT];
    for (int i = 0; i < COST_RECENT; i++) {
        int at = i;
        for (; at > 0 && x[at - 1] > c->recent[i]; at--) x[at] = x[at - 1];
        x[at] = c->recent[i];
    }
    return x[COST_RECENT / 2];
}

/* Updates the pace from steps whose cost is well known. A deviation that lasts is not a busy moment: the pace returns
 * to 1 and the costs are measured again. */
static void note_pace(cost_table *c, const cost_series *s, int rows, double seconds)
{
    const cost *k = &s->at[bin_of(rows)];
    if (!s->drawn || !(seconds > 0) || isinf(seconds)) return;
    c->noise += (fmin(1, fabs(seconds / (cost_pace(c) * s->curve[rows]) - 1)) - c->noise) / 64;
    if (k->n < FEW || is_old(c, k)) return;
    c->recent[c->n_recent++ % COST_RECENT] = seconds / k->seconds;
    if (c->n_recent < COST_RECENT) return;
    double now = median_recent(c);
    c->odd_for = now > IN_STEP || now < 1 / IN_STEP ? c->odd_for + 1 : 0;
    c->slower  = c->odd_for > 0 && c->odd_for <= PACE_MAX ? now - 1 : 0;
}

void cost_note_step(cost_table *c, int rows, int32_t ctx, double seconds)
{
    if (rows < 1 || rows > COST_MAX_ROWS) return;
    int at = context_of(ctx);
    note_pace(c, &c->step[at], rows, seconds);
    note_at(&c->step[at], rows, ++c->n_steps, seconds / cost_pace(c));
    redraw_step(c, at);
    cost_series *others[] = {&c->block[SPEC_DFLASH], &c->block[SPEC_TREE], &c->pass};
    for (int i = 0; i < 3; i++)
        if (others[i]->drawn && c->n_steps > others[i]->good_until) redraw_alone(c, others[i]);
}

void cost_note_draft(cost_table *c, spec_method m, int n_lanes, int n, double seconds)
{
    if (m == SPEC_OFF || n < 1 || n_lanes < 1 || n > COST_MAX_ROWS || n_lanes > COST_MAX_ROWS) return;
    seconds /= cost_pace(c);
    if (m == SPEC_NGRAM) {
        note_cost(&c->ngram, c->n_steps, seconds / n / n_lanes);
        return;
    }
    cost_series *s = m == SPEC_MTP ? &c->pass : &c->block[m];
    note_at(s, m == SPEC_MTP ? n_lanes : n, c->n_steps, m == SPEC_MTP ? seconds / n : seconds);
    redraw_alone(c, s);
}

static void refresh_series(cost_table *c, cost_series *s)
{
    s->low  = 1;
    s->high = COST_MAX_ROWS;
    redraw_alone(c, s);
}

void cost_refresh(cost_table *c)
{
    for (int i = 0; i < COST_CONTEXTS; i++) refresh_series(c, &c->step[i]);
    for (int i = 0; i < COST_CONTEXTS; i++) redraw_step(c, i);
    for (int m = SPEC_DFLASH; m <= SPEC_TREE; m++) refresh_series(c, &c->block[m]);
    refresh_series(c, &c->pass);
}

/* --- looking up --------------------------------------------------------------------------------- */
static const cost_series *step_series(const cost_table *c, int32_t ctx)
{
    int at = context_of(ctx);
    return c->step[at].n_known > 0 ? &c->step[at] : nearest_context(c, at);
}

static const double *step_curve(cost_view *v, const cost_table *c, int32_t ctx)
{
    const cost_series *s = step_series(c, ctx);
    v->measured          = s != NULL;
    if (s) return s->curve;
    for (int rows = 0; rows <= COST_MAX_ROWS; rows++)
        v->assumed_step[rows] = ASSUMED_STEP_S * (1 + ASSUMED_PER_ROW * (rows - 1));
    return v->assumed_step;
}

/* Returns an old measured value, or the assumed one if that is larger. */
static const double *old_or(const cost_series *s, const double *assumed)
{
    return s->drawn && s->curve[1] > assumed[1] ? s->curve : assumed;
}

/* Trees and chains come from the same pass, so each uses the measurements of the other where it has none. */
static const double *block_curve(cost_view *v, const cost_table *c, spec_method m)
{
    const cost_series *own = &c->block[m], *other = &c->block[m == SPEC_TREE ? SPEC_DFLASH : SPEC_TREE];
    if (own->n_known > 0) return own->curve;
    if (other->n_known > 0) return other->curve;
    for (int rows = 0; rows <= COST_MAX_ROWS; rows++) v->assumed_block[rows] = ASSUMED_DRAFT[m] * v->step[1];
    return old_or(own, old_or(other, v->assumed_block));
}

static const double *pass_curve(cost_view *v, const cost_table *c)
{
    if (c->pass.n_known > 0) return c->pass.curve;
    for (int lanes = 1; lanes <= COST_MAX_ROWS; lanes++)
        v->assumed_pass[lanes] = ASSUMED_DRAFT[SPEC_MTP] * v->step[lanes];
    return old_or(&c->pass, v->assumed_pass);
}

void cost_view_init(cost_view *v, const cost_table *c, int32_t ctx)
{
    v->step     = step_curve(v, c, ctx);
    v->block[0] = NULL;
    for (int m = SPEC_DFLASH; m <= SPEC_TREE; m++) v->block[m] = block_curve(v, c, (spec_method)m);
    v->pass  = pass_curve(v, c);
    v->ngram = is_old(c, &c->ngram) ? 0 : c->ngram.seconds;
}

bool cost_step_is_known(const cost_table *c, int low, int high, int32_t ctx, int max_age)
{
    const cost_series *s = &c->step[context_of(ctx)];
    for (int r = bin_of(low); r <= min_int(high, COST_MAX_ROWS); r++) {
        const cost *k = &s->at[r];
        if (k->seconds > 0 && c->n_steps - k->at <= (k->n < FEW ? FIRST_AGE : max_age)) return true;
    }
    return false;
}
