#!/usr/bin/env python3
"""The code here against tandem, on random weights of nano-qwen's small shape: `check_qwen.py --tandem BIN`. Logits, drafts of the MTP head and of DFlash."""
import argparse
import subprocess
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file

import dflash
import qwen_model as Q
from nano_qwen import dflash_shape


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tandem", required=True)
    o = p.parse_args()
    torch.manual_seed(0)
    target, head = Q.Target(Q.TINY), Q.Head(Q.TINY)
    drafter = dflash.DFlash(dflash_shape(Q.TINY))
    for m in (target, head, drafter):
        for n, w in m.named_parameters():
            if "norm" in n: w.data += 0.1 * torch.randn_like(w)
    ids = torch.randint(0, Q.TINY.vocab - 33, (1, 100))
    with tempfile.TemporaryDirectory() as d:
        Q.export(target, d, head, torch.float32)
        dflash.export(drafter, target, d + "/dflash", torch.float32)

        def run(command, *more):
            args = [o.tandem, command, "-m", d, "--ids", ",".join(map(str, ids[0].tolist())), "-o", d + "/out", "--device", "ref", "--kv", "f32"]
            subprocess.run(args + list(more), check=True)
            return load_file(d + "/out")

        worst = {}
        with torch.no_grad():
            y, _, outputs, _ = target.run(ids, drafter.c.captures)
            worst["logits"] = np.abs(run("logits")["logits"] - target.logits(y)[0].numpy()).max()
            drafted = run("draft", "--draft", "mtp")
            longer = torch.cat([ids, torch.from_numpy(drafted["next"]).long()[None]], 1)
            y, _, outputs, _ = target.run(longer, drafter.c.captures)
            at = torch.tensor([[ids.shape[1]]])
            ours = torch.stack([z[0, 0] for z in Q.chain(head, target, longer, y, at, 4, own=True)]).numpy()
            worst["MTP"] = np.abs(drafted["draft_logits"] - ours).max()
            ours = target.logits(drafter(target, outputs, longer, at)[0, 0]).numpy()
            worst["DFlash"] = np.abs(run("draft", "--draft", d + "/dflash")["draft_logits"][1:] - ours[1:]).max()
    print(", ".join("%s %.1e" % x for x in worst.items()))
    if max(worst.values()) > 1e-3: raise SystemExit("they differ")


if __name__ == "__main__":
    main()
