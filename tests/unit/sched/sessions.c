/* Saved sessions: the continuation of a restored text is that of an engine that never ended, for every method and every
 * K/V type, and drafts in its first round. */
#include "engine_rig.h"
#include "sched/engine.h"
#include "sched/session_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BEFORE = 45, AFTER = 40 };

static void make_dir(char dir[64])
{
    snprintf(dir, 64, "/tmp/tandem-sessions-XXXXXX");
    if (!mkdtemp(dir)) abort();
}

static void remove_dir(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) abort();
}

/* Fills path with the file of the only session in the directory. Returns false if there is none. */
static bool find_file(const char *dir, char path[512])
{
    bool found = false;
    DIR *d     = opendir(dir);
    for (struct dirent *o; d && (o = readdir(d));) {
        char sub[320];
        if (o->d_name[0] == '.') continue;
        snprintf(sub, sizeof sub, "%s/%.200s", dir, o->d_name);
        DIR *files = opendir(sub);
        for (struct dirent *f; files && (f = readdir(files));)
            if (strstr(f->d_name, ".session")) {
                snprintf(path, 512, "%s/%.180s", sub, f->d_name);
                found = true;
            }
        if (files) closedir(files);
    }
    if (d) closedir(d);
    return found;
}

typedef struct {
    const char    *kv;
    tandem_method  method;
    float          temp;
    bool           penalties;
    tandem_options o;
    tandem_request r;
    int32_t        text[NANO_PROMPT + NANO_MAX_OUT];
    size_t         n_text;
    tandem_session session;
} trial;

static void open_trial(test_case *t, trial *x, const char *dir, tandem **out)
{
    nano_options(&x->o);
    x->o.session_dir = dir;
    if (x->kv) x->o.kv_type = x->kv;
    nano_open(t, out, &x->o);
}

static void set_request(const tandem *e, trial *x, int n)
{
    nano_request(e, &x->r, n);
    x->r.spec.method = x->method;
    x->r.temp        = x->temp;
    x->r.has_seed    = true;
    x->r.seed        = 7;
    if (!x->penalties) return;
    x->r.repeat_penalty    = 1.1f;
    x->r.presence_penalty  = 2;
    x->r.frequency_penalty = 1.5f;
}

/* Runs the first part and sets the text to its prompt and response. */
static void run_first(test_case *t, tandem *e, trial *x)
{
    nano_answer a;
    set_request(e, x, BEFORE);
    nano_ask(t, e, &x->r, &a);
    memcpy(x->text, nano_prompt, sizeof nano_prompt);
    memcpy(x->text + NANO_PROMPT, a.token, (size_t)a.n * sizeof *a.token);
    x->n_text  = NANO_PROMPT + (size_t)a.n;
    x->session = (tandem_session){
        .owner = "me", .name = "s", .ids = x->text, .n_ids = x->n_text, .n_prompt = NANO_PROMPT, .request = &x->r};
}

static void run_second(test_case *t, tandem *e, trial *x, nano_answer *out)
{
    set_request(e, x, AFTER);
    x->r.ids         = x->text;
    x->r.n_ids       = x->n_text;
    x->r.n_continued = engine_continued(&(tandem_ids){x->text, x->n_text}, NANO_PROMPT, x->text, x->n_text);
    nano_ask(t, e, &x->r, out);
}

static double acceptance(const nano_answer *a)
{
    const tandem_spec_counts *c = &a->result.usage.spec;
    return c->drafted ? (double)c->accepted / (double)c->drafted : 0;
}

static void check_resumes(test_case *t, const char *kv, tandem_method m, float temp, bool penalties)
{
    trial                  x = {.kv = kv, .method = m, .temp = temp, .penalties = penalties};
    tandem                *e;
    nano_answer            whole, warm, restored;
    tandem_session_info    saved, info;
    tandem_session_content c;
    tandem_error           why = {0};
    char                   dir[64];
    make_dir(dir);
    open_trial(t, &x, dir, &e);
    set_request(e, &x, BEFORE + AFTER);
    nano_ask(t, e, &x.r, &whole);
    tandem_close(e);

    open_trial(t, &x, dir, &e);
    run_first(t, e, &x);
    CHECK_OK(tandem_session_save(e, &x.session, &saved, &why), why);
    CHECK(saved.reusable >= NANO_PROMPT + BEFORE - 17 && saved.tokens == NANO_PROMPT + BEFORE && saved.bytes > 0);
    run_second(t, e, &x, &warm);
    tandem_close(e);

    open_trial(t, &x, dir, &e);
    CHECK_OK(tandem_session_restore(e, &x.session, &c, &info, &why), why);
    CHECK_INT(info.reusable, saved.reusable);
    CHECK(c.ids.n == x.n_text && !memcmp(c.ids.p, x.text, x.n_text * sizeof *x.text));
    CHECK(c.seed == 7 && c.has_seed && c.temp == temp && c.n_prompt == NANO_PROMPT);
    tandem_session_content_free(&c);
    run_second(t, e, &x, &restored);
    CHECK_MSG(restored.result.usage.cached_tokens == info.reusable, "%s: %d tokens are cached, expected %d",
              tandem_method_name((int)m), restored.result.usage.cached_tokens, info.reusable);
    CHECK_MSG(restored.n == AFTER && !memcmp(restored.token, whole.token + BEFORE, sizeof(int32_t) * AFTER),
              "%s, %s, temperature %g: another text after a restore", tandem_method_name((int)m), kv ? kv : "f16",
              temp);
    if (m != TANDEM_SPEC_OFF) {
        CHECK_MSG(restored.result.usage.spec.drafted > 0 && warm.result.usage.spec.drafted > 0, "%s: no drafts",
                  tandem_method_name((int)m));
        CHECK_MSG(acceptance(&restored) >= 0.9 * acceptance(&warm), "%s: %g accepted after a restore, %g without",
                  tandem_method_name((int)m), acceptance(&restored), acceptance(&warm));
        CHECK_INT(restored.result.usage.spec.plain_rounds, warm.result.usage.spec.plain_rounds);
    }
    tandem_close(e);
    remove_dir(dir);
}

TEST_LONG(sessions_resume_with_every_method)
{
    for (int m = TANDEM_SPEC_OFF; m <= TANDEM_SPEC_NGRAM; m++) {
        check_resumes(t, NULL, (tandem_method)m, 0, m == TANDEM_SPEC_MTP);
        if (test_full()) check_resumes(t, NULL, (tandem_method)m, 0.9f, m != TANDEM_SPEC_MTP);
    }
}

TEST_LONG(sessions_resume_with_every_kv_type)
{
    static const char *const types[] = {"f32", "q8_0", "q4_0", "tq3", "k=q8_0,v=q4_0"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_resumes(t, types[i], TANDEM_SPEC_DFLASH, 0, false);
        if (test_full()) check_resumes(t, types[i], TANDEM_SPEC_MTP, 0.9f, true);
    }
}

/* --- owners, names, limits ----------------------------------------------------------------------*/
static bool save_as(tandem *e, trial *x, const char *owner, const char *name, tandem_error *why)
{
    tandem_session_info info;
    tandem_session      s = x->session;
    s.owner               = owner;
    s.name                = name;
    return tandem_session_save(e, &s, &info, why);
}

static bool restore_as(tandem *e, const char *owner, const char *name, tandem_error *why)
{
    tandem_session_info    info;
    tandem_session_content c;
    bool ok = tandem_session_restore(e, &(tandem_session){.owner = owner, .name = name}, &c, &info, why);
    tandem_session_content_free(&c);
    return ok;
}

TEST(sessions_belong_to_their_owner)
{
    trial               x = {0};
    tandem             *e;
    tandem_error        why = {0};
    tandem_session_info list[4];
    char                dir[64], path[512];
    make_dir(dir);
    open_trial(t, &x, dir, &e);
    run_first(t, e, &x);
    CHECK_OK(save_as(e, &x, "anna", "plan", &why), why);
    CHECK_INT(tandem_sessions(e, "anna", list, 4), 1);
    CHECK_STR(str_of(list[0].name), STR("plan"));
    CHECK(list[0].tokens == (int32_t)x.n_text && list[0].bytes > 0 && list[0].used > 0);
    CHECK_INT(tandem_sessions(e, "ben", list, 4), 0);
    CHECK_INT(tandem_sessions(e, NULL, list, 4), 0);
    CHECK_FAILS(restore_as(e, "ben", "plan", &why), why, "there is no session 'plan'");
    CHECK_INT(why.code, TANDEM_NOT_FOUND);
    CHECK_FAILS(restore_as(e, "anna", "other", &why), why, "there is no session 'other'");
    CHECK_INT(why.code, TANDEM_NOT_FOUND);
    CHECK_FAILS(tandem_session_delete(e, "ben", "plan", &why), why, "there is no session 'plan'");
    CHECK_FAILS(tandem_session_delete(e, "", "plan", &why), why, "there is no session 'plan'");
    CHECK_OK(save_as(e, &x, "ben", "plan", &why), why);
    CHECK(find_file(dir, path) && unlink(path) == 0 && mkfifo(path, 0600) == 0); /* a list does not wait for a writer */
    CHECK(tandem_sessions(e, "anna", list, 4) + tandem_sessions(e, "ben", list, 4) == 1);
    CHECK_FAILS(restore_as(e, "anna", "plan", &why) & restore_as(e, "ben", "plan", &why), why, "not a regular file");
    CHECK_OK(save_as(e, &x, "anna", "plan", &why), why);
    CHECK_OK(save_as(e, &x, "ben", "plan", &why), why);
    CHECK_OK(tandem_session_delete(e, "ben", "plan", &why), why);
    CHECK_OK(restore_as(e, "anna", "plan", &why), why);
    CHECK_OK(tandem_session_delete(e, "anna", "plan", &why), why);
    CHECK_INT(tandem_sessions(e, "anna", list, 4), 0);
    tandem_close(e);
    remove_dir(dir);
}

TEST(sessions_have_checked_names_and_limits)
{
    static const char *const bad[] = {
        "",     ".",   "..",  ".x",       "a/b",
        "../x", "a b", "a\n", "\xc3\xa4", "12345678901234567890123456789012345678901234567890123456789012345"};
    trial        x = {0};
    tandem      *e;
    tandem_error why = {0};
    char         dir[64], path[512];
    struct stat  st;
    make_dir(dir);
    nano_options(&x.o);
    nano_open(t, &e, &x.o);
    run_first(t, e, &x);
    CHECK_FAILS(save_as(e, &x, "me", "s", &why), why, "no directory for sessions");
    tandem_close(e);
    open_trial(t, &x, dir, &e);
    run_first(t, e, &x);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_FAILS(save_as(e, &x, "me", bad[i], &why), why, "the name of a session");
        CHECK_FAILS(restore_as(e, "me", bad[i], &why), why, "the name of a session");
        CHECK_FAILS(tandem_session_delete(e, "me", bad[i], &why), why, "the name of a session");
    }
    CHECK(tandem_set(e, "session_max_count", "2", &why));
    CHECK_OK(save_as(e, &x, "me", "a", &why), why);
    CHECK(find_file(dir, path) && stat(path, &st) == 0);
    CHECK_INT(st.st_mode & 0777, 0600);
    CHECK_OK(save_as(e, &x, "me", "b", &why), why);
    CHECK_OK(save_as(e, &x, "me", "b", &why), why); /* replaces */
    CHECK_FAILS(save_as(e, &x, "me", "c", &why), why, "session_max_count is 2");
    CHECK_OK(save_as(e, &x, "you", "c", &why), why);
    CHECK(tandem_set(e, "session_max_bytes", "1000", &why));
    CHECK_FAILS(save_as(e, &x, "me", "b", &why), why, "session_max_bytes is 1000");
    CHECK_OK(restore_as(e, "me", "b", &why), why);
    tandem_close(e);
    remove_dir(dir);
}

/* --- files --------------------------------------------------------------------------------------*/
static void write_bytes(const char *path, const char *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f)) abort();
}

static char *read_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    *n      = (size_t)ftell(f);
    char *p = malloc(*n + 1);
    rewind(f);
    if (fread(p, 1, *n, f) != *n) abort();
    fclose(f);
    return p;
}

TEST(sessions_with_damaged_files_are_refused)
{
    trial        x = {0};
    tandem      *e;
    tandem_error why = {0};
    char         dir[64], path[512];
    size_t       n;
    int          n_flips = test_full() ? 10000 : 150, taken = 0;
    make_dir(dir);
    open_trial(t, &x, dir, &e);
    run_first(t, e, &x);
    CHECK_OK(save_as(e, &x, "me", "s", &why), why);
    CHECK(find_file(dir, path));
    char *good = read_bytes(path, &n), *bad = malloc(n);
    srand(1);
    for (int i = 0; i < n_flips; i++) {
        size_t at = i % 2 ? (size_t)rand() % n : (size_t)rand() % 512;
        memcpy(bad, good, n);
        bad[at] = (char)(bad[at] ^ 1 << rand() % 8);
        write_bytes(path, bad, n);
        why.text[0] = 0;
        if (restore_as(e, "me", "s", &why))
            taken++;
        else
            CHECK_MSG(why.code == TANDEM_FORMAT && strstr(why.text, "cannot restore the session 's'"), "%s", why.text);
    }
    CHECK_INT(taken, 0);
    for (int i = 0; i < 40; i++) {
        write_bytes(path, good, i < 20 ? (size_t)i * 13 : (size_t)rand() % n);
        CHECK_FAILS(restore_as(e, "me", "s", &why), why, "cannot restore the session");
    }
    write_bytes(path, good, n);
    CHECK_OK(restore_as(e, "me", "s", &why), why);
    free(good);
    free(bad);
    tandem_close(e);
    x.kv = "q8_0";
    open_trial(t, &x, dir, &e);
    CHECK_FAILS(restore_as(e, "me", "s", &why), why, "cannot restore the session 's'");
    CHECK_INT(why.code, TANDEM_FORMAT);
    tandem_close(e);
    remove_dir(dir);
}

TEST(sessions_of_another_format_are_refused_with_a_sentence)
{
    static const int32_t   ids[] = {1, 2, 3};
    tandem_session         x     = {.ids = ids, .n_ids = 3, .n_prompt = 2, .note = "hello", .n_note = 5};
    tandem_session_content c;
    pack                  *p = calloc(1, sizeof *p);
    err                    e = {0};
    int32_t                n;
    CHECK_OK(session_put(p, &x, &e), e);
    CHECK_OK(session_get(p, 4, &c, &e), e);
    CHECK(c.ids.n == 3 && c.n_prompt == 2 && c.n_note == 5 && !memcmp(c.note, "hello", 5) && c.top_p == 1);
    tandem_session_content_free(&c);
    CHECK_FAILS(session_get(p, 3, &c, &e), e, "token 3, and the model has 3");
    tandem_session_content_free(&c);
    p->section[0].id = 9;
    CHECK_FAILS(session_check(p, &n, &e), e, "format 9, and this version reads format 1");
    p->section[0].id = SESSION_FORMAT;
    p->kind          = 1;
    CHECK_FAILS(session_check(p, &n, &e), e, "not a session");
    p->kind         = SESSION_PACK;
    p->section[1].n = 2;
    CHECK_FAILS(session_check(p, &n, &e), e, "no valid list of tokens");
    pack_deinit(p);
    free(p);
}
