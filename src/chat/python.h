/* chat/python.h - JSON values as Python prints them, which is how chat templates print them.
 *
 * The functions append to b; whether there was room is in b->failed. They return false for a value that is nested more
 * than PYTHON_MAX_DEPTH deep, of which a part was written. */
#ifndef TANDEM_CHAT_PYTHON_H
#define TANDEM_CHAT_PYTHON_H
#include "json/json.h"

enum { PYTHON_MAX_DEPTH = 200 };

/* str(v): a string without quotes, otherwise True, None, 1e-05, ['a', 1], {'k': 'v'}. */
bool python_put_text(buf *b, const json_value *v);
/* json.dumps(v, ensure_ascii=False): {"k": ["a", 1], "n": null}. */
bool python_put_json(buf *b, const json_value *v);
#endif
