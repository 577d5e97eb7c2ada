"""Whose id a context has, and what older and newer programs left in a column."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextColumn, new_id
from ctxstore.clock import is_uuid7
from ctxstore.errors import SchemaVersionError
from ctxstore.testing import ScriptedProvider

from .hosts import REPLY, Case, Document, Legacy, Ticket

LLMRB = Path(__file__).parent.parent / "data" / "llmrb-v1"


class _Options:
    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider([REPLY] * 9)}


@pytest.mark.parametrize("model", [Ticket, Legacy, Document, Case])
def test_a_uuid7_of_the_record_is_the_contexts_id(host: sa.Engine, model: Any) -> None:
    key = new_id()
    row = model(id=key)
    assert row.context.id == key, "before it is flushed"
    with Session(host) as session:
        session.add(row)
        row.context.talk("1")
        session.commit()
    with Session(host) as session:
        assert session.get(model, key).context.id == key
        other = model()
        identity = other.context.id
        assert other.id == identity, "an empty UUID key takes the context's"
        session.add(other)
        session.commit()
        assert session.get(model, identity) is other


def test_other_keys_keep_the_id_of_the_first_save(engine: sa.Engine) -> None:
    class Here(DeclarativeBase):
        pass

    class Numbered(_Options, HasContext, Here):
        __tablename__ = "numbered"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Random(_Options, HasContext, Here):
        __tablename__ = "random"
        id: Mapped[uuid.UUID] = mapped_column(primary_key=True)

    class Slug(_Options, HasContext, Here):
        __tablename__ = "slugs"
        id: Mapped[str] = mapped_column(sa.String(36), primary_key=True)

    Here.metadata.create_all(engine)
    four, seven = uuid.uuid4(), new_id()
    rows = [Numbered(), Random(id=four), Slug(id="chat_aB"), Slug(id=str(seven))]
    ids = []
    for row in rows:
        with Session(engine) as session:
            session.add(row)
            row.context.talk("1")
            session.commit()
            ids.append((type(row), sa.inspect(row).identity, row.context.id))
    assert all(is_uuid7(identity) for _, _, identity in ids)
    assert ids[3][2] == seven
    for model, key, identity in ids:
        with Session(engine) as session:
            assert session.get_one(model, key).context.id == identity


def test_an_explicit_id_wins(host: sa.Engine) -> None:
    wanted = new_id()
    row = Ticket(id=new_id())
    row.context_options = lambda: {"provider": ScriptedProvider(["pong"]), "id": str(wanted)}  # type: ignore[method-assign]
    assert row.context.id == wanted


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("name", sorted(p.stem for p in LLMRB.glob("*.json")))
def test_columns_that_llmrb_filled_are_read_as_they_are(engine: sa.Engine, name: str) -> None:
    class Here(DeclarativeBase):
        pass

    class Kept(_Options, HasContextColumn, Here):
        __tablename__ = "kept"
        __context_column__ = "data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[str | None] = mapped_column(sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"))

    Here.metadata.create_all(engine)
    written = (LLMRB / f"{name}.json").read_text()
    with engine.begin() as connection:
        connection.execute(sa.insert(Kept), [{"id": 1, "data": written}, {"id": 2, "data": written}])
    with Session(engine) as one, Session(engine) as two:
        row = one.get_one(Kept, 1)
        first, again, other = row.context, two.get_one(Kept, 1).context, two.get_one(Kept, 2).context
        assert first.id == again.id != other.id, "minted from the table and the key, the same every time"
        assert [m.id for m in first.messages] == [m.id for m in again.messages]
        assert row.data == written, "nothing is rewritten on read"
        assert not one.dirty
        identity = first.id
        first.user("on")
        one.commit()
        assert row.context.id == identity
    with Session(engine) as session:
        assert session.get_one(Kept, 1).context.id == identity


# -- a payload from the future


@pytest.mark.parametrize("model", [Ticket, Legacy])
def test_a_row_from_the_future_is_a_row_like_any_other(host: sa.Engine, model: Any) -> None:
    column = "context_data" if model is Ticket else "data"
    key, future = new_id(), '{"schema_version": 99, "messages": [], "new": true}'
    with host.begin() as connection:
        connection.execute(sa.insert(model.__table__).values({"id": key, "title": "t", column: future}))
    with Session(host) as session:
        (row,) = session.scalars(sa.select(model))
        with pytest.raises(SchemaVersionError) as caught:
            row.context
        assert caught.value.found == 99
        row.title = "renamed"
        session.commit()
        assert (row.title, getattr(row, column)) == ("renamed", future)
        session.delete(row)
        session.commit()
        assert session.get(model, key) is None
