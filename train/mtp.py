"""The assistant: four layers of Gemma's kind without keys of their own. They attend to the target's last sliding and last full layer, and
draft one token after another from the target's final state and the last token, all at one position."""
import json
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from model import Mlp, Norm, attend, linear, load_tensors, rope, rope_table, save_tensors

KINDS = "SSSF"


@dataclass
class Config:
    hidden: int = 128
    mlp: int = 256
    eps: float = 1e-6


def for_target(t):
    return Config() if t.hidden == 256 else Config(hidden=32, mlp=64)


class Layer(nn.Module):
    def __init__(self, c, t, full):
        super().__init__()
        self.full, self.heads, self.dim = full, t.heads, t.full_head_dim if full else t.head_dim
        self.self_attn = nn.Module()
        self.self_attn.q_proj, self.self_attn.o_proj = linear(c.hidden, self.heads * self.dim), linear(self.heads * self.dim, c.hidden)
        self.self_attn.q_norm = Norm(self.dim, c.eps, self.dim ** -0.25)
        self.mlp = Mlp(c.hidden, c.mlp)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            setattr(self, name, Norm(c.hidden, c.eps))
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x, table, k, v, mask):
        a = self.self_attn
        q = rope(a.q_norm(a.q_proj(self.input_layernorm(x)).unflatten(-1, (self.heads, self.dim))).transpose(1, 2), table)
        y = attend(q, k.to(q.dtype), v.to(q.dtype), mask)
        u = x + self.post_attention_layernorm(a.o_proj(y.transpose(1, 2).flatten(2)))
        return (u + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(u)))) * self.layer_scalar.to(u.dtype)


class Assistant(nn.Module):
    def __init__(self, c, t):
        super().__init__()
        self.c, self.t = c, t
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(t.vocab, c.hidden)
        nn.init.normal_(self.model.embed_tokens.weight, std=c.hidden ** -0.5)
        self.model.layers = nn.ModuleList(Layer(c, t, k == "F") for k in KINDS)
        self.model.norm = Norm(c.hidden, c.eps)
        self.pre_projection, self.post_projection = linear(2 * t.hidden, c.hidden), linear(c.hidden, t.hidden)

    def masks(self, positions, t):
        """Keys before the position, [B, 1, Tq, T]; place 0 has none and sees itself, which nobody asks for."""
        q, k = positions[:, None, :, None], torch.arange(t, device=positions.device)[None, None, None]
        ok = k < q.clamp(min=1)
        return ok & (q - k < self.t.window), ok

    def step(self, target, tokens, h, tables, donors, masks):
        """logits and the next h"""
        x = self.pre_projection(torch.cat([target.embed(tokens).to(h.dtype), h], -1))
        for l in self.model.layers: x = l(x, tables[l.full], *donors[l.full], masks[l.full])
        y = self.model.norm(x)
        return F.linear(y, self.model.embed_tokens.weight.to(y.dtype)).float(), self.post_projection(y)


def chain(assistant, target, ids, y, donors, positions, steps, own=False):
    """Logits of each step at each position p [B, P]: the first step takes the token at p and the target's state at p - 1, the next ones the following token (or
    with `own` the drafted one) and the assistant's own state."""
    tables, masks = target.tables(positions), assistant.masks(positions, ids.shape[1])
    h = y.gather(1, (positions - 1).clamp(min=0)[..., None].expand(-1, -1, y.shape[-1]))
    tokens = ids.gather(1, positions)
    out = []
    for i in range(steps):
        z, h = assistant.step(target, tokens, h, tables, donors, masks)
        out.append(z)
        tokens = z.argmax(-1) if own else ids.gather(1, (positions + i + 1).clamp(max=ids.shape[1] - 1))
    return out


def loss_of(logits, ids, lengths, positions, decay=0.85):
    """Cross entropy of all steps of chains from the positions [B, P] of the answers, and how many tokens of 3 are right in a row."""
    total, norm, run, hits, asked = 0.0, 0.0, None, 0.0, 1.0
    for i, z in enumerate(logits):
        at = positions + i + 1
        ok = at < lengths[:, None]
        want = ids.gather(1, at.clamp(max=ids.shape[1] - 1))
        ce = F.cross_entropy(z.flatten(0, 1), want.flatten(), reduction="none").view_as(want)
        total, norm = total + decay ** i * (ce * ok).sum(), norm + decay ** i * ok.sum()
        right = (z.argmax(-1) == want) & ok
        run = right if run is None else run & right
        if i == 0: asked = ok.sum()
        if i < 3: hits = hits + run.sum()
    return total / norm, hits / asked


def config_json(c, t):
    text = {"attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2, "enable_moe_block": False, "eos_token_id": 1,
            "final_logit_softcapping": None, "global_head_dim": t.full_head_dim, "head_dim": t.head_dim, "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": c.hidden, "hidden_size_per_layer_input": 0, "initializer_range": 0.02, "intermediate_size": c.mlp,
            "layer_types": ["full_attention" if k == "F" else "sliding_attention" for k in KINDS], "max_position_embeddings": t.context,
            "model_type": "gemma4_text", "moe_intermediate_size": None, "num_attention_heads": t.heads, "num_experts": None,
            "num_global_key_value_heads": t.full_kv_heads, "num_hidden_layers": len(KINDS), "num_key_value_heads": t.kv_heads,
            "num_kv_shared_layers": len(KINDS), "pad_token_id": 0, "rms_norm_eps": c.eps,
            "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
            "sliding_window": t.window, "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None, "use_cache": True,
            "use_double_wide_mlp": False, "vocab_size": t.vocab, "vocab_size_per_layer_input": 0}
    return {"architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": t.hidden, "centroid_intermediate_top_k": 32, "dtype": "bfloat16",
            "model_type": "gemma4_assistant", "num_centroids": 2048, "text_config": text, "tie_word_embeddings": True, "use_ordered_embeddings": False}


def export(assistant, target, path, dtype=torch.bfloat16):
    os.makedirs(path, exist_ok=True)
    save_tensors(path, {k: v.detach().to(dtype) for k, v in assistant.state_dict().items()})
    with open(os.path.join(path, "config.json"), "w") as f: json.dump(config_json(assistant.c, target.c), f, indent=1)


def load(path, target, device="cpu"):
    with open(os.path.join(path, "config.json")) as f: d = json.load(f)["text_config"]
    m = Assistant(Config(hidden=d["hidden_size"], mlp=d["intermediate_size"], eps=d["rms_norm_eps"]), target.c)
    m.load_state_dict(load_tensors(path))
    return m.to(device, torch.float32).eval()
