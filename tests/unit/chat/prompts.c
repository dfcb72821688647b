#include "chat/prompts_inside.h"

#include "chat/gemma4_inside.h"
#include "test.h"

enum { N = 20 };

static void check_prompts(test_case *t, prompt_maker *p, int n_tokens)
{
    tok_ids id[N];
    err     e = {0};
    for (int i = 0; i < N; i++) {
        tok_ids_init(&id[i], 1 << 16);
        CHECK_OK(prompts_next(p, &id[i], n_tokens, &e), e);
        CHECK_INT(id[i].n, n_tokens);
        for (size_t k = 0; k < id[i].n; k++)
            if (id[i].p[k] < 0 || id[i].p[k] >= p->n_vocab) CHECK_MSG(false, "token %d", id[i].p[k]);
        for (int k = 0; k < i; k++) {
            size_t same = 0;
            while (same < id[i].n && id[i].p[same] == id[k].p[same]) same++;
            CHECK_MSG(same <= p->at + 4, "prompts %d and %d share %zu tokens", k, i, same);
        }
    }
    CHECK(!prompts_next(p, &id[0], prompts_shortest(p) - 1, &e) && strstr(e.text, "too short"));
    for (int i = 0; i < N; i++) tok_ids_deinit(&id[i]);
}

TEST(chat_prompts_have_their_length_and_differ)
{
    gguf        *g;
    tok         *k = NULL;
    prompt_maker p;
    err          e = {0};
    chat_options o = {.format = &gemma4_format, .add_generation_prompt = true};
    if (!CHECK_OK(gguf_open(&g, test_path("models/nano/target.gguf"), &e), e)) return;
    CHECK_OK(tok_from_gguf(&k, g, &gemma4_tokens, &e), e);
    gguf_close(g);
    if (CHECK_OK(prompts_init(&p, k, &o, tok_size(k), &e), e)) {
        CHECK(p.at > 0 && p.frame.n > p.at + 5);
        check_prompts(t, &p, prompts_shortest(&p));
        check_prompts(t, &p, 300);
    }
    prompts_deinit(&p);
    tok_free(k);
}

/* Figures of two versions compare only when the prompts are the same. */
TEST(chat_prompts_stay_as_they_are)
{
    gguf        *g;
    tok         *k = NULL;
    prompt_maker p;
    tok_ids      ids;
    buf          text;
    err          e = {0};
    chat_options o = {.format = &gemma4_format, .add_generation_prompt = true};
    if (!CHECK_OK(gguf_open(&g, test_path("models/nano/target.gguf"), &e), e)) return;
    CHECK_OK(tok_from_gguf(&k, g, &gemma4_tokens, &e), e);
    gguf_close(g);
    tok_ids_init(&ids, 1 << 16);
    buf_init(&text, 1 << 16);
    if (CHECK_OK(prompts_init(&p, k, &o, tok_size(k), &e), e)) {
        for (int i = 0; i < 2; i++) CHECK_OK(prompts_next(&p, &ids, 150, &e), e);
        tok_decode(k, ids.p, ids.n, true, &text);
        CHECK(str_starts(buf_str(&text),
                         "<bos><|turn>user\n9574. Emma sold 40 pears in Rome at noon.\n6076. Emma bought "));
        CHECK_INT(str_hash(buf_str(&text)) >> 1, 4842417088349117937);
    }
    prompts_deinit(&p);
    buf_deinit(&text);
    tok_ids_deinit(&ids);
    tok_free(k);
    CHECK_OK(prompts_init(&p, NULL, NULL, 5000, &e), e);
    tok_ids_init(&ids, 8);
    CHECK_OK(prompts_next(&p, &ids, 8, &e), e);
    static const int32_t want[8] = {516, 4317, 1092, 3172, 2781, 1726, 3399, 3613};
    for (int i = 0; i < 8; i++) CHECK_INT(ids.p[i], want[i]);
    tok_ids_clear(&ids);
    CHECK_FAILS(prompts_next(&p, &ids, 9, &e), e, "a prompt of 9 tokens is too long");
    prompts_deinit(&p);
    tok_ids_deinit(&ids);
}

TEST(bench_prompts_without_words)
{
    prompt_maker p;
    err          e = {0};
    CHECK_OK(prompts_init(&p, NULL, NULL, 5000, &e), e);
    check_prompts(t, &p, 64);
    prompts_deinit(&p);
}
