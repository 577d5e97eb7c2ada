"""The rows of a host, in the three layouts that a context can have."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextColumn, HasContextLink, new_id
from ctxstore.testing import ScriptedProvider

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
REPLY = {"text": "pong", "usage": {"input_tokens": 90, "output_tokens": 10}}


class Base(DeclarativeBase):
    pass


class _Options:
    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider([REPLY] * 9)}


class Ticket(_Options, HasContext, Base):
    __tablename__ = "tickets"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    title: Mapped[str] = mapped_column(sa.String(200), default="")


class Legacy(_Options, HasContextColumn, Base):
    __tablename__ = "legacies"
    __context_column__ = "data"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    title: Mapped[str] = mapped_column(sa.String(200), default="")
    data: Mapped[str | None] = mapped_column(LONG)


class Document(_Options, HasContextColumn, Base):
    __tablename__ = "documents"
    __context_column__ = "data"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    title: Mapped[str] = mapped_column(sa.String(200), default="")
    data: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)


class Case(_Options, HasContextLink, Base):
    __tablename__ = "cases"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    title: Mapped[str] = mapped_column(sa.String(200), default="")


LAYOUTS = (Ticket, Legacy, Case)
"""``Document`` differs from ``Legacy`` in its type alone."""


def texts(record: Any) -> list[str]:
    return [m.text for m in record.context.messages]


def saved(host: sa.Engine, Model: Any, *prompts: str) -> Any:
    """The key of a new row with these turns."""
    with Session(host) as session:
        row = Model()
        session.add(row)
        for prompt in prompts:
            row.context.talk(prompt)
        session.commit()
        return row.id


def stored(host: sa.Engine, Model: Any, key: Any) -> list[str]:
    with Session(host) as session:
        return texts(session.get(Model, key))
