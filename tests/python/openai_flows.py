"""OpenAI's Python client: chat completions, responses, completions, models."""
import asyncio
import json

import openai
from harness import (APPLES, LONG, MODEL, SUM, TOOLS, Weather, calls_of, check, fits, flow, full_server, locked_server, main_server,
                     raises, same, small_server, until, user)

main = main_server()
client = openai.OpenAI(base_url=main.v1, api_key="none", max_retries=0)
chat = client.chat.completions
WHERE = "What is the weather in Paris?"


def joined(stream):
    """Returns the text, the thought, the calls, the finish reason and the usage of a stream."""
    text, thought, calls, finish, usage = "", "", {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, [part.function.name, ""])
                call[1] += part.function.arguments or ""
    return text, thought, [[name, json.loads(a)] for name, a in calls.values()], finish, usage


@flow
def models():
    same([m.id for m in client.models.list()], [MODEL], "the list of models")
    same(client.models.retrieve(MODEL).id, MODEL, "a model by its name")
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-5"), "a model that is not there")


@flow
def chat_():
    whole = chat.create(model=MODEL, messages=user(SUM), temperature=0)
    raw = main.chat(SUM)
    same(whole.choices[0].message.content, raw["choices"][0]["message"]["content"], "a chat")
    same([whole.usage.prompt_tokens, whole.usage.completion_tokens], [raw["usage"]["prompt_tokens"], raw["usage"]["completion_tokens"]], "its usage")
    same([whole.choices[0].finish_reason, whole.model, whole.object], ["stop", MODEL, "chat.completion"], "its head")
    history = user(SUM) + [{"role": "assistant", "content": whole.choices[0].message.content}] + user("What is 2 plus 3?")
    same(chat.create(model=MODEL, messages=history, temperature=0).choices[0].message.content, main.content(history), "a second turn")
    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": SUM}]}]
    same(chat.create(model=MODEL, messages=parts, temperature=0).choices[0].message.content, main.content(parts), "parts, and a developer's message")
    several = chat.create(model=MODEL, messages=user("Tell me a story."), n=2, seed=7, temperature=1, stop=["."], max_completion_tokens=20, logprobs=True, top_logprobs=2)
    same([c.index for c in several.choices], [0, 1], "two answers")
    check(all(len(t.top_logprobs) == 2 for c in several.choices for t in c.logprobs.content), "log-probabilities")
    check(all("." not in c.message.content for c in several.choices), "a stop string")


@flow
def stream():
    raw = main.chat(SUM)
    text, _, _, finish, usage = joined(chat.create(model=MODEL, messages=user(SUM), temperature=0, stream=True, stream_options={"include_usage": True}))
    same([text, finish], [raw["choices"][0]["message"]["content"], "stop"], "a stream is the whole")
    same(usage.completion_tokens, raw["usage"]["completion_tokens"], "the usage of a stream")
    with chat.stream(model=MODEL, messages=user(SUM), temperature=0) as events:
        kinds = {e.type for e in events}
        same(events.get_final_completion().choices[0].message.content, text, "the client's own events")
    check({"chunk", "content.delta", "content.done"} <= kinds, f"kinds of events: {kinds}")

    async def ask():
        async with openai.AsyncOpenAI(base_url=main.v1, api_key="none") as other:
            async def one(n):
                s = await other.chat.completions.create(model=MODEL, messages=user(f"What is {n} plus 58?"), temperature=0, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in s if c.choices])
            return await asyncio.gather(*(one(n) for n in (27, 31, 44, 12)))
    same(asyncio.run(ask()), [main.content(f"What is {n} plus 58?") for n in (27, 31, 44, 12)], "four streams at once")


@flow
def tools():
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "set_timer"}}):
        request = {"messages": user(WHERE), "tools": TOOLS, "tool_choice": choice, "temperature": 0}
        raw, answer = main.message(**request), chat.create(model=MODEL, **request).choices[0]
        calls = [[c.function.name, json.loads(c.function.arguments)] for c in answer.message.tool_calls or []]
        same([answer.message.content, calls], [raw["content"], calls_of(raw)], f"tool_choice {choice}")
        text, _, streamed, finish, _ = joined(chat.create(model=MODEL, stream=True, **request))
        same([text or None, streamed, finish], [raw["content"] or None, calls, answer.finish_reason], f"tool_choice {choice}, streamed")
        if choice not in ("auto", "none"):
            check(calls and all(fits(*c) for c in calls), f"tool_choice {choice}: {calls}")
            same(answer.finish_reason, "tool_calls", f"tool_choice {choice}")
        if isinstance(choice, dict):
            same({name for name, _ in calls}, {"set_timer"}, "the tool that was named")
        if choice == "none":
            same(calls, [], "tool_choice none")
    one = chat.create(model=MODEL, messages=user(WHERE), tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0)
    same(len(one.choices[0].message.tool_calls), 1, "parallel_tool_calls false")


@flow
def tool_results():
    calls = [{"id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}} for i, city in enumerate(["Paris", "Oslo"])]
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": json.dumps({"sky": sky, "temp": temp})} for i, (sky, temp) in enumerate([("sunny", 21), ("rainy", 7)])]
    messages = user("What is the weather in Paris and in Oslo?") + [{"role": "assistant", "tool_calls": calls}] + results
    answer = chat.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0).choices[0].message
    same(answer.content, main.content(messages, tools=TOOLS), "results of two calls")
    forced = chat.create(model=MODEL, messages=user(WHERE), tools=TOOLS, tool_choice="required", temperature=0).choices[0].message
    back = user(WHERE) + [forced.model_dump(exclude_none=True)] + [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in forced.tool_calls]
    same(chat.create(model=MODEL, messages=back, tools=TOOLS, temperature=0).choices[0].message.content, main.content(back, tools=TOOLS), "the client's own message goes back in")


@flow
def structured_output():
    parsed = chat.parse(model=MODEL, messages=user(WHERE), response_format=Weather, temperature=1, seed=3).choices[0].message
    check(isinstance(parsed.parsed, Weather), f"a pydantic model: {parsed.content}")
    with chat.stream(model=MODEL, messages=user(WHERE), response_format=Weather, temperature=1, seed=3) as events:
        for _ in events:
            pass
        same(events.get_final_completion().choices[0].message.parsed, parsed.parsed, "the same, streamed")
    tool = openai.pydantic_function_tool(Weather)
    call = chat.parse(model=MODEL, messages=user(WHERE), tools=[tool], tool_choice="required", temperature=0).choices[0].message.tool_calls[0]
    check(isinstance(call.function.parsed_arguments, Weather), f"a pydantic model as a tool: {call}")
    thing = chat.create(model=MODEL, messages=user(WHERE), response_format={"type": "json_object"}, temperature=0, max_tokens=60).choices[0].message.content
    check(isinstance(json.loads(thing), dict), f"any object: {thing}")


@flow
def thinking():
    request = {"messages": user(APPLES), "reasoning_effort": "medium", "temperature": 0}
    raw, answer = main.message(**request), chat.create(model=MODEL, **request)
    same([answer.choices[0].message.reasoning_content, answer.choices[0].message.content], [raw["reasoning_content"], raw["content"]], "a thought")
    check(answer.usage.completion_tokens_details.reasoning_tokens > 0, "its tokens are counted")
    text, thought, *_ = joined(chat.create(model=MODEL, stream=True, **request))
    same([thought, text], [raw["reasoning_content"], raw["content"]], "a thought, streamed")


@flow
def errors():
    bad = openai.OpenAI(base_url=locked_server().v1, api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: bad.models.list(), "a wrong key")
    same(openai.OpenAI(base_url=locked_server().v1, api_key="right-key").models.list().data[0].id, MODEL, "the right key")
    small = openai.OpenAI(base_url=small_server().v1, api_key="none", max_retries=0)
    e = raises(openai.BadRequestError, lambda: small.chat.completions.create(model=MODEL, messages=user(LONG)), "a long prompt")
    same([e.code, e.param], ["context_length_exceeded", "messages"], "a long prompt")
    e = raises(openai.BadRequestError, lambda: chat.create(model=MODEL, messages=user("Hi"), temperature="hot"), "a bad field")
    same(e.param, "temperature", "a bad field")
    e = raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="Hi"), "embeddings")
    check("no embeddings" in e.body["message"], f"embeddings are refused with a sentence: {e}")


@flow
def retries():
    with full_server() as full:
        one = openai.OpenAI(base_url=full.v1, api_key="none", max_retries=0)
        e = raises(openai.RateLimitError, lambda: one.chat.completions.create(model=MODEL, messages=user(SUM)), "a full queue")
        check(int(e.response.headers["retry-after"]) >= 1, "Retry-After")
        patient = openai.OpenAI(base_url=full.v1, api_key="none", max_retries=5)
        same(patient.chat.completions.create(model=MODEL, messages=user(SUM), temperature=0).choices[0].message.content, main.content(SUM), "asked again, answered")


@flow
def abort():
    before = main.metric("tandem_http_disconnects_total")
    s = chat.create(model=MODEL, messages=user("Tell me a story."), max_tokens=6000, stream=True, extra_body={"ignore_eos": True})
    for _, chunk in zip(range(4), s):
        check(chunk.id, "a chunk")
    s.close()
    until(main.idle, "an answer whose client left ends")
    same(main.metric("tandem_http_disconnects_total"), before + 1, "a client that left")
    raises(openai.APITimeoutError, lambda: chat.create(model=MODEL, messages=user("Tell me a story."), max_tokens=8000, extra_body={"ignore_eos": True, "speculative": "off"}, timeout=0.2), "a time limit")
    until(main.idle, "an answer that took too long ends")


@flow
def completions():
    answer = client.completions.create(model=MODEL, prompt=["Once upon a time", "def double"], temperature=0, max_tokens=12)
    raw = main.post("/v1/completions", {"prompt": ["Once upon a time", "def double"], "temperature": 0, "max_tokens": 12})
    same([c.text for c in answer.choices], [c["text"] for c in raw["choices"]], "two prompts")
    pieces = client.completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=12, stream=True)
    same("".join(c.choices[0].text for c in pieces if c.choices), answer.choices[0].text, "streamed")


@flow
def responses():
    answer = client.responses.create(model=MODEL, instructions="Be brief.", input=SUM, temperature=0)
    same(answer.output_text, main.content([{"role": "system", "content": "Be brief."}] + user(SUM)), "a response")
    with client.responses.stream(model=MODEL, instructions="Be brief.", input=SUM, temperature=0) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        final = events.get_final_response()
    same([text, final.output_text, final.usage.output_tokens], [answer.output_text] * 2 + [answer.usage.output_tokens], "a response, streamed")
    parsed = client.responses.parse(model=MODEL, input=WHERE, text_format=Weather, temperature=0).output_parsed
    check(isinstance(parsed, Weather), f"a pydantic model: {parsed}")
    tools = [{"type": "function", "strict": True, **t["function"]} for t in TOOLS]
    first = client.responses.create(model=MODEL, input=user(WHERE), tools=tools, tool_choice="required", temperature=0)
    calls = [o for o in first.output if o.type == "function_call"]
    check(calls and all(fits(c.name, json.loads(c.arguments)) for c in calls), f"calls: {first.output}")
    items = user(WHERE) + [o.model_dump(exclude_none=True) for o in first.output]
    items += [{"type": "function_call_output", "call_id": c.call_id, "output": "ok"} for c in calls]
    second = client.responses.create(model=MODEL, input=items, tools=tools, temperature=0)
    same(second.status, "completed", "the results of calls")
    thought = client.responses.create(model=MODEL, input=APPLES, reasoning={"effort": "medium", "summary": "auto"}, temperature=0)
    same(thought.output_text, main.content(APPLES, reasoning_effort="medium"), "a thought, and an answer")
    check(any(o.type == "reasoning" and o.summary for o in thought.output), f"a thought: {thought.output}")
    e = raises(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_1"), "nothing is stored")
    same(e.param, "previous_response_id", "nothing is stored")
