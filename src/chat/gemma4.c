/* Gemma 4's prompt, turn by turn.
 *
 *      <bos><|turn>system\n <|think|>\n TEXT <|tool>declaration...<tool|> <turn|>\n
 *      <|turn>user\n TEXT <turn|>\n
 *      <|turn>model\n <|channel>thought\n REASONING \n<channel|> <|tool_call>call:...<tool_call|>
 *          <|tool_response>response:...<tool_response|> TEXT <turn|>\n
 *
 * (spaces are for the reader only.) A tool's answer has no turn: it follows the call. The order of the steps and
 * their conditions are those of the published templates, odd ones included; the rules of a revision (gemma4.h) describe
 * the differences. */
#include "chat/gemma4_inside.h"

#include "base/mem.h"

#include <assert.h>

/* --- output -------------------------------------------------------------------------------------*/
static const char *const marker_names[] = {
    [GEMMA4_BOS]          = "<bos>",
    [GEMMA4_EOS]          = "<eos>",
    [GEMMA4_TURN]         = "<|turn>",
    [GEMMA4_TURN_END]     = "<turn|>",
    [GEMMA4_THINK]        = "<|think|>",
    [GEMMA4_TOOL]         = "<|tool>",
    [GEMMA4_TOOL_END]     = "<tool|>",
    [GEMMA4_CALL]         = "<|tool_call>",
    [GEMMA4_CALL_END]     = "<tool_call|>",
    [GEMMA4_RESPONSE]     = "<|tool_response>",
    [GEMMA4_RESPONSE_END] = "<tool_response|>",
    [GEMMA4_QUOTE]        = "<|\"|>",
    [GEMMA4_CHANNEL]      = "<|channel>",
    [GEMMA4_CHANNEL_END]  = "<channel|>",
    [GEMMA4_IMAGE]        = "<|image|>",
    [GEMMA4_AUDIO]        = "<|audio|>",
    [GEMMA4_VIDEO]        = "<|video|>",
    [GEMMA4_MARKERS]      = "<|image>", /* from here on: not written by the template; they enclose media */
    "<image|>",
    "<|audio>",
    "<audio|>",
    NULL,
};

static const char *const printed_names[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                            "<|tool_response>", "<tool_response|>", "<|\"|>",       NULL};
static const char *const stop_names[]    = {"<eos>", "<turn|>", "<|tool_response>", NULL};

static const tok_markup markup = {.turn_close    = "<turn|>",
                                  .thought_open  = "<|channel>",
                                  .thought_close = "<channel|>",
                                  .call_open     = "<|tool_call>",
                                  .call_prefix   = "call:",
                                  .call_close    = "<tool_call|>",
                                  .quote         = "<|\"|>"};

const tok_family gemma4_tokens = {.gguf_model = "gemma4",
                                  .bos        = "<bos>",
                                  .eos        = "<eos>",
                                  .pad        = "<pad>",
                                  .unk        = "<unk>",
                                  .markers    = marker_names,
                                  .printed    = printed_names,
                                  .stops      = stop_names,
                                  .markup     = &markup};

const chat_format gemma4_format = {
    .title   = "Gemma 4",
    .tokens  = &gemma4_tokens,
    .outline = "{{- if .Tools }}{{ .Tools }}{{ end }}{{ range .Messages }}<|turn>{{ .Role }}\n{{ .Content }}<turn|>\n"
               "{{ end }}<|turn>model\n",
    .detect  = gemma4_detect,
    .revision_name = gemma4_revision_name,
    .render        = gemma4_render,
    .parser        = &gemma4_parser_ops,
};

str gemma4_marker_name(gemma4_marker m) { return str_of(marker_names[m]); }

void gemma4_put_marker(gemma4_out *o, gemma4_marker m) { chat_out_marker(&o->to, gemma4_marker_name(m)); }
void gemma4_put(gemma4_out *o, str text) { chat_out_text(&o->to, text); }
void gemma4_puts(gemma4_out *o, const char *text) { gemma4_put(o, str_of(text)); }

static void put_medium(gemma4_out *o, const chat_part *part)
{
    static const gemma4_marker marker[] = {
        [CHAT_IMAGE] = GEMMA4_IMAGE, [CHAT_AUDIO] = GEMMA4_AUDIO, [CHAT_VIDEO] = GEMMA4_VIDEO};
    bool lines = (o->rules & GEMMA4_MEDIA_LINES) && part->kind != CHAT_AUDIO;
    if (lines) gemma4_puts(o, "\n\n");
    chat_out_send(&o->to, &(chat_segment){CHAT_SEG_MEDIA, gemma4_marker_name(marker[part->kind]), part});
    if (lines) gemma4_puts(o, "\n\n");
}

/* --- the walk -----------------------------------------------------------------------------------*/
typedef enum { AFTER_TEXT, AFTER_CALL, AFTER_RESPONSE } after;

typedef struct {
    gemma4_out          out;
    const chat         *c;
    const chat_message *message;       /* messages after the system turn */
    size_t              n, after_user; /* after_user: index after the last user message */
    int                 prev_role;     /* role of the last message other than a tool's; -1 before the first */
    after               prev;          /* how the last message ended */
    bool                turn_closed;   /* the last thing written was <turn|>\n */
} walk;

static bool follows(const walk *w, gemma4_rule rule) { return w->out.rules & rule; }

static void end_turn(walk *w)
{
    gemma4_put_marker(&w->out, GEMMA4_TURN_END);
    gemma4_puts(&w->out, "\n");
    w->turn_closed = true;
}

static void open_thought(gemma4_out *o)
{
    gemma4_put_marker(o, GEMMA4_CHANNEL);
    gemma4_puts(o, "thought\n");
}

static void empty_thought(gemma4_out *o)
{
    open_thought(o);
    gemma4_put_marker(o, GEMMA4_CHANNEL_END);
}

/* --- the system turn ----------------------------------------------------------------------------*/
/* Refuses what the template cannot write when it is to be followed exactly. */
static void beyond_template(walk *w, const char *what)
{
    if (w->out.opt->exact) chat_out_fail(&w->out.to, ERR_INPUT, "the template does not support %s", what);
}

/* Joins the parts like those of a user's message where the template cannot write them. */
static void system_text(walk *w, const chat_content *c)
{
    bool parts = follows(w, GEMMA4_SYSTEM_PARTS);
    if (c->kind == CHAT_PARTS && !parts) beyond_template(w, "a system text in parts");
    if (c->kind == CHAT_STRING) gemma4_put(&w->out, chat_trim(c->text));
    for (size_t i = 0; c->kind == CHAT_PARTS && i < c->n_parts; i++) {
        gemma4_put(&w->out, chat_trim(c->part[i].text));
        if (parts) gemma4_puts(&w->out, " ");
    }
}

static void system_turn(walk *w)
{
    gemma4_out *o     = &w->out;
    bool        first = w->n && chat_is_system(&w->message[0]);
    if (!first && !o->opt->thinking && !w->c->n_tools) return;
    gemma4_put_marker(o, GEMMA4_TURN);
    gemma4_puts(o, "system\n");
    if (o->opt->thinking) {
        gemma4_put_marker(o, GEMMA4_THINK);
        if (follows(w, GEMMA4_THINK_LINE)) gemma4_puts(o, "\n");
    }
    if (first) {
        system_text(w, &w->message[0].content);
        w->message++;
        w->n--;
    }
    for (size_t i = 0; i < w->c->n_tools; i++) gemma4_put_declaration(o, &w->c->tool[i]);
    end_turn(w);
}

/* --- calls and their answers --------------------------------------------------------------------*/
static void put_call(walk *w, const chat_call *call)
{
    gemma4_out *o    = &w->out;
    json_kind   kind = call->args ? call->args->kind : JSON_NULL;
    gemma4_put_marker(o, GEMMA4_CALL);
    gemma4_puts(o, "call:");
    gemma4_put(o, call->name);
    gemma4_puts(o, "{");
    if (kind == JSON_OBJECT)
        gemma4_put_members(o, call->args, false);
    else if (follows(w, GEMMA4_ONLY_OBJECTS) && kind != JSON_NULL)
        chat_out_fail(&o->to, ERR_INPUT, "the arguments of a call to %.*s are not a JSON object", STR_ARG(call->name));
    else if (kind == JSON_STRING)
        gemma4_put(o, call->args->s);
    gemma4_puts(o, "}");
    gemma4_put_marker(o, GEMMA4_CALL_END);
}

static void begin_response(gemma4_out *o, str name)
{
    gemma4_put_marker(o, GEMMA4_RESPONSE);
    gemma4_puts(o, "response:");
    gemma4_put(o, name);
    gemma4_puts(o, "{");
}

static void end_response(gemma4_out *o)
{
    gemma4_puts(o, "}");
    gemma4_put_marker(o, GEMMA4_RESPONSE_END);
}

static void put_response(gemma4_out *o, str name, const json_value *v)
{
    begin_response(o, name);
    if (v && v->kind == JSON_OBJECT) {
        gemma4_put_members(o, v, false);
    } else {
        gemma4_puts(o, "value:");
        gemma4_put_value(o, v, false);
    }
    end_response(o);
}

/* Writes all texts of an answer as one string, then its media, which some revisions leave out. */
static void put_response_parts(walk *w, str name, const chat_content *c)
{
    gemma4_out *o = &w->out;
    begin_response(o, name);
    gemma4_puts(o, "value:");
    gemma4_put_marker(o, GEMMA4_QUOTE);
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == CHAT_TEXT) gemma4_put(o, c->part[i].text);
    gemma4_put_marker(o, GEMMA4_QUOTE);
    end_response(o);
    if (!follows(w, GEMMA4_ANSWER_MEDIA) && o->opt->exact) return;
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind != CHAT_TEXT) put_medium(o, &c->part[i]);
}

/* Returns the name of an answer that has none of its own, or its own; an empty one counts as none in some revisions. */
static str own_name(const walk *w, str name)
{
    return !name.s || (!name.n && follows(w, GEMMA4_UNNAMED)) ? STR("unknown") : name;
}

/* Returns the last call with the answer's id, or NULL; two that both have none fit as well. */
static const chat_call *answered_call(const chat_message *m, const chat_message *answer)
{
    const chat_call *found = NULL;
    for (size_t i = 0; i < m->n_calls; i++) {
        const chat_call *call = &m->call[i];
        if (call->has_id == answer->has_call_id && str_eq(call->id, answer->call_id)) found = call;
    }
    return found;
}

static void put_answer(walk *w, const chat_message *m, const chat_message *answer)
{
    const chat_content *c    = &answer->content;
    const chat_call    *call = answered_call(m, answer);
    str                 name = call ? call->name : own_name(w, answer->name);
    if (!follows(w, GEMMA4_UNNAMED) && !call && !answer->name.s) beyond_template(w, "a tool's response without a name");
    if (c->kind == CHAT_VALUE && c->value->kind == JSON_OBJECT)
        beyond_template(w, "a tool's response that is an object");
    if (c->kind == CHAT_PARTS) {
        put_response_parts(w, name, c);
    } else {
        json_value text = {.kind = JSON_STRING, .s = c->text};
        put_response(&w->out, name, c->kind == CHAT_STRING ? &text : c->value);
    }
}

/* Writes the answers to message i: its own, or the tool messages that follow. Returns false when there are none. */
static bool put_answers(walk *w, size_t i)
{
    const chat_message *m   = &w->message[i];
    size_t              end = i + 1;
    for (size_t k = 0; k < m->n_responses; k++)
        put_response(&w->out, own_name(w, m->response[k].name), m->response[k].response);
    if (m->n_responses) return true;
    if (!m->n_calls || !follows(w, GEMMA4_ANSWERS)) return false;
    for (; end < w->n && w->message[end].role == CHAT_TOOL; end++) put_answer(w, m, &w->message[end]);
    return end > i + 1;
}

/* --- turns --------------------------------------------------------------------------------------*/
/* Removes thoughts from a text: from <|channel> to the next <channel|>, and a <channel|> that closes nothing. */
static bool put_without_thoughts(walk *w, str text)
{
    const str open = STR("<|channel>"), close = STR("<channel|>");
    buf       kept;
    buf_init(&kept, CHAT_MAX_PROMPT);
    while (text.n) {
        const char *end  = memmem(text.s, text.n, close.s, close.n);
        size_t      n    = end ? (size_t)(end - text.s) : text.n;
        const char *from = n ? memmem(text.s, n, open.s, open.n) : NULL;
        buf_put(&kept, text.s, from ? (size_t)(from - text.s) : n);
        n += end ? close.n : 0;
        text = (str){text.s + n, text.n - n};
    }
    if (kept.over)
        chat_out_fail(&w->out.to, ERR_TOO_LARGE, "a message is longer than %zu MiB", CHAT_MAX_PROMPT >> 20);
    else if (kept.failed)
        chat_out_fail(&w->out.to, ERR_UNAVAILABLE, "no memory for a message");
    str rest = chat_trim(buf_str(&kept));
    gemma4_put(&w->out, rest);
    buf_deinit(&kept);
    return rest.n > 0;
}

static bool put_text(walk *w, chat_role role, str text)
{
    if (role == CHAT_ASSISTANT) return put_without_thoughts(w, text);
    text = chat_trim(text);
    gemma4_put(&w->out, text);
    return text.n > 0;
}

/* Returns false when nothing was written. */
static bool put_content(walk *w, const chat_message *m)
{
    const chat_content *c   = &m->content;
    bool                any = false;
    if (c->kind == CHAT_STRING) return put_text(w, m->role, c->text);
    for (size_t i = 0; c->kind == CHAT_PARTS && i < c->n_parts; i++) {
        if (c->part[i].kind == CHAT_TEXT) {
            any |= put_text(w, m->role, c->part[i].text);
            continue;
        }
        put_medium(&w->out, &c->part[i]);
        any = true;
        if (follows(w, GEMMA4_MEDIA_IS_LAST)) w->prev = AFTER_TEXT;
    }
    /* the template drops a value that is the content of a tool's own turn */
    if (c->kind == CHAT_VALUE && !w->out.opt->exact) gemma4_put_value(&w->out, c->value, false);
    return any;
}

static void begin_turn(walk *w, const chat_message *m)
{
    static const char *const name[] = {[CHAT_SYSTEM]    = "system\n",
                                       [CHAT_DEVELOPER] = "developer\n",
                                       [CHAT_USER]      = "user\n",
                                       [CHAT_ASSISTANT] = "model\n",
                                       [CHAT_TOOL]      = "tool\n"};
    const chat_options      *opt    = w->out.opt;
    gemma4_put_marker(&w->out, GEMMA4_TURN);
    gemma4_puts(&w->out, name[m->role]);
    if (follows(w, GEMMA4_PAST_EMPTY) && opt->empty_thought && m->role == CHAT_ASSISTANT && !opt->thinking &&
        !m->reasoning.n)
        empty_thought(&w->out);
}

static bool shows_reasoning(const walk *w, size_t i)
{
    const chat_message *m      = &w->message[i];
    bool                recent = i >= w->after_user, calls = m->n_calls > 0;
    bool                preserved =
        w->out.opt->preserve_thinking && follows(w, GEMMA4_PRESERVE) && (calls || follows(w, GEMMA4_PRESERVE_ALL));
    return m->reasoning.n && follows(w, GEMMA4_THOUGHTS) && (recent || preserved) &&
           (calls || follows(w, GEMMA4_THOUGHTS_ALL));
}

static void put_reasoning(walk *w, size_t i)
{
    if (!shows_reasoning(w, i)) return;
    open_thought(&w->out);
    gemma4_put(&w->out, w->message[i].reasoning);
    if (!follows(w, GEMMA4_THOUGHT_BARE)) gemma4_puts(&w->out, "\n");
    gemma4_put_marker(&w->out, GEMMA4_CHANNEL_END);
}

/* Returns the first message after i that is not a tool's, or NULL. */
static const chat_message *next_message(const walk *w, size_t i)
{
    for (i++; i < w->n; i++)
        if (w->message[i].role != CHAT_TOOL) return &w->message[i];
    return NULL;
}

/* Returns whether the model's turn goes on with the next message. */
static bool continues(const walk *w, size_t i, bool answered)
{
    const chat_message *m = &w->message[i], *next = next_message(w, i);
    if (m->role != CHAT_ASSISTANT || !next || next->role != CHAT_ASSISTANT) return false;
    return follows(w, GEMMA4_JOIN_ANSWERED) ? !m->n_calls || answered : !m->n_calls && !answered;
}

/* Returns whether the turn of an answered call ends with its message. */
static bool ends_answered(const walk *w, size_t i, bool written)
{
    const chat_content *c     = &w->message[i].content;
    bool                given = c->kind == CHAT_STRING ? c->text.n > 0 : c->kind == CHAT_PARTS && c->n_parts > 0;
    if (follows(w, GEMMA4_END_BEFORE_NEXT) && next_message(w, i)) return true;
    return follows(w, GEMMA4_END_BY_TEXT) ? written : given;
}

static void finish_turn(walk *w, size_t i, bool answered, bool written)
{
    if (w->prev == AFTER_CALL && !answered && follows(w, GEMMA4_WAITS)) {
        gemma4_put_marker(&w->out, GEMMA4_RESPONSE);
    } else if (follows(w, GEMMA4_JOIN) && continues(w, i, answered)) {
        if (follows(w, GEMMA4_JOIN_LINE)) gemma4_puts(&w->out, "\n");
    } else if (!answered || ends_answered(w, i, written)) {
        end_turn(w);
    }
}

/* Returns whether the message belongs to the turn that is open. */
static bool shares_turn(const walk *w, const chat_message *m)
{
    if (follows(w, GEMMA4_ONE_TURN_TO_CALL)) return w->prev == AFTER_RESPONSE && m->n_calls;
    return follows(w, GEMMA4_ONE_TURN) && m->role == CHAT_ASSISTANT && w->prev_role == CHAT_ASSISTANT;
}

static void put_message(walk *w, size_t i)
{
    const chat_message *m = &w->message[i];
    w->turn_closed        = false;
    if (!shares_turn(w, m)) begin_turn(w, m);
    w->prev = AFTER_TEXT;
    put_reasoning(w, i);
    for (size_t k = 0; k < m->n_calls; k++) put_call(w, &m->call[k]);
    if (m->n_calls) w->prev = AFTER_CALL;
    bool answered = put_answers(w, i);
    if (answered) w->prev = AFTER_RESPONSE;
    bool written = put_content(w, m);
    finish_turn(w, i, answered, written);
    w->prev_role = (int)m->role;
}

static void generation_prompt(walk *w)
{
    gemma4_out *o     = &w->out;
    bool        turn  = w->prev == AFTER_TEXT || (w->prev == AFTER_CALL && !follows(w, GEMMA4_WAITS));
    bool        empty = turn || (w->prev == AFTER_RESPONSE && follows(w, GEMMA4_EMPTY_AFTER_ANSWER));
    if (turn || (w->turn_closed && !o->opt->exact)) {
        gemma4_put_marker(o, GEMMA4_TURN);
        gemma4_puts(o, "model\n");
    }
    if (empty && !o->opt->thinking && o->opt->empty_thought) empty_thought(o);
    bool think_again = follows(w, GEMMA4_THINK_AGAIN) && w->prev == AFTER_RESPONSE && o->opt->thinking;
    if (think_again && !w->c->prefill.n) open_thought(o); /* a prefill comes after the thought */
}

static void put_messages(walk *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->message[i].role == CHAT_USER) w->after_user = i + 1;
    for (size_t i = 0; i < w->n && !w->out.to.failed; i++)
        if (w->message[i].role != CHAT_TOOL || !follows(w, GEMMA4_ANSWERS)) put_message(w, i);
}

bool gemma4_render(const chat *c, const chat_options *opt, const chat_sink *sink, err *e)
{
    walk w = {.out       = {.to = {.sink = sink, .e = e}, .opt = opt, .rules = gemma4_rules_of(opt->revision)},
              .c         = c,
              .message   = c->message,
              .n         = c->n,
              .prev_role = -1};
    if (!c->n) return err_set(e, ERR_INPUT, "a conversation needs a message");
    arena_init(&w.out.scratch, CHAT_MAX_PROMPT);
    buf_init(&w.out.text, CHAT_MAX_PROMPT);
    gemma4_put_marker(&w.out, GEMMA4_BOS);
    system_turn(&w);
    put_messages(&w);
    if (opt->add_generation_prompt) generation_prompt(&w);
    buf_deinit(&w.out.text);
    arena_deinit(&w.out.scratch);
    return !w.out.to.failed;
}
