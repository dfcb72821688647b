/* cli/spans.h - pictures and videos of a prompt whose placeholders are expanded already. */
#ifndef TANDEM_CLI_SPANS_H
#define TANDEM_CLI_SPANS_H
#include "cli/options.h"
#include "media/prompt.h"
#include "tok/tok.h"

typedef struct {
    opt_list images; /* files */
    opt_list videos; /* files, or lists of pictures with commas between them: frames */
    int      budget; /* soft tokens of a picture; 0: the model's default */
} picture_flags;

/* Reads the files of f, and gives them to the runs of placeholders in ids in order: a picture or a step of a video
 * each. Sets *out to NULL when there are no files. rules: the model's; NULL: it reads text only. */
bool cli_load_spans(media_prompt **out, const picture_flags *f, const media_rules *rules, const tok_ids *ids, err *e);
#endif
