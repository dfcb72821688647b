"""Answers that are held to the schemas of Pydantic's types, parsed by them."""
import json
import urllib.request

from harness import MODEL, check, flow, main_server, same, user
from pydantic import TypeAdapter, ValidationError
from pydantic_types import LOOSE, REFUSED, TYPES, schema_of

main = main_server()


def ask(schema, seed):
    """Returns [status, content or error] of an answer at temperature 1 that is held to a schema."""
    body = {"model": MODEL, "messages": user("Write a record."), "temperature": 1, "seed": seed, "max_tokens": 300,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    request = urllib.request.Request(f"{main.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return [reply.status, json.load(reply)["choices"][0]["message"]["content"]]
    except urllib.error.HTTPError as e:
        return [e.code, json.load(e)["error"]["message"]]


@flow
def answers_parse():
    for name, kind in TYPES.items():
        adapter = TypeAdapter(kind)
        for seed in range(2):
            status, text = ask(schema_of(name), seed)
            if name in REFUSED:
                check(status == 400 and "uniqueItems" in text, f"{name}: {status} {text[:200]}")
                continue
            if not check(status == 200, f"{name}: {status} {text[:300]}"):
                continue
            try:
                adapter.validate_json(text) if name not in LOOSE else json.loads(text)
            except (ValidationError, ValueError) as e:
                check(False, f"{name}: {text[:200]!r} does not parse: {e}")


@flow
def recorded_schemas_are_current():
    path = __file__.rsplit("/", 2)[0] + "/golden/schemas/pydantic.json"
    with open(path) as f:
        recorded = {row["in"]: row["schema"] for row in json.load(f)["types"]}
    same(recorded, {f"pydantic/{name}": schema_of(name) for name in TYPES}, "tests/golden/schemas/pydantic.json")
