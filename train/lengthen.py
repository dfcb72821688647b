"""Long requests: conversations of coding agents in rows of up to 20,480 tokens, one to a row. Only what the model says counts. A step takes one batch
of them and one of ordinary rows, so that the rest is not forgotten."""
import multiprocessing
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import gen
import tools
from model import shared

SHAPES = [(12, 4096, [50, 200, 500, 900]), (3, 20480, [4500, 6000]), (12, 4096, [50, 200, 500, 900]), (6, 10240, [1500, 3000])]      # rows, their length, words before the first question


def _long_batch(job):
    seed, part = job
    m = gen.Maker("%s:long:%d" % (seed, part))
    r = random.Random("%s:%d" % (seed, part))
    rows, length, words = SHAPES[part % len(SHAPES)]
    ids, said = np.zeros((rows, length + 1), np.uint16), np.zeros((rows, length), bool)
    for i in range(rows):
        while True:
            m.keys = []
            s = tools.long_agent(m, gen, r.choice(words))
            s.replay_thought = r.random() < 0.5
            x, trained, _ = data._tok.encode_sample(s)
            if len(x) <= length: break
        ids[i, :len(x)], said[i, :len(x) - 1] = x, trained[1:]
    return ids, said


class LongRows:
    """Endless batches: ids [B, T + 1], whether the next token is the model's [B, T]"""

    def __init__(self, tok, seed, processes):
        self.pool = multiprocessing.get_context("fork").Pool(processes, data._start, (type(tok),))
        self.feed = self.pool.imap(_long_batch, ((seed, i) for i in range(2000)))

    def __iter__(self):
        for ids, said in self.feed: yield torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(said)


def full(q, k, v):
    n = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, shared(k, n), shared(v, n), is_causal=True, scale=1.0)


def sliding(window):
    """Attention to the window, in blocks of its size: each sees itself and the one before."""
    def attend(q, k, v):
        b, heads, t, d = q.shape
        n = q.shape[1] // k.shape[1]

        def blocks(x): return x.unflatten(2, (t // window, window)).transpose(1, 2)

        def with_last(x):
            x = blocks(shared(x, n))
            return torch.cat([F.pad(x[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)), x], 3).flatten(0, 1)
        i, j = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)[None]
        ok = (j > i) & (j <= i + window)
        ok = torch.stack([ok & (j >= window)] + [ok] * (t // window - 1)).repeat(b, 1, 1)[:, None]
        y = F.scaled_dot_product_attention(blocks(q).flatten(0, 1), with_last(k), with_last(v), attn_mask=ok, scale=1.0)
        return y.unflatten(0, (b, t // window)).transpose(1, 2).flatten(2, 3)
    return attend


def long_loss(target, ids, said):
    """Cross entropy of what the model says in whole rows, and the balance of the routers"""
    positions = torch.arange(ids.shape[1] - 1, device=ids.device)[None].expand(len(ids), -1)
    y, balance, _, _ = target(ids[:, :-1], positions, (sliding(target.c.window), full))
    return F.cross_entropy(target.logits(y[said]), ids[:, 1:][said]), balance


def lengthen(target, rows, long_rows, o, device, log, opt, masks, loss_of):
    """Trains for o.seconds; rows and long_rows are iterated together."""
    positions = torch.arange(o.length, device=device)[None]
    begin, step, losses = time.time(), 0, []
    for (ids, weights, documents), (long_ids, said) in zip(rows, long_rows):
        progress = max(step / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        ids, weights, documents, long_ids, said = (x.to(device, non_blocking=True) for x in (ids, weights, documents, long_ids, said))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            y, balance, _, _ = target(ids[:, :-1], positions, masks(documents))
            plain = loss_of(target, y, ids, weights)
        (plain + o.balance * balance).backward()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            long, balance = long_loss(target, long_ids, said)
        (long + o.balance * balance).backward()
        opt.step(step, progress)
        losses.append((plain.detach(), long.detach()))
        step += 1
        if step % 20 == 0 or step == 1: log("step %d progress %.2f loss %.4f, long %.4f" % ((step, progress) + tuple(torch.stack(x[-20:]).mean().item() for x in zip(*losses))))
    rows.pool.terminate()
    long_rows.pool.terminate()
    log("trained for %d steps, %.1f s" % (step, time.time() - begin))
