/* server/media.h - the pictures and videos of a request: finds them in the conversation, loads and decodes them.
 *
 *      a part of a message ---> data URL, base64, http(s) or file URL ---> bytes ---> decode/worker.h ---> pixels
 *
 * Finding is quick. Loading may take long and runs on the workers for media. Both set 400 and the path of the part that
 * cannot be used, or 503 without memory. */
#ifndef TANDEM_SERVER_MEDIA_H
#define TANDEM_SERVER_MEDIA_H
#include "decode/source.h"
#include "server/request.h"

/* The means to load files. Constant while the server runs. */
typedef struct {
    decode_worker *decoder;
    source_options from;     /* its max_bytes and cancel are not used */
    atomic_size_t *held;     /* memory of all requests; pixels are added to it until media_forget */
    size_t         max_held; /* limit of *held */
} media_access;

/* Lists the media of the conversation in r->media. Refuses a kind that the model does not accept. In the result of a
 * tool it is replaced by a text instead, since clients send a result again with each request. */
bool media_find(server_request *r, const tandem *t, server_error *why);
/* Loads all media, and sets the pixels of their parts. *cancel: set when the client has left. */
bool media_load(server_request *r, const tandem *t, const media_access *a, const atomic_bool *cancel,
                server_error *why);
enum { MEDIA_PATH_MAX = 96 };
/* Writes the path of a medium in the request, such as messages[0].content[1], by the names of its API. */
void media_print_path(const server_request *r, const chat_part *part, char path[MEDIA_PATH_MAX]);
/* Makes r->media.prompt, the pictures of the rendered prompt, and frees the pixels of the parts. */
bool media_keep(server_request *r, server_error *why);
void media_forget(request_media *m); /* frees all of it; may be called again */
#endif
