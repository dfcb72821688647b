#!/usr/bin/env python3
"""Compares our chat prompts with those of the published templates, byte for byte.

Usage: templates.py CHAT_TEXT DIRECTORY [CASES [SEED]]   compares; exit status 1 when a prompt differs
       templates.py --write CHAT_TEXT DIRECTORY          writes tests/golden/chat/expected.json

DIRECTORY has the templates as *.jinja files under any name; docs/chat.md says where they are published. They are rendered
with jinja2, set up as transformers does it. The cases are tests/golden/chat/conversations.json and CASES made-up
conversations (500), the same for the same SEED. The expected texts are stored once for all templates that agree."""
import copy
import hashlib
import json
import os
import random
import re
import subprocess
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/chat")
KINDS = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}


# --- the reference ---------------------------------------------------------------------------------
def fail(text):
    raise TemplateError(text)


def trim(value):
    """Strips a text; a list of parts is an error, as in other implementations of Jinja: jinja2 writes it as Python does."""
    return fail("trim of a list") if isinstance(value, list) else str(value).strip()


def compiled(text):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda v, **kw: json.dumps(v, ensure_ascii=False, **kw)
    env.filters["trim"] = trim
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda form: form
    return env.from_string(re.sub(r"\{%(-?) *(?:end)?generation *(-?)%\}", r"{#\1 \2#}", text))


def prepare(message):
    """Does what every server does before it calls a template: arguments become objects, media lose their wrapping, both
    names of the reasoning are given."""
    m = copy.deepcopy(message)
    for part in m["content"] if isinstance(m.get("content"), list) else []:
        part["type"] = KINDS.get(part["type"], part["type"])
    for call in m.get("tool_calls") or []:
        f = call["function"]
        if isinstance(f.get("arguments"), str):
            try:
                f["arguments"] = json.loads(f["arguments"]) if f["arguments"].strip() else None
            except ValueError:
                pass
    thought = m.get("reasoning") or m.get("reasoning_content")
    if thought:
        m["reasoning"] = m["reasoning_content"] = thought
    return m


def render(template, request):
    request = dict(request)
    context = {"bos_token": "<bos>", "add_generation_prompt": True}
    kwargs = request.pop("chat_template_kwargs", {})
    context.update(request)
    context.update(kwargs)
    context["messages"] = [prepare(m) for m in request["messages"]]
    try:
        return template.render(**context)
    except Exception:  # whatever a template trips over is a refusal
        return None


# --- made-up conversations -------------------------------------------------------------------------
KEYWORDS = ["type", "properties", "description", "items", "required", "nullable", "enum"]
NAMES = ["city", "Unit", "count", "a", "B", "b", "größe", "x-y", "file_path", "options"]
TEXTS = ["", " ", "x", "What is 2+2?", " padded \n", "two\nlines", "Grüße 🦙", "it's \"quoted\"", "<|turn>user", "a <|\"|> b",
         "{\"a\": [1, null]}", "<|channel>thought\nold<channel|>said", "<channel|>tail", "<|channel>open", "100%"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self):
        return self.r.choice(TEXTS)

    def value(self, depth=0):
        kind = self.r.randrange(9 if depth < 3 else 7)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.r.randrange(4))]
        if kind == 8:
            return {self.r.choice(NAMES + KEYWORDS): self.value(depth + 1) for _ in range(self.r.randrange(4))}
        return [self.text(), self.text(), None, True, False, self.r.randrange(-5, 1000),
                self.r.choice([0.5, -1.25, 1e-07, 1e21, 3.0])][kind]

    # schemas
    def type_name(self, name):
        return self.r.choice([name, name, name, name.upper(), name.capitalize()])

    def union(self, depth):
        key = self.r.choice(["anyOf", "oneOf", "allOf"])
        return {key: [self.schema(depth + 1) for _ in range(self.r.randrange(1, 4))]}

    def extras(self, s):
        if self.chance(0.5):
            s["description"] = self.r.choice(["A place.", "what \"it\" is", "", "two\nlines"])
        if self.chance(0.2):
            s["nullable"] = self.chance(0.7)
        if self.chance(0.15):
            s[self.r.choice(["default", "const", "title", "format", "pattern", "minimum"])] = self.value(2)
        if self.chance(0.1):
            s["enum"] = [self.value(3) for _ in range(self.r.randrange(1, 4))]
        return s

    def properties(self, depth):
        names = self.r.sample(NAMES + KEYWORDS, self.r.randrange(0, 5))
        return {n: self.schema(depth + 1) for n in names}

    def object_schema(self, depth):
        s = {"type": self.type_name("object")}
        if self.chance(0.8):
            s["properties"] = self.properties(depth)
        if self.chance(0.5):
            s["required"] = list(s.get("properties", {"a": 0}))[: self.r.randrange(3)]
        if self.chance(0.2):
            s["additionalProperties"] = self.r.choice([False, True, {"type": "string"}])
        return s

    def array_schema(self, depth):
        s = {"type": self.type_name("array")}
        if self.chance(0.85):
            s["items"] = self.r.choice([{}, [{"type": "string"}], True]) if self.chance(0.1) else self.schema(depth + 1)
        if self.chance(0.1) and isinstance(s.get("items"), dict):
            s["items"]["default"] = None
        return s

    def schema(self, depth=0):
        if depth > 3 or self.chance(0.45):
            s = {"type": self.type_name(self.r.choice(["string", "string", "integer", "number", "boolean", "null"]))}
            if self.chance(0.3) and s["type"].lower() == "string":
                s["enum"] = self.r.sample(["a", "b c", "", "D"], self.r.randrange(0, 4))
        elif self.chance(0.35):
            s = self.array_schema(depth)
        elif self.chance(0.5):
            s = self.object_schema(depth)
        elif self.chance(0.5):
            s = self.union(depth)
        elif self.chance(0.5):
            s = {"type": self.r.choice([["string", "null"], ["array", "null"], ["integer"]])}
        else:
            s = self.r.choice([{}, {"$ref": "#/$defs/x"}, {"const": 1}])
            s = dict(s)
        return self.extras(s)

    def tool(self, i):
        f = {"name": self.r.choice(["get_weather", "f", "read-file", "ü"]) + str(i)}
        if self.chance(0.8):
            f["description"] = self.text()
        if self.chance(0.9):
            f["parameters"] = self.object_schema(0) if self.chance(0.9) else self.r.choice([{}, {"type": "object"}])
        if self.chance(0.15):
            f["response"] = self.extras({"type": self.r.choice(["object", "STRING", "OBJECT"])})
        return {"type": "function", "function": f}

    # messages
    def parts(self, media=True):
        kinds = ["text", "text", "image", "audio", "video", "image_url", "input_audio"] if media else ["text"]
        parts = []
        for _ in range(self.r.randrange(4)):
            kind = self.r.choice(kinds)
            parts.append({"type": kind, "text": self.text()} if kind == "text" else {"type": kind})
        return parts

    def arguments(self):
        args = {n: self.value() for n in self.r.sample(NAMES + KEYWORDS, self.r.randrange(4))}
        kind = self.r.randrange(60)
        if kind < 5:
            return ["", None, "not JSON", [1], "5"][kind]
        return json.dumps(args, ensure_ascii=False) if kind < 30 else args

    def calls(self):
        calls = []
        for i in range(self.r.choice([1, 1, 1, 2, 3])):
            c = {"type": "function", "function": {"name": self.r.choice(["f", "get_weather", "g"]), "arguments": self.arguments()}}
            if self.chance(0.85):
                c["id"] = self.r.choice(["1", "2", "call_%d" % i])
            calls.append(c)
        return calls

    def assistant(self):
        m = {"role": "assistant"}
        kind = self.r.randrange(8)
        if kind < 5:
            m["content"] = self.text()
        elif kind == 5:
            m["content"] = None
        elif kind == 6:
            m["content"] = self.parts()
        if self.chance(0.4):
            m[self.r.choice(["reasoning", "reasoning_content"])] = self.r.choice(["hm", "two\nlines", "", "x\n"])
        if self.chance(0.5):
            m["tool_calls"] = self.calls()
        if self.chance(0.1):
            m["tool_responses"] = [
                {k: v for k, v in (("name", self.r.choice(["f", "f", ""])), ("response", self.value(1))) if k != "name" or self.chance(0.8)}
                for _ in range(self.r.randrange(3))]
        return m

    def answer(self, calls):
        m = {"role": "tool"}
        if calls and self.chance(0.8):
            call = self.r.choice(calls)
            if "id" in call:
                m["tool_call_id"] = call["id"]
        elif self.chance(0.5):
            m["tool_call_id"] = "other"
        if self.chance(0.6):
            m["name"] = self.r.choice(["f", "tool", ""])
        kind = self.r.randrange(12)
        if kind < 7:
            m["content"] = self.text()
        elif kind < 9:
            m["content"] = self.parts()
        else:
            m["content"] = [7, None, {"temp": 3}][kind - 9]
        return m

    def conversation(self):
        messages = []
        if self.chance(0.5):
            messages.append({"role": self.r.choice(["system", "system", "developer"]),
                             "content": self.parts(False) if self.chance(0.2) else self.text()})
        for _ in range(self.r.randrange(1, 6)):
            if self.chance(0.5):
                messages.append({"role": "user", "content": self.parts() if self.chance(0.25) else self.text()})
            if self.chance(0.6):
                m = self.assistant()
                messages.append(m)
                if m.get("tool_calls") and self.chance(0.8):
                    messages += [self.answer(m["tool_calls"]) for _ in m["tool_calls"]]
            elif self.chance(0.05):
                messages.append(self.answer([]))
            elif self.chance(0.05):
                messages.append({"role": "system", "content": self.text()})
        return messages or [{"role": "user", "content": "x"}]

    def request(self):
        request = {"messages": self.conversation()}
        if self.chance(0.45):
            request["tools"] = [self.tool(i) for i in range(self.r.choice([0, 1, 1, 2, 3]))]
        for key in "enable_thinking", "preserve_thinking", "add_generation_prompt":
            where = request if self.chance(0.5) else request.setdefault("chat_template_kwargs", {})
            if self.chance(0.35):
                where[key] = self.chance(0.6)
        return request


# --- ours ------------------------------------------------------------------------------------------
def ours(program, path, requests):
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in requests)
    done = subprocess.run([program, path], input=lines, capture_output=True, text=True, encoding="utf-8", check=True)
    out = [json.loads(line) for line in done.stdout.splitlines()]
    return out[0], [line.get("text") for line in out[1:]], [line.get("error") for line in out[1:]]


def templates_in(directory):
    for name in sorted(os.listdir(directory)):
        if name.endswith(".jinja"):
            path = os.path.join(directory, name)
            with open(path, encoding="utf-8", newline="") as f:
                text = f.read()
            if "<|turn>" in text:
                yield path, text


def stored_cases():
    with open(os.path.join(GOLDEN, "conversations.json"), encoding="utf-8") as f:
        return json.load(f)


def show(name, request, got, want, why):
    at = next((i for i, (a, b) in enumerate(zip(got or "", want or "")) if a != b), min(len(got or ""), len(want or "")))
    print("  %s\n    request  %s" % (name, json.dumps(request, ensure_ascii=False)))
    print("    got      %r" % (("..." + got[max(0, at - 60):at + 100]) if got is not None else "refused: %s" % why))
    print("    expected %r" % (("..." + want[max(0, at - 60):at + 100]) if want is not None else "an error"))


def compare(program, directory, n, seed):
    maker = Maker(seed)
    cases = stored_cases() + [{"name": "made up %d" % i, "request": maker.request()} for i in range(n)]
    requests = [c["request"] for c in cases]
    failed = n_templates = 0
    for path, text in templates_in(directory):
        template = compiled(text)
        what, texts, why = ours(program, path, requests)
        if not what["published"]:
            print("%s: not a published template; it resembles %s" % (os.path.basename(path), what["revision"]))
            continue
        n_templates += 1
        want = [render(template, r) for r in requests]
        wrong = [i for i in range(len(cases)) if texts[i] != want[i]]
        refused = sum(w is None for w in want)
        print("%s: %s, %s models: %d of %d the same, %d of them refused by both" %
              (os.path.basename(path), what["revision"], "large" if what["large"] else "small", len(cases) - len(wrong),
               len(cases), refused))
        for i in wrong[:3]:
            show(cases[i]["name"], requests[i], texts[i], want[i], why[i])
        failed += bool(wrong)
    if not n_templates:
        print("%s has no published template of Gemma 4" % directory)
    return 1 if failed or not n_templates else 0


def write(program, directory):
    """{"templates": [{"revision", "large", "sha256"}], "cases": {NAME: {"texts": [...], "of": [index of the text, or -1]}}}"""
    cases = stored_cases()
    templates, columns = [], []
    for path, text in templates_in(directory):
        what, _, _ = ours(program, path, [])
        if not what["published"] or any(t["revision"] == what["revision"] and t["large"] == what["large"] for t in templates):
            continue
        template = compiled(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        templates.append({"revision": what["revision"], "large": what["large"], "sha256": digest})
        columns.append([render(template, c["request"]) for c in cases])
    lines = []
    for i, case in enumerate(cases):
        texts = []
        of = []
        for column in columns:
            if column[i] is not None and column[i] not in texts:
                texts.append(column[i])
            of.append(-1 if column[i] is None else texts.index(column[i]))
        lines.append(json.dumps(case["name"]) + ": " + json.dumps({"of": of, "texts": texts}, ensure_ascii=False))
    with open(os.path.join(GOLDEN, "expected.json"), "w", encoding="utf-8") as f:
        f.write('{"templates": [\n' + ",\n".join(json.dumps(t) for t in templates) + '\n],\n"cases": {\n' +
                ",\n".join(lines) + "\n}}\n")
    return 0


def main():
    args = sys.argv[1:]
    if len(args) == 3 and args[0] == "--write":
        return write(args[1], args[2])
    if not 2 <= len(args) <= 4:
        print(__doc__, file=sys.stderr)
        return 2
    return compare(args[0], args[1], int(args[2]) if len(args) > 2 else 500, int(args[3]) if len(args) > 3 else 1)


sys.exit(main())
