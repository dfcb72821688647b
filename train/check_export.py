#!/usr/bin/env python3
"""A random model of nano's shape, exported in f32: the logits of tandem (and of transformers, where it is installed) against this code's."""
import argparse
import subprocess
import tempfile

import torch
from safetensors.torch import load_file

import model as M


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tandem")
    p.add_argument("--model", help="an exported directory instead of random weights")
    p.add_argument("--length", type=int, default=700)
    o = p.parse_args()
    torch.manual_seed(1)
    m = M.load(o.model) if o.model else M.Target(M.Config())
    if not o.model:
        for name, w in m.named_parameters():
            if w.ndim == 1: w.data *= 1 + 0.2 * torch.randn_like(w)
    ids = torch.randint(5, m.c.vocab, (1, o.length))
    positions = torch.arange(o.length)[None]
    with torch.no_grad(): ours = m.logits(m(ids, positions, M.causal_masks(m.c, positions))[0])[0]
    print("%d parameters, logits std %.2f" % (M.parameters(m), ours.std()))
    with tempfile.TemporaryDirectory() as d:
        M.export(m, d, torch.float32)
        if o.tandem:
            subprocess.run([o.tandem, "logits", "-m", d, "--ids", ",".join(map(str, ids[0].tolist())), "-o", d + "/out.st"], check=True)
            report("tandem", load_file(d + "/out.st")["logits"], ours)
        try: from transformers import Gemma4ForCausalLM
        except ImportError: return
        with torch.no_grad(): report("transformers", Gemma4ForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager")(ids).logits[0], ours)


def report(name, theirs, ours):
    worst = (theirs - ours).abs().max().item()
    print("%s: largest difference %.2g" % (name, worst))
    assert worst < 2e-3


if __name__ == "__main__":
    main()
