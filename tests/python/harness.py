"""Servers under test on free ports, checks that are counted, and what the flows of all clients share."""
import contextlib
import importlib
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MODEL = "nano"
SUM = "What is 27 plus 58?"
APPLES = "Tom has 12 apples and buys 7 more. How many apples does Tom have?"
LONG = "one two three " * 2000  # does not fit into the context of small_server

# --- checks: one that fails prints a line, and the run goes on
counts = {"cases": 0, "failed": 0}
flows = []


def check(ok, what):
    counts["cases"] += 1
    if not ok:
        counts["failed"] += 1
        print(f"FAILED: {what}", flush=True)
    return bool(ok)


def same(got, want, what):
    return check(got == want, f"{what}: {str(got)[:400]!r} instead of {str(want)[:400]!r}")


def raises(kind, call, what):
    """Returns the error that a call ends with; none, or one of another kind, is a failure."""
    try:
        call()
    except Exception as e:
        check(isinstance(e, kind), f"{what}: {type(e).__name__} instead of {kind.__name__}: {str(e)[:300]}")
        return e
    check(False, f"{what}: no error")
    return None


def until(met, what, seconds=300):
    """Waits until something is true. The limit is for a failure only: a busy machine needs longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if met():
            return True
        time.sleep(0.01)
    return check(False, f"{what}: not within {seconds} s")


def flow(run):
    """Adds a function to the flows of its module; its name is the flow's."""
    flows.append(run)
    return run


def run_flows(client, only):
    """Runs the flows that were defined since the last call, and prints a line for the client."""
    mine, flows[:] = list(flows), []
    results = []
    for run in mine:
        name = run.__name__
        if only and not any(part in f"{client} {name}" for part in only):
            continue
        before = counts["failed"]
        try:
            run()
        except Exception:
            check(False, f"{client}, {name}: {traceback.format_exc(limit=-8)}")
        ok = counts["failed"] == before
        if not ok:
            print(f"FAILED: {client}: {name}", flush=True)
        results.append((name, ok))
    if results:
        held = sum(ok for _, ok in results)
        print(f"{client:<14} {held} of {len(results)} flows: {', '.join(name.rstrip('_') for name, _ in results)}", flush=True)


# --- servers
class Reply(Exception):
    """A reply of the server that is not 200, with its status and body."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body[:300]}")
        self.status, self.body = status, body


class Server:
    def __init__(self, *flags, key=None):
        self.key = key
        self.child = subprocess.Popen([Server.program, "serve", "--port", "0", *flags], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in self.child.stdout:
            lines.append(line)
            found = re.search(r"http://[^\s/]+:\d+", line)
            if found:
                break
        else:
            raise RuntimeError(f"the server ended: {''.join(lines)}")
        self.url = found.group(0)
        self.v1 = f"{self.url}/v1"
        threading.Thread(target=lambda: [None for _ in self.child.stdout], daemon=True).start()
        until(lambda: self.status("/health") == 200, "the server is up")

    def request(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with opener.open(request, timeout=300) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as e:
            raise Reply(e.code, e.read().decode()) from None

    def answer(self, path, body, headers=None):
        """Returns status, headers and text of the reply to a body, whatever the status."""
        head = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {}), **(headers or {})}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with opener.open(urllib.request.Request(self.url + path, data, head), timeout=300) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read().decode()

    def refusal(self, path, body):
        """Returns the error of a reply that must be a 400."""
        status, _, text = self.answer(path, body)
        check(status == 400, f"{path} {json.dumps(body)[:200]}: {status} instead of 400")
        return json.loads(text).get("error", {})

    def events(self, path, body):
        """Returns the events of a stream, without the word that ends it."""
        text = self.request(path, {**body, "stream": True})
        return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]

    def status(self, path):
        try:
            self.request(path)
        except Reply as e:
            return e.status
        return 200

    def post(self, path, body):
        return json.loads(self.request(path, body))

    def chat(self, messages, **fields):
        """Returns what the server itself says to a greedy request: the whole reply."""
        if isinstance(messages, str):
            messages = user(messages)
        return self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "temperature": 0, **fields})

    def message(self, messages, **fields):
        return self.chat(messages, **fields)["choices"][0]["message"]

    def content(self, messages, **fields):
        return self.message(messages, **fields)["content"]

    def metric(self, name):
        """Returns the sum of a metric over its labels."""
        values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.request("/metrics"), re.M)
        return sum(float(v) for v in values)

    def idle(self):
        return self.metric("tandem_num_requests_running") == 0

    def stop(self):
        self.child.terminate()
        return self.child.wait()


opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
servers = {}


def server(name, *flags, key=None):
    """Returns a server that all flows share; it is started when it is first wanted."""
    if name not in servers:
        servers[name] = Server(*flags, key=key)
    return servers[name]


def main_server():
    return server("main")


def small_server():
    return server("small", "--ctx", "1024")


def locked_server():
    return server("locked", "--api-key", "right-key", key="right-key")


@contextlib.contextmanager
def full_server():
    """Gives a server whose only lane is taken until it has refused two requests."""
    full = Server("--max-lanes", "1", "--set", "queue_max=0", "--ctx", "65536")
    body = {"prompt": "Hi", "stream": True, "ignore_eos": True, "speculative": "off", "max_tokens": 65000}
    request = urllib.request.Request(full.v1 + "/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    holder = opener.open(request, timeout=300)
    holder.readline()

    over = threading.Event()

    def release():
        until(lambda: over.is_set() or full.metric("tandem_requests_refused_total") >= 2, "two requests are refused")
        holder.close()

    waiter = threading.Thread(target=release)
    waiter.start()
    try:
        yield full
        check(full.metric("tandem_requests_refused_total") >= 2, "two requests were refused")
    finally:
        over.set()
        waiter.join()
        full.child.kill()
        full.child.wait()


def stop_servers():
    for name, s in servers.items():
        same(s.stop(), 0, f"SIGTERM ends the server ({name})")


# --- what all clients are asked
def user(text):
    return [{"role": "user", "content": text}]


class Closed(BaseModel):
    """A model without other fields than its own; nano would write many."""

    model_config = ConfigDict(extra="forbid")


class Weather(Closed):
    """The weather of a city."""

    city: str = Field(max_length=12)
    sky: Literal["sunny", "cloudy", "rainy"]
    degrees: int = Field(ge=-50, le=50)
    alerts: list[Literal["wind", "ice"]] = Field(max_length=2)


class Sky(Closed):
    """The sky of a city: without bounds, which some clients do not send."""

    sky: Literal["sunny", "cloudy", "rainy"]
    warm: bool


def function(name, description, **properties):
    """Returns a tool of OpenAI's chat completions, all of whose parameters are required."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


TOOLS = [function("get_weather", "Current weather of a city", city={"type": "string", "description": "City name", "maxLength": 12}),
         function("set_timer", "Start a timer", minutes={"type": "integer", "description": "Length in minutes", "minimum": 0, "maximum": 99})]


def fits(name, arguments):
    """Returns whether the arguments of a call are those of one of TOOLS."""
    if name == "get_weather":
        return list(arguments) == ["city"] and isinstance(arguments["city"], str) and len(arguments["city"]) <= 12
    return name == "set_timer" and list(arguments) == ["minutes"] and type(arguments["minutes"]) is int and 0 <= arguments["minutes"] <= 99


def calls_of(message):
    """Returns [[name, arguments]] of a raw message."""
    return [[c["function"]["name"], json.loads(c["function"]["arguments"])] for c in message.get("tool_calls") or []]


def check_page():
    """Checks that docs/clients.md names the versions that are installed."""
    here, name = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[0]).stem
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (here / f"{name}.txt").read_text(), re.M))
    wanted = re.findall(r"^[\w-]+", (here / f"{name}.in").read_text(), re.M)
    for package, versions in re.findall(r"`([\w-]+)` (\d[\d.]*(?: and \d[\d.]*)*)", (here / "../../docs/clients.md").read_text()):
        if package in wanted:
            check(pins[package] in versions.split(" and "), f"docs/clients.md: {package} is {pins[package]}, not {versions}")


def main(**modules):
    """Runs the flows of modules, by the names of their clients. Arguments: TANDEM [PART OF A CLIENT'S OR FLOW'S NAME...]"""
    Server.program, *only = sys.argv[1:]
    check_page()
    try:
        for client, module in modules.items():
            importlib.import_module(module)
            run_flows(client, only)
        stop_servers()
    finally:
        for s in servers.values():
            s.child.kill()
    failed, cases = counts["failed"], counts["cases"]
    print(f"{failed} of {cases} cases failed" if failed else f"{cases} cases passed")
    sys.exit(1 if failed else 0)
