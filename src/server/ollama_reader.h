/* server/ollama_reader.h - converts an Ollama body to a body of an OpenAI request; for ollama*.c only.
 *
 * Functions that return bool set *why of the reader when they return false. All memory is the request's, and the new
 * body borrows from the client's. Any thread, with one request each. */
#ifndef TANDEM_SERVER_OLLAMA_READER_H
#define TANDEM_SERVER_OLLAMA_READER_H
#include "server/request.h"

enum { OLLAMA_MAX_MEMBERS = 24 }; /* max members of an object built here */

typedef struct {
    server_request   *q;
    const json_value *from; /* the client's body */
    json_value        body; /* the new one */
    server_error     *why;
} ollama_reader;

/* --- trees --------------------------------------------------------------------------------------*/
bool ollama_new_object(const ollama_reader *r, json_value *out);         /* without members; for ollama_put */
bool ollama_new_list(const ollama_reader *r, size_t n, json_value *out); /* n items, which the caller sets */
void ollama_put(json_value *object, const char *key, json_value v);      /* appends a member; key is a constant */
/* Returns a member; NULL: it is absent, null or an empty text. */
const json_value *ollama_find_given(const json_value *v, const char *key);
/* Refuses a field with 400: "'field' what." Returns false. */
bool ollama_bad(const ollama_reader *r, const char *field, const char *what);
/* Reads a member of the client's body. An absent one leaves *out unchanged. */
bool ollama_read_bool(const ollama_reader *r, const char *key, bool *out);

/* --- ollama_options.c: add fields of the new body other than the conversation --------------------*/
/* Checks keep_alive and sets *unload to whether it is 0. The model always stays loaded: a time of 0 only changes the
 * reply to a request without a prompt. */
bool ollama_read_keep_alive(const ollama_reader *r, bool *unload);
bool ollama_add_options(ollama_reader *r);
bool ollama_add_format(ollama_reader *r);
bool ollama_add_think(ollama_reader *r);
bool ollama_add_logprobs(ollama_reader *r, bool raw); /* raw: for a text completion, which has other names for them */

/* --- ollama_messages.c ----------------------------------------------------------------------------*/
/* Adds the messages of a list with at least one, the tools, and continue_final_message if the last one is begun. */
bool ollama_add_messages(ollama_reader *r, const json_value *list);
/* Adds the content of a message: a text, or parts if there are images, which come first. images may be NULL. */
bool ollama_add_content(const ollama_reader *r, str text, const json_value *images, json_value *out);
#endif
