#!/usr/bin/env python3
"""Test oracle: computes the drafts of a DSpark or DFlash-2 drafter in float64, from the formulas alone.

blocks.py DIR FEATURES.safetensors TARGET.safetensors OUT.safetensors [CONFIG.json]

FEATURES has caseN.input_ids, caseN.next and caseN.context_features; TARGET is the weights of the target, whose
embeddings and output matrix are used. CONFIG replaces DIR's. `blocks.py --round DIR` rounds the matrices of a drafter in place to multiples
of half their standard deviation, so that they compress, and removes tables that are copies of the target's.
"""
import json, math, struct, sys
import numpy as np

TYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8"}


def load(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, x in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = x["data_offsets"]
        data = raw[8 + n + a:8 + n + b]
        if x["dtype"] == "BF16":
            v = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view("<f4").astype(np.float64)
        elif x["dtype"] in TYPES:
            v = np.frombuffer(data, TYPES[x["dtype"]])
        else:
            continue
        out[name] = v.reshape(x["shape"])
    return out


def to_bf16(v):
    u = np.ascontiguousarray(v, "<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def save(path, tensors, bf16):
    header, at, data = {}, 0, b""
    for name, v in tensors.items():
        kind = "BF16" if bf16 else "I32" if v.dtype.kind == "i" else "F32"
        b = (to_bf16(v) if bf16 else v.astype(TYPES[kind])).tobytes()
        header[name] = {"dtype": kind, "shape": list(v.shape), "data_offsets": [at, at + len(b)]}
        data += b
        at += len(b)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def rms(x, w, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if w is None else y * w


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Drafter:
    def __init__(self, c, w, table, head):
        inner = c.get("dspark_config") or c.get("dflash_config") or {}
        body = c.get("transformer_layer_config", c)
        get = lambda key, default=None: inner.get(key, c.get(key, default))
        arch = c["architectures"][0]
        self.w, self.table, self.head, self.get, self.body = w, table, head, get, body
        self.gemma, self.second = arch.startswith("Gemma4"), "DFlash2" in arch
        self.spark = not self.second
        other = body is not c or "aux_hidden_state_layer_ids" in c
        self.anchored = self.spark and get("sample_from_anchor", not other)
        self.B, self.L, self.eps = get("block_size"), body["num_hidden_layers"], body["rms_norm_eps"]
        self.dh = w["layers.0.self_attn.q_norm.weight"].shape[0]
        native = self.spark and "target_layer_ids" in c
        types = body.get("layer_types", [])
        self.sliding = [not native and t == "sliding_attention" for t in types] or [False] * self.L
        self.W = body.get("sliding_window")
        causal = c.get("is_causal", inner.get("causal"))
        self.causal = [causal if causal is not None else s and not get("sliding_window_non_causal") for s in self.sliding]
        if native:
            self.causal = [False] * self.L
        self.rope()

    def rope(self):
        p, half = self.body.get("rope_parameters") or {}, self.dh // 2
        p = p.get("full_attention", p) if self.gemma else p
        theta, i = p["rope_theta"], np.arange(half)
        self.freq, self.factor = theta ** (-2.0 * i / self.dh), 1.0
        if self.gemma:
            self.freq[int(p.get("partial_rotary_factor", 1) * half):] = 0
        if p.get("rope_type") == "yarn":
            f, o = p["factor"], p["original_max_position_embeddings"]
            cd = lambda b: self.dh * math.log(o / (2 * math.pi * b)) / (2 * math.log(theta))
            lo = max(math.floor(cd(p.get("beta_fast", 32))), 0)
            hi = min(math.ceil(cd(p.get("beta_slow", 1))), self.dh - 1)
            ramp = np.clip((i - lo) / (hi - lo), 0, 1)
            self.freq, self.factor = self.freq * (1 - ramp + ramp / f), 0.1 * math.log(f) + 1

    def turn(self, x, pos):  # x [n, heads, dh]
        a = pos[:, None] * self.freq
        c, s = np.cos(a)[:, None] * self.factor, np.sin(a)[:, None] * self.factor
        u, v = x[..., :self.dh // 2], x[..., self.dh // 2:]
        return np.concatenate([u * c - v * s, v * c + u * s], -1)

    def heads(self, x, name):
        return (x @ self.w[name + ".weight"].T).reshape(len(x), -1, self.dh)

    def kv(self, l, x, pos):
        p = f"layers.{l}.self_attn."
        raw = self.heads(x, p + "k_proj")
        k = self.turn(rms(raw, self.w[p + "k_norm.weight"], self.eps), pos)
        v = self.heads(x, p + "v_proj") if p + "v_proj.weight" in self.w else raw
        return k, rms(v, None, self.eps) if self.gemma else v

    def attend(self, l, x, pos, g, ctx):
        p = f"layers.{l}.self_attn."
        q = self.turn(rms(self.heads(x, p + "q_proj"), self.w[p + "q_norm.weight"], self.eps), pos)
        (k0, v0), (k1, v1) = self.kv(l, g, ctx), self.kv(l, x, pos)
        k, v, at = np.concatenate([k0, k1]), np.concatenate([v0, v1]), np.concatenate([ctx, pos])
        rep = q.shape[1] // k.shape[1]
        k, v = k.repeat(rep, 1), v.repeat(rep, 1)
        s = np.einsum("qhd,khd->hqk", q, k) * (1 if self.gemma else self.dh ** -0.5)
        far = pos[:, None] - at[None]
        hidden = np.zeros(far.shape, bool)
        if self.sliding[l]:
            hidden |= np.abs(far) >= self.W
        if self.causal[l]:
            hidden |= far < 0
        s[:, hidden] = -np.inf
        s = np.exp(s - s.max(-1, keepdims=True))
        y = np.einsum("hqk,khd->qhd", s / s.sum(-1, keepdims=True), v)
        return y.reshape(len(x), -1) @ self.w[p + "o_proj.weight"].T

    def mlp(self, l, x):
        m = lambda n, y: y @ self.w[f"layers.{l}.mlp.{n}_proj.weight"].T
        return m("down", (gelu if self.gemma else silu)(m("gate", x)) * m("up", x))

    def conv(self, name, x, half, delta):
        base = self.w[name + ".base_kernel"][half]
        y = np.zeros_like(x)
        for u in range(len(base)):
            k = base[u] + delta[:, half, u].repeat(x.shape[1] // delta.shape[3], -1)
            y[u:] += (k * np.concatenate([np.zeros((u, x.shape[1])), x[:len(x) - u]]))[u:]
        return y

    def around(self, name, x, f):
        if not self.second:
            return f(x)
        taps = self.w[name + ".base_kernel"].shape[1]
        delta = (x @ self.w[name + ".kernel_projection.weight"].T).reshape(len(x), 2, taps, -1)
        return self.conv(name, f(self.conv(name, x, 0, delta)), 1, delta)

    def states(self, ids, features):
        w, n = self.w, len(features)
        ctx, pos = np.arange(n), n + np.arange(self.B)
        D = w["norm.weight"].shape[0]
        scale = math.sqrt(D) if self.gemma else self.get("input_embedding_scale", 1.0)
        h = w.get("embed_tokens.weight", self.table)[ids] * scale
        g = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], self.eps)
        norm = lambda l, n, x: rms(x, w[f"layers.{l}.{n}.weight"], self.eps)
        for l in range(self.L):
            a = self.around(f"layers.{l}.attention_conv", norm(l, "input_layernorm", h),
                            lambda x: self.attend(l, x, pos, g, ctx))
            h = h + (norm(l, "post_attention_layernorm", a) if self.gemma else a)
            inner = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
            f = self.around(f"layers.{l}.mlp_conv", norm(l, inner, h), lambda x: self.mlp(l, x))
            h = h + (norm(l, "post_feedforward_layernorm", f) if self.gemma else f)
            if self.gemma:
                h = h * w[f"layers.{l}.layer_scalar"]
        return rms(h, w["norm.weight"], self.eps)

    def draft(self, anchor, features):
        w = self.w
        o = self.states([anchor] + [self.get("mask_token_id")] * (self.B - 1), features)
        rows = o if self.anchored else o[1:]
        u = rows @ w.get("lm_head.weight", self.head).T * self.get("output_multiplier", 1.0)
        cap = self.get("final_logit_softcapping") if self.gemma or self.second else None
        if cap:
            u = cap * np.tanh(u / cap)
        prev, tokens, logits, conf = anchor, [], [], []
        for k in range(len(rows)):
            z = u[k].copy()
            if self.spark:
                before = w["markov_head.markov_w1.weight"][prev]
                z = z + w["markov_head.markov_w2.weight"] @ before
                proj = w["confidence_head.proj.weight"][0]
                s = proj @ np.concatenate([rows[k], before])[:len(proj)]
                conf.append(1 / (1 + math.exp(-s - w["confidence_head.proj.bias"][0])))
                pick = int(z.argmax())
                if "d2t" in w:
                    full = np.full(len(w["markov_head.markov_w1.weight"]), -np.inf)
                    full[np.arange(len(z)) + w["d2t"]] = z
                    z, pick = full, pick + int(w["d2t"][pick])
                logits.append(z)
            else:
                p = "candidate_selector."
                best = np.argsort(-z, kind="stable")[:self.get("selector_top_k")]
                m = w[p + "hidden_projection.weight"] @ rows[k]
                score = z[best] + w[p + "successor_codebook"][best] @ (w[p + "predecessor_codebook"][prev] * m)
                pick = int(best[score.argmax()])
                logits.append(z)
            tokens.append(pick)
            prev = pick
        out = {"draft_tokens": np.array(tokens), "draft_hidden": o, "draft_logits": np.array(logits)}
        return dict(out, confidence=np.array(conf)) if self.spark else out


def rounded(v):
    if v.ndim < 2 or v.shape[0] < 4:
        return v
    step = 2.0 ** round(math.log2(v.std())) / 2
    return np.round(v / step) * step


def main(args):
    if args[0] == "--round":
        path = args[1] + "/model.safetensors"
        w = {k: rounded(v) for k, v in load(path).items() if k not in ("embed_tokens.weight", "lm_head.weight")}
        return save(path, w, True)
    c = json.load(open(args[4] if len(args) > 4 else args[0] + "/config.json"))
    target = load(args[2])
    table = next(v for k, v in target.items() if k.endswith("embed_tokens.weight"))
    d = Drafter(c, load(args[0] + "/model.safetensors"), table, target.get("lm_head.weight", table))
    cases, out = load(args[1]), {}
    for n in range(3):
        ids, anchor = cases[f"case{n}.input_ids"], cases[f"case{n}.next"]
        out[f"case{n}.input_ids"], out[f"case{n}.block_ids"] = ids, anchor
        for k, v in d.draft(int(anchor[0]), cases[f"case{n}.context_features"].astype(np.float64)).items():
            out[f"case{n}.{k}"] = v
    save(args[3], out, False)


if __name__ == "__main__":
    main(sys.argv[1:])
