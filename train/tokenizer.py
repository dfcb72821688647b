#!/usr/bin/env python3
"""nano's tokenizer, in Gemma's form: BPE over characters with spaces as U+2581, byte fallback, special tokens by name.

Gemma splits at no words. Neither does this: but no merge joins two characters of different kinds except a space with what follows it,
and none touches a digit, so a text falls into pieces that can be merged one by one and kept. `tokenizer.py` learns tokenizer.json."""
import argparse
import collections
import functools
import json
import os
import re
import string

from chat import render

SIZE = 4096
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
           '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio>",
           "<audio|>", "<|audio|>"]
STOPS = ["<eos>", "<turn|>", "<|tool_response>"]
SPACE = "\u2581"
LETTER, HAN = "A-Za-z_\u00c0-\u024f", "\u3400-\u9fff"
PIECE = re.compile("%s*(?:[%s]+|[%s]+|[^%s%s%s0-9\n]+)|%s+|[0-9]|\n+" % (SPACE, LETTER, HAN, LETTER, HAN, SPACE, SPACE))
HERE = os.path.dirname(os.path.abspath(__file__))


class Tokenizer:
    render = staticmethod(render)
    lead = []                       # what separates documents in training, if they do not say themselves where they begin

    def __init__(self, path=os.path.join(HERE, "tokenizer.json")):
        with open(path, encoding="utf-8") as f: d = json.load(f)
        self.vocab = d["model"]["vocab"]
        self.rank = {tuple(m): i for i, m in enumerate(d["model"]["merges"])}
        self.special = {t["content"]: t["id"] for t in d["added_tokens"]}
        self.text = {i: t for t, i in self.vocab.items()}
        self.stops = {self.special[t] for t in STOPS if t in self.special}
        self.piece = functools.lru_cache(1 << 20)(self._piece)
        self.part = functools.lru_cache(1 << 17)(self._part)

    def _piece(self, text):
        return self.merged(list(text))

    def merged(self, parts):
        """The ids of a piece, given as its characters"""
        while len(parts) > 1:
            rank, i = min((self.rank.get(p, 1 << 30), i) for i, p in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30: break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return tuple(x for p in parts for x in ([self.vocab[p]] if p in self.vocab else [self.vocab["<0x%02X>" % b] for b in p.encode()]))

    def encode(self, text):
        """The ids of a text; no text gives a special token."""
        return [i for p in PIECE.findall(text.replace(" ", SPACE)) for i in self.piece(p)]

    def _part(self, text):
        return tuple(self.encode(text))

    def encode_sample(self, sample):
        """ids, trained flags, and where the model starts to speak"""
        parts, ends = self.joined(*self.render(sample))
        ids, trained, starts = [], [], []
        for i, (text, t) in enumerate(parts):
            if ends and i == ends[0]: starts.append(len(ids)); ends = ends[1:]
            x = [self.special[text]] if text in self.special else self.part(text) if len(text) < 32 else self.encode(text)
            ids.extend(x)
            trained.extend([t] * len(x))
        return ids, trained, starts

    def joined(self, parts, ends):
        """The parts with neighbouring texts as one: a tokenizer sees no seam between them."""
        out, starts = [], []
        for i, (text, t) in enumerate(parts):
            if i in ends: starts.append(len(out))
            if out and i not in ends and text not in self.special and out[-1][0] not in self.special and out[-1][1] == t: out[-1] = (out[-1][0] + text, t)
            else: out.append((text, t))
        return out, starts

    def begins(self, ids):
        """Where documents begin in [B, T]"""
        return ids == self.special["<bos>"]

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            t = self.text[int(i)]
            out += bytes([int(t[3:5], 16)]) if re.fullmatch("<0x[0-9A-F]{2}>", t) else t.replace(SPACE, " ").encode()
        return out.decode("utf-8", "replace")


def learn(counts, known, n):
    """The n merges of BPE over the pieces: the most frequent pair first, the smaller among equals."""
    words = [[list(w), c] for w, c in sorted(counts.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, c) in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += c
            where[p].add(i)
    merges, known = [], set(known)
    while len(merges) < n:
        best = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[best] <= 0: raise SystemExit("the text is too small for %d merges" % n)
        for i in where.pop(best):
            w, c = words[i]
            for p in zip(w, w[1:]): pairs[p] -= c
            j = 0
            while j + 1 < len(w):
                if (w[j], w[j + 1]) == best: w[j:j + 2] = [best[0] + best[1]]
                j += 1
            for p in zip(w, w[1:]):
                pairs[p] += c
                where[p].add(i)
        pairs.pop(best, None)
        if best[0] + best[1] in known: continue     # the same text in another way: no second merge for it
        known.add(best[0] + best[1])
        merges.append(best)
    return merges


def runs(char, longest):
    """Merges of a run of one character, longer results first, so that a run is taken from the left in full pieces."""
    return [(char * a, char * (n - a)) for n in range(longest, 1, -1) for a in range(n - 1, 0, -1)]


def document(tokens, merges):
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(SPECIAL)]
    bos, a = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [bos, a], "pair": [bos, a, {"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [list(m) for m in merges]},
    }


def main():
    from gen import Maker
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--samples", type=int, default=60000)
    p.add_argument("-o", default=os.path.join(HERE, "tokenizer.json"))
    o = p.parse_args()
    counts, m = collections.Counter(), Maker("%s:tokenizer" % o.seed)
    for _ in range(o.samples):
        for text, _ in render(m.sample())[0]:
            if text not in SPECIAL: counts.update(PIECE.findall(text.replace(" ", SPACE)))
    chars = [SPACE, "\n", "\t"] + list(string.digits + string.ascii_letters + string.punctuation)
    seen = collections.Counter(c for w, k in counts.items() for c in w for _ in range(min(k, 8)))
    chars += sorted(c for c in seen if c not in chars and seen[c] >= 4)
    run_merges = runs("\n", 3) + runs(SPACE, 8)
    tokens = SPECIAL + ["<0x%02X>" % b for b in range(256)] + chars + list(dict.fromkeys(a + b for a, b in run_merges))
    merges = learn({w: c for w, c in counts.items() if set(w) != {SPACE} and set(w) != {"\n"} and len(w) > 1}, tokens, SIZE - len(tokens))
    tokens += [a + b for a, b in merges]
    assert len(tokens) == len(set(tokens)) == SIZE
    with open(o.o, "w", encoding="utf-8") as f:
        json.dump(document(tokens, run_merges + merges), f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
