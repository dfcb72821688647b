#!/usr/bin/env python3
"""nano-qwen's tokenizer, in Qwen's form: byte-level BPE over the pieces of the pre-tokenizer's pattern, added tokens by name.
`qwen_tokenizer.py` learns qwen_tokenizer.json."""
import argparse
import collections
import json
import os
import re
import sys
import unicodedata

import tokenizer
from qwen_chat import render
from tokenizer import HERE, learn

SIZE = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>",
           "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>",
           "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
           "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"]
PLAIN = SPECIAL[SPECIAL.index("<tool_call>"):SPECIAL.index("<|audio_start|>")]      # these stay in a decoded text
MASK = SIZE - len(SPECIAL) + SPECIAL.index("<|audio_start|>")
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def ranges(first):
    """The characters whose category starts with this letter, as the inside of a bracket"""
    out, start = [], None
    for c in range(sys.maxunicode + 2):
        inside = c <= sys.maxunicode and unicodedata.category(chr(c))[0] == first
        if inside and start is None: start = c
        if not inside and start is not None: out.append("\\U%08x-\\U%08x" % (start, c - 1)); start = None
    return "".join(out)


def compiled():
    """PATTERN for Python's re, which has no categories"""
    s = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
    l, m, n = ranges("L"), ranges("M"), ranges("N")
    return re.compile("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n%s%s]?[%s%s]+|[%s]| ?[^%s%s%s%s]+[\\r\\n]*|[%s]*[\\r\\n]+|[%s]+(?![^%s])|[%s]+"
                      % (l, n, l, m, n, s, l, m, n, s, s, s, s))


def byte_letters():
    """GPT-2's alphabet: a letter for each byte, itself where it can be seen"""
    seen = [b for r in (range(33, 127), range(161, 173), range(174, 256)) for b in r]
    rest = [b for b in range(256) if b not in seen]
    return {b: chr(b) for b in seen} | {b: chr(256 + i) for i, b in enumerate(rest)}


LETTER = byte_letters()
BYTE = {c: b for b, c in LETTER.items()}


def spelled(text):
    return "".join(LETTER[b] for b in text.encode())


class Tokenizer(tokenizer.Tokenizer):
    render = staticmethod(render)

    def __init__(self, path=os.path.join(HERE, "qwen_tokenizer.json")):
        super().__init__(path)
        self.text.update({i: t for t, i in self.special.items()})
        self.pieces = compiled()
        self.stops = {self.special[t] for t in ("<|endoftext|>", "<|im_end|>")}
        self.lead = [self.special["<|endoftext|>"]]

    def _piece(self, text):
        return self.merged(list(spelled(text)))

    def encode(self, text):
        return [i for p in self.pieces.findall(unicodedata.normalize("NFC", text)) for i in self.piece(p)]

    def begins(self, ids):
        """A document begins at the token that separates documents, and again behind it."""
        at = ids == self.lead[0]
        behind = at.copy()
        behind[:, 1:], behind[:, 0] = at[:, :-1], False
        return at | behind

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            t = self.text[int(i)]
            out += t.encode() if t in self.special else bytes(BYTE[c] for c in t)
        return out.decode("utf-8", "replace")


def document(tokens, merges):
    added = [{"id": SIZE - len(SPECIAL) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": t not in PLAIN}
             for i, t in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, level]},
        "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [list(m) for m in merges]},
    }


def main():
    from gen import Maker
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--samples", type=int, default=60000)
    p.add_argument("-o", default=os.path.join(HERE, "qwen_tokenizer.json"))
    o = p.parse_args()
    counts, m, pieces = collections.Counter(), Maker("%s:tokenizer" % o.seed), compiled()
    for _ in range(o.samples):
        for text, _ in render(m.sample())[0]:
            if text not in SPECIAL: counts.update(pieces.findall(text))
    tokens = [LETTER[b] for b in range(256)]
    merges = learn({spelled(w): c for w, c in counts.items() if len(spelled(w)) > 1}, tokens, SIZE - len(SPECIAL) - len(tokens))
    tokens += [a + b for a, b in merges]
    assert len(tokens) == len(set(tokens)) == SIZE - len(SPECIAL)
    with open(o.o, "w", encoding="utf-8") as f:
        json.dump(document(tokens, merges), f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
