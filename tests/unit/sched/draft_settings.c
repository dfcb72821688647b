/* Settings that choose drafters and how they are opened. */
#include "base/file.h"
#include "engine_rig.h"
#include "sched/settings.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool find_drafter(const tandem *e, tandem_method m, tandem_drafter_info *out)
{
    tandem_drafter_info all[TANDEM_MAX_DRAFTERS];
    int                 n = tandem_drafters(e, all), i = 0;
    while (i < n && all[i].method != m) i++;
    if (i < n) *out = all[i];
    return i < n;
}

/* A copy of one of nano's drafters under another name. */
static const char *copy_file(char to[600], const char *from, const char *name)
{
    file_map m = {0};
    if (file_map_open(&m, from, NULL)) snprintf(to, 600, "%s", test_tmp_file(name, m.p, m.n));
    file_map_close(&m);
    return to;
}

TEST(sched_draft_quant_settings_are_used)
{
    static const struct {
        const char *flag, *bits, *want;
    } k[] = {{NULL, NULL, "Q8_0"}, {NULL, "4", "Q4_0"}, {"none", "4", "Q8_0"}, {"q4_0", NULL, "Q4_0"}};
    uint64_t bytes[COUNT(k)];
    for (size_t i = 0; i < COUNT(k); i++) {
        tandem_options      o;
        tandem             *e;
        tandem_drafter_info d[2] = {0};
        tandem_drafter      list[2];
        nano_options(&o);
        memcpy(list, o.drafters, sizeof list);
        list[0].quantise = list[1].quantise = k[i].flag;
        o.drafters                          = list;
        if (k[i].bits) nano_setting(&o, "dflash_draft_quant_enabled", "true");
        if (k[i].bits) nano_setting(&o, "dflash_draft_quant_weight_bits", k[i].bits);
        if (!nano_open(t, &e, &o)) return;
        CHECK(find_drafter(e, TANDEM_SPEC_DFLASH, &d[0]) && find_drafter(e, TANDEM_SPEC_MTP, &d[1]));
        for (int n = 0; n < 2; n++) CHECK_STR(str_of(d[n].quantisation), str_of(k[i].want));
        bytes[i] = d[0].weight_bytes;
        tandem_close(e);
    }
    CHECK(bytes[1] < bytes[0] * 2 / 3 && bytes[2] == bytes[0] && bytes[3] == bytes[1]);
}

TEST(sched_draft_models_of_settings_take_the_place_of_listed_ones)
{
    tandem_options      o;
    tandem             *e;
    tandem_drafter_info d;
    char                dflash[600], mtp[600];
    nano_options(&o);
    copy_file(dflash, o.drafters[0].path, "other-dflash.gguf");
    copy_file(mtp, o.drafters[1].path, "other-mtp.gguf");
    const char *listed_mtp = o.drafters[1].path;
    nano_setting(&o, "dflash_draft_model", dflash);
    test_listen_begin(false);
    bool ok = nano_open(t, &e, &o);
    CHECK(strstr(test_listen_end(), "dflash.gguf is not used: a setting names"));
    if (!ok) return;
    CHECK(find_drafter(e, TANDEM_SPEC_DFLASH, &d));
    CHECK_STR(str_of(d.path), str_of(dflash));
    CHECK_STR(str_of(d.name), STR("other-dflash.gguf"));
    CHECK(find_drafter(e, TANDEM_SPEC_MTP, &d));
    CHECK_STR(str_of(d.path), str_of(listed_mtp));
    tandem_close(e);
    /* Both at once, with and without a list. */
    nano_setting(&o, "mtp_draft_model", mtp);
    for (int i = 0; i < 2; i++) {
        o.n_drafters = 2 * i;
        if (!nano_open(t, &e, &o)) return;
        CHECK(find_drafter(e, TANDEM_SPEC_DFLASH, &d) && d.state == TANDEM_DRAFTER_OPEN);
        CHECK_STR(str_of(d.path), str_of(dflash));
        CHECK(find_drafter(e, TANDEM_SPEC_MTP, &d) && d.state == TANDEM_DRAFTER_OPEN);
        CHECK_STR(str_of(d.path), str_of(mtp));
        tandem_close(e);
    }
}

TEST(sched_draft_activation_bits_are_those_of_the_device)
{
    static const struct {
        const char *device, *bits, *says;
    } k[] = {{"cpu", "8", NULL},
             {"cpu", "none", NULL},
             {"cpu", "16", "activation_bits is 16, but cpu computes with 8: expected 8 or \"none\""},
             {"ref", "none", NULL},
             {"ref", "8", "ref does not round activations: expected \"none\""}};
    for (size_t i = 0; i < COUNT(k); i++) {
        tandem_options o;
        tandem        *e;
        tandem_error   why = {0};
        nano_options(&o);
        o.device     = k[i].device;
        o.n_drafters = 0;
        nano_setting(&o, "dflash_draft_quant_activation_bits", k[i].bits);
        if (k[i].says) {
            CHECK_FAILS(tandem_open(&e, &o, &why), why, k[i].says);
            continue;
        }
        if (!CHECK_OK(tandem_open(&e, &o, &why), why)) continue;
        if (!strcmp(k[i].device, "cpu"))
            CHECK_FAILS(tandem_set(e, "dflash_draft_quant_activation_bits", "16", &why), why, "settings file");
        tandem_close(e);
    }
    settings s;
    err      e = {0};
    settings_init(&s);
    s.dflash_draft_quant_activation_bits = 16;
    CHECK_OK(settings_check_device(&s, "cuda:1", &e), e);
    s.dflash_draft_quant_activation_bits = 8;
    CHECK_FAILS(settings_check_device(&s, "cuda:1", &e), e, "cuda:1 computes with 16");
}

/* --- drafters that fail at start ------------------------------------------------------------------*/
static void check_failed(test_case *t, const tandem *e, tandem_method m, const char *says)
{
    tandem_drafter_info d = {0};
    tandem_info         info;
    CHECK(find_drafter(e, m, &d));
    CHECK_INT(d.state, TANDEM_DRAFTER_FAILED);
    CHECK_MSG(strstr(d.problem, says), "'%s' does not say '%s'", d.problem, says);
    tandem_get_info(e, &info);
    CHECK(!(m == TANDEM_SPEC_MTP ? info.has_mtp : info.has_dflash));
}

TEST(sched_a_drafter_that_fails_at_start_is_shown_and_tried_again)
{
    tandem_options      o;
    tandem             *e;
    tandem_error        why = {0};
    tandem_request      r;
    tandem_drafter_info d = {0};
    tandem_info         info;
    nano_answer         plain, a;
    char                dflash[600], away[700];
    nano_options(&o);
    copy_file(dflash, o.drafters[0].path, "late-dflash.gguf");
    snprintf(away, sizeof away, "%s.away", dflash);
    CHECK(rename(dflash, away) == 0);
    o.n_drafters   = 0;
    o.fingerprints = true;
    nano_setting(&o, "dflash_draft_model", dflash);
    nano_setting(&o, "mtp_draft_model", test_path("models/nano/target.gguf"));
    test_listen_begin(false);
    bool ok = nano_open(t, &e, &o);
    CHECK(strstr(test_listen_end(), "continuing without it"));
    if (!ok) return;
    check_failed(t, e, TANDEM_SPEC_DFLASH, "late-dflash.gguf");
    check_failed(t, e, TANDEM_SPEC_MTP, "is not a drafter");
    nano_request(e, &r, 20);
    nano_ask(t, e, &r, &plain);
    CHECK_FAILS(tandem_unpark_drafter(e, TANDEM_SPEC_DFLASH, &why), why, "late-dflash.gguf");
    CHECK_FAILS(tandem_unpark_drafter(e, TANDEM_SPEC_MTP, &why), why, "is not a drafter");
    CHECK_OK(tandem_park_drafter(e, TANDEM_SPEC_MTP, &why), why);
    CHECK_FAILS(tandem_unpark_drafter(e, TANDEM_SPEC_MTP, &why), why, "is not a drafter");
    tandem_get_info(e, &info);
    uint64_t before = info.kv_bytes;
    CHECK(rename(away, dflash) == 0);
    CHECK_OK(tandem_unpark_drafter(e, TANDEM_SPEC_DFLASH, &why), why);
    CHECK(find_drafter(e, TANDEM_SPEC_DFLASH, &d));
    CHECK(d.state == TANDEM_DRAFTER_OPEN && !d.problem[0] && str_starts(str_of(d.fingerprint), "sha256:"));
    tandem_get_info(e, &info);
    CHECK(info.has_dflash && !info.has_mtp && info.kv_bytes > before); /* with room for its own K/V */
    r.spec.method = TANDEM_SPEC_DFLASH;
    nano_ask(t, e, &r, &a);
    nano_same(t, &a, &plain);
    CHECK(a.result.usage.spec.drafted > 0);
    nano_check_idle(t, e);
    tandem_close(e);
}

TEST(sched_a_setting_takes_a_drafter_of_its_own_kind_alone)
{
    tandem_options o;
    tandem        *e;
    char           mtp[600];
    nano_options(&o);
    snprintf(mtp, sizeof mtp, "%s", o.drafters[1].path);
    o.n_drafters = 0;
    nano_setting(&o, "dflash_draft_model", mtp);
    test_listen_begin(false);
    bool ok = nano_open(t, &e, &o);
    test_listen_end();
    if (!ok) return;
    check_failed(t, e, TANDEM_SPEC_DFLASH, "is a drafter of kind mtp, expected dflash");
    tandem_drafter_info d;
    CHECK(!find_drafter(e, TANDEM_SPEC_MTP, &d));
    tandem_close(e);
}

/* Every line has the fingerprints of the drafters that are open, and of no other. */
TEST(sched_routing_lines_name_the_drafters_that_are_open)
{
    tandem_options      o;
    tandem             *e;
    tandem_error        why = {0};
    tandem_request      r;
    nano_answer         a;
    tandem_drafter_info d[2] = {0};
    char                path[600], *line = NULL, want[2][300];
    size_t              cap = 0;
    nano_options(&o);
    snprintf(path, sizeof path, "%s/marked.jsonl", test_tmp_dir());
    unlink(path);
    o.routing_log = path;
    if (!nano_open(t, &e, &o)) return;
    CHECK(find_drafter(e, TANDEM_SPEC_DFLASH, &d[0]) && find_drafter(e, TANDEM_SPEC_MTP, &d[1]));
    CHECK(strcmp(d[0].fingerprint, d[1].fingerprint) != 0);
    nano_request(e, &r, 8);
    nano_ask(t, e, &r, &a);
    CHECK_OK(tandem_park_drafter(e, TANDEM_SPEC_DFLASH, &why), why);
    r.id = "without";
    nano_ask(t, e, &r, &a);
    tandem_close(e);
    snprintf(want[0], sizeof want[0], "\"drafters\":{\"dflash\":\"%s\",\"mtp\":\"%s\"}", d[0].fingerprint,
             d[1].fingerprint);
    snprintf(want[1], sizeof want[1], "\"drafters\":{\"mtp\":\"%s\"}", d[1].fingerprint);
    FILE *f = fopen(path, "r");
    int   n = 0;
    while (f && getline(&line, &cap, f) > 0) {
        const char *wanted = want[strstr(line, "\"without\"") != NULL];
        CHECK_MSG(strstr(line, wanted), "no %s in %s", wanted, line);
        n++;
    }
    CHECK(n >= 4);
    if (f) fclose(f);
    free(line);
}
