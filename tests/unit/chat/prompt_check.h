/* tests/unit/chat/prompt_check.h - compares prompts with those of templates. */
#ifndef TANDEM_TEST_CHAT_PROMPT_CHECK_H
#define TANDEM_TEST_CHAT_PROMPT_CHECK_H
#include "chat/chat.h"
#include "test.h"

/* Renders the request with these options, which it may change, and compares the prompt. want: NULL if the template
 * refuses the request; then it must fail with ERR_INPUT. `name` is for messages. */
void check_prompt(test_case *t, str name, chat_options o, const json_value *request, const str *want);
/* The same for a request as JSON text. */
void check_prompt_text(test_case *t, const char *request, chat_options o, const char *want);
#endif
