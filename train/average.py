#!/usr/bin/env python3
"""Writes the weighted mean of several targets, computed in f32 and rounded to bf16: `average.py OUT 0.05 A.gguf 0.25 B 0.7 C`. A target is a
GGUF file of nano or an exported directory; the last one must be a directory. OUT is a directory for pack.py. `--first 2 --first-weights
0.15,0.15,0.7` gives the first two layers weights of their own."""
import argparse
import os
import re
import shutil

import torch

import model as M
import unpack


def tensors(path):
    if not path.endswith(".gguf"): return M.load_tensors(path)
    return {"model." + k: v for k, v in unpack.fill(M.Target(M.Config()), path, "target").state_dict().items()}


def checked(weights, n):
    if len(weights) != n: raise SystemExit("%d weights for %d targets" % (len(weights), n))
    if abs(sum(weights) - 1) > 1e-6: raise SystemExit("the weights sum to %g, not to 1" % sum(weights))
    return weights


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("out")
    p.add_argument("parts", nargs="+", metavar="WEIGHT TARGET")
    p.add_argument("--first", type=int, default=0, help="how many layers have weights of their own")
    p.add_argument("--first-weights", help="these weights, with commas")
    o = p.parse_args()
    paths = o.parts[1::2]
    rest = checked(list(map(float, o.parts[::2])), len(paths))
    first = checked(list(map(float, o.first_weights.split(","))), len(paths)) if o.first else rest
    models = [tensors(x) for x in paths]
    for path, m in zip(paths, models):
        if m.keys() != models[0].keys(): raise SystemExit("%s has other tensors than %s" % (path, paths[0]))

    def mean(k):
        layer = re.match(r"model\.layers\.(\d+)\.", k)
        weights = first if layer and int(layer[1]) < o.first else rest
        return sum(w * m[k].float() for w, m in zip(weights, models)).to(torch.bfloat16)

    os.makedirs(o.out, exist_ok=True)
    M.save_tensors(o.out, {k: mean(k) for k in models[0]})
    shutil.copyfile(os.path.join(paths[-1], "config.json"), os.path.join(o.out, "config.json"))


if __name__ == "__main__":
    main()
