"""Instructor: typed answers in each of its modes that an OpenAI server can serve."""
import json
from typing import Literal, Optional

import instructor
import openai
from harness import LONG, MODEL, Closed, Sky, Weather, check, flow, full_server, locked_server, main_server, raises, same, small_server, user
from instructor.core import InstructorRetryException
from pydantic import Field

main = main_server()
WHERE = "What is the weather in Paris?"
ASK = {"model": MODEL, "messages": user(WHERE), "temperature": 0, "max_retries": 1}


def client(mode, at=main, key="none", retries=0):
    return instructor.from_openai(openai.OpenAI(base_url=at.v1, api_key=key, max_retries=retries), mode=mode)


class Day(Closed):
    """A nested model, with an optional part and an alternative."""

    name: Literal["today", "tomorrow"]
    weather: Sky
    wind: Optional[int] = Field(default=None, ge=0, le=12)
    note: Literal["none"] | bool


class Days(Closed):
    days: list[Day] = Field(min_length=1, max_length=3)


@flow
def structured_output():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
        for model in (Weather, Day):
            got = client(mode).create(response_model=model, **ASK)
            check(isinstance(got, model), f"{mode}, {model.__name__}: {got}")


@flow
def usage():
    got, completion = client(instructor.Mode.JSON_SCHEMA).create_with_completion(response_model=Sky, **ASK)
    check(isinstance(got, Sky) and completion.usage.completion_tokens > 0, f"the usage: {completion.usage}")
    same(json.loads(completion.choices[0].message.content), got.model_dump(), "the completion behind it")


@flow
def stream():
    *_, last = client(instructor.Mode.JSON_SCHEMA).create_partial(response_model=Sky, **ASK)
    same(last.model_dump(), client(instructor.Mode.JSON_SCHEMA).create(response_model=Sky, **ASK).model_dump(), "a model in pieces")
    *_, last = client(instructor.Mode.TOOLS).create_partial(response_model=Sky, **ASK)
    check(Sky.model_validate(last.model_dump()), "a call in pieces")


@flow
def lists():
    several = client(instructor.Mode.JSON_SCHEMA).create(response_model=Days, **ASK)
    check(1 <= len(several.days) <= 3, f"a list: {several}")


@flow
def errors():
    e = raises(InstructorRetryException, lambda: client(instructor.Mode.TOOLS, locked_server(), "wrong").create(response_model=Sky, **ASK), "a wrong key")
    check("401" in str(e), f"a wrong key: {e}")
    e = raises(InstructorRetryException, lambda: client(instructor.Mode.TOOLS, small_server()).create(response_model=Sky, **{**ASK, "messages": user(LONG)}), "a long prompt")
    check("context_length_exceeded" in str(e), f"a long prompt: {e}")


@flow
def retries():
    with full_server() as full:
        check(isinstance(client(instructor.Mode.JSON_SCHEMA, full, retries=6).create(response_model=Sky, **ASK), Sky), "asked again, answered")
