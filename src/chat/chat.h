/* chat/chat.h - a conversation, and the prompt that a model is given for it.
 *
 * A chat is built message by message or read from an OpenAI request. A renderer per family walks it and emits segments:
 * markers (special tokens, by name) and plain text. Text is encoded with the search for markers off, so nothing that a
 * user, a tool or a schema says can become a marker; only the structure makes them.
 *
 *      chat ----> chat_format.render ----> segments ----> chat_render_text   bytes, to compare with the template
 *                                                        `---> chat_render_ids    token ids, and the media among them
 *
 * The model file's own template is not run: it only selects the published revision to write (chat_format.detect).
 *
 * A chat and its arrays live in the caller's arena; texts and JSON trees are borrowed and must outlive it. One
 * thread at a time builds a chat; any number of threads may render it afterwards. */
#ifndef TANDEM_CHAT_CHAT_H
#define TANDEM_CHAT_CHAT_H
#include "decode/worker.h"
#include "media/prompt.h"
#include "tok/tok.h"
#include "json/json.h"

enum {
    CHAT_MAX_MESSAGES = 1 << 16, /* messages of a chat */
    CHAT_MAX_CALLS    = 256,     /* calls of one message: each tool result is searched for among them */
};
#define CHAT_MAX_PROMPT ((size_t)256 << 20) /* bytes of one prompt as text */

/* --- the conversation -------------------------------------------------------------------------- */
typedef enum { CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL } chat_role;
typedef enum { CHAT_TEXT, CHAT_IMAGE, CHAT_AUDIO, CHAT_VIDEO } chat_part_kind;

typedef struct {
    chat_part_kind    kind;
    str               text;   /* CHAT_TEXT */
    const json_value *source; /* media: the part as the client wrote it; NULL when built here */
    const decoded    *pixels; /* media: decoded for the model of chat_options.media; NULL: only a placeholder */
} chat_part;

typedef enum {
    CHAT_NO_CONTENT,
    CHAT_STRING, /* text */
    CHAT_PARTS,  /* part[n_parts] */
    CHAT_VALUE,  /* value: a tool's result as JSON */
} chat_content_kind;

typedef struct {
    chat_content_kind kind;
    str               text;
    chat_part        *part;
    size_t            n_parts;
    const json_value *value;
} chat_content;

/* A tool call of the assistant. */
typedef struct {
    bool              has_id;
    str               id, name;
    const json_value *args; /* an object; NULL: none; a string when the client's was not JSON */
} chat_call;

/* A result stored in the message of its call, as in Gemma's own format. */
typedef struct {
    str               name; /* name of the tool; empty: unknown */
    const json_value *response;
} chat_response;

typedef struct {
    chat_role      role;
    chat_content   content;
    str            reasoning; /* assistant, as are the calls and responses */
    chat_call     *call;
    size_t         n_calls;
    chat_response *response;
    size_t         n_responses;
    bool           has_call_id; /* tool, as are the next two */
    str            call_id, name;
} chat_message;
/* Returns whether the message is a system or developer message. */
static inline bool chat_is_system(const chat_message *m) { return m->role == CHAT_SYSTEM || m->role == CHAT_DEVELOPER; }

typedef struct {
    str               name;
    const json_value *description, *parameters, *response; /* parameters: an object; NULL when absent */
    const json_value *source; /* the tool as OpenAI's clients write it; NULL when built here */
    bool              strict; /* its arguments must match its parameters */
} chat_tool;

typedef enum { CHAT_UNSAID, CHAT_NO, CHAT_YES } chat_wish; /* CHAT_UNSAID: the request does not set it */

typedef struct {
    arena        *mem;
    chat_message *message; /* [n] */
    size_t        n, cap;
    chat_tool    *tool; /* [n_tools] */
    size_t        n_tools;
    /* Options that the request sets: chat_options. */
    chat_wish thinking, preserve_thinking, add_generation_prompt, add_vision_id;
    str       effort;       /* reasoning_effort, for formats that know it; empty: not given */
    bool      by_functions; /* the request has `functions`, the former `tools` */
    str       prefill;      /* beginning of the response, added unchanged after the prompt; empty: none */
} chat;

chat *chat_new(arena *mem); /* without messages; NULL: out of memory */
/* Appends a message with the content `text`, which is borrowed; without content if text.s is NULL. Returns the message,
 * for the other members; the pointer is valid until the next call. Returns NULL when the arena is full or there are
 * CHAT_MAX_MESSAGES. */
chat_message *chat_add(chat *c, chat_role role, str text);
/* Sets *out to the texts of the content's parts that are not empty, joined by `between`, in mem. Returns false when the
 * arena is full. */
bool chat_join(arena *mem, const chat_content *c, const char *between, str *out);
/* Creates a chat from {"messages": [...], "tools": [...], "enable_thinking": ..., "chat_template_kwargs": {...}},
 * `functions` instead of `tools`, and continue_final_message, which makes the last message a prefill; ignores other
 * members. The chat borrows the request. Fails with ERR_INPUT and the path of the invalid value, in the sentence
 * ("messages[3].content[0].type ...") and as field, or with ERR_UNAVAILABLE when the arena is full. *out is NULL on
 * failure. */
bool chat_parse(chat **out, arena *mem, const json_value *request, err *e);

/* --- prompt options ---------------------------------------------------------------------------- */
typedef struct chat_format chat_format; /* chat/format.h: one per model family */

typedef struct {
    const chat_format *format;
    int                revision;              /* index of a published template of the format; 0 is the first */
    bool               empty_thought;         /* a response without thinking starts with a closed, empty thought */
    bool               thinking;              /* the prompt asks the model to think first */
    bool               preserve_thinking;     /* replay earlier thoughts too, where the revision can */
    bool               add_vision_id;         /* number images and videos, where the revision can */
    bool               add_generation_prompt; /* end the prompt with the beginning of the model's turn */
    /* Write exactly the bytes that the template writes, and fail where the template fails. If false, five gaps of the
     * templates are filled: docs/chat.md. */
    bool               exact;
    const media_rules *media; /* how chat_render_ids writes parts with pixels; NULL: the model accepts no media */
} chat_options;

/* Overwrites the options in o that the request sets. */
void chat_apply_wishes(const chat *c, chat_options *o);

/* The result of comparing a template's text with a format: chat_format.detect. */
typedef struct {
    bool     known;                       /* it writes the turns of the format */
    bool     published;                   /* it is one of the published templates, so `revision` is certain */
    bool     empty_thought;               /* as in chat_options; valid if `known` */
    bool     thinking, preserve_thinking; /* defaults of the template */
    int      revision;                    /* the most similar one; the format's default when `known` is false */
    int      n_same, n_signs; /* n_same of n_signs text patterns that distinguish revisions match `revision` */
    uint64_t hash;            /* hash of the text without comments and white space */
} chat_template;
/* Appends the template text of a model to out, which is empty. g: the open GGUF file at path; if it has no template,
 * the files in its directory are read. g NULL: path is a Hugging Face directory. Appends nothing, and returns true,
 * when there is no template. */
bool chat_template_load(buf *out, const char *path, const gguf *g, err *e);

/* --- rendering --------------------------------------------------------------------------------- */
typedef enum { CHAT_SEG_TEXT, CHAT_SEG_MARKER, CHAT_SEG_MEDIA } chat_segment_kind;
typedef struct {
    chat_segment_kind kind;
    str               text; /* marker or medium: name of its token */
    const chat_part  *part; /* CHAT_SEG_MEDIA */
} chat_segment;

/* Appends the prompt and the prefill as text, with the markers written out. On failure a part may have been appended.
 * Both renderers fail with ERR_INPUT for a chat that the template refuses, with ERR_TOO_LARGE for a prompt over its
 * limit. */
bool chat_render_text(buf *out, const chat *c, const chat_options *o, err *e);

typedef struct {
    const chat_part *part;
    size_t           at; /* index of its placeholder in the ids */
} chat_medium;
typedef struct {
    tok_ids      ids;   /* the prompt and the prefill */
    chat_medium *media; /* parts without pixels, in the order of the prompt; the parts belong to the chat */
    size_t       n_media;
    media_span  *span; /* soft tokens of the parts with pixels, which the parts own */
    size_t       n_spans;
    bool         in_thought; /* the prompt ends inside a thought, which the response continues */
} chat_prompt;

void chat_prompt_init(chat_prompt *p, size_t max_ids); /* empty; max_ids: maximum length */
void chat_prompt_deinit(chat_prompt *p);
/* Replaces the contents of p. A part with pixels becomes the tokens that o->media prescribes: a picture a run of its
 * placeholder between the tokens that begin and end it, a video such a run for each step with a time stamp before it.
 * Time stamps are encoded together with the text around them. Fails with ERR_INPUT also when the vocabulary lacks a
 * marker; the contents are then undefined. */
bool chat_render_ids(chat_prompt *p, const tok *t, const chat *c, const chat_options *o, err *e);
/* Sets *out to a copy of the pictures of the prompt, which the caller drops; NULL if it has none. ERR_UNAVAILABLE: no
 * memory. */
bool chat_prompt_pictures(const chat_prompt *p, media_prompt **out, err *e);

/* Returns s without white space at both ends, like Python's str.strip: that of Unicode, and U+001C to U+001F. */
str chat_trim(str s);
#endif
