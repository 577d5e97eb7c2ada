"""Tools: the schema is the signature's, arguments are checked against it, and what goes wrong is told to the model."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Annotated, Literal, Optional

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from ctxstore import tool
from ctxstore.errors import ConfigurationError
from ctxstore.messages import ToolCall
from ctxstore.tools import Tool, as_tools, failed


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    number: int = 1


class Lock:
    pass


def needs_a_lock(lock: Lock) -> None: ...


@dataclasses.dataclass
class Point:
    x: float
    y: float


def call(arguments, name="t"):
    return ToolCall(type="tool_call", id="c1", name=name, arguments_json=arguments)


def test_the_schema_is_the_signature():
    @tool
    def lookup(
        sku: str,
        limit: Annotated[int, Field(ge=1, description="at most")] = 10,
        kind: Literal["a", "b"] = "a",
        tags: list[str] | None = None,
        maybe: Optional[float] = None,  # noqa: UP045
    ) -> dict[str, object]:
        """How many are left."""
        return {}

    assert (lookup.name, lookup.description) == ("lookup", "How many are left.")
    assert lookup.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["sku"],
        "properties": {
            "sku": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "description": "at most", "default": 10},
            "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
    }
    assert list(lookup.parameters["properties"]) == ["sku", "limit", "kind", "tags", "maybe"]


def test_a_tool_of_nothing_takes_an_empty_object():
    @tool
    def ping():
        return "pong"

    assert ping.parameters == {"type": "object", "additionalProperties": False, "properties": {}}
    assert ping.description == ""
    assert ping.validate(call("")) == ({}, None) == ping.validate(call("{}"))
    assert ping() == "pong"


@pytest.mark.parametrize("name", ["model_config", "schema", "json", "copy", "self_", "_private", "validate", "dict"])
def test_any_parameter_name_will_do(name):
    scope: dict[str, object] = {}
    exec(f"def t({name}: int): return {name}", scope)
    made = Tool(scope["t"])
    assert list(made.parameters["properties"]) == [name]
    assert made.validate(call(f'{{"{name}": 3}}')) == ({name: 3}, None)


def test_arguments_come_in_the_types_of_the_signature():
    @tool
    def order(size: Size, to: Address, at: Point, day: dt.date, count: int = 2) -> None: ...

    arguments = '{"size": "large", "to": {"street": "S"}, "at": {"x": 1, "y": 2.5}, "day": "2026-03-04"}'
    given_, wrong = order.validate(call(arguments))
    assert wrong is None
    assert given_ == {
        "size": Size.LARGE,
        "to": Address(street="S"),
        "at": Point(1, 2.5),
        "day": dt.date(2026, 3, 4),
        "count": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", "sku: Field required"),
        ('{"sku": 1}', "sku: Input should be a valid string"),
        ('{"sku": "a", "extra": 1}', "extra: Extra inputs are not permitted"),
        ('{"sku": "a", "depth": "deep"}', "depth: Input should be a valid integer"),
        ('{"sku": "a"', 'no JSON object: {"sku": "a"'),
        ("[]", "no JSON object: []"),
        ("null", "no JSON object: null"),
    ],
)
def test_wrong_arguments_are_told_by_their_name(arguments, said):
    @tool
    def stock(sku: str, depth: int = 1) -> None: ...

    found, wrong = stock.validate(call(arguments))
    assert found is None and said in wrong


@given(st.text())
def test_no_argument_string_raises(arguments):
    made = Tool(lambda n=0: n, name="t")
    found, wrong = made.validate(call(arguments))
    assert (found is None) != (wrong is None)


def test_several_faults_are_all_told():
    @tool
    def t(a: int, b: int) -> None: ...

    _, wrong = t.validate(call('{"a": "x", "c": 1}'))
    assert all(f"{name}:" in wrong for name in "abc")


def test_a_schema_of_its_own_passes_arguments_as_they_come():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}

    @tool(name="ask_db", description="Ask.", parameters=schema)
    def anything(**arguments):
        return arguments

    assert (anything.name, anything.description, anything.parameters) == ("ask_db", "Ask.", schema)
    assert anything.validate(call('{"q": 1, "other": 2}')) == ({"q": 1, "other": 2}, None)
    assert anything(q=1) == {"q": 1}


def test_what_cannot_be_a_tool_says_why():
    for function in (lambda *parts: 0, lambda **options: 0, lambda a, /: 0):
        with pytest.raises(ConfigurationError, match="a name that the model can use"):
            Tool(function, name="t").parameters

    def lost(a: Nowhere) -> None: ...  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"signature of the tool 'lost'.*Nowhere"):
        Tool(lost).parameters

    with pytest.raises(ConfigurationError, match="without a JSON schema"):
        Tool(needs_a_lock).parameters


def test_names():
    class Adder:
        """Adds."""

        def __call__(self, a: int, b: int) -> int:
            return a + b

    class Later:
        async def __call__(self) -> None: ...

    async def fetch() -> None: ...

    assert Tool(Adder()).name == "Adder" and Tool(Adder()).validate(call('{"a": 1, "b": 2}'))[0] == {"a": 1, "b": 2}
    assert [t.is_async for t in (Tool(Adder()), Tool(Later()), Tool(fetch))] == [False, True, True]
    assert repr(Tool(fetch)) == "<Tool fetch>"


def test_many_or_one_or_none():
    def a() -> None: ...
    def b() -> None: ...

    made = Tool(a)
    assert as_tools(None) == as_tools([]) == ()
    assert as_tools(made) == (made,) == as_tools([made])
    assert [t.name for t in as_tools([made, b])] == ["a", "b"] and [t.name for t in as_tools(b)] == ["b"]
    with pytest.raises(ConfigurationError, match="two tools are called 'a'"):
        as_tools([a, made])
    with pytest.raises(ConfigurationError, match="must be a function"):
        as_tools(["a"])


def test_an_answer_is_json_or_an_error_that_says_where():
    made = Tool(lambda: 0, name="t")
    assert made.answer(call("{}"), Address(street="S")).value == {"street": "S", "number": 1}
    assert made.answer(call("{}"), Point(1, 2)).value == {"x": 1, "y": 2}
    assert made.answer(call("{}"), (1, None)).value == [1, None]
    bad = made.answer(call("{}"), {"mean": float("nan")})
    assert bad.error and bad.value["type"] == "UnsupportedValueError" and "mean" in bad.value["message"]
    told = failed(call("{}"), ValueError("half \ud800"))
    assert told.error and told.value == {"error": True, "type": "ValueError", "message": "half ?"}


@pytest.mark.parametrize("name", ["", "with space", "caf\u00e9", "x" * 65, "a.b"])
def test_a_name_that_no_provider_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="@tool"):
        tool(name=name or " ")(lambda: None)
    with pytest.raises(ConfigurationError, match="lambda"):
        tool(lambda: None)
