"""LangChain: chat models over chat completions, responses and messages; tools, agents, structured output."""
import json

import anthropic
import openai
from harness import (APPLES, LONG, MODEL, SUM, TOOLS, Sky, Weather, calls_of, check, fits, flow, full_server, locked_server,
                     main_server, raises, same, small_server, until, user)
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

main = main_server()
WHERE = "What is the weather in Paris?"


def chat(at=main, **fields):
    return ChatOpenAI(**{"model": MODEL, "base_url": at.v1, "api_key": "none", "temperature": 0, "max_retries": 0, **fields})


@tool
def get_weather(city: str) -> str:
    """Current weather of a city"""
    asked.append(city)
    return json.dumps({"sky": "sunny", "temp": 21})


asked = []


@flow
def chat_():
    answer, raw = chat().invoke([SystemMessage("Be brief."), HumanMessage(SUM)]), main.chat([{"role": "system", "content": "Be brief."}] + user(SUM))
    same(answer.content, raw["choices"][0]["message"]["content"], "a chat")
    same([answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]], [raw["usage"]["prompt_tokens"], raw["usage"]["completion_tokens"]], "its usage")
    history = [HumanMessage(SUM), AIMessage(answer.content), HumanMessage("What is 2 plus 3?")]
    same(chat().invoke(history).content, main.content(user(SUM) + [{"role": "assistant", "content": answer.content}] + user("What is 2 plus 3?")), "a second turn")
    two = chat().batch([SUM, "What is 31 plus 12?"])
    same([m.content for m in two], [main.content(SUM), main.content("What is 31 plus 12?")], "a batch")


@flow
def stream():
    whole = None
    for piece in chat(stream_usage=True).stream(SUM):
        whole = piece if whole is None else whole + piece
    raw = main.chat(SUM)
    same([whole.content, whole.usage_metadata["output_tokens"]], [raw["choices"][0]["message"]["content"], raw["usage"]["completion_tokens"]], "a stream is the whole")


@flow
def responses():
    for model in (chat(use_responses_api=True), chat(use_responses_api=True, streaming=True)):
        same(model.invoke(SUM).text, main.content(SUM), "over the Responses API")
    calls = chat(use_responses_api=True).bind_tools(TOOLS, tool_choice="required").invoke(WHERE).tool_calls
    check(calls and all(fits(c["name"], c["args"]) for c in calls), f"calls over the Responses API: {calls}")


@flow
def messages():
    model = ChatAnthropic(model=MODEL, base_url=main.url, api_key="none", max_retries=0, max_tokens=300)
    same(model.invoke(SUM).text, main.content(SUM), "over the Messages API")
    same("".join(m.text for m in model.stream(SUM)), main.content(SUM), "over the Messages API, streamed")
    calls = model.bind_tools(TOOLS, tool_choice="any").invoke(WHERE).tool_calls
    check(calls and all(fits(c["name"], c["args"]) for c in calls), f"calls over the Messages API: {calls}")
    raises(anthropic.BadRequestError, lambda: ChatAnthropic(model=MODEL, base_url=small_server().url, api_key="none", max_retries=0, max_tokens=30).invoke(LONG), "a long prompt")


@flow
def tools():
    for choice in ("auto", "required", "set_timer", "none"):
        answer = chat().bind_tools(TOOLS, tool_choice=choice).invoke(WHERE)
        raw = main.message(WHERE, tools=TOOLS, tool_choice={"type": "function", "function": {"name": choice}} if choice == "set_timer" else choice)
        same([[c["name"], c["args"]] for c in answer.tool_calls], calls_of(raw), f"tool_choice {choice}")
        whole = None
        for piece in chat().bind_tools(TOOLS, tool_choice=choice).stream(WHERE):
            whole = piece if whole is None else whole + piece
        same([whole.content, [c["args"] for c in whole.tool_calls]], [answer.content, [c["args"] for c in answer.tool_calls]], f"tool_choice {choice}, streamed")
        same(answer.invalid_tool_calls, [], "no call is broken")
        if choice in ("required", "set_timer"):
            check(answer.tool_calls and all(fits(c["name"], c["args"]) for c in answer.tool_calls), f"tool_choice {choice}: {answer.tool_calls}")


@flow
def tool_results():
    first = chat().bind_tools([get_weather], tool_choice="get_weather").invoke(WHERE)
    results = [ToolMessage(get_weather.invoke(c["args"]), tool_call_id=c["id"]) for c in first.tool_calls]
    check(results, "there are calls")
    answer = chat().bind_tools([get_weather]).invoke([HumanMessage(WHERE), first, *results])
    check(answer.content or answer.tool_calls, f"an answer to results: {answer}")


@flow
def agent():
    result = create_agent(chat(), [get_weather]).invoke({"messages": user(WHERE)}, {"recursion_limit": 8})
    kinds = [m.type for m in result["messages"]]
    same([kinds[0], kinds[-1]], ["human", "ai"], "an agent's loop ends with an answer")
    same(kinds.count("tool"), sum(len(m.tool_calls) for m in result["messages"] if m.type == "ai"), "each call has its result")


@flow
def structured_output():
    for method in ("json_schema", "function_calling"):
        got = chat(temperature=1, seed=3).with_structured_output(Weather, method=method).invoke(WHERE)
        check(isinstance(got, Weather), f"{method}: {got}")
    got = chat(model_kwargs={"response_format": {"type": "json_object"}}, max_tokens=60).invoke(WHERE).content
    check(isinstance(json.loads(got), dict), f"json_mode: {got}")
    got = create_agent(chat(), [], response_format=Sky).invoke({"messages": user(WHERE)}, {"recursion_limit": 8})["structured_response"]
    check(isinstance(got, Sky), f"an agent's structured response: {got}")


@flow
def thinking():
    model = chat(reasoning_effort="medium")
    same(model.invoke(APPLES).content, main.content(APPLES, reasoning_effort="medium"), "an answer behind a thought")
    check(model.invoke(APPLES).usage_metadata["output_token_details"]["reasoning"] > 0, "tokens of the thought")
    thought = chat(use_responses_api=True, reasoning={"effort": "medium", "summary": "auto"}).invoke(APPLES)
    check(any(b["type"] == "reasoning" and b.get("reasoning") for b in thought.content_blocks), f"a thought as a block: {thought.content_blocks}")


@flow
def errors():
    raises(openai.AuthenticationError, lambda: chat(locked_server(), api_key="wrong").invoke(SUM), "a wrong key")
    raises(openai.BadRequestError, lambda: chat(small_server()).invoke(LONG), "a long prompt")
    embed = OpenAIEmbeddings(model=MODEL, base_url=main.v1, api_key="none", max_retries=0, check_embedding_ctx_length=False)
    raises(openai.APIStatusError, lambda: embed.embed_query("Hi"), "embeddings")


@flow
def retries():
    with full_server() as full:
        same(chat(full, max_retries=6).invoke(SUM).content, main.content(SUM), "asked again, answered")


@flow
def abort():
    stream = chat(extra_body={"ignore_eos": True}, max_tokens=6000).stream("Tell me a story.")
    for _, piece in zip(range(4), stream):
        check(piece is not None, "a piece")
    stream.close()
    until(main.idle, "an answer whose client left ends")
