"""smolagents: its models over OpenAI's client and LiteLLM, and an agent that calls tools."""
import json

import openai
from harness import LONG, MODEL, SUM, Sky, check, flow, full_server, locked_server, main_server, raises, same, small_server, until
from smolagents import LiteLLMModel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole

main = main_server()


def model(at=main, key="none", **fields):
    return OpenAIModel(model_id=MODEL, api_base=at.v1, api_key=key, temperature=0, client_kwargs={"max_retries": 0}, retry=False, **fields)


def ask(text):
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])]


@tool
def get_weather(city: str) -> str:
    """Current weather of a city

    Args:
        city: City name
    """
    return "sunny"


@flow
def chat():
    raw = main.chat(SUM)
    got = model().generate(ask(SUM))
    same(got.content, raw["choices"][0]["message"]["content"], "a chat")
    same([got.token_usage.input_tokens, got.token_usage.output_tokens], [raw["usage"]["prompt_tokens"], raw["usage"]["completion_tokens"]], "its usage")
    other = LiteLLMModel(model_id=f"openai/{MODEL}", api_base=main.v1, api_key="none", temperature=0)
    same(other.generate(ask(SUM)).content, got.content, "a chat over LiteLLM")


@flow
def stream():
    same("".join(d.content or "" for d in model().generate_stream(ask(SUM))), main.content(SUM), "a stream is the whole")


@flow
def tools():
    got = model(tool_choice="required").generate(ask("What is the weather in Paris?"), tools_to_call_from=[get_weather])
    check(got.tool_calls and all(isinstance(json.loads(c.function.arguments)["city"], str) for c in got.tool_calls), f"a call: {got.tool_calls}")


@flow
def agent():
    steps = []
    a = ToolCallingAgent(tools=[get_weather], model=model(), max_steps=2, verbosity_level=0, step_callbacks=[steps.append])
    a.run("What is the weather in Paris?")
    calls = [c.name for s in steps for c in s.tool_calls or []]
    check(calls and set(calls) <= {"get_weather", "final_answer"}, f"an agent calls its tools: {calls}")


@flow
def structured_output():
    schema = {"type": "json_schema", "json_schema": {"name": "sky", "strict": True, "schema": Sky.model_json_schema()}}
    got = model().generate(ask("What is the weather in Paris?"), response_format=schema).content
    check(Sky.model_validate_json(got), f"a schema: {got}")


@flow
def errors():
    raises(openai.AuthenticationError, lambda: model(locked_server(), "wrong").generate(ask(SUM)), "a wrong key")
    raises(openai.BadRequestError, lambda: model(small_server()).generate(ask(LONG)), "a long prompt")


@flow
def retries():
    with full_server() as full:
        patient = OpenAIModel(model_id=MODEL, api_base=full.v1, api_key="none", temperature=0, client_kwargs={"max_retries": 6})
        same(patient.generate(ask(SUM)).content, main.content(SUM), "asked again, answered")


@flow
def abort():
    stream = model(max_tokens=6000, extra_body={"ignore_eos": True}).generate_stream(ask("Tell me a story."))
    for _, piece in zip(range(4), stream):
        check(piece is not None, "a piece")
    stream.close()
    until(main.idle, "an answer whose client left ends")
