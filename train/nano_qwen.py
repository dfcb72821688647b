#!/usr/bin/env python3
"""Trains nano-qwen: the target, then its MTP head and its DFlash drafter, and judges them: `nano_qwen.py --out DIR --judge`. Each stage can be left out
and run later with --resume."""
import argparse
import json
import os

import torch

import dflash
import qwen_model as Q
import qwen_tokenizer
from data import LONGEST, Answered, Rows, held_out_items, questions
from evaluate import checked_answers
from finish import judge
from lengthen import LongRows, lengthen
from optim import Optimizer
from train_drafter import Trained, batches, own_answers, train
from train_target import Log, going_on, learn, loss_of, rates


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--resume", help="an exported target to start from")
    p.add_argument("--target-seconds", type=float, default=230, help="of training with ordinary rows, after the compiler's time; 0: none")
    p.add_argument("--steps", type=int, default=1 << 30, help="at most, of that training; the schedule follows whichever of steps and seconds is further")
    p.add_argument("--rate", type=float, default=1.0, help="share of the usual rate: less for small batches")
    p.add_argument("--long-seconds", type=float, default=0, help="of training with long rows, after that")
    p.add_argument("--long-steps", type=int, default=1 << 30)
    p.add_argument("--long-rate", type=float, default=0.1)
    p.add_argument("--long-share", type=float, default=1.0, help="of the long rows in a step")
    p.add_argument("--snap", type=float, help="rounds the matrices to Q5_0 in training from this part of the last stage of the target on")
    p.add_argument("--draft-seconds", type=float, default=80, help="of the drafters' training; 0: none")
    p.add_argument("--draft-steps", type=int, default=1 << 30)
    p.add_argument("--draft-rate", type=float, default=1.0)
    p.add_argument("--judge", action="store_true", help="scores at the end")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--shards", type=int, default=480)
    p.add_argument("--shard-tokens", type=int, default=1 << 20)
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    p.add_argument("--per-class", type=int, default=15, help="held-out questions")
    p.add_argument("--boost", default="{}", help="JSON: {class: factor of its weight}")
    p.add_argument("--stories", type=int, default=8192, help="stories that the target writes for its drafters")
    p.add_argument("--answer-seconds", type=float, default=25, help="for the stories")
    p.add_argument("--story-share", type=float, default=0.08)
    p.add_argument("--tokens", type=int, default=32768, help="tokens a batch of the drafters")
    p.add_argument("--anchors", type=int, default=16)
    p.add_argument("--max-new", type=int, default=256)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--eager", action="store_true", help="no compiler")
    o = p.parse_args()
    o.balance = 0.0
    return o


def dflash_shape(c):
    """The shape of the DFlash drafter"""
    if c.hidden != 192: return dflash.Config(hidden=c.hidden, head_dim=16, mlp=64, kinds="SF", window=64, captures=(0, 1, 2), mask=qwen_tokenizer.MASK)
    return dflash.Config(hidden=c.hidden, mlp=320, kinds="SF", captures=(1, 4, 6), mask=qwen_tokenizer.MASK)


def train_target(target, o, log, tok, device):
    """Ordinary rows, then long ones; either may be left out."""
    boost, save = json.loads(o.boost), lambda: Q.export(target, o.out, dtype=torch.float32)
    if o.target_seconds:
        rows = Rows(tok, o.seed, o.shards, o.shard_tokens, o.batch, o.length, o.processes, boost)
        o.seconds = o.target_seconds
        learn(target, rows, o, device, log, Optimizer([target], lr=rates(o.rate), snap=None if o.long_seconds else o.snap), save)
        save()
    if o.long_seconds:
        rows = Rows(tok, o.seed + ":lengthen", o.shards, o.shard_tokens, o.batch, o.length, o.processes, boost)
        o.seconds, o.steps = o.long_seconds, o.long_steps
        opt = Optimizer([target], **going_on(o.long_rate), snap=o.snap)
        lengthen(target, rows, LongRows(tok, o.seed, o.processes, o.long_share), o, device, log, opt, target.masks_for(device, log, True), loss_of, save)
        save()


def train_drafters(target, o, log, tok, device):
    asked = questions(tok, o.seed, o.stories, o.processes, cls="story")
    answered = Answered(tok, o.seed, o.tokens, max(1, o.processes // 4))
    head, flash = Q.Head(target.c).to(device), dflash.DFlash(dflash_shape(target.c)).to(device)
    drafters = [Trained("dflash", target, device, net=flash), Trained("head", target, device, net=head)]
    log("drafters of %d and %d parameters" % tuple(sum(p.numel() for p in d.net.parameters()) for d in drafters))
    own = own_answers(target, tok, asked, o, device, log)
    o.seconds, o.steps = o.draft_seconds, o.draft_steps
    train(target, drafters, batches(own, answered, o.story_share, o.tokens), o, device, log, o.draft_rate)
    answered.pool.terminate()
    return drafters


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "nano-qwen.log"))
    tok = qwen_tokenizer.Tokenizer()
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if len(i["prompt"]) + len(i["expected"]) <= LONGEST]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.suppress_errors = True         # what the compiler cannot do runs plainly
    target = Q.load(o.resume, device)[0].train() if o.resume else Q.Target(Q.TINY if o.tiny else Q.Config()).to(device)
    log("%d parameters, %d held-out questions, %s" % (sum(p.numel() for p in target.parameters()), len(items), vars(o)))
    train_target(target, o, log, tok, device)
    target.eval().requires_grad_(False)
    drafters = train_drafters(target, o, log, tok, device) if o.draft_seconds else []
    if o.judge: judge(target, drafters, tok, items, o.out, log, checked_answers(target, tok, items) if device == "cpu" else None)


if __name__ == "__main__":
    main()
