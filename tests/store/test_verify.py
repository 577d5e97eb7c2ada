"""``verify`` finds what is not as it must be, each kind by its name, and repairs projections alone."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store, new_id
from ctxstore.store.tables import contexts, in_flight, messages, usage
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 100, "output_tokens": 10}


@pytest.fixture
def talk(store: Store) -> Any:
    call = {"tool_calls": [{"id": "c1", "name": "t", "arguments": "{}"}], "usage": USAGE}
    llm = ScriptedProvider(
        [call, {"text": "done", "usage": USAGE}, "unknown"], prices={"scripted-1": {"input": 3, "output": 15}}
    )
    ctx = store.create(llm, owner="o")
    ctx.talk("call")
    ctx.tool("c1", {"left": 3})
    ctx.resend()
    ctx.talk("more")
    ctx.rewind(to=3)
    ctx.save()
    store.create(ScriptedProvider([]))
    assert not store.verify().findings
    return ctx


def spoil(engine: sa.Engine, table: sa.Table, where: dict[str, Any], **values: Any) -> None:
    with engine.begin() as c:
        here = [table.c[k] == v for k, v in where.items()]
        assert c.execute(sa.update(table).where(*here).values(**values)).rowcount == 1


CASES: list[tuple[str, str, sa.Table, dict[str, Any], dict[str, Any]]] = [
    ("unreadable", "the head", contexts, {}, {"payload": '{"schema_version": 3, "id": 1, "params": 7}'}),
    ("unreadable", "the head", contexts, {}, {"schema_version": 2}),
    ("unreadable", "99", contexts, {}, {"schema_version": 99}),
    ("unreadable", "position 1", messages, {"position": 1}, {"payload": '{"role": 7}'}),
    ("unreadable", "position 1", messages, {"position": 1}, {"schema_version": 99}),
    ("position", "at 2 of", messages, {"position": 2}, {"position": 40}),
    ("position", "from next_position", messages, {"position": 2}, {"position": 40}),
    ("revision", "left at 99", messages, {"position": 0}, {"retired_at_revision": 99}),
    ("revision", "the payload", contexts, {}, {"revision": 40}),
    ("pair", "without one", messages, {"position": 1}, {"retired_at_revision": 2}),
    ("ledger", "input_tokens", usage, {"position": 1}, {"input_tokens": 101}),
    ("ledger", "no reply stands", usage, {"position": 1}, {"position": 0}),
    ("ledger", "twice", usage, {"position": 1}, {"position": 3}),
]


@pytest.mark.parametrize(("kind", "word", "table", "where", "values"), CASES)
def test_what_is_wrong_is_named_and_not_touched(
    store: Store,
    engine: sa.Engine,
    talk: Any,
    kind: str,
    word: str,
    table: sa.Table,
    where: dict[str, Any],
    values: dict[str, Any],
) -> None:
    key = "id" if table is contexts else "context_id"
    spoil(engine, table, {key: talk.id, **where}, **values)
    for repair in (False, True):
        found = store.verify(repair=repair).open
        assert {f.id for f in found} == {talk.id}
        assert any(f.kind == kind and word in f.text for f in found), found
    with engine.connect() as c:
        moved = {**where, **{k: v for k, v in values.items() if k in where}}
        here = [table.c[k] == v for k, v in {key: talk.id, **moved}.items()]
        for name, value in values.items():
            assert value in list(c.scalars(sa.select(table.c[name]).where(*here)))


LIES: list[tuple[sa.Table, dict[str, Any], dict[str, Any]]] = [
    (contexts, {}, {"total_tokens": 10**9, "input_tokens": 0}),
    (contexts, {}, {"cost_pico_usd": None}),
    (contexts, {}, {"title": None, "model": "gpt-x", "provider": None, "mode": "x"}),
    (contexts, {}, {"message_count": 0, "context_used": 5, "compacted": True}),
    (messages, {"position": 0}, {"text": "lie", "role": "system"}),
    (messages, {"position": 1}, {"total_tokens": 1, "provider": None, "model": "other", "created_at": None}),
]


@pytest.mark.parametrize(("table", "where", "lies"), LIES)
def test_projections_are_repaired(
    store: Store, engine: sa.Engine, talk: Any, table: sa.Table, where: dict[str, Any], lies: dict[str, Any]
) -> None:
    key = "id" if table is contexts else "context_id"
    with engine.connect() as c:
        before = {
            t.name: c.execute(sa.select(t).order_by(*t.primary_key.columns)).all() for t in (contexts, messages, usage)
        }
    spoil(engine, table, {key: talk.id, **where}, **lies)
    report = store.verify(repair=True)
    assert {f.kind for f in report.findings} == {"projection"} and not report.open
    assert len(report.findings) == len(lies)
    assert not store.verify().findings
    with engine.connect() as c:
        after = {
            t.name: c.execute(sa.select(t).order_by(*t.primary_key.columns)).all() for t in (contexts, messages, usage)
        }
    assert after == before
    talk.provider.replies.append("goes on")
    assert talk.talk("after the repair").text == "goes on"


def test_projections_in_the_payload_are_repaired(store: Store, engine: sa.Engine, talk: Any) -> None:
    with engine.connect() as c:
        text = c.execute(sa.select(contexts.c.payload).where(contexts.c.id == talk.id)).scalar_one()
    lie = text.replace('"context_used":110', '"context_used":1').replace('"total_tokens":220}', '"total_tokens":7}')
    assert lie != text
    spoil(engine, contexts, {"id": talk.id}, payload=lie)
    report = store.verify(repair=True)
    assert {f.kind for f in report.findings} == {"projection"} and not report.open
    with engine.connect() as c:
        assert c.execute(sa.select(contexts.c.payload).where(contexts.c.id == talk.id)).scalar_one() == text


def test_a_context_that_is_saved_meanwhile_is_not_repaired_from_old_rows(
    store: Store, engine: sa.Engine, talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctxstore.store import verify

    spoil(engine, contexts, {"id": talk.id}, total_tokens=7)
    check = verify._check

    def slow(head: Any, *parts: Any) -> Any:
        found = check(head, *parts)
        if found.fixes:
            late.append(found)
        return found

    late: list[Any] = []
    monkeypatch.setattr(verify, "_check", slow)
    repair = verify._repair

    def after_a_turn(c: sa.Connection, one: Any) -> bool:
        one.token = "0" * 32  # what it read is no longer what stands there
        return repair(c, one)

    monkeypatch.setattr(verify, "_repair", after_a_turn)
    report = store.verify(repair=True)
    assert late and report.open and not any(f.repaired for f in report.findings)
    assert store.get(talk.id).total_tokens == 7


def test_rows_of_no_context(store: Store, engine: sa.Engine, talk: Any) -> None:
    alone = new_id()
    spoil(engine, messages, {"context_id": talk.id, "position": 5}, context_id=alone)
    with engine.begin() as c:
        row = c.execute(sa.select(contexts).where(contexts.c.id == talk.id)).one()
        values = {"context_id": alone, "turn_id": new_id(), "base_revision": 1, "created_at": row.created_at}
        c.execute(sa.insert(in_flight).values(**values, payload='{"schema_version":3,"messages":[]}'))
    found = [f for f in store.verify().findings if f.kind == "orphan"]
    assert [f.id for f in found] == [alone, alone]
    assert "ctxstore_messages" in found[0].text and "ctxstore_in_flight" in found[1].text


def test_replies_without_a_price_are_no_finding(store: Store) -> None:
    ctx = store.create(ScriptedProvider([{"text": "x", "usage": USAGE}, "unknown"]))
    ctx.talk("a")
    ctx.talk("b")
    ctx.append({"role": "assistant", "content": "by hand"})
    store.save(ctx)
    ctx.compact(summary="short", keep=1)
    ctx.save()
    store.fork(ctx.id)
    assert not store.verify().findings


def test_two_databases(store: Store, tmp_path: Any) -> None:
    file = tmp_path / "copy.jsonl"
    talks = [store.create(ScriptedProvider(["x", "y"])) for _ in range(3)]
    for ctx in talks:
        ctx.talk("a")
    store.export_to(file)
    with Store(f"sqlite:///{tmp_path}/other.db") as other:
        other.upgrade()
        other.import_from(file)
        assert not store.verify(against=other).findings
        talks[0].talk("only here")
        other.delete(talks[1].id, erase_usage=True)
        added = other.create(ScriptedProvider([]))
        report = store.verify(against=other)
        assert {(f.id, f.kind) for f in report.findings} == {
            (talks[0].id, "different"),
            (talks[1].id, "missing"),
            (added.id, "added"),
        }
        assert report.digest != report.against
        other.delete(talks[2].id)
        kinds = [f.kind for f in store.verify(against=other).findings if f.id == talks[2].id]
        assert sorted(kinds) == ["added", "missing"], "the context is gone there, its ledger is on its own"
