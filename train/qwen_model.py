"""nano-qwen's target and its MTP head: Qwen 3.5 as in its dense models. Three layers of four have a gated delta net, a recurrent state per head,
and every fourth attends to everything, with a gate on its output. Norm weights are stored as the distance from 1."""
import json
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import delta
from model import Cache, attend, causal_mask, flex, full, greedy, linear, load_tensors, rms, rope, rope_table, save_tensors

FRESH = -60.0       # the log of the decay where a document begins: nothing is left of the state before it


@dataclass
class Config:
    vocab: int = 4096
    hidden: int = 192
    layers: int = 8
    full_every: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotated: int = 16
    k_heads: int = 4
    v_heads: int = 8
    delta_dim: int = 32
    taps: int = 4
    mlp: int = 384
    theta: float = 1e7
    context: int = 65536
    eps: float = 1e-6
    softcap: float = 0.0
    chunk: int = 32

    def full(self, layer):
        return layer % self.full_every == self.full_every - 1


TINY = Config(hidden=64, layers=4, head_dim=32, rotated=8, k_heads=2, v_heads=4, delta_dim=16, mlp=64)


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))
        self.eps = eps

    def forward(self, x):
        return rms(x, self.eps, 1 + self.weight.float())


def small(n_in, n_out, layers):
    """A projection into the residual stream: small at the start"""
    l = linear(n_in, n_out)
    with torch.no_grad(): l.weight *= (2 * layers) ** -0.5
    return l


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(c.hidden, c.mlp), linear(c.hidden, c.mlp), small(c.mlp, c.hidden, c.layers)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden, 2 * c.heads * c.head_dim)
        self.k_proj, self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim), linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = small(c.heads * c.head_dim, c.hidden, c.layers)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)

    def turn(self, x, table):
        n = self.c.rotated
        return torch.cat([rope(x[..., :n], table), x[..., n:]], -1)

    def forward(self, x, table):
        """q, k, v [B, heads, T, D] and the gate of the output [B, T, heads * D]"""
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.heads, 2, c.head_dim)).unbind(-2)
        k, v = (p(x).unflatten(-1, (c.kv_heads, c.head_dim)).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        q = self.turn(self.q_norm(q).transpose(1, 2), table)
        return q, self.turn(self.k_norm(k), table), v, gate.flatten(2)

    def out(self, y, gate):
        return self.o_proj(y.transpose(1, 2).flatten(2) * torch.sigmoid(gate))


def inverse(a):
    """(I + a)^-1 for a strictly lower triangular whose size is a power of two: the inverses of blocks of 1, 2, 4, ... on the diagonal, each from those of half
    its size. Sums of powers of a would be as right on paper; where keys repeat, they lose all digits."""
    n = a.shape[-1]
    at = torch.arange(n, device=a.device)
    out, size = torch.eye(n, device=a.device, dtype=a.dtype), 1
    while size < n:
        block = at // size
        below = (block[:, None] == block[None] + 1) & (block[None] % 2 == 0)
        out = out - out @ (a * below) @ out
        size *= 2
    return out


def delta_rule(q, k, v, beta, g, state=None, chunk=64):
    """The gated delta rule over [B, H, T, D] in chunks; beta and g are [B, H, T]. Returns the outputs and the state [B, H, dk, dv] behind the last row."""
    t = q.shape[2]
    rest = -t % chunk
    if rest:
        q, k, v = (F.pad(x, (0, 0, 0, rest)) for x in (q, k, v))
        beta, g = F.pad(beta, (0, rest)), F.pad(g, (0, rest))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))
    beta, g = beta.unflatten(2, (-1, chunk))[..., None], g.unflatten(2, (-1, chunk)).cumsum(-1)
    low = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(low, g[..., :, None] - g[..., None, :], float("-inf")).exp()
    inv = inverse((beta * (k @ k.mT) * decay).tril(-1))
    u, w = inv @ (beta * v), inv @ (beta * g.exp()[..., None] * k)
    last = g[..., -1:, None]
    left = k * (last - g[..., None]).exp()                              # keys as the state at the end of the chunk has them
    # A chunk maps the state: S' = m S + b. The maps of all chunks are composed by doubling.
    m = last.exp() * torch.eye(k.shape[-1], device=q.device, dtype=q.dtype) - left.mT @ w
    b = left.mT @ u
    if state is not None: b = torch.cat([(b[:, :, :1] + m[:, :, :1] @ state[:, :, None]), b[:, :, 1:]], 2)
    step = 1
    while step < b.shape[2]:
        b = torch.cat([b[:, :, :step], b[:, :, step:] + m[:, :, step:] @ b[:, :, :-step]], 2)
        m = torch.cat([m[:, :, :step], m[:, :, step:] @ m[:, :, :-step]], 2)
        step *= 2
    first = torch.zeros_like(b[:, :, :1]) if state is None else state[:, :, None]
    before = torch.cat([first, b[:, :, :-1]], 2)
    new = u - w @ before
    o = (q * g.exp()[..., None]) @ before + ((q @ k.mT) * decay) @ new
    return o.flatten(2, 3)[:, :, :t], b[:, :, -1]


def delta_step(q, k, v, beta, g, state):
    """One row: q, k, v [B, H, D], beta and g [B, H]"""
    s = state * g.exp()[..., None, None]
    d = beta[..., None] * (v - (s * k[..., None]).sum(-2))
    s = s + k[..., None] * d[..., None, :]
    return (s * q[..., None]).sum(-2), s


def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class Delta(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.keys, self.values = c.k_heads * c.delta_dim, c.v_heads * c.delta_dim
        self.in_proj_qkv, self.in_proj_z = linear(c.hidden, 2 * self.keys + self.values), linear(c.hidden, self.values)
        self.in_proj_b, self.in_proj_a = linear(c.hidden, c.v_heads), linear(c.hidden, c.v_heads)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter((torch.rand(2 * self.keys + self.values, 1, c.taps) - 0.5) * 2 * c.taps ** -0.5)
        dt = torch.exp(torch.linspace(-6.9, -2.3, c.v_heads))          # steps of 0.001 to 0.1
        self.A_log = nn.Parameter(torch.linspace(1, 16, c.v_heads).log())
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(c.delta_dim))
        self.out_proj = small(self.values, c.hidden, c.layers)

    def convolved(self, u, same, window):
        """same[s] [B, T, 1]: whether the row s + 1 before is of the same document; window: the rows before the first [B, taps - 1, C]"""
        c, t = self.c, u.shape[1]
        w = self.conv1d.weight[:, 0].to(u.dtype)
        long = torch.cat([window.to(u.dtype), u], 1)
        y = u * w[:, -1]
        for s in range(1, c.taps):
            before = long[:, c.taps - 1 - s:c.taps - 1 - s + t]
            y = y + (before if same is None else before * same[s - 1].to(u.dtype)) * w[:, -1 - s]
        return F.silu(y), long[:, t:]

    def rule(self, q, k, v, beta, g, kept):
        """The rule over rows [B, H, T, D] after the state kept[1]"""
        if kept is None or q.shape[2] > 1: return delta_rule(q, k, v, beta, g, None if kept is None else kept[1], self.c.chunk)
        o, state = delta_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], beta[:, :, 0], g[:, :, 0], kept[1])
        return o[:, :, None], state

    def forward(self, x, fresh, same, kept=None):
        """fresh [B, T]: documents begin there. kept: the window and the state before the rows, and those behind them are returned."""
        c = self.c
        u = self.in_proj_qkv(x)
        window = u.new_zeros(u.shape[0], c.taps - 1, u.shape[2]) if kept is None else kept[0]
        y, window = self.convolved(u, same, window)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = (p.unflatten(-1, (-1, c.delta_dim)).transpose(1, 2).float() for p in y.split([self.keys, self.keys, self.values], -1))
            q, k = unit(q) * c.delta_dim ** -0.5, unit(k)
            a, b = (F.linear(x.float(), p.weight.float()) for p in (self.in_proj_a, self.in_proj_b))
            beta = torch.sigmoid(b).transpose(1, 2)
            g = -(self.A_log.float().exp() * F.softplus(a + self.dt_bias.float())).transpose(1, 2)
            if fresh is not None: g = torch.where(fresh[:, None], FRESH, g)
            if kept is None and x.device.type == "cpu" and c.delta_dim == delta.DIM:
                o, state = delta.delta(*(p.transpose(1, 2) for p in (q, k, v, beta, g)))[0].transpose(1, 2), None
            else:
                q, k = (p.repeat_interleave(c.v_heads // c.k_heads, 1) for p in (q, k))
                o, state = self.rule(q, k, v, beta, g, kept)
            o = rms(o.transpose(1, 2), c.eps, self.norm.weight).flatten(2)
        return self.out_proj(o.to(x.dtype) * F.silu(self.in_proj_z(x))), (window, state)


class Layer(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.c, self.full = c, full
        if full: self.self_attn = Attention(c)
        else: self.linear_attn = Delta(c)
        self.mlp = Mlp(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)

    def fed(self, x):
        return x + self.mlp(self.post_attention_layernorm(x))

    def before(self, x, table):
        return self.self_attn(self.input_layernorm(x), table)

    def after(self, x, y, gate):
        return self.fed(x + self.self_attn.out(y, gate))

    def recurrent(self, x, fresh, same, kept=None):
        y, kept = self.linear_attn(self.input_layernorm(x), fresh, same, kept)
        return self.fed(x + y), kept

    def attended(self, x, table, mask, cache=None):
        q, k, v, gate = self.before(x, table)
        if cache is not None: k, v = cache(k, v)
        return self.after(x, attend(q, k, v, mask, self.c.head_dim ** -0.5), gate)


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=c.hidden ** -0.5)
        self.layers = nn.ModuleList(Layer(c, c.full(i)) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)

    def embed(self, ids):
        return self.embed_tokens(ids)

    def table(self, positions):
        return rope_table(positions, self.c.rotated, self.c.theta)

    def forward(self, ids, positions, masks, states=None, want=()):
        """masks: (fresh, same, attention), as masks_of makes them. states: of all layers, for text that goes on. Returns the same as model.Target."""
        (fresh, same, mask), x, table, outputs = masks, self.embed(ids), self.table(positions), {}
        for i, layer in enumerate(self.layers):
            if layer.full: x = layer.attended(x, table, mask, states and states[i])
            else:
                x, kept = layer.recurrent(x, fresh, same, states[i] if states else None)
                if states: states[i] = kept
            if i in want: outputs[i] = x
        return self.norm(x), x.new_zeros(()), outputs, None

    def logits(self, y):
        return F.linear(y, self.embed_tokens.weight.to(y.dtype)).float()

    def run(self, ids, want=()):
        """Whole sequences from their first token on"""
        positions = torch.arange(ids.shape[1], device=ids.device)[None].expand_as(ids)
        return self(ids, positions, masks_of(self.c, torch.zeros_like(ids), causal_mask(positions)), want=want)

    def masks_for(self, device, log, eager):
        """Makes the masks of packed documents [B, T]: with flex_attention where it works"""
        attention = flex(device, eager, self.c.head_dim ** -0.5, log)
        return lambda documents: masks_of(self.c, documents, attention(documents))

    def masks_of_rows(self, ids):
        """The masks of long rows of one document each [B, T]"""
        return masks_of(self.c, torch.zeros_like(ids), full(self.c.head_dim ** -0.5))

    def compile(self):
        for l in self.layers:
            if l.full: l.before, l.after = torch.compile(l.before, dynamic=False), torch.compile(l.after, dynamic=False)
            else: l.recurrent = torch.compile(l.recurrent, dynamic=False)

    def plain(self):
        """Undoes compile"""
        for l in self.layers:
            for name in ("before", "after", "recurrent"): l.__dict__.pop(name, None)

    @torch.no_grad()
    def generate(self, prompts, stops, max_new, dtype=None):
        """As model.Target.generate"""
        c, device, b = self.c, self.norm.weight.device, len(prompts)
        like = self.embed_tokens.weight.to(dtype or self.embed_tokens.weight.dtype)
        room, wide = max(map(len, prompts)) + max_new, 2 * c.k_heads * c.delta_dim + c.v_heads * c.delta_dim
        states = [Cache((b, c.kv_heads, room, c.head_dim), like) if c.full(i) else
                  (like.new_zeros(b, c.taps - 1, wide), torch.zeros(b, c.v_heads, c.delta_dim, c.delta_dim, device=device)) for i in range(c.layers)]

        def step(row, q, k, positions, ok, start):
            masks = masks_of(c, (q[None] >= start[:, None]).long(), ok) if len(q) == len(k) else (None, None, ok)
            return self(row, positions, masks, states)[0]
        return greedy(self, step, prompts, stops, max_new, device)


def masks_of(c, documents, attention):
    """fresh, same and the mask of attention"""
    before = [F.pad(documents[:, :-s], (s, 0), value=-1) == documents for s in range(1, c.taps)]
    return ~before[0], [x[..., None] for x in before], attention


# --- the MTP head ---------------------------------------------------------------------------------------------
class Head(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = linear(2 * c.hidden, c.hidden)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.layers = nn.ModuleList([Layer(c, True)])

    def rows(self, target, tokens, h, positions):
        """The layer's input and its q, k, v and gate"""
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(target.embed(tokens).to(h.dtype)), self.pre_fc_norm_hidden(h)], -1))
        return x, self.layers[0].before(x, target.table(positions))


def chain(head, target, ids, y, positions, steps, own=False):
    """Logits of each step at each position p [B, P]: the first step takes the token at p and the target's state at p - 1, the next ones the following
    token (or with `own` the drafted one) and the head's own state. All rows up to p are keys, with the target's states, then those of the chain."""
    c, layer = head.c, head.layers[0]
    b, t = ids.shape
    all_at = torch.arange(t, device=ids.device)[None].expand(b, -1)
    before = torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], 1)
    _, (_, k_all, v_all, _) = head.rows(target, ids, before, all_at)
    seen = (all_at[:, None] <= positions[..., None]) & (all_at[:, None] >= 1)
    n = c.heads // c.kv_heads
    h = before.gather(1, positions[..., None].expand(-1, -1, y.shape[-1]))
    tokens, keys, values, out = ids.gather(1, positions), [], [], []
    for i in range(steps):
        x, (q, k, v, gate) = head.rows(target, tokens, h, positions + i)
        if i: keys.append(k); values.append(v)
        q = q.unflatten(1, (c.kv_heads, n))                                 # [B, K/V heads, n, P, D]
        s = (q @ k_all[:, :, None].mT).float() * c.head_dim ** -0.5
        s = torch.where(seen[:, None, None], s, float("-inf"))
        tail = [(q * kk[:, :, None]).sum(-1, keepdim=True).float() * c.head_dim ** -0.5 for kk in keys]
        p = torch.cat([s] + tail, -1).softmax(-1).to(v.dtype)
        o = p[..., :t] @ v_all[:, :, None]
        for j, vv in enumerate(values): o = o + p[..., t + j:t + j + 1] * vv[:, :, None]
        h = head.norm(layer.after(x, o.flatten(1, 2), gate))
        z = target.logits(h)
        out.append(z)
        tokens = z.argmax(-1) if own else ids.gather(1, (positions + i + 1).clamp(max=t - 1))
    return out


# --- files --------------------------------------------------------------------------------------------------
def text_config(c, mtp=False):
    """config.json as transformers writes it"""
    end = c.vocab - 33
    pairs = c.rotated // 2
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    d = {"architectures": ["Qwen3_5ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "dtype": "bfloat16", "eos_token_id": end,
         "head_dim": c.head_dim, "hidden_act": "silu", "hidden_size": c.hidden, "initializer_range": 0.02, "intermediate_size": c.mlp,
         "layer_types": ["full_attention" if c.full(i) else "linear_attention" for i in range(c.layers)], "linear_conv_kernel_dim": c.taps,
         "linear_key_head_dim": c.delta_dim, "linear_num_key_heads": c.k_heads, "linear_num_value_heads": c.v_heads, "linear_value_head_dim": c.delta_dim,
         "max_position_embeddings": c.context, "model_type": "qwen3_5_text", "num_attention_heads": c.heads, "num_hidden_layers": c.layers,
         "num_key_value_heads": c.kv_heads, "pad_token_id": end, "partial_rotary_factor": c.rotated / c.head_dim, "rms_norm_eps": c.eps,
         "rope_parameters": {"mrope_interleaved": True, "mrope_section": sections, "partial_rotary_factor": c.rotated / c.head_dim, "rope_theta": c.theta,
                             "rope_type": "default"},
         "tie_word_embeddings": True, "use_cache": True, "vocab_size": c.vocab}
    return dict(d, mtp_num_hidden_layers=1) if mtp else d


def export(target, path, head=None, dtype=torch.bfloat16):
    """A Hugging Face directory, with the MTP head if there is one"""
    os.makedirs(path, exist_ok=True)
    tensors = {"model." + k: v for k, v in target.state_dict().items()}
    if head: tensors.update({"mtp." + k: v for k, v in head.state_dict().items()})
    save_tensors(path, {k: v.detach().to(dtype) for k, v in tensors.items()})
    with open(os.path.join(path, "config.json"), "w") as f: json.dump(dict(text_config(target.c, head is not None), dtype=str(dtype).split(".")[1]), f, indent=1)


def config_of(d):
    return Config(vocab=d["vocab_size"], hidden=d["hidden_size"], layers=d["num_hidden_layers"], full_every=d["layer_types"].index("full_attention") + 1,
                  heads=d["num_attention_heads"], kv_heads=d["num_key_value_heads"], head_dim=d["head_dim"], rotated=int(d["partial_rotary_factor"] * d["head_dim"]),
                  k_heads=d["linear_num_key_heads"], v_heads=d["linear_num_value_heads"], delta_dim=d["linear_value_head_dim"], taps=d["linear_conv_kernel_dim"],
                  mlp=d["intermediate_size"], theta=d["rope_parameters"]["rope_theta"], context=d["max_position_embeddings"], eps=d["rms_norm_eps"])


def load(path, device="cpu"):
    """The target, and the MTP head or None"""
    with open(os.path.join(path, "config.json")) as f: target = Target(config_of(json.load(f)))
    tensors = load_tensors(path)
    target.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    head = Head(target.c) if "mtp.fc.weight" in tensors else None
    if head: head.load_state_dict({k.removeprefix("mtp."): v for k, v in tensors.items() if k.startswith("mtp.")})
    return target.to(device, torch.float32).eval(), head and head.to(device, torch.float32).eval()
