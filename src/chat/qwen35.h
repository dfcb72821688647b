/* chat/qwen35.h - the chat format of Qwen 3.5 and its successors with the same vocabulary. */
#ifndef TANDEM_CHAT_QWEN35_H
#define TANDEM_CHAT_QWEN35_H
#include "tok/tok.h"

extern const tok_family qwen35_tokens;
#endif
