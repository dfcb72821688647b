/* Qwen 3.5: the tokens of its chats.
 *
 * All added tokens of the vocabulary are markers, so no text of a user gives one. Files agree about most flags; the
 * tokens for tools, thoughts and code completion are printed, as in the published tokenizer, though GGUF files list
 * some of them as control tokens. */
#include "chat/qwen35.h"

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

static const tok_markup markup = {.turn_close = "<|im_end|>", .thought_open = "<think>", .thought_close = "</think>"};

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
