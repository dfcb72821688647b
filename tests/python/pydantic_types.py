"""Types of Pydantic with their JSON Schemas. Usage: python pydantic_types.py > tests/golden/schemas/pydantic.json"""
import json
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union

from pydantic import (UUID4, AnyUrl, AwareDatetime, Base64Bytes, BaseModel, ConfigDict, Discriminator, Field, HttpUrl, Json, JsonValue,
                      NonNegativeInt, PositiveFloat, PositiveInt, RootModel, SecretStr, StrictInt, StringConstraints, Tag, TypeAdapter)
from typing_extensions import TypedDict


class Colour(str, Enum):
    red = "red"
    green = "green"


class Level(IntEnum):
    low = 1
    high = 2


class Inner(BaseModel):
    """An object inside of others."""
    n: int = Field(ge=0, le=99, description="a number")
    colour: Colour = Colour.red


class Model(BaseModel):
    name: str
    inner: Inner
    others: list[Inner] = Field(default_factory=list, max_length=3)
    note: str | None = None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: bool = False


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    a: int


class Node(BaseModel):
    v: int
    next: Optional["Node"] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    good: bool


class Aliased(BaseModel):
    first: str = Field(alias="firstName", min_length=1)
    second: int = Field(validation_alias="2nd")


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    held: T
    size: Annotated[float, Field(gt=0, lt=10)]


class Movie(TypedDict, total=False):
    title: str
    year: int


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Pair:
    left: int
    right: str = "r"


TYPES = {
    "str": str, "int": int, "float": float, "bool": bool, "none": type(None), "any": Any, "bytes": bytes,
    "optional": Optional[int], "union": Union[int, str, None], "literal": Literal["a", "b", 3], "enum": Colour, "int_enum": Level,
    "min_length": Annotated[str, Field(min_length=3)], "max_length": Annotated[str, Field(max_length=5)],
    "pattern": Annotated[str, Field(pattern=r"^[A-Z]{2}\d{4}$")],
    "pattern_and_length": Annotated[str, StringConstraints(pattern=r"[a-z]+", min_length=2, max_length=8)],
    "ge_le": Annotated[int, Field(ge=1, le=10)], "gt_lt": Annotated[float, Field(gt=0, lt=1)], "positive": PositiveInt,
    "positive_float": PositiveFloat, "non_negative": NonNegativeInt, "strict_int": StrictInt,
    "multiple_of": Annotated[int, Field(multiple_of=5)], "even_range": Annotated[int, Field(multiple_of=2, ge=0)],
    "step": Annotated[float, Field(multiple_of=0.25)], "decimal": Decimal,
    "decimal_digits": Annotated[Decimal, Field(max_digits=6, decimal_places=2)],
    "large": Annotated[int, Field(ge=9007199254740993)],
    "date": date, "datetime": datetime, "aware": AwareDatetime, "time": time, "timedelta": timedelta, "uuid": uuid.UUID, "uuid4": UUID4,
    "url": AnyUrl, "http_url": HttpUrl, "ipv4": IPv4Address, "ipv6": IPv6Address, "path": Path, "secret": SecretStr,
    "base64": Base64Bytes, "json_text": Json[int], "json_value": JsonValue,
    "list": list[int], "list_lengths": Annotated[list[str], Field(min_length=1, max_length=3)], "tuple": tuple[int, str],
    "tuple_any": tuple[int, ...], "deque": deque[int], "set_enum": set[Colour], "set_literal": Annotated[set[Literal[1, 2, 3]], Field(min_length=2)],
    "set_bool": frozenset[bool], "set_str": set[str], "named_tuple": Point,
    "dict": dict[str, int], "dict_any": dict[str, Any], "dict_enum": dict[Colour, int], "dict_literal": dict[Literal["x", "y"], str],
    "dict_int": dict[int, str], "dict_pattern": dict[Annotated[str, StringConstraints(pattern=r"^x-[a-z]+$")], int],
    "dict_key_length": dict[Annotated[str, StringConstraints(min_length=1, max_length=4)], bool],
    "dict_lengths": Annotated[dict[str, int], Field(max_length=2)],
    "model": Model, "closed": Closed, "open": Open, "recursive": Node, "aliases": Aliased, "generic": Box[list[int]],
    "typed_dict": Movie, "dataclass": Pair, "root": RootModel[list[Inner]],
    "tagged": Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    "callable_tag": Annotated[Union[Annotated[Cat, Tag("cat")], Annotated[Dog, Tag("dog")]],
                              Discriminator(lambda v: "cat" if (v.get("kind") if isinstance(v, dict) else v.kind) == "cat" else "dog")],
    "models": Union[Cat, Dog],
}
# The schema says less than the type does: answers that fit the schema need not parse.
LOOSE = {"decimal", "decimal_digits", "base64", "json_text", "uuid4", "dict_int", "dict_pattern", "http_url"}
# There is a keyword that cannot be enforced: uniqueItems of strings.
REFUSED = {"set_str"}


def schema_of(name):
    return TypeAdapter(TYPES[name]).json_schema()


if __name__ == "__main__":
    rows = [json.dumps({"in": f"pydantic/{n}", "refused": n in REFUSED, "schema": schema_of(n)}, separators=(",", ":")) for n in TYPES]
    print('{"types":[\n' + ",\n".join(rows) + "\n]}")
