"""Changes every flag, environment variable and setting of `tandem serve` and observes its effect: knobs.py PATH/TO/tandem [NAME...].

The flags and their variables are those of `tandem serve --help`, the settings those of GET /api/models/nano/settings: a new one
without an entry in FLAGS or SETTINGS fails. An entry has a value and a probe. The probe is a function of a running server that
returns what a client sees; it must return `want` with the value, and something else without. A flag is tried as a flag and as a
variable, a setting with --set, its variable, and with PUT where it is live. With NAMES only these are tried. Prints a table.
"""
import atexit
import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from checks import check, run_tests

TANDEM = os.path.abspath(sys.argv[1])
ONLY = set(sys.argv[2:])
NANO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/nano")
STORY = "Once upon a time there was a little robot who lived in a small house near the sea. Every morning it looked out of the window. "
tmp = tempfile.mkdtemp(prefix="tandem-knobs-")
atexit.register(shutil.rmtree, tmp, True)
counter = 0


def fresh(name=""):
    """Returns a new path in the directory of the test."""
    global counter
    counter += 1
    return f"{tmp}/{counter}{name}"


def write(text, name=""):
    path = fresh(name)
    with open(path, "w") as f:
        f.write(text)
    return path


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


class Server:
    """A server with these flags and variables. Used in a `with` statement."""

    def __init__(self, flags=(), env=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "DFLASH_"))}
        base = [] if "--port" in flags or "TANDEM_PORT" in (env or {}) else ["--port", "0"]
        if "--threads" not in flags and "TANDEM_THREADS" not in (env or {}):
            base += ["--threads", "2"]
        self.p = subprocess.Popen([TANDEM, "serve", *base, *flags], stderr=subprocess.PIPE, text=True, env={**clean, **(env or {})})
        self.log, self.host, self.port, self.tls = [], None, None, False
        for line in self.p.stderr:
            self.log.append(line)
            if found := re.search(r"served at (https?)://([0-9.]+):(\d+)", line):
                self.tls, self.host, self.port = found[1] == "https", found[2], int(found[3])
                break
        self.reader = threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        self.reader.join(10)

    def exit_text(self):
        """Waits for the end of a server that does not start, and returns its messages."""
        self.p.wait(30)
        self.reader.join(10)
        return "".join(self.log)

    def connection(self):
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=120, context=ssl._create_unverified_context())
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def call(self, path, body=None, headers=None, method=None):
        """Returns the status, the headers and the body of a reply."""
        c = self.connection()
        c.request(method or ("GET" if body is None else "POST"), path, body=None if body is None else json.dumps(body),
                  headers={"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, r.headers, text

    def get(self, path):
        return json.loads(self.call(path)[2])

    def ask(self, prompt=STORY, n=48, **more):
        """Returns the status and the reply of a native completion."""
        status, _, text = self.call("/completion", {"prompt": prompt, **({"n_predict": n} if n else {}), "ignore_eos": True, "seed": 5,
                                                    "temperature": 0, **more})
        return status, json.loads(text)

    def stats(self):
        return self.get("/api/stats")

    def props(self):
        return self.get("/props")

    def metric(self, name):
        page = self.call("/metrics")[2]
        return float(re.search(rf"^tandem_{name}(?:{{[^}}]*}})? (\S+)$", page, re.M)[1])


class Long:
    """A response that takes seconds, in a thread; used in a `with` statement, which cancels it."""

    def __init__(self, s, tokens=6000, **more):
        self.c = s.connection()
        self.c.request("POST", "/completion", body=json.dumps({"prompt": STORY, "n_predict": tokens, "ignore_eos": True, "stream": True,
                                                               "speculative": "off", **more}),
                       headers={"Content-Type": "application/json"})
        self.r = self.c.getresponse()
        self.r.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.c.close()

    def rest(self):
        """Returns the number of tokens of the whole response, 0 if it was cut off."""
        try:
            last = [x for x in self.r.read().decode().split("\n") if x.startswith("data: {")][-1]
        except (http.client.HTTPException, OSError, IndexError):
            return 0
        return json.loads(last[6:]).get("tokens_predicted", 0)


# --- probes ---------------------------------------------------------------------------------------
def engine(name):
    return lambda s: s.props()["engine"][name]


def drafter(name, field):
    def probe(s):
        return next((m[field] for m in s.get("/api/models")["data"] if m["id"] == name), None)
    return probe


def methods(**ask):
    """The methods that drafted."""
    def probe(s):
        s.ask(**ask)
        return [m for m, x in s.stats()["speculation"]["methods"].items() if x["drafted"]]
    return probe


def drafts(**ask):
    """Draft tokens by position, of greedy rounds of one method: a fingerprint of the shape of drafts."""
    def probe(s):
        t = s.ask(n=64, **ask)[1]["timings"]
        return [t["draft_n"], t["draft_n_accepted"], t["draft_rounds"], *t["accepted_per_position"]]
    return probe


def longest_draft(s):
    s.ask(prompt=STORY * 4)
    return len(s.stats()["speculation"]["drafted_by_position"])


def per_round(s):
    """Draft tokens per round, rounded up."""
    t = s.ask()[1]["timings"]
    return -(-t["draft_n"] // max(1, t["draft_rounds"]))


def steps_of_prompt(s):
    s.ask(prompt=STORY * 9, n=1)
    return s.stats()["steps"]["steps"] > 9


def first_logprob(s):
    status, _, text = s.call("/v1/completions", {"prompt": STORY * 160, "max_tokens": 1, "logprobs": 1})
    return json.loads(text)["choices"][0]["logprobs"]["token_logprobs"][0] if status == 200 else text


def status_of(path, body=None, **headers):
    return lambda s: s.call(path, body, {k.replace("_", "-"): v for k, v in headers.items()})[0]


def header_of(path, name, **headers):
    return lambda s: s.call(path, None, {k.replace("_", "-"): v for k, v in headers.items()})[1].get(name)


def route(reason, **ask):
    """Whether rounds were planned for this reason."""
    def probe(s):
        s.ask(**ask)
        return s.stats()["speculation"]["routes"][reason] > 0
    return probe


def refused(part):
    """The message of a server that does not start."""
    return lambda s: part in s.exit_text() if s.host is None else False


def second(s):
    """The status of a request while another one runs."""
    with Long(s, 3000):
        return s.ask(n=1)[0]


def waits(s):
    """Whether a request ends only after a long one that began before it."""
    with Long(s, 3000):
        s.ask(n=1)
        return s.stats()["requests"]["running"] == 0


def chunk_rows(s):
    """The mean length of a prompt's chunks while a response runs."""
    with Long(s):
        s.ask(n=1)
        before = s.stats()["steps"]
        s.ask(prompt="Now. " + STORY * 20, n=1)
        after = s.stats()["steps"]
    return (after["prompt_rows"] - before["prompt_rows"]) / (after["prompt_steps"] - before["prompt_steps"])


def saves(s):
    s.ask(n=8, session="story")
    return s.call("/api/sessions/story/save", {})[0]


def files_in(path):
    """Whether the directory has files of texts when the server has ended."""
    def probe(s):
        s.ask(prompt=STORY * 4)
        s.p.terminate()
        s.p.wait()
        return any("index.db" not in f for _, _, names in os.walk(path) for f in names)
    return probe


def parked(s):
    for i in range(12):
        s.ask(prompt=f"{i} " + STORY * 20, n=4)
    return s.stats()["kv"]["parked_bytes"] > 0


def wiped(s):
    s.ask(n=40)
    return s.metric("kv_pages_wiped_total") > 0


def routing(measure, path=None):
    """What `measure` returns for the files of the routing log, when the server has ended. path: of the log; None: the one of ROUTING."""
    def probe(s):
        for _ in range(40):
            s.ask(n=4)
        s.p.terminate()
        s.p.wait()
        return measure([os.path.join(tmp, f) for f in os.listdir(tmp) if os.path.join(tmp, f).startswith(path or s.routing)])
    return probe


def has_lines(files):
    return any(os.path.getsize(f) for f in files)


def finishes_after_term(s):
    """Whether a response that runs at SIGTERM reaches its end."""
    with Long(s, 1500) as x:
        s.p.send_signal(signal.SIGTERM)
        return x.rest() == 1500


def hang(s):
    """Whether /health reports a hang during a step of seconds."""
    def ask():
        try:
            s.ask(prompt=STORY * 70, n=1)
        except (http.client.HTTPException, OSError):
            pass  # the server was stopped first
    t = threading.Thread(target=ask)
    t.start()
    for _ in range(400):
        if s.call("/health")[0] == 503:
            return True
        if not t.is_alive():
            break
        time.sleep(0.02)
    return False


def mask_status(s):
    schema = {"type": "array", "minItems": 40, "items": {"type": "string", "pattern": "^([a-z]{1,9} ){3,30}$"}}
    status, reply = s.ask(n=400, json_schema=schema)
    return "mask" in json.dumps(reply) or status != 200


def over_unix(path):
    def probe(s):
        c = Unix(path, timeout=30)
        try:
            c.request("GET", "/health", headers={"Host": "localhost"})
            return c.getresponse().status
        except OSError:
            return 0
    return probe


def key_pair(s, path, body=None):
    """The statuses without a key and with the one of the test."""
    return [s.call(path, body, h)[0] for h in ({}, {"Authorization": f"Bearer {KEY}"})]


def of_a_large_request(s):
    return s.call("/tokenize", {"content": STORY * 20000})[0]


# --- images and videos
MEDIA = fresh("-media")  # a projector for nano, a picture and a video
subprocess.run([os.path.join(os.path.dirname(os.path.abspath(__file__)), "../node"), os.path.join(NANO, "../../tests/server/mmproj.mjs"), MEDIA], check=True)
WITH_MEDIA = ["--mmproj", f"{MEDIA}/mmproj.gguf"]


def shown(kind="image", url=None):
    """A probe: the status, the tokens of images and videos, and the error of a request with a file of MEDIA or a URL."""
    name = {"image": "a.png", "video": "a.avi"}[kind]

    def probe(s):
        with open(f"{MEDIA}/{name}", "rb") as f:
            data = "data:application/octet-stream;base64," + base64.b64encode(f.read()).decode()
        part = {"type": f"{kind}_url", f"{kind}_url": {"url": url or data}}
        status, _, text = s.call("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
        reply = json.loads(text)
        details = reply.get("usage", {}).get("prompt_tokens_details", {})
        return status, details.get(f"{kind}_tokens"), reply.get("error", {}).get("message", "")
    return probe


def parks_encoder(s):
    """Whether the encoder of images is parked at once."""
    shown()(s)
    end = time.time() + 1
    while time.time() < end and not any("parked" in x for x in s.log): time.sleep(0.02)
    return any("encoder of pictures: parked" in x for x in s.log)


# --- the table ------------------------------------------------------------------------------------
class Knob:
    """value: of the flag, None for a flag without one. want: what the probe returns with it; a function: whether it is right. more:
    flags of both servers. again: further flags that the value needs."""

    def __init__(self, value, probe, want, more=(), again=(), put=True):
        self.value, self.probe, self.want, self.more, self.again, self.put = value, probe, want, list(more), list(again), put

    def right(self, seen):
        return self.want(seen) if callable(self.want) else seen == self.want


def not_(other):
    return lambda seen: seen != other


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_key():
    """Returns a key and its line for a key file."""
    return subprocess.run([TANDEM, "key"], capture_output=True, text=True, check=True).stdout.split()


def make_certificate():
    cert, key = fresh(".pem"), fresh(".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-subj", "/CN=localhost", "-days", "2"], capture_output=True, check=True)
    return cert, key


KEY, KEY_HASH = make_key()
CERT, CERT_KEY = make_certificate()
UNIX, PORT = fresh(".sock"), free_port()
CACHE, CACHE_2, ROUTING = fresh("-cache"), fresh("-cache"), fresh("-routing.jsonl")
SESSIONS = fresh("-sessions")
SMALL = ["--kv-bytes", "24M", "--ctx", "1024"]
ONE_LANE = ["--max-lanes", "1"]

FLAGS = {
    "model": Knob(f"{NANO}/target.gguf", lambda s: s.get("/v1/models")["data"][0]["id"], "target.gguf"),
    "mmproj": Knob("/no/mmproj.gguf", refused("no encoder of pictures: cannot open /no/mmproj.gguf"), True),
    "threads": Knob("1", engine("threads"), 1) if len(os.sched_getaffinity(0)) > 1 else None,
    "device": Knob("ref", engine("device"), "ref"),
    "ctx": Knob("512", lambda s: s.ask(prompt=STORY * 40)[0], 400),
    "max-ctx": Knob("512", lambda s: s.ask(prompt=STORY * 40)[0], 400),
    "kv": Knob("q8_0", engine("kv_bytes_per_token_full"), lambda x: x < 1024),
    "kv-sliding": Knob("f32", engine("kv_bytes_per_token"), lambda x: x > 4096),
    "kv-draft": Knob("f32", engine("kv_bytes"), None),
    "sparse-fa": Knob("0.5", first_logprob, None),
    "memory-share": Knob("0.01", engine("kv_bytes"), None),
    "kv-bytes": Knob("50M", engine("kv_bytes"), lambda x: x <= 50e6),
    "max-lanes": Knob("1", waits, True),
    "step-tokens": Knob("16", steps_of_prompt, True, ["--max-lanes", "16"]),
    "cache-dir": Knob(CACHE, files_in(CACHE), True),
    "cache-bytes": Knob("1K", files_in(CACHE_2), False, ["--cache-dir", CACHE_2]),
    "park-bytes": Knob("200M", parked, True, SMALL),
    "wipe-pages": Knob(None, wiped, True),
    "spec": Knob("mtp", methods(speculative="dflash"), ["mtp"]),
    "draft": Knob("none", engine("dflash"), False),
    "draft-ctx": Knob("64", engine("kv_bytes"), None),
    "draft-window": Knob("16", drafts(prompt=STORY * 8), None, ["--spec", "dflash"]),
    "draft-quant": Knob("q4_0", drafter("nano-dflash", "quantisation"), "Q4_0"),
    "lazy-draft": Knob(None, drafter("nano-dflash", "state"), not_("loaded")),
    "draft-max": Knob("2", longest_draft, 2, ["--spec", "dflash"]),
    "draft-tail": Knob("8", longest_draft, lambda x: x > 3, ["--spec", "mtp"]),
    "tree-budget": Knob("3", per_round, lambda x: 1 <= x <= 3, ["--spec", "tree"]),
    "tree-temp": Knob("0.05", drafts(), None, ["--spec", "tree"]),
    "tree-chain-seed": Knob("off", drafts(), None, ["--spec", "tree", "--tree-temp", "100", "--tree-budget", "8"]),
    "draft-noise": Knob("1", drafts(temperature=1), None, ["--spec", "mtp"]),
    "settings": Knob(write(json.dumps({"models": {"nano": {"queue_max": 7}}})), lambda s: s.props()["settings"]["queue_max"], 7),
    "set": Knob("default_max_tokens=5", lambda s: s.ask(n=None)[1]["tokens_predicted"], 5, ["--ctx", "512"]),
    "routing-log": Knob(ROUTING, routing(has_lines, ROUTING), True),
    "session-dir": Knob(SESSIONS, saves, 200),
    "slot-save-path": Knob(SESSIONS, saves, 200),
    "host": Knob("127.0.0.2", lambda s: s.host, "127.0.0.2"),
    "port": Knob(str(PORT), lambda s: s.port, PORT),
    "unix": Knob(UNIX, over_unix(UNIX), 200),
    "tls-cert": Knob(CERT, lambda s: s.tls and s.call("/health")[0], 200, again=["--tls-key", CERT_KEY]),
    "tls-key": Knob(CERT_KEY, lambda s: s.tls and s.call("/health")[0], 200, again=["--tls-cert", CERT]),
    "cors": Knob("https://example.org", header_of("/v1/models", "Access-Control-Allow-Origin", Origin="https://example.org"), "https://example.org"),
    "alias": Knob("other", lambda s: s.get("/v1/models")["data"][0]["id"], "other"),
    "replica-id": Knob("r7", header_of("/health", "X-Replica-Id"), "r7"),
    "grace": Knob("0", finishes_after_term, False),
    "api-key-file": Knob(write(KEY_HASH + "\n"), lambda s: key_pair(s, "/v1/models"), [401, 200]),
    "api-key": Knob(KEY, lambda s: key_pair(s, "/v1/models"), [401, 200]),
    "admin-key-file": Knob(write(KEY_HASH + "\n"), lambda s: key_pair(s, "/api/stats"), [401, 200]),
    "allow-host": Knob("example.org", status_of("/v1/models", Host="example.org"), 200),
    "request-memory": Knob("1M", of_a_large_request, 503),
    "body-memory": Knob("1M", of_a_large_request, 503),
    "media-fetch": Knob(None, shown(url="http://127.0.0.1:9/a.png"), lambda x: x[0] == 400 and "cannot be fetched" in x[2], WITH_MEDIA),
    "media-dir": Knob(MEDIA, shown(url=f"file://{os.path.realpath(MEDIA)}/a.png"), lambda x: x[0] == 200, WITH_MEDIA),
    "no-ollama": Knob(None, status_of("/api/tags"), 404),
    "watchdog": Knob("1", hang, True, ["--device", "ref", "--step-tokens", "4096", "--max-lanes", "2"]),
    "log-level": Knob("error", lambda s: any(" info " in x for x in s.log), False),
    "log-json": Knob(None, lambda s: any(x.startswith("{") for x in s.log), True, ["--unix", UNIX + "2"]),
}

QUANT = ["--set", "dflash_draft_quant_enabled=true"]
SETTINGS = {
    "dflash_enabled": Knob("false", route("disabled"), True),
    "dflash_max_concurrent": Knob("0", route("concurrency"), True),
    "dflash_lazy_drafter": Knob("true", drafter("nano-dflash", "state"), not_("loaded")),
    "dflash_kv_pressure_threshold": Knob("0", route("kv_pressure"), True),
    "dflash_max_ctx": Knob("8", route("max_ctx"), True),
    "dflash_draft_window": Knob("16", drafts(prompt=STORY * 8), None, ["--spec", "dflash"]),
    "dflash_draft_model": Knob(f"{NANO}/dflash.gguf", engine("dflash"), True, ["--draft", "none"]),
    "mtp_draft_model": Knob(f"{NANO}/mtp.gguf", engine("mtp"), True, ["--draft", "none"]),
    "dflash_draft_quant_enabled": Knob("true", drafter("nano-dflash", "quantisation"), "Q4_0", ["--set", "dflash_draft_quant_weight_bits=4"]),
    "dflash_draft_quant_weight_bits": Knob("4", drafter("nano-dflash", "quantisation"), "Q4_0", QUANT),
    "dflash_draft_quant_activation_bits": Knob("16", refused("activation_bits is 16"), True, ["--device", "cpu"] + QUANT, put=False),
    "dflash_draft_quant_group_size": Knob("64", refused("group_size is 64"), True, QUANT, put=False),
    "default_max_tokens": Knob("5", lambda s: s.ask(n=None)[1]["tokens_predicted"], 5, ["--ctx", "512"]),
    "kv_type": Knob("q8_0", engine("kv_bytes_per_token_full"), lambda x: x < 1024),
    "kv_sliding": Knob("f32", engine("kv_bytes_per_token"), lambda x: x > 4096),
    "kv_draft": Knob("f32", engine("kv_bytes"), None),
    "sparse_fa": Knob("0.5", first_logprob, None),
    "kv_cap": Knob("0.05", lambda s: s.ask(prompt=STORY * 20, n=400)[0], not_(200), SMALL),
    "max_mask_ms": Knob("1", mask_status, True),
    "max_stall_ms": Knob("0", chunk_rows, lambda x: x <= 16),
    "queue_max": Knob("0", second, not_(200), ONE_LANE),
    "max_lanes_per_key": Knob("1", waits, True),
    "max_queue_per_key": Knob("0", second, not_(200), ONE_LANE),
    "queue_timeout_ms": Knob("1", second, not_(200), ONE_LANE),
    "request_timeout_ms": Knob("50", lambda s: s.ask(n=4000, speculative="off")[1].get("tokens_predicted", 0) == 4000, False),
    "image_tokens": Knob("70", shown(), lambda x: x[0] == 200 and x[1] <= 70, WITH_MEDIA),
    "media_max_frames": Knob("2", shown("video"), lambda x: x[0] == 200 and x[1] <= 2 * 70, WITH_MEDIA),
    "media_max_items": Knob("0", shown(), lambda x: x[0] == 400 and "at most 0 images" in x[2], WITH_MEDIA),
    "media_max_bytes": Knob("10", shown(), lambda x: x[0] == 400 and "at most 10 bytes" in x[2], WITH_MEDIA),
    "media_max_pixels": Knob("10", shown(), lambda x: x[0] == 400 and "at most 10 pixels" in x[2], WITH_MEDIA),
    "encoder_idle_s": Knob("0", parks_encoder, True, WITH_MEDIA),
    "session_max_count": Knob("0", saves, not_(200), ["--session-dir", fresh("-s")]),
    "session_max_bytes": Knob("0", saves, not_(200), ["--session-dir", fresh("-s")]),
    "routing_log": Knob("false", routing(has_lines), False, ["ROUTING"]),
    "routing_log_max_bytes": Knob("2000", routing(lambda files: sum(map(os.path.getsize, files)) <= 4000), True, ["ROUTING"]),
    "routing_log_files": Knob("1", routing(len), 1, ["ROUTING", "--set", "routing_log_max_bytes=8000"]),
}

VALUES = {"DFLASH_METRIC_DISABLE": "1"}  # of variables that differ from the value of their setting


# --- the walk -------------------------------------------------------------------------------------
def start(flags, env=None):
    """Starts a server; ROUTING among the flags is a routing log of its own."""
    path = fresh("-routing.jsonl")
    flags = [x for f in flags for x in (["--routing-log", path] if f == "ROUTING" else [f])]
    s = Server(flags, env)
    s.routing = path
    return s


def observe(knob, flags, env=None):
    with start(knob.more + flags, env) as s:
        return knob.probe(s)


def report(name, knob, how, before, after):
    right = after != before if knob.want is None else knob.right(after) and not knob.right(before)
    text = [str(x) if len(str(x)) < 40 else str(x)[:37] + "..." for x in (before, after)]
    print(f"  {name:36} {how:28} {text[0]:>40} -> {text[1]}", flush=True)
    check(right, f"{name} by {how}: {before} without, {after} with {knob.value}")


def wanted(names, table, what):
    """Returns the names to try, and reports names without an entry and entries without a name."""
    if not ONLY:
        check(set(names) == set(table), f"{what}: {sorted(set(names) ^ set(table))} differ between the program and this test")
    return [n for n in names if table.get(n) and (not ONLY or n in ONLY)]


def flags():
    """Every flag of --help, and its variable."""
    text = subprocess.run([TANDEM, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    listed = dict(re.findall(r"^ +(?:-\w, )?--([a-z-]+).*\[(TANDEM_\w+)\]$", text, re.M))
    check(len(listed) > 40 and set(re.findall(r"--([a-z-]+)", text.split("\n\n")[2])) - {"help"} >= set(listed), "the flags of --help")
    for name in wanted(listed, FLAGS, "flags"):
        knob = FLAGS[name]
        before = observe(knob, [])
        report(name, knob, f"--{name}", before, observe(knob, [f"--{name}"] + ([knob.value] if knob.value is not None else []) + knob.again))
        report(name, knob, listed[name], before, observe(knob, knob.again, {listed[name]: knob.value or "1"}))


def settings():
    """Every setting, at the start and live, and its variable."""
    with Server() as s:
        listed = s.get("/api/models/nano/settings")["settings"]
    for name in wanted(listed, SETTINGS, "settings"):
        knob, info = SETTINGS[name], listed[name]
        before = observe(knob, [])
        report(name, knob, "--set", before, observe(knob, ["--set", f"{name}={knob.value}"]))
        if "variable" in info:
            report(name, knob, info["variable"], before, observe(knob, [], {info["variable"]: VALUES.get(info["variable"], knob.value)}))
        if info["live"]:
            with start(knob.more) as s:
                value = json.loads(knob.value) if info["kind"] != "string" else knob.value
                check(s.call("/api/models/nano/settings", {name: value}, method="PUT")[0] == 200, f"PUT of {name}")
                report(name, knob, "PUT", before, knob.probe(s))


def limits():
    """Requests may ask for less than a limit of the server, and not for more."""
    if ONLY:
        return
    with Server(["--spec", "tree", "--tree-budget", "6", "--draft-max", "5", "--tree-temp", "2", "--draft-noise", "0.5"]) as s:
        def effective(**ask):
            g = s.ask(n=2, speculative=ask)[1]["generation_settings"]
            return [g["speculative"], *(g[f"speculative.{x}"] for x in ("draft_max", "tree_budget", "tree_temp", "chain_seed", "draft_noise"))]
        check(effective(draft_max=3, tree_budget=4) == ["tree", 3, 4, 2, True, 0.5], f"less than the limits: {effective(draft_max=3, tree_budget=4)}")
        check(effective(draft_max=64, tree_budget=64) == ["tree", 5, 6, 2, True, 0.5], "more than the limits")
        check(effective(method="auto", tree_temp=3, chain_seed=False, draft_noise=0) == ["tree", 5, 6, 3, False, 0], "auto, and what is not limited")
        check(effective(method="ngram")[0] == "tree" and effective(method="off")[0] == effective(enabled=False)[0] == "off", "other methods")
    with Server(["--spec", "off"]) as s:
        check(not s.props()["engine"]["dflash"] and methods(speculative="auto")(s) == [], "--spec off loads no drafter and drafts nothing")


def unknown():
    """An unknown variable is a warning with the nearest name."""
    if ONLY:
        return
    with Server(env={"TANDEM_MAXLANES": "3"}) as s:
        line = next((x for x in s.log if "TANDEM_MAXLANES" in x), "")
        check(" warn " in line and "nearest variable that it uses is TANDEM_MAX_LANES" in line, f"the warning: {line}")


run_tests("knobs", [flags, settings, limits, unknown])
