/* Where drafters come from: files, images in memory, files of another kind, files that are not there yet. */
#include "base/file.h"
#include "spec_rig.h"
#include "views.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const spec_options one_lane = {.n_ctx = 256, .max_lanes = 1, .kv_type = KV_TYPES_ALL(CACHE_F16)};
static char               dflash_path[4096], mtp_path[4096], target_path[4096];

static bool open_bare(test_case *t, spec_rig *g, const spec_options *o)
{
    snprintf(dflash_path, sizeof dflash_path, "%s", test_path("models/nano/dflash.gguf"));
    snprintf(mtp_path, sizeof mtp_path, "%s", test_path("models/nano/mtp.gguf"));
    snprintf(target_path, sizeof target_path, "%s", test_path("models/nano/target.gguf"));
    return spec_rig_open(t, g, o, false);
}

/* Guesses of a short answer by the method. */
static int64_t drafted(test_case *t, spec_rig *g, int method)
{
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt = spec_rig_options(method), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
    if (!CHECK_OK(spec_lane_begin(g->l[0], &r, &reused, &e), e)) return -1;
    for (int i = 0; i < 4 && CHECK_OK(spec_step_alone(g->s, g->l, 1, &e), e); i++) spec_lane_keep(g->l[0], 1);
    spec_lane_end(g->l[0]);
    return spec_lane_stats(g->l[0])->drafted;
}

static bool find_method(spec_draft_source src, spec_method *out, err *e)
{
    checkpoint *cp;
    if (!checkpoint_open(&cp, src.path, e)) return false;
    src.files = cp;
    bool ok   = spec_drafter_method(&src, out, e);
    checkpoint_close(cp);
    return ok;
}

TEST(spec_kinds_of_drafter_files)
{
    spec_rig    g;
    err         e = {0};
    spec_method m = SPEC_OFF;
    if (open_bare(t, &g, &one_lane)) {
        CHECK_OK(find_method((spec_draft_source){.path = dflash_path}, &m, &e), e);
        CHECK_INT(m, SPEC_DFLASH);
        CHECK_OK(find_method((spec_draft_source){.path = mtp_path, .method = SPEC_MTP}, &m, &e), e);
        CHECK_INT(m, SPEC_MTP);
        CHECK_FAILS(find_method((spec_draft_source){.path = mtp_path, .method = SPEC_DFLASH}, &m, &e), e,
                    "is a drafter of kind mtp, expected dflash");
        CHECK_FAILS(find_method((spec_draft_source){.path = target_path, .name = "it"}, &m, &e), e,
                    "it is not a drafter, but a model of kind");
        CHECK_FAILS(spec_add_drafter(g.s, &(spec_draft_source){.path = "/nowhere.gguf"}, &e), e, "no drafter");
        spec_draft_source other = {.path = dflash_path, .method = SPEC_MTP};
        CHECK_FAILS(spec_add_drafter(g.s, &other, &e), e, "is a drafter of kind dflash, expected mtp");
        CHECK_INT(e.code, ERR_INPUT);
        CHECK(!spec_add_drafter(g.s, &other, NULL)); /* nobody asks why */
        CHECK(!spec_has_drafter(g.s, SPEC_DFLASH) && !spec_has_drafter(g.s, SPEC_MTP));
    }
    spec_rig_close(&g);
}

static int      n_wraps;
static drafter *wrapped;

static drafter *wrap(void *ctx, drafter *d)
{
    n_wraps += *(int *)ctx;
    wrapped = d;
    return d;
}

/* An image in memory is as good as a file; the view has its name, what is shown, and the fingerprint of the bytes. */
TEST(spec_drafters_from_images_and_files)
{
    spec_rig g;
    err      e   = {0};
    file_map map = {0};
    int      one = 1;
    char     sum[2][FINGERPRINT_MAX];
    if (open_bare(t, &g, &one_lane) && CHECK_OK(file_map_open(&map, mtp_path, &e), e)) {
        drafter_view      v;
        spec_draft_source image = {.name        = "the image",
                                   .shown       = "builtin",
                                   .image       = {(const char *)map.p, map.n},
                                   .fingerprint = true,
                                   .wrap        = wrap,
                                   .wrap_ctx    = &one};
        n_wraps                 = 0;
        unsigned changes        = spec_drafter_changes(g.s);
        CHECK_OK(spec_add_drafter(g.s, &image, &e), e);
        CHECK(spec_drafter_changes(g.s) != changes);
        CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = dflash_path}, &e), e);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_OPEN && v.weight_bytes > 0 && v.max_draft > 0);
        CHECK_STR(str_of(v.name), STR("the image"));
        CHECK_STR(str_of(v.shown), STR("builtin"));
        checkpoint *cp;
        if (CHECK_OK(checkpoint_open_bytes(&cp, "image", (str){map.p, map.n}, &e), e))
            fingerprint_checkpoint(cp, sum[0]);
        checkpoint_close(cp);
        if (CHECK_OK(checkpoint_open(&cp, mtp_path, &e), e)) fingerprint_checkpoint(cp, sum[1]);
        checkpoint_close(cp);
        CHECK_STR(str_of(v.fingerprint), str_of(sum[0]));
        CHECK_STR(str_of(v.fingerprint), str_of(sum[1]));
        CHECK(n_wraps == 1 && wrapped == g.s->slots[DRAFTER_MTP].d);
        CHECK(drafted(t, &g, SPEC_MTP) > 0);
        park_all(g.s);
        CHECK_OK(unpark_all(g.s, &e), e);
        CHECK_INT(n_wraps, 2); /* every time that it is opened */
        CHECK(spec_drafter_view(g.s, SPEC_DFLASH, &v));
        CHECK_STR(str_of(v.name), str_of(dflash_path));
        CHECK_STR(str_of(v.shown), str_of(dflash_path));
        CHECK_INT(v.fingerprint[0], 0); /* nobody asked for it */
        CHECK_FAILS(spec_add_drafter(g.s, &image, &e), e,
                    "the image: there is already a drafter of this kind, the image");
    }
    spec_rig_close(&g);
    file_map_close(&map);
}

/* A drafter that is to be kept although its file is not there is a failed one, until the file comes and is tried again. */
TEST(spec_keeps_drafters_that_may_come_later)
{
    spec_rig g;
    err      e   = {0};
    file_map map = {0};
    char     path[4096];
    snprintf(path, sizeof path, "%s", test_tmp_file("later.gguf", "", 0));
    if (open_bare(t, &g, &one_lane) && CHECK_OK(file_map_open(&map, mtp_path, &e), e)) {
        drafter_view      v;
        spec_draft_source src = {.path = path, .method = SPEC_MTP};
        CHECK_FAILS(spec_add_drafter(g.s, &src, &e), e, "later.gguf");
        CHECK(!spec_drafter_view(g.s, SPEC_MTP, &v)); /* not to be kept */
        src.keep         = true;
        unsigned changes = spec_drafter_changes(g.s);
        CHECK_FAILS(spec_add_drafter(g.s, &src, &e), e, "later.gguf");
        CHECK(spec_drafter_changes(g.s) != changes);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_FAILED && strstr(v.problem, "later.gguf"));
        CHECK(!spec_drafter_view(g.s, SPEC_DFLASH, &v) && !spec_has_drafter(g.s, SPEC_MTP));
        CHECK_INT(drafted(t, &g, SPEC_MTP), 0);
        CHECK_FAILS(spec_unpark(g.s, SPEC_MTP, &e), e, "later.gguf"); /* still nothing */
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_FAILED);
        test_tmp_file("later.gguf", map.p, map.n);
        CHECK_OK(spec_unpark(g.s, SPEC_MTP, &e), e);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_OPEN && v.problem[0] == 0);
        CHECK(drafted(t, &g, SPEC_MTP) > 0);
        CHECK_FAILS(
            spec_add_drafter(g.s, &(spec_draft_source){.path = "/nowhere.gguf", .keep = true, .method = SPEC_MTP}, &e),
            e, "/nowhere.gguf");
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_OPEN); /* the one that is there stays */
        src = (spec_draft_source){.path = "/nowhere.gguf", .keep = true};
        CHECK(!spec_add_drafter(g.s, &src, &e)); /* of a kind that is not known */
        CHECK(!spec_drafter_view(g.s, SPEC_DFLASH, &v));
    }
    spec_rig_close(&g);
    file_map_close(&map);
    unlink(path);
}

/* What was never open is not opened by unparking; of several that fail the first one's reason is given, and the others
 * are opened all the same. */
TEST(spec_unparks_what_was_open)
{
    spec_rig g;
    err      e   = {0};
    file_map map = {0};
    char     path[4096];
    if (open_bare(t, &g, &one_lane) && CHECK_OK(file_map_open(&map, dflash_path, &e), e)) {
        drafter_view v;
        snprintf(path, sizeof path, "%s", test_tmp_file("gone.gguf", map.p, map.n));
        CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = path}, &e), e);
        CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = mtp_path, .lazy = true}, &e), e);
        park_all(g.s);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_PARKED);
        CHECK_INT(drafted(t, &g, SPEC_MTP), 0); /* a parked one is not opened when it is wanted */
        CHECK_OK(unpark_all(g.s, &e), e);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_LAZY);
        CHECK(spec_drafter_view(g.s, SPEC_DFLASH, &v) && v.state == DRAFTER_OPEN);
        CHECK(drafted(t, &g, SPEC_MTP) > 0); /* now it is */
        park_all(g.s);
        unlink(path);
        CHECK_FAILS(unpark_all(g.s, &e), e, "gone.gguf");
        CHECK(spec_drafter_view(g.s, SPEC_DFLASH, &v) && v.state == DRAFTER_FAILED);
        CHECK(spec_drafter_view(g.s, SPEC_MTP, &v) && v.state == DRAFTER_OPEN);
        CHECK(drafted(t, &g, SPEC_MTP) > 0);
        CHECK_INT(drafted(t, &g, SPEC_DFLASH), 0);
    }
    spec_rig_close(&g);
    file_map_close(&map);
}

/* A pool whose size nobody gave grows for a drafter with K/V of its own, unless a request holds pages of it. */
TEST(spec_makes_room_for_a_drafter)
{
    for (int kind = 0; kind < 3; kind++) { /* free, in use, of a given size */
        spec_rig     g;
        err          e = {0};
        size_t       reused;
        spec_options so = one_lane;
        so.kv_bytes     = kind == 2 ? 8 << 20 : 0;
        if (open_bare(t, &g, &so)) {
            lane_request r      = {.opt = spec_rig_options(SPEC_OFF), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
            size_t       before = spec_kv_bytes_total(g.s);
            if (kind == 1) CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
            CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = mtp_path}, &e), e);
            CHECK_INT(spec_kv_bytes_total(g.s), before); /* has none */
            CHECK_OK(spec_add_drafter(g.s, &(spec_draft_source){.path = dflash_path}, &e), e);
            CHECK((spec_kv_bytes_total(g.s) > before) == (kind == 0));
            if (kind == 1) CHECK_OK(spec_step_alone(g.s, g.l, 1, &e), e); /* the request goes on */
            if (kind == 1) spec_lane_end(g.l[0]);
            if (kind == 0) CHECK(drafted(t, &g, SPEC_DFLASH) > 0);
        }
        spec_rig_close(&g);
    }
}

/* --- memory ---------------------------------------------------------------------------------------*/
static bool full_alloc(const ops *o, dev *out, size_t bytes, err *e)
{
    (void)o;
    *out = (dev){0};
    return err_set(e, ERR_UNAVAILABLE, "no memory for %zu bytes", bytes);
}

/* When neither a larger pool nor the old one can be allocated, requests are refused until there is memory again. */
TEST(spec_reopens_a_pool_that_was_lost)
{
    spec_rig     g;
    err          e = {0};
    size_t       reused;
    lane_request r = {.opt = spec_rig_options(SPEC_OFF), .prompt = rig_prompt, .n_prompt = RIG_PROMPT};
    if (open_bare(t, &g, &one_lane)) {
        ops   *o                                                    = (ops *)g.m->o;
        size_t before                                               = spec_kv_bytes_total(g.s);
        bool (*alloc)(const ops *o, dev *out, size_t bytes, err *e) = o->alloc;
        spec_draft_source src                                       = {.path = dflash_path, .keep = true};
        o->alloc                                                    = full_alloc;
        CHECK_FAILS(spec_add_drafter(g.s, &src, &e), e, "no memory");
        CHECK_INT(spec_kv_bytes_total(g.s) + spec_kv_pinned(g.s) + spec_kv_reserved(g.s), 0);
        CHECK_FAILS(spec_lane_begin(g.l[0], &r, &reused, &e), e, "no memory");
        CHECK_INT(e.code, ERR_UNAVAILABLE);
        CHECK_FAILS(spec_unpark(g.s, SPEC_DFLASH, &e), e, "no memory");
        o->alloc = alloc;
        CHECK_OK(spec_lane_begin(g.l[0], &r, &reused, &e), e);
        CHECK_INT(spec_kv_bytes_total(g.s), before);
        spec_lane_end(g.l[0]);
        CHECK_OK(spec_unpark(g.s, SPEC_DFLASH, &e), e);
        CHECK(drafted(t, &g, SPEC_DFLASH) > 0);
    }
    spec_rig_close(&g);
}

/* Lets the process map `bytes` more than it has; false: that cannot be told here. */
static bool limit_memory(struct rlimit *before, size_t bytes)
{
    unsigned long pages = 0;
    FILE         *f     = fopen("/proc/self/statm", "r");
    bool          ok    = f && fscanf(f, "%lu", &pages) == 1 && getrlimit(RLIMIT_AS, before) == 0;
    if (f) fclose(f);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    ok = false; /* they map at will */
#endif
    struct rlimit now = *before;
    now.rlim_cur      = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes;
    return ok && before->rlim_cur == RLIM_INFINITY && setrlimit(RLIMIT_AS, &now) == 0;
}

/* A drafter whose weights do not fit into memory is refused before they are read, and can be added later. */
TEST(spec_refuses_drafters_that_do_not_fit)
{
    spec_rig      g;
    err           e = {0};
    struct rlimit before;
    struct stat   file;
    if (open_bare(t, &g, &one_lane) && CHECK(stat(mtp_path, &file) == 0)) {
        spec_draft_source src = {.path = mtp_path, .name = "the assistant"};
        /* the file can be mapped, and once more its size less a little is left */
        if (limit_memory(&before, (size_t)file.st_size * 2 - (64 << 10))) {
            bool added = spec_add_drafter(g.s, &src, &e);
            CHECK(setrlimit(RLIMIT_AS, &before) == 0);
            CHECK_MSG(!added && strstr(e.text, "the assistant: no memory for its weights") && e.code == ERR_UNAVAILABLE,
                      "%s", added ? "added" : e.text);
            CHECK(!spec_has_drafter(g.s, SPEC_MTP));
        }
        CHECK_OK(spec_add_drafter(g.s, &src, &e), e);
    }
    spec_rig_close(&g);
}

/* The method that drafts chains is named after its drafter. */
TEST(spec_methods_are_named_after_drafters)
{
    for (int k = 0; k < DRAFTER_KINDS; k++)
        CHECK_STR(str_of(spec_method_name((int)spec_chain_method((drafter_kind)k))), str_of(drafter_kinds[k].name));
}
