"""Pydantic AI: agents over chat completions, responses and messages."""
import asyncio

from harness import APPLES, LONG, MODEL, SUM, Sky, Weather, check, flow, full_server, locked_server, main_server, raises, same, small_server, until, user
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

main = main_server()
WHERE = "What is the weather in Paris?"
GREEDY = {"temperature": 0}


def chat(at=main, key="none"):
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=at.v1, api_key=key))


def responses():
    return OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=main.v1, api_key="none"))


def messages():
    return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=main.url, api_key="none"))


@flow
def chat_():
    raw = main.chat([{"role": "system", "content": "Be brief."}] + user(SUM))
    for model in (chat(), responses(), messages()):
        got = Agent(model, instructions="Be brief.", model_settings=GREEDY).run_sync(SUM)
        same(got.output, raw["choices"][0]["message"]["content"], f"a chat ({type(model).__name__})")
        usage = got.usage() if callable(got.usage) else got.usage
        same(usage.output_tokens, raw["usage"]["completion_tokens"], f"its usage ({type(model).__name__})")
        if not isinstance(model, AnthropicModel):  # it adds a system text of its own
            same(usage.input_tokens, raw["usage"]["prompt_tokens"], f"its usage ({type(model).__name__})")
    agent = Agent(chat(), model_settings=GREEDY)
    first = agent.run_sync(SUM)
    second = agent.run_sync("What is 2 plus 3?", message_history=first.all_messages())
    same(second.output, main.content(user(SUM) + [{"role": "assistant", "content": first.output}] + user("What is 2 plus 3?")), "a second turn")


@flow
def stream():
    async def ask(model):
        async with Agent(model, model_settings=GREEDY).run_stream(SUM) as run:
            return "".join([piece async for piece in run.stream_text(delta=True)])
    for model in (chat(), responses(), messages()):
        same(asyncio.run(ask(model)), main.content(SUM), f"a stream is the whole ({type(model).__name__})")


@flow
def tools():
    for model in (chat(), responses(), messages()):
        agent, asked = Agent(model, output_type=Sky, model_settings=GREEDY), []

        async def until_asked(context, definition):
            return None if asked else definition  # nano might ask for ever

        @agent.tool_plain(prepare=until_asked)
        def get_weather(city: str) -> dict:
            """Current weather of a city"""
            asked.append(city)
            return {"sky": "sunny", "temp": 21}
        run = agent.run_sync(WHERE)
        check(isinstance(run.output, Sky), f"a loop ends in its output ({type(model).__name__})")
        parts = [p for m in run.all_messages() for p in m.parts]
        calls = {p.tool_call_id for p in parts if isinstance(p, ToolCallPart)}
        same({p.tool_call_id for p in parts if isinstance(p, ToolReturnPart)}, calls, f"each call has its result ({type(model).__name__})")


@flow
def structured_output():
    for output in (ToolOutput(Weather), NativeOutput(Weather)):
        for model in (chat(), responses()):
            got = Agent(model, output_type=output, model_settings=GREEDY).run_sync(WHERE).output
            check(isinstance(got, Weather), f"{type(output).__name__} ({type(model).__name__}): {got}")
    for output in (NativeOutput([Sky, Weather]), ToolOutput(Sky)):
        got = Agent(chat(), output_type=output, model_settings=GREEDY).run_sync(WHERE).output
        check(isinstance(got, (Sky, Weather)), f"one of two: {got}")

    async def ask():
        async with Agent(chat(), output_type=NativeOutput(Weather), model_settings=GREEDY).run_stream(WHERE) as run:
            return await run.get_output()
    check(isinstance(asyncio.run(ask()), Weather), "a structured output, streamed")
    raw = main.message(WHERE, response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": Sky.model_json_schema()}})
    check(Sky.model_validate_json(raw["content"]), "pydantic's own schema")


@flow
def thinking():
    raw = main.message(APPLES, reasoning_effort="medium")
    run = Agent(chat(), model_settings={**GREEDY, "openai_reasoning_effort": "medium"}).run_sync(APPLES)
    thoughts = [p.content for m in run.all_messages() if isinstance(m, ModelResponse) for p in m.parts if isinstance(p, ThinkingPart)]
    same([run.output, thoughts], [raw["content"], [raw["reasoning_content"]]], "a thought")
    again = Agent(chat(), model_settings=GREEDY).run_sync(SUM, message_history=run.all_messages())
    check(again.output, "a thought goes back in")


@flow
def errors():
    e = raises(ModelHTTPError, lambda: Agent(chat(locked_server(), "wrong")).run_sync(SUM), "a wrong key")
    same(e.status_code, 401, "a wrong key")
    e = raises(ModelHTTPError, lambda: Agent(chat(small_server())).run_sync(LONG), "a long prompt")
    same([e.status_code, e.body["code"]], [400, "context_length_exceeded"], "a long prompt")


@flow
def retries():
    with full_server() as full:
        client = OpenAIProvider(base_url=full.v1, api_key="none")
        client.client.max_retries = 6
        same(Agent(OpenAIChatModel(MODEL, provider=client), model_settings=GREEDY).run_sync(SUM).output, main.content(SUM), "asked again, answered")


@flow
def abort():
    async def leave():
        agent = Agent(chat(), model_settings={"max_tokens": 6000, "extra_body": {"ignore_eos": True}})
        async with agent.run_stream("Tell me a story.") as run:
            async for _ in run.stream_text(delta=True):
                raise ConnectionAbortedError
    raises(ConnectionAbortedError, lambda: asyncio.run(leave()), "an answer is left")
    until(main.idle, "an answer whose client left ends")
