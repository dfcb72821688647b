#include "server/text.h"

#include "base/mem.h"

/* --- bodies ---------------------------------------------------------------------------------------*/
static bool is_utf8(str s)
{
    uint32_t cp;
    for (int k; s.n; s.s += k, s.n -= (size_t)k)
        if (!(k = utf8_decode(s.s, s.n, &cp))) return false;
    return true;
}

/* Writes the text of a token, or a list of its bytes if it is only a part of a character. */
static void put_piece(json_writer *w, const tok *t, int32_t id)
{
    str bytes = tok_bytes(t, id);
    json_begin_object(w);
    json_member_int(w, "id", id);
    json_key(w, "piece");
    if (is_utf8(bytes)) {
        json_put_str(w, bytes);
    } else {
        json_begin_array(w);
        for (size_t i = 0; i < bytes.n; i++) json_put_int(w, (unsigned char)bytes.s[i]);
        json_end(w);
    }
    json_end(w);
}

static bool check_room(const buf *out, server_error *why)
{
    if (out->failed && !out->over) return error_no_memory(why);
    return !out->failed || error_set(why, 413, NULL, "request_too_large",
                                     "The reply would be too large: it may have %d MiB.", TEXT_MAX_REPLY >> 20);
}

static bool text_tokenize(server_request *r, const tandem *t, buf *out, server_error *why)
{
    tok_ids    *ids = &r->rendered.ids;
    json_writer w;
    err         e = {0};
    if (!request_open(r, t, why)) return false;
    bool        vllm = r->tokenize.prompt.s; /* their defaults differ */
    const char *name = vllm ? "prompt" : "content";
    str         text = vllm ? r->tokenize.prompt : r->tokenize.content;
    bool        bos  = vllm ? r->tokenize.add_special_tokens : r->tokenize.add_special;
    if (!text.s) return error_set(why, 400, "content", NULL, "'content' must be a string.");
    if (bos && tok_bos(engine_tok(t)) >= 0) tok_ids_put(ids, tok_bos(engine_tok(t)));
    if (!tok_encode(engine_tok(t), ids, text, r->tokenize.parse_special, &e)) return error_take(why, &e, name, false);
    json_writer_init(&w, out);
    json_begin_object(&w);
    if (vllm) {
        json_member_int(&w, "count", (int64_t)ids->n);
        json_member_int(&w, "max_model_len", engine_info(t)->n_ctx);
    }
    json_key(&w, "tokens");
    json_begin_array(&w);
    for (size_t i = 0; i < ids->n; i++)
        if (r->tokenize.with_pieces)
            put_piece(&w, engine_tok(t), ids->p[i]);
        else
            json_put_int(&w, ids->p[i]);
    json_end(&w);
    json_end(&w);
    out->failed |= ids->failed;
    return check_room(out, why);
}

static bool read_tokens(server_request *r, const tandem *t, server_error *why)
{
    const json_value *v = r->tokenize.tokens;
    if (!v) return error_set(why, 400, "tokens", NULL, "'tokens' must be a list of token ids.");
    for (size_t i = 0; i < v->n; i++) {
        const json_value *x = &v->item[i];
        if (x->kind != JSON_INT || x->i < 0 || x->i >= tok_size(engine_tok(t)))
            return error_set(why, 400, "tokens", NULL,
                             "'tokens' must be a list of token ids below %d; item %zu is not one.",
                             tok_size(engine_tok(t)), i);
        tok_ids_put(&r->rendered.ids, (int32_t)x->i);
    }
    return true;
}

static void put_member(buf *out, const char *key, const buf *text)
{
    json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, key);
    json_put_str(&w, buf_str(text));
    json_end(&w);
    out->failed |= text->failed;
}

static bool text_detokenize(server_request *r, const tandem *t, buf *out, server_error *why)
{
    buf         text;
    json_writer w;
    if (!request_open(r, t, why) || !read_tokens(r, t, why)) return false;
    buf_init(&text, TEXT_MAX_REPLY);
    tok_decode(engine_tok(t), r->rendered.ids.p, r->rendered.ids.n, true, &text);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "content");
    json_put_str(&w, buf_str(&text));
    json_key(&w, "prompt"); /* vLLM's name of it */
    json_put_str(&w, buf_str(&text));
    json_end(&w);
    out->failed |= text.failed || r->rendered.ids.failed;
    buf_deinit(&text);
    return check_room(out, why);
}

static bool text_template(server_request *r, const tandem *t, buf *out, server_error *why)
{
    buf text;
    buf_init(&text, CHAT_MAX_PROMPT);
    bool ok = request_render(r, t, &text, why);
    if (ok) put_member(out, "prompt", &text);
    buf_deinit(&text);
    return ok && check_room(out, why);
}

static bool text_count(server_request *r, const tandem *t, buf *out, server_error *why)
{
    size_t n = 0;
    if (!request_count(r, t, &n, why)) return false;
    if (request_needs_media(r)) return true; /* called again when they are loaded */
    bool object = r->endpoint != FIELD_MESSAGES;
    buf_printf(out, "{%s\"input_tokens\":%zu}", object ? "\"object\":\"response.input_tokens\"," : "", n);
    return check_room(out, why);
}

/* --- calls ----------------------------------------------------------------------------------------*/
/* Reads a request that request_init made for the endpoint, and appends the reply, a JSON object. */
typedef bool text_fn(server_request *r, const tandem *t, buf *out, server_error *why);

struct text_job {
    work_item      item;
    server        *s;
    server_call   *call; /* NULL: it ended */
    text_fn       *fn;
    server_request request;
    size_t         of_body, held_bytes; /* bytes that are counted, among the bodies and of all requests */
    buf            out;
    atomic_bool    client_left;
    bool           ok;
    server_error   why;
};

/* Counts the memory of the call, at most half of the limit, so that completions have the rest. */
static bool hold_memory(text_job *x)
{
    x->held_bytes = request_bytes(&x->request) + x->out.cap;
    return server_hold(x->s, x->held_bytes, x->s->opt->max_held_bytes / 2, &x->why);
}

static void run_text_job(work_item *item)
{
    text_job *x = (text_job *)item;
    x->ok       = x->fn(&x->request, x->s->engine, &x->out, &x->why);
    if (x->ok && !request_needs_media(&x->request)) x->ok = hold_memory(x);
}

/* Runs on a worker for media, after the first run found some. */
static void load_and_run(work_item *item)
{
    text_job *x = (text_job *)item;
    x->ok       = media_load(&x->request, x->s->engine, &x->s->media, &x->client_left, &x->why);
    if (x->ok) run_text_job(item);
}

static void free_text_job(text_job *x)
{
    request_forget(&x->request);
    server_body_is_freed(x->s, x->of_body);
    server_let_go(x->s, x->held_bytes);
    buf_deinit(&x->out);
    x->s->n_users--;
    mem_free(x);
}

/* Keeps the bytes of the reply counted until it is sent. */
static void reply_whole(text_job *x)
{
    x->call->reply_bytes = x->out.cap;
    x->held_bytes -= x->out.cap;
    call_reply(x->s, x->call, 200, "application/json", buf_str(&x->out));
}

/* Gives a job with media that are not loaded to a worker for media. Returns false if it has none. */
static bool pass_on(text_job *x)
{
    if (!x->ok || !x->call || !request_needs_media(&x->request)) return false;
    x->item.kind  = WORK_MEDIA;
    x->item.run   = load_and_run;
    x->item.share = str_hash(str_of(x->call->tenant));
    if (work_is_full(x->s->work, WORK_MEDIA, x->item.share))
        return x->ok = error_take(&x->why, &(err){.code = ERR_BUSY}, NULL, false);
    work_put(x->s->work, &x->item);
    return true;
}

static void text_job_done(work_item *item)
{
    text_job *x = (text_job *)item;
    if (!item->skipped && pass_on(x)) return;
    if (item->skipped) x->ok = error_shutting_down(&x->why);
    if (x->call) {
        x->call->text    = NULL;
        x->call->warning = x->request.warning;
        if (x->ok)
            reply_whole(x);
        else
            call_refuse(x->s, x->call, &x->why);
        x->call->warning = NULL;
    }
    free_text_job(x);
}

void text_on_end(text_job *x)
{
    x->call = NULL;
    atomic_store(&x->client_left, true);
    if (work_withdraw(x->s->work, &x->item)) free_text_job(x);
}

static void start_text_job(server *s, server_call *c, int endpoint, text_fn *fn)
{
    buf          body;
    server_error why;
    if (!server_takes(s, WORK_SLOW, &why)) {
        call_refuse(s, c, &why);
        return;
    }
    text_job *x = call_alloc(s, c, sizeof *x);
    if (!x) return;
    size_t of_body = http_take_body(c->http, &body);
    *x             = (text_job){.item    = {.run = run_text_job, .done = text_job_done, .kind = WORK_SLOW},
                                .s       = s,
                                .call    = c,
                                .fn      = fn,
                                .of_body = of_body};
    buf_init(&x->out, TEXT_MAX_REPLY);
    request_init(&x->request, endpoint, &body);
    request_name(&x->request, s->opt->model, s->opt->aliases, s->opt->n_aliases);
    c->text = x;
    s->n_users++;
    work_put(s->work, &x->item);
}

void endpoint_tokenize(server *s, server_call *c) { start_text_job(s, c, FIELD_TOKENIZE, text_tokenize); }
void endpoint_detokenize(server *s, server_call *c) { start_text_job(s, c, FIELD_DETOKENIZE, text_detokenize); }
void endpoint_template(server *s, server_call *c) { start_text_job(s, c, FIELD_CHAT, text_template); }
void endpoint_count(server *s, server_call *c) { start_text_job(s, c, FIELD_MESSAGES, text_count); }
void endpoint_ollama_show(server *s, server_call *c) { start_text_job(s, c, FIELD_OLLAMA_CHAT, ollama_show); }
void endpoint_ollama_pull(server *s, server_call *c) { start_text_job(s, c, FIELD_OLLAMA_CHAT, ollama_pull); }
void endpoint_count_chat(server *s, server_call *c) { start_text_job(s, c, FIELD_CHAT, text_count); }
void endpoint_count_responses(server *s, server_call *c) { start_text_job(s, c, FIELD_RESPONSES, text_count); }
