/* model/family.h - the table of model families. All that the layers above know about a family is its entry here;
 * only bench/shape.c, which makes models of random weights, knows one by name.
 *
 * A family is a configuration, a table of tensor roles and a forward pass (open), a chat format and a tokenizer (chat),
 * and a converter (plan). docs/architecture.md says how to add one. All tables are constant; any thread may read them.
 */
#ifndef TANDEM_MODEL_FAMILY_H
#define TANDEM_MODEL_FAMILY_H
#include "chat/format.h"
#include "model/model.h"
#include "model/vision_config.h"

typedef struct convert_plan convert_plan; /* model/convert_plan.h */

/* The figures of a checkpoint that `tandem inspect` prints. */
typedef struct {
    int           n_layers, n_full, window; /* n_full layers attend to all positions, the others to a window */
    int           n_embd, n_heads, n_vocab, n_ctx;
    int           n_experts, n_used, n_ff_expert; /* n_experts 0: a dense model */
    int           n_ple, n_kv_shared; /* width of per-layer embeddings, 0: none; layers without K/V of their own */
    kv_class_spec kv_class[KV_MAX_CLASSES];
    int           n_kv_classes;
    kv_donor      donor[2];    /* as target.donor */
    double        state_bytes; /* state of the recurrent layers of one request; 0: the other layers have windows */
} model_summary;

struct model_family {
    const char        *name; /* "gemma4": in the API, in metrics and as prefix of GGUF keys */
    const char *const *arch; /* values of general.architecture and model_type; ends with NULL */
    /* Opens a target and takes over o, also on failure: *out is NULL then. Fills in all of `target` except family,
     * stop_id, suppress_id, defaults and weight_type, which model_open sets. */
    bool (*open)(target **out, const checkpoint *c, const model_options *opt, ops *o, err *e);
    /* Reads the configuration only. Fills in the page classes for these types. */
    bool (*describe)(model_summary *out, const checkpoint *c, const kv_types *types, err *e);
    bool (*plan)(convert_plan *p, err *e); /* keys and tensors of a GGUF file made of a Hugging Face directory */
    /* Reads the configuration of the family's encoder of pictures (model/vision_config.h); NULL: there is none. */
    bool (*vision)(vision_config *out, const vision_files *f, err *e);
    const chat_format *chat;
    sample_params      sampling; /* where the model's files give no defaults */
};

extern const model_family *const model_families[]; /* ends with NULL */

/* Returns the family of a checkpoint, NULL when it is not in the table, or is a drafter of one. */
const model_family *family_of(const checkpoint *c);
/* Opens the tokenizer in a GGUF file as one of the family whose kind of tokenizer the file names. Free it with
 * tok_free.
 */
bool family_tok_from_gguf(tok **out, const gguf *g, err *e);
/* Opens a tokenizer.json as one of the first family whose tokenizer has the file's scheme. Free it with tok_free. */
bool family_tok_from_json(tok **out, const char *path, err *e);
/* Appends the families' titles, such as "Gemma 4", separated by ", ". */
void family_put_titles(buf *out);
#endif
