/* tandem bench lanes: throughput of many users, by their number and by method.
 *
 * A cell is a number of concurrent users, each with a few questions in sequence. All arms run the same questions in
 * rotating order, plain decoding twice (bench/arms.h), and their texts are compared. Every user of every run is a
 * separate tenant, so that there are no prefix hits.
 *
 *      tok_s   answer tokens of all users / time from the first question to the last answer
 *      ratio   of tok_s to plain decoding's in the same turn
 *      scale   of tok_s to that of one user with the same arm, turn by turn
 *      gen     mean over the answers of their tokens after the first / the time after it: the rate that a user sees
 *      better  of auto's tok_s to that of the better of the other arms, by their medians
 *
 * Where the questions have several classes, gen and the acceptance of each are also reported alone.
 *
 * A burst: one user alone, then many together, then one alone again, who should be as fast as the first. */
#include "base/clock.h"
#include "base/num.h"
#include "bench/arms.h"
#include "bench/bench.h"
#include "bench/oracle.h"
#include "bench/rig.h"
#include "figures/result.h"

#include <math.h>
#include <stdio.h>

enum {
    MAX_CELLS      = 16,
    MAX_USERS      = TANDEM_MAX_LANES,
    MAX_REPEATS    = 200,
    MAX_QUESTIONS  = 16,
    ANSWER         = 128,
    RANDOM_PROMPTS = 64
};

static struct {
    method_flags with;
    const char  *users, *json, *accept;
    int          repeats, questions, n_prompt, burst;
} flags = {.with      = {.gen = GENERATE_DEFAULTS, .shape = SHAPE_DEFAULTS, .methods = "dflash,auto"},
           .users     = "1,2,4,8,16,32",
           .repeats   = 9,
           .questions = 4,
           .n_prompt  = 96,
           .burst     = 16};

static const option opts[] = {
    OPT_GENERATE(flags.with.gen),
    OPT_SHAPE(flags.with.shape),
    OPT_WORDS("methods", flags.with.methods, ARMS_HELP),
    OPT_WORDS("accept", flags.accept, "simulated acceptance, as in bench spec: one number"),
    OPT_WORDS("users", flags.users, "concurrent users (default 1,2,4,8,16,32)"),
    {.name = "questions",
     .kind = OPT_INT,
     .dest = &flags.questions,
     .arg  = "N",
     .min  = 1,
     .max  = MAX_QUESTIONS,
     .help = "requests of each user (default 4)"},
    OPT_PROMPT_TOKENS(flags.n_prompt, GENERATE_MAX_CONTEXT / 2, NULL,
                      "length of the random questions that a shape gets (default 96)"),
    OPT_PROMPTS(flags.with.prompts, PROMPTS_HELP),
    {.name = "burst",
     .kind = OPT_INT,
     .dest = &flags.burst,
     .arg  = "N",
     .min  = 0,
     .max  = MAX_USERS,
     .help = "burst of users between two requests of a single user, with the last arm; 0: none (default 16)"},
    OPT_REPEATS(flags.repeats, MAX_REPEATS, NULL, "turns of each number of users (default 9)"),
    OPT_RESULT(flags.json, flags.with.no_hash),
    OPT_LOGGING,
};
static const opt_spec usage = {
    "bench lanes", "bench lanes [-m MODEL | --shape SHAPE] [--draft DRAFTER] [FLAGS]",
    "Measures the engine with many concurrent users, in interleaved turns of plain decoding and other methods: tokens "
    "per\n"
    "second of all together and of each answer, time to the first token, acceptance, also by the class of the "
    "questions; "
    "medians with\n"
    "90% intervals. -n is 128 here.",
    opts, COUNT(opts)};

/* Answers of one arm with one number of users, to the questions of a class or to all. */
typedef struct {
    double             gen[MAX_REPEATS]; /* by turn; 0: the turn had no such answer */
    double             gen_sum;          /* in the current turn */
    int                n_answers;        /* in the current turn */
    tandem_spec_counts spec;
} answers;

/* One arm with one number of users. */
typedef struct {
    double  tok_s[MAX_REPEATS], ttft_ms[MAX_REPEATS]; /* by turn */
    int     n;
    answers all, of_class[PROMPT_CLASSES_MAX];
} tally;

typedef struct {
    tandem_job *job;
    int         asked;  /* questions */
    int         prompt; /* the last one */
    tok_ids     text;   /* all answers so far */
} user;

typedef struct {
    bench_rig  rig;
    bell       news;
    arm_choice arm[ARMS_MAX];
    int        n_arms, n_different, n_runs;
    int        users[MAX_CELLS], n_cells;
    user       user[MAX_USERS];
    int        first_question; /* first question of the turn */
    tok_ids    first_text[MAX_USERS];
    tally     *tally[MAX_CELLS]; /* [n_arms] */
    double     after_burst[MAX_REPEATS];
    oracle    *oracle; /* NULL: no simulated acceptance */
    double     accept;
} bench;

/* --- running --------------------------------------------------------------------------------------*/
static bool submit_question(bench *b, int u, int arm, int number, err *e)
{
    int            k = number % b->rig.prompts.n;
    const tok_ids *p = &b->rig.prompts.prompt[k].ids;
    tandem_request r = b->rig.request;
    char           tenant[48];
    b->user[u].prompt = k;
    snprintf(tenant, sizeof tenant, "user %d of run %d", u, b->n_runs);
    r.ids    = p->p;
    r.n_ids  = p->n;
    r.spec   = b->arm[arm].spec;
    r.tenant = tenant;
    return sched_submit(b->rig.sched, &r, &b->user[u].job, e);
}

static bool ask_question(bench *b, int u, int arm, err *e)
{
    return submit_question(b, u, arm, b->first_question + u * flags.questions + b->user[u].asked++, e);
}

static void take_tokens(user *x)
{
    tandem_token got[64];
    for (size_t n; (n = tandem_poll(x->job, got, COUNT(got)));)
        for (size_t i = 0; i < n; i++) tok_ids_put(&x->text, got[i].id);
}

static void count_answer(answers *a, const tandem_usage *u)
{
    spec_counts_add(&a->spec, &u->spec);
    if (u->completion_tokens < 2 || u->decode_s <= 0) return;
    a->gen_sum += (u->completion_tokens - 1) / u->decode_s;
    a->n_answers++;
}

/* Ends a turn: notes the mean of its answers. */
static void close_turn(answers *a, int turn)
{
    a->gen[turn] = a->n_answers ? a->gen_sum / a->n_answers : 0;
    a->gen_sum   = 0;
    a->n_answers = 0;
}

/* Records the times of a finished question. */
static bool note_answer(const bench *b, user *x, tally *t, double *ttft_s, err *e)
{
    const tandem_result *r = tandem_job_result(x->job);
    if (r->finish == TANDEM_FINISH_ERROR) return err_set(e, (err_code)r->error.code, "%s", r->error.text);
    *ttft_s += r->usage.queue_s + r->usage.prefill_s;
    if (!t) return true;
    count_answer(&t->all, &r->usage);
    count_answer(&t->of_class[b->rig.prompts.class_of[x->prompt]], &r->usage);
    return true;
}

/* Reads the tokens of one user, and submits the next question after a response. */
static bool serve_user(bench *b, int u, int arm, tally *t, double *ttft_s, err *e)
{
    user *x    = &b->user[u];
    bool  done = tandem_job_result(x->job) != NULL; /* before the last tokens are taken */
    take_tokens(x);
    if (!done) return true;
    if (!note_answer(b, x, t, ttft_s, e)) return false;
    tandem_release(x->job);
    x->job = NULL;
    return x->asked == flags.questions || ask_question(b, u, arm, e);
}

static void release_all(bench *b)
{
    for (int u = 0; u < MAX_USERS; u++) {
        tandem_release(b->user[u].job);
        b->user[u].job = NULL;
    }
}

/* Serves n users until they have all their answers. */
static bool serve_users(bench *b, int n, int arm, tally *t, double *ttft_s, err *e)
{
    for (bool busy = true; busy;) {
        unsigned seen = bell_read(&b->news);
        busy          = false;
        for (int u = 0; u < n; u++) {
            if (b->user[u].job && !serve_user(b, u, arm, t, ttft_s, e)) return false;
            busy |= b->user[u].job != NULL;
        }
        if (busy) bell_wait(&b->news, seen, -1);
    }
    return true;
}

/* Runs all questions of n users. *tok_s: total tokens per second. */
static bool run_users(bench *b, int n, int arm, tally *t, double *tok_s, double *ttft_s, err *e)
{
    double start = clock_s();
    size_t n_out = 0;
    *ttft_s      = 0;
    b->n_runs++;
    for (int u = 0; u < n; u++) {
        b->user[u].asked = 0, b->user[u].text.n = 0;
        if (!ask_question(b, u, arm, e)) return false;
    }
    if (!serve_users(b, n, arm, t, ttft_s, e)) return false;
    for (int u = 0; u < n; u++) n_out += b->user[u].text.n;
    *tok_s = (double)n_out / (clock_s() - start);
    *ttft_s /= (double)n * flags.questions;
    return true;
}

/* Records the text of plain decoding of n <= MAX_USERS questions, for the oracle. */
static bool learn_some(bench *b, int first, int n, tok_ids *all, err *e)
{
    double unused = 0;
    b->n_runs++;
    for (int u = 0; u < n; u++) {
        b->user[u].asked = flags.questions, b->user[u].text.n = 0;
        if (!submit_question(b, u, 0, first + u, e)) return false;
    }
    if (!serve_users(b, n, 0, NULL, &unused, e)) return false;
    for (int u = 0; u < n; u++) {
        const tok_ids *prompt = &b->rig.prompts.prompt[first + u].ids;
        tok_ids_clear(all);
        tok_ids_put_n(all, prompt->p, prompt->n);
        tok_ids_put_n(all, b->user[u].text.p, b->user[u].text.n);
        oracle_learn(b->oracle, all->p, all->n);
    }
    return true;
}

static bool learn_texts(bench *b, int users, err *e)
{
    tok_ids all;
    bool    ok = true;
    if (!b->oracle) return true;
    tok_ids_init(&all, GENERATE_MAX_CONTEXT);
    for (int first = 0; ok && first < b->rig.prompts.n; first += users)
        ok = learn_some(b, first, min_int(users, b->rig.prompts.n - first), &all, e);
    tok_ids_deinit(&all);
    return ok && oracle_accept(b->oracle, b->accept, e);
}

/* Runs one arm of a turn. All arms of a turn get the same questions. The warm-up is for the pages and the cost model
 * of auto. */
static bool measure_users(void *ctx, const measure_run *at, err *e)
{
    bench *b = ctx;
    tally *t = &b->tally[at->cell][at->arm];
    int    n = b->users[at->cell];
    double tok_s, ttft_s;
    b->first_question = at->warm_up ? 0 : at->turn * 7;
    if (!run_users(b, n, at->arm, at->warm_up ? NULL : t, &tok_s, &ttft_s, e)) return false;
    for (int u = 0; u < n; u++) b->n_different += !arms_agree(&b->first_text[u], &b->user[u].text, at->first);
    if (at->warm_up) return true;
    t->tok_s[at->turn]   = tok_s;
    t->ttft_ms[at->turn] = 1e3 * ttft_s;
    close_turn(&t->all, at->turn);
    for (int c = 0; c < b->rig.prompts.n_classes; c++) close_turn(&t->of_class[c], at->turn);
    t->n = at->turn + 1;
    return true;
}

static bool measure_burst(void *ctx, const measure_run *at, err *e)
{
    bench *b = ctx;
    double before, burst, after, ttft_s;
    int    arm        = b->n_arms - 1;
    b->first_question = at->turn * 7;
    if (!run_users(b, 1, arm, NULL, &before, &ttft_s, e) || !run_users(b, flags.burst, arm, NULL, &burst, &ttft_s, e) ||
        !run_users(b, 1, arm, NULL, &after, &ttft_s, e))
        return false;
    b->after_burst[at->turn] = after / before;
    return true;
}

static bool measure_cells(bench *b, err *e)
{
    measure_plan users = {.n_cells = b->n_cells, .n_arms = b->n_arms, .n_turns = flags.repeats, .n_warm_up = 1};
    measure_plan burst = {.n_cells = 1, .n_arms = 1, .n_turns = flags.repeats};
    return bench_measure(&users, measure_users, b, e) && (!flags.burst || bench_measure(&burst, measure_burst, b, e));
}

/* --- results --------------------------------------------------------------------------------------*/
/* Returns the ratio of the rates of two arms in the same turns. */
static interval ratio_of(const tally *a, const tally *b) { return stats_ratio(a->tok_s, b->tok_s, a->n); }

/* Returns the cell of one user, -1 if there is none. */
static int single_cell(const bench *b)
{
    for (int c = 0; c < b->n_cells; c++)
        if (b->users[c] == 1) return c;
    return -1;
}

/* Returns the median of the turns that had answers. */
static interval gen_of(const answers *a, int n)
{
    double some[MAX_REPEATS];
    int    k = 0;
    for (int i = 0; i < n; i++)
        if (a->gen[i] > 0) some[k++] = a->gen[i];
    return stats_median(some, k);
}

static int auto_arm(const bench *b)
{
    for (int k = 0; k < b->n_arms; k++)
        if (b->arm[k].spec.method == TANDEM_SPEC_AUTO) return k;
    return -1;
}

/* Compares auto with the best other arm. Returns false when it is not among the arms. */
static bool against_better(const bench *b, int cell, interval *out, int *better)
{
    double best = 0;
    int    mine = auto_arm(b);
    tally *t    = b->tally[cell];
    if (mine < 0) return false;
    for (int k = 0; k < b->n_arms; k++) {
        double m = stats_median(t[k].tok_s, t[k].n).median;
        if (k != mine && k != 1 && m > best) best = m, *better = k;
    }
    *out = ratio_of(&t[mine], &t[*better]);
    return true;
}

static void print_answers(const answers *a, const answers *plain, int n)
{
    bench_print_interval(gen_of(a, n), 24, 1);
    bench_print_interval(stats_ratio(a->gen, plain->gen, n), 19, 2);
    printf(" %8.1f%% %7.1f%% %9.2f %7.2f", 100 * spec_acceptance_rate(&a->spec), 100 * spec_accepted_share(&a->spec),
           spec_tokens_per_round(&a->spec), spec_acceptance_length(&a->spec));
}

static void print_arm(const bench *b, int cell, int k)
{
    interval     vs;
    int          better = 0, single = single_cell(b);
    const tally *t = &b->tally[cell][k];
    printf("%5d  %-12s", b->users[cell], b->arm[k].name);
    bench_print_interval(stats_median(t->tok_s, t->n), 26, 1);
    bench_print_interval(ratio_of(t, &b->tally[cell][0]), 19, 2);
    if (single >= 0)
        bench_print_interval(ratio_of(t, &b->tally[single][k]), 21, 2);
    else
        printf(" %21s", "");
    bench_print_interval(stats_median(t->ttft_ms, t->n), 24, 1);
    print_answers(&t->all, &b->tally[cell][0].all, t->n);
    if (k == auto_arm(b) && against_better(b, cell, &vs, &better))
        printf("   to %s %.2f [%.2f, %.2f]", b->arm[better].name, vs.median, vs.low, vs.high);
    putchar('\n');
}

static void print_classes(const bench *b)
{
    const prompt_set *p = &b->rig.prompts;
    if (p->n_classes < 2) return;
    printf("\nby class of the questions\n%-12s users  %-12s %24s %19s %9s %8s %9s %7s\n", "class", "arm",
           "gen tok/s [90%]", "to off [90%]", "acc/draft", "acc/gen", "tok/round", "length");
    for (int c = 0; c < p->n_classes; c++)
        for (int i = 0; i < b->n_cells; i++)
            for (int k = 0; k < b->n_arms; k++) {
                const tally *t = b->tally[i];
                if (t[k].of_class[c].spec.rounds + t[k].of_class[c].spec.plain_rounds == 0) continue; /* no question */
                printf("%-12s %5d  %-12s", p->class_name[c], b->users[i], b->arm[k].name);
                print_answers(&t[k].of_class[c], &t[0].of_class[c], t[k].n);
                putchar('\n');
            }
    putchar('\n');
}

static void print_table(const bench *b)
{
    bench_print_engine(&b->rig.g, flags.with.gen.engine.path, &flags.with.gen.engine.kv.types);
    printf(", %d questions each, answers of up to %d tokens; medians of %d turns with 90%% intervals\n",
           flags.questions, flags.with.gen.max_tokens, flags.repeats);
    if (b->oracle) printf("simulated acceptance, %g tokens a round\n", b->accept);
    printf("users  %-12s %26s %19s %21s %24s %24s %19s %9s %8s %9s %7s\n", "arm", "tok/s [90%]", "to off [90%]",
           single_cell(b) < 0 ? "" : "to one user [90%]", "ttft ms [90%]", "gen tok/s [90%]", "to off [90%]",
           "acc/draft", "acc/gen", "tok/round", "length");
    for (int c = 0; c < b->n_cells; c++)
        for (int k = 0; k < b->n_arms; k++) print_arm(b, c, k);
    print_classes(b);
    if (flags.burst) {
        interval i = stats_median(b->after_burst, flags.repeats);
        printf("one user right after a burst of %d, relative to before: %.2f [%.2f, %.2f]\n", flags.burst, i.median,
               i.low, i.high);
    }
    printf("%s\n", b->n_different ? "THE TEXTS DIFFER" : "all arms wrote the same text");
}

static void put_answers(json_writer *w, const answers *a, const answers *plain, int n)
{
    result_interval(w, "gen_tok_s", gen_of(a, n));
    result_interval(w, "gen_ratio", stats_ratio(a->gen, plain->gen, n));
    json_member_int(w, "rounds", a->spec.rounds);
    json_member_int(w, "plain_rounds", a->spec.plain_rounds);
    json_member_int(w, "drafted", a->spec.drafted);
    json_member_int(w, "accepted", a->spec.accepted);
    json_member_real(w, "acceptance_rate", spec_acceptance_rate(&a->spec));
    json_member_real(w, "accepted_share", spec_accepted_share(&a->spec));
    json_member_real(w, "tokens_per_round", spec_tokens_per_round(&a->spec));
    json_member_real(w, "acceptance_length", spec_acceptance_length(&a->spec));
}

static void put_arm(json_writer *w, const bench *b, int cell, int k)
{
    const tally *t = &b->tally[cell][k], *plain = &b->tally[cell][0];
    int          single = single_cell(b);
    json_begin_object(w);
    json_member_str(w, "name", b->arm[k].name);
    result_interval(w, "tok_s", stats_median(t->tok_s, t->n));
    result_interval(w, "ratio", ratio_of(t, plain));
    if (single >= 0) result_interval(w, "to_one_user", ratio_of(t, &b->tally[single][k]));
    result_interval(w, "ttft_ms", stats_median(t->ttft_ms, t->n));
    put_answers(w, &t->all, &plain->all, t->n);
    json_key(w, "classes");
    json_begin_array(w);
    for (int c = 0; c < b->rig.prompts.n_classes; c++) {
        json_begin_object(w);
        json_member_str(w, "class", b->rig.prompts.class_name[c]);
        put_answers(w, &t->of_class[c], &plain->of_class[c], t->n);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

static void put_cell(json_writer *w, const bench *b, int cell)
{
    interval vs;
    int      better = 0;
    json_begin_object(w);
    json_member_int(w, "users", b->users[cell]);
    if (against_better(b, cell, &vs, &better)) {
        json_member_str(w, "better", b->arm[better].name);
        result_interval(w, "auto_to_better", vs);
    }
    json_key(w, "arms");
    json_begin_array(w);
    for (int k = 0; k < b->n_arms; k++) put_arm(w, b, cell, k);
    json_end(w);
    json_end(w);
}

static bool write_json(const bench *b, err *e)
{
    result_doc   doc;
    json_writer *w = result_begin(&doc, "lanes");
    provenance_put(&b->rig.from, w, &b->rig.g, cli_path_name(flags.with.gen.engine.path),
                   &flags.with.gen.engine.kv.types);
    json_member_int(w, "answer_tokens", flags.with.gen.max_tokens);
    json_member_int(w, "questions", flags.questions);
    json_member_int(w, "repeats", flags.repeats);
    json_member_int(w, "different_texts", b->n_different);
    if (b->oracle) json_member_real(w, "accept", b->accept);
    if (flags.burst) result_interval(w, "after_burst", stats_median(b->after_burst, flags.repeats));
    json_key(w, "cells");
    json_begin_array(w);
    for (int c = 0; c < b->n_cells; c++) put_cell(w, b, c);
    json_end(w);
    return result_end(&doc, flags.json, e);
}

/* --- the command ----------------------------------------------------------------------------------*/
static int max_users(const bench *b)
{
    int users = flags.burst;
    for (int c = 0; c < b->n_cells; c++) users = b->users[c] > users ? b->users[c] : users;
    return users;
}

static bool open_bench(bench *b, err *e)
{
    generate_flags *f     = &flags.with.gen;
    int             users = max_users(b);
    f->engine.more_lanes  = users;
    if (!f->engine.n_ctx) f->engine.n_ctx = 1024;
    if (flags.accept) {
        b->oracle         = oracle_new(flags.with.shape.spec.seed);
        f->draft.wrap     = oracle_wrap;
        f->draft.wrap_ctx = b->oracle;
    }
    if (!rig_open(&b->rig, &flags.with, true, e) ||
        !rig_fill_prompts(&b->rig, &flags.with, RANDOM_PROMPTS, flags.n_prompt, e) ||
        !rig_choose_arms(&b->rig, &flags.with, b->arm, &b->n_arms, e) ||
        !rig_serve(&b->rig, &flags.with, users, &b->news, e))
        return false;
    for (int c = 0; c < b->n_cells; c++) b->tally[c] = xnew_n(tally, (size_t)b->n_arms);
    return learn_texts(b, users, e);
}

static bool measure_lanes(void *ctx, err *e)
{
    bench *b = ctx;
    if (!open_bench(b, e) || (flags.json && !rig_note_files(&b->rig, &flags.with, e)) || !measure_cells(b, e))
        return false;
    print_table(b);
    if (flags.json && !write_json(b, e)) return false;
    return b->n_different == 0 || err_set(e, ERR_FORMAT, "%d answers differ from the first arm's", b->n_different);
}

static bool check_flags(void *ctx)
{
    bench *b = ctx;
    err    e = {0};
    if (!bench_check_methods(&flags.with, ANSWER, &usage)) return false;
    if (!result_numbers(flags.users, b->users, MAX_CELLS, &b->n_cells, 1, MAX_USERS, &e))
        return opt_usage(&usage, "--users: %s", e.text), false;
    if (flags.accept &&
        (!str_to_f64(str_of(flags.accept), &b->accept) || !(b->accept >= 1 && b->accept <= 1 + DRAFT_MAX)))
        return opt_usage(&usage, "--accept: '%s' is not a number from 1 to %d", flags.accept, 1 + DRAFT_MAX), false;
    return true;
}

static void each_text(bench *b, void (*f)(tok_ids *ids))
{
    for (int u = 0; u < MAX_USERS; u++) {
        f(&b->user[u].text);
        f(&b->first_text[u]);
    }
}

static void begin_text(tok_ids *ids) { tok_ids_init(ids, GENERATE_MAX_CONTEXT); }

static const bench_command command = {
    .part = "lanes", .usage = &usage, .check = check_flags, .measure = measure_lanes, .json = &flags.json};

int bench_lanes(int argc, char **args)
{
    bench *b = xnew(bench);
    each_text(b, begin_text);
    int code = bench_run(&command, &b->rig.from, b, argc, args);
    release_all(b);
    rig_close(&b->rig, &flags.with);
    oracle_free(b->oracle);
    each_text(b, tok_ids_deinit);
    for (int c = 0; c < MAX_CELLS; c++) mem_free(b->tally[c]);
    mem_free(b);
    return code;
}
