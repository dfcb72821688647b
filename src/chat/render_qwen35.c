/* The prompts of Qwen 3.5, 3.6 and 3.8:
 *
 *      <|im_start|>ROLE\nCONTENT<|im_end|>\n ... <|im_start|>assistant\n<think>\n
 *
 * Contents are trimmed. Tools are declared in the system turn, as JSON. A turn of the assistant is
 *
 *      <think>\nREASONING\n</think>\n\nCONTENT\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n
 *      </function>\n</tool_call>
 *
 * with its reasoning only after the last question, unless the revision preserves it. Results of tools are a turn of the
 * user. */
#include "base/mem.h"
#include "chat/python.h"
#include "chat/qwen35.h"

/* --- writing ------------------------------------------------------------------------------------*/
/* A content as one text, with the places of its media. */
typedef struct {
    const chat_part *part;
    size_t           at; /* in the text, where its placeholder begins; n: its length */
    size_t           n;
} flat_medium;

typedef struct {
    const chat         *c;
    const chat_options *opt;
    chat_out            to;
    buf                 text;  /* the content in hand; media with their markers written out */
    flat_medium        *media; /* media of the content in hand */
    size_t              n_media, max_media;
    int                 n_images, n_videos; /* in the prompt so far */
    buf                 value;              /* a value or a tool as JSON */
} writer;

static void check_room(writer *w, const buf *b)
{
    if (b->over)
        chat_out_fail(&w->to, ERR_TOO_LARGE, "a message is longer than %zu MiB", CHAT_MAX_PROMPT >> 20);
    else if (b->failed)
        chat_out_fail(&w->to, ERR_UNAVAILABLE, "no memory for a message");
}

static void put(writer *w, str text) { chat_out_text(&w->to, text); }

/* Writes a constant text; the names of markers in it are markers. */
static void put_fixed(writer *w, const char *text)
{
    static const char *const names[] = {"<|im_start|>", "<|im_end|>",   "<think>",         "</think>",
                                        "<tool_call>",  "</tool_call>", "<tool_response>", "</tool_response>"};
    for (const char *from = text, *at = text;; at++) {
        const char *name = NULL;
        for (size_t i = 0; *at == '<' && i < COUNT(names) && !name; i++)
            if (!strncmp(at, names[i], strlen(names[i]))) name = names[i];
        if (*at && !name) continue;
        put(w, (str){from, (size_t)(at - from)});
        if (!*at) return;
        chat_out_marker(&w->to, str_of(name));
        from = at + strlen(name);
        at   = from - 1;
    }
}

/* --- contents -----------------------------------------------------------------------------------*/
static void flatten_medium(writer *w, const chat_part *part, bool count)
{
    bool image = part->kind == CHAT_IMAGE;
    int *n     = image ? &w->n_images : &w->n_videos;
    if (part->kind == CHAT_AUDIO) chat_out_fail(&w->to, ERR_INPUT, "audio input is not supported");
    *n += count;
    if (w->opt->add_vision_id) buf_printf(&w->text, "%s %d: ", image ? "Picture" : "Video", *n);
    if (w->n_media == w->max_media) {
        size_t       max  = w->max_media ? 2 * w->max_media : 8;
        flat_medium *more = mem_try_resize(w->media, max * sizeof *more);
        if (!more) {
            chat_out_fail(&w->to, ERR_UNAVAILABLE, "no memory for %zu images in a message", max);
            return;
        }
        w->media     = more;
        w->max_media = max;
    }
    size_t at = w->text.n;
    buf_printf(&w->text, "<|vision_start|>%s<|vision_end|>", image ? "<|image_pad|>" : "<|video_pad|>");
    w->media[w->n_media++] = (flat_medium){part, at, w->text.n - at};
}

/* Writes a content into w->text and returns it, trimmed. count: its media are new in the prompt. */
static str flatten(writer *w, const chat_content *c, bool count)
{
    buf_clear(&w->text);
    w->n_media = 0;
    if (c->kind == CHAT_STRING) buf_put(&w->text, c->text.s, c->text.n);
    for (size_t i = 0; c->kind == CHAT_PARTS && i < c->n_parts; i++)
        if (c->part[i].kind == CHAT_TEXT)
            buf_put(&w->text, c->part[i].text.s, c->part[i].text.n);
        else
            flatten_medium(w, &c->part[i], count);
    if (c->kind == CHAT_VALUE && w->opt->exact)
        chat_out_fail(&w->to, ERR_INPUT, "the template does not support a content of this type");
    if (c->kind == CHAT_VALUE && !python_put_json(&w->text, c->value))
        chat_out_fail(&w->to, ERR_INPUT, "a value in the conversation is nested more than %d deep", PYTHON_MAX_DEPTH);
    check_room(w, &w->text);
    return w->to.failed ? (str){0} : chat_trim(buf_str(&w->text));
}

static void put_medium(writer *w, const flat_medium *m)
{
    bool image = m->part->kind == CHAT_IMAGE;
    chat_out_marker(&w->to, STR("<|vision_start|>"));
    chat_out_send(&w->to,
                  &(chat_segment){CHAT_SEG_MEDIA, image ? STR("<|image_pad|>") : STR("<|video_pad|>"), m->part});
    chat_out_marker(&w->to, STR("<|vision_end|>"));
}

/* Writes a part of w->text. */
static void put_flat(writer *w, str part)
{
    size_t from = part.n ? (size_t)(part.s - w->text.p) : 0, end = from + part.n;
    for (size_t i = 0; part.n && i < w->n_media; i++) {
        const flat_medium *m = &w->media[i];
        if (m->at < from || m->at + m->n > end) continue;
        put(w, (str){w->text.p + from, m->at - from});
        put_medium(w, m);
        from = m->at + m->n;
    }
    if (part.n) put(w, (str){w->text.p + from, end - from});
}

/* --- the system turn ----------------------------------------------------------------------------*/
static const char effort_xhigh[] =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
static const char effort_low[] =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly "
    "to the conclusion without unnecessary elaboration.";

static const char tools_before[] = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_after[] =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and "
    "do not tell the user about function calls\n</IMPORTANT>";

/* Returns the sentence about reasoning that 3.8 puts first; NULL: none. */
static const char *effort_text(writer *w)
{
    static const struct {
        const char *name, *text;
        bool        own; /* a name of the template; the others are those of the API */
    } known[] = {{"xhigh", effort_xhigh, true}, {"medium", NULL, true},       {"low", effort_low, true},
                 {"high", effort_xhigh, false}, {"max", effort_xhigh, false}, {"minimal", effort_low, false}};
    if (w->opt->revision != QWEN38 || !w->opt->thinking) return NULL;
    if (!w->c->effort.n) return effort_xhigh;
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(w->c->effort, known[i].name) && (known[i].own || !w->opt->exact)) return known[i].text;
    chat_out_fail(&w->to, ERR_INPUT, "the reasoning effort is '%.*s', expected xhigh, medium or low",
                  STR_ARG(w->c->effort));
    return NULL;
}

static void put_member(writer *w, const char *key, const json_value *v)
{
    buf_printf(&w->value, ", \"%s\": ", key);
    if (!python_put_json(&w->value, v))
        chat_out_fail(&w->to, ERR_INPUT, "a tool is nested more than %d deep", PYTHON_MAX_DEPTH);
}

/* A tool as the client wrote it, or in the form that OpenAI's clients write. */
static void put_tool(writer *w, const chat_tool *t)
{
    json_value name = {.kind = JSON_STRING, .s = t->name};
    buf_clear(&w->value);
    if (t->source) {
        if (!python_put_json(&w->value, t->source))
            chat_out_fail(&w->to, ERR_INPUT, "a tool is nested more than %d deep", PYTHON_MAX_DEPTH);
    } else {
        buf_puts(&w->value, "{\"type\": \"function\", \"function\": {\"name\": ");
        python_put_json(&w->value, &name);
        if (t->description) put_member(w, "description", t->description);
        if (t->parameters) put_member(w, "parameters", t->parameters);
        buf_puts(&w->value, "}}");
    }
    check_room(w, &w->value);
    put_fixed(w, "\n");
    put(w, buf_str(&w->value));
}

static bool is_first_system(const writer *w) { return w->c->n && chat_is_system(&w->c->message[0]); }

/* Refuses what the template refuses, when it is to be followed exactly. */
static void check_system(writer *w, size_t i)
{
    if (!w->opt->exact) return;
    if (w->c->message[i].role == CHAT_DEVELOPER)
        chat_out_fail(&w->to, ERR_INPUT, "the template does not support the role developer");
    if (i) chat_out_fail(&w->to, ERR_INPUT, "the template supports a system message only at the beginning");
}

/* Writes the system texts: the first, and later ones, which the template refuses, after a blank line. Returns whether
 * there was any. before: a text that precedes the first. */
static bool put_system_texts(writer *w, const char *before)
{
    bool any = false;
    for (size_t i = 0; i < w->c->n && !w->to.failed; i++) {
        const chat_message *m = &w->c->message[i];
        if (!chat_is_system(m)) continue;
        check_system(w, i);
        str text = flatten(w, &m->content, false);
        if (w->n_media) chat_out_fail(&w->to, ERR_INPUT, "a system message cannot contain images or videos");
        if (!text.n) continue;
        put_fixed(w, any ? "\n\n" : before);
        put_flat(w, text);
        any = true;
    }
    return any;
}

static bool has_system_text(writer *w)
{
    for (size_t i = 0; i < w->c->n; i++)
        if (chat_is_system(&w->c->message[i]) && flatten(w, &w->c->message[i].content, false).n) return true;
    return false;
}

static void system_turn(writer *w)
{
    const char *effort = effort_text(w);
    bool        text   = has_system_text(w);
    if (!w->c->n_tools && !effort && !text && (w->opt->revision == QWEN38 || !is_first_system(w))) return;
    put_fixed(w, "<|im_start|>system\n");
    if (effort) put_fixed(w, effort);
    if (w->c->n_tools) {
        put_fixed(w, effort ? "\n\n" : "");
        put_fixed(w, tools_before);
        for (size_t i = 0; i < w->c->n_tools && !w->to.failed; i++) put_tool(w, &w->c->tool[i]);
        put_fixed(w, tools_after);
    }
    put_system_texts(w, effort || w->c->n_tools ? "\n\n" : "");
    put_fixed(w, "<|im_end|>\n");
}

/* --- turns --------------------------------------------------------------------------------------*/
static bool is_wrapped(str s) { return str_starts(s, "<tool_response>") && str_ends(s, "</tool_response>"); }

/* Returns the index of the last message that asks something, after which reasoning is shown. */
static size_t last_question(writer *w)
{
    for (size_t i = w->c->n; i-- > 0 && !w->to.failed;)
        if (w->c->message[i].role == CHAT_USER && !is_wrapped(flatten(w, &w->c->message[i].content, false))) return i;
    if (w->opt->exact) chat_out_fail(&w->to, ERR_INPUT, "the conversation has no message of a user");
    return w->c->n;
}

static const char *find_last(str s, const char *part)
{
    const char *found = NULL;
    size_t      n     = strlen(part);
    for (const char *at = s.s; s.n >= n && (at = memmem(at, (size_t)(s.s + s.n - at), part, n)); at++) found = at;
    return found;
}

static str strip_newlines(str s)
{
    while (s.n && s.s[0] == '\n') s = (str){s.s + 1, s.n - 1};
    while (s.n && s.s[s.n - 1] == '\n') s.n--;
    return s;
}

static str skip_newlines(str s)
{
    while (s.n && s.s[0] == '\n') s = (str){s.s + 1, s.n - 1};
    return s;
}

/* Separates a thought that a client left in the content. */
static void split_thought(str *content, str *thought)
{
    const str   close = STR("</think>"), open = STR("<think>");
    const char *first = content->n ? memmem(content->s, content->n, close.s, close.n) : NULL;
    if (!first) return;
    str         before = {content->s, (size_t)(first - content->s)};
    const char *last = find_last(*content, "</think>"), *from = find_last(before, "<think>");
    if (from) before = (str){from + open.n, before.n - (size_t)(from - before.s) - open.n};
    *thought = strip_newlines(before);
    *content = skip_newlines((str){last + close.n, content->n - (size_t)(last - content->s) - close.n});
}

static void put_value(writer *w, const json_value *v)
{
    bool as_json = w->opt->revision >= QWEN36 || v->kind == JSON_OBJECT || v->kind == JSON_ARRAY;
    buf_clear(&w->value);
    if (!(v->kind != JSON_STRING && as_json ? python_put_json : python_put_text)(&w->value, v))
        chat_out_fail(&w->to, ERR_INPUT, "an argument is nested more than %d deep", PYTHON_MAX_DEPTH);
    check_room(w, &w->value);
    put(w, buf_str(&w->value));
}

static void put_call(writer *w, const chat_call *call, const char *before)
{
    const json_value *args = call->args;
    put_fixed(w, before);
    put_fixed(w, "<tool_call>\n<function=");
    put(w, call->name);
    put_fixed(w, ">\n");
    if (args && args->kind != JSON_OBJECT && w->opt->exact && !(w->opt->revision == QWEN38 && !args->s.n))
        chat_out_fail(&w->to, ERR_INPUT, "the arguments of a call to %.*s are not a JSON object", STR_ARG(call->name));
    for (size_t i = 0; args && args->kind == JSON_OBJECT && i < args->n && !w->to.failed; i++) {
        put_fixed(w, "<parameter=");
        put(w, args->member[i].key);
        put_fixed(w, ">\n");
        put_value(w, &args->member[i].value);
        put_fixed(w, "\n</parameter>\n");
    }
    put_fixed(w, "</function>\n</tool_call>");
}

static void assistant_turn(writer *w, const chat_message *m, bool recent)
{
    str content = flatten(w, &m->content, true), thought = m->reasoning;
    if (!m->reasoning.s && w->opt->revision != QWEN38) split_thought(&content, &thought);
    put_fixed(w, "<|im_start|>assistant\n");
    if (recent || (w->opt->preserve_thinking && w->opt->revision >= QWEN36)) {
        put_fixed(w, "<think>\n");
        put(w, chat_trim(thought));
        put_fixed(w, "\n</think>\n\n");
    }
    put_flat(w, content);
    for (size_t i = 0; i < m->n_calls; i++) put_call(w, &m->call[i], i ? "\n" : chat_trim(content).n ? "\n\n" : "");
    put_fixed(w, "<|im_end|>\n");
}

static void tool_result(writer *w, size_t i)
{
    const chat *c     = w->c;
    bool        first = i ? c->message[i - 1].role != CHAT_TOOL : !w->opt->exact;
    if (first) put_fixed(w, "<|im_start|>user");
    put_fixed(w, "\n<tool_response>\n");
    put_flat(w, flatten(w, &c->message[i].content, true));
    put_fixed(w, "\n</tool_response>");
    if (i + 1 == c->n || c->message[i + 1].role != CHAT_TOOL) put_fixed(w, "<|im_end|>\n");
}

static void put_message(writer *w, size_t i, size_t question)
{
    const chat_message *m = &w->c->message[i];
    switch (m->role) {
    case CHAT_USER:
        put_fixed(w, "<|im_start|>user\n");
        put_flat(w, flatten(w, &m->content, true));
        put_fixed(w, "<|im_end|>\n");
        break;
    case CHAT_ASSISTANT: assistant_turn(w, m, i > question); break;
    case CHAT_TOOL: tool_result(w, i); break;
    default: break; /* in the system turn */
    }
}

bool qwen35_render(const chat *c, const chat_options *o, const chat_sink *sink, err *e)
{
    writer w = {.c = c, .opt = o, .to = {.sink = sink, .e = e}};
    if (!c->n) return err_set(e, ERR_INPUT, "a conversation needs a message");
    buf_init(&w.text, CHAT_MAX_PROMPT);
    buf_init(&w.value, CHAT_MAX_PROMPT);
    system_turn(&w);
    size_t question = last_question(&w);
    for (size_t i = 0; i < c->n && !w.to.failed; i++) put_message(&w, i, question);
    if (o->add_generation_prompt) /* a prefill comes after the thought */
        put_fixed(&w, o->thinking && !c->prefill.n ? "<|im_start|>assistant\n<think>\n"
                                                   : "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    buf_deinit(&w.text);
    buf_deinit(&w.value);
    mem_free(w.media);
    return !w.to.failed;
}
