#!/usr/bin/env python3
"""Unpacks nano's GGUF files to the directories that training goes on from: `unpack.py models/nano DIR` writes DIR/target, DIR/dflash, DIR/mtp.
The weights are those of the files, rounded to 8 bits once; a run that goes on makes up for that in its first steps."""
import os
import struct
import sys

import numpy as np
import torch

import dflash
import model as M
import mtp

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
PARTS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "layer_output_scale": "layer_scalar",
         "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2"}
BARE = {"ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_down_exps.weight": "experts.down_proj", "layer_output_scale.weight": "layer_scalar"}
TOP = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight", "fc.weight": "fc.weight", "enc.output_norm.weight": "hidden_norm.weight",
       "nextn.pre_projection.weight": "pre_projection.weight", "nextn.post_projection.weight": "post_projection.weight"}


def tensors(path):
    """{name: f32 array} of a GGUF file of F32 and Q8_0 tensors"""
    data = open(path, "rb").read()
    at = 8

    def take(form):
        nonlocal at
        v = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return v if len(v) > 1 else v[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def skip(kind):
        nonlocal at
        if kind == 8: text()
        elif kind == 9:
            inner, n = take("I"), take("Q")
            for _ in range(n): skip(inner)
        else: at += SIZES[kind]

    n_tensors, n_keys = take("QQ")
    for _ in range(n_keys):
        text()
        skip(take("I"))
    infos = []
    for _ in range(n_tensors):
        name, dims = text(), take("I")
        shape = [take("Q") for _ in range(dims)]
        infos.append((name, shape[::-1], take("I"), take("Q")))
    base, out = (at + 31) // 32 * 32, {}
    for name, shape, kind, offset in infos:
        n = int(np.prod(shape))
        if kind == 0: v = np.frombuffer(data, np.float32, n, base + offset)
        else:
            assert kind == 8, (name, kind)
            blocks = np.frombuffer(data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, base + offset)
            v = blocks["q"].astype(np.float32) * blocks["d"].astype(np.float32)[:, None]
        out[name] = v.reshape(shape)
    return out


def renamed(name, kind):
    """The name of a GGUF tensor in the code here"""
    inner = "model." if kind == "mtp" and name in ("token_embd.weight", "output_norm.weight") else ""
    if name in TOP: return inner + TOP[name]
    _, layer, rest = name.split(".", 2)
    part = BARE.get(rest)
    if not part:
        part = PARTS[rest.removesuffix(".weight")]
        if kind == "dflash" and part == "pre_feedforward_layernorm": part = "post_attention_layernorm"
        part += ".weight"
    return "%slayers.%s.%s" % ("model." if kind == "mtp" else "", layer, part)


def fill(net, path, kind):
    found = {renamed(k, kind): torch.from_numpy(v.copy()) for k, v in tensors(path).items() if k != "rope_freqs.weight"}
    state = net.state_dict()
    net.load_state_dict({k: v.view_as(state[k]) for k, v in found.items()})
    return net


def main():
    source, out = sys.argv[1:]
    target = fill(M.Target(M.Config()), os.path.join(source, "target.gguf"), "target")
    M.export(target, os.path.join(out, "target"))
    for kind, module, net in (("dflash", dflash, dflash.DFlash(dflash.for_target(target.c))), ("mtp", mtp, mtp.Assistant(mtp.for_target(target.c), target.c))):
        module.export(fill(net, os.path.join(source, kind + ".gguf"), kind), target, os.path.join(out, kind))


if __name__ == "__main__":
    main()
