"""The target: Gemma 4 as in the 26B-A4B. In every layer a mixture of experts runs beside a dense MLP; every fourth layer attends to
everything, with keys that are also its values; the others see a window. Norm weights multiply as they are, the attention scale is 1."""
import json
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    full_every: int = 4             # every so many layers one sees everything
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    full_kv_heads: int = 1
    full_head_dim: int = 128
    window: int = 512
    mlp: int = 512
    experts: int = 8
    top_k: int = 2
    expert_mlp: int = 96
    context: int = 65536
    softcap: float = 30.0
    eps: float = 1e-6

    def full(self, layer):
        return layer % self.full_every == self.full_every - 1


TINY = Config(hidden=64, layers=4, full_every=2, head_dim=16, full_head_dim=32, window=128, mlp=64, experts=4, expert_mlp=32)


def rms(x, eps, weight=None):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, n, eps, init=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((n,), init))
        self.eps = eps

    def forward(self, x):
        return rms(x, self.eps, self.weight)


def linear(n_in, n_out):
    l = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(l.weight, std=n_in ** -0.5)
    return l


def rope_table(positions, dim, theta, rotated=1.0):
    """cos and sin [.., dim/2] of the positions; the pairs beyond `rotated` of them stand still."""
    i = torch.arange(dim // 2, device=positions.device, dtype=torch.float32)
    f = theta ** (-2 * i / dim) * (i < int(rotated * dim / 2))
    angle = positions.float()[..., None] * f
    return angle.cos(), angle.sin()


def rope(x, table):
    """x [B, heads, T, D], table of [B, T, D/2]"""
    cos, sin = (t[:, None] for t in table)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def shared(x, n):
    """Each head n times"""
    return x[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2)


def attend(q, k, v, mask, scale=1.0):
    """mask: bool [B, 1, Tq, Tk], or what flex_masks makes"""
    if callable(mask): return mask(q, k, v)
    n = q.shape[1] // k.shape[1]
    if q.shape[2] == 1:             # the heads that share keys become the rows of one
        return F.scaled_dot_product_attention(q.unflatten(1, (-1, n)).squeeze(3), k, v, attn_mask=mask, scale=scale).flatten(1, 2)[:, :, None]
    return F.scaled_dot_product_attention(q, shared(k, n), shared(v, n), attn_mask=mask, scale=scale)


class Attention(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.full, self.eps, self.heads = full, c.eps, c.heads
        self.dim, self.kv_heads = (c.full_head_dim, c.full_kv_heads) if full else (c.head_dim, c.kv_heads)
        self.q_proj = linear(c.hidden, self.heads * self.dim)
        self.k_proj = linear(c.hidden, self.kv_heads * self.dim)
        if not full: self.v_proj = linear(c.hidden, self.kv_heads * self.dim)
        self.o_proj = linear(self.heads * self.dim, c.hidden)
        self.q_norm = Norm(self.dim, c.eps, self.dim ** -0.25)     # the scale is 1: the norms keep the scores small
        self.k_norm = Norm(self.dim, c.eps, self.dim ** -0.25)

    def forward(self, x, table):
        """q, k and v, each [B, heads, T, D]"""
        q, k = self.q_proj(x).unflatten(-1, (self.heads, self.dim)), self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        v = k if self.full else self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        q = rope(self.q_norm(q).transpose(1, 2), table)
        k = rope(self.k_norm(k).transpose(1, 2), table)
        return q, k, rms(v, self.eps).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, n, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(n, width), linear(n, width), linear(width, n)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj = linear(c.hidden, c.experts)
        self.scale = nn.Parameter(torch.ones(c.hidden))
        self.per_expert_scale = nn.Parameter(torch.ones(c.experts))
        self.top_k, self.eps = c.top_k, c.eps

    def forward(self, u):
        """weights [.., experts], zero for those not chosen; and the balance of the load, 1 when it is even"""
        r = rms(u.float(), self.eps) * self.scale * u.shape[-1] ** -0.5
        with torch.autocast(u.device.type, enabled=False):
            p = F.linear(r, self.proj.weight.float()).softmax(-1)
        top, index = p.topk(self.top_k, -1)
        chosen = torch.zeros_like(p).scatter(-1, index, 1.0)
        w = p * chosen / top.sum(-1, keepdim=True) * self.per_expert_scale
        n = p.shape[-1]
        balance = n * (chosen.flatten(0, -2).mean(0) / self.top_k * p.flatten(0, -2).mean(0)).sum()
        return w, balance


class Experts(nn.Module):
    """All experts are computed as one wide MLP; the weights of those not chosen are zero."""

    def __init__(self, c):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(c.experts, 2 * c.expert_mlp, c.hidden) * c.hidden ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(c.experts, c.hidden, c.expert_mlp) * c.expert_mlp ** -0.5)
        self.n, self.width = c.experts, c.expert_mlp

    def forward(self, y, w):
        gate, up = F.linear(y, self.gate_up_proj.flatten(0, 1)).unflatten(-1, (self.n, 2 * self.width)).chunk(2, -1)
        h = F.gelu(gate, approximate="tanh") * up * w[..., None].to(up.dtype)
        return F.linear(h.flatten(-2), self.down_proj.permute(1, 0, 2).flatten(1))


class Layer(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.self_attn, self.mlp = Attention(c, full), Mlp(c.hidden, c.mlp)
        self.router, self.experts = Router(c), Experts(c)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                     "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            setattr(self, name, Norm(c.hidden, c.eps))
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def before(self, x, table):
        return self.self_attn(self.input_layernorm(x), table)

    def after(self, x, y):
        u = x + self.post_attention_layernorm(self.self_attn.o_proj(y.transpose(1, 2).flatten(2)))
        w, balance = self.router(u)
        f = (self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(u)))
             + self.post_feedforward_layernorm_2(self.experts(self.pre_feedforward_layernorm_2(u), w)))
        return (u + self.post_feedforward_layernorm(f)) * self.layer_scalar.to(u.dtype), balance

    def forward(self, x, table, mask, cache=None):
        q, k, v = self.before(x, table)
        if cache is not None: k, v = cache(k, v)
        x, balance = self.after(x, attend(q, k, v, mask))
        return x, k, v, balance


class Cache:
    """K and V of one layer, of all prompts: [B, heads, size, D]"""

    def __init__(self, shape, like):
        self.k, self.v = like.new_zeros(shape), like.new_zeros(shape)
        self.at = 0

    def __call__(self, k, v):
        n = k.shape[2]
        self.k[:, :, self.at:self.at + n], self.v[:, :, self.at:self.at + n] = k, v
        self.at += n
        return self.k[:, :, :self.at], self.v[:, :, :self.at]


def greedy(model, step, prompts, stops, max_new, device):
    """The loop of generate. Prompts are padded on the left. step(row, q, k, positions, ok, start) runs the rows at slots q behind those at slots k and returns
    their states; ok [B, 1, Tq, Tk] is the causal mask, start [B] where the prompts begin."""
    b, longest = len(prompts), max(map(len, prompts))
    ids = torch.zeros(b, longest, dtype=torch.long)
    for i, p in enumerate(prompts): ids[i, longest - len(p):] = torch.tensor(p)
    start = torch.tensor([longest - len(p) for p in prompts], device=device)
    stop, slots = torch.tensor(sorted(stops), device=device), torch.arange(longest + max_new, device=device)
    done, out, row = torch.zeros(b, dtype=torch.bool, device=device), [], ids.to(device)
    for n in range(max_new):
        first = 0 if n == 0 else longest + n - 1
        q, k = slots[first:first + row.shape[1]], slots[:first + row.shape[1]]
        ok = (k[None] <= q[:, None])[None, None] & ((k >= start[:, None])[:, None, None] | (k[None] == q[:, None]))
        y = step(row, q, k, (q[None] - start[:, None]).clamp(min=0), ok, start)
        row = torch.where(done[:, None], 0, model.logits(y[:, -1:]).argmax(-1))
        out.append(row)
        done |= torch.isin(row[:, 0], stop)
        if n % 8 == 7 and bool(done.all()): break
    texts = torch.cat(out, 1).tolist()
    return [t[:next((j for j, x in enumerate(t) if x in stops), len(t) - 1) + 1] for t in texts]


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=c.hidden ** -0.5)
        self.layers = nn.ModuleList(Layer(c, c.full(i)) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)

    def embed(self, ids):
        return self.embed_tokens(ids) * self.c.hidden ** 0.5

    def tables(self, positions):
        """RoPE tables of the sliding and of the full layers"""
        return rope_table(positions, self.c.head_dim, 1e4), rope_table(positions, self.c.full_head_dim, 1e6, 0.25)

    def forward(self, ids, positions, masks, caches=None, want=()):
        """masks: (sliding, full). Returns the states after the final norm, the balance of the routers, the outputs of the layers in `want`, and
        (K, V) of the last sliding and the last full layer."""
        x, tables = self.embed(ids), self.tables(positions)
        balance, outputs, donors = 0.0, {}, {}
        for i, layer in enumerate(self.layers):
            full = self.c.full(i)
            x, k, v, b = layer(x, tables[full], masks[full], caches and caches[i])
            balance = balance + b / len(self.layers)
            if i in want: outputs[i] = x
            donors[full] = (k, v)
        return self.norm(x), balance, outputs, donors

    def logits(self, y):
        z = F.linear(y, self.embed_tokens.weight.to(y.dtype)).float()
        return self.c.softcap * torch.tanh(z / self.c.softcap)

    def run(self, ids, want=()):
        """Whole sequences from their first token on"""
        positions = torch.arange(ids.shape[1], device=ids.device)[None].expand_as(ids)
        return self(ids, positions, causal_masks(self.c, positions), want=want)

    def masks_for(self, device, log, eager):
        """Returns a function that makes the masks of packed documents [B, T]."""
        sliding, full = (flex(device, eager, 1.0, log, w) for w in (self.c.window, None))
        return lambda documents: (sliding(documents), full(documents))

    def masks_of_rows(self, ids):
        """The masks of long rows of one document each [B, T], with T a multiple of the window"""
        return sliding(self.c.window), full(1.0)

    def compile(self):
        """Compiles the parts of the layers beside attention."""
        for l in self.layers: l.before, l.after = torch.compile(l.before, dynamic=False), torch.compile(l.after, dynamic=False)

    def plain(self):
        """Undoes compile."""
        for l in self.layers: l.__dict__.pop("before", None), l.__dict__.pop("after", None)

    @torch.no_grad()
    def generate(self, prompts, stops, max_new, dtype=None):
        """The greedy continuations of the prompts (lists of ids), each up to and with its stop token."""
        c, device = self.c, self.norm.weight.device
        like = self.norm.weight.to(dtype or self.norm.weight.dtype)
        room = max(map(len, prompts)) + max_new
        caches = [Cache((len(prompts), c.full_kv_heads if c.full(i) else c.kv_heads, room, c.full_head_dim if c.full(i) else c.head_dim), like)
                  for i in range(c.layers)]

        def step(row, q, k, positions, ok, start):
            return self(row, positions, (ok & (q[:, None] - k[None] < c.window), ok), caches)[0]
        return greedy(self, step, prompts, stops, max_new, device)


# --- masks ------------------------------------------------------------------------------------------------
def causal_mask(positions, documents=None):
    """The mask of whole rows: positions and documents [B, T]"""
    ok = positions[:, None, None, :] <= positions[:, None, :, None]
    return ok if documents is None else ok & (documents[:, None, :, None] == documents[:, None, None, :])


def causal_masks(c, positions, documents=None):
    """The masks of the sliding and of the full layers"""
    ok = causal_mask(positions, documents)
    return ok & (positions[:, None, :, None] - positions[:, None, None, :] < c.window), ok


def full(scale):
    """Attention of whole rows to everything before"""
    def attend(q, k, v):
        n = q.shape[1] // k.shape[1]
        return F.scaled_dot_product_attention(q, shared(k, n), shared(v, n), is_causal=True, scale=scale)
    return attend


def sliding(window):
    """Attention of whole rows to the window, in blocks of its size: each sees itself and the one before."""
    def attend(q, k, v):
        b, heads, t, d = q.shape
        n = q.shape[1] // k.shape[1]

        def blocks(x): return x.unflatten(2, (t // window, window)).transpose(1, 2)

        def with_last(x):
            x = blocks(shared(x, n))
            return torch.cat([F.pad(x[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)), x], 3).flatten(0, 1)
        i, j = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)[None]
        ok = (j > i) & (j <= i + window)
        ok = torch.stack([ok & (j >= window)] + [ok] * (t // window - 1)).repeat(b, 1, 1)[:, None]
        y = F.scaled_dot_product_attention(blocks(q).flatten(0, 1), with_last(k), with_last(v), attn_mask=ok, scale=1.0)
        return y.unflatten(0, (b, t // window)).transpose(1, 2).flatten(2, 3)
    return attend


class Grouped:
    """Attention inside packed documents [B, T] on a processor: documents of about one length are one batch."""

    def __init__(self, documents, scale, window):
        self.scale, self.window, self.groups = scale, window, []
        b, t = documents.shape
        flat = (documents + torch.arange(b)[:, None] * (t + 1)).flatten()
        starts = torch.cat([torch.zeros(1, dtype=torch.long), (flat[1:] != flat[:-1]).nonzero()[:, 0] + 1])
        sizes = torch.diff(starts, append=torch.tensor([b * t]))
        low = 0
        for high in [2 ** (i // 2) * (32 if i % 2 else 24) for i in range(2, 40)]:
            chosen = (sizes > low) & (sizes <= high)
            if chosen.any():
                at = torch.arange(min(high, t))[None]
                self.groups.append((starts[chosen][:, None] + at, at < sizes[chosen][:, None]))
            low = high
            if low >= t: break

    def __call__(self, q, k, v):
        b, heads, t, d = q.shape
        n = heads // k.shape[1]
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))         # [B * T, heads, D]
        places, outs = [], []
        for index, real in self.groups:
            index = index.clamp(max=b * t - 1)
            x, y, z = (m[index].transpose(1, 2) for m in (q, k, v))
            y, z, length = shared(y, n), shared(z, n), index.shape[1]
            if self.window is None or length <= self.window: o = F.scaled_dot_product_attention(x, y, z, is_causal=True, scale=self.scale)
            else:
                at = torch.arange(length)
                near = (at[None] <= at[:, None]) & (at[:, None] - at[None] < self.window)
                o = F.scaled_dot_product_attention(x, y, z, attn_mask=near, scale=self.scale)
            places.append(index[real])
            outs.append(o.transpose(1, 2)[real])
        return torch.zeros_like(q).index_copy(0, torch.cat(places), torch.cat(outs)).unflatten(0, (b, t)).transpose(1, 2)


def flex(device, eager, scale, log, window=None):
    """Returns a function that makes masks of packed documents [B, T], positions being those of the row: through flex_attention, which skips what is
    masked, or plain ones where that does not work."""
    def plain(documents):
        positions = torch.arange(documents.shape[1], device=documents.device)[None].expand_as(documents)
        ok = causal_mask(positions, documents)
        return ok if window is None else ok & (positions[:, None, :, None] - positions[:, None, None, :] < window)
    if device == "cpu": return lambda documents: Grouped(documents, scale, window)
    if eager: return plain
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    run, make = torch.compile(flex_attention, dynamic=False), torch.compile(create_block_mask, dynamic=False)

    def masked(documents):
        b, t = documents.shape
        def seen(bi, h, q, k): return (k <= q) & (documents[bi, q] == documents[bi, k])
        def near(bi, h, q, k): return seen(bi, h, q, k) & (q - k < window)
        block = make(seen if window is None else near, b, None, t, t, device=documents.device)
        return lambda q, k, v: run(q, k, v, block_mask=block, scale=scale, enable_gqa=True)
    try:
        documents = torch.arange(1024, device=device, dtype=torch.int32)[None].expand(2, -1) // 100
        q = (0.1 * torch.randn(2, 4, 1024, 64, device=device)).bfloat16().requires_grad_()
        k, v = (torch.randn(2, 2, 1024, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        y = masked(documents)(q, k, v)
        y.float().pow(2).mean().backward()
        assert (y - attend(q, k, v, plain(documents), scale)).abs().max() < 0.1
        return masked
    except Exception as e:
        log("no flex_attention: %s" % str(e)[:300])
        return plain


# --- files --------------------------------------------------------------------------------------------------
def text_config(c):
    """config.json as transformers writes it"""
    types = ["full_attention" if c.full(i) else "sliding_attention" for i in range(c.layers)]
    return {
        "architectures": ["Gemma4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2,
        "dtype": "bfloat16", "enable_moe_block": True, "eos_token_id": 1, "final_logit_softcapping": c.softcap, "global_head_dim": c.full_head_dim,
        "head_dim": c.head_dim, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": c.hidden, "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02, "intermediate_size": c.mlp, "layer_types": types, "max_position_embeddings": c.context,
        "model_type": "gemma4_text", "moe_intermediate_size": c.expert_mlp, "num_attention_heads": c.heads, "num_experts": c.experts,
        "num_global_key_value_heads": c.full_kv_heads, "num_hidden_layers": c.layers, "num_key_value_heads": c.kv_heads,
        "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": c.eps,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": c.window, "tie_word_embeddings": True, "top_k_experts": c.top_k, "use_bidirectional_attention": None, "use_cache": True,
        "use_double_wide_mlp": False, "vocab_size": c.vocab, "vocab_size_per_layer_input": 0}


def save_tensors(path, tensors, limit=14 << 20):
    """One safetensors file, or pieces under the limit with an index, as transformers names them."""
    from safetensors.torch import save_file
    pieces, size = [{}], 0
    for name, t in tensors.items():
        n = t.numel() * t.element_size()
        if pieces[-1] and size + n > limit: pieces.append({}); size = 0
        pieces[-1][name] = t.contiguous().cpu()
        size += n
    if len(pieces) == 1: return save_file(pieces[0], os.path.join(path, "model.safetensors"), {"format": "pt"})
    index = {}
    for i, p in enumerate(pieces):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, len(pieces))
        save_file(p, os.path.join(path, file), {"format": "pt"})
        index.update({name: file for name in p})
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f: json.dump({"metadata": {}, "weight_map": index}, f, indent=1)


def load_tensors(path):
    from safetensors.torch import load_file
    out = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"): out.update(load_file(os.path.join(path, f)))
    return out


def export(model, path, dtype=torch.bfloat16):
    """A Hugging Face directory."""
    os.makedirs(path, exist_ok=True)
    save_tensors(path, {"model." + k: v.detach().to(dtype) for k, v in model.state_dict().items()})
    with open(os.path.join(path, "config.json"), "w") as f: json.dump(dict(text_config(model.c), dtype=str(dtype).split(".")[1]), f, indent=1)


def config_of(d):
    """The configuration of an exported config.json"""
    return Config(vocab=d["vocab_size"], hidden=d["hidden_size"], layers=d["num_hidden_layers"], full_every=d["layer_types"].index("full_attention") + 1,
                  heads=d["num_attention_heads"], kv_heads=d["num_key_value_heads"], head_dim=d["head_dim"], full_kv_heads=d["num_global_key_value_heads"],
                  full_head_dim=d["global_head_dim"], window=d["sliding_window"], mlp=d["intermediate_size"], experts=d["num_experts"], top_k=d["top_k_experts"],
                  expert_mlp=d["moe_intermediate_size"], context=d["max_position_embeddings"], softcap=d["final_logit_softcapping"], eps=d["rms_norm_eps"])


def load(path, device="cpu", dtype=torch.float32):
    with open(os.path.join(path, "config.json")) as f: model = Target(config_of(json.load(f)))
    model.load_state_dict({k.removeprefix("model."): v for k, v in load_tensors(path).items()})
    return model.to(device, dtype).eval()


def parameters(model):
    return sum(p.numel() for p in model.parameters())
