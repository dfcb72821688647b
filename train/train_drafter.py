#!/usr/bin/env python3
"""Trains a drafter on the target's own greedy answers: `train_drafter.py dflash|mtp --target DIR --out DIR`."""
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
from evaluate import answers, score, table
from optim import Optimizer
from tokenizer import Tokenizer
from train_target import Log


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("kind", choices=["dflash", "mtp"])
    p.add_argument("--target", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--questions", type=int, default=100000)
    p.add_argument("--answer-seconds", type=float, default=90, help="for the target's answers; what is not answered by then is left out")
    p.add_argument("--seconds", type=float, default=240, help="of training")
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--tokens", type=int, default=32768, help="tokens a batch")
    p.add_argument("--anchors", type=int, default=16, help="blocks a row and step")
    p.add_argument("--per-class", type=int, default=40)
    p.add_argument("--max-new", type=int, default=256)
    return p.parse_args()


def own_answers(target, tok, o, device, log):
    """(ids, where the answer starts) of many questions, answered greedily by the target in bf16"""
    asked = questions(tok, o.seed, o.questions)
    asked.sort(key=lambda q: (q[0], len(q[1])))             # answers of a class are about as long
    size = 4096 if device == "cuda" else 16
    groups = [asked[i:i + size] for i in range(0, len(asked), size)]
    random.Random(1).shuffle(groups)
    half = M.Target(target.c).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    half.load_state_dict(target.state_dict())
    stops = {tok.special[s] for s in STOPS}
    begin, out = time.time(), []
    for g in groups:
        if time.time() - begin > o.answer_seconds: break
        for (_, prompt), a in zip(g, M.generate(half.eval(), [q for _, q in g], stops, o.max_new)):
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


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, o.kind + ".log"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    tok = Tokenizer()
    stops = {tok.special[s] for s in STOPS}
    target = M.load(o.target, device).requires_grad_(False)
    drafter = (dflash.DFlash(dflash.for_target(target.c)) if o.kind == "dflash" else mtp.Assistant(mtp.for_target(target.c), target.c)).to(device)
    log("%s of %d parameters for a target of %d, %s" % (o.kind, M.parameters(drafter), M.parameters(target), vars(o)))
    torch.set_float32_matmul_precision("high")
    rows = own_answers(target, tok, o, device, log)
    opt = Optimizer([drafter])
    want = drafter.c.captures if o.kind == "dflash" else ()
    begin, step, losses, gains = time.time(), 0, [], []
    for ids, first, lengths in batches(rows, o.tokens, device):
        progress = max(step / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            y, _, outputs, donors = spec.run_target(target, ids, want)
            if o.kind == "dflash":
                anchors = first[:, None] + (torch.rand(len(ids), o.anchors, device=device) * (lengths - first - 1)[:, None]).long()
                loss, gain = dflash.loss_of(drafter, target, outputs, ids, first, lengths, anchors)
            else: loss, gain = mtp.loss_of(drafter, target, y, donors, ids, first, lengths)
        loss.backward()
        opt.step(step, progress)
        losses.append(loss.detach())
        gains.append(gain.detach())
        step += 1
        if step % 250 == 0 or step in (1, 10, 50):
            log("step %d progress %.2f loss %.4f accepted %.2f" % (step, progress, torch.stack(losses[-250:]).mean(), 1 + torch.stack(gains[-250:]).float().mean()))
        if step % 4000 == 0: export(o, drafter, target)
    export(o, drafter, target)
    log("exported after %d steps, %.1f s" % (step, time.time() - begin))
    torch.set_float32_matmul_precision("highest")
    drafter.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in drafter.state_dict().items()})
    items = held_out_items(tok, o.seed, o.per_class)
    log("target in f32:\n" + table(score(target, tok, items)))
    records = spec.judge(o.kind, drafter.eval(), target, tok, items, stops, log)
    with open(os.path.join(o.out, o.kind + "-acceptance.json"), "w") as f: json.dump(records, f, separators=(",", ":"))
    log("done")


def export(o, drafter, target):
    (dflash if o.kind == "dflash" else mtp).export(drafter, target, os.path.join(o.out, o.kind))


if __name__ == "__main__":
    main()
