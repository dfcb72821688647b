#!/usr/bin/env python3
"""Scores a finished set in f32 and writes the acceptance of both drafters, as tests/golden/nano has it:
`judge.py --target DIR --drafters DIR --out DIR`. DIR of --drafters has dflash/ and mtp/."""
import argparse
import os

import torch

import model as M
from data import LONGEST, held_out_items
from evaluate import checked_answers
from finish import judge
from tokenizer import Tokenizer
from train_drafter import Trained
from train_target import Log


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--target", required=True)
    p.add_argument("--drafters", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--per-class", type=int, default=15)
    o = p.parse_args()
    os.makedirs(o.out, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tok = Tokenizer()
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if len(i["prompt"]) + len(i["expected"]) <= LONGEST]
    target = M.load(o.target, device).eval().requires_grad_(False)
    drafters = [Trained(k, target, device, o.drafters) for k in ("dflash", "mtp")]
    got = checked_answers(target, tok, items) if device == "cpu" else None
    judge(target, drafters, tok, items, o.out, Log(os.path.join(o.out, "judge.log")), got)


if __name__ == "__main__":
    main()
