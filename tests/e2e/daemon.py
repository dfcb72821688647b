"""The daemon over its pipes: daemon.py PATH/TO/tandem [REQUESTS [LINES]]. Prints one line for each failed check."""
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from checks import check, run_tests

TANDEM = os.path.abspath(sys.argv[1])
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 150
LINES = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
FINAL = ("done", "result", "error")


class Daemon:
    """A running daemon. A thread reads its events, so that neither side waits for the other."""

    def __init__(self, *flags, ready=True, stderr=subprocess.DEVNULL, env=None):
        self.p = subprocess.Popen([TANDEM, "daemon", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env)
        self.events, self.bad, self.more = [], [], threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        if ready:
            first = json.loads(self.p.stdout.readline())
            check(first["type"] == "ready" and first["protocol"] == 1, f"first line: {first}")
        self.thread.start()

    def read(self):
        for line in self.p.stdout:
            try:
                event = json.loads(line)
                assert isinstance(event, dict) and "type" in event and line.endswith(b"\n")
            except (ValueError, AssertionError):
                event = None
            with self.more:
                self.events.append(event) if event else self.bad.append(line)
                self.more.notify_all()
        with self.more:
            self.events.append(None)
            self.more.notify_all()

    def send(self, **command):
        self.raw(json.dumps(command).encode() + b"\n")

    def raw(self, data):
        self.p.stdin.write(data)
        self.p.stdin.flush()

    def wait(self, done, seconds=300):
        with self.more:
            ok = self.more.wait_for(lambda: done(self.events) or (self.events and self.events[-1] is None), seconds)
            check(ok, "timeout")
            return [e for e in self.events if e]

    def end(self, id):
        """Waits for the final line of an operation and returns it."""
        events = self.wait(lambda all: any(e and e.get("id") == id and e["type"] in FINAL for e in all))
        return next((e for e in events if e.get("id") == id and e["type"] in FINAL), {})

    def ask(self, id, **command):
        self.send(id=id, **command)
        return self.end(id)

    def close(self):
        self.p.stdin.close()
        code = self.p.wait(300)
        self.thread.join(60)
        check(not self.bad, f"lines on stdout that are not the protocol: {self.bad[:3]}")
        return code


def text_of(events, id):
    return "".join(e["text"] for e in events if e.get("id") == id and e["type"] == "token")


def ids_of(events, id):
    return [x for e in events if e.get("id") == id and e["type"] == "token" for x in e["ids"]]


PROMPTS = [f"What is {a} plus {b}?" for a, b in ((12, 30), (7, 9), (45, 18), (99, 3), (27, 58), (60, 5))] + ["Tell me a story."]
SPECULATION = ("off", "auto", "dflash", "tree", "mtp", "ngram")


def references(d):
    """Returns the texts of the prompts, asked one after the other without speculation."""
    out = {}
    for seed in range(2):
        for n, prompt in enumerate(PROMPTS):
            e = d.ask(f"ref{seed}-{n}", op="generate", prompt=prompt, max_tokens=48, temperature=0.7, seed=seed,
                      speculative="off", stream=False)
            check(e.get("type") == "done" and len(e["ids"]) == e["usage"]["completion_tokens"], f"reference: {e}")
            out[seed, n] = e.get("ids")
    return out


def many_requests():
    """Requests among cancels: each id has one final line, and each text is the reference or a beginning of it."""
    rng = random.Random(REQUESTS)
    d = Daemon("--max-lanes", "8", "--queue", "4096", "--ctx", "256")
    want, asked = references(d), {}
    for i in range(REQUESTS):
        seed, n = rng.randrange(2), rng.randrange(len(PROMPTS))
        asked[i] = want[seed, n]
        d.send(id=i, op="generate", prompt=PROMPTS[n], max_tokens=48, temperature=0.7, seed=seed,
               speculative=rng.choice(SPECULATION), meta={"n": i})
        if rng.random() < 0.4:
            d.send(id=f"c{i}", op="cancel", target=rng.randrange(i + 1))
        if rng.random() < 0.3:
            d.end(rng.randrange(max(0, i - 4), i + 1))
    d.send(id="all", op="cancel", target="*")
    d.send(id="end", op="quit")
    code = d.close()
    check(code == 0, f"exit status {code}")
    events, ends, cancelled = d.events[:-1], {}, 0
    for at, e in enumerate(events):
        check(e["id"] not in ends, f"an event after the final one: {e}")
        if e["type"] in FINAL:
            ends[e["id"]] = e
    for i, ids in asked.items():
        e, got = ends.pop(i, {}), ids_of(events, i)
        check(e.get("type") == "done" and e["reason"] in ("stop", "length", "cancelled"), f"the end of {i}: {e}")
        check(e.get("meta") == {"n": i}, f"meta of {i}: {e}")
        check(e["usage"]["completion_tokens"] == len(got), f"{i}: {len(got)} tokens, usage {e['usage']}")
        cancelled += e["reason"] == "cancelled"
        check(got == ids[:len(got)] and (e["reason"] == "cancelled" or got == ids), f"tokens of {i}: {got} not {ids}")
    check(cancelled > 0, "no request was cancelled")
    check(any(e["spec"]["accepted"] for e in events if e["type"] == "done"), "no draft token was accepted")
    for id, e in ends.items():
        check(e["type"] == ("done" if str(id).startswith("ref") else "result"), f"the end of {id}: {e}")
    check(events[-1] == {"id": "end", "type": "result"}, f"the last line: {events[-1]}")


def stored_texts():
    """Texts that are parked, stored, saved and brought back among others, with cancels, have the tokens that they have alone."""
    rng, n = random.Random(7), max(40, REQUESTS // 5)
    options = {"op": "generate", "max_tokens": 24, "temperature": 0.8, "ignore_eos": True, "text": False, "stream": False}
    texts = [[2] + [300 + (k * k * 7 + (i // 4 if k < 80 else i) * 31) % 1500 for k in range(160 + 37 * (i % 4))] for i in range(12)]
    d = Daemon("--ctx", "512")
    alone = [d.ask(i, ids=text, seed=i, speculative="off", **options)["ids"] for i, text in enumerate(texts)]
    turns = [d.ask(f"t{i}", ids=text + ids, seed=i, speculative="off", **options)["ids"] for i, (text, ids) in enumerate(zip(texts, alone))]
    check(d.close() == 0, "exit status")
    with tempfile.TemporaryDirectory() as tmp:
        for start in range(2):  # the second daemon finds what the first one stored
            d = Daemon("--ctx", "512", "--max-lanes", "4", "--queue", "4096", "--kv-bytes", "8M", "--park-bytes", "4M", "--cache-dir", f"{tmp}/c",
                       "--cache-bytes", "12M", "--session-dir", f"{tmp}/s")
            asked, cancelled = {}, set()
            for i in range(n):
                k, second = rng.randrange(len(texts)), rng.random() < 0.5
                asked[i] = turns[k] if second else alone[k]
                d.send(id=i, ids=texts[k] + alone[k] if second else texts[k], seed=k, speculative=rng.choice(SPECULATION), save=f"s{k}", **options)
                if rng.random() < 0.15:
                    cancelled.add(i)
                    d.send(id=f"c{i}", op="cancel", target=i)
                if rng.random() < 0.3:
                    op = rng.choice(("snapshot_save", "snapshot_load", "snapshot_drop"))
                    d.send(id=f"s{i}", op=op, **{"session" if op == "snapshot_save" else "name": f"s{k}"})
                if i >= 8:
                    d.end(i - rng.randrange(9))
            cached = 0
            for i, ids in asked.items():
                e = d.end(i)
                got = e.get("ids", [])  # one that is cancelled before it runs has none
                check(e.get("type") == "done" and got == (ids[:len(got)] if i in cancelled else ids), f"request {i} of start {start}: {e}")
                cached += e.get("usage", {}).get("cached_tokens", 0)
            check(cached > 0, "nothing was reused")
            check(d.close() == 0, "exit status")


def same_together():
    """32 requests at once have the tokens that they have alone."""
    d = Daemon("--ctx", "256")
    alone = {}
    for i in range(32):
        alone[i] = d.ask(f"a{i}", op="generate", prompt=PROMPTS[i % 7], max_tokens=24, temperature=1, seed=i, stream=False)
    for i in range(32):
        d.send(id=i, op="generate", prompt=PROMPTS[i % 7], max_tokens=24, temperature=1, seed=i)
    for i in range(32):
        d.end(i)
    events = [e for e in d.events if e]
    for i in range(32):
        check(ids_of(events, i) == alone[i]["ids"] and text_of(events, i) == alone[i]["text"], f"request {i} among others")
    check(d.close() == 0, "exit status")


def pure_output():
    """At every log level, stdout has the protocol only."""
    for level in ("error", "warn", "info", "debug"):
        for more in ((), ("--log-json",)):
            d = Daemon("--log-level", level, "--ctx", "256", *more)
            d.send(id=1, op="generate", prompt="Hi", max_tokens=4)
            d.raw(b"nonsense\n")
            d.send(id=2, op="park")
            d.send(id=3, op="unpark")
            check(d.end(1).get("type") == "done" and d.end(3).get("type") == "result", f"--log-level {level}")
            check(d.close() == 0, f"exit status with --log-level {level}")


def operations():
    d = Daemon("--ctx", "256", "--max-lanes", "2", "--queue", "2")
    e = d.ask("t", op="tokenize", text="hi there")
    check(d.ask("u", op="detokenize", ids=e.get("ids"))["text"] == "hi there", "detokenize(tokenize)")
    check(d.ask("p", op="ping") == {"id": "p", "type": "result"}, "ping")
    e = d.ask("s", op="generate", messages=[{"role": "user", "content": "What is 12 plus 30?"}], stream=False, stop=["answer"])
    check("answer" not in e["text"] and e["reason"] == "stop" and e["message"]["content"] == e["text"], f"stop: {e}")
    e = d.ask("r", op="generate", prompt="Once", raw=True, max_tokens=3, text=False, stream=False, logprobs=2)
    check(len(e["ids"]) == 3 and "text" not in e and len(e["logprobs"]) == 3, f"ids only: {e}")
    e = d.ask("j", op="generate", prompt="a thing", max_tokens=60, stream=False, response_format={"type": "json_object"})
    check(isinstance(json.loads(e["text"]), dict), f"a JSON object: {e}")
    for command, code, word in (
            ({"op": "generate"}, "bad_request", "one of"),
            ({"op": "generate", "prompt": "x", "ids": [1]}, "bad_request", "one of"),
            ({"op": "generate", "ids": ["x"]}, "bad_request", "'ids'"),
            ({"op": "generate", "ids": [99999999]}, "bad_request", "token id"),
            ({"op": "generate", "ids": [2] * 300}, "context", "256"),
            ({"op": "generate", "prompt": "x", "temperature": "hot"}, "bad_request", "temperature"),
            ({"op": "generate", "ids": [2], "tools": []}, "bad_request", "tools"),
            ({"op": "generate", "prompt": "x", "stream": 1}, "bad_request", "stream"),
            ({"op": "generate", "prompt": "x", "reasoning": "low"}, "bad_request", "'reasoning'"),
            ({"op": "generate", "prompt": "x", "reasoning": {"effort": "low", "depth": 3}}, "bad_request", "'reasoning'"),
            ({"op": "generate", "ids": [2], "reasoning": {"effort": "low"}}, "bad_request", "'reasoning'"),
            ({"op": "generate", "prompt": "x", "grammar": "root ::= x"}, "bad_request", "grammar"),
            ({"op": "cancel"}, "bad_request", "target"),
            ({"op": "park", "what": "half"}, "bad_request", "what"),
            ({"op": "quit", "mode": "later"}, "bad_request", "mode"),
            ({"op": "dance"}, "unknown_op", "dance"),
            ({"op": "ping", "extra": 1}, "bad_request", "extra")):
        e = d.ask(json.dumps(command)[:100], **command)
        check(e.get("code") == code and word in e["message"], f"{command}: {e}")
    check(d.ask("c0", op="cancel", target="nobody").get("cancelled") is False, "cancel of an unknown id")
    for i in range(6):
        d.send(id=f"b{i}", op="generate", ids=[2, 15, 9], max_tokens=200, ignore_eos=True, text=False)
    d.send(id="b0", op="ping")
    check(d.end("b5").get("code") == "busy" and d.end("b5")["retry_after_ms"] > 0, "busy")
    d.send(id="w", op="park", wait=False)
    check(d.end("w").get("code") == "busy", "park without waiting")
    d.send(id="x", op="cancel", target="*")
    check(d.end("x").get("cancelled") is True and d.end("x")["count"] >= 1, "cancel of all")
    events = [e for e in d.events if e]
    order = [e["id"] for e in events if e["type"] in FINAL]
    check(all(order.index(f"b{i}") < order.index("x") for i in range(4)), "the end of a cancelled request comes first")
    check(any(e.get("about") == "b0" and e["code"] == "duplicate_id" for e in events), "duplicate id")
    text = d.ask("k1", op="generate", prompt="What is 7 plus 9?", stream=False)["text"]
    check(d.ask("k2", op="park", what="draft").get("parked") == ["draft"], "park draft")
    check(d.ask("k3", op="generate", prompt="What is 7 plus 9?", stream=False)["text"] == text, "text without drafters")
    check(d.ask("k4", op="park")["freed_bytes"] > 0, "park")
    check(d.ask("k5", op="generate", prompt="x").get("code") == "parked", "a request while parked")
    check(d.ask("k6", op="stats")["parked"] == ["draft", "target"], "stats while parked")
    check(d.ask("k7", op="generate", prompt="What is 7 plus 9?", stream=False, unpark=True)["text"] == text, "unpark")
    check(d.ask("k8", op="unpark").get("parked") == [], "unpark of an open model")
    check(d.close() == 0, "exit status")


def changed_model():
    """A parked model whose file changed or is gone is not loaded; the daemon goes on, and loads the old file."""
    with tempfile.TemporaryDirectory() as tmp:
        path, ask = f"{tmp}/target.gguf", {"op": "generate", "prompt": "What is 7 plus 9?", "stream": False, "unpark": True}
        with open(os.path.join(os.path.dirname(__file__), "../../models/nano/target.gguf"), "rb") as f:
            good = f.read()

        def write(data):
            with open(path, "wb") as f:
                f.write(data)
        write(good)
        d = Daemon("-m", path, "--ctx", "256")
        text = d.ask("a", **ask)["text"]
        check(d.ask("b", op="park").get("parked") == ["draft", "target"], "park")
        write(good[:-1] + bytes([good[-1] ^ 1]))
        for i, command in enumerate(({"op": "unpark"}, ask)):
            e = d.ask(f"c{i}", **command)
            check(e.get("code") == "model_changed" and "changed while it was parked" in e["message"], f"a changed file: {e}")
        os.remove(path)
        for i, command in enumerate(({"op": "unpark"}, ask)):
            e = d.ask(f"d{i}", **command)
            check(e.get("code") == "load" and "target.gguf" in e["message"], f"a missing file: {e}")
        write(good)
        check(d.ask("e", **ask).get("text") == text, "the old file")
        check(d.close() == 0, "exit status")


def snapshots():
    """A snapshot continues in another daemon with the same tokens, and operations on one name keep their order."""
    story = "Once upon a time there was a little robot who lived in a small house near the sea. "
    with tempfile.TemporaryDirectory() as tmp:
        d = Daemon("--ctx", "512", "--session-dir", tmp)
        ids = d.ask("t", op="tokenize", text=story)["ids"]
        options = {"temperature": 0.9, "seed": 3, "ignore_eos": True, "stream": False, "op": "generate"}
        whole = d.ask("w", ids=[2] + ids, max_tokens=80, **options)["ids"]
        d.send(id="g", ids=[2] + ids, max_tokens=40, save="tale", **options)
        d.send(id="s", op="snapshot_save", session="tale", name="kept")
        saved = d.end("s")
        check(d.end("g")["ids"] == whole[:40], "the first part")
        check(saved.get("positions") == len(ids) + 41 and saved["draft"] == "stored" and saved["bytes"] > 0, f"save: {saved}")
        listed = d.ask("l", op="snapshot_list")["snapshots"]
        check([x["name"] for x in listed] == ["kept"] and listed[0]["where"] == "disk", f"list: {listed}")
        check(d.close() == 0, "exit status")
        d = Daemon("--ctx", "512", "--session-dir", tmp)
        d.send(id="r", ids=[2] + ids + whole[:40], max_tokens=40, **{"from": "kept"}, save="tale", **options)
        done = d.end("r")
        check(done.get("ids") == whole[40:] and done["usage"]["cached_tokens"] == saved["reusable"], f"from: {done}")
        check(done["spec"]["drafted"] > 0, f"no drafts after a restore: {done}")
        check(d.ask("o", op="snapshot_load", name="kept")["draft"] == "restored", "load")
        options |= {"presence_penalty": 1.5, "frequency_penalty": 1, "repetition_penalty": 1.1}
        whole = d.ask("pw", ids=[2] + ids, max_tokens=80, **options)["ids"]
        d.ask("p1", ids=[2] + ids, max_tokens=25, save="tale", **options)
        for part, (a, b) in enumerate(((25, 45), (45, 80))):
            check(d.ask(f"ps{part}", op="snapshot_save", session="tale").get("type") == "result", "save among penalties")
            done = d.ask(f"pr{part}", ids=[2] + ids + whole[:a], max_tokens=b - a, **{"from": "tale"}, save="tale", **options)
            check(done.get("ids") == whole[a:b], f"penalties do not go on at {a}: {done}")
        check(d.ask("pd", op="snapshot_drop", name="tale").get("dropped"), "drop")
        check(d.ask("m", ids=[2, 9, 9, 9], **{"from": "kept"}, **options)["code"] == "snapshot_mismatch", "another text")
        check(d.ask("d", op="snapshot_drop", name="kept") == {"id": "d", "type": "result", "dropped": True}, "drop")
        for id, command in (("d2", {"op": "snapshot_drop", "name": "kept"}), ("l2", {"op": "snapshot_load", "name": "kept"}),
                            ("s2", {"op": "snapshot_save", "session": "none"}), ("f2", {"ids": [2], "from": "kept", **options})):
            check(d.ask(id, **command).get("code") == "not_found", f"{command}")
        check(d.ask("n", op="snapshot_load", name="../x").get("code") == "bad_request", "a wrong name")
        check(d.close() == 0, "exit status")


def parks():
    """Lines before a park of the model end before it, and lines after it load the model or find it parked. Each sequence
    is one write, and each line of it has exactly one final line."""
    text = {"op": "generate", "ids": [2, 15, 9], "max_tokens": 30, "ignore_eos": True, "stream": False}
    park, stats, load = {"op": "park"}, {"op": "stats"}, {"op": "snapshot_load", "name": "s"}
    save, tokenize = {"op": "snapshot_save", "session": "s"}, {"op": "tokenize", "text": "a b " * (1 << 15)}
    sequences = (
        ("a snapshot before a park", [{**text, "save": "s"}, save, park], "done result result"),
        ("two requests with one name", [{**text, "save": "x"}, {**text, "save": "x"}, park], "done done result"),
        ("a request from a snapshot", [load, {**text, "from": "s"}, park], "result done result"),
        ("a request between parks", [park, {**text, "unpark": True}, park, text], "result done result parked"),
        ("lines after a park", [park, tokenize, load, text, stats], "result parked parked parked result"),
        ("a text before a park", [tokenize, park, stats, {**text, "unpark": True}, stats], "result result result done result"),
        ("figures while the model is closed", [park] + [stats] * 300, " ".join(["result"] * 301)))
    with tempfile.TemporaryDirectory() as tmp:
        for what, lines, want in sequences:
            d = Daemon("--ctx", "256", "--session-dir", tmp)
            d.raw(b"".join(json.dumps({"id": i, **line}).encode() + b"\n" for i, line in enumerate(lines)))
            events = d.wait(lambda all: len({e["id"] for e in all if e and e["type"] in FINAL}) == len(lines), 60)
            ends = [[e.get("code", e["type"]) for e in events if e["id"] == i and e["type"] in FINAL] for i in range(len(lines))]
            check(ends == [[x] for x in want.split()], f"{what}: {ends}")
            if all(ends):
                code = d.close()
                check(code == 0 and sum(e["type"] in FINAL for e in d.events[:-1]) == len(lines), f"{what}: exit status {code}")
            else:
                d.p.kill()


def mutated_lines():
    """Random and mutated lines leave the daemon serving, and each id has one end."""
    rng = random.Random(LINES)
    good = [b'{"id":%d,"op":"generate","prompt":"Hi","max_tokens":2}', b'{"id":%d,"op":"stats"}', b'{"id":%d,"op":"ping","meta":[{}]}',
            b'{"id":%d,"op":"cancel","target":"*"}', b'{"id":%d,"op":"tokenize","text":"a\\u00e9"}', b'{"id":%d,"op":"park","what":"draft"}',
            b'{"id":%d,"op":"generate","ids":[2,9],"max_tokens":1,"logprobs":1,"stop":["a"]}']
    d = Daemon("--ctx", "256", "--max-lanes", "4", "--queue", "4096")
    for i in range(LINES):
        line = bytearray(rng.choice(good) % i)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 8))):
            at = rng.randrange(len(line))
            how = rng.randrange(4)
            if how == 0:
                line[at] = rng.randrange(256)
            elif how == 1:
                del line[at]
            elif how == 2:
                line[at:at] = line[rng.randrange(len(line)):][:rng.randrange(20)]
            else:
                del line[at:]
            line = line or bytearray(b"x")
        if b"quit" not in line:
            d.raw(bytes(line) + b"\n")
    check(d.ask("alive", op="generate", prompt="Hi", max_tokens=2).get("reason") == "length", "serving after mutated lines")
    check(d.close() == 0, "exit status")
    open_ids = set()
    for e in d.events[:-1]:
        key = json.dumps(e["id"])
        if e["type"] in ("accepted", "token"):
            open_ids.add(key)
        elif e["type"] in FINAL:
            open_ids.discard(key)
    check(not open_ids, f"operations without an end: {open_ids}")


def long_lines():
    d = Daemon("--ctx", "256")
    d.raw(b'{"id":1,"op":"generate","prompt":"' + b"x" * (16 << 20) + b'"}\n')
    d.raw(b'{"id":2,"op":"ping"}\r\n\n   \n{"id":3,"op":"tokenize","text":"' + b"a b " * (1 << 20) + b'"}\n')
    check(d.end(None).get("code") == "too_large", "a line over 16 MiB")
    check(d.end(2).get("type") == "result" and d.end(3).get("type") in ("result", "error"), "lines after it")
    d.p.stdin.write(b'{"id":4,"op":"ping"}')
    check(d.close() == 0 and any(e and e["id"] == 4 for e in d.events), "a last line without LF")


def slow_reader():
    """A client that does not read delays neither the engine nor the other commands, and gets everything later."""
    p = subprocess.Popen([TANDEM, "daemon", "--ctx", "8192", "--set", "default_max_tokens=8000"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for i in range(4):
        p.stdin.write(json.dumps({"id": i, "op": "generate", "ids": [2, 15, 9], "max_tokens": 1200, "ignore_eos": True,
                                  "logprobs": 3}).encode() + b"\n")
    p.stdin.close()
    time.sleep(0.5)
    events = [json.loads(line) for line in p.stdout]
    counts = [len(ids_of(events, i)) for i in range(4)]
    check(p.wait(120) == 0 and counts == [1200] * 4, f"tokens of a slow reader: {counts}")


def ends():
    d = Daemon("--ctx", "256")
    d.send(id=1, op="generate", prompt="Tell me a story.", max_tokens=30)
    check(d.close() == 0 and d.end(1).get("type") == "done" and d.end(1)["reason"] != "cancelled", "the end of the input")
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        d = Daemon("--ctx", "8192")
        d.send(id=1, op="generate", ids=[2, 15, 9], max_tokens=8000, ignore_eos=True)
        d.wait(lambda all: any(e and e["type"] == "token" for e in all))
        d.p.send_signal(sig)
        check(d.p.wait(60) == 0 and d.end(1).get("reason") == "cancelled", f"{sig.name}: {d.p.returncode} {d.end(1)}")
    d = Daemon("--ctx", "8192", stderr=subprocess.PIPE)
    d.send(id=1, op="generate", ids=[2, 15, 9], max_tokens=8000, ignore_eos=True)
    d.send(id=2, op="quit", mode="now")
    check(d.p.wait(60) == 0 and d.end(1).get("reason") == "cancelled" and d.end(2).get("type") == "result", "quit now")
    p = subprocess.Popen([TANDEM, "daemon", "--ctx", "8192"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.readline()
    p.stdin.write(b'{"id":1,"op":"generate","ids":[2,15,9],"max_tokens":8000,"ignore_eos":true}\n')
    p.stdin.flush()
    p.stdout.close()
    said = p.stderr.read().decode()
    check(p.wait(60) == 1 and said.count("\n") == 1 and "standard output" in said, f"a closed stdout: {said!r}")
    run = subprocess.run([TANDEM, "daemon", "-m", "/nonexistent.gguf"], input=b"", capture_output=True)
    lines = [json.loads(x) for x in run.stdout.splitlines()]
    check(run.returncode == 1 and [x["code"] for x in lines] == ["load"], f"a failed load: {run}")
    run = subprocess.run([TANDEM, "daemon", "--max-lanes", "many"], input=b"", capture_output=True)
    check(run.returncode == 2 and run.stdout == b"", f"wrong flags: {run}")


def stuck():
    """A worker that waits for a disk that does not respond does not prevent the end after a signal."""
    if b"san.so" in subprocess.run(["ldd", TANDEM], capture_output=True).stdout:
        print("SKIP stuck: a sanitizer does not run with a preloaded library")
        return
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/hang.c", "w") as f:
            f.write("#include <unistd.h>\nint fsync(int fd) { (void)fd; for (;;) pause(); }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{tmp}/hang.so", f"{tmp}/hang.c"], check=True)
        d = Daemon("--ctx", "256", "--session-dir", f"{tmp}/s", stderr=subprocess.PIPE, env={**os.environ, "LD_PRELOAD": f"{tmp}/hang.so"})
        d.ask(1, op="generate", prompt="Hi", max_tokens=4, save="x")
        d.send(id=2, op="snapshot_save", session="x")
        check(d.ask(3, op="generate", prompt="Hi", max_tokens=4).get("type") == "done", "a request while a snapshot is written")
        d.p.send_signal(signal.SIGTERM)
        code, said = d.p.wait(60), d.p.stderr.read().decode()
        check(code == 0 and "an operation has not ended" in said, f"the end: {code} {said}")


class Lines:
    """A client of the older protocol, as pflash and spark write it."""

    def __init__(self, *flags):
        self.r, w = os.pipe()
        self.p = subprocess.Popen([TANDEM, "daemon", "--lines", "nano", "--daemon", f"--stream-fd={w}", "--max-ctx=512", *flags],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[w], text=True)
        os.close(w)
        self.banner = self.p.stdout.readline()

    def send(self, line):
        print(line, file=self.p.stdin, flush=True)

    def ids(self):
        out = []
        while len(data := os.read(self.r, 4)) == 4 and (x := struct.unpack("<i", data)[0]) != -1:
            out.append(x)
        return out

    def status(self):
        return self.p.stdout.readline().rstrip("\n")


def older_protocol():
    with tempfile.TemporaryDirectory() as tmp:
        prompt, counted, out = f"{tmp}/prompt.bin", f"{tmp}/in.bin", f"{tmp}/out.bin"
        with open(prompt, "wb") as f:
            f.write(struct.pack("<3i", 2, 15, 9))
        with open(counted, "wb") as f:
            f.write(struct.pack("<I3i", 3, 2, 15, 9))
        c = Lines()
        check(c.banner.startswith("[gemma4-daemon] ready ("), c.banner)
        c.send("park draft")
        check(c.ids() == [] and c.status() == "[park] draft released", "park draft")
        c.send(f"{prompt} 12")
        want = c.ids()
        status = dict(x.split("=", 1) for x in c.status().split()[1:])
        check(len(want) == 12 and status["gen"] == "12" and status["N"] == "3" and "stream_fd" in status, f"{want} {status}")
        c.send("unpark")
        check(c.ids() == [] and c.status() == "[unpark] draft restored", "unpark")
        c.send(f"{prompt} 12")
        check(c.ids() == want and c.status().startswith("ok "), "the same with drafters")
        c.send(f"generate {counted} 12 {out}")
        check(c.status().endswith(f"out={out}"), "generate")
        with open(out, "rb") as f:
            check(f.read() == struct.pack("<I12i", 12, *want), "the file of generate")
        for line, word in (("hello", "unknown_command"), (f"{prompt} x", "bad_args"), ("./none 3", "empty_prompt"),
                           ("compress a 500 b", "unsupported"), (f"{prompt} 0", "bad_args")):
            c.send(line)
            check(c.ids() == [] and c.status() == f"err {word}", line)
        c.send(f"{prompt} 40")
        long = [2, 15, 9] + c.ids()
        c.status()
        c.send("SNAPSHOT 3")
        check([c.status(), c.status()] == [f"[snap] slot=3 cur_pos={len(long)}", f"[snap] inline slot=3 cur_pos={len(long)}"], "SNAPSHOT")
        with open(f"{tmp}/long.bin", "wb") as f:
            f.write(struct.pack(f"<{len(long)}i", *long))
        c.send(f"{tmp}/long.bin 5 snap=32:7")
        more = c.ids()
        check(c.status() == "[snap] inline slot=7 cur_pos=32" and c.status().startswith("ok "), "snap=")
        c.send("LIST_SLOTS")
        check(c.status() == "[snap] slots=3,7", "LIST_SLOTS")
        c.send(f"RESTORE 3 {tmp}/long.bin 5")
        check(c.ids() == more and f"prefix_len={len(long)} (RESTORE slot=3)" in c.status(), "RESTORE")
        for line, word in ((f"RESTORE 3 {prompt} 5", "snapshot_mismatch"), (f"RESTORE 4 {prompt} 5", "empty_slot"), (f"RESTORE 99 {prompt} 5", "invalid_snapshot_slot")):
            c.send(line)
            check(c.ids() == [] and c.status() == f"err {word}", line)
        c.send("FREE_SNAPSHOT 3\nFREE_SNAPSHOT 3")
        check([c.status(), c.status()] == ["[snap] freed slot=3", "err empty_slot"], "FREE_SNAPSHOT")
        c.send("park")
        check(c.ids() == [] and [c.status(), c.status()] == ["[park] draft released", "[park] target released"], "park")
        c.send(f"{prompt} 12\nunpark\n{prompt} 3")
        check(c.ids() == [] and c.status() == "err target_parked", "a prompt while parked")
        check(c.ids() == [] and c.status() == "[unpark] target restored", "unpark of the target")
        check(c.ids() == want[:3] and c.status().startswith("ok "), "a prompt after it")
        c.p.stdin.close()
        check(c.p.wait(60) == 0 and c.p.stdout.read() == "", "the end of the input")
        c = Lines("--banner", "laguna", "--max-ctx=8192")
        check(c.banner.startswith("[laguna-daemon] ready"), c.banner)
        os.close(c.r)
        c.send(f"{prompt} 8000")
        check(c.status() == "err stream_closed", "a stream whose reader left")
        c.send(f"generate {counted} 3 {out}")
        check(c.status().startswith("ok "), "after it")
        c.send(f"generate {counted} 8000 {out}")
        c.p.stdin.close()
        check(c.p.wait(60) == 0, "the end of the input in a generation")


run_tests("daemon", (operations, snapshots, parks, changed_model, pure_output, many_requests, stored_texts, same_together, mutated_lines, long_lines,
                     slow_reader, ends, stuck, older_protocol))
