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
 * Any thread may call the functions. All memory is the arena's; texts are borrowed from the body. They fail with 400
 * and the field, or 503 when the arena is full. */
#ifndef TANDEM_SERVER_MESSAGES_H
#define TANDEM_SERVER_MESSAGES_H
#include "chat/chat.h"
#include "server/fields.h"

/* Converts tool_choice and parallel_tool_calls in *f, as fields_read has set them, to those of a chat completion, and
 * refuses fields that are not supported. */
bool messages_options(server_fields *f, arena *mem, server_error *why);
/* Builds the conversation with its tools, and whether to think. *out is NULL on failure. */
bool messages_chat(chat **out, arena *mem, const server_fields *f, server_error *why);
#endif
