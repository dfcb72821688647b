"""Anthropic's Python client: messages, streams, tools, thoughts, counts."""
import json

import anthropic
from harness import (APPLES, LONG, MODEL, SUM, TOOLS, Sky, calls_of, check, fits, flow, full_server, locked_server, main_server,
                     raises, same, small_server, until, user)

main = main_server()
client = anthropic.Anthropic(base_url=main.url, api_key="none", max_retries=0)
WHERE = "What is the weather in Paris?"
ASK = {"model": MODEL, "max_tokens": 300, "extra_body": {"temperature": 0}}
TOOLS_HERE = [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in TOOLS]


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


@flow
def models():
    same([m.id for m in client.models.list()], [MODEL], "the list of models")


@flow
def chat():
    answer = client.messages.create(messages=user(SUM), system="Be brief.", **ASK)
    raw = main.chat([{"role": "system", "content": "Be brief."}] + user(SUM))
    same(text_of(answer), raw["choices"][0]["message"]["content"], "a message")
    same([answer.usage.output_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens], [raw["usage"]["completion_tokens"], raw["usage"]["prompt_tokens"]], "its usage")
    same([answer.stop_reason, answer.role, answer.model], ["end_turn", "assistant", MODEL], "its head")
    same(client.messages.count_tokens(model=MODEL, messages=user(SUM)).input_tokens, main.chat(SUM)["usage"]["prompt_tokens"], "tokens, counted")
    history = user(SUM) + [{"role": "assistant", "content": answer.content}] + user("What is 2 plus 3?")
    plain = user(SUM) + [{"role": "assistant", "content": text_of(answer)}] + user("What is 2 plus 3?")
    same(text_of(client.messages.create(messages=history, **ASK)), main.content(plain), "a second turn")
    cut = client.messages.create(messages=user(SUM), stop_sequences=["="], **ASK)
    same([cut.stop_reason, cut.stop_sequence], ["stop_sequence", "="], "a stop sequence")


@flow
def stream():
    raw = main.chat(SUM)
    with client.messages.stream(messages=user(SUM), **ASK) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    same([text, text_of(final)], [raw["choices"][0]["message"]["content"]] * 2, "a stream is the whole")
    same(final.usage.output_tokens, raw["usage"]["completion_tokens"], "its usage")
    kinds = [e.type for e in client.messages.create(messages=user(SUM), stream=True, **ASK)]
    same([kinds[0], kinds[-1]], ["message_start", "message_stop"], "raw events")


@flow
def tools():
    for choice, other in (({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none"),
                          ({"type": "tool", "name": "set_timer"}, {"type": "function", "function": {"name": "set_timer"}})):
        request = {"messages": user(WHERE), "tools": TOOLS_HERE, "tool_choice": choice, **ASK}
        answer, raw = client.messages.create(**request), main.message(WHERE, tools=TOOLS, tool_choice=other)
        calls = [[b.name, b.input] for b in answer.content if b.type == "tool_use"]
        same([text_of(answer) or None, calls], [raw["content"] or None, calls_of(raw)], f"tool_choice {choice}")
        with client.messages.stream(**request) as events:
            final = events.get_final_message()
        same([[b.name, b.input] for b in final.content if b.type == "tool_use"], calls, f"tool_choice {choice}, streamed")
        if other not in ("auto", "none"):
            check(calls and all(fits(*c) for c in calls), f"tool_choice {choice}: {calls}")
            same(answer.stop_reason, "tool_use", f"tool_choice {choice}")
    one = client.messages.create(messages=user(WHERE), tools=TOOLS_HERE, tool_choice={"type": "any", "disable_parallel_tool_use": True}, **ASK)
    same(len([b for b in one.content if b.type == "tool_use"]), 1, "one call alone")


@flow
def tool_results():
    first = client.messages.create(messages=user(WHERE), tools=TOOLS_HERE, tool_choice={"type": "any"}, **ASK)
    uses = [b for b in first.content if b.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": json.dumps({"sky": "sunny", "temp": 21})} for b in uses]
    messages = user(WHERE) + [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    answer = client.messages.create(messages=messages, tools=TOOLS_HERE, **ASK)
    calls = [{"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}} for b in uses]
    raw = user(WHERE) + [{"role": "assistant", "tool_calls": calls}]
    raw += [{"role": "tool", "tool_call_id": r["tool_use_id"], "content": r["content"]} for r in results]
    same(text_of(answer) or None, main.content(raw, tools=TOOLS), "the results of calls")


@flow
def structured_output():
    answer = client.messages.parse(messages=user(WHERE), output_format=Sky, **ASK)
    check(isinstance(answer.parsed_output, Sky), f"a pydantic model: {text_of(answer)}")


@flow
def thinking():
    request = {"messages": user(APPLES), "thinking": {"type": "adaptive"}, **ASK, "max_tokens": 2000}
    answer, raw = client.messages.create(**request), main.message(APPLES, reasoning_effort="medium")
    same([answer.content[0].type, answer.content[0].thinking, text_of(answer)], ["thinking", raw["reasoning_content"], raw["content"]], "a thought")
    with client.messages.stream(**request) as events:
        final = events.get_final_message()
    same([final.content[0].thinking, text_of(final)], [raw["reasoning_content"], raw["content"]], "a thought, streamed")
    check(final.content[0].signature, "a thought has a signature")
    again = user(APPLES) + [{"role": "assistant", "content": final.content}] + user(SUM)
    same(text_of(client.messages.create(messages=again, **ASK)), main.content(user(APPLES) + [{"role": "assistant", "content": raw["content"]}] + user(SUM)), "a thought goes back in")


@flow
def errors():
    bad = anthropic.Anthropic(base_url=locked_server().url, api_key="wrong", max_retries=0)
    raises(anthropic.AuthenticationError, lambda: bad.messages.create(messages=user(SUM), **ASK), "a wrong key")
    good = anthropic.Anthropic(base_url=locked_server().url, api_key="right-key", max_retries=0)
    same(text_of(good.messages.create(messages=user(SUM), **ASK)), main.content(SUM), "the right key")
    small = anthropic.Anthropic(base_url=small_server().url, api_key="none", max_retries=0)
    e = raises(anthropic.BadRequestError, lambda: small.messages.create(messages=user(LONG), **ASK), "a long prompt")
    check("prompt is too long" in str(e), f"a long prompt: {e}")
    raises(anthropic.BadRequestError, lambda: client.messages.create(messages=[], **ASK), "no messages")
    same(e.body["error"]["type"], "invalid_request_error", "the type of an error")


@flow
def retries():
    with full_server() as full:
        one = anthropic.Anthropic(base_url=full.url, api_key="none", max_retries=0)
        raises(anthropic.RateLimitError, lambda: one.messages.create(messages=user(SUM), **ASK), "a full queue")
        patient = anthropic.Anthropic(base_url=full.url, api_key="none", max_retries=5)
        same(text_of(patient.messages.create(messages=user(SUM), **ASK)), main.content(SUM), "asked again, answered")


@flow
def abort():
    with client.messages.stream(messages=user("Tell me a story."), model=MODEL, max_tokens=6000, extra_body={"ignore_eos": True}) as events:
        for _, event in zip(range(4), events):
            check(event.type, "an event")
    until(main.idle, "an answer whose client left ends")
