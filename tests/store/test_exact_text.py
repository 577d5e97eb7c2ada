"""Whatever can be said comes back as it was said, through every driver; what cannot be kept is refused before a write.

Values are compared by their ``repr``, which tells -0.0 from 0.0, 1 from True and 1.0, and orders of keys apart.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ctxstore import Store, ToolPolicy, tool
from ctxstore.errors import UnsupportedValueError
from ctxstore.testing import ScriptedProvider

from .oracle import World, driver_url, world

EXAMPLES = 30
DEEP = 100
"""Levels of a value: with the message around it, it stays below the 128 that are written."""

# -- everything that can be said

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
NASTY = [
    *("", " ", "\x00", "a\x00b", "\ud800", "\udfff!", "x\udc80", "\U0001f44d\U0001f3fd", "\u2028\u2029", "\ufeff"),
    *("\ufffd", "\uffff", "\\u0000", "\\", "\"'`", "%s %(a)s :a ?", "null", "{", "[1", '{"a": ', "\r\n\t\x1b\x7f"),
    *("e\u0301", "\xe9", "\U0010ffff", "é" * 400, "''; DROP TABLE ctxstore_contexts; --", "\\x41", "trailing  "),
]
texts = st.sampled_from(NASTY) | st.text(st.characters(categories=None), max_size=12).filter(
    lambda text: not _PAIR.search(text)  # which JSON has no form for: it is refused, see below
)
numbers = (
    st.sampled_from([0, -1, 2**53 + 1, 2**63, 2**64, 2**70, -(2**70), 10**300])
    | st.integers()
    | st.sampled_from([0.0, -0.0, 1.0, 1e-320, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e22, -1e-7])
    | st.floats(allow_nan=False, allow_infinity=False)
)
leaves = st.none() | st.booleans() | numbers | texts


def nested(value: Any, levels: list[bool]) -> Any:
    for is_list in levels:
        value = [value] if is_list else {"k": value}
    return value


values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=4), max_leaves=8
) | st.builds(nested, leaves, st.lists(st.booleans(), min_size=20, max_size=DEEP))
objects = st.dictionaries(texts, values, max_size=4)


@st.composite
def arguments(draw: Any) -> str:
    """An argument string, whole, cut in the middle, or no JSON at all."""
    text = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()))
    if _PAIR.search(text) or draw(st.integers(0, 9)) == 0:
        return draw(texts)  # type: ignore[no-any-return]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


calls = st.tuples(arguments(), values)
conversations = st.fixed_dictionaries(
    {"metadata": objects, "says": st.lists(st.none() | texts, max_size=3), "calls": st.lists(calls, max_size=3)}
)
WORST: dict[str, Any] = {
    "metadata": {"z": NASTY, "a": {"": None}, "10": 1, "9": -0.0, "\x00": 2**70, "\ud800": {"\U0001f44d": 1.0}},
    "says": [None, "", *NASTY],
    "calls": [
        ('{"cut": "in the mid', nested("\x00", [True, False] * (DEEP // 2))),
        ('{"z":1, "a" :1.0e5,"z":2}', [2**70, -(2**70), -0.0, 1e22, None, True, "\ud800"]),
        ("", ""),
        ("\x00\udc80", None),
    ],
}


def stays(do: World, said: dict[str, Any]) -> None:
    """Save ``said`` in one conversation, and see that it is what comes back from every door."""
    provider = ScriptedProvider(["ok"])
    ctx = do("create", provider, metadata=said["metadata"])
    for text in said["says"]:
        ctx.append({"role": "user", "content": text})
        ctx.append({"role": "assistant", "content": text})
    for n, (argument, value) in enumerate(said["calls"]):
        call = {"id": f"c{n}", "name": "t", "arguments": argument}
        ctx.append({"role": "assistant", "content": None, "tool_calls": [call]}).tool(f"c{n}", value)
    do("talk", "and so on", on=ctx)

    back = do("load", ctx.id, ScriptedProvider())
    same(back.metadata, said["metadata"])
    same([m.content for m in back.messages if not m.tool_calls and not m.tool_results][:-2], twice(said["says"]))
    same([c.arguments_json for m in back.messages for c in m.tool_calls], [a for a, _ in said["calls"]])
    same(back.tool_results, [v for _, v in said["calls"]], key="value")
    assert back.to_json() == ctx.to_json()
    same([row.message.to_payload() for row in do("messages", ctx.id, limit=999)], payloads(ctx))
    same(do("export", ctx.id)["messages"], payloads(ctx))
    do("delete", ctx.id)


def twice(says: list[Any]) -> list[Any]:
    return [text for text in says for _ in range(2)]


def payloads(ctx: Any) -> list[Any]:
    return [m.to_payload() for m in ctx.messages]


def same(found: Any, wanted: Any, key: str | None = None) -> None:
    assert repr([getattr(item, key) for item in found] if key else found) == repr(wanted)


def every_text_stays(do: World) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(conversations)
    @example(WORST)
    def holds(said: dict[str, Any]) -> None:
        stays(do, said)

    holds()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_text_stays(url: str, way: str) -> None:
    with world(driver_url(url, way), way) as do:
        every_text_stays(do)


@pytest.mark.databases("postgresql", "mysql")
def test_every_text_stays_with_the_other_asyncio_driver(url: str) -> None:
    with world(driver_url(url, "other async"), "other async") as do:
        every_text_stays(do)


@pytest.fixture
def hostile(url: str) -> Iterator[sa.Engine]:
    """A host's engine whose JSON, in SQLAlchemy and in the driver, is not what anyone expects."""
    engine = sa.create_engine(url, json_serializer=lambda v: '"not yours"', json_deserializer=lambda t: {"nor": "this"})
    if engine.dialect.driver == "psycopg":

        @sa.event.listens_for(engine, "connect")
        def spoil(connection: Any, _: Any) -> None:
            from psycopg.types.json import set_json_dumps, set_json_loads

            set_json_dumps(lambda v: '"not yours"', connection)
            set_json_loads(lambda t: {"nor": "this"}, connection)

    yield engine
    engine.dispose()


def test_every_text_stays_on_an_engine_with_a_json_of_its_own(hostile: sa.Engine) -> None:
    every_text_stays(World(Store(hostile), None))


# -- what JSON has no form for


class Thing:
    pass


REFUSED: list[Any] = [
    decimal.Decimal("1.10"),
    b"bytes",
    bytearray(b"b"),
    dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
    dt.date(2024, 1, 2),
    dt.timedelta(1),
    math.nan,
    math.inf,
    -math.inf,
    uuid.UUID(int=7),
    {1, 2},
    1j,
    Thing(),
    "\ud83d\ude00",  # a pair in two halves: reads back as one character
    {7: "a key"},
    {None: 1},
    10**4300,
    nested(1, [True] * 140),
]


def rows(engine: sa.Engine) -> dict[str, list[Any]]:
    """Everything that stands in the database."""
    found = {}
    with engine.connect() as c:
        for table in ("contexts", "messages", "in_flight", "usage"):
            listed = c.exec_driver_sql(f"SELECT * FROM ctxstore_{table}").all()
            found[table] = sorted(map(repr, listed))
    return found


def test_what_json_has_no_form_for_is_refused_with_its_path(store: Store, engine: sa.Engine) -> None:
    provider = ScriptedProvider([{"tool_calls": [{"id": "c", "name": "look", "arguments": "{}"}]}, "never sent"])
    ctx = store.create(provider, metadata={"kept": 1})
    ctx.talk("look")
    before, said = rows(engine), len(ctx.messages)

    def refused(act: Any, path: str) -> None:
        with pytest.raises(UnsupportedValueError) as caught:
            act()
        found = caught.value.path
        assert found.startswith(path) and found in str(caught.value), found
        assert rows(engine) == before and len(ctx.messages) == said

    for value in REFUSED:
        inside = {"fine": [1, {"deep": value}]}
        call = {"id": "d", "name": "look", "arguments": inside}
        asking = {"role": "assistant", "content": None, "tool_calls": [call]}
        refused(partial(ctx.tool, "c", inside), "value.fine[1].deep")
        refused(partial(setattr, ctx, "metadata", inside), "metadata.fine[1].deep")
        refused(partial(store.create, provider, metadata=inside), "metadata.fine[1].deep")
        refused(partial(store.load, ctx.id, provider, metadata=inside), "metadata.fine[1].deep")
        refused(partial(store.create, provider, params={"x": inside}), "params.x.fine[1].deep")
        refused(partial(ctx.talk, "go on", params={"x": inside}), "params.x.fine[1].deep")
        refused(partial(ctx.append, {"role": "user", "content": "a", "mine": inside}), "mine.fine[1].deep")
        refused(partial(ctx.append, asking), "tool_calls[0].arguments.fine[1].deep")
    store.save(ctx)
    assert rows(engine) == before and ctx.metadata == {"kept": 1}
    assert provider.replies == ["never sent"]
    ctx.tool("c", "something else").talk("go on")
    assert store.load(ctx.id, provider).messages[-1].text == "never sent", "and the conversation goes on"


def test_a_tool_that_returns_it_has_failed_and_the_model_is_told_where(store: Store) -> None:
    returned: list[Any] = []

    @tool
    def look() -> Any:
        """Look."""
        return {"rows": [1, returned[-1]]}

    asks = {"tool_calls": [{"id": "c", "name": "look", "arguments": "{}"}]}
    provider = ScriptedProvider([asks, "I see"] * len(REFUSED))
    ctx = store.create(provider, tools=[look], tool_policy=ToolPolicy(allow=["look"]))
    for value in REFUSED:
        returned.append(value)
        assert ctx.talk("look").text == "I see"
    results = store.load(ctx.id, ScriptedProvider()).tool_results
    assert len(results) == len(REFUSED)
    for result in results:
        assert result.error and result.value["type"] == "UnsupportedValueError"
        assert "look.rows[1]" in result.value["message"]
