"""Time to the first token of a long prompt after a restart, from the disk tier and without it:
restart.py PATH/TO/tandem MODEL [TOKENS [FLAGS OF THE ENGINE...]]"""
import json
import random
import subprocess
import sys
import tempfile

TANDEM, MODEL = sys.argv[1:3]
TOKENS = int(sys.argv[3]) if len(sys.argv) > 3 else 12000


def ask(ids, *flags):
    """Starts a daemon, sends one prompt, and returns its final line. The end of the input ends the daemon."""
    command = {"id": 1, "op": "generate", "ids": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "text": False, "stream": False}
    run = subprocess.run([TANDEM, "daemon", "-m", MODEL, "--ctx", str(TOKENS + 64), "--max-lanes", "1", *sys.argv[4:], *flags],
                         input=json.dumps(command) + "\n", capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


rng = random.Random(1)
prompt = [2] + [rng.randrange(300, 4000) for _ in range(TOKENS - 1)]
first = prompt[:8192]
with tempfile.TemporaryDirectory(dir=".") as tmp:
    for name, ids in (("8,192 tokens", first), (f"{TOKENS} tokens", prompt)):
        flags = ("--cache-dir", f"{tmp}/{len(ids)}")
        cold = ask(ids, *flags)
        disk = ask(ids, *flags)
        times = [x["timings"]["queue_ms"] + x["timings"]["prefill_ms"] for x in (cold, disk)]
        print(f"{name}: cold {times[0]:.0f} ms, from disk {times[1]:.0f} ms ({disk['usage']['cached_tokens']} tokens reused), "
              f"{times[1] / times[0]:.3f} of it, the same text: {cold['ids'] == disk['ids']}", flush=True)
