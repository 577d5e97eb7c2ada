"""B75: a late update of a deleted thread put it back, with all its fields empty."""

from __future__ import annotations

import pytest

from ctxstore.errors import ContextNotFoundError

from .scenes import asking, result, scripted, stored, texts

TABLES = ("ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight")


def left(engine, identity):
    """The tables in which there are rows of this id."""
    found = []
    for table in (*TABLES, "ctxstore_usage"):
        column = "id" if table == "ctxstore_contexts" else "context_id"
        if any(str(i) == str(identity) for (i,) in stored(engine, table, column)):
            found.append(table)
    return found


def deleted(store, do, **options):
    ctx = do(store, "create", scripted("one", asking("c1"), "late", "late"), owner="o")
    do(ctx, "talk", "a")
    do(ctx, "talk", "b")
    ctx.rewind(1)
    do(store, "save", ctx)
    other = do(store, "create", scripted("other"), owner="o")
    do(other, "talk", "x")
    do(store, "delete", ctx.id, **options)
    return ctx, other


def test_nothing_is_left_but_the_ledger(store, do, engine):
    ctx, other = deleted(store, do)
    assert left(engine, ctx.id) == ["ctxstore_usage"]
    (row,) = do(store, "usage", by=())
    assert row.requests == 3, "what was paid stays paid"
    assert texts(do(store, "load", other.id, scripted()).messages) == ["x", "other"]


def test_with_erase_usage_not_that_either(store, do, engine):
    ctx, other = deleted(store, do, erase_usage=True)
    assert left(engine, ctx.id) == []
    assert set(left(engine, other.id)) == {"ctxstore_contexts", "ctxstore_messages", "ctxstore_usage"}


LATE = {
    "talk": lambda store, do, ctx: do(ctx, "talk", "late"),
    "result": lambda store, do, ctx: do(ctx, "talk", [result("c1", 1)]),
    "save": lambda store, do, ctx: do(store, "save", ctx.user("late")),
    "append": lambda store, do, ctx: do(store, "save", ctx.user("late"), on_conflict="append"),
    "metadata": lambda store, do, ctx: (setattr(ctx, "metadata", {"title": "late"}), do(store, "save", ctx)),
    "archive": lambda store, do, ctx: do(store, "archive", ctx.id),
    "unarchive": lambda store, do, ctx: do(store, "unarchive", ctx.id),
    "fork": lambda store, do, ctx: do(store, "fork", ctx.id),
    "load": lambda store, do, ctx: do(store, "load", ctx.id, scripted()),
    "delete": lambda store, do, ctx: do(store, "delete", ctx.id),
}


def test_a_late_update_raises_and_creates_nothing(store, do, engine):
    for name, late in LATE.items():
        ctx, _ = deleted(store, do)
        before = [len(stored(engine, t)) for t in TABLES]
        with pytest.raises(ContextNotFoundError):
            late(store, do, ctx)
        assert left(engine, ctx.id) == ["ctxstore_usage"], name
        assert [len(stored(engine, t)) for t in TABLES] == before, name


def test_deleted_while_the_model_thinks(store, do, engine):
    llm = scripted({"text": "late", "usage": {"input_tokens": 7, "output_tokens": 1}})
    ctx = do(store, "create", llm)
    llm.on_request = lambda request: store.delete(ctx.id)
    with pytest.raises(ContextNotFoundError) as caught:
        do(ctx, "talk", "a")
    assert texts(caught.value.turn.messages) == ["a", "late"], "what was paid for is in the error"
    assert left(engine, ctx.id) == ["ctxstore_usage"]
    (row,) = do(store, "usage", by=())
    assert row.usage.total_tokens == 8
