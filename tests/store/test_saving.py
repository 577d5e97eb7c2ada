"""Saving and loading: what is new is written, what was written comes back, nothing grows with the conversation."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, clock, new_id
from ctxstore.errors import ConfigurationError, ContextNotFoundError, SchemaVersionError, StaleContextError, StoreError
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 10, "output_tokens": 2, "cache_read_tokens": 4}


def llm(*replies: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies), **options)


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """What is sent on ``engine`` meanwhile."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(engine, "before_cursor_execute", note)


def test_a_turn_costs_the_same_however_long_the_conversation(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    ctx = host.create(llm(*["r"] * 40))
    counts = []
    for n in (1, 20):
        for _ in range(n):
            ctx.talk("q")
        with statements(engine) as seen:
            ctx.talk("q")
        counts.append([s.split()[0] for s in seen])
    assert counts[0] == counts[1] == ["INSERT", "UPDATE", "INSERT", "INSERT", "DELETE"]
    with statements(engine) as seen:
        host.load(ctx.id, llm())
    assert [s.split()[0] for s in seen] == ["SELECT", "SELECT"]
    assert "ORDER BY position" in " ".join(seen[1].split()).replace("`", "")


def test_the_columns_say_what_the_context_says(store: Store, engine: sa.Engine) -> None:
    prices = {"m": {"input": 3, "output": 15}}
    provider = llm({"text": "one", "usage": USAGE}, model="m", context_window=1000, prices=prices)
    ctx = store.create(provider, owner="team-7", metadata={"title": "A title"})
    ctx.talk("hello")
    row = store.get(ctx.id)
    assert (row.owner, row.provider, row.model, row.title) == ("team-7", provider.name, "m", "A title")
    assert (row.message_count, row.context_used, row.context_window, row.revision) == (2, 12, 1000, ctx.revision)
    assert (row.input_tokens, row.output_tokens, row.total_tokens, row.cache_read_tokens) == (10, 2, 12, 4)
    assert row.usage == ctx.token_usage and row.cost == ctx.cost.total and row.unpriced == 0
    assert row.created_at == ctx.created_at and row.updated_at == ctx.updated_at
    assert row.created_at.tzinfo is not None
    with engine.connect() as c:
        payload = c.exec_driver_sql("SELECT payload FROM ctxstore_contexts").scalar_one()
        head = payload if isinstance(payload, dict) else json.loads(payload)
        assert head["schema_version"] == 3 and "messages" not in head
        found = c.execute(sa.text("SELECT position, role, text, model, total_tokens FROM ctxstore_messages ORDER BY 1"))
        assert [tuple(r) for r in found] == [(0, "user", "hello", None, None), (1, "assistant", "one", "m", 12)]
        ledger = c.execute(
            sa.text("SELECT outcome, kind, owner, position, slot, total_tokens FROM ctxstore_usage")
        ).one()
    assert tuple(ledger)[:4] == ("ok", "turn", "team-7", 1) and ledger.total_tokens == 12
    assert ledger.slot == int(ctx.messages[-1].created_at.timestamp()) // 900  # type: ignore[union-attr]


def test_projections_are_never_read_back(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm({"text": "one", "usage": USAGE}))
    ctx.talk("hello")
    honest = ctx.to_payload()
    lies = (
        "context_used = 9, context_window = 9, total_tokens = 9, input_tokens = 9, message_count = 9, cost_pico_usd = 9"
    )
    with engine.begin() as c:
        c.exec_driver_sql(f"UPDATE ctxstore_contexts SET {lies}, model = 'liar', title = 'lie', compacted = true")
        c.exec_driver_sql("UPDATE ctxstore_messages SET text = 'lie', role = 'liar', total_tokens = 9")
    assert store.load(ctx.id, llm()).to_payload() == honest


def test_what_was_said_comes_back_to_the_letter(store: Store) -> None:
    texts = [
        "",
        "[not json",
        '{"a": 1',
        "null",
        "a\x00b",
        "a\ud800b",
        "\U0001f44d\U0001f3fd",
        "%_\\'\"\u2028",
        " trailing ",
    ]
    values = [None, {"z": 1, "a": 2**70, "f": -0.0}, [1.5, True, "\x00"], "", {"": {"nested": ["\ud800"]}}]
    ctx = store.create(llm(), metadata={"z": texts, "a": values})
    for text in texts:
        ctx.user(text)
    for n, value in enumerate(values):
        ctx.append({"role": "assistant", "content": None, "tool_calls": [
            {"id": f"c{n}", "name": "t", "arguments": '{"cut": "in the mid'}]})  # fmt: skip
        ctx.tool(f"c{n}", value)
    store.save(ctx)
    back = store.load(ctx.id, llm())
    assert back.to_json() == ctx.to_json()
    assert [m.text for m in back.messages[: len(texts)]] == texts
    assert repr([r.value for r in back.tool_results]) == repr(values), "key order and -0.0 too"
    assert [m.message for m in store.messages(ctx.id, limit=99)] == list(ctx.messages)


def test_a_long_text_is_whole(store: Store) -> None:
    text = "\u6f22\u5b57" * 200_000
    ctx = store.create(llm())
    ctx.user(text).user("x" * 65_535).user("y" * 65_536)
    store.save(ctx)
    assert [m.text for m in store.load(ctx.id, llm()).messages] == [text, "x" * 65_535, "y" * 65_536]


def test_edits_retire_and_append(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(
        llm({"text": "one", "usage": USAGE}, {"text": "two", "usage": USAGE}, {"text": "3", "usage": USAGE})
    )
    ctx.talk("a"), ctx.talk("b")
    ctx.rewind(ctx.messages[1].id)
    store.save(ctx)
    ctx.talk("c")
    back = store.load(ctx.id, llm())
    assert [m.text for m in back.messages] == ["a", "one", "c", "3"]
    assert back.token_usage == ctx.token_usage and back.token_usage.total_tokens == 36, "usage never shrinks"
    found = store.history(ctx.id)
    assert [(m.text, m.retired) for m in found] == [
        ("a", False), ("one", False), ("b", True), ("two", True), ("c", False), ("3", False)]  # fmt: skip
    with engine.connect() as c:
        rows = c.exec_driver_sql("SELECT position FROM ctxstore_messages ORDER BY position").scalars().all()
    assert rows == list(range(6))


def test_a_message_that_left_before_it_was_saved_is_history_too(store: Store) -> None:
    ctx = store.create(llm("one"))
    ctx.user("gone")
    ctx.clear()
    ctx.user("stays")
    store.save(ctx)
    assert [m.text for m in store.load(ctx.id, llm()).messages] == ["stays"]
    assert [(m.text, m.retired) for m in store.history(ctx.id)] == [("gone", True), ("stays", False)]


def test_order_is_by_position_whatever_the_clock_says(store: Store) -> None:
    ctx = store.create(llm())
    with clock.frozen(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)):
        ctx.user("from the future")
    with clock.frozen(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)):
        ctx.user("r1").assistant("a1")
        store.save(ctx)
    assert [m.text for m in store.load(ctx.id, llm()).messages] == ["from the future", "r1", "a1"]
    assert [m.text for m in store.messages(ctx.id, limit=2)] == ["r1", "a1"]


def test_saving_what_did_not_change_sends_nothing(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    ctx = host.create(llm("one"))
    ctx.talk("a")
    with statements(engine) as seen:
        host.save(ctx)
        ctx.save()
    assert seen == []


def test_a_free_context_is_bound_by_its_first_save(store: Store) -> None:
    ctx = Context(llm("one", "two"))
    ctx.talk("a")
    store.save(ctx)
    assert store.usage(by=())[0].requests == 1, "what it used before counts too"
    ctx.talk("b")
    assert [m.text for m in store.load(ctx.id, llm()).messages] == ["a", "one", "b", "two"]
    with pytest.raises(StaleContextError, match="already"):
        store.save(Context.restore(ctx.to_payload(), provider=llm()))
    with pytest.raises(StaleContextError, match="already"):
        store.create(llm(), id=ctx.id)


def test_an_id_is_found_in_every_spelling(store: Store) -> None:
    ctx = store.create(llm())
    for spelling in (ctx.id, str(ctx.id), ctx.id.hex, str(ctx.id).upper()):
        assert store.load(spelling, llm()).id == ctx.id


@pytest.mark.parametrize("owner", ["", " team", "team ", "x" * 192, "a\x00b", "a\ud800"])
def test_an_owner_that_a_database_would_mistake_is_refused(owner: str) -> None:
    with Store("sqlite://") as store, pytest.raises(ConfigurationError):
        store.create(llm(), owner=owner)


def test_owners_and_models_are_compared_to_the_letter(store: Store) -> None:
    for owner in ("aB", "Ab", "ab", "\u00e4b"):
        store.create(llm({"text": "x", "usage": USAGE}, model=f"m-{owner}"), owner=owner).talk("q")
    assert [s.owner for s in store.list(owner="aB")] == ["aB"]
    assert {r.model for r in store.usage()} == {"m-aB", "m-Ab", "m-ab", "m-\u00e4b"}
    with pytest.raises(ConfigurationError, match="191"):
        store.create(llm("x", model="m" * 192))


def test_a_row_from_the_future_is_left_alone(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm("one", "two"))
    ctx.talk("a")
    with engine.begin() as c:
        c.exec_driver_sql("UPDATE ctxstore_contexts SET schema_version = 4")
        before = c.exec_driver_sql("SELECT * FROM ctxstore_contexts").one()
    ctx.user("unsaved")
    for verb in (lambda: store.load(ctx.id, llm()), lambda: ctx.talk("b"), lambda: store.save(ctx),
                 lambda: store.export(ctx.id), lambda: store.fork(ctx.id)):  # fmt: skip
        with pytest.raises(SchemaVersionError):
            verb()
    assert ctx.provider.replies == ["two"], "no request was sent"
    assert [s.id for s in store.list()] == [ctx.id]
    with engine.connect() as c:
        assert c.exec_driver_sql("SELECT * FROM ctxstore_contexts").one() == before


def test_after_deletion_nothing_is_left_and_nothing_comes_back(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm({"text": "one", "usage": USAGE}, "two"), owner="o")
    ctx.talk("a")
    ctx.user("late")
    store.delete(ctx.id)
    for late in (lambda: store.save(ctx), lambda: ctx.talk("b"), lambda: store.delete(ctx.id)):
        with pytest.raises(ContextNotFoundError):
            late()
    with engine.connect() as c:
        for table in ("contexts", "messages", "in_flight"):
            assert c.exec_driver_sql(f"SELECT count(*) FROM ctxstore_{table}").scalar_one() == 0
    assert store.usage(by=("owner",))[0].usage.total_tokens == 12
    other = store.create(llm({"text": "one", "usage": USAGE}))
    other.talk("a")
    store.delete(other.id, erase_usage=True)
    assert store.usage(by=())[0].requests == 1


def test_an_unknown_id_is_no_context(store: Store) -> None:
    unknown = new_id()
    for verb in (store.messages, store.history, store.in_flight, store.export, store.fork, store.archive, store.get):
        with pytest.raises(ContextNotFoundError):
            verb(unknown)
    with pytest.raises(ContextNotFoundError):
        store.drop_in_flight(unknown, new_id())


def test_a_name_that_no_database_can_encode_is_an_error_of_ours(store: Store) -> None:
    for ask in (lambda: store.list(owner="a\ud800"), lambda: store.usage(model="\ud800")):
        with pytest.raises(StoreError):
            ask()


def test_a_result_of_the_greatest_depth_is_kept_however_it_comes(store: Store) -> None:
    deep: Any = 1
    for _ in range(128):
        deep = [deep]
    ctx = store.create(llm({"tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}, "done"))
    ctx.talk("look")
    ctx.tool("c", deep)
    ctx.talk()
    assert store.load(ctx.id, llm()).tool_results[0].value == deep
