/* The reader's side of a job: tokens and text, from any thread, without a lock. */
#include "base/clock.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sched/job.h"

#include <assert.h>

_Static_assert(sizeof(tandem_logprob) == sizeof(token_logprob) &&
                   offsetof(tandem_logprob, logprob) == offsetof(token_logprob, logprob),
               "given to the caller as they are");

static int32_t n_there(tandem_job *j) { return atomic_load(&j->n_out); }

static tandem_token token_at(const tandem_job *j, int32_t i)
{
    const token_logprob *probs = j->logprobs ? j->logprobs + (size_t)i * (size_t)(1 + j->opt.n_top) : NULL;
    return (tandem_token){j->token[i], i == atomic_load_explicit(&j->stop_at, memory_order_relaxed),
                          (const tandem_logprob *)probs, (tandem_method)j->drafted[i]};
}

size_t tandem_poll(tandem_job *j, tandem_token *out, size_t max)
{
    size_t  n     = 0;
    int32_t n_out = n_there(j);
    while (n < max && j->n_read < n_out) out[n++] = token_at(j, j->n_read++);
    return n;
}

bool tandem_wait(tandem_job *j, double seconds)
{
    double until = clock_s() + seconds;
    for (;;) {
        unsigned seen = bell_read(&j->news);
        if (n_there(j) > j->n_read || atomic_load(&j->done)) return true;
        double left = seconds < 0 ? -1 : until - clock_s();
        if (seconds >= 0 && left <= 0) return false;
        bell_wait(&j->news, seen, left);
    }
}

void tandem_cancel(tandem_job *j)
{
    if (atomic_load(&j->done)) return;
    atomic_store(&j->cancelled, true);
    bell_ring(j->engine);
}

void tandem_release(tandem_job *j)
{
    if (!j) return;
    tandem_cancel(j);
    job_drop(j);
}

const tandem_logprob *tandem_prompt_logprobs(const tandem_job *j)
{
    tandem_job *seen = (tandem_job *)j;
    return n_there(seen) || atomic_load(&seen->done) ? (const tandem_logprob *)j->scores : NULL;
}

void tandem_job_progress(const tandem_job *j, tandem_progress *out)
{
    tandem_job *seen = (tandem_job *)j;
    *out             = (tandem_progress){.prompt_tokens = (int32_t)j->prompt.n, .completion_tokens = n_there(seen)};
    if (!tandem_job_admitted(j)) return;
    double now         = clock_s();
    out->cached_tokens = j->result.usage.cached_tokens;
    out->prompt_done   = atomic_load(&seen->n_done);
    out->prefill_s     = (out->completion_tokens ? j->first_token : now) - j->admitted;
    out->decode_s      = out->completion_tokens ? now - j->first_token : 0;
}

int engine_job_rounds(const tandem_job *j, engine_round *out, int max, int64_t *n_rounds)
{
    tandem_job *seen = (tandem_job *)j;
    int64_t     all  = atomic_load(&seen->n_rounds);
    int         n    = (int)(all < max ? all : max);
    if (n > ENGINE_ROUNDS_MAX) n = ENGINE_ROUNDS_MAX; /* older ones may be overwritten meanwhile */
    for (int i = 0; i < n; i++) {
        unsigned x = atomic_load_explicit(&seen->round[(all - n + i) % JOB_ROUNDS], memory_order_relaxed);
        out[i]     = (engine_round){(tandem_method)(x & 255), (int)(x >> 8 & 255), (int)(x >> 16 & 255)};
    }
    *n_rounds = all;
    return n;
}

bool tandem_job_admitted(const tandem_job *j) { return atomic_load(&((tandem_job *)j)->entered); }

const tandem_result *tandem_job_result(const tandem_job *j)
{
    return atomic_load(&((tandem_job *)j)->done) ? &j->result : NULL;
}

/* --- as text ------------------------------------------------------------------------------------*/
/* Appends the part of the text that cannot become a stop string to the text to read. */
static void put_text(tandem_job *j, buf *text) { stop_put(&j->text_stop, buf_str(text), &j->read); }

static void read_token(tandem_job *j, const tandem_token *x)
{
    buf text;
    if (x->is_stop) return;
    buf_init(&text, TOK_MAX_INPUT);
    tok_stream_put(&j->text, x->id, &text);
    put_text(j, &text);
    buf_deinit(&text);
}

static void read_end(tandem_job *j)
{
    buf text;
    buf_init(&text, TOK_MAX_INPUT);
    tok_stream_finish(&j->text, &text);
    put_text(j, &text);
    stop_finish(&j->text_stop, &j->read);
    buf_deinit(&text);
    j->read_over = true;
}

static size_t give_text(tandem_job *j, char *out, size_t cap)
{
    size_t n = j->read.n < cap ? j->read.n : cap;
    while (n < j->read.n && ((unsigned char)j->read.p[n] & 0xC0) == 0x80) n--;
    memcpy(out, j->read.p, n);
    buf_drop_front(&j->read, n);
    return n;
}

size_t tandem_read(tandem_job *j, char *out, size_t cap)
{
    tandem_token x;
    assert(cap >= 4);
    while (j->read.n == 0 && !j->read_over && j->maker->tok) {
        tandem_wait(j, -1);
        if (tandem_poll(j, &x, 1))
            read_token(j, &x);
        else
            read_end(j);
    }
    return j->read.n ? give_text(j, out, cap) : 0;
}

const char *tandem_finish_name(tandem_finish f)
{
    static const char *const names[TANDEM_FINISHES] = {"none",      "stop",    "stop_string", "length",
                                                       "cancelled", "timeout", "error"};
    return f >= 0 && f < TANDEM_FINISHES ? names[f] : NULL;
}

const char *tandem_method_name(int method) { return spec_method_name(method); }

void engine_job_text(const tandem_job *j, tok_ids *out, int32_t *n_prompt)
{
    int32_t n = atomic_load(&j->n_out);
    tok_ids_put_n(out, j->prompt.p, j->prompt.n);
    tok_ids_put_n(out, j->token, (size_t)n);
    *n_prompt = (int32_t)j->prompt.n - j->opt.n_continued;
}
