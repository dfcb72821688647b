/* cli/pictures.h - images and videos from files, decoded for the model of an engine. */
#ifndef TANDEM_CLI_PICTURES_H
#define TANDEM_CLI_PICTURES_H
#include "cli/options.h"
#include "sched/engine.h"

/* clang-format off */
#define OPT_IMAGE_TOKENS(n)                                                                                            \
    {.name = "image-tokens", .kind = OPT_INT, .dest = &(n), .arg = "N", .min = 1, .max = 16384,                        \
     .help = "maximum of tokens per image (default: the model's, at most half of the context)"}
/* clang-format on */

/* The files of a message. Zeroed: none. */
typedef struct {
    chat_part *part; /* [n], with their pixels, and room for one more part, a text */
    decoded   *pixels;
    char     **path; /* as given */
    size_t     n;
} picture_list;

/* Decodes a file and adds it. tokens: 0 or as --image-tokens. On failure nothing is added. */
bool picture_list_add(picture_list *l, decode_worker *w, const tandem *t, const char *path, bool is_video, int tokens,
                      err *e);
/* Returns the content of a message: the files, then the text. The content borrows both. */
chat_content picture_list_content(picture_list *l, str text);
void         picture_list_free(picture_list *l); /* frees and empties *l */
#endif
