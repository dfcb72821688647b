/* model/vision.h - the encoder of pictures of a target: pixels go in, soft tokens come out.
 *
 *      patches -> patch projection + positions -> blocks of attention and MLP -> cells -> rows of the text model
 *
 * A vision reads its configuration when the target is opened, and its weights with the first picture. It uses the ops
 * of the target with a queue of its own, so recorded steps stay valid. Thread: as the target. */
#ifndef TANDEM_MODEL_VISION_H
#define TANDEM_MODEL_VISION_H
#include "model/model.h"
#include "model/vision_config.h"

/* Finds the encoder of t: in `mmproj`, else (NULL) in the directory of the model, else in a file mmproj*.gguf in the
 * directory of a GGUF file. "none": there is none. Sets *out to NULL when the model reads text only; also when a file
 * that was found, not given, does not fit, which is logged. */
bool vision_open(vision **out, const target *t, const checkpoint *text, const char *mmproj, err *e);
/* Returns whether vision_open would look for an encoder in a file or directory that exists. */
bool vision_may_exist(const checkpoint *text, const char *mmproj);
enum { VISION_STEP_ROWS = 384 }; /* rows of a step that hold a picture of the default size, and rows of other lanes */
void vision_close(vision *v);    /* accepts NULL */

const vision_config *vision_config_of(const vision *v);
/* Returns fingerprint_stamp of the file of an encoder that is not in the model's own files, else "". */
const char *vision_stamp(const vision *v);
/* Returns about the memory that the encoder takes while it is loaded. */
size_t vision_bytes(const vision *v);
/* Writes the soft tokens of a span, [s->n][n_out] floats of host memory. Blocks until they are computed. Loads the
 * weights first if they are not. ERR_INPUT: the picture is too large for the encoder. */
bool vision_encode(vision *v, const media_span *s, float *out, err *e);
/* exact: K and V of patches are f32, as those of the text are when its K/V cache is f32; else (the default) they have
 * the type to which the backend attends fastest. */
void vision_set_exact(vision *v, bool exact);
/* Frees the weights and the memory for pictures until the next vision_encode. */
void vision_park(vision *v);
#endif
