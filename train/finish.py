#!/usr/bin/env python3
"""Continues training in one short call: the target with new text, then both drafters for the new target. --total is the time of the whole call;
the drafters get what is left of it: `finish.py --target DIR --drafters DIR --out DIR`. OUT gets the target's pieces and rest.tar."""
import argparse
import json
import os
import tarfile
import tempfile
import time

import torch

import model as M
import spec
from data import LONGEST, Answered, Rows, held_out_items, questions
from lengthen import LongRows, lengthen
from evaluate import score, table
from optim import Optimizer
from tokenizer import Tokenizer
from train_drafter import Trained, batches, own_answers, train
from train_target import Log, going_on, learn, loss_of

BEGIN = time.time()


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--target", required=True)
    p.add_argument("--drafters", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--total", type=float, default=270)
    p.add_argument("--target-seconds", type=float, default=60, help="of training, after the compiler's time; 0 leaves the target as it is")
    p.add_argument("--rate", type=float, default=0.5, help="share of the rate of a run from scratch, falling from the start")
    p.add_argument("--long-seconds", type=float, default=0, help="of training with long rows, after that")
    p.add_argument("--long-rate", type=float, default=0.1)
    p.add_argument("--boost", default="{}", help="JSON: {class: factor of its weight} in the target's text")
    p.add_argument("--eager", action="store_true", help="no compiler")
    p.add_argument("--balance", type=float, default=0.01)
    p.add_argument("--draft-rate", type=float, default=0.5, help="the same for the drafters")
    p.add_argument("--draft-boost", default="{}", help="JSON, as --boost, for the drafters")
    p.add_argument("--answer-seconds", type=float, default=45)
    p.add_argument("--judge-seconds", type=float, default=35, help="kept for the evaluation; 0 leaves it out")
    p.add_argument("--own", help="a JSON file [[ids, where the answer starts], ...] of stories that the target wrote")
    p.add_argument("--stories", type=int, default=16384, help="how many it writes without that")
    p.add_argument("--story-share", type=float, default=0.08)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--anchors", type=int, default=16)
    p.add_argument("--per-class", type=int, default=15)
    p.add_argument("--tool-cases", type=int, default=300)
    p.add_argument("--shards", type=int, default=40)
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 3), help="that write text: few, so that the compiler has cores")
    o = p.parse_args()
    o.steps, o.max_new = 1 << 30, 256
    return o


def keep(o, work):
    """All but the target's pieces, in one file that is always whole."""
    part = os.path.join(work, "..", os.path.basename(work) + ".tar")
    with tarfile.open(part, "w") as t: t.add(work, ".")
    with open(part, "rb") as f, open(os.path.join(o.out, "rest.part"), "wb") as g: g.write(f.read())
    os.replace(os.path.join(o.out, "rest.part"), os.path.join(o.out, "rest.tar"))


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    work = tempfile.mkdtemp()
    log = Log(os.path.join(work, "finish.log"))
    tok = Tokenizer()
    asked = [] if o.own else questions(tok, o.seed + ":finish", o.stories, o.processes, cls="story")
    answered = Answered(tok, o.seed + ":finish", o.tokens, o.processes, json.loads(o.draft_boost))
    rows = Rows(tok, o.seed + ":finish", o.shards, 1 << 20, o.batch, o.length, o.processes, json.loads(o.boost)) if o.target_seconds else None
    if o.long_seconds: long = Rows(tok, o.seed + ":lengthen", 400, 1 << 18, o.batch, o.length, o.processes, json.loads(o.boost)), LongRows(tok, o.seed, o.processes)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if len(i["prompt"]) + len(i["expected"]) <= LONGEST]
    cases = held_out_items(tok, o.seed, o.tool_cases, classes=["tools"])
    target = M.load(o.target, device).train()
    log("%s" % vars(o))
    if rows:
        o.seconds = o.target_seconds
        learn(target, rows, o, device, log, Optimizer([target], **going_on(o.rate)))
    if o.long_seconds:
        o.seconds = o.long_seconds
        lengthen(target, *long, o, device, log, Optimizer([target], **going_on(o.long_rate)), target.masks_for(device, log, True), loss_of)
        if device == "cuda": torch.cuda.empty_cache()
    M.export(target, o.out)
    for f in os.listdir(o.out):
        if f.endswith(".json"): move(o.out, work, f)
    target.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in target.state_dict().items()})
    target.eval().requires_grad_(False)
    keep(o, work)
    own = [tuple(x) for x in json.load(open(o.own))] if o.own else own_answers(target, tok, asked, o, device, log)
    drafters = [Trained(k, target, device, o.drafters) for k in ("dflash", "mtp")]
    out, o.out = o.out, work
    o.seconds = max(10.0, o.total - o.judge_seconds - (time.time() - BEGIN))
    train(target, drafters, batches(own, answered, o.story_share, o.tokens), o, device, log, o.draft_rate)
    answered.pool.terminate()
    o.out = out
    keep(o, work)
    if not o.judge_seconds: return
    judge(target, drafters, tok, items, work, log)
    keep(o, work)
    log("any tools, in f32:\n" + table(score(target, tok, cases)))
    keep(o, work)


def move(a, b, name):
    """Between file systems"""
    with open(os.path.join(a, name)) as f: text = f.read()
    with open(os.path.join(b, name), "w") as f: f.write(text)
    os.remove(os.path.join(a, name))


def judge(target, drafters, tok, items, work, log, got=None):
    torch.set_float32_matmul_precision("highest")
    log("target in f32:\n" + table(score(target, tok, items, got=got)))
    for i in [i for i in items if i["cls"] == "story"][:4]: log(tok.decode(i["answer"]))
    for d in drafters:
        d.net.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in d.net.state_dict().items()})
        log(d.kind)
        records = spec.judge(d.kind, d.net.eval(), target, tok, items, tok.stops, log, check=0)
        with open(os.path.join(work, d.kind + "-acceptance.json"), "w") as f: json.dump(records, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
