/* chat/declared.h - the types that a request's tools declare for their arguments. */
#ifndef TANDEM_CHAT_DECLARED_H
#define TANDEM_CHAT_DECLARED_H
#include "chat/chat.h"

/* Returns the schema of the arguments of a tool; NULL: c is NULL or has no such tool, or it declares none. */
const json_value *declared_parameters(const chat *c, str name);
/* Returns whether the schema declares this type, alone or among others, in any case of letters. */
bool declared_as(const json_value *schema, const char *type);
/* Returns a member of an object; NULL: v is NULL, no object, or has no such member. */
const json_value *declared_member(const json_value *v, str key);
/* Returns whether s is a number in JSON's grammar and in the range that json/ reads. */
bool is_json_number(str s);
#endif
