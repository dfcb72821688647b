#!/usr/bin/env python3
"""Writes tokenizer.json beside itself: Gemma's kind of tokenizer with 512 tokens, for the small test model.

Special tokens first, then the 256 byte tokens, single characters, and pieces learnt by BPE from the text below.
The output depends on nothing else: run it twice and compare."""
import collections
import json
import os
import string

SIZE = 512
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>",
           "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
           "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>",
           "<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio>", "<audio|>", "<|audio|>"]
SPACE = "\u2581"
TEXT = """
The user asks and the model answers. A system message tells the model how to speak. When the user says hello, the
model says hello. What is the answer to this question? There are seven days in a week and twelve months in a year. The
river runs down from the hills to the sea, and the ships wait in the harbour for the wind. She opened the door, looked
at the garden and said that it would rain before the evening. He thought about the number, then wrote it down: four
and three make seven, seven and eight make fifteen. If you have ten apples and give three of them to a friend, you
still have seven. Once upon a time there was a small house at the edge of the forest, and in the house lived a woman
who could read the stars. The cat sat near the window, watching the birds that came for the bread. I think that we
should first read the whole text, then find the words that matter, and after that write the answer with care. They had
never seen such a large stone, nor such a deep well. This function returns the first item of the list, or nothing when
the list is empty; it should be called only after the other one. Is there anything else that you would like to know?
"""


def words(text):
    """Every word carries the space before it, as in the vocabulary's own spelling."""
    return collections.Counter(SPACE + w for w in text.split())


def learn(counts, n):
    """The n merges that BPE learns: the most frequent pair first, the smaller text among equals."""
    splits = {w: list(w) for w in counts}
    known = {c for w in counts for c in w}
    merges = []
    while len(merges) < n:
        pairs = collections.Counter()
        for w, parts in splits.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += counts[w]
        best = min((p for p in pairs if p[0] + p[1] not in known), key=lambda p: (-pairs[p], p))
        merges.append(best)
        known.add(best[0] + best[1])
        for parts in splits.values():
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i:i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def runs(char, longest):
    """Merges of a run of one character, longer results first, so that a run is taken from the left in full pieces."""
    return [(char * a, char * (n - a)) for n in range(longest, 1, -1) for a in range(n - 1, 0, -1)]


def main():
    chars = [SPACE, "\n", "\t"] + list(string.digits + string.ascii_letters + string.punctuation)
    run_merges = runs("\n", 3) + runs(SPACE, 4)
    run_tokens = list(dict.fromkeys(a + b for a, b in run_merges))
    tokens = SPECIAL + ["<0x%02X>" % b for b in range(256)] + chars + run_tokens
    learnt = learn(words(TEXT), SIZE - len(tokens))
    tokens += [a + b for a, b in learnt]
    assert len(tokens) == len(set(tokens)) == SIZE
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, t in enumerate(SPECIAL)]
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}},
                                    {"SpecialToken": {"id": "<bos>", "type_id": 1}},
                                    {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [list(m) for m in run_merges + learnt]},
    }
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(document, f, ensure_ascii=False, indent=1)
        f.write("\n")


main()
