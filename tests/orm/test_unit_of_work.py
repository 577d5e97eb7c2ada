"""The host owns the unit of work: commits, rollbacks, savepoints, other writers, and what becomes of a live context."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Mapped, Session, mapped_column

from ctxstore import HasContext, new_id
from ctxstore.compaction import Trim
from ctxstore.errors import ServerError, StaleContextError, StoreUnavailableError
from ctxstore.testing import ScriptedProvider

from .hosts import REPLY, Base, Ticket, saved, stored, texts


class Versioned(HasContext, Base):
    __tablename__ = "versioned"
    id: Mapped[Any] = mapped_column(sa.Uuid, primary_key=True, default=new_id)
    title: Mapped[str] = mapped_column(sa.String(50), default="")
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider([REPLY] * 9)}


def test_a_turn_is_written_by_the_hosts_commit_and_not_before(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        row.context.talk("ping")
        assert session.is_modified(row) or row in session.dirty
        session.commit()
        assert texts(row) == ["ping", "pong"]
    assert stored(host, Model, key) == ["ping", "pong"]


def test_reading_writes_nothing(host: sa.Engine, Model: Any) -> None:
    with Session(host) as session:
        row = Model()
        session.add(row)
        assert len(row.context) == 0
        session.commit()
        key = row.id
    with Session(host) as session:
        row = session.get(Model, key)
        assert len(row.context) == 0
        assert not session.dirty
        session.commit()
    with host.connect() as connection:
        found = connection.execute(sa.select(Model.__table__)).mappings().one()
        assert {v for k, v in found.items() if k not in ("id", "title")} == {None}


def test_a_live_context_goes_on_over_commits_and_expiries(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        for prompt in ("1", "2"):
            live.talk(prompt)
            session.commit()
            assert row.context is live
        session.expire(row)
        assert row.context is live
        session.refresh(row)
        assert row.context is live
        live.talk("3")
        session.flush()
        live.talk("4")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "2", "3", "4"]


def test_edits_are_written_without_a_turn(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        row.context.user("a note").assistant("noted")
        row.context.metadata = {"title": "t"}
        session.commit()
    with Session(host) as session:
        row = session.get(Model, key)
        assert texts(row) == ["1", "pong", "a note", "noted"]
        assert row.context.metadata == {"title": "t"}
        row.context.rewind(1)
        session.commit()
    assert stored(host, Model, key) == ["1", "pong"]


def test_every_kind_of_edit(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1", "2", "3")
    with Session(host) as session:
        row = session.get(Model, key)
        row.context.compact(summary="they spoke", keep=2)
        row.context.use(model="another")
        session.commit()
    with Session(host) as session:
        row = session.get(Model, key)
        assert texts(row) == ["3", "pong"]
        assert (row.context.summary, row.context.model, row.context.compacted) == ("they spoke", "another", True)
        assert row.context.token_usage.total_tokens == 300
        snapshot = row.context.snapshot()
        row.context.clear()
        session.commit()
        assert texts(row) == []
        row.context.resume(snapshot)
        row.context.compactor = Trim(max_messages=2)
        row.context.user("4")
        session.commit()
    with Session(host) as session:
        row = session.get(Model, key)
        assert texts(row) == ["pong", "4"]
        assert (row.context.summary, row.context.token_usage.total_tokens) == ("they spoke", 300)


def test_another_writer_in_between_is_told_from_an_own_commit(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as one, Session(host) as two:
        a = one.get(Model, key)
        live = a.context
        one.commit()
        two.get(Model, key).context.talk("theirs")
        two.commit()
        assert texts(a) == ["1", "pong", "theirs", "pong"]
        assert a.context is not live
        with pytest.raises(StaleContextError) as caught:
            live.talk("mine")
        assert caught.value.turn is None, "it was told before the request was sent"


def test_a_lost_race_keeps_every_unsaved_turn_in_the_error(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "0")
    with Session(host) as one, Session(host) as two:
        a, b = one.get(Model, key), two.get(Model, key)
        first, live = a.context, b.context
        two.rollback()
        first.talk("1")
        one.commit()
        first.talk("2")
        one.commit()
        live.talk("3")
        live.user("a note")
        live.talk("4")
        with pytest.raises(StaleContextError) as caught:
            two.commit()
        turn = caught.value.turn
        assert turn is not None
        assert [m.text for m in turn.messages] == ["3", "pong", "a note", "4", "pong"]
        assert [e.usage.total_tokens for e in turn.usage if e.usage] == [100, 100]
        assert live.turn == turn
        two.rollback()
        assert texts(b)[::2] == ["0", "1", "2"]
        b.context.talk("again")
        two.commit()
    assert stored(host, Model, key)[::2] == ["0", "1", "2", "again"]


def test_a_rollback_takes_the_turn_back_and_leaves_it_in_the_context(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("2")
        session.flush()
        live.talk("3")
        session.rollback()
        assert live.turn is not None
        assert [m.text for m in live.turn.messages] == ["2", "pong", "3", "pong"]
        assert texts(row) == ["1", "pong"]
        with pytest.raises(StaleContextError):
            live.user("an edit")
        row.context.talk("4")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "4"]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_savepoint_takes_back_its_own_turns_alone(host: sa.Engine, Model: Any, flushed: bool) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("1")
        savepoint = session.begin_nested()
        live.talk("2")
        if flushed:
            session.flush()
        savepoint.rollback()
        assert live.turn is not None
        assert [m.text for m in live.turn.messages][-2:] == ["2", "pong"]
        assert texts(row) == ["1", "pong"]
        with pytest.raises(StaleContextError):
            live.talk("never")
        row.context.talk("3")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "3"]


def test_a_savepoint_of_other_rows_leaves_the_context_alone(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("1")
        savepoint = session.begin_nested()
        session.add(Ticket(title="other"))
        savepoint.rollback()
        assert row.context is live
        with session.begin_nested():
            live.talk("2")
        session.expire(row)
        session.begin_nested().rollback()
        live.talk("3")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "2", "3"]


def test_a_released_savepoint_goes_with_its_transaction(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        row.title = "x"
        session.flush()  # Python's sqlite3 begins a transaction at the first write, and not at a savepoint
        with session.begin_nested():
            live.talk("1")
        session.rollback()
        with pytest.raises(StaleContextError):
            live.talk("2")
        assert texts(row) == []


@pytest.mark.parametrize("flushed", [True, False])
def test_a_new_row_that_was_rolled_back_can_be_added_again(host: sa.Engine, Model: Any, flushed: bool) -> None:
    with Session(host) as session:
        row = Model()
        session.add(row)
        live = row.context
        live.talk("1")
        if flushed:
            session.flush()
        session.rollback()
        assert row.context is live
        live.talk("2")
        session.add(row)
        session.commit()
        live.talk("3")
        session.commit()
        key = row.id
    assert stored(host, Model, key)[::2] == ["1", "2", "3"]


def test_a_flush_that_failed_on_another_row_takes_the_turn_back(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model)
    with Session(host) as session:
        row = session.get(Model, key)
        live = row.context
        live.talk("1")
        session.add(Model(id=key, title="the same key"))
        with pytest.warns(sa.exc.SAWarning), pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        assert live.turn is not None
        assert texts(row) == []


def test_a_host_with_a_version_counter(host: sa.Engine) -> None:
    key = saved(host, Versioned, "1")
    with Session(host) as one, Session(host) as two:
        a, b = one.get(Versioned, key), two.get(Versioned, key)
        live = b.context
        two.rollback()
        a.context.talk("2")
        one.commit()
        live.talk("3")
        with pytest.raises(StaleContextError) as caught:
            two.commit()
        assert caught.value.turn is not None
        two.rollback()
        b.context.talk("4")
        b.title = "x"
        two.commit()
        assert b.version == 3
    assert stored(host, Versioned, key)[::2] == ["1", "2", "4"]


def test_a_failed_request_leaves_the_row_alone(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as session:
        row = session.get(Model, key)
        row.context.provider.replies.insert(0, ServerError("down", status=500))
        with pytest.raises(ServerError) as caught:
            row.context.talk("2")
        assert caught.value.turn is not None
        assert [m.text for m in caught.value.turn.messages] == ["2"]
        assert not session.dirty
        row.context.talk("3")
        session.commit()
    assert stored(host, Model, key)[::2] == ["1", "3"]


@pytest.mark.databases("postgresql")
def test_a_serialization_failure_is_a_stale_context(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host.execution_options(isolation_level="REPEATABLE READ")) as one, Session(host) as two:
        live = one.get(Model, key).context
        two.get(Model, key).context.talk("theirs")
        two.commit()
        live.talk("mine")
        with pytest.raises(StaleContextError) as caught:
            one.commit()
        assert caught.value.turn is not None
        assert [m.text for m in caught.value.turn.messages] == ["mine", "pong"]
        assert isinstance(caught.value.__cause__, sa.exc.OperationalError)
    assert stored(host, Model, key)[::2] == ["1", "theirs"]


@pytest.mark.databases("mysql")
def test_mariadbs_snapshot_isolation_is_a_stale_context(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host) as one, Session(host) as two:
        try:
            one.execute(sa.text("SET SESSION innodb_snapshot_isolation = ON"))
        except sa.exc.OperationalError:
            pytest.skip("this server has no innodb_snapshot_isolation")
        one.commit()
        live = one.get(Model, key).context
        two.get(Model, key).context.talk("theirs")
        two.commit()
        live.talk("mine")
        with pytest.raises(StaleContextError) as caught:
            one.commit()
        assert caught.value.turn is not None
        one.rollback()
        one.execute(sa.text("SET SESSION innodb_snapshot_isolation = OFF"))
    assert stored(host, Model, key)[::2] == ["1", "theirs"]


@pytest.mark.databases("sqlite")
def test_a_busy_sqlite_is_unavailable_with_the_turn(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    impatient = sa.create_engine(host.url, connect_args={"timeout": 0.01})
    with Session(impatient) as one, Session(host) as two:
        live = one.get(Model, key).context
        two.add(Ticket())
        two.flush()
        live.talk("2")
        with pytest.raises(StoreUnavailableError) as caught:
            one.commit()
        assert caught.value.turn is not None
        one.rollback()
        two.rollback()
    impatient.dispose()
    assert stored(host, Model, key) == ["1", "pong"]


def test_a_turn_inside_a_transaction_is_told_when_debugging(host: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    key = saved(host, Ticket)
    with Session(host, expire_on_commit=False) as session:
        row = session.get(Ticket, key)
        row.context.talk("1")
        assert not caplog.records
        session.commit()
        caplog.set_level(logging.DEBUG, "ctxstore")
        row.context.talk("2")
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
        session.execute(sa.select(1))
        row.context.talk("3")
        (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert "session.commit()" in record.getMessage()


def test_nothing_is_read_or_written_while_a_turn_runs(host: sa.Engine, Model: Any) -> None:
    key = saved(host, Model, "1")
    with Session(host, expire_on_commit=False) as session:
        row = session.get(Model, key)
        live = row.context
        session.commit()
        said: list[str] = []
        sa.event.listen(host, "before_cursor_execute", lambda c, cur, statement, *_: said.append(statement))
        live.talk("2")
        live.user("a note")
        assert [m.text for m in row.context.messages][::2] == ["1", "2", "a note"]
        assert said == []
        session.commit()
        assert said
    assert stored(host, Model, key)[::2] == ["1", "2", "a note"]
