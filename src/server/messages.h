/* server/messages.h - what Anthropic's Messages API says, in the words of a chat: POST /v1/messages and its count_tokens.
 *
 *      system             the system's message, together with those of the role in messages before the first answer;
 *                         claude-code's billing line, another one each time, is left out: what comes behind it stays cached
 *      tool_result        messages of the tools, behind the calls they answer; an error is {error: text}
 *      thinking           the reasoning of the assistant's message; what is redacted, or made by another server's own
 *                         tools, is left out
 *      tools              those with a schema; another server's own are ignored
 *      tool_choice        auto, none, required (any), or a function by its name (tool)
 *      output_config      its format is a chat's response_format
 *
 * Thread: any; all memory is the arena's, texts are borrowed from the body. */
#ifndef TANDEM_SERVER_MESSAGES_H
#define TANDEM_SERVER_MESSAGES_H
#include "chat/chat.h"
#include "server/fields.h"

/* f, as it was read from the body, becomes what a chat's body would have been read as. */
bool messages_options(server_fields *f, arena *mem, server_error *why);
/* The conversation, its tools and whether to think. */
bool messages_chat(chat **out, arena *mem, const server_fields *f, server_error *why);
#endif
