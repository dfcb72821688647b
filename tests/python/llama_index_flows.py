"""LlamaIndex: its client for servers that are like OpenAI's."""
import asyncio

import openai
from harness import APPLES, LONG, MODEL, SUM, Weather, check, flow, full_server, locked_server, main_server, raises, same, small_server, until, user
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses

main = main_server()
WHERE = "What is the weather in Paris?"


def llm(at=main, **fields):
    return OpenAILike(**{"model": MODEL, "api_base": at.v1, "api_key": "none", "is_chat_model": True, "is_function_calling_model": True, "context_window": 8192,
                         "temperature": 0, "max_retries": 0, **fields})


def get_weather(city: str) -> str:
    """Current weather of a city"""
    return '{"sky":"sunny","temp":21}'


weather = FunctionTool.from_defaults(get_weather)


@flow
def chat():
    got, raw = llm().chat([ChatMessage("Be brief.", role="system"), ChatMessage(SUM)]), main.chat([{"role": "system", "content": "Be brief."}] + user(SUM))
    same(got.message.content, raw["choices"][0]["message"]["content"], "a chat")
    same(got.raw.usage.completion_tokens, raw["usage"]["completion_tokens"], "its usage")
    same(llm().complete(SUM).text, main.content(SUM), "one question")
    history = [ChatMessage(SUM), ChatMessage("85", role="assistant"), ChatMessage("What is 2 plus 3?")]
    same(llm().chat(history).message.content, main.content(user(SUM) + [{"role": "assistant", "content": "85"}] + user("What is 2 plus 3?")), "a second turn")


@flow
def stream():
    pieces = list(llm().stream_chat([ChatMessage(SUM)]))
    same(["".join(p.delta or "" for p in pieces), pieces[-1].message.content], [main.content(SUM)] * 2, "a stream is the whole")

    async def ask():
        return "".join([p.delta or "" async for p in await llm().astream_chat([ChatMessage(SUM)])])
    same(asyncio.run(ask()), main.content(SUM), "a stream is the whole, async")


@flow
def completions():
    got = llm(is_chat_model=False).complete("Once upon a time", max_tokens=12)
    same(got.text, main.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12})["choices"][0]["text"], "a text goes on")


@flow
def tools():
    model = llm()
    got = model.chat_with_tools([weather], user_msg=WHERE, tool_required=True)
    calls = model.get_tool_calls_from_response(got)
    check(calls and all(c.tool_name == "get_weather" and isinstance(c.tool_kwargs["city"], str) for c in calls), f"a call: {calls}")
    *_, last = model.stream_chat_with_tools([weather], user_msg=WHERE, tool_required=True)
    same([c.tool_kwargs for c in model.get_tool_calls_from_response(last)], [c.tool_kwargs for c in calls], "a call, streamed")
    results = [ChatMessage(get_weather(**c.tool_kwargs), role="tool", additional_kwargs={"tool_call_id": c.tool_id}) for c in calls]
    answer = model.chat([ChatMessage(WHERE), got.message, *results])
    check(answer.message.content is not None, "an answer to results")


@flow
def agent():
    async def ask():
        return await FunctionAgent(tools=[weather], llm=llm(), streaming=True, early_stopping_method="generate").run(WHERE, max_iterations=3)
    check(asyncio.run(ask()).response.content is not None, "an agent answers")


@flow
def structured_output():
    got = llm(should_use_structured_outputs=True).as_structured_llm(Weather).chat([ChatMessage(WHERE)]).raw
    check(isinstance(got, Weather), f"by a schema: {got}")
    got = llm().as_structured_llm(Weather).chat([ChatMessage(WHERE)]).raw
    check(isinstance(got, Weather), f"by a call: {got}")


@flow
def responses():
    model = OpenAILikeResponses(model=MODEL, api_base=main.v1, api_key="none", is_function_calling_model=True, context_window=8192, temperature=0, max_retries=0)
    same(model.chat([ChatMessage(SUM)]).message.content, main.content(SUM), "a response")
    same("".join(p.delta or "" for p in model.stream_chat([ChatMessage(SUM)])), main.content(SUM), "a response, streamed")


@flow
def thinking():
    got = llm(additional_kwargs={"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}).chat([ChatMessage(APPLES)])
    raw = main.message(APPLES, reasoning_effort="medium")
    same([got.message.content, got.raw.choices[0].message.reasoning_content], [raw["content"], raw["reasoning_content"]], "a thought")


@flow
def errors():
    raises(openai.AuthenticationError, lambda: llm(locked_server(), api_key="wrong").complete(SUM), "a wrong key")
    e = raises(openai.BadRequestError, lambda: llm(small_server()).complete(LONG), "a long prompt")
    same(e.code, "context_length_exceeded", "a long prompt")


@flow
def retries():
    with full_server() as full:
        same(llm(full, max_retries=8).complete(SUM).text, main.content(SUM), "asked again, answered")


@flow
def abort():
    stream = llm(max_tokens=6000, additional_kwargs={"extra_body": {"ignore_eos": True}}).stream_chat([ChatMessage("Tell me a story.")])
    for _, piece in zip(range(4), stream):
        check(piece is not None, "a piece")
    stream.close()
    until(main.idle, "an answer whose client left ends")
