"""Draws scenes as tensors, many at once: each object is a small picture of distances to its edge, laid over the picture."""
import functools
import math

import numpy as np
import torch
import torch.nn.functional as F

from vision_data import KIND_GLYPH, KIND_RECT, RECT

SIDE, REACH = 40, 1.25


def polygon(points, xy):
    """Signed distances of xy [n, 2] to a polygon"""
    p = torch.tensor(points, dtype=torch.float32)
    q = p.roll(-1, 0)
    d = q - p
    w = xy[:, None] - p[None]
    t = ((w * d).sum(-1) / (d * d).sum(-1)).clamp(0, 1)
    dist = (w - t[..., None] * d).norm(dim=-1).min(1).values
    cross = ((p[:, 1] <= xy[:, None, 1]) != (q[:, 1] <= xy[:, None, 1])) & (xy[:, None, 0] < p[:, 0] + (xy[:, None, 1] - p[:, 1]) / (d[:, 1] + 1e-12) * d[:, 0])
    return torch.where(cross.sum(1) % 2 == 1, -dist, dist)


def around(n, radii, turn=-math.pi / 2):
    return [(radii[i % len(radii)] * math.cos(turn + 2 * math.pi * i / n), radii[i % len(radii)] * math.sin(turn + 2 * math.pi * i / n)) for i in range(n)]


CROSS = [(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3), (0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)]
OUTLINES = {"square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)], "triangle": around(3, [1]), "star": around(10, [1, 0.42]), "cross": CROSS}


def atlas(glyphs):
    """[1 + shapes + glyphs, 1, SIDE, SIDE]: index 1.. a shape, 100 + glyph at 7 + glyph"""
    at = (torch.arange(SIDE) + 0.5) / SIDE * 2 * REACH - REACH
    y, x = torch.meshgrid(at, at, indexing="ij")
    xy, r = torch.stack([x.flatten(), y.flatten()], 1), (x * x + y * y).sqrt().flatten()
    shapes = [torch.full_like(r, 9), r - 1] + [polygon(OUTLINES[n], xy) for n in ("square", "triangle", "star", "cross")] + [(r - 0.78).abs() - 0.22]
    shapes = torch.stack(shapes).view(-1, 1, SIDE, SIDE)
    return torch.cat([shapes, torch.from_numpy(glyphs.astype(np.float32) / 100).view(-1, 1, SIDE, SIDE)])


N_FIXED = 7


@functools.lru_cache(64)
def spread(n, m, device):
    """The matrix [n, m] that enlarges m numbers to n as the engine's bicubic filter does"""
    at = (torch.arange(n, dtype=torch.float64)[:, None] + 0.5) * m / n - 0.5 - torch.arange(m)
    x = at.abs()
    k = torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, torch.where(x < 2, ((2.5 - 0.5 * x) * x - 4) * x + 2, 0.0))
    return (k / k.sum(1, keepdim=True)).float().to(device)


def pack(scenes, slots):
    """Arrays of scenes: background [B, 3], rows [B, slots, 9]"""
    back, rows = np.zeros((len(scenes), 3), np.float32), np.zeros((len(scenes), slots, 9), np.float32)
    for i, s in enumerate(scenes):
        back[i] = s.background
        for k, row in enumerate(s.rows): rows[i, k] = row
    return back, rows


@torch.no_grad()
def draw(table, back, rows, width, height, scale, noise=True, rects=True, shapes=True):
    """Pictures [B, 3, height, width] in 0..255, and what each patch of 16 x 16 shows (kinds [B, h/16, w/16]). They are drawn at 1 / scale and enlarged."""
    device, b = back.device, len(back)
    h, w = max(24, round(height / scale)), max(24, round(width / scale))
    image = back[:, :, None, None].expand(b, 3, h, w).clone()
    ys, xs = torch.arange(h, device=device) + 0.5, torch.arange(w, device=device) + 0.5
    py, px = ((torch.arange(height // 16, device=device) + 0.5) * h / (height // 16)).long(), ((torch.arange(width // 16, device=device) + 0.5) * w / (width // 16)).long()
    kinds = torch.zeros(b, height // 16, width // 16, dtype=torch.long, device=device)
    soft = torch.rand(b, 1, 1, device=device) * 0.8 + 0.7
    for k in range(rows.shape[1]):
        kind, x, y, rx, ry, angle = rows[:, k, :6].unbind(1)
        x, y, rx, ry = x * w, y * h, (rx * w).clamp(min=0.1), (ry * h).clamp(min=0.1)
        is_rect, real = kind == RECT, kind > 0
        cover = None
        if shapes:
            index = torch.where(kind >= 100, kind - 100 + N_FIXED, torch.where(is_rect, 0, kind)).long()
            c, s = angle.cos(), angle.sin()
            # texture coordinates of a pixel (i, j): R(-angle) ((j - x) / rx, (i - y) / ry) / REACH, with j = (u + 1) w / 2
            a = torch.stack([torch.stack([c * w / 2 / rx, s * h / 2 / rx, (c * (w / 2 - x) + s * (h / 2 - y)) / rx], 1),
                             torch.stack([-s * w / 2 / ry, c * h / 2 / ry, (-s * (w / 2 - x) + c * (h / 2 - y)) / ry], 1)], 1) / REACH
            grid = F.affine_grid(a, (b, 1, h, w), align_corners=False)
            sd = F.grid_sample(table[index], grid, padding_mode="border", align_corners=False)[:, 0]
            cover = (0.5 - sd * torch.minimum(rx, ry)[:, None, None] / soft).clamp(0, 1)
        if rects:
            cx, cy = ((0.5 + r[:, None] - (p[None] - m[:, None]).abs()).clamp(0, 1) for r, p, m in ((rx, xs, x), (ry, ys, y)))
            box = cy[:, :, None] * cx[:, None]
            cover = box * is_rect[:, None, None] if cover is None else torch.where(is_rect[:, None, None], box, cover)
        cover = cover * real[:, None, None]
        image += cover[:, None] * (rows[:, k, 6:, None, None] - image)
        shown = torch.where(kind >= 100, KIND_GLYPH + (kind - 100) % 10, torch.where(is_rect, KIND_RECT, kind)).long()
        kinds = torch.where(cover[:, py][:, :, px] > 0.5, shown[:, None, None], kinds)
    if (h, w) != (height, width): image = spread(height, h, device) @ image @ spread(width, w, device).T
    if noise: image = image + torch.randn_like(image) * (torch.rand(b, 1, 1, 1, device=device) - 0.6).clamp(min=0) * 12
    return image.clamp(0, 255).round(), kinds


def patches(image):
    """[B, patches, 768] as the engine writes them to a GGUF tower: channel, row, column; -1 to 1"""
    b, _, h, w = image.shape
    p = image.view(b, 3, h // 16, 16, w // 16, 16).permute(0, 2, 4, 1, 3, 5).reshape(b, (h // 16) * (w // 16), 768)
    return p * (2 / 255) - 1
