#!/usr/bin/env python3
"""The held-out questions asked through tandem: `score.py --tandem BIN -m MODEL` prints exact answers per class. MODEL may be any file tandem loads."""
import argparse
import collections
import concurrent.futures
import subprocess

from evaluate import table
from data import held_out_items
from tokenizer import Tokenizer


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tandem", required=True)
    p.add_argument("-m", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--per-class", type=int, default=100)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--show", type=int, default=0, help="wrong answers to print of each class")
    o = p.parse_args()
    tok = Tokenizer()
    items = [i for i in held_out_items(tok, o.seed, o.per_class) if i["exact"]]

    def ask(item):
        run = [o.tandem, "run", "-m", o.m, "--temp", "0", "-n", "256", "--threads", "1", "--print-ids", "--ids", ",".join(map(str, item["prompt"]))]
        return [int(x) for x in subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()]

    right, asked = collections.Counter(), collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(o.processes) as pool:
        for item, a in zip(items, pool.map(ask, items)):
            c = item["cls"]
            asked[c] += 1
            right[c] += a == item["expected"]
            if a != item["expected"] and asked[c] - right[c] <= o.show:
                print("%s\n%s\nexpected %r\ngot      %r" % (c, tok.decode(item["prompt"])[-160:], tok.decode(item["expected"]), tok.decode(a)))
    print(table({c: (right[c], asked[c]) for c in sorted(asked)}))


if __name__ == "__main__":
    main()
