"""``verify`` finds what is not as it must be, each kind by its name, and repairs projections alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, ToolPolicy, new_id
from ctxstore.compaction import Callback
from ctxstore.errors import StaleContextError
from ctxstore.messages import Message
from ctxstore.store.tables import contexts, in_flight, messages, usage
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 100, "output_tokens": 10}
LONG_AGO = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)


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
    ("ledger", "cost_pico_usd", usage, {"position": 1}, {"cost_pico_usd": None}),
    ("ledger", "cost_pico_usd", usage, {"position": 1}, {"cost_pico_usd": 1}),
    ("ledger", "cache_read_tokens", usage, {"position": 3}, {"cache_read_tokens": 7}),
    ("ledger", "output_tokens", usage, {"position": 3}, {"output_tokens": None}),
    ("ledger", "slot is 5", usage, {"position": 1}, {"slot": 5}),
    ("ledger", "no kind 'gift'", usage, {"position": 1}, {"kind": "gift"}),
    ("ledger", "ended as lost", usage, {"position": 1}, {"outcome": "lost"}),
    ("ledger", "no outcome", usage, {"position": 1}, {"outcome": "good"}),
    ("ledger", "owner of the attempt", usage, {"position": 1}, {"owner": "somebody"}),
    ("ledger", "that of its context", contexts, {}, {"owner": "somebody"}),
    ("ledger", "provider of", usage, {"position": 1}, {"provider": "other"}),
    ("ledger", "model of", usage, {"position": 1}, {"model": "other"}),
    ("ledger", "response_id of", usage, {"position": 1}, {"response_id": "other"}),
    ("ledger", "no object of rates", usage, {"position": 1}, {"price": '{"input":3}'}),
    ("ledger", "attempt 1 of the turn", usage, {"position": 1}, {"attempt": 2}),
    ("position", "forked_from None", contexts, {}, {"forked_at": 1}),
    ("position", "and 2147483636 more", contexts, {}, {"next_position": 2**31 - 1}),
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
    (contexts, {}, {"created_at": LONG_AGO, "updated_at": LONG_AGO, "context_window": 7}),
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


# -- the ledger


def test_a_reply_without_its_attempt(store: Store, engine: sa.Engine, talk: Any) -> None:
    """A reply before which nothing was talked here may have come with a payload: it is counted."""
    for position, found, unaccounted in ((3, 1, 0), (5, 2, 0), (1, 0, 3)):  # once the first is gone, nothing tells
        with engine.begin() as c:
            here = (usage.c.context_id == talk.id, usage.c.position == position)
            assert c.execute(sa.delete(usage).where(*here)).rowcount == 1
        report = store.verify()
        assert [f.kind for f in report.findings] == ["ledger"] * found and report.unaccounted == unaccounted
        assert all("no attempt" in f.text for f in report.findings)


@pytest.mark.parametrize("position", [None, 3])
def test_an_attempt_that_never_was(store: Store, engine: sa.Engine, talk: Any, position: int | None) -> None:
    with engine.begin() as c:
        row = dict(c.execute(sa.select(usage).where(usage.c.position == 3)).mappings().one())
        c.execute(sa.insert(usage).values({**row, "id": new_id(), "position": position}))
    found = store.verify().open
    assert any("there twice" in f.text for f in found) and {f.id for f in found} == {talk.id}


def test_a_gap_in_the_attempts_of_a_turn(store: Store, engine: sa.Engine) -> None:
    call = {"tool_calls": [{"id": "c1", "name": "t", "arguments": "{}"}], "usage": USAGE}
    ctx = store.create(ScriptedProvider([call, "done"]), tools=[_tool()], tool_policy=ToolPolicy(allow=["t"]))
    ctx.talk("call")
    assert not store.verify().findings
    with engine.begin() as c:
        c.execute(sa.delete(usage).where(usage.c.attempt == 1))
    assert [f.text.split(" of ")[0] for f in store.verify().findings] == ["attempt 1"]


def _tool() -> Any:
    from ctxstore import tool

    @tool
    def t() -> str:
        "A tool."
        return "x"

    return t


def test_the_ledger_of_a_deleted_context(store: Store, engine: sa.Engine, talk: Any) -> None:
    store.delete(talk.id)
    assert not store.verify().findings
    spoil(engine, usage, {"context_id": talk.id, "position": 1}, slot=1)
    assert [(f.id, f.kind) for f in store.verify().findings] == [(talk.id, "ledger")]


def test_an_import_has_an_attempt_for_each_reply(store: Store, engine: sa.Engine, talk: Any) -> None:
    payload = {**talk.to_payload(), "id": str(new_id())}
    there = store.import_payload(payload)
    assert not store.verify().findings
    with engine.begin() as c:
        first = c.execute(sa.select(usage).where(usage.c.context_id == there.id).order_by(usage.c.id)).first()
        c.execute(sa.delete(usage).where(usage.c.context_id == there.id, usage.c.id == first.id))
    found = store.verify().findings
    assert [(f.id, f.kind) for f in found] == [(there.id, "ledger")] and "position 1 has no attempt" in found[0].text


def test_an_earlier_life_under_the_same_id(store: Store, talk: Any) -> None:
    payload = store.export(talk.id)
    store.delete(talk.id)
    there = store.import_payload(payload, owner="another")
    store.load(there.id, ScriptedProvider(["goes on"])).talk("x")
    assert not store.verify().findings


def test_a_fork_stands_where_it_says(store: Store, engine: sa.Engine, talk: Any) -> None:
    fork = store.fork(talk.id, at=0)
    other = store.fork(talk.id)
    assert not store.verify().findings
    for lie, word in (({"forked_at": 99}, "which has 6"), ({"forked_at": 2}, "is not here"), ({"forked_at": -1}, "-1")):
        spoil(engine, contexts, {"id": fork.id}, **lie)
        found = store.verify().findings
        assert [(f.id, f.kind) for f in found] == [(fork.id, "position")] and word in found[0].text
    spoil(engine, contexts, {"id": fork.id}, forked_at=0)
    store.delete(talk.id)
    store.load(other.id, ScriptedProvider(["goes on"])).talk("x")
    assert not store.verify().findings, "what a fork came from may be gone"


def test_replies_that_have_no_attempt_of_their_position(store: Store) -> None:
    """Put after another writer's, kept by a compaction, brought by a payload, corrected: none of it is a finding."""
    llm = ScriptedProvider([{"text": f"r{i}", "usage": USAGE} for i in range(8)])
    ctx = store.create(llm, owner="o")
    ctx.talk("a")
    slow = ScriptedProvider([{"text": "late", "usage": USAGE}, {"text": "later", "usage": USAGE}])
    late = store.load(ctx.id, slow)
    slow.on_request = lambda request: ctx.talk("b") if len(ctx.messages) == 2 else None
    with pytest.raises(StaleContextError):
        late.talk("c")
    store.save(late, on_conflict="append")
    late.talk("d")
    kept = store.create(llm, compactor=Callback(lambda found: [m.model_copy() for m in found[-2:]], max_messages=2))
    kept.talk("a")
    kept.talk("b")
    elsewhere = Context(ScriptedProvider([{"text": "x", "usage": USAGE}]))
    elsewhere.talk("a")
    restored = Context.restore(elsewhere.to_payload(), provider=llm)
    store.save(restored)
    restored.talk("b")
    unknown = store.create(ScriptedProvider(["unknown"]))
    unknown.talk("a")
    (attempt,) = store.attempts(unknown.id)
    assert store.correct_usage(unknown.id, attempt.id, USAGE, price={"input": 3, "output": 15})
    unknown.append(Message.new("assistant", "by hand"))
    unknown.save()
    report = store.verify()
    assert not report.findings and report.unaccounted == 1


# -- what cannot be read


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


DAMAGE: dict[str, list[tuple[str, str, str]]] = {
    "sqlite": [
        ("ctxstore_messages", "created_at", "'nonsense'"),
        ("ctxstore_messages", "retired_at_revision", "'nonsense'"),
        ("ctxstore_messages", "id", "'nonsense'"),
        ("ctxstore_messages", "payload", "x'ff'"),
        ("ctxstore_messages", "payload", "cast(x'ff' as text)"),
        ("ctxstore_messages", "text", "cast(x'ff' as text)"),
        ("ctxstore_contexts", "next_position", "'nonsense'"),
        ("ctxstore_contexts", "payload", "cast(x'ff' as text)"),
        ("ctxstore_contexts", "updated_at", "x'00'"),
        ("ctxstore_in_flight", "created_at", "5"),
        ("ctxstore_in_flight", "turn_id", "'nonsense'"),
        ("ctxstore_usage", "created_at", "'nonsense'"),
        ("ctxstore_usage", "turn_id", "'nonsense'"),
        ("ctxstore_usage", "id", "x'ff'"),
        ("ctxstore_usage", "error", "x'ff'"),
        ("ctxstore_usage", "cost_pico_usd", "'much'"),
    ],
    "postgresql": [
        ("ctxstore_messages", "created_at", "'infinity'"),
        ("ctxstore_contexts", "locked_until", "'-infinity'"),
        ("ctxstore_usage", "created_at", "'20000-01-01 00:00:00+00'"),
    ],
    "mysql": [
        ("ctxstore_messages", "id", "'nonsense'"),
        ("ctxstore_usage", "turn_id", "'nonsense'"),
        ("ctxstore_contexts", "forked_from", "'nonsense'"),
    ],
}


def damage(engine: sa.Engine) -> list[tuple[str, str, str]]:
    name = engine.dialect.name
    return DAMAGE["mysql" if name in ("mysql", "mariadb") else name]


def test_a_value_that_cannot_be_read_is_reported_by_id(store: Store, engine: sa.Engine) -> None:
    before = store.create(ScriptedProvider(["x"]))
    before.talk("a")
    for table, column, value in damage(engine):
        ctx = store.create(ScriptedProvider([RuntimeError("no"), "x"]))
        with pytest.raises(Exception, match="no"):
            ctx.talk("a")
        with engine.begin() as c:
            row = {"context_id": ctx.id, "turn_id": new_id(), "base_revision": 0, "created_at": ctx.created_at}
            c.execute(sa.insert(in_flight).values(**row, payload='{"schema_version":3,"messages":[]}'))
        ctx.talk("b")
        after = store.create(ScriptedProvider(["x"]))
        after.talk("a")
        spoil(engine, contexts, {"id": after.id}, title="lie")
        assert [f.kind for f in store.verify().findings] == ["projection"], column
        key = "id" if table == "ctxstore_contexts" else "context_id"
        where = f"{key} = '{ctx.id}'" + (" and position = 0" if table == "ctxstore_messages" else "")
        if table == "ctxstore_usage":
            where += " and position is null"
        if table == "ctxstore_in_flight":
            where += " and base_revision = 0"
        with engine.begin() as c:
            assert c.exec_driver_sql(f"update {table} set {column} = {value} where {where}").rowcount == 1
        report = store.verify(against=store)
        assert [(f.id, f.kind) for f in report.findings] == [(ctx.id, "unreadable"), (after.id, "projection")], column
        assert column in report.findings[0].text and report.digest == report.against
        with engine.begin() as c:
            for gone, name in ((contexts, "id"), (messages, "context_id"), (in_flight, "context_id")):
                c.execute(sa.delete(gone).where(gone.c[name].in_([ctx.id, after.id])))
            c.execute(sa.delete(usage).where(usage.c.context_id.in_([ctx.id, after.id])))


@pytest.mark.databases("sqlite", "mysql")
def test_an_id_that_is_none(store: Store, engine: sa.Engine) -> None:
    sqlite = engine.dialect.name == "sqlite"
    for value in ("'nonsense'", "''", *(("cast(x'ff' as text)", "x'ff'", "x'00'") if sqlite else ())):
        made = [store.create(ScriptedProvider(["x"])) for _ in range(3)]
        for ctx in made:
            ctx.talk("a")
        with engine.begin() as c:
            c.exec_driver_sql(f"update ctxstore_contexts set id = {value} where id = '{made[1].id}'")
            spoilt = f"update ctxstore_usage set context_id = {value} where context_id = '{made[1].id}'"
            c.exec_driver_sql(spoilt)
        spoil(engine, contexts, {"id": made[2].id}, title="lie")
        report = store.verify(against=store)
        kinds = {(f.id, f.kind) for f in report.findings}
        assert {(made[1].id, "orphan"), (made[2].id, "projection")} < kinds
        assert sum(kind == "unreadable" and isinstance(i, str) for i, kind in kinds) >= 1
        assert report.digest == report.against and report.contexts == 3
        with engine.begin() as c:
            c.exec_driver_sql(f"update ctxstore_usage set context_id = {value} where context_id = '{made[0].id}'")
            c.exec_driver_sql(f"delete from ctxstore_contexts where id = {value}")
        assert any(f.kind == "unreadable" for f in store.verify(against=store).findings)
        with engine.begin() as c:
            for table in (contexts, messages, usage):
                c.execute(sa.delete(table))
