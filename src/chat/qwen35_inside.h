/* chat/qwen35_inside.h - parts of Qwen's chat format, for its tests. */
#ifndef TANDEM_CHAT_QWEN35_INSIDE_H
#define TANDEM_CHAT_QWEN35_INSIDE_H
#include "chat/qwen35.h"

extern const tok_family qwen35_tokens;
const char             *qwen35_revision_name(int revision);
chat_template           qwen35_detect(str template_text);

/* The markers that the parser knows. */
typedef enum { Q_THINK, Q_THINK_END, Q_CALL, Q_CALL_END, Q_END, Q_END_OF_TEXT, Q_MARKERS } qwen35_marker;
str qwen35_marker_name(qwen35_marker m);

/* Parse the text of one or more ordinary tokens, whole characters, and one marker token. */
void qwen35_parser_put_text(chat_parser *p, str text);
void qwen35_parser_put_marker(chat_parser *p, qwen35_marker m);
#endif
