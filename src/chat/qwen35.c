/* Qwen 3.5: the tokens of its chats.
 *
 * All added tokens of the vocabulary are markers, so no text of a user gives one. Files agree about most flags; the
 * tokens for tools, thoughts and code completion are printed, as in the published tokenizer, though GGUF files list
 * some of them as control tokens. */
#include "base/mem.h"
#include "chat/qwen35_inside.h"

static const char *const marker_names[] = {"<|endoftext|>",
                                           "<|im_start|>",
                                           "<|im_end|>",
                                           "<|object_ref_start|>",
                                           "<|object_ref_end|>",
                                           "<|box_start|>",
                                           "<|box_end|>",
                                           "<|quad_start|>",
                                           "<|quad_end|>",
                                           "<|vision_start|>",
                                           "<|vision_end|>",
                                           "<|vision_pad|>",
                                           "<|image_pad|>",
                                           "<|video_pad|>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "<|fim_prefix|>",
                                           "<|fim_middle|>",
                                           "<|fim_suffix|>",
                                           "<|fim_pad|>",
                                           "<|repo_name|>",
                                           "<|file_sep|>",
                                           "<tool_response>",
                                           "</tool_response>",
                                           "<think>",
                                           "</think>",
                                           "<|audio_start|>",
                                           "<|audio_end|>",
                                           "<tts_pad>",
                                           "<tts_text_bos>",
                                           "<tts_text_eod>",
                                           "<tts_text_bos_single>",
                                           "<|audio_pad|>",
                                           NULL};

static const char *const printed_names[] = {"<tool_call>",
                                            "</tool_call>",
                                            "<|fim_prefix|>",
                                            "<|fim_middle|>",
                                            "<|fim_suffix|>",
                                            "<|fim_pad|>",
                                            "<|repo_name|>",
                                            "<|file_sep|>",
                                            "<tool_response>",
                                            "</tool_response>",
                                            "<think>",
                                            "</think>",
                                            NULL};
static const char *const stop_names[]    = {"<|im_end|>", "<|endoftext|>", NULL};

static const tok_markup markup = {.turn_close    = "<|im_end|>",
                                  .thought_open  = "<think>",
                                  .thought_close = "</think>",
                                  .call_open     = "<tool_call>",
                                  .call_close    = "</tool_call>"};

const tok_family qwen35_tokens = {.scheme     = TOK_BYTE_LEVEL,
                                  .gguf_model = "gpt2",
                                  .gguf_pre   = "qwen35",
                                  .eos        = "<|im_end|>",
                                  .pad        = "<|endoftext|>",
                                  .markers    = marker_names,
                                  .printed    = printed_names,
                                  .stops      = stop_names,
                                  .markup     = &markup,
                                  .no_bos     = true};

/* --- the template -------------------------------------------------------------------------------*/
const char *qwen35_revision_name(int revision)
{
    static const char *const names[QWEN35_REVISIONS] = {"Qwen 3.5 (up to 2B)", "Qwen 3.5", "Qwen 3.6", "Qwen 3.8"};
    return names[revision];
}

static bool has(str text, const char *part) { return text.n && memmem(text.s, text.n, part, strlen(part)); }

static bool is_published(uint64_t hash, int revision)
{
    static const struct {
        uint64_t hash; /* str_hash of the template's compact text */
        int      revision;
    } published[] = {{0x39af8e5ff4c11023, QWEN35_SMALL},
                     {0x107f05b66a32bb46, QWEN35_LARGE},
                     {0xa7c925725e85f107, QWEN36},
                     {0x4dccaa8f1bd2b5e6, QWEN38},
                     {0xf8661c4821b44882, QWEN35_SMALL} /* nano-qwen's, a short form */};
    for (size_t i = 0; i < COUNT(published); i++)
        if (published[i].hash == hash) return published[i].revision == revision;
    return false;
}

/* Each revision has something that the ones before it lack. */
chat_template qwen35_detect(str text)
{
    chat_template t = {.revision = QWEN35_LARGE, .n_signs = 3};
    buf           b;
    buf_init(&b, (size_t)1 << 24);
    str  code   = chat_template_compact(&b, text) ? buf_str(&b) : (str){0};
    bool effort = has(code, "reasoning_effort"), preserve = has(code, "preserve_thinking");
    bool small = has(code, "enable_thinkingisdefinedandenable_thinkingistrue%}{{-'<think>");
    t.known    = has(code, "<|im_start|>") && has(code, "<think>");
    if (t.known) t.revision = effort ? QWEN38 : preserve ? QWEN36 : small ? QWEN35_SMALL : QWEN35_LARGE;
    t.n_same            = t.known ? t.n_signs : 0;
    t.hash              = str_hash(code);
    t.published         = t.known && is_published(t.hash, t.revision);
    t.thinking          = t.revision != QWEN35_SMALL;
    t.preserve_thinking = t.revision == QWEN38;
    buf_deinit(&b);
    return t;
}

const chat_format qwen35_format = {
    .title         = "Qwen 3.5",
    .tokens        = &qwen35_tokens,
    .outline       = "{{- if .Tools }}{{ .Tools }}{{ end }}{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}"
                     "<|im_end|>\n{{ end }}<|im_start|>assistant\n<think>\n",
    .detect        = qwen35_detect,
    .revision_name = qwen35_revision_name,
    .render        = qwen35_render,
    .parser        = &qwen35_parser_ops,
};
