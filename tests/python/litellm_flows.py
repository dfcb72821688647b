"""LiteLLM: its completion calls over chat completions, messages and text completions, and its own routes to an OpenAI server."""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the table inside the package, not the one on the network

import litellm
from harness import (APPLES, LONG, MODEL, SUM, TOOLS, Sky, Weather, calls_of, check, fits, flow, full_server, locked_server,
                     main_server, raises, same, small_server, until, user)

main = main_server()
litellm.suppress_debug_info = True
litellm.telemetry = False
WHERE = "What is the weather in Paris?"
ROUTES = {"openai": main.v1, "hosted_vllm": main.v1, "llamafile": main.v1, "lm_studio": main.v1, "anthropic": main.url}


def ask(messages, route="openai", at=None, **fields):
    return litellm.completion(**{"model": f"{route}/{MODEL}", "api_base": at or ROUTES[route], "api_key": "none", "messages": user(messages) if isinstance(messages, str) else messages,
                                 "temperature": 0, "max_retries": 0, "max_tokens": 300, **fields})


@flow
def chat():
    raw = main.chat(SUM)
    for route in ROUTES:
        got = ask(SUM, route)
        same(got.choices[0].message.content, raw["choices"][0]["message"]["content"], f"a chat ({route})")
        same([got.usage.prompt_tokens, got.usage.completion_tokens], [raw["usage"]["prompt_tokens"], raw["usage"]["completion_tokens"]], f"its usage ({route})")
        same(got.choices[0].finish_reason, "stop", f"how it ends ({route})")
    history = [{"role": "system", "content": "Be brief."}] + user(SUM) + [{"role": "assistant", "content": "85"}] + user("What is 2 plus 3?")
    same(ask(history).choices[0].message.content, main.content(history), "a second turn")


@flow
def stream():
    raw = main.chat(SUM)
    for route in ROUTES:
        chunks = list(ask(SUM, route, stream=True, stream_options={"include_usage": True}))
        same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), raw["choices"][0]["message"]["content"], f"a stream is the whole ({route})")
        built = litellm.stream_chunk_builder(chunks, messages=user(SUM))
        same(built.usage.completion_tokens, raw["usage"]["completion_tokens"], f"its usage ({route})")


@flow
def tools():
    for route in ("openai", "hosted_vllm", "anthropic"):
        for choice in ("auto", "required", {"type": "function", "function": {"name": "set_timer"}}):
            raw, got = main.message(WHERE, tools=TOOLS, tool_choice=choice), ask(WHERE, route, tools=TOOLS, tool_choice=choice).choices[0].message
            calls = [[c.function.name, json.loads(c.function.arguments)] for c in got.tool_calls or []]
            same([got.content or None, calls], [raw["content"] or None, calls_of(raw)], f"tool_choice {choice} ({route})")
            if choice != "auto":
                check(calls and all(fits(*c) for c in calls), f"tool_choice {choice} ({route}): {calls}")
            chunks = list(ask(WHERE, route, tools=TOOLS, tool_choice=choice, stream=True))
            built = litellm.stream_chunk_builder(chunks).choices[0].message
            same([[c.function.name, json.loads(c.function.arguments)] for c in built.tool_calls or []], calls, f"tool_choice {choice}, streamed ({route})")


@flow
def tool_results():
    first = ask(WHERE, tools=TOOLS, tool_choice="required").choices[0].message
    results = [{"role": "tool", "tool_call_id": c.id, "name": c.function.name, "content": '{"sky":"sunny","temp":21}'} for c in first.tool_calls]
    messages = user(WHERE) + [first.model_dump()] + results
    raw = main.content(json.loads(json.dumps(messages)), tools=TOOLS)
    for route in ("openai", "anthropic"):
        same(ask(messages, route, tools=TOOLS).choices[0].message.content, raw, f"the results of calls ({route})")


@flow
def structured_output():
    for route in ("openai", "hosted_vllm"):
        got = ask(WHERE, route, response_format=Weather, temperature=1, seed=3).choices[0].message.content
        check(Weather.model_validate_json(got), f"a pydantic model ({route}): {got}")
    got = ask(WHERE, response_format={"type": "json_object"}, max_tokens=60).choices[0].message.content
    check(isinstance(json.loads(got), dict), f"any object: {got}")
    got = ask(WHERE, response_format={"type": "json_object", "response_schema": Sky.model_json_schema()}, max_tokens=60).choices[0].message.content
    check(isinstance(json.loads(got), dict), f"an object with a schema in LiteLLM's own field: {got}")


@flow
def thinking():
    raw = main.message(APPLES, reasoning_effort="medium")
    for route in ("hosted_vllm", "anthropic"):
        more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1, "top_k": 1, "max_tokens": 2000} if route == "anthropic" else {"reasoning_effort": "medium"}
        got = ask(APPLES, route, allowed_openai_params=["reasoning_effort", "thinking"], **more).choices[0].message
        same([got.reasoning_content, got.content], [raw["reasoning_content"], raw["content"]], f"a thought ({route})")
        chunks = list(ask(APPLES, route, stream=True, allowed_openai_params=["reasoning_effort", "thinking"], **more))
        same("".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices), raw["reasoning_content"], f"a thought, streamed ({route})")


@flow
def text_completion():
    got = litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=main.v1, api_key="none", prompt="Once upon a time", temperature=0, max_tokens=12)
    same(got.choices[0].text, main.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12})["choices"][0]["text"], "a text goes on")


@flow
def responses():
    got = litellm.responses(model=f"openai/{MODEL}", api_base=main.v1, api_key="none", input=SUM, temperature=0)
    text = "".join(c.text for o in got.output if o.type == "message" for c in o.content)
    same(text, main.content(SUM), "a response")


@flow
def errors():
    raises(litellm.AuthenticationError, lambda: ask(SUM, at=locked_server().v1, api_key="wrong"), "a wrong key")
    for route, at in (("openai", small_server().v1), ("hosted_vllm", small_server().v1), ("anthropic", small_server().url)):
        raises(litellm.ContextWindowExceededError, lambda: ask(LONG, route, at), f"a long prompt ({route})")
    raises(litellm.BadRequestError, lambda: ask(SUM, top_p=7), "a bad field")
    raises(Exception, lambda: litellm.embedding(model=f"openai/{MODEL}", api_base=main.v1, api_key="none", input=["Hi"], max_retries=0), "embeddings")


@flow
def models():
    same(litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", api_base=main.v1, api_key="none"), [MODEL], "the list of models")


@flow
def retries():
    with full_server() as full:
        raises(litellm.RateLimitError, lambda: ask(SUM, at=full.v1), "a full queue")
        same(ask(SUM, at=full.v1, max_retries=6).choices[0].message.content, main.content(SUM), "asked again, answered")


@flow
def abort():
    stream = ask("Tell me a story.", stream=True, max_tokens=6000, extra_body={"ignore_eos": True})
    for _, chunk in zip(range(4), stream):
        check(chunk.id, "a chunk")
    stream.completion_stream.close()
    until(main.idle, "an answer whose client left ends")
