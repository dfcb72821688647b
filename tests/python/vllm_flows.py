"""What vLLM's tests of its own server expect of an answer, asked of this one."""
import json
import re

import openai
from harness import MODEL, SUM, TOOLS, Weather, calls_of, check, fits, flow, main_server, raises, same, user

main = main_server()
client = openai.OpenAI(base_url=main.v1, api_key="none", max_retries=0)
ASK = {"model": MODEL, "messages": user(SUM), "max_completion_tokens": 10, "temperature": 0}
TEXT = {"model": MODEL, "prompt": "Hello, my name is", "max_tokens": 5, "temperature": 0}
CHOICES = ["Python", "Rust", "Haskell"]


def kept_or_named(field, value, path="/v1/chat/completions", body=ASK, kept=lambda reply: False):
    """Checks that a field is kept, refused by its name, or named in the warning header: never dropped without a word."""
    status, headers, text = main.answer(path, {**body, field: value})
    named = field in (headers["X-Tandem-Warning"] or "") if status == 200 else status == 400 and field in text
    check(named or status == 200 and kept(json.loads(text)), f"{field}={value}: {status} {headers['X-Tandem-Warning']} {text[:200]}")


@flow
def logprobs():
    same(client.chat.completions.create(**ASK, logprobs=False).choices[0].logprobs, None, "none")
    for n in (0, 5, 20):
        got = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=n).choices[0].logprobs.content
        same({len(t.top_logprobs) for t in got}, {n}, f"{n} likely ones")
    for n in (21, 30):
        for stream in (False, True):
            raises(openai.BadRequestError, lambda: client.chat.completions.create(**ASK, logprobs=True, top_logprobs=n, stream=stream), f"{n} likely ones")
    got = client.completions.create(**TEXT, logprobs=5).choices[0].logprobs
    check(all(5 <= len(t) <= 6 for t in got.top_logprobs) and len(got.tokens) == len(got.token_logprobs), "of a text")
    raises(openai.BadRequestError, lambda: client.completions.create(**TEXT, logprobs=21), "too many, of a text")
    check(main.content(SUM), "the server still works")


@flow
def stream_options():
    for options in ({"include_usage": False}, {}):
        same({e.usage for e in client.chat.completions.create(**ASK, stream=True, stream_options=options)}, {None}, f"{options}")
    *before, last = client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    same([{e.usage for e in before}, last.choices, last.usage.total_tokens], [{None}, [], last.usage.prompt_tokens + last.usage.completion_tokens], "the usage at the end")
    same(len([e for e in before if e.choices[0].finish_reason]), 1, "one finish reason")
    *before, last = client.completions.create(**TEXT, stream=True, stream_options={"include_usage": True})
    same([last.choices, last.usage.completion_tokens > 0], [[], True], "the usage at the end of a text")


@flow
def several():
    three = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=50, n=3, temperature=1, seed=42, logprobs=0)
    same([c.index for c in three.choices], [0, 1, 2], "three answers")
    pieces = {}
    for e in client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=50, n=3, temperature=1, seed=42, stream=True):
        for c in e.choices:
            pieces[c.index] = pieces.get(c.index, "") + c.text
    same([pieces[i] for i in range(3)], [c.text for c in three.choices], "three answers, streamed")
    batch = client.completions.create(model=MODEL, prompt=["Hello", "Hello"], n=2, max_tokens=5, temperature=0)
    same([len(batch.choices), len({c.text for c in batch.choices})], [4, 1], "two answers to each of two prompts")


@flow
def structured_outputs():
    for field in ({"structured_outputs": {"choice": CHOICES}}, {"guided_choice": CHOICES}):
        check(main.content(SUM, **field) in CHOICES, f"{field}")
    schema = Weather.model_json_schema()
    for field in ({"structured_outputs": {"json": schema}}, {"guided_json": schema}, {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}}):
        check(Weather.model_validate_json(main.content(SUM, **field)), f"{list(field)}")
    pattern = r"((25[0-5]|(2[0-4]|1[0-9]|[1-9]|)[0-9])\.){3}(25[0-5]|(2[0-4]|1[0-9]|[1-9]|)[0-9])"
    for field in ({"structured_outputs": {"regex": pattern}}, {"guided_regex": pattern}):
        got = main.content(SUM, **field)
        check(re.fullmatch(pattern, got), f"{list(field)}: {got}")
    for field in ({"structured_outputs": {"grammar": 'root ::= "SELECT " [a-z]{1,4}'}}, {"guided_grammar": 'root ::= "SELECT " [a-z]{1,4}'}):
        check(re.fullmatch("SELECT [a-z]{1,4}", main.content(SUM, **field)), f"{list(field)}")
    check(main.refusal("/v1/chat/completions", {**ASK, "structured_outputs": {"choice": CHOICES, "regex": "a"}}), "two forms at once")
    check(main.refusal("/v1/chat/completions", {**ASK, "guided_json": 7}).get("message"), "a schema that is none")


@flow
def tools():
    named = {"type": "function", "function": {"name": "set_timer"}}
    for choice in (named, "required"):
        whole = calls_of(main.message(SUM, tools=TOOLS, tool_choice=choice))
        check(whole and all(fits(*c) for c in whole), f"tool_choice {choice}: {whole}")
    for choice, tools in ((named, None), ("required", None), ({"type": "function", "function": {"name": "missing"}}, TOOLS), ({"type": "function"}, TOOLS)):
        body = {**ASK, "tool_choice": choice, **({"tools": tools} if tools else {})}
        check(main.refusal("/v1/chat/completions", body).get("message"), f"tool_choice {choice} with {bool(tools)} tools")
    same(main.message(SUM, tools=TOOLS, tool_choice=None)["content"], main.message(SUM, tools=TOOLS)["content"], "tool_choice null is auto")


@flow
def messages():
    same(main.content([{"role": "user", "content": SUM, "extra": 1, "name": "tom"}]), main.content(SUM), "other fields of a message")
    same(main.content([{"role": "user", "content": [{"type": "text", "text": SUM}]}]), main.content(SUM), "one part")
    for seed in (2**63, -(2**63) - 1, 2**70):
        check(main.refusal("/v1/chat/completions", {**ASK, "seed": seed}).get("message"), f"a seed of {seed}")
    for body in (b"[]", b"3", b'"text"', b"null"):
        status, _, text = main.answer("/v1/chat/completions", body)
        same([status, "message" in json.loads(text)["error"]], [400, True], f"a body that is no object: {body}")


@flow
def completions():
    for prompt in ([], [[]], {}, None, [-1], [10**9]):
        check(main.refusal("/v1/completions", {**TEXT, "prompt": prompt}).get("message"), f"a prompt of {prompt}")
    echo = main.post("/v1/completions", {**TEXT, "echo": True, "logprobs": 1})["choices"][0]
    check(echo["text"].startswith(TEXT["prompt"]), f"echo: {echo['text']}")
    same([echo["logprobs"]["token_logprobs"][0], echo["logprobs"]["text_offset"][0]], [None, 0], "the first token has no probability")
    check(all(p <= 0 for p in echo["logprobs"]["token_logprobs"][1:]), "probabilities of the prompt")
    ids = main.post("/tokenize", {"prompt": TEXT["prompt"]})
    same(ids["count"], len(ids["tokens"]), "/tokenize")
    same(main.post("/detokenize", {"tokens": ids["tokens"]})["prompt"].removeprefix("<bos>"), TEXT["prompt"], "/detokenize")


@flow
def sampling_fields():
    long = main.chat("Hi", min_tokens=40, max_tokens=60)
    check(long["usage"]["completion_tokens"] >= 40, f"min_tokens: {long['usage']}")
    first = main.post("/v1/completions", {**TEXT, "ignore_eos": True, "logprobs": 0})["choices"][0]["logprobs"]["tokens"]
    stop = main.post("/tokenize", {"content": first[1]})["tokens"][0]
    cut = main.post("/v1/completions", {**TEXT, "ignore_eos": True, "stop_token_ids": [stop]})
    same([cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"] <= 2], ["stop", True], "stop_token_ids")
    for field, value in (("use_beam_search", True), ("bad_words", ["a"]), ("allowed_token_ids", [5]), ("include_stop_str_in_output", True),
                         ("prompt_logprobs", 1), ("prompt_logprobs", -1), ("truncate_prompt_tokens", 4), ("thinking_token_budget", 5)):
        kept_or_named(field, value)
    kept_or_named("return_token_ids", True, kept=lambda r: "token_ids" in r["choices"][0])
    kept_or_named("priority", 3)
    kept_or_named("stream_options", {"continuous_usage_stats": True}, body={**ASK, "stream": True})
    kept_or_named("skip_special_tokens", False)
    kept_or_named("include_reasoning", False)


@flow
def about():
    listed = json.loads(main.request("/v1/models"))["data"][0]
    check(listed["max_model_len"] > 0, f"max_model_len: {listed}")
    check(json.loads(main.request("/version"))["version"], "/version")
    metrics = main.request("/metrics")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:time_to_first_token_seconds"):
        check(f"# TYPE {name} " in metrics, name)
