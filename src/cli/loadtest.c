/* tandem loadtest URL: sends requests to an OpenAI-compatible server and reports throughput and latency. */
#include "base/clock.h"
#include "cli/cli.h"
#include "figures/measure.h"
#include "figures/plot.h"
#include "figures/result.h"
#include "load/report.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_LEVELS = 16, ARMS = 2, USERS_WITH_RATE = 1024, MAX_OUTPUT = 1 << 20, MAX_FIELDS = OPT_LIST_MAX + 4 };

static struct {
    const char *concurrency, *prompts, *model, *api_key, *extra, *json, *plot, *title, *compare, *names, *ca_file;
    opt_list    headers;
    int         endpoint, requests, warmup, pairs, prompt_len, output_len, timeout_s;
    float       rate, duration_s, temp;
    uint64_t    seed;
    bool        may_end, unique, all_turns, insecure, has_concurrency, has_temp, has_seed, has_requests;
} flags = {.concurrency = "1", .warmup = 1, .pairs = 5, .timeout_s = 600, .title = ""};

static const char *const endpoints[] = {"chat", "completions", NULL};

static const option opts[] = {
    {.name  = "concurrency",
     .kind  = OPT_STR,
     .dest  = &flags.concurrency,
     .arg   = "N,N,...",
     .given = &flags.has_concurrency,
     .help  = "concurrent users, each with one request at a time; one run for each number (default 1)"},
    {.name = "rate",
     .kind = OPT_REAL,
     .dest = &flags.rate,
     .arg  = "R",
     .min  = 0.001,
     .max  = 100000,
     .help = "requests per second, at random times; --concurrency is then the maximum (default 1024)"},
    {.name  = "requests",
     .kind  = OPT_INT,
     .dest  = &flags.requests,
     .arg   = "N",
     .min   = 1,
     .max   = 1 << 24,
     .given = &flags.has_requests,
     .help  = "requests of a run, with --all-turns prompts (default 8 for each user, at least 32; with --duration no "
              "limit)"},
    {.name = "duration",
     .kind = OPT_REAL,
     .dest = &flags.duration_s,
     .arg  = "SECONDS",
     .min  = 0.1,
     .max  = 86400,
     .help = "start no new requests after this time; running ones finish"},
    {.name = "warmup",
     .kind = OPT_INT,
     .dest = &flags.warmup,
     .arg  = "N",
     .min  = 0,
     .max  = 100000,
     .help = "requests before each run that are not measured (default 1)"},
    {.name = "prompts",
     .kind = OPT_STR,
     .dest = &flags.prompts,
     .arg  = "FILE",
     .help = "JSON lines with messages, conversations, turns, prompt, text or question (default: built-in ones)"},
    {.name = "all-turns",
     .kind = OPT_FLAG,
     .dest = &flags.all_turns,
     .help = "ask all `turns` of a prompt, each after the response to the one before (default: the first)"},
    {.name = "prompt-len",
     .kind = OPT_INT,
     .dest = &flags.prompt_len,
     .arg  = "N",
     .min  = 1,
     .max  = 1 << 20,
     .help = "use generated prompts of about N tokens, all different"},
    {.name = "unique",
     .kind = OPT_FLAG,
     .dest = &flags.unique,
     .help = "put a number before each prompt, to avoid prefix hits"},
    {.name = "output-len",
     .kind = OPT_INT,
     .dest = &flags.output_len,
     .arg  = "N",
     .min  = 1,
     .max  = MAX_OUTPUT,
     .help = "max_tokens, with ignore_eos (default: the server's)"},
    {.name = "may-end",
     .kind = OPT_FLAG,
     .dest = &flags.may_end,
     .help = "do not send ignore_eos: responses may be shorter"},
    {.name  = "temp",
     .kind  = OPT_REAL,
     .dest  = &flags.temp,
     .arg   = "T",
     .min   = 0,
     .max   = 100,
     .given = &flags.has_temp,
     .help  = "temperature (default: the server's)"},
    {.name  = "seed",
     .kind  = OPT_U64,
     .dest  = &flags.seed,
     .arg   = "N",
     .given = &flags.has_seed,
     .help  = "seed of the times of --rate and of generated prompts; also sent if given (default 0)"},
    {.name = "extra-body",
     .kind = OPT_STR,
     .dest = &flags.extra,
     .arg  = "JSON",
     .help = "an object whose members are added to every request, or replace ours"},
    {.name     = "model",
     .kind     = OPT_STR,
     .dest     = &flags.model,
     .arg      = "NAME",
     .variable = "MODEL_ID",
     .help     = "the model's name on the server (default: the first that it lists)"},
    {.name    = "endpoint",
     .kind    = OPT_CHOICE,
     .dest    = &flags.endpoint,
     .arg     = "NAME",
     .choices = endpoints,
     .help    = "chat or completions (default chat)"},
    {.name = "api-key", .kind = OPT_STR, .dest = &flags.api_key, .arg = "KEY", .help = "sent as a bearer token"},
    {.name = "header",
     .kind = OPT_LIST,
     .dest = &flags.headers,
     .arg  = "NAME: VALUE",
     .help = "an additional header; may be repeated"},
    {.name = "timeout",
     .kind = OPT_INT,
     .dest = &flags.timeout_s,
     .arg  = "SECONDS",
     .min  = 1,
     .max  = 86400,
     .help = "timeout of one request (default 600)"},
    {.name = "ca-file", .kind = OPT_STR, .dest = &flags.ca_file, .arg = "FILE", .help = "certificates to trust, PEM"},
    {.name = "insecure", .kind = OPT_FLAG, .dest = &flags.insecure, .help = "accept any certificate"},
    {.name = "compare",
     .kind = OPT_STR,
     .dest = &flags.compare,
     .arg  = "URL",
     .help = "a second server: both get the same requests in turns; reports ratios with 90% intervals"},
    {.name = "pairs",
     .kind = OPT_INT,
     .dest = &flags.pairs,
     .arg  = "N",
     .min  = 1,
     .max  = LOAD_MAX_PAIRS,
     .help = "turns of each server with --compare (default 5)"},
    {.name = "names", .kind = OPT_STR, .dest = &flags.names, .arg = "A,B", .help = "names of the servers in reports"},
    {.name     = "json",
     .kind     = OPT_STR,
     .dest     = &flags.json,
     .arg      = "FILE",
     .variable = "JSON_FILE",
     .help     = "write the results as JSON; -: to standard output"},
    {.name = "plot",
     .kind = OPT_STR,
     .dest = &flags.plot,
     .arg  = "FILE",
     .help = "plot tokens per second by users as SVG"},
    {.name = "title", .kind = OPT_STR, .dest = &flags.title, .arg = "TEXT", .help = "title of the plot"},
    OPT_LOGGING,
};
static const opt_spec usage = {
    "loadtest", "loadtest URL [FLAGS]",
    "Sends streamed requests to an OpenAI-compatible server, such as http://127.0.0.1:8080, and prints\n"
    "tokens per second, times to the first token, per token and to the end, and failures. Ctrl-C ends it with the\n"
    "results so far. The exit status is 1 when requests failed. docs/loadtest.md has more.",
    opts, COUNT(opts)};

typedef struct {
    load_ask     ask;
    load_prompts prompts;
    arena        mem;
    http_field   field[MAX_FIELDS];
    char         bearer[600];
    load_server *server[ARMS];
    const char  *name[ARMS];
    char         names[256];
    int          n_arms, n_pairs;
    int          level[MAX_LEVELS], n_levels, n_done; /* done: levels with figures */
    load_tally  *tally[MAX_LEVELS];                   /* [n_arms] */
    uint64_t     next_prompt;
    uint64_t     max_begun; /* prompts of the arm that asked the most in the current turn */
    bool         stopped;
    bool         line_is_open;
    const char  *now_name;
    int          now_users;
    double       now_start;
    int64_t      now_requests;
} job;

/* --- the requests --------------------------------------------------------------------------------*/
static bool is_header(str name, str value)
{
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.s[i] <= ' ' || (unsigned char)name.s[i] >= 0x7f) return false;
    for (size_t i = 0; i < value.n; i++)
        if ((unsigned char)value.s[i] < ' ' || value.s[i] == 0x7f) return false;
    return name.n > 0;
}

static bool add_header(job *j, str name, str value)
{
    while (value.n && value.s[0] == ' ') value = (str){value.s + 1, value.n - 1};
    if (!is_header(name, value)) return false;
    j->field[j->ask.n_fields++] = (http_field){name, value};
    return true;
}

static int choose_headers(job *j)
{
    add_header(j, STR("Content-Type"), STR("application/json"));
    add_header(j, STR("Accept"), STR("text/event-stream, application/json"));
    if (flags.api_key) {
        if (strlen(flags.api_key) > 512) return opt_usage(&usage, "--api-key: it is longer than 512 bytes");
        snprintf(j->bearer, sizeof j->bearer, "Bearer %s", flags.api_key);
        if (!add_header(j, STR("Authorization"), str_of(j->bearer)))
            return opt_usage(&usage, "--api-key: it has a control character");
    }
    for (int i = 0; i < flags.headers.n; i++) {
        str         line  = str_of(flags.headers.item[i]);
        const char *colon = strchr(line.s, ':');
        size_t      n     = colon ? (size_t)(colon - line.s) : 0;
        if (!colon || !add_header(j, (str){line.s, n}, (str){colon + 1, line.n - n - 1}))
            return opt_usage(&usage, "--header: '%s' is not NAME: VALUE", line.s);
    }
    j->ask.field = j->field;
    return 0;
}

static int choose_extra(job *j)
{
    err e = {0};
    if (!flags.extra) return 0;
    if (!json_parse(&j->ask.extra, &j->mem, str_of(flags.extra), NULL, &e))
        return opt_usage(&usage, "--extra-body: %s", e.text);
    if (j->ask.extra->kind != JSON_OBJECT) return opt_usage(&usage, "--extra-body: it is not an object");
    const json_value *stream = json_get(j->ask.extra, "stream");
    if (stream && !stream->b) return opt_usage(&usage, "--extra-body: \"stream\" must stay true to measure times");
    return 0;
}

static int choose_names(job *j)
{
    const char *at = flags.names;
    if (!flags.names) return 0;
    snprintf(j->names, sizeof j->names, "%s", flags.names);
    for (int i = 0; i < j->n_arms; i++) {
        str word = *at ? str_next_word(&at) : (str){0};
        if (!word.n) return opt_usage(&usage, "--names: give one name per server, separated by a comma");
        size_t from             = (size_t)(word.s - flags.names);
        j->name[i]              = j->names + from;
        j->names[from + word.n] = 0;
    }
    return *at ? opt_usage(&usage, "--names: there are more names than servers") : 0;
}

static int check_usage(job *j, int n_args, char **args)
{
    err e = {0};
    if (!n_args) return opt_usage(&usage, "the URL of the server is missing, such as http://127.0.0.1:8080");
    if (n_args > 1) return opt_usage(&usage, "unexpected argument '%s'", args[1]);
    if (!result_numbers(flags.concurrency, j->level, MAX_LEVELS, &j->n_levels, 1, LOAD_MAX_USERS, &e))
        return opt_usage(&usage, "--concurrency: %s", e.text);
    if (flags.rate > 0 && j->n_levels > 1) return opt_usage(&usage, "--rate takes one --concurrency, the maximum");
    if (flags.rate > 0 && !flags.has_concurrency) j->level[0] = USERS_WITH_RATE;
    if (flags.rate > 0 && flags.plot) return opt_usage(&usage, "--plot draws numbers of users, not a --rate");
    if (flags.prompts && flags.prompt_len) return opt_usage(&usage, "--prompts and --prompt-len exclude each other");
    if (flags.may_end && !flags.output_len) return opt_usage(&usage, "--may-end needs --output-len");
    if (flags.insecure && flags.ca_file) return opt_usage(&usage, "--insecure and --ca-file exclude each other");
    j->n_arms     = flags.compare ? 2 : 1;
    j->n_pairs    = flags.compare ? flags.pairs : 1;
    int      code = choose_names(j);
    http_url url;
    if (!code && !http_url_parse(&url, str_of(args[0]), &e)) code = opt_usage(&usage, "%s", e.text);
    if (!code && flags.compare && !http_url_parse(&url, str_of(flags.compare), &e))
        code = opt_usage(&usage, "--compare: %s", e.text);
    if (!code) code = choose_headers(j);
    return code ? code : choose_extra(j);
}

static bool read_prompts(job *j, err *e)
{
    if (flags.prompts) return load_prompts_read(&j->prompts, flags.prompts, e);
    load_prompts_init(&j->prompts);
    return true;
}

/* Two prompt lengths give the tokens per word and those that the chat format adds. */
static bool choose_words(job *j, err *e)
{
    int64_t few, many, words = flags.prompt_len > 64 ? flags.prompt_len : 64;
    if (!flags.prompt_len) return true;
    if (!load_measure_prompt(j->server[0], 16, &few, e) || !load_measure_prompt(j->server[0], (int)words, &many, e))
        return err_wrap(e, "cannot measure the length of a prompt");
    double each    = (double)(many - few) / (double)(words - 16);
    double wanted  = 16 + (flags.prompt_len - (double)few) / (each > 0.1 ? each : 0.1);
    j->ask.n_words = wanted < 1 ? 1 : wanted > 1 << 22 ? 1 << 22 : (int)lround(wanted);
    return true;
}

static bool open_servers(job *j, const char *url, err *e)
{
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    j->ask.is_chat    = flags.endpoint == 0;
    j->ask.model      = flags.model;
    j->ask.output_len = flags.output_len;
    j->ask.may_end    = flags.may_end;
    j->ask.has_temp   = flags.has_temp;
    j->ask.temp       = flags.temp;
    j->ask.has_seed   = flags.has_seed;
    j->ask.seed       = flags.seed;
    j->ask.unique     = flags.unique;
    j->ask.all_turns  = flags.all_turns;
    j->ask.prompts    = &j->prompts;
    http_client_options_init(&j->ask.http);
    j->ask.http.ca_file  = flags.ca_file;
    j->ask.http.insecure = flags.insecure;
    j->ask.http.total_s  = flags.timeout_s;
    if (!read_prompts(j, e)) return false;
    for (int i = 0; i < j->n_arms; i++) {
        if (!load_server_open(&j->server[i], i ? flags.compare : url, &j->ask, e)) return false;
        if (!flags.names) j->name[i] = load_server_name(j->server[i]);
    }
    return choose_words(j, e);
}

/* --- running ------------------------------------------------------------------------------------*/
static volatile sig_atomic_t was_interrupted;
static void                  on_signal(int sig) { was_interrupted = sig; }

/* Handles Ctrl-C; a second one ends the process. */
static void listen_for_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static void end_line(job *j)
{
    if (j->line_is_open) fprintf(stderr, "\r%100s\r", "");
    j->line_is_open = false;
}

static bool show_progress(void *ctx, int64_t done, int64_t running, int64_t tokens)
{
    job *j = ctx;
    if (isatty(STDERR_FILENO)) {
        char of[32] = "", text[160];
        if (j->now_requests) snprintf(of, sizeof of, " of %lld", (long long)j->now_requests);
        snprintf(text, sizeof text, "%s, %d users: %lld%s done, %lld running, %.0f tok/s", j->now_name, j->now_users,
                 (long long)done, of, (long long)running, (double)tokens / (clock_s() - j->now_start));
        fprintf(stderr, "\r%-99.99s", text);
        j->line_is_open = true;
    }
    return !was_interrupted;
}

static load_plan plan_of(job *j, int level)
{
    int users    = j->level[level];
    int requests = users * 8 > 32 ? users * 8 : 32;
    if (flags.rate > 0) requests = 100;
    if (flags.has_requests) requests = flags.requests;
    bool by_time = flags.duration_s > 0 && !flags.has_requests;
    return (load_plan){.users      = users,
                       .rate       = (double)flags.rate,
                       .requests   = by_time ? 0 : requests,
                       .duration_s = (double)flags.duration_s,
                       .first      = j->next_prompt,
                       .seed       = flags.seed,
                       .go_on      = show_progress,
                       .ctx        = j};
}

static bool run_one(job *j, int arm, const load_plan *plan, load_run *r, err *e)
{
    j->now_name     = j->name[arm];
    j->now_users    = plan->users;
    j->now_requests = plan->requests;
    j->now_start    = clock_s();
    bool ok         = load_drive(j->server[arm], plan, r, e);
    end_line(j);
    j->stopped = j->stopped || r->stopped;
    return ok;
}

/* Runs the warm-up requests. Fails if they fail. */
static bool warm_up(job *j, const load_plan *plan, int arm, err *e)
{
    load_plan p = *plan;
    load_run  r;
    if (!flags.warmup || was_interrupted) return true;
    p.requests   = flags.warmup;
    p.users      = flags.warmup < p.users ? flags.warmup : p.users;
    p.rate       = 0;
    p.duration_s = 0;
    p.first      = UINT32_MAX - (uint64_t)flags.warmup; /* prompts of its own, as far as they are made up */
    bool ok      = run_one(j, arm, &p, &r, e);
    if (ok && r.failed)
        ok = err_set(e, ERR_IO, "%s: %lld of %lld warm-up requests failed: %.300s", j->name[arm], (long long)r.failed,
                     (long long)r.asked, r.reason[0].why.text);
    load_run_deinit(&r);
    return ok;
}

/* Runs one server of a pair. All servers of a pair get the same prompts. */
static bool run_arm(job *j, const measure_run *at, load_plan *plan, err *e)
{
    if (at->first) j->max_begun = 0;
    plan->seed   = flags.seed + (uint64_t)at->turn;
    load_run r   = {0};
    bool     ok  = run_one(j, at->arm, plan, &r, e) && load_tally_add(&j->tally[at->cell][at->arm], &r, e);
    bool     bad = r.gave_up;
    if ((uint64_t)r.begun > j->max_begun) j->max_begun = (uint64_t)r.begun;
    load_run_deinit(&r);
    if (at->last) j->next_prompt += j->max_begun;
    return ok && (!bad || err_set(e, ERR_IO, "%s: too many requests failed in a row", j->name[at->arm]));
}

static bool run_levels(job *j, err *e)
{
    measure_plan plan = {.n_cells = j->n_levels, .n_arms = j->n_arms, .n_turns = j->n_pairs, .n_warm_up = 1};
    measure_loop loop;
    measure_run  at;
    bool         ok = true;
    for (measure_begin(&loop, &plan); ok && !j->stopped && measure_next(&loop, &at);) {
        load_plan load = plan_of(j, at.cell);
        ok             = at.warm_up ? warm_up(j, &load, at.arm, e) : run_arm(j, &at, &load, e);
        if (at.warm_up && was_interrupted) j->stopped = true;
        if (at.warm_up && at.last && !j->stopped) j->n_done = at.cell + 1;
    }
    return ok;
}

/* --- results ------------------------------------------------------------------------------------*/
static void put_what(job *j, buf *out)
{
    for (int i = 0; i < j->n_arms; i++)
        buf_printf(out, "%s%s (%s)", i ? " and " : "", j->name[i], load_server_model(j->server[i]));
    buf_printf(out, ", %s", flags.endpoint ? "text completions" : "chat completions");
    if (flags.prompts) buf_printf(out, ", %zu prompts of %s", j->prompts.n, flags.prompts);
    if (flags.prompt_len) buf_printf(out, ", prompts of about %d tokens", flags.prompt_len);
    if (flags.output_len) buf_printf(out, ", answers of %s%d tokens", flags.may_end ? "up to " : "", flags.output_len);
    if (flags.has_temp) buf_printf(out, ", temperature %g", (double)flags.temp);
    if (flags.rate > 0) buf_printf(out, ", %g requests a second", (double)flags.rate);
    if (flags.compare) buf_printf(out, "; medians of %d pairs, ratios with 90%% intervals", flags.pairs);
    buf_putc(out, '\n');
}

static void put_table(job *j, buf *out)
{
    put_what(j, out);
    load_put_head(out);
    for (int k = 0; k < j->n_done; k++) {
        char users[32];
        if (flags.rate > 0)
            snprintf(users, sizeof users, "%.5g/s", (double)flags.rate);
        else
            snprintf(users, sizeof users, "%d", j->level[k]);
        for (int i = 0; i < j->n_arms; i++) {
            load_put_row(out, users, j->name[i], &j->tally[k][i]);
            load_put_reasons(out, &j->tally[k][i]);
        }
        if (j->n_arms == 2) load_put_ratios(out, users, j->name[0], j->name[1], &j->tally[k][0], &j->tally[k][1]);
    }
    if (j->stopped) buf_puts(out, "Interrupted: results so far.\n");
}

static void put_options(json_writer *w)
{
    json_member_str(w, "endpoint", endpoints[flags.endpoint]);
    json_member_str(w, "prompts", flags.prompts);
    json_member_int(w, "prompt_len", flags.prompt_len);
    json_member_int(w, "output_len", flags.output_len);
    json_key(w, "temperature");
    if (flags.has_temp)
        json_put_real(w, (double)flags.temp);
    else
        json_put_null(w);
    json_member_real(w, "rate", (double)flags.rate);
    json_member_real(w, "duration_s", (double)flags.duration_s);
}

static void put_cell(job *j, json_writer *w, int k)
{
    json_begin_object(w);
    json_member_int(w, "users", j->level[k]);
    json_key(w, "arms");
    json_begin_array(w);
    for (int i = 0; i < j->n_arms; i++) load_put_json(w, j->name[i], &j->tally[k][i]);
    json_end(w);
    if (j->n_arms == 2) load_put_json_ratios(w, &j->tally[k][0], &j->tally[k][1]);
    json_end(w);
}

static void put_json(job *j, json_writer *w)
{
    json_member_str(w, "version", TANDEM_VERSION);
    json_key(w, "servers");
    json_begin_array(w);
    for (int i = 0; i < j->n_arms; i++) {
        json_begin_object(w);
        json_member_str(w, "name", j->name[i]);
        json_member_str(w, "address", load_server_name(j->server[i]));
        json_member_str(w, "model", load_server_model(j->server[i]));
        json_end(w);
    }
    json_end(w);
    put_options(w);
    json_member_int(w, "pairs", j->n_pairs);
    json_member_bool(w, "interrupted", j->stopped);
    json_key(w, "cells");
    json_begin_array(w);
    for (int k = 0; k < j->n_done; k++) put_cell(j, w, k);
    json_end(w);
}

static bool draw_plot(str json, err *e)
{
    plot *p = xnew(plot);
    buf   out;
    buf_init(&out, (size_t)16 << 20);
    snprintf(p->title, sizeof p->title, "%s", flags.title);
    bool ok = plot_add(p, json, NULL, e) && plot_svg(p, &out, e) && result_write(flags.plot, buf_str(&out), e);
    buf_deinit(&out);
    mem_free(p);
    return ok;
}

static bool write_report(job *j, err *e)
{
    result_doc doc;
    buf        table;
    bool       to_stdout = flags.json && !strcmp(flags.json, "-");
    buf_init(&table, (size_t)16 << 20);
    put_table(j, &table);
    fwrite(table.p, 1, table.n, to_stdout ? stderr : stdout);
    buf_deinit(&table);
    put_json(j, result_begin(&doc, "loadtest"));
    json_end(&doc.w);
    bool ok = !flags.plot || draw_plot(buf_str(&doc.text), e);
    if (to_stdout) cli_print(buf_str(&doc.text)), cli_print(STR("\n"));
    if (flags.json && !to_stdout) ok = result_write(flags.json, buf_str(&doc.text), e) && ok;
    buf_deinit(&doc.text);
    return ok;
}

/* --- the command --------------------------------------------------------------------------------*/
static int64_t count_failed(const job *j)
{
    int64_t n = 0;
    for (int k = 0; k < j->n_done; k++)
        for (int i = 0; i < j->n_arms; i++) n += j->tally[k][i].failed;
    return n;
}

static int run_loadtest(job *j, const char *url)
{
    err  e = {0}, other = {0};
    bool ok = (!flags.json || !strcmp(flags.json, "-") || cli_check_output(flags.json, &e)) &&
              (!flags.plot || cli_check_output(flags.plot, &e)) && open_servers(j, url, &e);
    if (!ok) return cli_fail(&e);
    listen_for_signals();
    ok           = run_levels(j, &e);
    bool written = !j->n_done || write_report(j, &other);
    if (!written) cli_fail(&other);
    if (!ok) return cli_fail(&e);
    return j->stopped ? 130 : !written || count_failed(j) > 0;
}

int cmd_loadtest(int argc, char **args)
{
    int  n_args, code;
    job *j = xnew(job);
    arena_init(&j->mem, (size_t)64 << 20);
    if (opt_parse(&usage, argc, args, &n_args, &code) && !(code = check_usage(j, n_args, args))) {
        for (int k = 0; k < j->n_levels; k++) j->tally[k] = xnew_n(load_tally, (size_t)j->n_arms);
        code = run_loadtest(j, args[0]);
    }
    for (int k = 0; k < j->n_levels; k++)
        for (int i = 0; j->tally[k] && i < j->n_arms; i++) load_tally_deinit(&j->tally[k][i]);
    for (int k = 0; k < j->n_levels; k++) mem_free(j->tally[k]);
    for (int i = 0; i < ARMS; i++) load_server_close(j->server[i]);
    load_prompts_deinit(&j->prompts);
    arena_deinit(&j->mem);
    mem_free(j);
    return code;
}
