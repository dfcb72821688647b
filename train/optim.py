"""Muon for matrices, Adam for the rest; one schedule for both. Weights that a file will hold in Q5_0 can be trained as such."""
import torch


def half(device):
    """Computes in bf16 where the device is faster with it."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def q5_0(w):
    """The weights as Q5_0 has them: blocks of 32 along a row with a scale in f16, whole numbers from -16 to 15; the largest of a block is -16."""
    b = w.unflatten(-1, (-1, 32))
    top = b.gather(-1, b.abs().argmax(-1, keepdim=True))
    d = (top / -16).half().float()
    q = torch.where(d == 0, 0, b / torch.where(d == 0, 1, d)).round().clamp(-16, 15)
    return (q * d).flatten(-2)


def orthogonal(g):
    """About the nearest orthogonal matrix of each [.., rows, cols], by Newton-Schulz steps in bf16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall: x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are stepped together."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.02):
        super().__init__(list(params), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None: shapes.setdefault(p.shape, []).append(p)
            for shape, ps in shapes.items():
                buffers = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in ps]
                grads = [p.grad for p in ps]
                torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
                update = orthogonal(torch.stack(torch._foreach_lerp(grads, buffers, group["momentum"])))
                scale = max(1, shape[-2] / shape[-1]) ** 0.5
                torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(ps, list((update * scale).float().unbind(0)), alpha=-group["lr"])


class Optimizer:
    """lr: of Muon, of Adam for tables, of Adam for vectors. The rate rises for `warmup` steps, stays, and falls to zero over the last part. From the part
    `snap` of the way on, the matrices are rounded to Q5_0 for each step; the optimizer goes on with what it had before rounding."""

    def __init__(self, modules, lr=(0.02, 0.004, 0.004), warmup=100, falls=0.5, snap=None):
        named = [(n, p) for m in modules for n, p in m.named_parameters() if p.requires_grad]
        table = [p for n, p in named if "embed_tokens" in n]
        matrix = [p for n, p in named if p.ndim == 2 and "embed_tokens" not in n or p.ndim > 2 and "conv1d" not in n]
        vector = [p for n, p in named if p.ndim < 2 or "conv1d" in n]       # each channel of a convolution is a vector of its own
        fused = named[0][1].is_cuda
        self.all = [Muon(matrix, lr[0]), torch.optim.Adam([{"params": table, "lr": lr[1]}, {"params": vector, "lr": lr[2]}], betas=(0.9, 0.98), fused=fused)]
        self.all[1].param_groups = [g for g in self.all[1].param_groups if g["params"]]
        for o in self.all:
            for g in o.param_groups: g["top"] = g["lr"]
        self.params, self.warmup, self.falls = [p for _, p in named], warmup, falls
        self.snap, self.matrices, self.exact = snap, [p for p in matrix if p.shape[-1] % 32 == 0], None

    def step(self, n, progress, check=True):
        """check: skips the step when a gradient is not finite, which waits for the device"""
        f = min(1, (n + 1) / self.warmup, max(0.0, (1 - progress) / self.falls))
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        if check and not torch.isfinite(norm):  # one bad batch does not end a run
            for o in self.all: o.zero_grad(set_to_none=True)
            return norm
        if self.exact: self.swap(lambda p, e: p.copy_(e))
        for o in self.all:
            for g in o.param_groups: g["lr"] = g["top"] * f
            o.step()
            o.zero_grad(set_to_none=True)
        if self.snap is not None and progress >= self.snap:
            self.exact = self.exact or [torch.empty_like(p) for p in self.matrices]
            self.swap(lambda p, e: (e.copy_(p), p.copy_(q5_0(p))))
        return norm

    @torch.no_grad()
    def swap(self, fn):
        for p, e in zip(self.matrices, self.exact): fn(p, e)
