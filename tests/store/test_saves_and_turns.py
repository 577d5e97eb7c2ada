"""A save by hand and a turn of the same live context: they come one after the other, or the one within the other."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store
from ctxstore.testing import ScriptedProvider


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


def agree(store: Store, ctx: Context) -> None:
    """What is live is what is saved, and nothing is left over."""
    assert list(store.load(ctx.id, llm()).messages) == list(ctx.messages)
    assert store.verify().findings == [] and store.in_flight(ctx.id) == []


@pytest.mark.parametrize("how", ["create", "save"])
@pytest.mark.parametrize(("edit", "left"), [("user", ["first", "later"]), ("clear", [])])
def test_an_edit_while_a_save_is_under_way_is_saved_by_the_next(
    store: Store, how: str, edit: str, left: list[str]
) -> None:
    ctx = store.create(llm("one")) if how == "save" else Context(llm("one"))
    seen = []

    @sa.event.listens_for(store.engine, "commit")
    def meanwhile(connection: sa.Connection) -> None:
        if not seen:
            seen.append(ctx.user("later") if edit == "user" else ctx.clear())

    store.save(ctx.user("first"))
    store.save(ctx)
    assert seen and [m.text for m in ctx.messages] == left
    agree(store, ctx)
    ctx.talk("a")
    agree(store, ctx)
