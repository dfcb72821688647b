"""The drafters' training step as CUDA graphs, one for each shape of a batch: the step has thousands of small kernels, and a processor that launches
them one by one keeps the GPU waiting. Without a GPU the same step runs plainly."""
import time

import torch

import optim
import spec


class Step:
    """One step of both drafters on buffers of fixed shape. Rates are tensors, so that a recorded step follows the schedule."""

    def __init__(self, target, drafters, device, anchors, rate, record=True):
        self.target, self.drafters, self.device, self.anchors = target, drafters, device, anchors
        self.want = tuple({i for d in drafters if d.kind == "dflash" for i in d.net.c.captures})
        self.rate = torch.zeros((), device=device)
        self.top, self.sums = rate, torch.zeros(2 * len(drafters) + 1, device=device)
        self.rules = [Rule(d.net, rate) for d in drafters]
        self.buffers, self.recorded, self.ahead = {}, {}, []
        self.record_it = record and device == "cuda"
        if self.record_it: torch.backends.cuda.enable_cudnn_sdp(False)

    def run(self, ids, first, lengths, places):
        """places: random numbers of 0 to 1 for each drafter, [B, P]"""
        cuda = self.device == "cuda"
        with torch.autocast(self.device, torch.bfloat16, enabled=cuda, cache_enabled=False):
            with torch.no_grad(): y, _, outputs, donors = self.target.run(ids, self.want)
            lengths = spec.own_part(self.target, y, ids, first, lengths)
            found = [d.loss(self.target, y, outputs, donors, ids, first, lengths, p) for d, p in zip(self.drafters, places)]
        for rule, (loss, _) in zip(self.rules, found): rule.step(torch.autograd.grad(loss, rule.params), self.rate)
        self.sums += torch.stack([x.detach().float() for pair in found for x in pair] + [torch.ones((), device=self.device)])

    def buffers_of(self, shape):
        if shape not in self.buffers:
            b, t = shape
            n = min(self.anchors, t // 8)
            whole = lambda *s: torch.zeros(s, dtype=torch.long, device=self.device)
            self.buffers[shape] = whole(b, t), whole(b), whole(b), [torch.zeros(b, n * (1 if d.kind == "dflash" else 2), device=self.device) for d in self.drafters]
        return self.buffers[shape]

    def __call__(self, batch, share):
        """A step at this share of the rate"""
        ids, first, lengths, places = self.buffers_of(tuple(batch[0].shape))
        for to, x in zip((ids, first, lengths), batch): to.copy_(x, non_blocking=True)
        for p in places: p.uniform_()
        self.rate.fill_(share)
        if not self.record_it: return self.run(ids, first, lengths, places)
        shape = tuple(ids.shape)
        if shape not in self.recorded: self.record(shape)
        self.recorded[shape].replay()
        self.ahead.append(torch.cuda.Event())
        self.ahead[-1].record()
        if len(self.ahead) > 3: self.ahead.pop(0).synchronize()        # the schedule follows the clock: the processor may not run ahead

    def record(self, shape):
        """Records the step; the two steps before it, at rate 0, only make what is made once."""
        begin, share = time.time(), self.rate.item()
        self.rate.fill_(0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2): self.run(*self.buffers[shape])
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.recorded[shape] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.recorded[shape]): self.run(*self.buffers[shape])
        self.rate.fill_(share)
        print("recorded a step of %d rows of %d tokens, %.1f s" % (shape + (time.time() - begin,)), flush=True)

    def recent(self):
        """Mean losses and gains since the last call"""
        s = self.sums.tolist()
        self.sums.zero_()
        return ", ".join("%s loss %.4f accepted %.2f" % (d.kind, s[2 * i] / max(1, s[-1]), 1 + s[2 * i + 1] / max(1, s[-1])) for i, d in enumerate(self.drafters))


class Rule:
    """Muon for matrices and Adam for the rest, as optim.Optimizer, with nothing that depends on the processor"""

    def __init__(self, net, rate, momentum=0.95, decay=0.02, betas=(0.9, 0.98)):
        named = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
        self.params = [p for _, p in named]
        is_matrix = [p.ndim >= 2 and "embed_tokens" not in n for n, p in named]
        self.matrices, self.others = ([i for i, x in enumerate(is_matrix) if x == want] for want in (True, False))
        self.shapes = {}
        for i in self.matrices: self.shapes.setdefault(self.params[i].shape, []).append(i)
        self.lr, self.momentum, self.decay, self.betas = (0.02 * rate, 0.004 * rate), momentum, decay, betas
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(self.params[i]) for i in self.others]
        self.count = torch.zeros((), device=self.params[0].device)

    @torch.no_grad()
    def step(self, grads, share):
        grads = [g.float() for g in grads]
        norm = torch.stack([g.norm() for g in grads]).norm()
        scale = (1 / (norm + 1e-6)).clamp(max=1)
        grads = [g * scale for g in grads]
        lr = share * self.lr[0]
        for shape, at in self.shapes.items():
            ps, means, gs = [self.params[i] for i in at], [self.mean[i] for i in at], [grads[i] for i in at]
            torch._foreach_lerp_(means, gs, 1 - self.momentum)
            update = optim.orthogonal(torch.stack(torch._foreach_lerp(gs, means, self.momentum))).float() * (lr * max(1, shape[-2] / shape[-1]) ** 0.5)
            for p, u in zip(ps, update): p.mul_(1 - lr * self.decay).sub_(u)
        self.count += 1
        (b1, b2), lr = self.betas, share * self.lr[1]
        c1, c2 = 1 - b1 ** self.count, 1 - b2 ** self.count
        for i, v in zip(self.others, self.square):
            self.mean[i].lerp_(grads[i], 1 - b1)
            v.mul_(b2).add_(grads[i] * grads[i] * (1 - b2))
            self.params[i].sub_(lr * (self.mean[i] / c1) / ((v / c2).sqrt() + 1e-8))
