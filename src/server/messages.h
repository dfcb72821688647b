/* server/messages.h - converts requests of Anthropic's Messages API to chats: POST /v1/messages and count_tokens.
 *
 *      system             a system message, joined with system messages before the first assistant message;
 *                         claude-code's billing line, which differs each time, is removed to keep the prefix cached
 *      tool_result        tool messages after the calls that they answer; an error becomes {error: text}
 *      thinking           reasoning of the assistant message; redacted thinking and blocks of server tools are removed
 *      tools              tools with a schema; server tools are ignored
 *      tool_choice        auto, none, required (any), or a function by its name (tool)
 *      output_config      its format becomes response_format
 *
 * Thread: any. All memory is the arena's; texts are borrowed from the body. */
#ifndef TANDEM_SERVER_MESSAGES_H
#define TANDEM_SERVER_MESSAGES_H
#include "chat/chat.h"
#include "server/fields.h"

/* Converts the fields of a body to those of a chat completion. */
bool messages_options(server_fields *f, arena *mem, server_error *why);
/* Builds the conversation with its tools, and whether to think. */
bool messages_chat(chat **out, arena *mem, const server_fields *f, server_error *why);
#endif
