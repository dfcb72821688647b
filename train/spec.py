"""Speculation, judged in PyTorch. The text of a greedy target does not depend on the drafts, so one pass over prompt and answer gives the
context of every round, and the drafts of all places are made at once; `reference_loop` runs the rounds one after another and must agree."""
import collections

import torch
import torch.nn.functional as F

import mtp
import qwen_model


@torch.no_grad()
def own_part(target, y, ids, first, lengths):
    """The lengths up to the first token of the answer that the target itself would not have chosen"""
    own = F.linear(y, target.embed_tokens.weight.to(y.dtype)).argmax(-1)
    at = torch.arange(1, ids.shape[1], device=ids.device)[None]
    wrong = (own[:, :-1] != ids[:, 1:]) & (at >= first[:, None]) & (at < lengths[:, None])
    return torch.where(wrong, at, lengths[:, None]).amin(1)


@torch.no_grad()
def drafts(kind, drafter, target, ids, anchors, length):
    """Drafted tokens [A, K] after each anchor of one sequence [1, T]"""
    y, _, outputs, donors = target.run(ids, drafter.c.captures if kind == "dflash" else ())
    if kind == "dflash": return target.logits(drafter(target, outputs, ids, anchors[None])[0, :, 1:]).argmax(-1)
    if kind == "head": found = qwen_model.chain(drafter, target, ids, y, anchors[None], length, own=True)
    else: found = mtp.chain(drafter, target, ids, y, donors, anchors[None], length, own=True)
    return torch.stack([z.argmax(-1)[0] for z in found], -1)


def rounds_of(drafted, answer):
    """Tokens gained by each round, the answer's first token being the first anchor; drafted[i] are the drafts after answer[i]."""
    out, at = [], 0
    while at < len(answer) - 1:
        rest = answer[at + 1:]
        right = 0
        while right < min(len(drafted[at]), len(rest)) and drafted[at][right] == rest[right]: right += 1
        gained = min(right + 1, len(rest))      # the target's own token comes on top, unless the answer ends before
        out.append(gained)
        at += gained
    return out


def accept(kind, drafter, target, item, length=3):
    """Rounds of one held-out item that has its greedy answer"""
    device = target.norm.weight.device
    prompt, answer = item["prompt"], item["answer"]
    ids = torch.tensor([prompt + answer], device=device)
    found = []
    for at in range(0, len(answer), 64):
        anchors = torch.arange(len(prompt) + at, len(prompt) + min(len(answer), at + 64), device=device)
        found += drafts(kind, drafter, target, ids, anchors, length).tolist()
    return rounds_of(found, answer)


@torch.no_grad()
def reference_loop(kind, drafter, target, prompt, stops, max_new, length=3):
    """draft, verify, accept, cut; nothing is cached. Returns the answer and the tokens gained by each round."""
    device = target.norm.weight.device
    picks = lambda ids: target.logits(target.run(torch.tensor([ids], device=device))[0])[0].argmax(-1).tolist()
    seq = prompt + picks(prompt)[-1:]
    out = []
    while seq[-1] not in stops and len(seq) - len(prompt) < max_new:
        ids = torch.tensor([seq], device=device)
        d = drafts(kind, drafter, target, ids, torch.tensor([len(seq) - 1], device=device), length)[0].tolist()
        t = picks(seq + d)[len(seq) - 1:]
        a = next((j for j in range(len(d)) if d[j] != t[j]), len(d))
        new = d[:a] + [t[a]]
        end = next((j for j, x in enumerate(new) if x in stops), len(new) - 1)
        new = new[:min(end + 1, max_new - (len(seq) - len(prompt)))]
        seq += new
        out.append(len(new))
    return seq[len(prompt):], out


def judge(kind, drafter, target, tok, items, stops, log, check=1):
    """Acceptance of every held-out item; the loop is run for `check` items of each class. Returns the records of all items."""
    records, seen = [], collections.Counter()
    for item in items:
        if len(item["answer"]) < 2: continue
        rounds = accept(kind, drafter, target, item)
        if seen[item["cls"]] < check and item["answer"][-1] in stops:
            answer, loop = reference_loop(kind, drafter, target, item["prompt"], stops, 256)
            if answer != item["answer"] or loop != rounds: log("the loop differs on %s: %s %s, text %s" % (item["cls"], loop, rounds, answer == item["answer"]))
        seen[item["cls"]] += 1
        records.append({"class": item["cls"], "prompt": item["prompt"], "answer": item["answer"], "rounds": rounds})
    by_class = collections.defaultdict(list)
    for r in records: by_class[r["class"]].append(r)
    for c in sorted(by_class):
        rs = by_class[c]
        tokens, rounds = sum(sum(r["rounds"]) for r in rs), sum(len(r["rounds"]) for r in rs)
        log("%-12s acceptance length %5.2f  (%d prompts, %d tokens, %d rounds)" % (c, tokens / rounds, len(rs), tokens, rounds))
    return records
