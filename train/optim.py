"""Muon for matrices, Adam for the rest; one schedule for both."""
import torch


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
    """lr: of Muon, of Adam for tables, of Adam for vectors. The rate rises for `warmup` steps, stays, and falls to zero over the last part."""

    def __init__(self, modules, lr=(0.02, 0.004, 0.004), warmup=100, falls=0.5):
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

    def step(self, n, progress):
        f = min(1, (n + 1) / self.warmup, max(0.0, (1 - progress) / self.falls))
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        if not torch.isfinite(norm):            # one bad batch does not end a run
            for o in self.all: o.zero_grad(set_to_none=True)
            return norm
        for o in self.all:
            for g in o.param_groups: g["lr"] = g["top"] * f
            o.step()
            o.zero_grad(set_to_none=True)
        return norm
