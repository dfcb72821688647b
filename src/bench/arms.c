#include "bench/arms.h"

#include "figures/result.h"

#include <stdio.h>

static bool is_plain(str word) { return str_is(word, "off") || str_is(word, "plain"); }

/* Parses an arm: dflash:7, tree:22, auto. */
static bool parse_arm(str word, tandem_speculation *how, err *e)
{
    size_t  n = 0;
    int64_t k = 0;
    while (n < word.n && word.s[n] != ':') n++;
    how->method = TANDEM_SPEC_OFF;
    for (int m = SPEC_DFLASH; m <= SPEC_AUTO; m++)
        if (str_is((str){word.s, n}, spec_method_names[m])) how->method = (tandem_method)m;
    if (how->method == TANDEM_SPEC_OFF)
        return err_set(e, ERR_INPUT, "'%.*s' is none of %s, %s, %s, %s, %s", STR_ARG(word), spec_method_names[1],
                       spec_method_names[2], spec_method_names[3], spec_method_names[4], spec_method_names[5]);
    if (n < word.n && (!str_to_i64((str){word.s + n + 1, word.n - n - 1}, &k) || k < 1 || k > DRAFT_MAX))
        return err_set(e, ERR_INPUT, "'%.*s' has no number from 1 to %d", STR_ARG(word), DRAFT_MAX);
    if (k && how->method == TANDEM_SPEC_TREE) how->tree_budget = (int)k;
    if (k && how->method != TANDEM_SPEC_TREE) how->draft_max = (int)k;
    return true;
}

bool arms_check(const char *list, err *e)
{
    tandem_speculation unused = {0};
    int                n      = 2;
    if (list && !list[0]) return err_set(e, ERR_INPUT, "the list is empty");
    for (const char *at = list ? list : ""; *at;) {
        str word = str_next_word(&at);
        if (is_plain(word)) continue;
        if (!parse_arm(word, &unused, e)) return false;
        n++;
    }
    return n <= ARMS_MAX || err_set(e, ERR_INPUT, "the list has more than %d entries", ARMS_MAX - 2);
}

static void add_arm(arm_choice *out, int *n, str name, tandem_speculation how)
{
    arm_choice *a = &out[(*n)++];
    snprintf(a->name, sizeof a->name, "%.*s", STR_ARG(name));
    a->spec = how;
}

bool arms_choose(arm_choice out[ARMS_MAX], int *n, const char *list, const spec *s, const tandem_speculation *base,
                 err *e)
{
    *n = 0;
    add_arm(out, n, STR("off"), (tandem_speculation){0});
    add_arm(out, n, STR("off again"), (tandem_speculation){0});
    for (const char *at = list ? list : "dflash,tree,mtp,ngram,auto"; *at;) {
        tandem_speculation how  = *base;
        str                word = str_next_word(&at);
        if (is_plain(word)) continue;
        if (!parse_arm(word, &how, e)) return false;
        if (how.method == TANDEM_SPEC_AUTO || spec_has_drafter(s, (spec_method)how.method))
            add_arm(out, n, word, how);
        else if (list)
            return err_set(e, ERR_INPUT, "--methods: there is no drafter for %.*s", STR_ARG(word));
    }
    return true;
}

bool arms_agree(tok_ids *was, const tok_ids *text, bool first)
{
    if (first) {
        tok_ids_clear(was);
        tok_ids_put_n(was, text->p, text->n);
    }
    return text->n == was->n && (!was->n || !memcmp(text->p, was->p, was->n * sizeof *was->p));
}

void arms_put_rounds(json_writer *w, const tandem_spec_counts *s)
{
    json_key(w, "rounds");
    json_begin_object(w);
    json_member_int(w, "plain", s->plain_rounds);
    for (int m = SPEC_OFF + 1; m < SPEC_COUNTED; m++)
        if (s->rounds_by_method[m]) json_member_int(w, spec_method_name(m), s->rounds_by_method[m]);
    json_end(w);
}
