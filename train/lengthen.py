"""Long requests: conversations of coding agents, and notes to be recalled, in rows of up to 20,480 tokens, one to a row. Only what the model says counts. A
step takes one batch of them and one of ordinary rows, so that the rest is not forgotten."""
import multiprocessing
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import gen
import tools
from optim import half

SHAPES = [(12, 4096, [50, 200, 500, 900]), (3, 20480, [4500, 6000]), (12, 4096, [50, 200, 500, 900]), (6, 10240, [1500, 3000])]      # rows, their length, words before the first question
NOTES = {4096: (500, 2000), 10240: (1800, 5000), 20480: (4000, 8500)}      # words of notes, from and to


def _long_batch(job):
    seed, part, share, recalled = job
    m = gen.Maker("%s:long:%d" % (seed, part))
    r = random.Random("%s:%d" % (seed, part))
    rows, length, words = SHAPES[part % len(SHAPES)]
    rows = max(1, round(rows * share))
    ids, said = np.zeros((rows, length + 1), np.uint16), np.zeros((rows, length), bool)
    for i in range(rows):
        while True:
            m.keys = []
            s = gen.recall_class(m, r.randrange(*NOTES[length])) if r.random() < recalled else tools.long_agent(m, gen, r.choice(words))
            s.replay_thought = r.random() < 0.5
            x, trained, _ = data._tok.encode_sample(s)
            if len(x) <= length: break
        ids[i, :len(x)], said[i, :len(x) - 1] = x, trained[1:]
    end = -(-int(np.max(np.nonzero(ids)[1]) + 1) // 512) * 512         # a multiple of the window
    return ids[:, :end + 1], said[:, :end]


class LongRows:
    """Batches: ids [B, T + 1], whether the next token is the model's [B, T]. share: of the rows of SHAPES; recalled: the share of notes."""

    def __init__(self, tok, seed, processes, share=1.0, recalled=0.4):
        self.pool = multiprocessing.get_context("fork").Pool(processes, data._start, (type(tok),))
        self.feed = self.pool.imap(_long_batch, ((seed, i, share, recalled) for i in range(1 << 30)))

    def __iter__(self):
        for ids, said in self.feed: yield torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(said)


def long_loss(target, ids, said):
    """Cross entropy of what the model says in whole rows, and the balance of the routers"""
    positions = torch.arange(ids.shape[1] - 1, device=ids.device)[None].expand(len(ids), -1)
    y, balance, _, _ = target(ids[:, :-1], positions, target.masks_of_rows(ids[:, :-1]))
    return F.cross_entropy(target.logits(y[said]), ids[:, 1:][said]), balance


def lengthen(target, rows, long_rows, o, device, log, opt, masks, loss_of, save=None):
    """Trains for o.seconds; rows and long_rows are iterated together."""
    positions = torch.arange(o.length, device=device)[None]
    begin, step, losses = time.time(), 0, []
    for (ids, weights, documents), (long_ids, said) in zip(rows, long_rows):
        progress = max(step / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        ids, weights, documents, long_ids, said = (x.to(device, non_blocking=True) for x in (ids, weights, documents, long_ids, said))
        with half(device):
            y, balance, _, _ = target(ids[:, :-1], positions, masks(documents))
            plain = loss_of(target, y, ids, weights)
        (plain + o.balance * balance).backward()
        with half(device):
            long, balance = long_loss(target, long_ids, said)
        (long + o.balance * balance).backward()
        opt.step(step, progress)
        losses.append((plain.detach(), long.detach()))
        step += 1
        if step % 20 == 0 or step == 1: log("step %d progress %.2f loss %.4f, long %.4f" % ((step, progress) + tuple(torch.stack(x[-20:]).mean().item() for x in zip(*losses))))
        if save and step % 200 == 0: save()
    rows.pool.terminate()
    long_rows.pool.terminate()
    log("trained for %d steps, %.1f s" % (step, time.time() - begin))
