"""B11: a tool gave NaN, one database refused the row and another stored what no strict reader takes."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid

import pytest

from ctxstore import ToolPolicy, tool
from ctxstore.errors import UnsupportedValueError

from .scenes import asking, result, scripted, stored

REFUSED = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "bytes": b"\x00\xff",
    "datetime": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 2),
    "decimal": decimal.Decimal("0.1"),
    "uuid": uuid.UUID(int=1),
    "set": {1},
    "object": object(),
    "huge": 10**4300,
}
KEPT = [2**70, -(2**70), 10**300, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, True, None, {"a": {"b": [1.0, 1]}}]


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check_tables(engine):
    payload = "CAST(payload AS TEXT)" if engine.dialect.name == "postgresql" else "payload"
    for table in ("ctxstore_contexts", "ctxstore_messages"):
        for (text,) in stored(engine, table, payload):
            strict(text)


WAYS = {
    "result": lambda ctx, value: ctx.tool("c1", value),
    "metadata": lambda ctx, value: setattr(ctx, "metadata", value),
    "params": lambda ctx, value: ctx.talk("hi", params=value),
    "prompt": lambda ctx, value: ctx.talk(value),
    "mapping": lambda ctx, value: ctx.append({"role": "tool", "tool_call_id": "c1", "content": value}),
}


@pytest.mark.parametrize("where", WAYS)
def test_what_json_has_no_form_for_is_refused_with_its_path(store, engine, where):
    ctx = store.create(scripted("ok"))
    before = stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")
    for bad in REFUSED.values():
        with pytest.raises(UnsupportedValueError, match="mean") as caught:
            WAYS[where](ctx, {"mean": bad})
        assert caught.value.path.endswith(".mean")
    store.save(ctx)
    assert (stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")) == before
    assert len(ctx) == 0


def test_a_tool_that_gives_it_is_answered_with_the_error(store, do, engine):
    @tool
    def measure(kind: str):
        """Measure."""
        return {"mean": REFUSED[kind]}

    asked = [asking(kind, name="measure", arguments=json.dumps({"kind": kind})) for kind in REFUSED]
    policy = ToolPolicy(allow=["measure"], max_rounds=len(REFUSED))
    ctx = do(store, "create", scripted(*asked, "I see"), tools=[measure], tool_policy=policy)
    assert do(ctx, "talk", "go").text == "I see"
    back = do(store, "load", ctx.id, scripted())
    assert [r.id for r in back.tool_results] == list(REFUSED)
    for answer in back.tool_results:
        assert answer.error and answer.value["type"] == "UnsupportedValueError" and "mean" in answer.value["message"]
    check_tables(engine)


def test_what_json_can_hold_comes_back_as_it_was(store, do, engine):
    ctx = do(store, "create", scripted(), metadata={"kept": KEPT})
    for n, value in enumerate(KEPT):
        ctx.append(result(f"c{n}", value))
    do(store, "save", ctx)
    back = do(store, "load", ctx.id, scripted())
    assert [repr(r.value) for r in back.tool_results] == [repr(v) for v in KEPT]
    assert repr(back.metadata) == repr({"kept": KEPT})
    check_tables(engine)
