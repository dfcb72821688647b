#!/usr/bin/env python3
"""This code's target, DFlash drafter and assistant on the reference vectors: `check_drafters.py DIR`, with DIR/gemma4-moe, -dflash, -assistant."""
import sys

import torch
from safetensors.torch import load_file

import dflash
import model as M
import mtp


def near(name, a, b):
    worst = (a - b).abs().max().item()
    print("%-32s %.2g" % (name, worst))
    assert worst < 2e-3, name


@torch.no_grad()
def main():
    root = sys.argv[1]
    c = M.Config(vocab=512, hidden=128, layers=6, full_every=3, heads=4, kv_heads=2, head_dim=64, full_kv_heads=1, full_head_dim=128, window=16, mlp=256,
                 experts=8, top_k=2, expert_mlp=64, context=4096)
    target = M.Target(c)
    weights = M.load_tensors(root + "/gemma4-moe")
    target.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items() if k.startswith("model.")})
    drafter = dflash.DFlash(dflash.Config(hidden=128, heads=4, kv_heads=2, head_dim=64, mlp=256, kinds="SSF", window=24, block=8, captures=(0, 1, 3, 4)))
    drafter.load_state_dict({k: v.float() for k, v in load_file(root + "/gemma4-moe-dflash/model.safetensors").items()})
    assistant = mtp.Assistant(mtp.Config(hidden=64, mlp=128), c)
    assistant.load_state_dict({k: v.float() for k, v in load_file(root + "/gemma4-moe-assistant/model.safetensors").items()})

    def run(ids):
        positions = torch.arange(ids.shape[1])[None]
        return target(ids, positions, M.causal_masks(c, positions), want=(0, 1, 3, 4))

    gold = load_file(root + "/gemma4-moe/golden.safetensors")
    for i in range(3):
        ids = gold["case%d.input_ids" % i].long()[None]
        near("target case%d" % i, target.logits(run(ids)[0])[0], gold["case%d.logits" % i])
    gold = load_file(root + "/gemma4-moe-dflash/golden.safetensors")
    for i in range(3):
        ids = gold["case%d.input_ids" % i].long()[None]
        outputs = run(ids)[2]
        ids = torch.cat([ids, gold["case%d.block_ids" % i][:1].long()[None]], 1)
        h = drafter(target, outputs | {k: torch.nn.functional.pad(v, (0, 0, 0, 1)) for k, v in outputs.items()}, ids, torch.tensor([[ids.shape[1] - 1]]))
        near("dflash case%d" % i, h[0, 0], gold["case%d.draft_hidden" % i])
    gold = load_file(root + "/gemma4-moe-assistant/golden.safetensors")
    for i in (1, 2):
        ids = gold["case%d.input_ids" % i].long()[None]
        y, _, _, donors = run(ids)
        ids = torch.cat([ids, gold["case%d.next" % i].long()[None]], 1)
        donors = {f: tuple(torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in kv) for f, kv in donors.items()}
        z = mtp.chain(assistant, target, ids, y, donors, torch.tensor([[ids.shape[1] - 1]]), 4, own=True)
        near("assistant case%d" % i, torch.cat([x[0] for x in z]), gold["case%d.draft_logits" % i])


if __name__ == "__main__":
    main()
