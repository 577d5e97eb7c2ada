"""B53: a change inside of a JSON value was neither written nor refused, and nobody was told."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextColumn, HasContextLink, new_id
from ctxstore.testing import ScriptedProvider


class Base(DeclarativeBase):
    pass


class _Row:
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=new_id)

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider(["pong"] * 9), "metadata": None}


class Ticket(_Row, HasContext, Base):
    __tablename__ = "b53_tickets"


class Text(_Row, HasContextColumn, Base):
    __tablename__ = "b53_texts"
    __context_column__ = "data"
    data: Mapped[str | None] = mapped_column(sa.Text().with_variant(mysql.LONGTEXT(), "mysql"))


class Document(_Row, HasContextColumn, Base):
    __tablename__ = "b53_documents"
    __context_column__ = "data"
    data: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)


class Case(_Row, HasContextLink, Base):
    __tablename__ = "b53_cases"


@pytest.fixture(params=[Ticket, Text, Document, Case], ids=lambda m: m.__name__)
def key(request: pytest.FixtureRequest, engine: sa.Engine) -> Any:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        row = request.param()
        session.add(row)
        row.context.metadata = {"tags": ["a"], "n": {"m": 1}}
        row.context.talk("one")
        session.commit()
        return request.param, row.id


def test_every_change_through_the_context_is_seen_by_the_next_session(key: Any, engine: sa.Engine) -> None:
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        ctx.user("two")
        ctx.metadata = {**ctx.metadata, "tags": [*ctx.metadata["tags"], "b"]}
        session.commit()
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        assert [m.text for m in ctx.messages] == ["one", "pong", "two"]
        assert ctx.metadata == {"tags": ["a", "b"], "n": {"m": 1}}


def test_the_list_of_messages_is_read_only(key: Any, engine: sa.Engine) -> None:
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        with pytest.raises(AttributeError):
            ctx.messages.append(ctx.messages[0])  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            ctx.messages[0] = ctx.messages[1]  # type: ignore[index]
        with pytest.raises(TypeError):
            del ctx.messages[0]  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="frozen"):
            ctx.messages[0].content = "x"


def test_what_stands_inside_is_read_only(key: Any, engine: sa.Engine) -> None:
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        for change in (
            lambda: ctx.metadata["tags"].append("b"),
            lambda: ctx.metadata.update(n=1),
            lambda: ctx.metadata["n"].pop("m"),
            lambda: ctx.params.setdefault("temperature", 1),
        ):
            with pytest.raises(TypeError, match="changed in place"):
                change()
        assert ctx.metadata == {"tags": ["a"], "n": {"m": 1}}


def test_nothing_that_is_set_to_what_it_is_emits_an_update(key: Any, engine: sa.Engine) -> None:
    said: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda c, cur, statement, *_: said.append(statement))
    with Session(engine) as session:
        row = session.get_one(*key)
        row.context.metadata = {"tags": ["a"], "n": {"m": 1}}
        row.context.extend([])
        row.context.save()
        if (column := getattr(row, "__context_column__", None)) is not None:
            setattr(row, column, getattr(row, column))
        session.commit()
    assert not [s for s in said if not s.startswith("SELECT")]


def test_a_value_that_was_handed_in_may_change_afterwards(key: Any, engine: sa.Engine) -> None:
    """What the caller does to its own objects later on is no change of the conversation."""
    tags = ["x"]
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        ctx.metadata = {"tags": tags}
        ctx.tool("call_1", {"tags": tags})
        tags.append("y")
        session.commit()
        assert ctx.metadata == {"tags": ["x"]}
    with Session(engine) as session:
        ctx = session.get_one(*key).context
        assert ctx.metadata == {"tags": ["x"]}
        assert ctx.messages[-1].tool_results[0].value == {"tags": ["x"]}
