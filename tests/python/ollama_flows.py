"""Ollama's Python client: chat, generate, streams, tools, formats, thoughts, the list of models, refusals."""
import json

import ollama
from harness import (APPLES, LONG, MODEL, SUM, TOOLS, Server, Weather, calls_of, check, fits, flow, full_server, locked_server, main_server,
                     raises, same, small_server, until, user)

main = main_server()
client = ollama.Client(host=main.url)
WHERE = "What is the weather in Paris?"
GREEDY = {"temperature": 0}
ASK = {"model": MODEL, "think": False, "options": GREEDY}
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def refused(status, call, words, what):
    """Checks that a call ends in the client's error with this status and these words."""
    e = raises(ollama.ResponseError, call, what)
    if e is not None:
        same(e.status_code, status, f"{what}: status")
        check(words in e.error, f"{what}: {e.error!r} has no {words!r}")


def check_counts(reply, what):
    counts = [reply[k] for k in COUNTS]
    check(all(type(c) is int and c > 0 for c in counts), f"{what}: counts {counts}")
    check(counts[0] >= counts[1] + counts[3] + counts[5], f"{what}: the total is not less than its parts: {counts}")


def join(parts, what):
    """Returns [content, thinking, calls, the last part] of a stream."""
    parts = list(parts)
    same([p.done for p in parts], [False] * (len(parts) - 1) + [True], f"{what}: the last line is done")
    check_counts(parts[-1], what)
    messages = [p.message for p in parts]
    calls = [[c.function.name, dict(c.function.arguments)] for m in messages for c in m.tool_calls or []]
    return ["".join(m.content or "" for m in messages), "".join(m.thinking or "" for m in messages), calls, parts[-1]]


def both(what, **fields):
    """Asks whole and streamed; returns the whole reply."""
    request = {**ASK, **fields}
    whole = client.chat(**request)
    content, thinking, calls, last = join(client.chat(stream=True, **request), what)
    m = whole.message
    same([content, thinking, calls, last.done_reason, last.eval_count, last.prompt_eval_count],
         [m.content or "", m.thinking or "", [[c.function.name, dict(c.function.arguments)] for c in m.tool_calls or []], whole.done_reason,
          whole.eval_count, whole.prompt_eval_count], f"{what}: the stream is the whole")
    check_counts(whole, what)
    return whole


@flow
def models():
    listed = client.list().models
    same([[m.model, m.details.family, m.details.format] for m in listed], [["nano:latest", "gemma4", "gguf"]], "the list")
    check(listed[0].size > 10**6 and len(listed[0].digest) == 64 and listed[0].modified_at, f"the list: {listed[0]}")
    running = client.ps().models
    same([[m.name, m.context_length, m.size_vram] for m in running], [["nano:latest", 8192, 0]], "what is loaded")
    shown = client.show(MODEL)
    same([shown.capabilities, shown.modelinfo["general.architecture"], shown.modelinfo["gemma4.context_length"]],
         [["completion", "tools", "thinking"], "gemma4", 8192], "show")
    same(shown.details, listed[0].details, "show's details")
    for name in ("nano:latest", "NANO"):
        same(client.show(name).modelinfo["general.architecture"], "gemma4", f"show {name}")


@flow
def chat():
    raw = main.chat([{"role": "system", "content": "Be brief."}, *user(SUM)])
    answer = both("a chat", messages=[{"role": "system", "content": "Be brief."}, *user(SUM)])
    same([answer.message.content, answer.message.role, answer.done_reason], [raw["choices"][0]["message"]["content"], "assistant", "stop"], "a chat is that of /v1")
    same([answer.prompt_eval_count, answer.eval_count], [raw["usage"]["prompt_tokens"], raw["usage"]["completion_tokens"]], "its counts")
    history = [*user(SUM), answer.message, *user("What is 2 plus 3?")]
    plain = [*user(SUM), {"role": "assistant", "content": answer.message.content}, *user("What is 2 plus 3?")]
    same(both("a second turn", messages=history).message.content, main.content(plain), "a second turn")
    seeded = {"temperature": 1.0, "seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1, "num_predict": 60}
    theirs = {**seeded, "max_tokens": seeded["num_predict"]}
    del theirs["num_predict"]
    same(both("options", messages=user("Tell me a story."), options=seeded).message.content, main.content("Tell me a story.", **theirs), "options are those of /v1")
    cut = both("stop", messages=user(SUM), options={**GREEDY, "stop": ["="]})
    same([cut.message.content, cut.done_reason], [main.content(SUM, stop=["="]), "stop"], "a stop string")
    same(both("length", messages=user(SUM), options={**GREEDY, "num_predict": 3}).done_reason, "length", "cut short")
    same(both("typed options", messages=user(SUM), options=ollama.Options(temperature=0, num_ctx=4096, num_gpu=1, mirostat=0)).message.content, main.content(SUM), "options as the client's class")


@flow
def lines():
    odd = "one\x85two\u2028three\u2029four"
    schema = {"type": "object", "properties": {"text": {"const": odd}}, "required": ["text"], "additionalProperties": False}
    same(json.loads(both("odd characters", messages=user("Hi"), format=schema).message.content), {"text": odd}, "characters that end lines for Python")


@flow
def generate():
    raw = main.chat([{"role": "system", "content": "Be brief."}, *user(SUM)])
    answer = client.generate(prompt=SUM, system="Be brief.", **ASK)
    same([answer.response, answer.done_reason], [raw["choices"][0]["message"]["content"], "stop"], "a prompt is a chat")
    check_counts(answer, "generate")
    parts = list(client.generate(prompt=SUM, system="Be brief.", stream=True, **ASK))
    same(["".join(p.response for p in parts), parts[-1].done], [answer.response, True], "generate, streamed")
    prompt = main.post("/apply-template", {"messages": user(SUM)})["prompt"]
    same(client.generate(prompt=prompt, raw=True, **ASK).response, main.content(SUM), "raw")
    for fields, words in (({"suffix": "x"}, "does not support insert"), ({"template": "{{ .Prompt }}"}, "template"), ({"context": [1]}, "context"),
                          ({"images": [b"png"]}, "text only"), ({"raw": True, "system": "x"}, "raw mode does not support")):
        refused(400, lambda: client.generate(prompt="Hi", **fields, **ASK), words, f"generate with {list(fields)[0]}")
    same([client.generate(model=MODEL).done_reason, client.generate(model=MODEL, keep_alive=0).done_reason], ["load", "unload"], "an empty prompt")
    same([client.chat(model=MODEL).done_reason, client.chat(model=MODEL, keep_alive="0s").done_reason], ["load", "unload"], "no messages")


@flow
def thinking():
    raw = main.message(APPLES, enable_thinking=True)
    for level in (True, "low", "medium", "high"):
        m = both(f"think {level}", messages=user(APPLES), think=level).message
        same([m.thinking, m.content], [raw["reasoning_content"], raw["content"]], f"think {level}")
    same(both("think unsaid", messages=user(APPLES), think=None).message.thinking, raw["reasoning_content"], "think is on unless it is said")
    check(not both("think false", messages=user(APPLES)).message.thinking, "think false")
    same(client.generate(prompt=APPLES, **{**ASK, "think": True}).thinking, raw["reasoning_content"], "generate thinks")


@flow
def tools():
    raw = main.message(WHERE, tools=TOOLS)
    answer = both("a call", messages=user(WHERE), tools=TOOLS).message
    calls = [[c.function.name, dict(c.function.arguments)] for c in answer.tool_calls or []]
    same(calls, calls_of(raw), "a call is that of /v1")
    check(len(calls) == 1 and all(fits(*c) for c in calls), f"a call: {calls}")

    def get_weather(city: str) -> str:
        """Current weather of a city

        Args:
            city: City name
        """
        return json.dumps({"sky": "sunny", "temp": 21})

    def set_timer(minutes: int) -> str:
        """Start a timer

        Args:
            minutes: Length in minutes
        """
        return "started"

    messages, result = user(WHERE), get_weather("Paris")
    answer = both("tools as functions", messages=messages, tools=[get_weather, set_timer]).message
    for more in ({"tool_name": "get_weather"}, {}):
        told = both("a result", messages=[*messages, answer, {"role": "tool", "content": result, **more}], tools=[get_weather, set_timer])
        check(told.message.content, f"an answer to {more}: {told.message}")


@flow
def formats():
    raw = main.content(WHERE, response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": Weather.model_json_schema()}})
    answer = both("a schema", messages=user(WHERE), format=Weather.model_json_schema()).message.content
    same(answer, raw, "a schema is that of /v1")
    Weather.model_validate_json(answer)
    thought = both("a schema after a thought", messages=user(WHERE), format=Weather.model_json_schema(), think=True).message
    Weather.model_validate_json(thought.content)
    check(isinstance(json.loads(both("any object", messages=user(WHERE), format="json").message.content), dict), "any object")
    same(both("an empty format", messages=user(SUM), format="").message.content, main.content(SUM), "an empty format")


@flow
def logprobs():
    answer = client.chat(messages=user(SUM), logprobs=True, top_logprobs=2, **ASK)
    same("".join(p.token for p in answer.logprobs), answer.message.content, "the tokens of log-probabilities")
    check(all(len(p.top_logprobs) == 2 and p.logprob <= 0 for p in answer.logprobs), "log-probabilities")


@flow
def errors():
    hi = {"messages": user("Hi"), **ASK}
    refused(404, lambda: client.chat(**{**hi, "model": "other"}), "model 'other' not found", "another model")
    refused(404, lambda: client.show("other"), "not found", "show another model")
    refused(400, lambda: client.chat(**{**hi, "options": {"temperature": "hot"}}), 'option "temperature" must be of type float32', "an option")
    refused(400, lambda: client.chat(**{**hi, "keep_alive": "soon"}), "invalid duration", "keep_alive")
    refused(400, lambda: client.chat(messages=[{"role": "user", "content": "What is this?", "images": [b"png"]}], **ASK), "text only", "an image")
    refused(400, lambda: list(client.chat(**{**hi, "options": {"temperature": "hot"}}, stream=True)), "temperature", "an option of a stream")
    small = ollama.Client(host=small_server().url)
    refused(400, lambda: small.chat(messages=user(LONG), **ASK), "maximum context length is 1024 tokens", "a prompt over the context")
    for name, call in {"embed": lambda: client.embed(model=MODEL, input="Hi"), "embeddings": lambda: client.embeddings(model=MODEL, prompt="Hi"),
                       "delete": lambda: client.delete(MODEL), "copy": lambda: client.copy(MODEL, "x"), "create": lambda: client.create(model="x", from_=MODEL),
                       "push": lambda: client.push(MODEL)}.items():
        refused(501, call, "This server", name)
    same(client.pull(MODEL).status, "success", "a model that is here")
    same([p.status for p in client.pull(MODEL, stream=True)], ["success"], "a pull's lines")
    refused(404, lambda: client.pull("llama3.2"), "tandem serve", "a model that is not here")


@flow
def keys():
    locked = locked_server()
    refused(401, lambda: ollama.Client(host=locked.url).chat(messages=user("Hi"), **ASK), "API key", "no key")
    with_key = ollama.Client(host=locked.url, headers={"Authorization": f"Bearer {locked.key}"})
    check(with_key.chat(messages=user("Hi"), **ASK).done, "the right key")


@flow
def busy():
    with full_server() as full:
        for _ in range(2):
            refused(429, lambda: ollama.Client(host=full.url).chat(messages=user("Hi"), **ASK), "busy", "a full server")


@flow
def leaving():
    endless = {**ASK, "options": {"temperature": 30.0, "seed": 1, "num_predict": 7000}}
    parts = client.chat(messages=user("Tell me a story."), stream=True, **endless)
    next(parts), next(parts)
    parts.close()
    until(main.idle, "an answer whose client left ends")


@flow
def failure():
    hasty = Server("--set", "request_timeout_ms=400")
    endless = {**ASK, "options": {"temperature": 30.0, "seed": 1, "num_predict": 7000}}
    hurried = ollama.Client(host=hasty.url)
    refused(504, lambda: hurried.chat(messages=user("Tell me a story."), **endless), "time", "an answer that takes too long")
    refused(-1, lambda: list(hurried.chat(messages=user("Tell me a story."), stream=True, **endless)), "time", "a stream that takes too long")
    same(hasty.stop(), 0, "SIGTERM ends the server")
