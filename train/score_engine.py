#!/usr/bin/env python3
"""The held-out scores of a shipped file, through the engine: `score_engine.py build/tandem nano --per-class 100`."""
import argparse
import collections
import concurrent.futures
import json
import subprocess

from data import held_out_items
from evaluate import table
from tokenizer import Tokenizer


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("engine")
    p.add_argument("model")
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--per-class", type=int, default=100)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--json", help="also write the scores there")
    return p.parse_args()


def answer(o, prompt):
    """Greedy, up to and with the token that ends it; the engine applies its own stop ids."""
    run = [o.engine, "run", "-m", o.model, "--threads", "1", "--temp", "0", "-n", "256", "--print-ids", "--ids", ",".join(map(str, prompt))]
    return [int(i) for i in subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()]


def main():
    o = options()
    tok = Tokenizer()
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if i["exact"]]
    with concurrent.futures.ThreadPoolExecutor(o.processes) as pool:
        got = list(pool.map(lambda i: answer(o, i["prompt"]), items))
    right, asked = collections.Counter(), collections.Counter()
    for item, ids in zip(items, got):
        asked[item["cls"]] += 1
        right[item["cls"]] += ids == list(item["expected"])
    scores = {c: (right[c], asked[c]) for c in sorted(asked)}
    print(table(scores))
    if o.json: json.dump(scores, open(o.json, "w"), indent=1)


if __name__ == "__main__":
    main()
