/* sched/open.h - opens a model: its files, tokenizer, chat format and weights, then either the loop of spec/ or pages.
 *
 *      open_model(&m, &options, e) && open_loop(&m, &spec_options, e)     the engine, and benchmarks of the loop
 *      open_model(&m, &options, e) && open_pages(&m, &kv_types, e)        commands that run steps by hand
 *      open_close(&m)                                                     in any state
 *
 * The files of a model are opened and parsed once. Everything that is read from them (tokenizer, template, weights,
 * fingerprint, names and sizes) comes from that one checkpoint, which the caller may have open already and lend.
 * One thread at a time uses a model; its tok and format are never changed and may be read by any thread. */
#ifndef TANDEM_SCHED_OPEN_H
#define TANDEM_SCHED_OPEN_H
#include "chat/chat.h"
#include "gguf/fingerprint.h"
#include "spec/spec.h"

/* Memory of a GPU that is left free for recorded steps and drafts. */
enum { OPEN_GRAPH_BYTES = 256 << 20 };

typedef struct {
    const char       *path, *name; /* name: used in messages; neither is kept after open_model */
    str               image;       /* a GGUF file in memory that is used instead of the path */
    const checkpoint *files;       /* the model's files, borrowed during open_model; NULL: opened there */
    const char       *device;      /* the name of a device as in ops_open */
    int               n_threads;   /* 0: all processors that this process may use */
    int               max_rows;    /* maximum of rows in a step; 0: ops.default_rows */
    int               n_ctx;       /* 0: the model's context length, at most 8192 */
    bool              text;        /* open the tokenizer and the chat format; a model without them opens, too */
    const char       *need_tok;    /* prefix of the error when there is no tokenizer; NULL: none is needed */
    bool              fingerprint; /* compute the fingerprint */
    const char       *mmproj;      /* these as in model_options */
    ops *(*wrap)(ops *inner);
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
} open_options;

typedef struct {
    ops_device       device;
    target          *model;
    int              n_ctx;
    tok             *tok;                          /* NULL: none */
    err              no_tok;                       /* why there is none; code 0: there is one, or `text` was not set */
    chat_options     format;                       /* the prompt format; set if `text` was */
    buf              template_text;                /* text of the chat template; empty: none */
    err              no_format;                    /* why the template cannot be read; code 0: it can */
    char             fingerprint[FINGERPRINT_MAX]; /* "": not asked for */
    char             stamp[FINGERPRINT_STAMP_MAX]; /* fingerprint_stamp, with the fingerprint */
    checkpoint_list *files;                        /* names and sizes of its files */
    spec            *spec;                         /* open_loop */
    spec_lane       *lane; /* set by a command that has a lane of the loop; open_close frees it */
    /* open_pages, for steps by hand */
    kv_pool *kv;
    kv_lane *lane_kv; /* for rows that a command runs itself */
    step     step;
} opened_model; /* owns all that it points to */

/* Opens the model; overwrites *m. Fails with the sizes when its weights do not fit into the free memory. A failed *m is
 * closed. */
bool open_model(opened_model *m, const open_options *o, err *e);
/* Opens the loop of an open model: sets m->spec. o->n_ctx is ignored; o->kv_bytes 0: what all lanes need if that fits,
 * else four fifths of the free memory, at least what one lane needs. After a failure m is still to be closed, as after
 * a failure of open_pages. */
bool open_loop(opened_model *m, const spec_options *o, err *e);
/* Sets *out to the bytes of a share of the device's memory that is free now, after the weights were loaded. Steps that
 * are recorded keep their part. */
bool open_share_bytes(size_t *out, const opened_model *m, float share, err *e);
/* Takes pages of these types for one sequence of n_ctx positions. */
bool open_pages(opened_model *m, const kv_types *types, err *e);
void open_close(opened_model *m); /* frees everything and zeroes *m; accepts all zeros */

/* The names "none", "q8_0" and "q4_0", then NULL; and the type of each, QUANT_F32 for "none": as in the file. */
extern const char *const open_draft_quants[];
extern const quant_type  open_draft_types[];
/* Adds a drafter to the loop as spec_add_drafter does, or logs a warning and returns false. */
bool open_add_drafter(spec *s, const spec_draft_source *src);

/* Opens the tokenizer of a GGUF file, of a Hugging Face directory, or a tokenizer.json. Free it with tok_free. *out is
 * NULL on failure. ERR_NOT_FOUND: the model has none. */
bool open_tok(tok **out, const char *path, err *e);
/* Opens the tokenizer of open files in the same way. */
bool open_tok_of(tok **out, const checkpoint *files, err *e);
#endif
