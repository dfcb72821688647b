#include "server/record.h"

#include "base/mem.h"
#include "spec/counts.h"

#include <math.h>

static double over(double a, double b) { return b > 0 ? a / b : 0; }

static void add_usage(record_sums *s, const tandem_usage *u)
{
    double first = u->queue_s + u->prefill_s;
    s->completion_tokens += u->completion_tokens;
    spec_counts_add(&s->spec, &u->spec);
    s->queue_s   = fmax(s->queue_s, u->queue_s);
    s->prefill_s = fmax(s->prefill_s, u->prefill_s);
    s->decode_s  = fmax(s->decode_s, u->decode_s);
    if (u->completion_tokens && (!s->first_s || first < s->first_s)) s->first_s = first;
}

void record_sum(record_sums *s, const server_record *r)
{
    int64_t later = 0;
    *s            = (record_sums){.finish = "", .route_reason = ""};
    for (int i = 0; i < r->n_choices; i++) {
        const tandem_usage *u = &r->choice[i]->usage;
        add_usage(s, u);
        if (!r->shares_prompt[i]) {
            s->prompt_tokens += u->prompt_tokens;
            s->cached_tokens += u->cached_tokens;
            s->image_tokens += u->image_tokens;
            s->video_tokens += u->video_tokens;
        }
        later += u->completion_tokens ? u->completion_tokens - 1 : 0;
    }
    if (r->n_choices) {
        s->finish       = tandem_finish_name(r->choice[0]->finish);
        s->route        = r->choice[0]->usage.route;
        s->route_reason = r->choice[0]->usage.route_reason;
    }
    s->decode_rate       = over((double)later, s->decode_s);
    s->total_rate        = over((double)s->completion_tokens, r->total_s);
    s->acceptance_rate   = spec_acceptance_rate(&s->spec);
    s->acceptance_length = spec_acceptance_length(&s->spec);
}
