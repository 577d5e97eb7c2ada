"""Rows that leave their session and come back: detached, merged, pickled, refreshed, changed by hand, deleted."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from ctxstore.errors import ContextNotFoundError, StaleContextError

from .hosts import Case, Ticket, saved, stored, texts


def test_closing_a_session_without_a_commit(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("1")
        session.flush()
    assert live.turn is not None, "what was flushed and not committed is gone"
    assert [m.text for m in live.messages] == ["1", "pong"], "and is still readable"
    with pytest.raises(StaleContextError):
        live.talk("2")
    assert stored(host, Model, key) == []


def test_a_detached_row_may_talk_and_come_back(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
    live.talk("2")
    assert row.context is live
    with Session(host) as session:
        session.add(row)
        assert row.context is live
        session.commit()
        live.talk("3")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "2", "3"]


def test_a_detached_row_that_is_stale_is_refused(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        row.context
    row.context.talk("2")
    with Session(host) as session:
        session.get(Model, key).context.talk("theirs")
        session.commit()
    with Session(host) as session:
        session.add(row)
        with pytest.raises(StaleContextError) as caught:
            session.commit()
        assert caught.value.turn is not None
    assert stored(host, Model, key)[::2] == ["1", "theirs"]


def test_a_row_belongs_to_one_session_at_a_time(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as one, Session(host) as two:
        row = one.get(Model, key)
        row.context.talk("2")
        with pytest.raises(sa.exc.InvalidRequestError, match="already attached"):
            two.add(row)
        one.expunge(row)
        two.add(row)
        row.context.talk("3")
        two.commit()
    assert stored(host, Model, key)[::2] == ["1", "2", "3"]


def test_refreshing_drops_what_was_not_flushed(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host, autoflush=False) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("2")
        session.expire(row)
        assert texts(row) == ["1", "pong"]
        assert live.turn is not None
        with pytest.raises(StaleContextError):
            live.talk("3")


@pytest.mark.parametrize("talks", [1, 2])
def test_merging_a_detached_row(host: sa.Engine, talks: int) -> None:
    key = saved(host, Ticket, "1")
    with Session(host) as session:
        row = session.get(Ticket, key)
        row.context
    for n in range(talks):
        row.context.talk(f"m{n}")
    with Session(host) as session:
        merged = session.merge(row)
        assert texts(merged)[2::2] == [f"m{n}" for n in range(talks)]
        merged.context.talk("last")
        session.commit()
    assert stored(host, Ticket, key)[::2] == ["1", *(f"m{n}" for n in range(talks)), "last"]
    row.context.talk("stale")
    with Session(host) as session:
        session.merge(row)
        with pytest.raises(StaleContextError):
            session.commit()
    assert stored(host, Ticket, key)[-2] == "last"


def test_merging_onto_a_row_with_a_live_context(host: sa.Engine) -> None:
    key = saved(host, Ticket, "1")
    with Session(host) as session:
        row = session.get(Ticket, key)
        row.context
    row.context.talk("2")
    with Session(host) as session:
        target = session.get(Ticket, key)
        live = target.context
        session.merge(row)
        assert texts(target)[::2] == ["1", "2"]
        with pytest.raises(StaleContextError):
            live.talk("3")
        session.commit()
    assert stored(host, Ticket, key)[::2] == ["1", "2"]


def test_pickling_takes_the_columns_along(host: sa.Engine) -> None:
    key = saved(host, Ticket, "1")
    with Session(host) as session:
        row = session.get(Ticket, key)
        row.context
    row.context.talk("2")
    again = pickle.loads(pickle.dumps(row))
    assert texts(again)[::2] == ["1", "2"]
    again.context.talk("3")
    with Session(host) as session:
        session.add(again)
        session.commit()
    assert stored(host, Ticket, key)[::2] == ["1", "2", "3"]
    with Session(host) as session:
        session.add(row)
        with pytest.raises(StaleContextError):
            session.commit()


def test_a_pickled_link_is_a_link(host: sa.Engine) -> None:
    key = saved(host, Case, "1")
    with Session(host) as session:
        row = session.get(Case, key)
        row.context
    again = pickle.loads(pickle.dumps(row))
    with Session(host) as session:
        session.add(again)
        assert texts(again) == ["1", "pong"]


def test_assigning_the_column_by_hand(host: sa.Engine) -> None:
    key, second = saved(host, Ticket, "1"), saved(host, Ticket, "2", "3")
    with Session(host) as session:
        row, other = session.get(Ticket, key), session.get(Ticket, second)
        live = row.context
        token, row.context_data = row.context_token, other.context_data
        session.commit()
        assert texts(row)[::2] == ["2", "3"]
        assert row.context.id == key
        assert row.context_token != token
        assert (row.context_message_count, row.context_total_tokens) == (4, 200)
        with pytest.raises(StaleContextError):
            live.talk("never")
        row.context_data = None
        session.commit()
        assert texts(row) == []
        assert (row.context_message_count, row.context_total_tokens) == (None, None)
        row.context.talk("new")
        session.commit()
    assert stored(host, Ticket, key) == ["new", "pong"]


def test_a_row_that_was_deleted_meanwhile(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as one, Session(host) as two:
        live = one.get(Model, key).context
        one.commit()
        two.delete(two.get(Model, key))
        two.commit()
        live.talk("2")
        with pytest.raises((StaleContextError, ContextNotFoundError)):
            one.commit()


def test_deleting_the_row_deletes_the_conversation(host: sa.Engine, Model: Any, store: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        identity = row.context.id
        session.commit()
        session.delete(row)
        session.commit()
    with host.connect() as connection:
        for table in ("ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight"):
            assert connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) == 0
    if Model is Case:
        assert sum(r.requests for r in store.usage(by=("context",)) if r.context == identity) == 1
