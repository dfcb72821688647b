/* Compiles any bytes as a grammar, as a schema and as a regular expression. It must compile in bounded time and
 * memory or be refused with a sentence. Then walks along the masks: the machine must accept every token of a mask and
 * no other, and the text must stay within the grammar. The first byte chooses the reader and the walk. */
#include "base/mem.h"
#include "chat/gemma4_inside.h"
#include "grammar/inside.h"
#include "require.h"
#include "tok/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS = 24, LONG_RUN = 10000, END = 1 };
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__) /* the fuzzer's builds have sanitizers */
#define MAX_CPU_S 2.0
#else
#define MAX_CPU_S 0.5
#endif

static const grammar_vocab *vocab(void)
{
    static const char *const pieces[] = {
        "<pad>", "<eos>", "<|turn>", "a",    "b",   "ab",       "abc",      "{", "}",     "[", "]",
        "\"",    ":",     ",",       "{\"",  "\":", "\",",      "\"}",      "1", "12",    "-", ".",
        "e1",    "true",  "false",   "null", "\\n", "\xC3\xA9", "aaaaaaaa", " ", "\",\"a"};
    static grammar_vocab *v;
    static vocab_source   s;
    err                   e;
    tok                  *t;
    int32_t               end = END;
    if (v) return v;
    vocab_source_init(&s, NULL);
    for (size_t i = 0; i < COUNT(pieces); i++)
        REQUIRE(vocab_source_set(&s, (int64_t)i, str_of(pieces[i]), i < 3 ? TOK_CONTROL : TOK_NORMAL, &e));
    for (int i = 0; i < 256; i++) {
        static char name[256][8];
        snprintf(name[i], sizeof name[i], "<0x%02X>", (unsigned)i);
        REQUIRE(vocab_source_set(&s, s.n, str_of(name[i]), TOK_BYTE, &e));
    }
    REQUIRE(vocab_build(&t, &s, &e) && grammar_vocab_new(&v, t, &end, 1, &e));
    return v;
}

/* The chosen of the tokens that are allowed; all of them agree with grammar_take. */
static int32_t choose(grammar_machine *m, grammar_state s, const uint64_t *mask, int32_t n, uint32_t which)
{
    int32_t picked = -1, n_allowed = 0;
    bool    full = false;
    for (int32_t id = 0; id < n; id++) n_allowed += mask[id >> 6] >> (id & 63) & 1;
    uint64_t copy[8];
    REQUIRE(n_allowed > 0 && grammar_mask_words(vocab()) <= COUNT(copy));
    memcpy(copy, mask, grammar_mask_words(vocab()) * sizeof *copy);
    int32_t left = (int32_t)(which % (uint32_t)n_allowed);
    for (int32_t id = 0; id < n && !full; id++) {
        bool          bit = copy[id >> 6] >> (id & 63) & 1;
        grammar_state to  = grammar_take(m, s, id);
        full              = to == GRAMMAR_FULL;
        REQUIRE(full || bit == (to >= 0 || to == GRAMMAR_ENDED));
        grammar_drop(m, to);
        if (bit && !left--) picked = id;
    }
    return full ? -1 : picked;
}

/* The same letter again and again: states enough to have the pools swept, where the grammar counts. */
static void run_long(grammar_machine *m)
{
    grammar_state s = grammar_start(m);
    for (int i = 0; i < LONG_RUN && s >= 0; i++) {
        grammar_state to = grammar_take_bytes(m, s, STR("a"));
        grammar_drop(m, s);
        s = to;
    }
    if (s >= 0) grammar_mask(m, s, NULL);
    grammar_drop(m, s);
}

/* The tokens that must come next are all accepted. */
static void check_ahead(grammar_machine *m, grammar_state s)
{
    int32_t ahead[8];
    int     n = grammar_forced_tokens(m, s, ahead, 8);
    grammar_fork(m, s);
    for (int i = 0; i < n && s >= 0; i++) {
        grammar_state to = grammar_take(m, s, ahead[i]);
        REQUIRE(to >= 0 || to == GRAMMAR_FULL);
        grammar_drop(m, s);
        s = to;
    }
    grammar_drop(m, s);
}

static void walk(const grammar *g, uint32_t which)
{
    grammar_machine *m;
    err              e = {0};
    if (!grammar_machine_new(&m, g, vocab(), &e)) { /* a token that is not there */
        REQUIRE(e.text[0]);
        return;
    }
    if (which & 0x40) grammar_machine_warm(m);
    if (which >= 0xF0) run_long(m);
    grammar_state s = grammar_start(m);
    for (int i = 0; i < STEPS && s >= 0; i++) {
        const uint64_t *mask = grammar_mask(m, s, &e);
        if (!mask) break;
        int32_t id = choose(m, s, mask, vocab()->n, which = which * 1664525u + 1013904223u);
        if (id < 0) break;
        check_ahead(m, s);
        grammar_state to = grammar_take(m, s, id);
        REQUIRE(id != END || (to == GRAMMAR_ENDED && grammar_can_end(m, s)));
        grammar_drop(m, s);
        s = to;
    }
    grammar_drop(m, s);
    grammar_machine_free(m);
}

/* Returns the CPU time of this process: a stopped process is not slow. */
static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static bool compile_schema(grammar **g, str text, const tok_markup *dialect, err *e)
{
    arena             mem;
    const json_value *tree;
    arena_init(&mem, (size_t)64 << 20);
    *g      = NULL;
    bool ok = json_parse(&tree, &mem, text, NULL, e) && grammar_from_schema(g, tree, dialect, NULL, e);
    arena_deinit(&mem);
    return ok;
}

/* The lowest values of `how` are regular expressions, the others as the remainder says. */
static bool compile(grammar **g, str text, uint8_t how, err *e)
{
    enum { REGEX = 8 };
    if (how < REGEX) return grammar_from_regex(g, text, NULL, e);
    if (how % 3 == 0) return grammar_from_gbnf(g, text, NULL, e);
    return compile_schema(g, text, how % 3 == 1 ? NULL : gemma4_tokens.markup, e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    str      text   = {(const char *)data + 1, size - 1};
    err      e      = {0};
    grammar *g      = NULL;
    double   before = cpu_seconds();
    bool     ok     = compile(&g, text, data[0], &e);
    REQUIRE(cpu_seconds() - before < MAX_CPU_S);
    REQUIRE(ok == (g != NULL) && ok == !e.text[0]);
    if (ok) walk(g, data[0]);
    grammar_free(g);
    return 0;
}
