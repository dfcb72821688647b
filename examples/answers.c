/* Two questions at once to one model: each answer is what it would be alone.
 *
 *   cc examples/answers.c $(pkg-config --cflags --libs tandem) -o answers
 *   ./answers MODEL [DRAFTER...] */
#include <stdio.h>
#include <string.h>

#include "tandem.h"

static const char *const questions[] = {"What is 27 plus 58?", "Sort these numbers: 9 2 7 4"};
enum { QUESTIONS = 2, MAX_DRAFTERS = 2 };

static int fail(const tandem_error *e)
{
    fprintf(stderr, "answers: %s\n", e->text);
    return 1;
}

static bool ask(tandem *t, const char *question, tandem_job **job, tandem_error *e)
{
    tandem_message message = {"user", question};
    tandem_request r;
    tandem_ids     prompt;
    if (!tandem_chat_prompt(t, &message, 1, false, &prompt, NULL, e)) return false;
    tandem_request_init(t, &r);
    r.ids        = prompt.p;
    r.n_ids      = prompt.n;
    r.temp       = 0;
    r.max_tokens = 200;
    bool ok      = tandem_submit(t, &r, job, e);
    tandem_ids_free(&prompt); /* the engine has its own */
    return ok;
}

/* Streams one answer. The other one is generated meanwhile. */
static bool show(const char *question, tandem_job *job, tandem_error *e)
{
    char   text[256];
    size_t n;
    printf("%s\n", question);
    while ((n = tandem_read(job, text, sizeof text)) > 0) fwrite(text, 1, n, stdout);
    const tandem_result *r = tandem_job_result(job);
    const tandem_usage  *u = &r->usage;
    *e                     = r->error;
    printf("\n[%s: %d + %d tokens, %lld of %lld guesses right]\n\n", tandem_finish_name(r->finish), u->prompt_tokens,
           u->completion_tokens, (long long)u->spec.accepted, (long long)u->spec.drafted);
    return r->finish != TANDEM_FINISH_ERROR;
}

int main(int argc, char **argv)
{
    tandem        *t;
    tandem_job    *job[QUESTIONS] = {0};
    tandem_error   e              = {0};
    tandem_options o;
    tandem_drafter drafters[MAX_DRAFTERS];
    if (argc < 2 || argc > 2 + MAX_DRAFTERS) {
        fprintf(stderr, "usage: answers MODEL [DRAFTER...]\n");
        return 2;
    }
    memset(drafters, 0, sizeof drafters);
    tandem_options_init(&o);
    o.path       = argv[1];
    o.n_ctx      = 512;
    o.max_lanes  = QUESTIONS;
    o.drafters   = drafters;
    o.n_drafters = argc - 2;
    for (int i = 0; i < o.n_drafters; i++) drafters[i].path = argv[2 + i];
    if (!tandem_open(&t, &o, &e)) return fail(&e);
    bool ok = true;
    for (int i = 0; ok && i < QUESTIONS; i++) ok = ask(t, questions[i], &job[i], &e);
    for (int i = 0; ok && i < QUESTIONS; i++) ok = show(questions[i], job[i], &e);
    for (int i = 0; i < QUESTIONS; i++) tandem_release(job[i]);
    tandem_close(t);
    return ok ? 0 : fail(&e);
}
