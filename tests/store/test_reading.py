"""Lists, pages, histories, searches: stable, bounded, indexed, and blind to other owners' contexts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, clock, new_id
from ctxstore.errors import ConfigurationError, ContextNotFoundError
from ctxstore.testing import ScriptedProvider

from .test_saving import statements


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


def talked(store: Store, *turns: str, **options: Any) -> Context:
    ctx = store.create(llm(*[f"{t}!" for t in turns]), **options)
    for turn in turns:
        ctx.talk(turn)
    return ctx


def test_pages_of_a_list_do_not_shift(store: Store) -> None:
    with clock.frozen(dt.datetime(2026, 5, 1, tzinfo=dt.UTC)):
        ids = [store.create(llm(), owner="o" if n % 2 else "p").id for n in range(25)]
    pages, after = [], None
    while page := store.list(limit=10, after=after):
        pages.append([row.id for row in page])
        after = page[-1].cursor
        store.create(llm())  # newer: before the cursor
    assert [len(p) for p in pages] == [10, 10, 5] or len(pages) == 4
    found = [i for p in pages for i in p]
    assert len(found) == len(set(found)) and set(ids) <= set(found)
    assert [i for i in found if i in ids] == sorted(ids, reverse=True), "the tie-break is unique"
    assert [row.owner for row in store.list(owner="o", limit=99)] == ["o"] * 12
    with pytest.raises(ConfigurationError, match="cursor"):
        store.list(after="nonsense")
    for limit in (0, -1, True):
        with pytest.raises(ConfigurationError, match="limit"):
            store.list(limit=limit)


def test_a_list_is_one_statement_without_payloads_by_an_index(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    talked(host, "a", owner="o")
    with statements(engine) as seen:
        rows = host.list(owner="o")
    assert len(rows) == len(seen) == 1 and "payload" not in seen[0]
    if engine.dialect.name == "sqlite":
        with engine.connect() as c:
            for owner in ("owner = 'o' AND", ""):
                plan = c.exec_driver_sql(
                    f"EXPLAIN QUERY PLAN SELECT id FROM ctxstore_contexts WHERE {owner} archived_at IS NULL "
                    "ORDER BY updated_at DESC, id DESC LIMIT 50"
                ).all()
                assert "USING INDEX ix_ctxstore_contexts" in str(plan) and "TEMP B-TREE" not in str(plan)


def test_archived_contexts_are_out_of_the_list_and_alive(store: Store) -> None:
    ctx, other = talked(store, "a"), talked(store, "b")
    store.archive(ctx.id)
    assert [r.id for r in store.list()] == [other.id]
    assert [r.id for r in store.list(archived=True)] == [ctx.id]
    assert len(store.list(archived=None)) == 2
    assert store.get(ctx.id).archived_at is not None
    live = store.load(ctx.id, llm("more"))
    live.talk("c")
    store.unarchive(ctx.id)
    assert [r.id for r in store.list()] == [ctx.id, other.id]


def test_pages_of_messages(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    ctx = talked(host, *[f"q{n}" for n in range(10)])
    every = [m.text for m in ctx.messages]
    with statements(engine) as seen:
        last = host.messages(ctx.id, limit=6)
    assert len(seen) == 1 and [m.text for m in last] == every[-6:]
    assert [m.position for m in last] == list(range(14, 20))
    found, before = [], None
    while page := host.messages(ctx.id, limit=7, before=before):
        found[:0] = page
        before = page[0].position
    assert [m.text for m in found] == every
    one = last[-1]
    assert (one.role, one.id, one.retired) == ("assistant", ctx.messages[-1].id, False)
    assert one.origin == ctx.messages[-1].origin and one.created_at == ctx.messages[-1].created_at
    assert one.content == "q9!" and one.tool_calls == one.tool_results == [] and one.usage is None
    assert host.messages(ctx.id, before=0) == []


@pytest.mark.databases("sqlite")
def test_messages_and_loads_cost_by_what_they_give(store: Store, engine: sa.Engine) -> None:
    """Retired rows are not visited: the plan goes down one index for each statement."""
    from ctxstore.store import repository

    sql = str(repository._LIVE.compile(dialect=engine.dialect))
    with engine.connect() as c:
        live = c.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", ("x", "x", 1)).all()
        page = c.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT payload FROM ctxstore_messages WHERE context_id = 'x' "
            "AND retired_at_revision IS NULL AND position < 9 ORDER BY position DESC LIMIT 50"
        ).all()
    assert str(live).count("USING INDEX ix_ctxstore_messages_live") == 2, live
    assert "USING INDEX ix_ctxstore_messages_live" in str(page) and "TEMP B-TREE" not in str(page)


def test_a_load_is_of_one_moment_whatever_is_saved_between_its_statements(store: Store, engine: sa.Engine) -> None:
    ctx = talked(store, "a", "b")
    host, seen = Store(engine), []

    def meanwhile(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)
        if len(seen) == 2:  # the head was read, the messages are about to be
            ctx.rewind(1)
            ctx.user("c")
            ctx.save()

    if engine.dialect.name == "mysql":
        pytest.skip("MariaDB reads both statements from one snapshot: the writer would not be seen anyway")
    sa.event.listen(engine, "before_cursor_execute", meanwhile)
    back = host.load(ctx.id, llm())
    sa.event.remove(engine, "before_cursor_execute", meanwhile)
    assert [m.text for m in back.messages] == ["a", "a!", "b", "b!"]
    assert [m.text for m in host.load(ctx.id, llm()).messages] == ["a", "a!", "c"]


def test_history_gives_each_message_once(store: Store) -> None:
    ctx = talked(store, "a", "b")
    saved = ctx.snapshot()
    ctx.clear()
    ctx.save()
    ctx.resume(saved)
    ctx.save()
    found = store.history(ctx.id)
    assert [(m.text, m.retired) for m in found] == [("a", False), ("a!", False), ("b", False), ("b!", False)]
    assert [m.position for m in found] == [0, 1, 2, 3]


def test_search(store: Store) -> None:
    ctx = store.create(llm(), owner="a")
    ctx.user("100% sure_thing").user("100 surething").user(
        "\u041f\u0420\u0418\u0412\u0415\u0422 \u6f22\u5b57 \U0001f44d"
    )
    ctx.user("nul\x00here").user("Back\\slash 'quote' !bang")
    ctx.append(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "name": "weather", "arguments": '{"q": "Rome"}'}],
        }
    )
    ctx.tool("c", {"left": "seventeen"})
    store.save(ctx)
    talked(store, "100% sure_thing", owner="b")

    def found(text: str, owner: str | None = "a") -> list[str | None]:
        return [m.text for m in store.search(text, owner=owner)]

    assert found("100% sure_") == ["100% sure_thing"]
    assert found("SURE") == ["100 surething", "100% sure_thing"], "the newest first, ASCII in either case"
    for text in ("\u041f\u0420\u0418\u0412\u0415\u0422", "\u6f22", "\U0001f44d"):
        assert len(found(text)) == 1, text
    assert found("nul\x00here") == ["nul\x00here"]
    for text in ("back\\slash", "'quote'", "!bang"):
        assert len(found(text)) == 1, text
    assert [m.role for m in store.search("rome", owner="a")] == ["assistant"]
    assert [m.role for m in store.search("seventeen")] == ["tool"]
    assert len(found("sure_thing", None)) == 3 and len(store.search("s", limit=2)) == 2
    assert {m.context_id for m in store.search("sure_thing", owner="b")} != {ctx.id}
    ctx.clear()
    ctx.save()
    assert found("sure") == [], "what left the conversation is history"
    with pytest.raises(ConfigurationError):
        store.search("")


def test_another_owners_context_is_not_found(store: Store) -> None:
    ctx = talked(store, "a", owner="mine")
    turn = new_id()
    verbs: list[Any] = [
        lambda o: store.load(ctx.id, llm(), owner=o),
        lambda o: store.get(ctx.id, owner=o),
        lambda o: store.messages(ctx.id, owner=o),
        lambda o: store.history(ctx.id, owner=o),
        lambda o: store.in_flight(ctx.id, owner=o),
        lambda o: store.drop_in_flight(ctx.id, turn, owner=o),
        lambda o: store.export(ctx.id, owner=o),
        lambda o: store.fork(ctx.id, owner=o),
        lambda o: store.archive(ctx.id, owner=o),
        lambda o: store.unarchive(ctx.id, owner=o),
        lambda o: store.delete(ctx.id, owner=o),
    ]
    for verb in verbs:
        with pytest.raises(ContextNotFoundError):
            verb("theirs")
    for verb in verbs:
        verb("mine")
    assert [r.owner for r in store.list()] == ["mine"], "only the fork is left"
