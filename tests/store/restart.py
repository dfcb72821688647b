"""Time to the first token of a long prompt after a restart, from the disk tier and cold, in turns:
restart.py PATH/TO/tandem MODEL [PAIRS [TOKENS,TOKENS... [FLAGS OF THE ENGINE...]]]"""
import json
import random
import statistics
import subprocess
import sys
import tempfile

TANDEM, MODEL = sys.argv[1:3]
PAIRS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
SIZES = [int(n) for n in (sys.argv[4] if len(sys.argv) > 4 else "8192,12000").split(",")]


def ask(ids, *flags):
    """Starts a daemon, sends one prompt, and returns its final line. The end of the input ends the daemon."""
    command = {"id": 1, "op": "generate", "ids": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "text": False, "stream": False}
    run = subprocess.run([TANDEM, "daemon", "-m", MODEL, "--ctx", str(max(SIZES) + 64), "--max-lanes", "1", *sys.argv[5:], *flags],
                         input=json.dumps(command) + "\n", capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def first_token_ms(end):
    return end["timings"]["queue_ms"] + end["timings"]["prefill_ms"]


rng = random.Random(1)
prompt = [2] + [rng.randrange(300, 4000) for _ in range(max(SIZES) - 1)]
with tempfile.TemporaryDirectory(dir=".") as tmp:
    for n in SIZES:
        flags = ("--cache-dir", f"{tmp}/{n}")
        first, cold, disk = ask(prompt[:n], *flags), [], []
        for _ in range(PAIRS):
            back, fresh = ask(prompt[:n], *flags), ask(prompt[:n])
            assert back["ids"] == fresh["ids"] == first["ids"] and fresh["usage"]["cached_tokens"] == 0
            cold.append(first_token_ms(fresh))
            disk.append(first_token_ms(back))
        print(f"{n} tokens, {PAIRS} pairs: cold {statistics.median(cold):.0f} ms, from disk {statistics.median(disk):.0f} ms "
              f"({back['usage']['cached_tokens']} tokens reused), {statistics.median(d / c for d, c in zip(disk, cold)):.4f} of it, "
              f"storing: {first_token_ms(first):.0f} ms; the same text", flush=True)
