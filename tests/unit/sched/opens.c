/* A checkpoint is opened once, however many parts of it are used. */
#include "../wrap_open.h"
#include "engine_rig.h"
#include "sched/inside.h"

#include <stdio.h>

static void check_once(test_case *t, const opened_file *f, int n)
{
    for (int i = 0; i < n; i++) CHECK_MSG(f[i].n == 1, "%s was opened %d times", f[i].path, f[i].n);
}

/* Tokenizer, template, weights, fingerprint, and the methods of the drafters are read from one opening each. */
TEST(sched_opens_each_checkpoint_once)
{
    tandem_options o;
    tandem        *e;
    engine_part    part[ENGINE_MAX_PARTS];
    nano_options(&o);
    o.fingerprints      = true;
    opened_file files[] = {{.path = o.path}, {.path = o.drafters[0].path}, {.path = o.drafters[1].path}};
    wrap_open_count(files, 3);
    if (nano_open(t, &e, &o)) {
        tandem_info info;
        tandem_get_info(e, &info);
        CHECK(info.has_tokenizer && info.has_dflash && info.has_mtp && info.fingerprint[0]);
        int n = engine_parts(e, part);
        if (CHECK(n == 3))
            for (int i = 0; i < 3; i++) CHECK_STR(str_of(part[i].files->file[0].path), str_of(files[i].path));
        tandem_close(e);
    }
    check_once(t, files, 3);
    wrap_open_count(NULL, 0);
}

/* A lent checkpoint is not opened at all, and stays the caller's. */
TEST(sched_uses_a_lent_checkpoint)
{
    tandem_options o;
    tandem        *e;
    checkpoint    *cp;
    err            bad = {0};
    nano_options(&o);
    o.fingerprints      = true;
    o.n_drafters        = 0;
    opened_file files[] = {{.path = o.path}};
    wrap_open_count(files, 1);
    if (CHECK_OK(checkpoint_open(&cp, o.path, &bad), bad) &&
        CHECK_OK(engine_open(&e, &o, &(engine_extra){.files = cp, .need_tok = "no tokenizer"}, &bad), bad))
        tandem_close(e);
    CHECK(cp && cp->gguf && tensor_count(cp->tensors) > 0);
    checkpoint_close(cp);
    check_once(t, files, 1);
    wrap_open_count(NULL, 0);
}

/* The files of a Hugging Face directory, too. */
TEST(sched_opens_each_file_of_a_directory_once)
{
    static const char *const name[] = {"config.json", "model.safetensors"};
    char                     path[2][4096];
    opened_file              files[2] = {0};
    opened_model             m;
    err                      e = {0};
    open_options             o = {.path = test_path("tests/golden/gemma4-dense"), .name = "dense", .device = "cpu"};
    o.text = o.fingerprint = true;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", o.path, name[i]);
        files[i].path = path[i];
    }
    wrap_open_count(files, 2);
    if (CHECK_OK(open_model(&m, &o, &e), e)) {
        CHECK_INT(m.files->n, 2);
        open_close(&m);
    }
    check_once(t, files, 2);
    wrap_open_count(NULL, 0);
}
