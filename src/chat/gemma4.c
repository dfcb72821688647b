#include "chat/gemma4.h"

static bool put_marker(tok_ids *out, const tok *t, const char *name, err *e)
{
    int32_t id = tok_find(t, str_of(name));
    if (id < 0) return err_set(e, ERR_INPUT, "the tokenizer has no %s: this is not a chat model, use --raw", name);
    return tok_ids_put(out, id) || err_set(e, ERR_TOO_LARGE, "the prompt is too long");
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static str trim(str s)
{
    while (s.n && is_space(s.s[0])) s = (str){s.s + 1, s.n - 1};
    while (s.n && is_space(s.s[s.n - 1])) s.n--;
    return s;
}

/* One stretch of plain text between two markers; encoded whole, since merges do not stop at our seams. */
static bool put_text(tok_ids *out, const tok *t, const char *head, str text, err *e)
{
    buf b;
    buf_init(&b, TOK_MAX_INPUT);
    buf_puts(&b, head);
    buf_put(&b, text.s, text.n);
    bool ok = b.failed ? err_set(e, ERR_TOO_LARGE, "the prompt is longer than %zu MiB", TOK_MAX_INPUT >> 20)
                       : tok_encode(t, out, buf_str(&b), false, e);
    buf_deinit(&b);
    return ok;
}

bool gemma4_user_prompt(tok_ids *out, const tok *t, str text, bool empty_thought, err *e)
{
    const str none = {0};
    if (!put_marker(out, t, "<bos>", e) || !put_marker(out, t, "<|turn>", e) ||
        !put_text(out, t, "user\n", trim(text), e) || !put_marker(out, t, "<turn|>", e) ||
        !put_text(out, t, "\n", none, e) || !put_marker(out, t, "<|turn>", e) || !put_text(out, t, "model\n", none, e))
        return false;
    return !empty_thought || (put_marker(out, t, "<|channel>", e) && put_text(out, t, "thought\n", none, e) &&
                              put_marker(out, t, "<channel|>", e));
}
