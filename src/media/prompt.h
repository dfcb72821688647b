/* media/prompt.h - the pictures of a prompt: which tokens they replace, and what an encoder reads of them.
 *
 *      ... begin  pad pad pad ... pad  end ...        a prompt: `pad` is the image_id or video_id of the model
 *                 '------ span ------'                one picture, or one step of a video: n soft tokens
 *
 * The rows of a span get soft tokens, computed by the model's encoder from the span's pixels, instead of embeddings of
 * their ids. A media_prompt is counted by references: a request, its job and the engine share it. It does not change
 * after it was made. Any thread may take and drop references. */
#ifndef TANDEM_MEDIA_PROMPT_H
#define TANDEM_MEDIA_PROMPT_H
#include "media/frames.h"
#include "media/patches.h"

#include <stdint.h>

enum {
    MEDIA_STEP_FRAMES = 2,  /* maximum of patch_rule.frames */
    MEDIA_HASH        = 32, /* bytes of a SHA-256 */
    MEDIA_BUDGETS     = 8,
};

/* Describes the media that a model accepts, and how a prompt refers to them. Constants of an open model. */
typedef struct {
    patch_rule image, video; /* image.max_cells: the default budget; video.max_cells: that of a frame */
    frame_rule frames;       /* frames.max_frames: the model's own maximum, which a setting may lower */
    int        budget[MEDIA_BUDGETS], n_budgets; /* legal values of image.max_cells, ascending; 0: it is not used */
    int32_t    image_id, video_id;               /* placeholder tokens; video_id -1: no video */
    int32_t    begin_id, end_id;                 /* enclose each span */
    bool       keeps_outer;                      /* the template's own begin and end stay around the steps of a video */
} media_rules;

typedef struct {
    int32_t first, n; /* tokens of the prompt: all image_id, or all video_id */
    bool    is_video;
    int     width, height;             /* pixels, as patch_target_size chose them; n == patch_cells */
    picture frames[MEDIA_STEP_FRAMES]; /* patch_rule.frames pictures of this size; a still picture: only the first */
    uint8_t hash[MEDIA_HASH];          /* SHA-256 of kind, size and pixels: equal spans have equal soft tokens */
} media_span;

typedef struct media_prompt media_prompt;

/* Makes a prompt of n spans in ascending order, which do not overlap. Takes over their pixels, and hashes them. */
media_prompt     *media_prompt_new(media_span *spans, int n);
media_prompt     *media_prompt_share(media_prompt *m);       /* accepts NULL; returns m */
void              media_prompt_drop(media_prompt *m);        /* accepts NULL; frees it with the last reference */
int               media_prompt_spans(const media_prompt *m); /* accepts NULL: 0 */
const media_span *media_prompt_span(const media_prompt *m, int i);
/* Replaces the ids of all spans by negative numbers made of their hashes, so that two prompts have equal ids exactly
 * where they have equal tokens and equal pictures. The prefix cache and the stores compare these. */
void media_prompt_mark(const media_prompt *m, int32_t *ids, size_t n_ids);
/* Returns the longest chunk of tokens from `from` on, at most n, that does not end inside a span. 0: the span that
 * begins there, or goes on there, has more than n. */
int32_t media_prompt_chunk(const media_prompt *m, int32_t from, int32_t n);
/* Writes the section positions (time, height, width) of the token at `pos`, in the prompt or after it. The tokens of a
 * span share a time, and have the rows and columns of cells of `cell` pixels; the text after a span continues after the
 * largest of them. */
void media_prompt_place(const media_prompt *m, int cell, int32_t pos, int32_t out[3]);
#endif
