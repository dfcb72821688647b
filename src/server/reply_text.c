/* text_completion, whole and in events, with the older form of log-probabilities: four lists of the same length. */
#include "server/reply.h"

enum { TEXT, TOKENS, LOGPROBS, TOP, OFFSETS }; /* indices of server_choice.part */

static size_t count_chars(str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.s[i] & 0xC0) != 0x80;
    return n;
}

static void text_on_event(void *choice, const chat_event *ev)
{
    server_choice *c = choice;
    buf_put_json_text(&c->part[TEXT], ev->text);
}

/* --- log-probabilities --------------------------------------------------------------------------*/
static json_writer next_item(buf *list)
{
    json_writer w;
    if (list->n) buf_putc(list, ',');
    json_writer_init(&w, list);
    return w;
}

static bool told_before(const tok *t, const tandem_logprob *x, int i)
{
    for (int k = 1; k < i; k++)
        if (str_eq(tok_bytes(t, x[k].id), tok_bytes(t, x[i].id))) return true;
    return false;
}

static void put_top(reply *r, server_choice *c, const tandem_logprob *x)
{
    json_writer w = next_item(&c->part[TOP]);
    json_begin_object(&w);
    for (int i = 1; i <= c->request->ask.logprobs && x[i].id >= 0; i++) {
        if (told_before(r->tok, x, i)) continue;
        str bytes = tok_bytes(r->tok, x[i].id);
        json_key_str(&w, bytes.n ? bytes : tok_text(r->tok, x[i].id));
        json_put_real(&w, reply_logprob(x[i].logprob));
    }
    json_end(&w);
}

/* Writes a token and the offset of its text. */
static void put_token(reply *r, server_choice *c, int32_t id)
{
    json_writer tokens = next_item(&c->part[TOKENS]), offsets = next_item(&c->part[OFFSETS]);
    json_put_int(&offsets, (int64_t)c->n_chars);
    if (tok_kind(r->tok, id) != TOK_CONTROL) c->n_chars += count_chars(tok_bytes(r->tok, id)); /* markers are no text */
    reply_put_token(&tokens, r->tok, id);
}

/* Writes log-probabilities. x: that of the token, then those of the likeliest ones; id -1: unknown. */
static void put_probs(reply *r, server_choice *c, const tandem_logprob *x)
{
    json_writer probs = next_item(&c->part[LOGPROBS]);
    if (x->id < 0) {
        json_writer top = next_item(&c->part[TOP]);
        json_put_null(&probs);
        json_put_null(&top);
        return;
    }
    json_put_real(&probs, reply_logprob(x->logprob));
    put_top(r, c, x);
}

static void text_on_token(server_choice *c, const tandem_token *x)
{
    reply *r = c->reply;
    put_token(r, c, x->id);
    put_probs(r, c, x->logprobs);
}

/* --- echo ---------------------------------------------------------------------------------------*/
static void put_prompt_text(reply *r, server_choice *c)
{
    const server_prompt *p = choice_prompt(c);
    buf                  text;
    if (p->text.s) {
        buf_put_json_text(&c->part[TEXT], p->text);
        return;
    }
    buf_init(&text, TOK_MAX_INPUT);
    tok_decode(r->tok, p->ids, p->n, false, &text);
    buf_put_json_text(&c->part[TEXT], buf_str(&text));
    c->lost |= text.failed;
    buf_deinit(&text);
}

static void text_on_prompt(server_choice *c, size_t from, size_t n)
{
    reply                *r     = c->reply;
    const server_prompt  *p     = choice_prompt(c);
    const tandem_logprob *probs = choice_prompt_logprobs(c);
    size_t                each  = (size_t)(1 + c->request->ask.logprobs);
    if (from == 0) put_prompt_text(r, c);
    for (size_t i = from; i < from + n; i++) {
        put_token(r, c, p->ids[i]);
        put_probs(r, c, probs + i * each);
    }
}

static void put_list(reply *r, server_choice *c, const char *before, int part)
{
    buf_puts(&r->out, before);
    reply_put_part(r, c, part);
    buf_putc(&r->out, ']');
}

static void put_logprobs(reply *r, server_choice *c)
{
    buf_puts(&r->out, ",\"logprobs\":");
    if (!c->part[TOKENS].n) {
        buf_puts(&r->out, "null");
        return;
    }
    put_list(r, c, "{\"tokens\":[", TOKENS);
    put_list(r, c, ",\"token_logprobs\":[", LOGPROBS);
    put_list(r, c, ",\"top_logprobs\":[", TOP);
    put_list(r, c, ",\"text_offset\":[", OFFSETS);
    buf_putc(&r->out, '}');
}

/* --- both ---------------------------------------------------------------------------------------*/
static void put_text(reply *r, server_choice *c)
{
    buf_puts(&r->out, "\"text\":\"");
    reply_put_part(r, c, TEXT);
    buf_putc(&r->out, '"');
    put_logprobs(r, c);
}

static void put_event(reply *r, server_choice *c, const char *reason)
{
    completions_chunk(r, c);
    put_text(r, c);
    completions_chunk_end(r, reason);
}

static void text_flush(server_choice *c)
{
    reply *r = c->reply;
    if (c->part[TEXT].n || choice_is_echoing(c)) put_event(r, c, NULL);
}

static void text_on_progress(server_choice *c) { put_event(c->reply, c, NULL); }

static void text_end(server_choice *c, const server_choice *all, int n, bool last)
{
    reply *r = c->reply;
    if (last) completions_last(r, all, n);
    put_event(r, c, choice_finish_reason(c));
}

static void put_choice(reply *r, server_choice *c, const char *reason)
{
    put_text(r, c);
    buf_printf(&r->out, ",\"finish_reason\":\"%s\"", reason);
}

static void text_put_whole(reply *r, server_choice *all, int n) { completions_whole(r, all, n, put_choice); }

static void text_open(reply *r, const char *model)
{
    completions_open(r, model, &(completions_names){"cmpl-", "text_completion", "text_completion"});
}

const reply_format reply_text = {.open        = text_open,
                                 .on_progress = text_on_progress,
                                 .on_prompt   = text_on_prompt,
                                 .on_event    = text_on_event,
                                 .on_token    = text_on_token,
                                 .flush       = text_flush,
                                 .end         = text_end,
                                 .done        = completions_done,
                                 .fail        = completions_fail,
                                 .ping        = completions_ping,
                                 .put_whole   = text_put_whole,
                                 .put_error   = completions_error};
