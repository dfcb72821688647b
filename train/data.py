"""Training rows from worker processes, and the held-out questions."""
import multiprocessing
import os
import random
import time

import numpy as np
import torch

import gen

LONGEST = 512       # of what drafters are trained and judged on
LENGTHS = (64, 128, 192, 256, 384, 512)     # of the rows that drafters are trained on
_tok = None


def _start(make):
    """Starts a worker with its tokenizer; it yields to the process that trains and to its compiler."""
    global _tok
    os.nice(10)
    _tok = make()


def _shard(job):
    seed, index, n_tokens, boost = job
    return gen.shard(seed, index, _tok, n_tokens, boost)


class Rows:
    """Batches of packed rows: ids [B, T + 1], weights of the targets [B, T], documents [B, T]. Shards come in order, so a seed gives one text;
    when all have been used they are used again."""

    def __init__(self, tok, seed, shards, shard_tokens, batch, length, processes, boost=None):
        self.tok, self.pool = tok, multiprocessing.get_context("fork").Pool(processes, _start, (type(tok),))
        self.feed = self.pool.imap(_shard, [(seed, i, shard_tokens, boost) for i in range(shards)])
        self.batch, self.length, self.kept, self.epochs, self.waited = batch, length, [], 0, 0.0

    def _shards(self):
        while True:
            begin = time.time()
            s = next(self.feed, None)
            if s is None: break
            self.waited += time.time() - begin
            self.kept.append(s)
            yield s
        self.pool.close()
        while True:
            self.epochs += 1
            yield from self.kept

    def __iter__(self):
        ids, trained = np.zeros(0, np.uint16), np.zeros(0, np.uint8)
        need = self.batch * self.length
        for a, b in self._shards():
            ids, trained = np.concatenate([ids, a]), np.concatenate([trained, b])
            at = 0
            while at + need + 1 <= len(ids):
                x = np.stack([ids[at + r * self.length:at + (r + 1) * self.length + 1] for r in range(self.batch)]).astype(np.int64)
                w = np.stack([trained[at + r * self.length + 1:at + (r + 1) * self.length + 1] for r in range(self.batch)])
                begins = self.tok.begins(x)
                w = np.where(begins[:, 1:], 0.0, np.where(w > 0, 1.0, 0.1)).astype(np.float32)
                documents = np.cumsum(begins[:, :-1], 1).astype(np.int32)
                w[documents == 0] = 0       # the rest of a conversation whose beginning is in another row
                yield torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(documents)
                at += need
            ids, trained = ids[at:], trained[at:]


def item_of(tok, s, at, ids, name=""):
    end = next(i for i in range(at, len(ids)) if ids[i] in tok.stops)
    return dict(cls=s.cls + name, prompt=ids[:at], expected=ids[at:end + 1], exact=s.exact)


def held_out_items(tok, seed, per_class, skip=("long",), classes=None):
    """Questions: dicts of cls, prompt, expected, exact. What follows a tool's result is a class of its own."""
    items = []
    for s in gen.held_out_set(seed, per_class, classes):
        if s.cls in skip: continue
        ids, trained, starts = tok.encode_sample(s)
        starts = starts[-2:] if s.turns[-1].calls and s.turns[-1].responses else starts[-1:]
        items += [item_of(tok, s, at, ids, " answer" if n else "") for n, at in enumerate(starts)]
    return items


def padded(rows, length):
    """A batch: ids [B, T], where the answers start, lengths"""
    ids = np.zeros((len(rows), length), np.uint16)
    for j, (i, _) in enumerate(rows): ids[j, :len(i)] = i
    return ids, np.array([p for _, p in rows], np.int32), np.array([len(i) for i, _ in rows], np.int32)


def batched(rows, tokens, r):
    """The rows (ids, where the answer starts) as batches of about `tokens` ids, each of rows of about one length, in random order. Rows that fill no
    batch are left out: all batches of one length have one shape."""
    by_length, out = {}, []
    for row in rows: by_length.setdefault(next(n for n in LENGTHS if n >= len(row[0])), []).append(row)
    for length, group in by_length.items():
        r.shuffle(group)
        size = max(1, tokens // length)
        out += [padded(group[i:i + size], length) for i in range(0, len(group), size) if i + size <= len(group)]
    r.shuffle(out)
    return out


def _answered(job):
    seed, part, n, tokens, boost = job
    m, rows = gen.Maker("%s:answered:%d" % (seed, part), boost=boost), []
    while len(rows) < n:
        s = m.sample()
        if not s.exact: continue
        ids, _, starts = _tok.encode_sample(s)
        for at in starts[-2:] if s.turns[-1].calls and s.turns[-1].responses else starts[-1:]:
            i = item_of(_tok, s, at, ids)
            row = i["prompt"] + i["expected"]
            if len(row) <= LONGEST: rows.append((row, at))
    return batched(rows, tokens, random.Random("%s:%d" % (seed, part)))


class Answered:
    """Endless batches of questions with their expected answers, of the classes whose answer follows from the question"""

    def __init__(self, tok, seed, tokens, processes, boost=None, part=8000):
        self.pool = multiprocessing.get_context("fork").Pool(processes, _start, (type(tok),))
        self.jobs = ((seed, i, part, tokens, boost) for i in range(1 << 30))
        self.running = [self.pool.apply_async(_answered, (next(self.jobs),)) for _ in range(2 * processes)]

    def __iter__(self):
        while True:
            done = self.running.pop(0).get()
            self.running.append(self.pool.apply_async(_answered, (next(self.jobs),)))
            yield from done


def _questions(job):
    seed, part, n, cls = job
    m, out = gen.Maker("%s:questions:%d" % (seed, part)), []
    while len(out) < n:
        s = m.sample(cls)
        if s.cls == "long": continue
        ids, _, starts = _tok.encode_sample(s)
        if len(ids) > LONGEST: continue
        starts = starts[-2:] if s.turns[-1].calls else starts[-1:]
        for at, end in zip(starts, starts[1:] + [len(ids)]): out.append((end - at, ids[:at]))
    return out[:n]


def questions(tok, seed, n, processes, part=2000, cls=None):
    """Prompts of the training split, for the target's own answers: (about how long the answer will be, prompt)"""
    with multiprocessing.get_context("fork").Pool(processes, _start, (type(tok),)) as pool:
        return [q for qs in pool.map(_questions, [(seed, i, min(part, n - i * part), cls) for i in range((n + part - 1) // part)]) for q in qs]
