/* tests/sched/stage.h - a model in the engine, with its drafters and prompts, and answers to compare. */
#ifndef TANDEM_TESTS_SCHED_STAGE_H
#define TANDEM_TESTS_SCHED_STAGE_H
#include "../spec/rig.h"
#include "tandem.h"

enum { MAX_PROMPTS = 512 };

typedef struct {
    rig        texts; /* prompts only */
    char       path[4][4096];
    tandem_ids prompt[MAX_PROMPTS]; /* short ones first, then those of some hundred tokens */
    int        n_prompts, n_short;
    /* Of nano-vision: the pictures of a prompt, else NULL. Two of three prompts have one. */
    struct media_prompt *media[MAX_PROMPTS];
} prompt_set;
void prompts_open(prompt_set *p, int n_short, int n_long);
void prompts_close(prompt_set *p);

extern const char      *stage_kv;    /* types of K and V in all layers; NULL: the default */
extern const rig_model *stage_model; /* NULL: nano */
/* Sets defaults, the model's path, and `drafters` to both of its drafters. */
void stage_options(tandem_options *o, prompt_set *p, tandem_drafter drafters[2]);
/* With random weights: adds a text for the oracle, which then wraps the drafters of engines that are opened. */
void    stage_learn(const int32_t *prompt, size_t n_prompt, const int32_t *text, size_t n);
tandem *need_engine(const tandem_options *o); /* ends the program when there is none */
void    need_set(tandem *t, const char *name, const char *value);
/* Puts a picture of n x n soft tokens, which depends on the seed, before the question of a prompt of nano. */
struct media_prompt *stage_add_picture(tandem_ids *prompt, arena *mem, int n, uint64_t seed);
int                  stage_picture_rows(
                     void); /* rows of the largest picture of prompts_open, which run in one step; 0: there are none */
/* As tandem_submit, with the pictures of the prompt. */
bool     stage_submit(tandem *t, const prompt_set *p, const tandem_request *r, tandem_job **out, tandem_error *e);
uint64_t draw(uint64_t *state, uint64_t n); /* 0 .. n - 1 */

/* How text is picked; with the prompt, all that decides it. */
typedef struct {
    const char *name;
    float       temp, top_p, repeat, presence, frequency;
    int         top_k;
    bool        biased, logprobs, past_stops;
} sampling_way;
extern const sampling_way sampling_ways[];
enum { N_WAYS = 4 };
void request_for(tandem_request *r, const tandem *t, const tandem_ids *prompt, int way, uint64_t seed, int max_tokens);

/* An answer as a reader sees it. */
typedef struct {
    int32_t       token[RIG_MAX_TOKENS];
    float         logprob[RIG_MAX_TOKENS];
    int           n;
    tandem_result result; /* when it is done */
} reply;
int  reply_take(reply *to, tandem_job *j, int max); /* what is there now; returns how many */
void reply_rest(reply *to, tandem_job *j);          /* until it is done; the job is released */
bool reply_of(reply *to, tandem *t, const prompt_set *p, const tandem_request *r, tandem_error *e);
/* a is b, or where it was cut off early: b's beginning. */
bool reply_same(const reply *a, const reply *b);
bool reply_begins(const reply *a, const reply *b);
#endif
