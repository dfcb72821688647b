"""aider: the program of the package, without anybody at the keyboard."""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

from harness import LONG, MODEL, SUM, check, flow, full_server, locked_server, main_server, opener, same, server

main = main_server()


class Between(http.server.BaseHTTPRequestHandler):
    """Passes requests on to a server, and keeps what was asked and answered in `said`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {"Content-Type": "application/json", "Authorization": self.headers["Authorization"]}
        try:
            reply = opener.open(urllib.request.Request(self.server.to + self.path, body, headers), timeout=300)
        except urllib.error.HTTPError as e:
            reply = e
        data = reply.read()
        self.server.said.append((json.loads(body), reply.status, data.decode()))
        self.send_response(reply.status)
        for name in ("Content-Type", "Retry-After"):
            if reply.headers[name]:
                self.send_header(name, reply.headers[name])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def aider(question, *flags, at=main, key="none", files=()):
    """Runs aider in an empty folder; returns its exit status, its output, and what was said."""
    between = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
    between.to, between.said = at.url, []
    threading.Thread(target=between.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files:
            pathlib.Path(folder, name).write_text(text)
        command = [sys.executable, "-m", "aider", "--model", f"openai/{MODEL}", "--openai-api-base", f"http://127.0.0.1:{between.server_port}/v1",
                   "--openai-api-key", key, "--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings",
                   "--no-show-release-notes", "--no-pretty", "--no-detect-urls", "--no-suggest-shell-commands", "--message", question, *flags,
                   *(name for name, _ in files)]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        after = {name: pathlib.Path(folder, name).read_text() for name, _ in files}
    between.shutdown()
    return done.returncode, done.stdout + done.stderr, between.said, after


def whole(request, at=main):
    """Returns what the server says to one of aider's requests, whole."""
    body = {k: v for k, v in request.items() if k not in ("stream", "stream_options")}
    return at.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]


@flow
def ask():
    for flags in (("--stream",), ("--no-stream",)):
        code, out, said, _ = aider(SUM, "--chat-mode", "ask", *flags)
        same([code, [status for _, status, _ in said]], [0, [200]], f"one question {flags} ({out[-400:]})")
        same(bool(said[0][0].get("stream")), "--stream" in flags, "a stream, when it was asked for")
        check(whole(said[0][0]) in out, f"aider shows the server's words {flags}: {out[-600:]}")


@flow
def files():
    code, out, said, after = aider(SUM, "--edit-format", "whole", files=[("sum.txt", "27 plus 58\n")])
    same(code, 0, f"a file in the chat ({out[-400:]})")
    check("sum.txt" in json.dumps(said[0][0]), "the file is in the request")
    check(said and all(status == 200 for _, status, _ in said), f"no request is refused: {[s for _, s, _ in said]}")
    check(after["sum.txt"], "the file is still there")


@flow
def edit():
    """A model that is made to write an edit: the file has it afterwards."""
    grammar = 'root ::= "sum.txt\\n```\\n85\\n```"'
    settings = pathlib.Path(tempfile.mkdtemp(), "models.yml")
    settings.write_text(json.dumps([{"name": f"openai/{MODEL}", "edit_format": "whole", "use_temperature": True, "streaming": False,
                                     "extra_params": {"extra_body": {"grammar": grammar}}}]))
    code, out, said, after = aider("Write the sum.", "--model-settings-file", str(settings), files=[("sum.txt", "27 plus 58\n")])
    same(code, 0, f"an edit ({out[-400:]})")
    same([s for _, s, _ in said], [200], "one request")
    same(after["sum.txt"], "85\n", f"the edit was made: {out[-600:]}")


@flow
def errors():
    code, out, said, _ = aider(SUM, "--chat-mode", "ask", at=locked_server(), key="wrong")
    same({s for _, s, _ in said}, {401}, "a wrong key")
    check("AuthenticationError" in out, f"a wrong key: {out[-400:]}")
    code, out, said, _ = aider(LONG, "--chat-mode", "ask", at=server("middle", "--ctx", "4096"))
    same({s for _, s, _ in said}, {400}, "a long prompt")
    check("ontext" in out and "exceed" in out.lower() or "ContextWindowExceeded" in out, f"a long prompt: {out[-600:]}")


@flow
def retries():
    with full_server() as full:
        code, out, said, _ = aider(SUM, "--chat-mode", "ask", at=full)
        same([code, said[-1][1] if said else None], [0, 200], f"asked again, answered ({out[-400:]})")
        check(sum(status == 429 for _, status, _ in said) >= 2, f"refused before: {[s for _, s, _ in said]}")
        check(whole(said[-1][0]) in out, "aider shows the server's words")
