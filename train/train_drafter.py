#!/usr/bin/env python3
"""Trains drafters on the target's own greedy answers, both at once: `train_drafter.py --target DIR --out DIR`."""
import argparse
import json
import os
import random
import time

import torch

import dflash
import model as M
import mtp
import spec
from data import STOPS, held_out_items, questions
from evaluate import score, table
from optim import Optimizer
from tokenizer import Tokenizer
from train_target import Log


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kinds", default="dflash,mtp")
    p.add_argument("--target", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--questions", type=int, default=100000)
    p.add_argument("--answer-seconds", type=float, default=90, help="for the target's answers; what is not answered by then is left out")
    p.add_argument("--seconds", type=float, default=270, help="of training")
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--tokens", type=int, default=32768, help="tokens a batch")
    p.add_argument("--anchors", type=int, default=16, help="blocks a row and step")
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
    half = M.Target(target.c).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    half.load_state_dict(target.state_dict())
    stops = {tok.special[s] for s in STOPS}
    begin, out = time.time(), []
    for g in groups:
        if time.time() - begin > o.answer_seconds: break
        for (_, prompt), a in zip(g, M.generate(half.eval(), [q for _, q in g], stops, min(o.max_new, g[-1][0] + 16))):
            if a[-1] in stops and len(a) > 1: out.append((prompt + a, len(prompt)))
    if not out: raise SystemExit("the target finished no answer")
    log("%d answers, %.1fM tokens, %.1f s" % (len(out), sum(len(i) for i, _ in out) / 1e6, time.time() - begin))
    return out


def batches(rows, tokens, device):
    """Endless batches of rows of about one length: ids [B, T], where the answers start, lengths"""
    rows, r = sorted(rows, key=lambda x: len(x[0])), random.Random(2)
    groups, at = [], 0
    while at < len(rows):
        n = max(1, tokens // ((len(rows[min(len(rows) - 1, at + tokens // max(1, len(rows[at][0])))][0]) + 63) // 64 * 64))
        groups.append(rows[at:at + n])
        at += n
    made = []
    for g in groups:
        t = (max(len(i) for i, _ in g) + 63) // 64 * 64
        ids = torch.zeros(len(g), t, dtype=torch.long)
        for j, (i, _) in enumerate(g): ids[j, :len(i)] = torch.tensor(i)
        made.append((ids.to(device), torch.tensor([p for _, p in g], device=device), torch.tensor([len(i) for i, _ in g], device=device)))
    while True:
        r.shuffle(made)
        yield from made


class Trained:
    """A drafter in training"""

    def __init__(self, kind, target, device, resume=None):
        self.kind = kind
        old = resume and os.path.join(resume, kind)
        if old and os.path.isdir(old): self.net = dflash.load(old, device) if kind == "dflash" else mtp.load(old, target, device)
        else: self.net, old = (dflash.DFlash(dflash.for_target(target.c)) if kind == "dflash" else mtp.Assistant(mtp.for_target(target.c), target.c)).to(device), None
        self.opt, self.losses, self.gains = Optimizer([self.net], **(dict(lr=(0.01, 0.002, 0.002), warmup=30, falls=0.8) if old else {})), [], []

    def loss(self, target, y, outputs, donors, ids, first, lengths, n_anchors):
        if self.kind == "mtp": return mtp.loss_of(self.net, target, y, donors, ids, first, lengths)
        anchors = first[:, None] + (torch.rand(len(ids), n_anchors, device=ids.device) * (lengths - first - 1)[:, None]).long()
        return dflash.loss_of(self.net, target, outputs, ids, first, lengths, anchors)

    def recent(self):
        return "%s loss %.4f accepted %.2f" % (self.kind, torch.stack(self.losses[-250:]).mean(), 1 + torch.stack(self.gains[-250:]).float().mean())

    def export(self, target, out):
        (dflash if self.kind == "dflash" else mtp).export(self.net, target, os.path.join(out, self.kind))


def train(target, drafters, rows, o, device, log):
    want = tuple({i for d in drafters if d.kind == "dflash" for i in d.net.c.captures})
    begin, step = time.time(), 0
    for ids, first, lengths in batches(rows, o.tokens, device):
        progress = max(step / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            y, _, outputs, donors = spec.run_target(target, ids, want)
            found = [d.loss(target, y, outputs, donors, ids, first, lengths, o.anchors) for d in drafters]
        for d, (loss, gain) in zip(drafters, found):
            loss.backward()
            d.opt.step(step, progress)
            d.losses.append(loss.detach())
            d.gains.append(gain.detach())
        step += 1
        if step % 250 == 0 or step in (1, 10, 50): log("step %d progress %.2f %s" % (step, progress, ", ".join(d.recent() for d in drafters)))
        if step % 1000 == 0:
            for d in drafters: d.export(target, o.out)
    for d in drafters: d.export(target, o.out)
    log("exported after %d steps, %.1f s" % (step, time.time() - begin))


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "drafters.log"))
    asked = questions(o.seed, o.questions, o.processes)     # forks before the GPU is touched
    log("%d questions" % len(asked))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    tok = Tokenizer()
    target = M.load(o.target, device).requires_grad_(False)
    drafters = [Trained(k, target, device, o.resume) for k in o.kinds.split(",")]
    log("%s for a target of %d parameters, %s" % (["%s of %d" % (d.kind, M.parameters(d.net)) for d in drafters], M.parameters(target), vars(o)))
    torch.set_float32_matmul_precision("high")
    rows = own_answers(target, tok, asked, o, device, log)
    train(target, drafters, rows, o, device, log)
    torch.set_float32_matmul_precision("highest")
    items = held_out_items(tok, o.seed, o.per_class)
    log("target in f32:\n" + table(score(target, tok, items)))
    stops = {tok.special[s] for s in STOPS}
    for d in drafters:
        d.net.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in d.net.state_dict().items()})
        log("%s, held out, %s" % (d.kind, "block of 16" if d.kind == "dflash" else "3 drafts"))
        records = spec.judge(d.kind, d.net.eval(), target, tok, items, stops, log)
        with open(os.path.join(o.out, d.kind + "-acceptance.json"), "w") as f: json.dump(records, f, separators=(",", ":"))
    log("done")


if __name__ == "__main__":
    main()
