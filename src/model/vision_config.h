/* model/vision_config.h - the configuration of a model's encoder of pictures, from config.json or from the keys of a
 * projector file (mmproj, GGUF).
 *
 * Every number is checked for range here. Encoders of three kinds share one description. */
#ifndef TANDEM_MODEL_VISION_CONFIG_H
#define TANDEM_MODEL_VISION_CONFIG_H
#include "gguf/checkpoint.h"
#include "media/prompt.h"

typedef enum {
    VISION_NONE,   /* the model reads text only */
    VISION_POOLED, /* a tower with RMS norms, whose patches are averaged cell by cell */
    VISION_DIRECT, /* no tower: one linear map of large patches */
    VISION_MERGED, /* a tower with layer norms, whose patches are joined cell by cell */
} vision_kind;

typedef struct {
    vision_kind kind;
    int         width, n_ff, n_layers, n_heads, head_dim; /* sizes of the tower; VISION_DIRECT: width alone */
    int         n_pos;                                    /* entries of the position table, of each axis or in all */
    int         n_out;                                    /* width of a soft token: the text model's */
    float       eps;
    double      theta; /* base of the rope frequencies */
    media_rules rules;
    bool        sees_ahead; /* the text model's sliding layers see all rows of a span from each of its rows */
    bool        sections;   /* the text model rotates by section positions (step_rows.section_pos) */
} vision_config;

/* The files that describe and contain an encoder. */
typedef struct {
    const checkpoint *text;      /* the text model */
    const checkpoint *projector; /* a GGUF file; NULL: the encoder is in `text`, a directory */
    int               n_embd, n_vocab;
    bool              causal; /* with a projector: rows of pictures see no later rows, in any layer */
} vision_files;

/* Read the configuration of a family. out->kind is VISION_NONE when the files have no encoder. ERR_FORMAT names the
 * value that is missing or out of range. */
bool gemma4_vision_read(vision_config *out, const vision_files *f, err *e);
bool qwen35_vision_read(vision_config *out, const vision_files *f, err *e);
#endif
