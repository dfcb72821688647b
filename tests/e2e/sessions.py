"""Saved sessions over HTTP and in chats: sessions.py PATH/TO/tandem [KILLS]. Prints one line for each failed check."""
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from checks import check, run_tests

TANDEM = os.path.abspath(sys.argv[1])
KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 12


class Server:
    def __init__(self, *flags):
        self.p = subprocess.Popen([TANDEM, "serve", "--port", "0", "--ctx", "2048", "--threads", "1", *flags], stderr=subprocess.PIPE,
                                  text=True)
        for line in self.p.stderr:
            if found := re.search(r"served at (http://[^\s]+)", line):
                self.url = found[1]
                break
        threading.Thread(target=lambda: [None for _ in self.p.stderr], daemon=True).start()

    def call(self, method, path, body=None, key=None):
        request = urllib.request.Request(self.url + path, method=method, data=json.dumps(body).encode() if body is not None else None)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def ask(self, prompt, key=None, **more):
        status, reply = self.call("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 40, "temperature": 0.8, "seed": 5, "ignore_eos": True,
                                                              **more}, key)
        check(status == 200, f"a completion: {status} {reply}")
        return reply

    def stop(self):
        self.p.terminate()
        check(self.p.wait(60) == 0, "exit status of the server")


STORY = "Once upon a time there was a little robot who lived in a small house near the sea. Every morning it looked out of the window. "


def resume():
    """A conversation goes on after a restart with the same text, cached tokens and drafts."""
    s = Server("--session-dir", f"{tmp}/a")
    first = s.ask(STORY, session="story")["choices"][0]["text"]
    whole = s.ask(STORY, max_tokens=80, cache_salt="other")["choices"][0]["text"]
    check(whole.startswith(first), "the first part of the text")
    status, saved = s.call("POST", "/api/sessions/story/save", {})
    check(status == 200 and saved["tokens"] > 60 and saved["reusable"] % 16 == 0 and saved["draft"] == "stored", f"save: {saved}")
    check(s.call("POST", "/api/sessions/none/save", {})[0] == 404, "save of an unknown session")
    status, listed = s.call("GET", "/api/sessions")
    check([x["name"] for x in listed["sessions"]] == ["story"] and listed["sessions"][0]["bytes"] == saved["bytes"], f"list: {listed}")
    s.stop()
    s = Server("--session-dir", f"{tmp}/a")
    status, restored = s.call("POST", "/api/sessions/story/restore", {})
    check(status == 200 and restored["reusable"] == saved["reusable"] and restored["draft"] == "restored", f"restore: {restored}")
    reply = s.ask(STORY + first)
    check(first + reply["choices"][0]["text"] == whole, "the text after a restart")
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(abs(cached - restored["reusable"]) <= 16, f"{cached} cached tokens, {restored['reusable']} are reusable")
    page = urllib.request.urlopen(s.url + "/metrics").read().decode()
    check('operation="restore"} 1' in page.replace('model_name="nano",', ""), "metrics")
    check(s.call("POST", "/api/sessions/story/save", {})[0] == 200, "a restored session can be saved")
    check(s.call("DELETE", "/api/sessions/story")[1] == {"name": "story", "deleted": True}, "delete")
    check(s.call("POST", "/api/sessions/story/delete", {})[0] == 404, "delete again")
    check(s.call("POST", "/api/sessions/story/restore", {})[0] == 404, "restore after delete")
    for name in ("..", "a%2Fb", ".x", "a b", "x" * 65):
        check(s.call("POST", f"/api/sessions/{name.replace(' ', '%20')}/restore", {})[0] in (400, 404), f"the name {name}")
    check(s.call("POST", "/v1/completions", {"prompt": "x", "session": "../x"})[0] == 400, "a wrong name in a request")
    s.stop()
    mode = [os.stat(os.path.join(root, f)).st_mode & 0o777 for root, _, files in os.walk(f"{tmp}/a") for f in files]
    check(all(m == 0o600 for m in mode), f"modes {mode}")


def penalties():
    """Penalties count an unfinished response on, also after a restart."""
    def ids(s, prompt, n, **more):
        status, reply = s.call("POST", "/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, "presence_penalty": 1.5,
                                                       "frequency_penalty": 1, "return_tokens": True, **more})
        check(status == 200, f"a completion: {status} {reply}")
        return reply["tokens"]
    s = Server("--session-dir", f"{tmp}/p")
    prompt = s.call("POST", "/tokenize", {"content": STORY, "add_special": True})[1]["tokens"]
    whole = ids(s, prompt, 80)
    check(ids(s, prompt, 25, session="story") == whole[:25], "the first part")
    check(ids(s, prompt + whole[:25], 20) != whole[25:45], "without a session, penalties begin with the request")
    check(ids(s, prompt + whole[:25], 20, session="story") == whole[25:45], "the second part")
    check(s.call("POST", "/api/sessions/story/save", {})[0] == 200, "save")
    s.stop()
    s = Server("--session-dir", f"{tmp}/p")
    check(s.call("POST", "/api/sessions/story/restore", {})[0] == 200, "restore")
    check(ids(s, prompt + whole[:45], 35, session="story") == whole[45:], "the third part, after a restart")
    s.stop()


def slots():
    """llama.cpp's slot files."""
    s = Server("--slot-save-path", f"{tmp}/b")
    first = s.ask(STORY, id_slot=3)["choices"][0]["text"]
    status, saved = s.call("POST", "/slots/3?action=save", {"filename": "f.bin"})
    check(status == 200 and saved["id_slot"] == 3 and saved["filename"] == "f.bin" and saved["n_saved"] > 60 and saved["n_written"] > 0 and
          saved["timings"]["save_ms"] > 0, f"save: {saved}")
    check(s.call("POST", "/slots/3?action=erase", {})[1] == {"id_slot": 3, "n_erased": saved["n_saved"]}, "erase")
    check(s.call("POST", "/slots/3?action=save", {"filename": "f.bin"})[0] == 404, "save after erase")
    s.stop()
    s = Server("--slot-save-path", f"{tmp}/b")
    status, back = s.call("POST", "/slots/0?action=restore", {"filename": "f.bin"})
    check(status == 200 and back["n_restored"] == saved["n_saved"] and back["n_read"] == saved["n_written"] and back["reusable"] > 0, f"restore: {back}")
    reply = s.ask(STORY + first, max_tokens=4)
    check(reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "cached tokens after a restore")
    for path, body in (("/slots/x?action=save", {"filename": "f"}), ("/slots/0?action=dance", {"filename": "f"}), ("/slots/0?action=save", {}),
                       ("/slots/0?action=restore", {"filename": "../f"}), ("/slots/0", {"filename": "f"})):
        status, reply = s.call("POST", path, body)
        check(status == 400 and reply["error"]["type"] == "invalid_request_error", f"{path} {body}: {status} {reply}")
    s.stop()
    s = Server()
    for path in ("/slots/0?action=save", "/slots/0?action=erase", "/api/sessions/x/save"):
        check(s.call("POST", path, {"filename": "f"})[0] == 501, f"{path} without a directory")
    s.stop()


def make_keys():
    """Makes keys for anna and ben in a file."""
    with open(f"{tmp}/keys", "w") as f:
        pass
    return {n: subprocess.run([TANDEM, "key", "--file", f"{tmp}/keys", n], capture_output=True, text=True).stdout.strip().split()[-1]
            for n in ("anna", "ben")}


def check_times(times, what):
    a, b = (sorted(t)[len(t) // 2] for t in times.values())
    check(0.5 < a / b < 2, f"{what}: {' and '.join(times)} take {a * 1e3:.2f} and {b * 1e3:.2f} ms")


def stored_texts():
    """A text of the disk tier is found by the key that stored it only. Others cannot notice it, by the time neither."""
    keys, flags = make_keys(), ("--cache-dir", f"{tmp}/f", "--api-key-file", f"{tmp}/keys")
    texts = [f"Story number {i}. " + STORY * 6 for i in range(20)]
    s = Server(*flags)
    for text in texts:
        s.ask(text, keys["anna"], max_tokens=1)
    s.stop()
    s = Server(*flags)
    times = {"stored by another key": [], "new": []}
    for i, text in enumerate(texts):
        for name in sorted(times, reverse=i % 2):
            began = time.perf_counter()
            reply = s.ask(text if name != "new" else text.replace("number", "numbers"), keys["ben"], max_tokens=1)
            times[name].append(time.perf_counter() - began)
            check(reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, f"ben found a text {name}")
    check_times(times, "texts")
    found = [s.ask(text, keys["anna"], max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] for text in texts]
    check(all(n > 100 for n in found[:3]), f"anna found {found} tokens")
    s.stop()


def tenants():
    """A session exists for the key that saved it only."""
    keys = make_keys()
    s = Server("--session-dir", f"{tmp}/c", "--api-key-file", f"{tmp}/keys")
    s.ask(STORY, keys["anna"], session="plan")
    check(s.call("POST", "/api/sessions/plan/save", {}, keys["ben"])[0] == 404, "save of another key's conversation")
    check(s.call("POST", "/api/sessions/plan/save", {}, keys["anna"])[0] == 200, "save")
    theirs = [s.call("POST", f"/api/sessions/plan/{what}", {}, keys["ben"]) for what in ("restore", "delete")]
    missing = [s.call("POST", f"/api/sessions/none/{what}", {}, keys["ben"]) for what in ("restore", "delete")]
    check(json.loads(json.dumps(theirs).replace("plan", "none")) == json.loads(json.dumps(missing)) and theirs[0][0] == 404,
          f"another key's session differs from a missing one: {theirs} {missing}")
    check(s.call("GET", "/api/sessions", None, keys["ben"])[1] == {"sessions": []}, "the list of another key")
    times = {"plan": [], "none": []}
    for _ in range(60):
        for name in times:
            began = time.perf_counter()
            s.call("POST", f"/api/sessions/{name}/restore", {}, keys["ben"])
            times[name].append(time.perf_counter() - began)
    check_times(times, "sessions of another key and missing ones")
    check(s.call("POST", "/api/sessions/plan/restore", {}, keys["anna"])[0] == 200, "its own session")
    s.stop()


def kills():
    """kill -9 at random moments of saving: the file is the last one that was acknowledged, or the one after it, whole."""
    rng, possible, acknowledged = random.Random(KILLS), {None}, 0  # None: there is no file
    for i in range(KILLS):
        s = Server("--session-dir", f"{tmp}/d")
        status, reply = s.call("POST", "/slots/9?action=restore", {"filename": "f"})
        found = reply.get("n_restored")
        check(status == (404 if found is None else 200) and found in possible, f"kill {i}: {status} {reply}, expected one of {possible}")
        possible = {found}
        sizes = {slot: s.ask(STORY * (slot + 1), id_slot=slot, max_tokens=30 + i)["usage"]["total_tokens"] for slot in (0, 1)}
        timer, n = threading.Timer(rng.random() * 0.3, s.p.kill), 0
        timer.start()
        try:
            while True:
                possible.add(sizes[n % 2])
                status, reply = s.call("POST", f"/slots/{n % 2}?action=save", {"filename": "f"})
                check(status == 200 and reply["n_saved"] == sizes[n % 2], f"save: {status} {reply}")
                possible, n, acknowledged = {sizes[n % 2]}, n + 1, acknowledged + 1
        except (OSError, ValueError, http.client.HTTPException):
            pass
        timer.join()
        s.p.wait(60)
    left = [f for root, _, files in os.walk(f"{tmp}/d") for f in files]
    check(acknowledged and left.count("f.session") == 1, f"files after {KILLS} kills: {left}, {acknowledged} acknowledged")


def chats():
    def chat(lines, *flags):
        run = subprocess.run([TANDEM, "chat", "--session-dir", f"{tmp}/e", "--temp", "0", "--stats", *flags], input="\n".join(lines) + "\n",
                             capture_output=True, text=True)
        check(run.returncode == 0, f"chat {lines}: {run}")
        return run.stdout, run.stderr
    whole, _ = chat(["What is 12 plus 30?", "What is 27 plus 58?"])
    first, said = chat(["What is 12 plus 30?", "/save"], "--session", "sums")
    check("saved sums: " in said, said)
    second, said = chat(["What is 27 plus 58?"], "--session", "sums")
    check("restored sums: 1 turns" in said and "tokens reused" in said, said)
    check(first + second == whole, f"{first!r} + {second!r} is not {whole!r}")
    third, said = chat(["/load sums", "/load nothing", "/load"])
    check("restored sums: 2 turns" in said and "there is no session 'nothing'" in said and "/load needs" in said, said)
    run = subprocess.run([TANDEM, "chat", "--session", "a/b"], input="", capture_output=True, text=True)
    check(run.returncode == 1 and "the name of a session" in run.stderr, f"a wrong name: {run}")
    path, = (os.path.join(root, f) for root, _, files in os.walk(f"{tmp}/e") for f in files if f == "sums.session")
    saved = open(path, "rb").read()
    for damaged, model in (saved, "nano-qwen"), (saved[:1000], "nano"):
        open(path, "wb").write(damaged)
        run = subprocess.run([TANDEM, "chat", "-m", model, "--session-dir", f"{tmp}/e", "--session", "sums"], input="Hi\n",
                             capture_output=True, text=True)
        check(run.returncode == 1 and "it is kept" in run.stderr, f"a session that cannot be restored: {run}")
        check(open(path, "rb").read() == damaged, f"a chat with {model} replaced a session that it could not restore")


with tempfile.TemporaryDirectory() as tmp:
    run_tests("sessions", (resume, penalties, slots, tenants, stored_texts, chats, kills))
