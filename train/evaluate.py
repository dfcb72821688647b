"""Greedy answers to the held-out questions, and how many are exact."""
import collections

import torch



def answers(target, tok, prompts, max_new=256, batch=1024, dtype=None):
    """The greedy answers, in the order of the prompts."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out = [None] * len(prompts)
    while order:
        size = max(1, min(batch, (1 << 19) // len(prompts[order[min(len(order), batch) - 1]])))      # long prompts in smaller groups
        group, order = order[:size], order[size:]
        for i, a in zip(group, target.generate([prompts[i] for i in group], tok.stops, max_new, dtype)): out[i] = a
    return out


@torch.no_grad()
def checked_answers(target, tok, items, max_new=256):
    """The same answers on a processor, where generating is slow: one pass over the expected answer finds the first token that the target
    would not choose, and only the rest is generated."""
    stops, device = tok.stops, target.norm.weight.device
    out = []
    for item in items:
        prompt, a = item["prompt"], []
        if item["exact"]:
            ids = torch.tensor([prompt + item["expected"]], device=device)
            y = target.run(ids)[0]
            picks = target.logits(y[0, len(prompt) - 1:-1]).argmax(-1).tolist()
            same = next((i for i, x in enumerate(item["expected"]) if picks[i] != x), len(picks))
            a = picks[:same + 1]
        if not a or a[-1] not in stops: a = a + target.generate([prompt + a], stops, max_new - len(a))[0]
        out.append(a)
    return out


def score(target, tok, items, max_new=256, show=0, got=None):
    """{class: (right, asked)}; prints some wrong answers. got: the answers, if they are there already."""
    got = got or answers(target, tok, [i["prompt"] for i in items], max_new)
    right, asked, shown = collections.Counter(), collections.Counter(), collections.Counter()
    for item, a in zip(items, got):
        item["answer"] = a
        if not item["exact"]: continue
        asked[item["cls"]] += 1
        right[item["cls"]] += a == item["expected"]
        if a != item["expected"] and shown[item["cls"]] < show:
            shown[item["cls"]] += 1
            print("WRONG %s\n%s\nexpected %r\ngot      %r" % (item["cls"], tok.decode(item["prompt"])[-160:], tok.decode(item["expected"])[:200], tok.decode(a)[:200]))
    return {c: (right[c], asked[c]) for c in sorted(asked)}


def table(scores):
    return "\n".join("%-12s %4d of %4d  %5.1f%%" % (c, r, n, 100 * r / n) for c, (r, n) in scores.items())
