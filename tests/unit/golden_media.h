/* tests/unit/golden_media.h - prompts with pictures from the reference vectors of tests/golden. */
#ifndef TANDEM_TEST_GOLDEN_MEDIA_H
#define TANDEM_TEST_GOLDEN_MEDIA_H
#include "gguf/safetensors.h"
#include "media/prompt.h"
#include "test.h"

enum { MEDIA_CASE_TOKENS = 320, MEDIA_CASE_SPANS = 16 };

typedef struct {
    const char *name;    /* directory */
    const char *model;   /* directory of the text model, when it has none; the encoder is mmproj.gguf; NULL: the same */
    int         budget;  /* soft tokens of a picture; 0: the model's own */
    const char *kind[3]; /* by case, a letter for each picture: i still, v a frame of a video; NULL: no case */
} media_set;
extern const media_set media_sets[4]; /* a tower; clipped and causal; without a tower; merged */

typedef struct {
    int           T;
    int32_t       id[MEDIA_CASE_TOKENS];
    media_prompt *media;
} media_case;

enum { MEDIA_CASE_PATH = 512 };
/* Writes the paths of a set's model and of its encoder, "" when that is in the model's directory. */
void media_case_paths(const media_set *x, char model[MEDIA_CASE_PATH], char mmproj[MEDIA_CASE_PATH]);
/* Opens golden.safetensors of a set. */
safetensors  *media_case_open(test_case *t, const media_set *x);
const tensor *media_case_find(const safetensors *ref, int n_case, const char *what); /* NULL: absent */
/* Makes the prompt of a case, and its pictures in the sizes that the model reads. Drop out->media. */
bool media_case_load(test_case *t, media_case *out, const safetensors *ref, const media_set *x, int n_case,
                     const media_rules *rules);
#endif
