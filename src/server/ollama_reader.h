/* server/ollama_reader.h - converts an Ollama body to a body of an OpenAI request; for ollama*.c only.
 *
 * Functions that return bool set the reader's error when they return false. Thread: any. All memory is the
 * request's. */
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
bool ollama_new_object(const ollama_reader *r, json_value *out);
bool ollama_new_list(const ollama_reader *r, size_t n, json_value *out);
void ollama_put(json_value *object, const char *key, json_value v);
/* Finds a member; an empty text is the same as none. */
const json_value *ollama_find_given(const json_value *v, const char *key);
/* Refuses a field: "'field' what." Returns false. */
bool ollama_bad(const ollama_reader *r, const char *field, const char *what);
/* Leaves *out alone where there is none. */
bool ollama_read_bool(const ollama_reader *r, const char *key, bool *out);
bool ollama_read_text(const ollama_reader *r, const char *key, str *out); /* empty where there is none */

/* --- ollama_options.c: fields of the new body other than the conversation ------------------------*/
/* Checks keep_alive. The model always stays loaded: a time of 0 only changes the reply to a request without a
 * prompt. */
bool ollama_read_keep_alive(const ollama_reader *r, bool *unload);
bool ollama_add_options(ollama_reader *r);
bool ollama_add_format(ollama_reader *r);
bool ollama_add_think(ollama_reader *r);
bool ollama_add_logprobs(ollama_reader *r, bool raw);

/* --- ollama_messages.c ----------------------------------------------------------------------------*/
bool ollama_add_messages(ollama_reader *r, const json_value *list); /* and the tools; list has one at least */
#endif
