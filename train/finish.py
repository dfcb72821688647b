#!/usr/bin/env python3
"""Goes on with a trained set in one short call: the target with new text, then both drafters with its new answers. Everything follows from --total,
the seconds of the whole call: `finish.py --target DIR --drafters DIR --out DIR`. OUT gets the target's pieces and rest.tar."""
import argparse
import json
import os
import tarfile
import tempfile
import time

import torch

import model as M
import spec
from data import LONGEST, STOPS, Rows, held_out_items, questions
from evaluate import score, table
from optim import Optimizer
from tokenizer import Tokenizer
from train_drafter import Trained, own_answers, train
from train_target import Log, going_on, learn

BEGIN = time.time()


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--target", required=True)
    p.add_argument("--drafters", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--total", type=float, default=270)
    p.add_argument("--target-seconds", type=float, default=60, help="of training, behind the compiler's time")
    p.add_argument("--rate", type=float, default=0.5, help="share of the rate of a run from scratch, falling from the start")
    p.add_argument("--boost", default="{}", help="JSON: {class: factor of its weight} in the target's text")
    p.add_argument("--eager", action="store_true", help="no compiler")
    p.add_argument("--balance", type=float, default=0.01)
    p.add_argument("--answer-seconds", type=float, default=45)
    p.add_argument("--judge-seconds", type=float, default=35, help="kept for the evaluation")
    p.add_argument("--questions", type=int, default=90000)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--anchors", type=int, default=16)
    p.add_argument("--per-class", type=int, default=15)
    p.add_argument("--tool-cases", type=int, default=300)
    p.add_argument("--shards", type=int, default=40)
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
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
    asked = questions(o.seed + ":finish", o.questions, o.processes)
    rows = Rows(o.seed + ":finish", o.shards, 1 << 20, o.batch, o.length, o.processes, json.loads(o.boost))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    tok = Tokenizer()
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if len(i["prompt"]) + len(i["expected"]) <= LONGEST]
    cases = held_out_items(tok, o.seed, o.tool_cases, classes=["tools"])
    target = M.load(o.target, device).train()
    log("%d questions, %s" % (len(asked), vars(o)))
    o.seconds = o.target_seconds
    learn(target, rows, o, device, log, Optimizer([target], **going_on(o.rate)))
    M.export(target, o.out)
    for f in os.listdir(o.out):
        if f.endswith(".json"): move(o.out, work, f)
    target.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in target.state_dict().items()})
    target.eval().requires_grad_(False)
    keep(o, work)
    rows = own_answers(target, tok, asked, o, device, log)
    drafters = [Trained(k, target, device, o.drafters) for k in ("dflash", "mtp")]
    out, o.out = o.out, work
    o.seconds = max(10.0, o.total - o.judge_seconds - (time.time() - BEGIN))
    train(target, drafters, rows, o, device, log)
    o.out = out
    keep(o, work)
    judge(target, drafters, tok, items, work, log)
    keep(o, work)
    log("any tools, in f32:\n" + table(score(target, tok, cases)))
    keep(o, work)


def move(a, b, name):
    """Between file systems"""
    with open(os.path.join(a, name)) as f: text = f.read()
    with open(os.path.join(b, name), "w") as f: f.write(text)
    os.remove(os.path.join(a, name))


def judge(target, drafters, tok, items, work, log):
    torch.set_float32_matmul_precision("highest")
    log("target in f32:\n" + table(score(target, tok, items)))
    for i in [i for i in items if i["cls"] == "story"][:4]: log(tok.decode(i["answer"]))
    stops = {tok.special[s] for s in STOPS}
    for d in drafters:
        d.net.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in d.net.state_dict().items()})
        log(d.kind)
        records = spec.judge(d.kind, d.net.eval(), target, tok, items, stops, log, check=0)
        with open(os.path.join(work, d.kind + "-acceptance.json"), "w") as f: json.dump(records, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
