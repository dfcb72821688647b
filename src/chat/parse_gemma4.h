/* chat/parse_gemma4.h - what a Gemma 4 model wrote, as it comes: reasoning, content and tool calls.
 *
 *      <|channel>thought\n REASONING <channel|> CONTENT <|tool_call>call:NAME{key:V,...}<tool_call|>
 *
 * Markers are known by token id: the same characters in ordinary text are text. Events depend only on what came, not on
 * how it was cut: pieces of one kind that follow each other are to be joined. A call's arguments come out as JSON text,
 * strings as they grow, other values when they are complete; joined they are one object that our reader accepts.
 *
 * What is not markup comes out exactly once: as reasoning, as content, in a name or in arguments. What began as a call and is
 * none is content with its markers; what stands in a call and is no argument is content behind it.
 *
 * Tolerated, since models do it: empty thoughts, a label without newline, markers that close nothing or open twice, a call
 * inside a thought, a bare "thought\n" at the start, with or without a thought after it, thoughts and contents in turns, a call that ends with the answer,
 * unfinished strings and brackets, missing and trailing commas, quoted keys, quotes inside strings, arguments written as JSON,
 * Python's None, True and False, white space between calls.
 *
 * Thread: one at a time for a parser. */
#ifndef TANDEM_CHAT_PARSE_GEMMA4_H
#define TANDEM_CHAT_PARSE_GEMMA4_H
#include "chat/gemma4.h"

typedef enum {
    GEMMA4_REASONING,
    GEMMA4_CONTENT,
    GEMMA4_CALL_NAME, /* a call begins */
    GEMMA4_CALL_ARGS, /* a piece of its arguments, as JSON text */
    GEMMA4_CALL_DONE,
} gemma4_event_kind;

typedef struct {
    gemma4_event_kind kind;
    int               call; /* number of the call, from 0 */
    str               text; /* good until the callback returns */
    bool              cut;  /* GEMMA4_CALL_DONE: the answer ended before the arguments did */
} gemma4_event;

typedef struct {
    void (*on_event)(void *ctx, const gemma4_event *ev);
    void      *ctx;
    const tok *tok; /* for gemma4_parse_id; else NULL */
    /* Values are fitted to the types its tools declare, where they can be; behind a prefill there is text. Or NULL. */
    const chat *chat;
    bool        in_thought; /* the prompt ended inside a thought: chat_prompt.in_thought */
    bool        thinking;   /* the prompt asked for a thought: "thought\n" at the start begins one without its marker */
} gemma4_parse_options;

typedef struct gemma4_parser gemma4_parser;

gemma4_parser *gemma4_parser_new(const gemma4_parse_options *opt); /* NULL: there is no memory */
void           gemma4_parser_free(gemma4_parser *p);               /* NULL is fine */
void           gemma4_parse_id(gemma4_parser *p, int32_t id);
/* Text with its markers written out, for models that are reached as text; the start of a marker is held back. */
void gemma4_parse_marked(gemma4_parser *p, str text);
bool gemma4_parser_in_thought(const gemma4_parser *p); /* what comes now would be reasoning */
/* Returns true while it is open whether the text so far is a thought that began without its marker. */
bool gemma4_parser_undecided(const gemma4_parser *p);
/* The end of the answer: what is held comes out, what is open is closed. False when memory ran out on the way. */
bool gemma4_parse_finish(gemma4_parser *p, err *e);
#endif
