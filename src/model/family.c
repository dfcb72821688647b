#include "model/family.h"

#include "chat/gemma4.h"
#include "chat/qwen35.h"
#include "model/convert_plan.h"
#include "model/gemma4.h"
#include "model/qwen35.h"

static const model_family gemma4_family = {
    .name     = "gemma4",
    .arch     = (const char *const[]){"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", NULL},
    .open     = gemma4_open,
    .describe = gemma4_describe,
    .plan     = plan_gemma4,
    .vision   = gemma4_vision_read,
    .chat     = &gemma4_format,
    .sampling = {.top_p = 1}, /* greedy */
};

static const model_family qwen35_family = {
    .name = "qwen35",
    .arch = (const char *const[]){"qwen35", "qwen35moe", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
                                  NULL},
    .open = qwen35_open,
    .describe = qwen35_describe,
    .plan     = plan_qwen35,
    .vision   = qwen35_vision_read,
    .chat     = &qwen35_format,
    .sampling = {.temp = 1, .top_p = 0.95f, .top_k = 20},
};

const model_family *const model_families[] = {&gemma4_family, &qwen35_family, NULL};
enum { N_FAMILIES = sizeof model_families / sizeof *model_families - 1 };

/* --- lookup -------------------------------------------------------------------------------------*/
static const model_family *family_of_arch(str arch)
{
    for (const model_family *const *f = model_families; *f; f++)
        for (const char *const *name = (*f)->arch; *name; name++)
            if (str_is(arch, *name)) return *f;
    return NULL;
}

/* The config.json of some drafters is a copy of the target's. */
const model_family *family_of(const checkpoint *c)
{
    return !c->gguf && dflash_dir_matches(c->config) ? NULL : family_of_arch(model_arch(c));
}

void family_put_titles(buf *out)
{
    for (const model_family *const *f = model_families; *f; f++)
        buf_printf(out, "%s%s", f == model_families ? "" : ", ", (*f)->chat->title);
}

/* --- tokenizers ---------------------------------------------------------------------------------*/
bool family_tok_from_gguf(tok **out, const gguf *g, err *e)
{
    const tok_family *use  = model_families[0]->chat->tokens; /* its error names the kind that was expected */
    str               kind = {0};
    gguf_str(gguf_find(g, "tokenizer.ggml.model"), &kind);
    for (const model_family *const *f = model_families; *f; f++)
        if ((*f)->chat->tokens->gguf_model && str_is(kind, (*f)->chat->tokens->gguf_model)) use = (*f)->chat->tokens;
    return tok_from_gguf(out, g, use, e);
}

bool family_tok_from_json(tok **out, const char *path, err *e)
{
    const tok_family *list[N_FAMILIES + 1] = {0}; /* ends with NULL */
    for (size_t i = 0; i < N_FAMILIES; i++) list[i] = model_families[i]->chat->tokens;
    return tok_from_json_any(out, path, list, e);
}
