"""B43: rows of an earlier release had no such section; the new code read it as null, and every old thread failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctxstore import Context
from ctxstore.payload.schema import VERSION
from ctxstore.store.tables import messages

from .scenes import scripted, stored, watched

DATA = Path(__file__).parent.parent / "data"
FROZEN = sorted((DATA / "payloads").glob("v*.json"))
ABSENT = {
    "provider": ("provider.name", "scripted"),
    "mode": ("mode", "completions"),
    "model": ("model", "scripted-1"),
    "params": ("params", {}),
    "tools": ("state.head.tools", ()),
    "metadata": ("metadata", {}),
    "summary": ("summary", None),
    "compacted": ("compacted", False),
    "revision": ("revision", 0),
    "carried_cost": ("state.head.carried_cost", 0),
    "carried_unpriced": ("state.head.carried_unpriced", 0),
}


def read(thing, path):
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


def test_there_is_one_of_every_version():
    assert [json.loads(p.read_bytes())["schema_version"] for p in FROZEN] == list(range(1, VERSION + 1))


@pytest.mark.parametrize("path", FROZEN, ids=lambda p: p.stem)
def test_a_frozen_payload_of_every_version_gives_the_same_messages(path):
    ctx = Context.restore(path=path, provider=scripted())
    assert [(m.role, m.text, m.reasoning) for m in ctx.messages] == [
        ("system", "Be brief.", None),
        ("user", "How warm is it in Lisbon?", None),
        ("assistant", None, "I should look."),
        ("tool", None, None),
        ("assistant", "21 degrees.", None),
    ]
    (call,) = ctx.messages[2].tool_calls
    assert (call.id, call.name, call.arguments_json) == ("call_3a", "weather", '{"city": "Lisbon"}')
    assert [(r.id, r.value) for r in ctx.tool_results] == [("call_3a", {"celsius": 21})]
    assert ctx.token_usage.total_tokens == 70 + 95 and ctx.context_used == 95
    assert ctx.metadata == {"ticket": 41}
    assert ctx.to_payload()["schema_version"] == VERSION
    assert ctx.pending_calls == []


@pytest.mark.parametrize("path", FROZEN, ids=lambda p: p.stem)
def test_saving_it_writes_the_current_version_once(store, do, engine, path):
    frozen = path.read_bytes()
    made = do(store, "import_payload", json.loads(frozen), owner="o")
    versions = stored(engine, "ctxstore_messages", "schema_version")
    assert versions == [(VERSION,)] * 5 and stored(engine, "ctxstore_contexts", "schema_version") == [(VERSION,)]
    before = stored(engine, "ctxstore_contexts")
    llm = scripted("ok")
    back = do(store, "load", made.id, llm)
    with watched(store.engine) as seen:
        store.save(back)
    assert seen == [] and stored(engine, "ctxstore_contexts") == before, "not again"
    do(back, "talk", "and tomorrow?")
    assert len(do(store, "load", made.id, scripted()).messages) == 7
    assert path.read_bytes() == frozen


@pytest.mark.parametrize("path", FROZEN, ids=lambda p: p.stem)
@pytest.mark.parametrize("how", ["absent", "null"])
def test_an_absent_section_takes_its_default(path, how):
    whole = json.loads(path.read_bytes())
    for key, (where, default) in ABSENT.items():
        payload = {k: v for k, v in whole.items() if k != key} | ({key: None} if how == "null" else {})
        ctx = Context.restore(payload, provider=scripted())
        assert read(ctx, where) == default, key
        assert len(ctx.messages) == 5
    ctx = Context.restore({"schema_version": whole["schema_version"]}, provider=scripted())
    assert len(ctx.messages) == 0 and ctx.token_usage.total_tokens == 0 and ctx.context_used is None
    assert Context.restore({**whole, "messages": None}, provider=scripted()).messages[:] == []


def test_rows_of_older_versions_stand_beside_new_ones(store, do, engine):
    """A message row has a version of its own, and is read by it."""
    ctx = do(store, "create", scripted("ok"))
    ctx.user("How warm is it?")
    do(store, "save", ctx)
    old = {"role": "assistant", "content": "21", "reasoning_content": "hm", "usage": {"total_tokens": 7}}
    update = messages.update().values(schema_version=1, role="assistant", payload=json.dumps(old))
    with engine.begin() as c:
        assert c.execute(update).rowcount == 1
    back = do(store, "load", ctx.id, scripted("ok"))
    assert [(m.role, m.text, m.reasoning) for m in back.messages] == [("assistant", "21", "hm")]
    assert back.messages[0].id == do(store, "load", ctx.id, scripted()).messages[0].id, "the same each time"
    do(back, "talk", "next")
    assert [v for (v,) in stored(engine, "ctxstore_messages", "schema_version")] == [1, VERSION, VERSION]
    assert [m.text for m in do(store, "load", ctx.id, scripted()).messages] == ["21", "next", "ok"]
