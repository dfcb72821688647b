#!/usr/bin/env python3
"""Trains drafters on the target's own greedy answers, both at once: `train_drafter.py --target DIR --out DIR`. Where the answer follows from the
question, the expected answer is taken up to the first token that the target would not have chosen; stories are written by the target."""
import argparse
import json
import os
import random
import time

import numpy as np
import torch

import dflash
import graphs
import model as M
import mtp
import qwen_model
import spec
from data import Answered, batched, held_out_items, questions
from evaluate import score, table
from tokenizer import Tokenizer
from train_target import Log


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kinds", default="dflash,mtp")
    p.add_argument("--target", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--stories", type=int, default=16384, help="stories that the target writes")
    p.add_argument("--story-share", type=float, default=0.08, help="of the batches")
    p.add_argument("--answer-seconds", type=float, default=90, help="for the stories; those not written by then are left out")
    p.add_argument("--boost", default="{}", help="JSON: {class: factor of its weight}")
    p.add_argument("--seconds", type=float, default=270, help="of training")
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--tokens", type=int, default=32768, help="tokens a batch")
    p.add_argument("--anchors", type=int, default=16, help="blocks a row and step; the assistant starts at twice as many places")
    p.add_argument("--per-class", type=int, default=40)
    p.add_argument("--max-new", type=int, default=256)
    p.add_argument("--resume", help="a directory with dflash/ or mtp/ to go on from, at a lower rate")
    return p.parse_args()


def own_answers(target, tok, asked, o, device, log):
    """(ids, where the answer starts) of the questions, answered greedily by the target in bf16"""
    size = 4096 if device == "cuda" else 16
    groups = []
    for i in range(0, len(asked), 8 * size):                # answers of about one length together; every eighth of the text covers all lengths
        part = sorted(asked[i:i + 8 * size], key=lambda q: q[0])
        groups += [part[j:j + size] for j in range(0, len(part), size)]
    half = type(target)(target.c).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    half.load_state_dict(target.state_dict())
    begin, out = time.time(), []
    for g in groups:
        if time.time() - begin > o.answer_seconds: break
        for (_, prompt), a in zip(g, half.eval().generate([q for _, q in g], tok.stops, min(o.max_new, g[-1][0] + 64))):
            if a[-1] in tok.stops and len(a) > 1: out.append((prompt + a, len(prompt)))
    if not out: raise SystemExit("the target finished no answer")
    log("%d answers, %.1fM tokens, %.1f s" % (len(out), sum(len(i) for i, _ in out) / 1e6, time.time() - begin))
    return out


def batches(own, answered, share, tokens):
    """Endless batches ids [B, T], where the answers start, lengths: of the target's `own` answers in this share, else of `answered`"""
    r = random.Random(2)
    made, rest = batched(own, tokens, r), []
    for batch in answered:
        while r.random() < share:
            if not rest: rest = r.sample(made, len(made))
            yield wide(rest.pop())
        yield wide(batch)


def wide(batch):
    return tuple(torch.from_numpy(x.astype(np.int64)) for x in batch)


class Trained:
    """A drafter in training"""

    def __init__(self, kind, target, device, resume=None, net=None):
        """net: a drafter to train, instead of a new one of nano's shape"""
        self.kind, self.net = kind, net
        if net: return
        old = resume and os.path.join(resume, kind)
        if old and os.path.isdir(old): self.net = (dflash.load(old, device) if kind == "dflash" else mtp.load(old, target, device)).train()
        else: self.net = (dflash.DFlash(dflash.for_target(target.c)) if kind == "dflash" else mtp.Assistant(mtp.for_target(target.c), target.c)).to(device)

    def loss(self, target, y, outputs, donors, ids, first, lengths, places):
        """places: random numbers [B, P] of 0 to 1, where in the answers to start"""
        anchors = first[:, None] + (places * (lengths - first - 1).clamp(min=0)[:, None]).long()
        if self.kind == "mtp": return mtp.loss_of(mtp.chain(self.net, target, ids, y, donors, anchors, 4), ids, lengths, anchors)
        if self.kind == "head": return mtp.loss_of(qwen_model.chain(self.net, target, ids, y, anchors, 4), ids, lengths, anchors)
        return dflash.loss_of(self.net, target, outputs, ids, first, lengths, anchors)

    def export(self, target, out):
        if self.kind == "head": qwen_model.export(target, out, self.net, torch.float32)     # bf16 would change a target rounded to Q5_0
        else: (dflash if self.kind == "dflash" else mtp).export(self.net, target, os.path.join(out, self.kind))


def train(target, drafters, feed, o, device, log, rate=1.0, warmup=100, falls=0.9):
    """feed: as `batches` gives it. The rate rises for `warmup` steps, stays, and falls to zero over the last part."""
    step = graphs.Step(target, drafters, device, o.anchors, rate, not getattr(o, "eager", False))
    begin, n = time.time(), 0
    for batch in feed:
        progress = max(n / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        step(batch, min(1, (n + 1) / warmup, (1 - progress) / falls))
        n += 1
        if n % 250 == 0 or n in (1, 10, 50): log("step %d progress %.2f %s" % (n, progress, step.recent()))
        if n % 1000 == 0:
            for d in drafters: d.export(target, o.out)
    for d in drafters: d.export(target, o.out)
    log("exported after %d steps, %.1f s" % (n, time.time() - begin))


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "drafters.log"))
    tok = Tokenizer()
    asked = questions(tok, o.seed, o.stories, o.processes, cls="story")      # forks before the GPU is touched
    answered = Answered(tok, o.seed, o.tokens, o.processes, json.loads(o.boost))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    target = M.load(o.target, device).requires_grad_(False)
    drafters = [Trained(k, target, device, o.resume) for k in o.kinds.split(",")]
    log("%s for a target of %d parameters, %s" % (["%s of %d" % (d.kind, M.parameters(d.net)) for d in drafters], M.parameters(target), vars(o)))
    torch.set_float32_matmul_precision("high")
    own = own_answers(target, tok, asked, o, device, log)
    train(target, drafters, batches(own, answered, o.story_share, o.tokens), o, device, log, *((0.5,) if o.resume else (1.0, 100, 0.5)))
    answered.pool.terminate()
    torch.set_float32_matmul_precision("highest")
    items = held_out_items(tok, o.seed, o.per_class)
    log("target in f32:\n" + table(score(target, tok, items)))
    for d in drafters:
        d.net.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in d.net.state_dict().items()})
        log("%s, held out, %s" % (d.kind, "block of 16" if d.kind == "dflash" else "3 drafts"))
        records = spec.judge(d.kind, d.net.eval(), target, tok, items, tok.stops, log)
        with open(os.path.join(o.out, d.kind + "-acceptance.json"), "w") as f: json.dump(records, f, separators=(",", ":"))
    log("done")


if __name__ == "__main__":
    main()
