#!/usr/bin/env python3
"""Trains the target from scratch and exports it: `train_target.py --out DIR --seconds 360`."""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as F

import model as M
from data import Rows, held_out_items
from evaluate import score, table
from optim import Optimizer, half
from tokenizer import Tokenizer


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--seconds", type=float, default=330, help="of training; the schedule follows whichever of steps and seconds is further")
    p.add_argument("--steps", type=int, default=6000)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--shards", type=int, default=320)
    p.add_argument("--shard-tokens", type=int, default=1 << 20)
    p.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    p.add_argument("--per-class", type=int, default=100, help="held-out questions")
    p.add_argument("--boost", default="{}", help="JSON: {class: factor of its weight}")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--eager", action="store_true", help="no compiler")
    p.add_argument("--balance", type=float, default=0.01)
    p.add_argument("--resume", help="an exported target to go on from")
    p.add_argument("--rate", type=float, default=0.5, help="with --resume: share of the rate of a run from scratch, falling from the start")
    return p.parse_args()


class Log:
    def __init__(self, path):
        self.file, self.start = open(path, "w"), time.time()

    def __call__(self, text):
        line = "%6.1f %s" % (time.time() - self.start, text)
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def loss_of(target, y, ids, weights):
    z = target.logits(y)
    return (F.cross_entropy(z.flatten(0, 1), ids[:, 1:].flatten(), reduction="none") * weights.flatten()).sum() / weights.sum()


def quality(target, tok, items, device, log, show=0):
    """The score of the weights as they are exported: rounded to bf16, computed in f32."""
    plain = type(target)(target.c).to(device)
    plain.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in target.state_dict().items()})
    begin = time.time()
    scores = score(plain.eval(), tok, items, show=show)
    log("held out, %.1f s:\n%s" % (time.time() - begin, table(scores)))
    return scores


def learn(target, rows, o, device, log, opt, save=None):
    """Trains until o.seconds or o.steps are over; `save` is called now and then. Returns the steps and the losses."""
    masks = target.masks_for(device, log, o.eager)
    loss_fn = loss_of
    if not o.eager:
        torch._dynamo.config.recompile_limit = 64
        target.compile()
        loss_fn = torch.compile(loss_of, dynamic=False)
    positions = torch.arange(o.length, device=device)[None]
    begin, step, losses, next_check, history = time.time(), 0, [], 0.1, []
    for ids, weights, documents in rows:
        progress = max(step / o.steps, (time.time() - begin) / o.seconds)
        if progress >= 1: break
        ids, weights, documents = (x.to(device, non_blocking=True) for x in (ids, weights, documents))
        m = masks(documents)
        with half(device):
            y, balance, _, _ = target(ids[:, :-1], positions, m)
            loss = loss_fn(target, y, ids, weights)
            total = loss + o.balance * balance
        total.backward()
        opt.step(step, progress)
        losses.append(loss.detach())
        step += 1
        if step == 1: begin = time.time()       # the compiler's time does not count
        if step % 100 == 0 or step in (1, 10, 30):
            recent = torch.stack(losses[-100:]).mean().item()
            history.append((step, recent))
            log("step %d progress %.2f loss %.4f balance %.3f %.2fM tokens/s, %d epochs, waited %.1f s for text" %
                (step, progress, recent, balance.item(), step * o.batch * o.length / (time.time() - begin) / 1e6, rows.epochs, rows.waited))
        if save and progress > next_check:
            next_check += 0.05
            save()
            log("checkpoint at step %d" % step)
    rows.pool.terminate()
    target.plain()
    log("trained for %d steps, %.1fM tokens" % (step, step * o.batch * o.length / 1e6))
    return step, history


def rates(share):
    return tuple(share * x for x in (0.02, 0.004, 0.004))


def going_on(rate):
    """The optimizer's options of a run that goes on: a share of the rate of a run from scratch, falling from the start"""
    return dict(lr=rates(rate), warmup=30, falls=1.0)


def main():
    o = options()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "target.log"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    tok = Tokenizer()
    config = M.TINY if o.tiny else M.Config()
    rows = Rows(tok, o.seed, o.shards, o.shard_tokens, o.batch, o.length, o.processes, json.loads(o.boost))     # forks before the GPU is touched
    items = held_out_items(tok, o.seed, o.per_class)
    torch.set_float32_matmul_precision("high")
    target = M.load(o.resume, device).train() if o.resume else M.Target(config).to(device)
    log("%d parameters, %d held-out questions, %s" % (M.parameters(target), len(items), vars(o)))
    opt = Optimizer([target], **(going_on(o.rate) if o.resume else {}))
    step, history = learn(target, rows, o, device, log, opt, lambda: M.export(target, o.out))
    M.export(target, o.out)
    torch.set_float32_matmul_precision("highest")
    scores = quality(target, tok, items, device, log, show=2)
    with open(os.path.join(o.out, "target-scores.json"), "w") as f:
        json.dump({"steps": step, "tokens": step * o.batch * o.length, "loss": history, "scores": scores}, f, indent=1)


if __name__ == "__main__":
    main()
