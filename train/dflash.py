"""The DFlash drafter: a small Qwen3-shaped decoder that denoises a block at once. It sees the context only as fused outputs of a few
target layers, which become K/V rows of every drafter layer; embeddings and head are the target's."""
import json
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from model import Norm, attend, linear, load_tensors, rope, rope_table, save_tensors


@dataclass
class Config:
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 512
    kinds: str = "SSF"              # S sees a window and is causal inside the block, F sees everything
    window: int = 256
    block: int = 16
    captures: tuple = (1, 3, 5, 6)  # outputs of these target layers
    theta: float = 1e6
    eps: float = 1e-6
    mask: int = 4
    context: int = 512       # what it is trained on: prompts with answers of up to 256 tokens


def for_target(t):
    """The drafter's shape for a target"""
    if t.hidden == 256: return Config()
    return Config(hidden=t.hidden, head_dim=16, mlp=64, kinds="SF", window=64, captures=tuple(range(min(3, t.layers))))


class Layer(nn.Module):
    def __init__(self, c, sliding):
        super().__init__()
        self.c, self.sliding = c, sliding
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.self_attn = nn.Module()
        a = self.self_attn
        a.q_proj, a.o_proj = linear(c.hidden, c.heads * c.head_dim), linear(c.heads * c.head_dim, c.hidden)
        a.k_proj, a.v_proj = linear(c.hidden, c.kv_heads * c.head_dim), linear(c.hidden, c.kv_heads * c.head_dim)
        a.q_norm, a.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)
        self.mlp = nn.Module()
        self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = linear(c.hidden, c.mlp), linear(c.hidden, c.mlp), linear(c.mlp, c.hidden)

    def keys(self, x, table):
        c, a = self.c, self.self_attn
        k = rope(a.k_norm(a.k_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))).transpose(1, 2), table)
        return k, a.v_proj(x).unflatten(-1, (c.kv_heads, c.head_dim)).transpose(1, 2)

    def forward(self, h, g, table_h, table_g, mask):
        c, a = self.c, self.self_attn
        x = self.input_layernorm(h)
        q = rope(a.q_norm(a.q_proj(x).unflatten(-1, (c.heads, c.head_dim))).transpose(1, 2), table_h)
        (kc, vc), (kb, vb) = self.keys(g, table_g), self.keys(x, table_h)
        y = attend(q, torch.cat([kc, kb], 2), torch.cat([vc, vb], 2), mask, c.head_dim ** -0.5)
        h = h + a.o_proj(y.transpose(1, 2).flatten(2))
        x = self.post_attention_layernorm(h)
        return h + self.mlp.down_proj(F.silu(self.mlp.gate_proj(x)) * self.mlp.up_proj(x))


class DFlash(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc, self.hidden_norm = linear(len(c.captures) * c.hidden, c.hidden), Norm(c.hidden, c.eps)
        self.layers = nn.ModuleList(Layer(c, k == "S") for k in c.kinds)
        self.norm = Norm(c.hidden, c.eps, 0.2)      # the target's rows are long: logits that start small

    def forward(self, target, outputs, ids, anchors):
        """States of the blocks [B, A, block, D]. outputs: of the captured layers, [B, T, D] each; anchors [B, A]: positions whose token is known
        and whose features are not."""
        c = self.c
        b, n = anchors.shape
        t = ids.shape[1]
        g = self.hidden_norm(self.fc(torch.cat([outputs[i].to(self.fc.weight.dtype) for i in c.captures], -1)))
        block = torch.full((b, n, c.block), c.mask, device=ids.device)
        block[:, :, 0] = ids.gather(1, anchors)
        h = target.embed(block).flatten(1, 2).to(g.dtype)
        q = (anchors[..., None] + torch.arange(c.block, device=ids.device)).flatten(1)
        k = torch.arange(t, device=ids.device)[None].expand(b, -1)
        number = torch.arange(n * c.block, device=ids.device) // c.block
        context = (k[:, None] < anchors[..., None].expand(-1, -1, c.block).flatten(1)[..., None])
        near = context & (q[..., None] - k[:, None] < c.window)
        own = (number[:, None] == number[None])[None].expand(b, -1, -1)
        causal = own & (q[:, None] <= q[..., None])
        masks = {False: torch.cat([context, own], -1)[:, None], True: torch.cat([near, causal], -1)[:, None]}
        table_h, table_g = rope_table(q, c.head_dim, c.theta), rope_table(k, c.head_dim, c.theta)
        for l in self.layers: h = l(h, g, table_h, table_g, masks[l.sliding])
        return self.norm(h).unflatten(1, (n, c.block))


def loss_of(drafter, target, outputs, ids, first, lengths, anchors, gamma=7.0):
    """Cross entropy of the masked places, the near ones counting more; and how often each place is right."""
    c = drafter.c
    h = drafter(target, outputs, ids, anchors)[:, :, 1:]
    places = anchors[..., None] + torch.arange(1, c.block, device=ids.device)
    inside = places < lengths[:, None, None]
    want = ids.gather(1, places.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(places)
    z = target.logits(h)
    weight = torch.exp(-torch.arange(c.block - 1, device=ids.device) / gamma) * inside
    ce = F.cross_entropy(z.flatten(0, 2), want.flatten(), reduction="none").view_as(weight)
    right = (z.argmax(-1) == want) & inside
    return (ce * weight).sum() / weight.sum(), (right.cumprod(-1).sum() / inside[..., 0].sum())


def config_json(c, t):
    return {"architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0, "block_size": c.block, "bos_token_id": 2,
            "dflash_config": {"mask_token_id": c.mask, "target_layer_ids": list(c.captures)}, "dtype": "bfloat16", "eos_token_id": 1,
            "final_logit_softcapping": t.softcap or None, "head_dim": c.head_dim, "hidden_act": "silu", "hidden_size": c.hidden, "initializer_range": 0.02,
            "intermediate_size": c.mlp, "layer_types": ["sliding_attention" if k == "S" else "full_attention" for k in c.kinds],
            "max_position_embeddings": c.context, "max_window_layers": len(c.kinds), "model_type": "qwen3", "num_attention_heads": c.heads,
            "num_hidden_layers": len(c.kinds), "num_key_value_heads": c.kv_heads, "num_target_layers": t.layers, "pad_token_id": 0,
            "rms_norm_eps": c.eps, "rope_parameters": {"rope_theta": c.theta, "rope_type": "default"}, "sliding_window": c.window,
            "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": True, "vocab_size": t.vocab}


def export(drafter, target, path, dtype=torch.bfloat16):
    os.makedirs(path, exist_ok=True)
    save_tensors(path, {k: v.detach().to(dtype) for k, v in drafter.state_dict().items()})
    with open(os.path.join(path, "config.json"), "w") as f: json.dump(config_json(drafter.c, target.c), f, indent=1)


def load(path, device="cpu"):
    with open(os.path.join(path, "config.json")) as f: d = json.load(f)
    c = Config(hidden=d["hidden_size"], heads=d["num_attention_heads"], kv_heads=d["num_key_value_heads"], head_dim=d["head_dim"], mlp=d["intermediate_size"],
               kinds="".join("S" if k[0] == "s" else "F" for k in d["layer_types"]), window=d["sliding_window"], block=d["block_size"],
               captures=tuple(d["dflash_config"]["target_layer_ids"]), mask=d["dflash_config"]["mask_token_id"], theta=d["rope_parameters"]["rope_theta"], eps=d["rms_norm_eps"], context=d["max_position_embeddings"])
    m = DFlash(c)
    m.load_state_dict(load_tensors(path))
    return m.to(device, torch.float32).eval()
