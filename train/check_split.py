#!/usr/bin/env python3
"""Proves the split: draws the training samples again and looks for any held-out operand tuple or prompt among them, and for the questions of
world.DEMO; checks also that this tokenizer and tandem's give the same ids, when --tandem names the binary."""
import argparse
import collections
import multiprocessing
import subprocess

from gen import CLASSES, Maker, held_out, held_out_set
from chat import render
from tools import plain
from world import DEMO
from tokenizer import HERE, SPECIAL, Tokenizer


def prompts(s):
    """The text before each answer of the sample."""
    parts, ends = render(s)
    return ["".join(p for p, _ in parts[:e]) for e in ends]


def spoken(s):
    """What the user says in the turn that is answered last, with all that came before."""
    return tuple((t.user.strip(), t.answer if i < len(s.turns) - 1 else "") for i, t in enumerate(s.turns))


def train_shard(job):
    """What of the held-out sets occurs in one training shard."""
    seed, index, samples, keys, said = job
    m = Maker("%s:train:%d" % (seed, index))
    found = []
    for _ in range(samples):
        s = m.sample()
        found += [("tuple", k) for k in s.keys if k in keys]
        if spoken(s) in said or any(((t.user.strip(), ""),) in said for t in s.turns): found.append(("prompt", s.turns[-1].user))
        found += [("demo", t.user) for t in s.turns for d in DEMO if d in plain(t.user)]
    return samples, found


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--per-class", type=int, default=200)
    p.add_argument("--shards", type=int, default=8)
    p.add_argument("--samples", type=int, default=14000, help="samples a shard; a training shard holds about 12,500")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--tandem")
    o = p.parse_args()
    test = held_out_set(o.seed, o.per_class)
    keys = {k for s in test for k in s.keys}
    said = {spoken(s) for s in test}
    assert all(held_out(k) for k in keys), "a held-out tuple whose hash says training"
    print("held out: %d samples, %d tuples; per class %s" % (len(test), len(keys), dict(collections.Counter(s.cls for s in test))))
    if o.tandem: check_ids(o.tandem, test)
    with multiprocessing.Pool(o.processes) as pool:
        done = list(pool.imap_unordered(train_shard, [(o.seed, i, o.samples, keys, said) for i in range(o.shards)]))
    found = [f for _, fs in done for f in fs]
    for f in found[:20]: print("FOUND", f)
    print("%d training samples of %d classes: %d held-out tuples or prompts among them" % (sum(n for n, _ in done), len(CLASSES), len(found)))
    raise SystemExit(bool(found))


def check_ids(tandem, samples):
    """tandem's ids of every text of the samples, against ours."""
    tok = Tokenizer()
    texts = [t.replace("\r", "") for s in samples for t, _ in render(s)[0] if t not in SPECIAL and t.strip()]
    texts = list(dict.fromkeys(x for t in texts for x in t.split("\n") if x.strip()))
    out = subprocess.run([tandem, "tokenize", "-m", HERE + "/tokenizer.json", "--lines"], input="\n".join(texts) + "\n", capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [tok.encode(t) for t in texts]
    theirs = [[int(x) for x in line.split()] for line in out]
    wrong = [t for t, a, b in zip(texts, ours, theirs) if a != b and b[1:] != a]
    assert len(ours) == len(theirs) and not wrong, wrong[:3]
    print("%d texts: the same ids from tandem" % len(texts))


if __name__ == "__main__":
    main()
