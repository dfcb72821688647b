#!/usr/bin/env python3
"""Renders conversations with the real chat templates of Gemma 4 and Python's jinja2, which is what they are written for:
where a template prints a value that is not a string, the text is Python's own (None, 1e-05, ['a', 'b']).
Usage: quirks.py TEMPLATE_DIR [CONVERSATIONS] > quirks_expected.json (the same files as tests/e2e/templates.mjs)."""
import copy
import json
import os
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

EMPTY_THOUGHT = "{{- '<|channel>thought\\n<channel|>' -}}"
KINDS = {"image_url": "image", "input_audio": "audio", "video_url": "video"}


def fail(text):
    raise ValueError(text)


def compiled(text):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = fail
    return env.from_string(text)


def prepare(message):
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
    except Exception as e:  # whatever a template trips over is a refusal
        return {"error": str(e)}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    conversations = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "quirks.json")
    texts = {}
    for key, name in ("A", "google-gemma-4-31B-it.jinja"), ("B", "vllm-gemma-4-tool.jinja"):
        with open(os.path.join(sys.argv[1], name), encoding="utf-8") as f:
            texts[key] = f.read()
        texts[key + "-small"] = texts[key].replace(EMPTY_THOUGHT, "")
    templates = {key: compiled(texts[key]) for key in ("A", "A-small", "B", "B-small")}
    with open(conversations, encoding="utf-8") as f:
        lines = [
            json.dumps(c["name"]) + ": "
            + json.dumps({k: render(t, c["request"]) for k, t in templates.items()}, ensure_ascii=False)
            for c in json.load(f)
        ]
    print("{\n" + ",\n".join(lines) + "\n}")


main()
