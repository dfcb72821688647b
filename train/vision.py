#!/usr/bin/env python3
"""Trains nano-vision's tower: Gemma 4's encoder of pictures, 5 layers of width 128, end to end through nano's frozen target. Writes mmproj.gguf.

    vision.py --target models/nano/target.gguf --glyphs glyphs.npz --out OUT [--seconds 270] [--resume OUT/vision.pt]"""
import argparse
import multiprocessing as mp
import os
import queue
import random
import struct
import sys
import time
import traceback

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import dflash
import model as M
import mtp
from graphs import Rule
from unpack import fill
from vision_data import CELL, CLASSES, KINDS, N_SHAPES, SLOTS, Drawer, Writer
from vision_draw import atlas, draw, pack, patches

WIDTH, HEADS, FF, LAYERS, N_POS, N_OUT, EPS = 128, 2, 256, 5, 224, 256, 1e-6
LENGTH = {"still": 176, "move": 240, "plain": 256}     # of the rows of the text model; the part of their tokens that is wanted has a bound, too
WANTED = {"still": 40, "move": 32}


# --- the tower ------------------------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = WIDTH // HEADS
        for n in ("attn_q", "attn_k", "attn_v", "attn_out"): setattr(self, n, M.linear(WIDTH, WIDTH))
        self.ffn_gate, self.ffn_up, self.ffn_down = M.linear(WIDTH, FF), M.linear(WIDTH, FF), M.linear(FF, WIDTH)
        self.ln1, self.ln2 = M.Norm(WIDTH, EPS), M.Norm(WIDTH, EPS)
        self.attn_post_norm, self.ffn_post_norm = M.Norm(WIDTH, EPS, 0.5), M.Norm(WIDTH, EPS, 0.5)
        self.attn_q_norm, self.attn_k_norm = M.Norm(d, EPS, d ** -0.25), M.Norm(d, EPS, d ** -0.25)

    def forward(self, z, table):
        n = rms(z, self.ln1.weight)
        q, k, v = (l(n).unflatten(-1, (HEADS, -1)).transpose(1, 2) for l in (self.attn_q, self.attn_k, self.attn_v))
        q, k, v = turn(rms(q, self.attn_q_norm.weight), table), turn(rms(k, self.attn_k_norm.weight), table), rms(v)
        a = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        z = z + rms(self.attn_out(a.transpose(1, 2).flatten(2)), self.attn_post_norm.weight)
        n = rms(z, self.ln2.weight)
        return z + rms(self.ffn_down(F.gelu(self.ffn_gate(n), approximate="tanh") * self.ffn_up(n)), self.ffn_post_norm.weight)


def rms(x, weight=None):
    """The fused form of model.py's"""
    return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), EPS)


def turn(x, table):
    """Axial rope: the first half of a head turns with the column, the second with the row; pairs (j, j + d/4) of a half."""
    cos, sin = table
    swapped = x.unflatten(-1, (2, 2, -1)).flip(-2).flatten(-3)
    return torch.addcmul(x * cos, swapped, sin)


def axial(cols, rows, device, dtype):
    """cos and the signed sin [patches, d]"""
    q = WIDTH // HEADS // 4
    f = 100.0 ** (-torch.arange(q, device=device) / q)
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(cols, device=device), indexing="ij")
    angle = torch.stack([x.flatten(), y.flatten()], 1)[:, :, None] * f
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, cos], 2).flatten(1).to(dtype), torch.stack([-sin, sin], 2).flatten(1).to(dtype)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embd = M.linear(768, WIDTH)
        self.position_embd = nn.Parameter(0.02 * torch.randn(2, N_POS, WIDTH))
        self.blk = nn.ModuleList(Block() for _ in range(LAYERS))
        self.input_projection = M.linear(WIDTH, N_OUT)

    def forward(self, p, cols, rows, tap=None):
        """p [B, patches, 768] -> soft tokens [B, cells, N_OUT]; the states after block `tap`; the mean of the last states"""
        table = axial(cols, rows, p.device, p.dtype)
        pos = (self.position_embd[0, :cols][None] + self.position_embd[1, :rows][:, None]).flatten(0, 1)
        z, at = self.patch_embd(p) + pos.to(p.dtype), None
        for i, b in enumerate(self.blk):
            z = b(z, table)
            if i == tap: at = z
        c = z.float().view(len(p), rows // 3, 3, cols // 3, 3, WIDTH).mean((2, 4)).flatten(1, 2) * WIDTH ** 0.5
        return self.input_projection(rms(c)), at, z.mean(1)


# --- mmproj -----------------------------------------------------------------------------------------------------
def q8_0(x):
    b = x.reshape(-1, 32).astype(np.float32)
    d = (np.abs(b).max(1) / 127).astype(np.float16)
    s = d.astype(np.float32)[:, None]
    q = np.where(s > 0, np.round(b / np.where(s > 0, s, 1)), 0).clip(-127, 127).astype(np.int8)
    out = np.zeros(len(b), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"], out["q"] = d, q
    return out.tobytes()


def gguf(path, keys, tensors):
    """tensors: (name, array, "f32", "f16" or "q8_0")"""
    def text(s): return struct.pack("<Q", len(s.encode())) + s.encode()
    def value(v):
        if isinstance(v, bool): return struct.pack("<I?", 7, v)
        if isinstance(v, int): return struct.pack("<II", 4, v)
        if isinstance(v, float): return struct.pack("<If", 6, v)
        if isinstance(v, str): return struct.pack("<I", 8) + text(v)
        return struct.pack("<IIQ", 9, 6, len(v)) + struct.pack("<%df" % len(v), *v)
    head, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)), b""
    for k, v in keys.items(): head += text(k) + value(v)
    for name, a, kind in tensors:
        raw = q8_0(a) if kind == "q8_0" else a.astype("<f2" if kind == "f16" else "<f4").tobytes()
        head += text(name) + struct.pack("<I", a.ndim) + struct.pack("<%dQ" % a.ndim, *a.shape[::-1]) + struct.pack("<IQ", {"f32": 0, "f16": 1, "q8_0": 8}[kind], len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    with open(path, "wb") as f: f.write(head + b"\0" * (-len(head) % 32) + data)


def export(tower, path, budget=70):
    keys = {"general.architecture": "clip", "general.type": "mmproj", "general.name": "nano-vision", "clip.has_vision_encoder": True,
            "clip.vision.projector_type": "gemma4v", "clip.vision.embedding_length": WIDTH, "clip.vision.feed_forward_length": FF,
            "clip.vision.block_count": LAYERS, "clip.vision.attention.head_count": HEADS, "clip.vision.projection_dim": N_OUT,
            "clip.vision.patch_size": 16, "clip.vision.image_size": 384, "clip.vision.attention.layer_norm_epsilon": EPS,
            "clip.vision.image_mean": [0.0] * 3, "clip.vision.image_std": [1.0] * 3, "clip.vision.projector.scale_factor": 3,
            "clip.vision.image_max_pixels": budget * CELL * CELL}
    out = []
    for name, p in tower.state_dict().items():
        a = p.detach().float().cpu().numpy()
        if name == "patch_embd.weight": out.append(("v.patch_embd.weight", a.reshape(WIDTH, 3, 16, 16), "f16"))
        elif name == "position_embd": out.append(("v.position_embd.weight", a, "f16"))
        elif name == "input_projection.weight": out.append(("mm.input_projection.weight", a, "q8_0"))
        else: out.append(("v." + name, a, "q8_0" if a.ndim == 2 else "f32"))
    gguf(path, keys, out)


# --- batches --------------------------------------------------------------------------------------------------------
SCENES = {"object": "objects", "count": "counts", "digit": "digits", "bar": "bars", "move": "moves"}
# Sizes after scaling, and by how much pictures are enlarged: a step is recorded for each.
FORMS = [(384, 384, 1.0), (384, 384, 1.6), (384, 384, 2.5), (384, 384, 4.0), (432, 336, 1.33), (336, 432, 3.0), (480, 288, 2.0), (288, 480, 1.2), (528, 288, 1.6),
         (288, 528, 2.5), (528, 240, 3.0), (240, 528, 1.33)]
OFTEN = [2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]


def shares_of(n):
    """Pictures, and pairs of frames, of each kind"""
    return {"object": round(0.42 * n), "count": round(0.28 * n), "digit": round(0.18 * n), "bar": round(0.05 * n), "move": round(0.07 * n)}


def rows_of(group, samples):
    """Arrays of the rows of the text model, each of one length: what depends on the questions is worked out here, not on the device."""
    n, t, wanted = len(samples), LENGTH[group], WANTED[group] * len(samples)
    a = {k: np.zeros((n, t), d) for k, d in (("ids", np.int64), ("pos", np.int16), ("group", np.int16), ("block", np.int16))}
    weight = np.zeros((n, t), np.float32)
    a["group"][:] = -1
    for i, x in enumerate(samples):
        for k, v in zip((a["ids"], a["pos"], a["group"], a["block"], weight), x): k[i, :len(v)] = v
    b, i = np.nonzero(np.where(a["group"][:, 1:] == a["group"][:, :-1], weight[:, 1:], 0))
    b, i, m = b[:wanted], i[:wanted], min(len(b), wanted)
    a["soft"] = np.nonzero(a["block"].reshape(-1))[0]
    a["want"], a["gold"], a["weight"] = np.zeros(wanted, np.int64), np.zeros(wanted, np.int64), np.zeros(wanted, np.float32)
    a["want"][:m], a["gold"][:m], a["weight"][:m] = b * t + i, a["ids"][b, i + 1], weight[b, i + 1]
    return a, (b, a["group"][b, i + 1], [x[5] for x in samples])


def make(drawer, writer, r, shares, plain=0):
    """A batch of one form: arrays by name, and which questions they ask. plain: rows with a question that needs no picture"""
    form = r.choices(range(len(FORMS)), OFTEN)[0]
    w, h, _ = FORMS[form]
    cells, out, asked = w * h // (CELL * CELL), {}, {}
    groups = {"still": [], "move": []}
    for kind, n in shares.items():
        scenes, group = [], "move" if kind == "move" else "still"
        for _ in range(n):
            s, questions = getattr(drawer, SCENES[kind])(w / h * r.uniform(0.92, 1.08))
            scenes += s if kind == "move" else [s]
            groups[group].append(writer.write(questions, cells, 2 if kind == "move" else 1, LENGTH[group]))
        out["back." + kind], out["rows." + kind] = pack(scenes, SLOTS[kind])
    for group, samples in groups.items():
        a, asked[group] = rows_of(group, samples)
        out.update({group + "." + k: v for k, v in a.items()})
    if plain:
        samples = [writer.plain(cells, LENGTH["plain"]) for _ in range(plain)]
        t = LENGTH["plain"]
        a = {"ids": np.zeros((plain, t), np.int64), "block": np.zeros((plain, t), np.int16)}
        for i, x in enumerate(samples): a["ids"][i, :len(x[0])], a["block"][i, :len(x[1])] = x[:2]
        a["pos"], a["group"] = np.repeat(np.arange(t, dtype=np.int16)[None], plain, 0), np.zeros((plain, t), np.int16)
        a["first"], a["lengths"] = np.array([x[2] for x in samples]), np.array([len(x[0]) for x in samples])
        a["picture"] = np.array([r.randrange(len(groups["still"])) for _ in samples])
        a["soft"] = np.nonzero(a["block"].reshape(-1))[0]
        out.update({"plain." + k: v for k, v in a.items()})
    return form, out, asked


def worker(seed, fonts, shares, plain, out):
    drawer, writer, r = Drawer(seed, fonts), Writer(seed), random.Random(seed + ":form")
    while True: out.put(make(drawer, writer, r, shares, plain))


# --- a step -----------------------------------------------------------------------------------------------------------
class Rows:
    """Rows of the text model on the device"""

    def __init__(self, a, group, dtype):
        self.__dict__.update({k.split(".")[1]: v for k, v in a.items() if k.startswith(group + ".")})
        of, block, t = self.group, self.block, self.ids.shape[1]
        at = torch.arange(t, device=of.device)
        same = (of[:, None] == of[:, :, None]) | (of[:, None] == 0)
        full = (at[None] <= at[:, None])[None] & same | (at[None] == at[:, None])[None]
        ahead = (block[:, None] == block[:, :, None]) & (block[:, None] > 0)
        self.masks = [torch.zeros(m.shape, dtype=dtype, device=of.device).masked_fill_(~m, -torch.inf)[:, None] for m in (full | ahead, full)]
        self.tables = [(torch.cat([c, c], -1)[:, None], torch.cat([-n, n], -1)[:, None]) for c, n in (M.rope_table(self.pos, 64, 1e4), M.rope_table(self.pos, 128, 1e6, 0.25))]


class Text:
    """nano's target, frozen: model.py's layers with fewer and fused steps"""

    def __init__(self, path, device):
        m = fill(M.Target(M.Config()), path, "target")
        self.m = m.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval().requires_grad_(False)
        self.c, self.dtype = self.m.c, self.m.norm.weight.dtype
        for l in self.m.layers:
            e, r = l.experts, l.router
            l.wide = [w.flatten(0, 1).contiguous() for w in e.gate_up_proj.chunk(2, 1)] + [e.down_proj.permute(1, 0, 2).flatten(1).contiguous()]
            l.gates = r.proj.weight.float(), (r.scale.float() * self.c.hidden ** -0.5)

    def layer(self, l, x, rows, full):
        a, c = l.self_attn, self.c
        n = rms(x, l.input_layernorm.weight)
        q = F.linear(n, a.q_proj.weight).unflatten(-1, (a.heads, a.dim)).transpose(1, 2)
        k = F.linear(n, a.k_proj.weight).unflatten(-1, (a.kv_heads, a.dim)).transpose(1, 2)
        v = rms(k if full else F.linear(n, a.v_proj.weight).unflatten(-1, (a.kv_heads, a.dim)).transpose(1, 2))
        cos, sin = rows.tables[full]
        q, k = (self.turn(rms(y, w.weight), cos, sin) for y, w in ((q, a.q_norm), (k, a.k_norm)))
        g = a.heads // a.kv_heads
        y = F.scaled_dot_product_attention(q, M.shared(k, g), M.shared(v, g), attn_mask=rows.masks[full], scale=1.0)
        u = x + rms(F.linear(y.transpose(1, 2).flatten(2), a.o_proj.weight), l.post_attention_layernorm.weight)
        weight, scale = l.gates
        p = F.linear(rms(u.float(), scale), weight).softmax(-1)
        top, index = p.topk(c.top_k, -1)
        w = torch.zeros_like(p).scatter(-1, index, top / top.sum(-1, keepdim=True)) * l.router.per_expert_scale.float()
        n = rms(u, l.pre_feedforward_layernorm.weight)
        f = F.linear(F.gelu(F.linear(n, l.mlp.gate_proj.weight), approximate="tanh") * F.linear(n, l.mlp.up_proj.weight), l.mlp.down_proj.weight)
        n = rms(u, l.pre_feedforward_layernorm_2.weight)
        gate, up, down = l.wide
        h = (F.gelu(F.linear(n, gate), approximate="tanh") * F.linear(n, up)).unflatten(-1, (c.experts, -1)) * w[..., None].to(x.dtype)
        f = rms(f, l.post_feedforward_layernorm_1.weight) + rms(F.linear(h.flatten(-2), down), l.post_feedforward_layernorm_2.weight)
        return (u + rms(f, l.post_feedforward_layernorm.weight)) * l.layer_scalar, k, v

    @staticmethod
    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.addcmul(x * cos.to(x.dtype), torch.cat([b, a], -1), sin.to(x.dtype))

    def states(self, rows, soft, outputs=None, donors=None):
        """States of all rows; soft [.., N_OUT] in the order of the rows with a block. outputs, donors: get what drafters read"""
        x = self.m.embed(rows.ids)
        x = x.flatten(0, 1).index_copy(0, rows.soft, soft.flatten(0, 1).to(x.dtype)).view_as(x)
        for i, l in enumerate(self.m.layers):
            x, k, v = self.layer(l, x, rows, self.c.full(i))
            if outputs is not None: outputs[i], donors[self.c.full(i)] = x, (k, v)
        return rms(x, self.m.norm.weight)

    def loss(self, rows, soft):
        """The sum of weighted losses, and which of the wanted tokens were the most likely"""
        z = self.m.logits(self.states(rows, soft).flatten(0, 1).index_select(0, rows.want))
        return (F.cross_entropy(z, rows.gold, reduction="none") * rows.weight).sum(), z.argmax(-1) == rows.gold


class Drafters:
    """nano's drafters, frozen: pictures must not make their drafts worse"""

    def __init__(self, path, target, device):
        c, dtype = target.c, torch.bfloat16 if device == "cuda" else torch.float32
        self.dflash = fill(dflash.DFlash(dflash.for_target(c)), os.path.join(path, "dflash.gguf"), "dflash")
        self.mtp = fill(mtp.Assistant(mtp.for_target(c), c), os.path.join(path, "mtp.gguf"), "mtp")
        for x in (self.dflash, self.mtp): x.to(device, dtype).eval().requires_grad_(False)

    def losses(self, text, rows, soft):
        """Of rows with questions that need no picture: the loss of the text, of DFlash's drafts and of the assistant's; tokens of a block of DFlash"""
        outputs, donors, b, t = {}, {}, *rows.ids.shape
        y = text.states(rows, soft, outputs, donors)
        at = torch.arange(t - 1, device=y.device)[None] + 1
        ok = (at >= rows.first[:, None]) & (at < rows.lengths[:, None])
        ce = F.cross_entropy(text.m.logits(y[:, :-1]).flatten(0, 1), rows.ids[:, 1:].flatten(), reduction="none").view_as(ok)
        anchors = rows.first[:, None] + (torch.rand(b, 8, device=y.device) * (rows.lengths - rows.first - 1).clamp(min=1)[:, None]).long()
        d, mean = dflash.loss_of(self.dflash, text.m, outputs, rows.ids, rows.first, rows.lengths, anchors)
        m = mtp.loss_of(mtp.chain(self.mtp, text.m, rows.ids, y, donors, anchors, 4), rows.ids, rows.lengths, anchors)[0]
        return (ce * ok).sum() / ok.sum(), d, m, mean


class Step:
    """A training step. On a GPU it is recorded for each form of a batch: it has thousands of small kernels."""

    def __init__(self, text, tower, heads, drafters, table, o, device):
        self.text, self.tower, self.heads, self.drafters, self.table, self.o, self.device = text, tower, heads, drafters, table, o, device
        self.rule = Rule(nn.ModuleList([tower, heads]), 1.0)
        self.rule.lr = (o.lr, 0.004)
        self.rate = torch.zeros((), device=device)
        self.recorded, self.ahead = {}, []
        self.pool = None
        if device == "cuda": torch.backends.cuda.enable_cudnn_sdp(False)

    def losses(self, form, a, heads, drafters):
        """loss, auxiliary loss, rms of the soft tokens, the losses of drafters, and by group whether the wanted tokens were the most likely"""
        w, h, scale = FORMS[form]
        dtype, kinds, seen = self.text.dtype, [], []
        for kind in SCENES:
            p, k = draw(self.table, a["back." + kind], a["rows." + kind], w, h, scale, rects=kind == "bar", shapes=kind != "bar")
            seen.append(patches(p).to(dtype)), kinds.append(k.flatten(1))
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False):
            soft, at, mean = self.tower(torch.cat(seen), w // 16, h // 16, self.o.tap)
            aux = soft.sum() * 0
            if heads:       # what each patch shows, and how many of each shape there are
                n = torch.cat([(a["rows." + k][..., 0, None] == torch.arange(1, N_SHAPES + 1, device=soft.device)).sum(1) for k in SCENES])
                aux = F.cross_entropy(self.heads[0](at).flatten(0, 1).float(), torch.cat(kinds).flatten()) \
                    + 0.3 * F.cross_entropy(self.heads[1](mean).unflatten(-1, (N_SHAPES, -1)).flatten(0, 1).float(), n.flatten())
        still = len(a["still.ids"])
        found, total, weights = {}, 0, 0
        for group, x in (("still", soft[:still]), ("move", soft[still:])):
            rows = Rows(a, group, dtype)
            l, found[group] = self.text.loss(rows, x)
            total, weights = total + l, weights + rows.weight.sum()
        loss, plain = total / weights, ()
        if drafters:
            rows = Rows(a, "plain", dtype)
            plain = self.drafters.losses(self.text, rows, soft.index_select(0, rows.picture))
        return loss, aux, soft.detach().float().pow(2).mean().sqrt(), plain, found

    def run(self, form, a, drafters):
        loss, aux, size, plain, found = self.losses(form, a, True, drafters)
        total = loss + self.o.aux * aux
        if drafters: total = total + plain[0] + 0.5 * plain[1] + 0.25 * plain[2]
        self.rule.step(torch.autograd.grad(total, self.rule.params), self.rate)
        return torch.stack([x.detach().float() for x in (loss, aux, size, *plain)]), found

    def __call__(self, batch, rate, drafters):
        form, arrays, _ = batch
        self.rate.fill_(rate)
        if self.device != "cuda": return self.run(form, {k: torch.from_numpy(v) for k, v in arrays.items()}, drafters)
        key = form, drafters
        if key not in self.recorded: self.record(key, arrays)
        graph, buffers, out = self.recorded[key]
        for k, v in arrays.items():
            if k in buffers: buffers[k].copy_(torch.from_numpy(v).pin_memory(), non_blocking=True)
        graph.replay()
        self.ahead.append(torch.cuda.Event())
        self.ahead[-1].record()
        if len(self.ahead) > 2: self.ahead.pop(0).synchronize()        # the schedule follows the clock: the processor may not run ahead
        return out

    def record(self, key, arrays):
        """Records the step; the one before it, at rate 0, only makes what is made once."""
        begin, rate = time.time(), self.rate.item()
        buffers = {k: torch.from_numpy(v).to(self.device) for k, v in arrays.items() if key[1] or not k.startswith("plain.")}
        self.rate.fill_(0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(1 if self.recorded else 2): self.run(key[0], buffers, key[1])
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self.pool): out = self.run(key[0], buffers, key[1])
        self.recorded[key] = graph, buffers, out
        self.rate.fill_(rate)
        print("recorded %s, %.1f s, %.1f GB" % (key, time.time() - begin, torch.cuda.max_memory_allocated() / 1e9), flush=True)


def scores(asked, arrays, found, table):
    """Adds the exact answers of a batch to table {class: [right, all]}"""
    for group, (b, g, cls) in asked.items():
        right = {}
        for i, j, k in zip(b, g, found[group].cpu().tolist()): right[i, j] = right.get((i, j), True) and k
        for (i, j), v in right.items():
            c = table.setdefault(cls[i][j - 1], [0, 0])
            c[0] += v
            c[1] += 1


def evaluate(step, fonts, n, log):
    drawer, writer, r, out = Drawer("held out", fonts, True), Writer("held out"), random.Random("held out forms"), {}
    with torch.no_grad():
        while min([out.get(c, [0, 0])[1] for c in CLASSES]) < n:
            form, arrays, asked = make(drawer, writer, r, shares_of(64))
            scores(asked, arrays, step.losses(form, {k: torch.from_numpy(v).to(step.device) for k, v in arrays.items()}, False, False)[4], out)
    log("held out: " + ", ".join("%s %d/%d %.1f%%" % (c, *out[c], 100 * out[c][0] / out[c][1]) for c in CLASSES))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--target", default="models/nano/target.gguf")
    p.add_argument("--glyphs", required=True)
    p.add_argument("--out", default=os.environ.get("OUT", "out"))
    p.add_argument("--seconds", type=float, default=240)
    p.add_argument("--total", type=float, help="seconds of the whole schedule; default: those of this run")
    p.add_argument("--falls", type=float, default=0.5, help="the part of the schedule in which the rate falls")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--resume")
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--aux", type=float, default=0.5)
    p.add_argument("--tap", type=int, default=2)
    p.add_argument("--drafters", action="store_true", help="train texts after pictures, too, with the drafters' losses")
    p.add_argument("--evaluate", type=int, default=200)
    p.add_argument("--seed", default="vision-1")
    o = p.parse_args()
    begun = time.time()
    os.makedirs(o.out, exist_ok=True)
    file = open(os.path.join(o.out, "log.txt"), "a")

    def log(s):
        s = "%6.1f  %s" % (time.time() - begun, s)
        print(s, flush=True)
        file.write(s + "\n"), file.flush()

    d = np.load(o.glyphs)
    train_fonts, test_fonts = [list(np.nonzero(d["held"] == x)[0]) for x in (False, True)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches, workers = mp.Queue(maxsize=2 * o.workers), []
    for i in range(o.workers):
        seed = "%s:%d:%s" % (o.seed, i, o.resume and begun)
        workers.append(mp.Process(target=worker, args=(seed, train_fonts, shares_of(o.batch), o.batch // 5 if o.drafters else 0, batches), daemon=True))
        workers[-1].start()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    table, text = atlas(d["glyphs"]).to(device), Text(o.target, device)
    tower, heads = Tower().to(device), nn.ModuleList([nn.Linear(WIDTH, KINDS), nn.Linear(WIDTH, N_SHAPES * 8)]).to(device)
    step = Step(text, tower, heads, Drafters(os.path.dirname(o.target), text.m, device) if o.drafters else None, table, o, device)
    log("%d parameters in the tower, %s" % (M.parameters(tower), device))
    n, spent = 0, 0.0
    if o.resume:
        s = torch.load(o.resume, map_location=device, weights_only=False)
        tower.load_state_dict(s["tower"])
        heads.load_state_dict({k if "." in k and k[0].isdigit() else "0." + k: v for k, v in s["heads"].items()}, strict=False)
        step.rule.mean[:len(s["mean"])], step.rule.square[:len(s["square"])], step.rule.count = s["mean"], s["square"], s["count"]
        n, spent = s["n"], s["spent"]
        log("resumed after %d steps, %.0f s" % (n, spent))
    total = o.total or spent + o.seconds

    def save():
        r = step.rule
        torch.save({"tower": tower.state_dict(), "heads": heads.state_dict(), "mean": r.mean, "square": r.square, "count": r.count, "n": n, "spent": spent},
                   os.path.join(o.out, "vision.pt.new"))
        os.replace(os.path.join(o.out, "vision.pt.new"), os.path.join(o.out, "vision.pt"))
        export(tower, os.path.join(o.out, "mmproj.gguf"))

    run, first, table_now, losses, last, shown_at, waited, n0 = time.time(), spent, {}, [], time.time(), time.time(), 0.0, n
    while spent - first < o.seconds:
        t = time.time()
        batch = batches.get()
        waited += time.time() - t
        done = spent / total
        out, found = step(batch, min(1, (n - n0 + 1) / 50, max(0.0, (1 - done) / o.falls)), o.drafters)
        n += 1
        if n % 20 == 0 or not losses:
            losses.append(out.tolist())
            scores(batch[2], batch[1], found, table_now)
        spent = first + time.time() - run
        if time.time() - shown_at > 10:
            log("step %d, %.1f a second, loss %.3f aux %.3f rms %.2f %s waited %.1f  %s" % (n, (n - n0) / (spent - first), *np.mean(losses, 0)[:3], " ".join("%.3f" % x for x in np.mean(losses, 0)[3:]),
                waited, " ".join("%s %.0f" % (c, 100 * a / b) for c, (a, b) in sorted(table_now.items()))))
            table_now, losses, shown_at = {}, [], time.time()
        if time.time() - last > 45:
            save()
            last = time.time()
    save()
    log("%d steps" % n)
    for w in workers: w.terminate()
    if o.evaluate: evaluate(step, test_fonts, o.evaluate, log)


if __name__ == "__main__":
    main()
