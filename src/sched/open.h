/* sched/open.h - from paths to a model that can run: what the engine does, and commands that run steps by hand. */
#ifndef TANDEM_SCHED_OPEN_H
#define TANDEM_SCHED_OPEN_H
#include "chat/chat.h"
#include "spec/spec.h"

typedef struct {
    const char *path, *name;  /* name: in messages */
    str         image;        /* a GGUF file in memory, in place of the path */
    const char *device;       /* as ops_open */
    int         n_threads;    /* 0: as many as this process may use */
    ops *(*wrap)(ops *inner); /* as model_options has it, and the next two */
    void (*progress)(void *ctx, size_t done, size_t total);
    void *progress_ctx;
} open_options;

/* *device: what it is on. Refused with numbers when the weights do not fit into what is free. */
bool open_target(target **out, ops_device *device, const open_options *o, err *e);
/* *n_ctx 0: the model's, at most 8192. */
bool open_context(int *n_ctx, const target *m, err *e);
/* Returns the default size of the K/V pool in bytes: a large share of the free memory, at least what one lane needs.
 * 0: all lanes fit. all, single: the bytes that all lanes need, and one. */
size_t open_pool_bytes(int max_lanes, size_t all, size_t single, size_t free_bytes);
bool   open_check_cache(const char *device, size_t bytes, err *e);
/* Opens the speculative loop. o->kv_bytes 0: the size of open_pool_bytes. */
bool open_spec(spec **out, target *m, const char *device, const spec_options *o, err *e);

/* "none", "q8_0", "q4_0", NULL; and the type of each. */
extern const char *const open_draft_quants[];
extern const quant_type  open_draft_types[];
/* 1, or 0 after a warning: the loop goes on without it. What src names must live as long as s. */
int open_add_drafter(spec *s, const spec_draft_source *src);

/* The tokenizer of a GGUF file, of a Hugging Face directory, or a tokenizer.json itself. */
bool open_tok(tok **out, const char *path, err *e);
/* Chooses the prompt format of the model at `path` by its chat template, which is also written to keep (unless NULL); a format that had to
 * be guessed is logged. */
enum { OPEN_TEMPLATE_MAX = 1 << 24 }; /* bytes of a chat template */
bool open_chat_format(chat_options *o, buf *keep, const target *m, const char *path, err *e);
#endif
