/* Hostile files by the thousand: mutate gguf|safetensors|drafters COUNT [SEED]
 *
 * Takes good files, damages their headers (bits, bytes, big numbers, cuts, repeats), and opens each in a child
 * process as the program would: checkpoint, tokenizer, model, one step. Drafters are nano's two in turn: each is
 * opened for nano, observes a prompt and makes a draft. A child must end by itself with "accepted" or with a
 * sentence, within two seconds and within the file's size plus 64 MiB. At least half must be refused. */
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "chat/gemma4_inside.h"
#include "gguf/build_gguf.h"
#include "model/drafter.h"
#include "model/tiny_model.h"
#include "test.h"
#include "tok/tok.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
enum { CHECK_MEMORY = 0 }; /* the sanitizer's own memory would be counted */
#else
enum { CHECK_MEMORY = 1 };
#endif
enum { ACCEPTED = 0, REFUSED = 1, SILENT = 3, MAX_SEEDS = 8, CONTEXT = 64, PROMPT = 20 };
typedef enum { GGUF_MODELS, DIR_MODELS, DRAFTERS, KINDS } kind;
static const char *const kind_names[] = {"gguf", "safetensors", "drafters"};
static const size_t      SPARE_BYTES  = (size_t)64 << 20;

typedef struct {
    buf    bytes;
    size_t header; /* mutations land below this */
    buf    config; /* for safetensors: the config.json that goes with it */
} sample;

typedef struct {
    sample   seed[MAX_SEEDS];
    int      n_seeds;
    uint64_t rand;
    kind     kind;
    target  *target; /* for drafters: opened once, each child has a copy */
    kv_pool *kv;
    kv_seq  *seq;
    step     prompt;
    char     dir[128], file[160], config[160];
    long     own_kib, max_kib; /* memory before a child opens its file; the most that a child had */
} runner;

/* --- seeds --------------------------------------------------------------------------------------*/
static void put_tokenizer(gguf_builder *b, int n)
{
    char        text[256][16];
    const char *tokens[256];
    int32_t     type[256];
    for (int i = 0; i < n; i++) {
        if (i < 4)
            snprintf(text[i], sizeof text[i], "%s", (const char *[]){"<pad>", "<eos>", "<bos>", "<unk>"}[i]);
        else
            snprintf(text[i], sizeof text[i], "%c%s", 'a' + i % 26, i < 30 ? "" : i < 56 ? "b" : "c");
        tokens[i] = text[i];
        type[i]   = i < 4 ? 3 : 1;
    }
    gguf_builder_str(b, "tokenizer.ggml.model", "gemma4");
    gguf_builder_arr_str(b, "tokenizer.ggml.tokens", tokens, (size_t)n);
    gguf_builder_arr_i32(b, "tokenizer.ggml.token_type", type, (size_t)n);
    gguf_builder_arr_str(b, "tokenizer.ggml.merges", (const char *[]){"e b", "f b", "g c"}, 3);
    gguf_builder_u32(b, "tokenizer.ggml.bos_token_id", 2);
    gguf_builder_u32(b, "tokenizer.ggml.eos_token_id", 1);
}

static void add_gguf(runner *r, const tiny_model *m)
{
    sample      *s = &r->seed[r->n_seeds++];
    gguf_builder b;
    gguf_builder_init(&b);
    tiny_model_build(&b, m);
    put_tokenizer(&b, m->n_vocab);
    gguf_builder_bytes(&b, &s->bytes);
    s->header = s->bytes.n - b.data.n;
    gguf_builder_deinit(&b);
}

static void need(bool ok, const err *e)
{
    if (ok) return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static void read_whole(buf *out, const char *rel)
{
    file_map m;
    err      e = {0};
    need(file_map_open(&m, test_path(rel), &e), &e);
    buf_init(out, m.n);
    buf_put(out, m.p, m.n);
    file_map_close(&m);
}

static void add_safetensors(runner *r, const char *name)
{
    sample  *s = &r->seed[r->n_seeds++];
    uint64_t n;
    char     rel[128];
    snprintf(rel, sizeof rel, "tests/golden/%s/model.safetensors", name);
    read_whole(&s->bytes, rel);
    snprintf(rel, sizeof rel, "tests/golden/%s/config.json", name);
    read_whole(&s->config, rel);
    memcpy(&n, s->bytes.p, 8);
    s->header = 8 + (size_t)n;
}

static void add_drafter(runner *r, const char *rel)
{
    sample *s = &r->seed[r->n_seeds++];
    gguf   *g;
    err     e = {0};
    read_whole(&s->bytes, rel);
    need(gguf_open_bytes(&g, buf_str(&s->bytes), &e), &e);
    s->header = s->bytes.n;
    for (size_t i = 0; i < tensor_count(gguf_tensors(g)); i++) {
        size_t at = (size_t)((const char *)tensor_at(gguf_tensors(g), i)->data - s->bytes.p);
        if (at < s->header) s->header = at;
    }
    gguf_close(g);
}

/* nano, and the step that children show to their drafter. */
static void open_target(runner *r)
{
    checkpoint   *c;
    err           e   = {0};
    model_options opt = {.device = "cpu", .n_threads = 1, .max_rows = 32};
    need(checkpoint_open(&c, test_path("models/nano/target.gguf"), &e) && model_open(&r->target, c, &opt, &e), &e);
    checkpoint_close(c);
    kv_pool_spec spec = {
        .classes = r->target->kv_class, .n_classes = r->target->n_kv_classes, .max_lanes = 1, .max_slots = CONTEXT};
    need(kv_bytes_for(&spec, CONTEXT, &spec.max_bytes) && kv_pool_new(&r->kv, r->target->o, &spec, &e), &e);
    r->seq = kv_seq_new(r->kv, 0);
    need(kv_seq_grow(r->seq, PROMPT, &e), &e);
    step_init(&r->prompt, PROMPT);
    for (int i = 0; i < PROMPT; i++) step_add(&r->prompt, kv_seq_lane(r->seq), i, 281 + i, i == PROMPT - 1);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    r->own_kib = use.ru_maxrss;
}

static void make_seeds(runner *r)
{
    if (r->kind == DRAFTERS) {
        open_target(r);
        add_drafter(r, "models/nano/dflash.gguf");
        add_drafter(r, "models/nano/mtp.gguf");
    } else if (r->kind == GGUF_MODELS) {
        add_gguf(r, &(tiny_model){.type = QUANT_F32, .n_embd = 32, .n_layers = 3, .n_vocab = 64});
        add_gguf(r, &(tiny_model){.type = QUANT_Q8_0, .n_embd = 32, .n_layers = 3, .n_vocab = 64, .n_experts = 4});
        add_gguf(r, &(tiny_model){.type = QUANT_Q4_0, .n_embd = 64, .n_layers = 6, .n_vocab = 64, .n_ple = 32});
        add_gguf(
            r,
            &(tiny_model){
                .type = QUANT_BF16, .n_embd = 32, .n_layers = 3, .n_vocab = 64, .n_experts = 4, .split_experts = true});
    } else {
        add_safetensors(r, "gemma4-dense");
        add_safetensors(r, "gemma4-ple");
    }
}

/* --- mutations ----------------------------------------------------------------------------------*/
static uint64_t odd_number(runner *r, size_t file_bytes)
{
    uint64_t pick[] = {0,
                       1,
                       255,
                       INT32_MAX,
                       UINT32_MAX,
                       (uint64_t)1 << 32,
                       (uint64_t)1 << 62,
                       (uint64_t)1 << 63,
                       UINT64_MAX,
                       UINT64_MAX - 31,
                       file_bytes,
                       test_rand(&r->rand) % 4096};
    return pick[test_rand(&r->rand) % COUNT(pick)];
}

static void overwrite(buf *b, size_t at, const void *p, size_t n)
{
    if (at + n <= b->n) memcpy(b->p + at, p, n);
}

/* Moves the rest of the file by `n` bytes: a span is repeated or left out. */
static void shift(buf *b, size_t at, size_t n, bool repeat)
{
    if (at + n > b->n) return;
    buf c;
    buf_init(&c, b->max + n);
    buf_put(&c, b->p, repeat ? at + n : at);
    buf_put(&c, b->p + (repeat ? at : at + n), b->n - (repeat ? at : at + n));
    buf_clear(b);
    buf_put(b, c.p, c.n);
    buf_deinit(&c);
}

static void mutate_once(runner *r, buf *b, size_t header)
{
    static const char json_bytes[] = "0123456789[]{},:\"-.eE \\";
    size_t            at           = test_rand(&r->rand) % header;
    uint64_t          v            = odd_number(r, b->n);
    if (header > b->n) header = b->n ? b->n : 1;
    if (at >= b->n) return;
    switch (test_rand(&r->rand) % 8) {
    case 0: b->p[at] = (char)(b->p[at] ^ 1 << test_rand(&r->rand) % 8); break;
    case 1: b->p[at] = (char)test_rand(&r->rand); break;
    case 2: b->p[at] = json_bytes[test_rand(&r->rand) % (sizeof json_bytes - 1)]; break;
    case 3: overwrite(b, at, &v, 8); break;
    case 4: overwrite(b, at, &v, 4); break;
    case 5: b->n = test_rand(&r->rand) % 4 ? at : test_rand(&r->rand) % b->n; break;
    case 6: shift(b, at, 1 + test_rand(&r->rand) % 40, true); break;
    default: shift(b, at, 1 + test_rand(&r->rand) % 40, false); break;
    }
}

/* --- the child ----------------------------------------------------------------------------------*/
static bool run_one_step(const checkpoint *c, err *e)
{
    target       *m;
    kv_pool      *kv  = NULL;
    step         *s   = &(step){0};
    model_options opt = {.device = "cpu", .n_threads = 1, .max_rows = 2};
    if (!model_open(&m, c, &opt, e)) return false;
    kv_pool_spec spec = {.classes = m->kv_class, .n_classes = m->n_kv_classes, .max_lanes = 1, .max_slots = 32};
    if (!kv_bytes_for(&spec, 32, &spec.max_bytes) || !kv_pool_new(&kv, m->o, &spec, e)) return false;
    kv_seq *seq = kv_seq_new(kv, 0);
    if (!kv_seq_grow(seq, 2, e)) return false;
    step_init(s, 2);
    for (int i = 0; i < 2; i++) step_add(s, 0, i, 5 % m->n_vocab, true);
    if (!m->step(m, kv, s, e)) return false;
    m->head(m, 0, 2);
    return true;
}

/* Uses a drafter as the loop does: observes a prompt in two pieces, then asks for a draft of the maximum length. */
static bool run_one_draft(const runner *r, const checkpoint *c, err *e)
{
    drafter        *d;
    draft_lane     *lane;
    target         *m   = r->target;
    drafter_options opt = {.max_lanes = 1, .keep_rows = true};
    const step     *s   = &r->prompt;
    int32_t         row[PROMPT];
    draft_job      *job = xnew(draft_job);
    for (int i = 0; i < PROMPT; i++) row[i] = i;
    if (!drafter_open(&d, m, c, &opt, e) || !d->lane_new(d, &lane, e)) return false;
    if (!m->capture(m, d->capture_id, d->n_capture, e) || !m->step(m, r->kv, s, e)) return false;
    if (!d->observe(d, lane, &(draft_rows){.row = row, .n = 8, .hidden = -1}, e)) return false;
    if (!d->observe(d, lane, &(draft_rows){.pos = 8, .row = row + 8, .n = PROMPT - 8}, e)) return false;
    *job = (draft_job){.lane   = lane,
                       .text   = s->token,
                       .n_text = PROMPT + 1,
                       .params = {.top_p = 1},
                       .n_want = d->max_draft,
                       .n_top  = 4,
                       .soft   = 1};
    if (!d->draft(d, r->kv, &job, 1, e)) return false;
    for (int i = 0; i < job->n; i++)
        if (job->token[i] < 0 || job->token[i] >= m->n_vocab) abort();
    return job->n > 0 || err_set(e, ERR_INPUT, "no draft tokens"); /* an undamaged drafter has some */
}

static int open_everything(const runner *r, err *e)
{
    checkpoint *c;
    tok        *t;
    err         tok_err = {0};
    if (!checkpoint_open(&c, r->kind == DIR_MODELS ? r->dir : r->file, e)) return e->text[0] ? REFUSED : SILENT;
    if (r->kind == DRAFTERS) return run_one_draft(r, c, e) ? ACCEPTED : e->text[0] ? REFUSED : SILENT;
    if (c->gguf && !tok_from_gguf(&t, c->gguf, &gemma4_tokens, &tok_err) && !tok_err.text[0]) return SILENT;
    if (!run_one_step(c, e)) return e->text[0] ? REFUSED : SILENT;
    return c->gguf && tok_err.text[0] ? REFUSED : ACCEPTED;
}

static void child(const runner *r)
{
    err e = {0};
    alarm(2);
    if (!freopen("/dev/null", "w", stdout)) _exit(9);
    _exit(open_everything(r, &e));
}

/* --- the parent ---------------------------------------------------------------------------------*/
static void copy_file(const char *from, const char *to)
{
    file_map m;
    err      e;
    FILE    *f = fopen(to, "wb");
    if (!f || !file_map_open(&m, from, &e) || fwrite(m.p, 1, m.n, f) != m.n) exit(1);
    fclose(f);
    file_map_close(&m);
}

static void write_file(const char *path, const buf *b)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->p, 1, b->n, f) != b->n) {
        perror(path);
        exit(1);
    }
    fclose(f);
}

/* Returns ACCEPTED, REFUSED, or -1 after saying what went wrong; the file is kept then. */
static int judge(runner *r, int n, size_t file_bytes)
{
    struct rusage use;
    int           status;
    pid_t         pid = fork();
    if (pid == 0) child(r);
    while (wait4(pid, &status, 0, &use) < 0 && errno == EINTR) {}
    int         code  = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    size_t      limit = (size_t)r->own_kib * 1024 + file_bytes + SPARE_BYTES;
    bool        fat   = CHECK_MEMORY && (size_t)use.ru_maxrss * 1024 > limit;
    const char *wrong = !WIFEXITED(status) && WTERMSIG(status) == SIGALRM ? "took over 2 seconds"
                        : code == SILENT                                  ? "was refused without a sentence"
                        : code != ACCEPTED && code != REFUSED             ? "crashed"
                        : fat                                             ? "took too much memory"
                                                                          : NULL;
    if (use.ru_maxrss > r->max_kib) r->max_kib = use.ru_maxrss;
    if (!wrong) return code;
    char kept[128];
    snprintf(kept, sizeof kept, "/tmp/tandem-mutant-%d.%s", n, r->kind == DIR_MODELS ? "safetensors" : "gguf");
    copy_file(r->file, kept);
    if (r->kind == DIR_MODELS) copy_file(r->config, "/tmp/tandem-mutant-config.json");
    fprintf(stderr, "mutant %d %s (%ld KiB): kept as %s\n", n, wrong, use.ru_maxrss, kept);
    return -1;
}

static void open_dir(runner *r)
{
    snprintf(r->dir, sizeof r->dir, "%s/tandem-mutate-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(r->dir)) exit(1);
    snprintf(r->file, sizeof r->file, "%s/%s", r->dir, r->kind == DIR_MODELS ? "model.safetensors" : "mutant.gguf");
    snprintf(r->config, sizeof r->config, "%s/config.json", r->dir);
}

static void close_all(runner *r)
{
    if (r->seq) kv_seq_free(r->seq);
    kv_pool_free(r->kv);
    model_close(r->target);
    unlink(r->config);
    unlink(r->file);
    rmdir(r->dir);
    for (int i = 0; i < r->n_seeds; i++) buf_deinit(&r->seed[i].bytes), buf_deinit(&r->seed[i].config);
}

/* Every fourth directory has a good model and a bad config.json. */
static int one_case(runner *r, int n, int n_mutations)
{
    const sample *s         = &r->seed[n % r->n_seeds];
    bool          in_config = r->kind == DIR_MODELS && n % 4 == 3;
    buf           model, config;
    buf_init(&model, s->bytes.n * 2 + 4096);
    buf_init(&config, s->config.n * 2 + 4096);
    buf_put(&model, s->bytes.p, s->bytes.n);
    buf_put(&config, s->config.p, s->config.n);
    for (int k = 0; k < n_mutations; k++)
        if (in_config)
            mutate_once(r, &config, s->config.n);
        else
            mutate_once(r, &model, s->header);
    write_file(r->file, &model);
    if (r->kind == DIR_MODELS) write_file(r->config, &config);
    int result = judge(r, n, model.n + config.n);
    buf_deinit(&model);
    buf_deinit(&config);
    return result;
}

int main(int argc, char **argv)
{
    runner r = {0};
    while (argc > 2 && r.kind < KINDS && strcmp(argv[1], kind_names[r.kind])) r.kind++;
    if (argc < 3 || r.kind == KINDS) {
        fprintf(stderr, "usage: mutate gguf|safetensors|drafters COUNT [SEED]\n");
        return 2;
    }
    int count = atoi(argv[2]), n_refused = 0, n_bad = 0;
    r.rand = argc > 3 ? (uint64_t)atoll(argv[3]) : 1;
    log_setup(LOG_ERROR, false);
    make_seeds(&r);
    open_dir(&r);
    for (int i = 0; i < r.n_seeds; i++) n_bad += one_case(&r, i, 0) != ACCEPTED; /* unharmed ones must open */
    if (n_bad) fprintf(stderr, "%d of the unharmed files were refused\n", n_bad);
    for (int n = 0; n < count; n++) {
        int result = one_case(&r, n, 1 + (int)(test_rand(&r.rand) % 2));
        n_refused += result == REFUSED;
        n_bad += result < 0;
    }
    close_all(&r);
    printf("mutate %s: %d files, %d refused, %d wrong, at most %ld MiB\n", argv[1], count, n_refused, n_bad,
           r.max_kib / 1024);
    return n_bad || n_refused * 2 < count ? 1 : 0;
}
