#!/usr/bin/env python3
"""Tools that nano has never seen, through tandem's server: `score_tools.py --tandem BIN [-m MODEL]`. 500 held-out conversations whose tool names
and requests do not occur in training; each is sent as a client sends it, and holds when every call has the right name and arguments and every
answer is the expected one."""
import argparse
import collections
import concurrent.futures
import json
import re
import subprocess
import threading
import urllib.request

from gen import held_out_set


def schema(parameters):
    """JSON schema of parameters as chat.prop takes them"""
    properties = {}
    for name, about, kind, _, more in parameters:
        p = dict(schema(more) if kind == "object" else {"type": kind})
        if kind == "array": p["items"] = {"type": more}
        elif kind != "object" and more: p["enum"] = more
        if about: p["description"] = about
        properties[name] = p
    out = {"type": "object", "properties": properties}
    required = [p[0] for p in parameters if p[3]]
    return dict(out, required=required) if required else out


def tool_of(t):
    name, about, parameters = t
    return {"type": "function", "function": dict({"name": name, "parameters": schema(parameters)}, **({"description": about} if about else {}))}


def called(turn):
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": "call_%d" % i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, (n, a) in enumerate(turn.calls)]}


def results(turn):
    return [{"role": "tool", "tool_call_id": "call_%d" % i, "content": v} for i, (_, v) in enumerate(turn.responses)]


def steps(s):
    """(request, expected calls, expected text) of the last turn's steps"""
    messages = [{"role": "system", "content": s.system}] if s.system else []
    for t in s.turns[:-1]:
        messages.append({"role": "user", "content": t.user})
        if t.calls: messages += [called(t)] + results(t)
        messages.append({"role": "assistant", "content": t.answer})
    t = s.turns[-1]
    messages.append({"role": "user", "content": t.user})
    request = {"temperature": 0, "max_tokens": 400, "tools": [tool_of(x) for x in s.tools], "chat_template_kwargs": {"enable_thinking": s.thinking}}
    if t.calls: yield dict(request, messages=messages), t.calls, None
    if t.calls and t.responses: yield dict(request, messages=messages + [called(t)] + results(t)), [], t.answer
    if not t.calls: yield dict(request, messages=messages), [], t.answer


def ask(url, request):
    r = urllib.request.Request(url + "/v1/chat/completions", json.dumps(request).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=120) as f: m = json.load(f)["choices"][0]["message"]
    return [(c["function"]["name"], json.loads(c["function"]["arguments"] or "{}")) for c in m.get("tool_calls") or []], m.get("content")


def wrong_step(url, s):
    """The first step that is not as expected, or nothing"""
    for request, calls, text in steps(s):
        got = ask(url, request)
        if got[0] != calls or (text is not None and got[1] != text): return request, (calls, text), got


def served(tandem, model):
    """(process, url)"""
    p = subprocess.Popen([tandem, "serve", "--port", "0"] + (["-m", model] if model else []), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in p.stdout:
        found = re.search(r"served at (http://\S+)", line)
        if found:
            threading.Thread(target=p.stdout.read, daemon=True).start()       # a full pipe would stop the server
            return p, found[1]
    raise SystemExit("the server did not start")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tandem", required=True)
    p.add_argument("-m", help="a model file; without it the one inside the program")
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--cases", type=int, default=500)
    p.add_argument("--least", type=float, default=0, help="percent under which the exit status is 1")
    p.add_argument("--show", type=int, default=0, help="wrong answers to print")
    o = p.parse_args()
    cases = held_out_set(o.seed, o.cases, ["tools"])
    server, url = served(o.tandem, o.m)
    right, asked, shown = collections.Counter(), collections.Counter(), 0
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for s, bad in zip(cases, pool.map(lambda s: wrong_step(url, s), cases)):
                for c in ("all", s.kind, "%d tools" % len(s.tools) if len(s.tools) > 1 else "1 tool"):
                    asked[c] += 1
                    right[c] += not bad
                if bad and shown < o.show:
                    shown += 1
                    request, expected, got = bad
                    print("%s\n%s\n%s\nexpected %s\ngot      %s" % (s.kind, json.dumps([t["function"] for t in request["tools"]])[:1500], json.dumps(request["messages"][-3:]), expected, got))
    finally:
        server.terminate()
        server.wait()
    for c in sorted(asked): print("%-10s %4d of %4d  %5.1f%%" % (c, right[c], asked[c], 100 * right[c] / asked[c]))
    raise SystemExit(100 * right["all"] < o.least * asked["all"])


if __name__ == "__main__":
    main()
