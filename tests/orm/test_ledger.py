"""What bound records used, in the ledger: in the host's transaction or not at all."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextColumn, HasContextLink, Store, new_id
from ctxstore.errors import DatabaseNotUpgradedError, ServerError, StaleContextError
from ctxstore.testing import ScriptedProvider

from .hosts import LONG, REPLY


class Base(DeclarativeBase):
    pass


class _Counted:
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    team: Mapped[str] = mapped_column(sa.String(20), default="o")
    store: Any = None
    llm: Any = None

    def context_options(self) -> dict[str, Any]:
        llm = self.llm or ScriptedProvider([REPLY] * 9)
        return {"provider": llm, "store": type(self).store, "owner": self.team}


class Ticket(_Counted, HasContext, Base):
    __tablename__ = "counted_tickets"


class Legacy(_Counted, HasContextColumn, Base):
    __tablename__ = "counted_legacies"
    __context_column__ = "data"
    data: Mapped[str | None] = mapped_column(LONG)


class Case(_Counted, HasContextLink, Base):
    __tablename__ = "counted_cases"


@pytest.fixture(params=[Ticket, Legacy, Case], ids=lambda m: m.__name__)
def Counted(request: pytest.FixtureRequest, engine: sa.Engine, store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    Base.metadata.create_all(engine)
    monkeypatch.setattr(request.param, "store", store)
    return request.param


def counted(store: Store) -> list[tuple[Any, ...]]:
    return [(r.owner, r.requests, r.errors, r.usage.total_tokens) for r in store.usage(by=("owner",))]


def test_usage_goes_in_with_the_commit(Counted: Any, engine: sa.Engine, store: Store) -> None:
    with Session(engine) as session:
        row = Counted(team="team-7")
        session.add(row)
        row.context.talk("1")
        row.context.talk("2")
        assert counted(store) == []
        session.commit()
        assert counted(store) == [("team-7", 2, 0, 200)]
        session.commit()
        row.context.talk("3")
        session.commit()
        (of_context,) = store.usage(by=("context",))
        assert (of_context.context, of_context.requests) == (row.context.id, 3)


def test_a_rollback_takes_it_back_and_leaves_it_in_the_turn(Counted: Any, engine: sa.Engine, store: Store) -> None:
    with Session(engine) as session:
        row = Counted(team="o")
        session.add(row)
        session.commit()
        live = row.context
        live.talk("1")
        session.flush()
        session.rollback()
        assert counted(store) == []
        assert live.turn is not None
        assert store.record_usage(live.turn, owner="o") == 1
        assert store.record_usage(live.turn, owner="o") == 0
    assert counted(store) == [("o", 1, 0, 100)]


def test_a_lost_race_leaves_it_in_the_error(Counted: Any, engine: sa.Engine, store: Store) -> None:
    with Session(engine) as one, Session(engine) as two:
        row = Counted(team="o")
        one.add(row)
        one.commit()
        other = two.get(Counted, row.id).context
        two.rollback()
        row.context.talk("1")
        one.commit()
        other.talk("2")
        with pytest.raises(StaleContextError) as caught:
            two.commit()
        assert counted(store) == [("o", 1, 0, 100)]
        assert caught.value.turn is not None
        store.record_usage(caught.value.turn)
    assert counted(store) == [("o", 2, 0, 200)]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_new_row_that_is_added_again_is_counted_once(
    Counted: Any, engine: sa.Engine, store: Store, recorded: bool
) -> None:
    with Session(engine) as session:
        row = Counted(team="o")
        session.add(row)
        row.context.talk("1")
        turn = row.context._keeper.turn()  # type: ignore[attr-defined]
        session.flush()
        session.rollback()
        if recorded:
            store.record_usage(turn)
        session.add(row)
        session.commit()
    assert counted(store) == [("o", 1, 0, 100)]


def test_attempts_that_failed_go_in_with_the_next_turn(Counted: Any, engine: sa.Engine, store: Store) -> None:
    with Session(engine) as session:
        row = Counted(team="o")
        row.llm = ScriptedProvider([ServerError("down", status=500), REPLY])
        session.add(row)
        with pytest.raises(ServerError):
            row.context.talk("1")
        row.context.talk("1")
        session.commit()
    assert counted(store) == [("o", 1, 1, 100)]


def test_without_a_store_the_columns_stand_alone(engine: sa.Engine, store: Store) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        row = Ticket()
        session.add(row)
        row.context.talk("1")
        session.commit()
        assert row.context_total_tokens == 100
    assert counted(store) == []


@pytest.mark.parametrize("model", [Ticket, Case])
def test_without_the_tables_the_error_names_the_command(
    model: Any, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sa.create_engine(empty_url)
    Base.metadata.create_all(engine)
    with Store(empty_url) as store, Session(engine) as session:
        monkeypatch.setattr(Ticket, "store", store)
        row = model()
        session.add(row)
        row.context.talk("1")
        with pytest.raises(DatabaseNotUpgradedError, match="ctxstore db upgrade") as caught:
            session.commit()
        assert caught.value.turn is not None
        session.rollback()
        session.execute(sa.insert(Case.__table__).values(id=(key := new_id()), team="o", context_id=new_id()))
        with pytest.raises(DatabaseNotUpgradedError, match="ctxstore db upgrade"):
            session.get_one(Case, key).context
    engine.dispose()
