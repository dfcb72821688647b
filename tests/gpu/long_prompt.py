#!/usr/bin/env python3
"""A long prompt next to streams: its time to the first token, and the rate of the streams before and meanwhile.

    tests/gpu/long_prompt.py URL [TOKENS [STREAMS [TURNS]]]

The server is idle otherwise. STREAMS requests (default 16) without draft tokens stream all the time. The rates are those of the server's
counters of rows."""
import json
import sys
import threading
import time
import urllib.request

url = sys.argv[1].rstrip("/")
n_tokens, n_streams, n_turns = ([int(x) for x in sys.argv[2:]] + [16384, 16, 3][len(sys.argv) - 2:])[:3]
words = "river stone green walk house light seven blue quiet train apple story under north bread winter".split()


def prompt(seed, n):
    """Words in an order that no other prompt begins with."""
    return f"{seed} " + " ".join(words[(seed * 31 + i * i + i // 7) % len(words)] for i in range(n))


def post(body):
    body = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "speculative": "off", **body}
    r = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(r)


def ask(body):
    """Returns the seconds to the first text, and the prompt's length in tokens."""
    start, first, usage = time.monotonic(), None, {}
    with post(body) as r:
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event.get("choices") and event["choices"][0].get("text"):
                first = time.monotonic() - start
            usage = event.get("usage") or usage
    return first, usage.get("prompt_tokens", 0)


def produced():
    """Returns the number of rows that were not prompts' so far: without draft tokens, each is a token of a response."""
    rows = {}
    with urllib.request.urlopen(f"{url}/metrics") as r:
        for line in r.read().decode().splitlines():
            name = line.split("{")[0]
            if name in ("tandem_step_rows_total", "tandem_step_prompt_rows_total"):
                rows[name] = float(line.split()[-1])
    return rows["tandem_step_rows_total"] - rows["tandem_step_prompt_rows_total"]


def stream(seed, done):
    with post({"prompt": prompt(seed, 300), "max_tokens": 1 << 16}) as r:
        while not done.is_set() and r.readline():
            pass


def rate_during(work):
    n, start = produced(), time.monotonic()
    out = work()
    return out, (produced() - n) / (time.monotonic() - start)


few, many = (ask({"prompt": prompt(i, n), "max_tokens": 1})[1] for i, n in ((1, 100), (2, 1100)))
length = round(n_tokens / ((many - few) / 1000))
alone = [ask({"prompt": prompt(100 + i, length), "max_tokens": 1}) for i in range(n_turns)]
print(f"alone: {alone[0][1]} tokens, first token after {sorted(a[0] for a in alone)[n_turns // 2] * 1e3:.0f} ms")
done = threading.Event()
threads = [threading.Thread(target=stream, args=(1000 + i, done), daemon=True) for i in range(n_streams)]
for t in threads:
    t.start()
time.sleep(1)
for i in range(n_turns):
    _, before = rate_during(lambda: time.sleep(0.7))
    (first, n), during = rate_during(lambda: ask({"prompt": prompt(200 + i, length), "max_tokens": 1}))
    print(f"next to {n_streams} streams: {n} tokens, first token after {first * 1e3:.0f} ms; streams {before:.0f} tok/s before, "
          f"{during:.0f} meanwhile ({during / before:.2f})")
done.set()
