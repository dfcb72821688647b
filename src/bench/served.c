/* tandem bench serve: the server of `tandem serve`, with drafters that an oracle corrects (bench/oracle.h).
 *
 * The oracle learns the text of each response that ends. So a load test first asks with plain decoding, then with each
 * method, with the same prompts and seeds: the texts are equal whatever the method is. The prefix cache is off, because
 * the prompts come again. */
#include "base/mem.h"
#include "bench/bench.h"
#include "bench/oracle.h"
#include "cli/service.h"
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>

enum { WAKE_MS = 8 }; /* as in `tandem serve` */

static struct {
    service_flags service;
    const char   *accept;
    int           port;
} flags = {.service = SERVICE_DEFAULTS, .port = 8080};

static const option opts[] = {
    OPT_SERVICE(flags.service),
    {.name = "accept",
     .kind = OPT_STR,
     .dest = &flags.accept,
     .arg  = "TOKENS",
     .help = "simulated acceptance, as in bench spec: one number"},
    {.name = "port",
     .kind = OPT_INT,
     .dest = &flags.port,
     .arg  = "N",
     .min  = 0,
     .max  = 65535,
     .help = "port of 127.0.0.1 to listen on; 0: any that is free (default 8080)"},
    OPT_LOGGING_FROM("info"),
};
static const opt_spec usage = {
    "bench serve", "bench serve [-m MODEL] [--draft DRAFTER] --accept TOKENS [FLAGS]",
    "Serves a model whose drafters have a simulated acceptance, for load tests of weights that are not trained. Draft\n"
    "tokens are right only in responses that were given before: ask with \"speculative\": \"off\" first, then again.",
    opts, COUNT(opts)};

typedef struct {
    oracle *o;
    double  accept;
} served;

static void learn(void *ctx, const tandem_job *j)
{
    tok_ids text;
    int32_t n_prompt;
    tok_ids_init(&text, TANDEM_MAX_PROMPT);
    engine_job_text(j, &text, &n_prompt);
    if (!text.failed) oracle_learn(ctx, text.p, text.n);
    tok_ids_deinit(&text);
}

static bool open_engine(void *ctx, const settings *changed, tandem **out, void (*wake)(void *wake_ctx), void *wake_ctx,
                        err *e)
{
    served       *b    = ctx;
    engine_extra  more = {.need_tok = "the model has no tokenizer",
                          .changed  = changed,
                          .watch    = {.wrap = oracle_wrap, .ended = learn, .ctx = b->o}};
    service_extra x    = {.name      = cli_id(flags.service.engine.path),
                          .engine    = more,
                          .no_prefix = true,
                          .wake_ms   = WAKE_MS,
                          .wake      = wake,
                          .wake_ctx  = wake_ctx};
    if (!service_open(out, &flags.service, &x, e)) return false;
    if (oracle_accept(b->o, b->accept, e)) return true;
    tandem_close(*out);
    *out = NULL;
    return false;
}

static void print_ready(void *ctx, const http_server *h)
{
    const server_options *o = ctx;
    fprintf(stderr, "tandem: %s is served at http://127.0.0.1:%d\n", o->model, http_port(h));
}

static bool serve(served *b, err *e)
{
    server_options o;
    if (!cli_resolve_model(&flags.service.engine.path, e) || !service_find_drafters(&flags.service, NULL, e))
        return false;
    server_options_init(&o);
    o.model      = cli_id(flags.service.engine.path);
    o.http.port  = flags.port;
    o.open       = open_engine;
    o.open_ctx   = b;
    o.exits_next = true;
    o.ready      = print_ready;
    o.ready_ctx  = &o;
    return server_run(&o, e);
}

int bench_serve(int argc, char **args)
{
    int    n_args, code;
    err    e = {0};
    served b = {0};
    if (!opt_parse(&usage, argc, args, &n_args, &code)) return code;
    if (n_args) return opt_usage(&usage, "'%s' is not a flag", args[0]);
    if (!service_check(&flags.service, &usage)) return 2;
    if (!flags.accept || !str_to_f64(str_of(flags.accept), &b.accept) || !(b.accept >= 1 && b.accept <= 1 + DRAFT_MAX))
        return opt_usage(&usage, "--accept: give a number from 1 to %d", 1 + DRAFT_MAX);
    b.o     = oracle_new(1);
    bool ok = serve(&b, &e);
    oracle_free(b.o);
    return ok ? 0 : cli_fail(&e);
}
