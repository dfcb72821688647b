#!/usr/bin/env python3
"""Trains nano-qwen in one call: the target, then its MTP head and its DFlash drafter, and judges them: `nano_qwen.py --out DIR --total 420`."""
import argparse
import json
import os
import time

import torch

import dflash
import qwen_model as Q
import qwen_tokenizer
from data import LONGEST, Answered, Rows, held_out_items, questions
from finish import judge
from optim import Optimizer
from train_drafter import Trained, batches, own_answers, train
from train_target import Log, learn

BEGIN = time.time()


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--total", type=float, default=420, help="seconds for everything")
    p.add_argument("--draft-seconds", type=float, default=80, help="of them for the drafters' training")
    p.add_argument("--judge-seconds", type=float, default=35, help="of them for the scores at the end; 0: none")
    p.add_argument("--steps", type=int, default=100000)
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
    p.add_argument("--resume", help="an exported target to train drafters for; it is not trained")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--eager", action="store_true", help="no compiler")
    o = p.parse_args()
    o.balance = 0.0
    return o


def dflash_shape(c):
    """The shape of the DFlash drafter"""
    if c.hidden != 192: return dflash.Config(hidden=c.hidden, head_dim=16, mlp=64, kinds="SF", window=64, captures=(0, 1, 2), mask=qwen_tokenizer.MASK)
    return dflash.Config(hidden=c.hidden, mlp=320, kinds="SF", captures=(1, 4, 6), mask=qwen_tokenizer.MASK)


def drafters_of(target, o, log, tok, asked, answered, device):
    """The trained drafters"""
    head, flash = Q.Head(target.c).to(device), dflash.DFlash(dflash_shape(target.c)).to(device)
    drafters = [Trained("dflash", target, device, net=flash), Trained("head", target, device, net=head)]
    log("drafters of %d and %d parameters" % tuple(sum(p.numel() for p in d.net.parameters()) for d in drafters))
    own = own_answers(target, tok, asked, o, device, log)
    o.seconds = max(5.0, min(o.draft_seconds, o.total - o.judge_seconds - (time.time() - BEGIN)))
    train(target, drafters, batches(own, answered, o.story_share, o.tokens), o, device, log)
    return drafters


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "nano-qwen.log"))
    tok = qwen_tokenizer.Tokenizer()
    asked = questions(tok, o.seed, o.stories, o.processes, cls="story")         # processes fork before the GPU is used
    answered = Answered(tok, o.seed, o.tokens, max(1, o.processes // 4))
    rows = None if o.resume else Rows(tok, o.seed, o.shards, o.shard_tokens, o.batch, o.length, o.processes, json.loads(o.boost))
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if len(i["prompt"]) + len(i["expected"]) <= LONGEST]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.suppress_errors = True         # what the compiler cannot do runs plainly
    target = Q.load(o.resume, device)[0] if o.resume else Q.Target(Q.TINY if o.tiny else Q.Config()).to(device)
    log("%d parameters, %d held-out questions, %s" % (sum(p.numel() for p in target.parameters()), len(items), vars(o)))
    if rows:
        o.seconds = o.total - o.draft_seconds - o.answer_seconds - o.judge_seconds - 45 - (time.time() - BEGIN)
        learn(target, rows, o, device, log, Optimizer([target]), lambda: Q.export(target, o.out))
    Q.export(target, o.out)
    target.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in target.state_dict().items()})
    target.eval().requires_grad_(False)
    drafters = drafters_of(target, o, log, tok, asked, answered, device)
    answered.pool.terminate()
    if o.judge_seconds: judge(target, drafters, tok, items, o.out, log)


if __name__ == "__main__":
    main()
