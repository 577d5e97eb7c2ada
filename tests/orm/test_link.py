"""``HasContextLink``: the rows of ctxstore's tables, in the host's transaction."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from ctxstore import Store, new_id
from ctxstore.errors import ConfigurationError, ContextNotFoundError, StaleContextError
from ctxstore.testing import ScriptedProvider

from .hosts import Case, texts


def test_a_turn_appends(host: sa.Engine, store: Store) -> None:
    with Session(host) as session:
        row = Case()
        session.add(row)
        for n in range(3):
            row.context.talk(str(n))
            session.commit()
        identity = row.context_id
        assert identity == row.context.id == row.id
    said: list[tuple[str, Any]] = []
    sa.event.listen(host, "before_cursor_execute", lambda c, cur, text, parameters, *_: said.append((text, parameters)))
    with Session(host) as session:
        row = session.get(Case, identity)
        row.context.talk("3")
        said.clear()
        session.commit()
    written = [p for text, p in said if text.startswith("INSERT INTO ctxstore_messages")]
    assert sum(len(p) if isinstance(p, list) else 1 for p in written) == 2, "the prompt and the reply, and no other"
    (listed,) = store.list()
    assert (listed.id, listed.message_count, listed.total_tokens) == (identity, 8, 400)
    assert [m.text for m in store.load(identity, ScriptedProvider([])).messages][::2] == ["0", "1", "2", "3"]


def test_the_store_and_the_record_are_two_writers_of_one_context(host: sa.Engine, store: Store) -> None:
    with Session(host) as session:
        row = Case()
        session.add(row)
        row.context.talk("1")
        session.commit()
        live = row.context
        session.commit()
        store.load(row.context_id, ScriptedProvider(["pong"])).talk("theirs")
        live.talk("mine")
        with pytest.raises(StaleContextError) as caught:
            session.commit()
        assert caught.value.turn is not None
        session.rollback()
        assert texts(row)[::2] == ["1", "theirs"]


def test_compaction_retires_and_forgets_nothing(host: sa.Engine, store: Store) -> None:
    with Session(host) as session:
        row = Case()
        session.add(row)
        row.context.talk("1")
        row.context.talk("2")
        session.commit()
        row.context.compact(summary="they spoke", keep=1)
        session.commit()
        identity = row.context_id
    with Session(host) as session:
        row = session.get(Case, identity)
        assert row.context.summary == "they spoke"
        assert len(row.context) == 1
        assert row.context.token_usage.total_tokens == 200
    assert len(store.history(identity)) == 4


def test_a_link_to_an_existing_context(host: sa.Engine, store: Store) -> None:
    ctx = store.create(ScriptedProvider(["pong"]), owner="team-7")
    ctx.talk("before")
    with Session(host) as session:
        row = Case(context_id=ctx.id)
        session.add(row)
        row.context.talk("after")
        session.commit()
        assert texts(row)[::2] == ["before", "after"]
        assert row.context.state.owner == "team-7"
        missing = Case(context_id=new_id())
        session.add(missing)
        with pytest.raises(ContextNotFoundError):
            missing.context


def test_a_row_outside_of_a_session(host: sa.Engine) -> None:
    row = Case(context_id=new_id())
    with pytest.raises(ConfigurationError, match="no session"):
        row.context
    new = Case()
    new.context.talk("1")
    with Session(host) as session:
        session.add(new)
        session.commit()
        assert texts(new) == ["1", "pong"]
