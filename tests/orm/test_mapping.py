"""What the mixins add to a host's classes, on every kind of base, and what they refuse when mappers are configured."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    configure_mappers,
    declarative_base,
    mapped_column,
    registry,
)
from sqlmodel import Field, SQLModel

from ctxstore import HasContext, HasContextColumn, HasContextLink, new_id
from ctxstore.errors import ConfigurationError
from ctxstore.store.types import Uuid
from ctxstore.testing import ScriptedProvider
from ctxstore.usage import COUNTS

from .hosts import REPLY, Case, Document, Legacy, Ticket, texts

LLMRB = Path(__file__).parent.parent / "data" / "llmrb-v1"
COLUMNS = {
    *("context_data", "context_token", "context_schema_version", "context_model", "context_used", "context_window"),
    *("context_message_count", "context_cost_pico_usd", *(f"context_{count}" for count in COUNTS)),
}


class _Options:
    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider([REPLY] * 9)}


class Plain(DeclarativeBase):
    pass


class Animal(_Options, HasContext, Plain):
    __tablename__ = "animals"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}
    __table_args__ = (sa.Index("ix_animals_context_used", "context_used"),)


class Cat(Animal):
    lives: Mapped[int | None]
    __mapper_args__ = {"polymorphic_identity": "cat"}


class Dog(Animal):
    __tablename__ = "dogs"
    dog_id: Mapped[int] = mapped_column(sa.ForeignKey("animals.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "dog"}


class Person(Plain):
    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(sa.String(20))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}


class Patient(_Options, HasContext, Person):
    __tablename__ = "patients"
    patient_id: Mapped[int] = mapped_column(sa.ForeignKey("people.id"), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "patient"}


class Common(_Options, HasContext):
    """A mixin of the host's own."""


class Mixed(Common, Plain):
    __tablename__ = "mixed"
    id: Mapped[int] = mapped_column(primary_key=True)


class Abstract(_Options, HasContext, Plain):
    __abstract__ = True


class Concrete(Abstract):
    __tablename__ = "concrete"
    id: Mapped[int] = mapped_column(primary_key=True)


class Composite(_Options, HasContext, Plain):
    __tablename__ = "composite"
    tenant: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    number: Mapped[int] = mapped_column("no", primary_key=True, autoincrement=False)


class DataBase(MappedAsDataclass, DeclarativeBase):
    pass


class Chat(_Options, HasContext, DataBase):
    __tablename__ = "chats"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(20), default="x")


class OldChat(_Options, HasContextColumn, DataBase):
    __tablename__ = "old_chats"
    __context_column__ = "data"
    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[str | None] = mapped_column(sa.Text().with_variant(mysql.LONGTEXT(), "mysql"), init=False, repr=False)


class LinkedChat(_Options, HasContextLink, DataBase):
    __tablename__ = "linked_chats"
    id: Mapped[int] = mapped_column(primary_key=True)


decorated = registry()


@decorated.mapped
class Decorated(_Options, HasContext):
    __tablename__ = "decorated"
    id: Mapped[int] = mapped_column(primary_key=True)


Old: Any = declarative_base()


class Classic(_Options, HasContext, Old):
    __tablename__ = "classic"
    id = sa.Column(sa.Integer, primary_key=True)


class Reflected(_Options, HasContext, Plain):
    __table__ = sa.Table(
        "reflected",
        Plain.metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(c.name, c.type) for c in Classic.__table__.c if c.name != "id"),
    )


class Row(_Options, HasContext, SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    title: str = "x"


class OldRow(_Options, HasContextColumn, SQLModel, table=True):
    __context_column__ = "data"
    id: int | None = Field(default=None, primary_key=True)
    data: dict[str, Any] | None = Field(default=None, sa_type=sa.JSON)


class LinkedRow(_Options, HasContextLink, SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)


MODELS: dict[str, Any] = {
    "cat": lambda: Cat(id=1),
    "dog": lambda: Dog(id=1),
    "patient": lambda: Patient(id=1),
    "mixed": lambda: Mixed(id=1),
    "concrete": lambda: Concrete(id=1),
    "composite": lambda: Composite(tenant="t", number=1),
    "dataclass": lambda: Chat(id=1),
    "dataclass column": lambda: OldChat(id=1),
    "dataclass link": lambda: LinkedChat(id=1),
    "decorated": lambda: Decorated(id=1),
    "classic": lambda: Classic(id=1),
    "reflected": lambda: Reflected(id=1),
    "sqlmodel": lambda: Row(id=1),
    "sqlmodel column": lambda: OldRow(id=1),
    "sqlmodel link": lambda: LinkedRow(id=1),
}


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("name", MODELS)
def test_every_base(engine: sa.Engine, name: str) -> None:
    row = MODELS[name]()
    model = type(row)
    model.__table__.metadata.create_all(engine)
    repr(row)
    with Session(engine) as session:
        session.add(row)
        row.context.talk("1")
        session.commit()
        row.context.talk("2")
        session.commit()
        key, identity = sa.inspect(row).identity, row.context.id
    with Session(engine) as session:
        (row,) = session.scalars(sa.select(model))
        assert texts(row) == ["1", "pong", "2", "pong"]
        assert row.context.id == identity
        assert sa.inspect(row).identity == key
        if isinstance(row, HasContext):
            assert (row.context_used, row.context_total_tokens, row.context_message_count) == (100, 200, 4)
            assert session.scalars(sa.select(model).where(model.context_used > 50)).all() == [row]
        session.delete(row)
        session.commit()


def test_the_columns_that_are_added() -> None:
    configure_mappers()
    assert {c.name for c in Ticket.__table__.c} == {"id", "title", *COLUMNS}
    assert all(c.nullable for c in Ticket.__table__.c if c.name in COLUMNS)
    assert {c.name for c in Legacy.__table__.c} == {"id", "title", "data"}
    assert {c.name for c in Case.__table__.c} == {"id", "title", "context_id"}
    assert not COLUMNS & {c.name for c in Dog.__table__.c}, "columns stand on the first class of a hierarchy"
    assert {c.name for c in Patient.__table__.c} >= COLUMNS


def test_as_few_names_as_possible() -> None:
    public = {n for n in dir(HasContext) if not n.startswith("_")}
    assert public == {"context", "context_options"}
    row = Ticket()
    row.context.talk("1")
    assert {n for n in vars(row) if not n.startswith("_")} == {"id", *COLUMNS}


def test_projections_are_written_and_never_read(host: sa.Engine) -> None:
    key = new_id()
    prices = {"scripted-1": {"input": 3, "output": 15}}
    llm = ScriptedProvider([REPLY] * 2, prices=prices, context_window=1000)
    with Session(host) as session:
        row = Ticket(id=key)
        row.context_options = lambda: {"provider": llm}  # type: ignore[method-assign]
        session.add(row)
        row.context.talk("1")
        session.commit()
        assert (row.context_schema_version, row.context_model, row.context_window) == (3, "scripted-1", 1000)
        assert (row.context_input_tokens, row.context_output_tokens) == (90, 10)
        assert row.context_cost_pico_usd == 420_000_000
    with host.begin() as connection:
        guard = "context_schema_version"  # a lie there means a newer program, whose rows are left alone
        columns = (c for c in Ticket.__table__.c if c.name in COLUMNS and c.name != guard)
        numbers = [c.name for c in columns if isinstance(c.type, sa.Integer)]
        connection.execute(sa.update(Ticket.__table__).values(dict.fromkeys(numbers, 7)).values(context_model="no"))
    with Session(host) as session:
        row = session.get(Ticket, key)
        assert row.context.token_usage.total_tokens == 100
        assert (row.context.context_used, row.context.model) == (100, "scripted-1")
        row.context.talk("2")
        session.commit()
        assert (row.context_total_tokens, row.context_model) == (200, "scripted-1")


def test_the_type_decides_between_document_and_string(host: sa.Engine) -> None:
    with Session(host) as session:
        text, document = Legacy(), Document()
        session.add_all([text, document])
        text.context.talk("1")
        document.context.talk("1")
        session.commit()
        assert isinstance(text.data, str)
        assert text.data.startswith('{"schema_version":3')
        assert isinstance(document.data, dict)
        assert document.data["messages"][0]["content"] == "1"


JSONS: dict[str, Any] = {
    "json": sa.JSON(),
    "jsonb": sa.JSON().with_variant(postgresql.JSONB(), "postgresql"),
    "mutable": MutableDict.as_mutable(sa.JSON()),
    "text": sa.Text(),
    "long": sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"),
    "string": sa.String(),
    "unicode": sa.UnicodeText(),
}


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.filterwarnings("ignore:.*64 KB")
def test_kinds_of_columns(engine: sa.Engine, kind: str) -> None:
    if kind == "string" and engine.dialect.name == "mysql":
        pytest.skip("VARCHAR needs a length on MySQL")

    class Here(DeclarativeBase):
        pass

    class Kept(_Options, HasContextColumn, Here):
        __tablename__ = "kept"
        __context_column__ = "data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[Any] = mapped_column(JSONS[kind], nullable=True)

    Here.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Kept(id=1))
        session.commit()
        row = session.get_one(Kept, 1)
        for prompt in ("é 😀 \x00" if kind not in ("jsonb",) else "é 😀", "2", "3"):
            row.context.talk(prompt)
            session.commit()
        first = texts(row)
    with Session(engine) as session:
        row = session.get_one(Kept, 1)
        assert texts(row) == first
        row.context.talk("4")
        session.commit()


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("empty", [None, "", "{}"])
def test_a_column_without_a_conversation_is_a_new_one(host: sa.Engine, empty: Any) -> None:
    with Session(host) as session:
        row, other = Legacy(data=empty), Document(data=None if empty is None else {})
        session.add_all([row, other])
        session.commit()
        row.context.talk("1")
        other.context.talk("1")
        session.commit()
        assert texts(row) == texts(other) == ["1", "pong"]


# -- what is refused when mappers are configured


def _refused(**namespace: Any) -> str:
    class Here(DeclarativeBase):
        pass

    type(
        "Wrong",
        (HasContextColumn, Here),
        {"__tablename__": "wrong", "id": mapped_column(sa.Integer, primary_key=True)} | namespace,
    )
    with pytest.raises(ConfigurationError) as caught:
        Here.registry.configure()
    return str(caught.value)


def test_wrong_columns_are_refused_when_mappers_are_configured() -> None:
    assert "'nope'" in _refused(__context_column__="nope")
    assert "__context_column__" in _refused()
    for kind in (sa.Integer, sa.LargeBinary, sa.Enum("a", "b"), sa.DateTime, Uuid):
        assert "JSON column or a text column" in _refused(__context_column__="data", data=mapped_column(kind))
    assert "255 characters" in _refused(__context_column__="data", data=mapped_column(sa.String(255)))


def test_a_class_that_lacks_columns_is_refused() -> None:
    mapped = registry()

    class Partial(_Options, HasContext):
        pass

    table = sa.Table(
        "partial", mapped.metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("context_data", sa.Text)
    )
    mapped.map_imperatively(Partial, table)
    with pytest.raises(ConfigurationError, match="context_token"):
        mapped.configure()


def test_the_column_may_be_named_as_in_the_table(engine: sa.Engine) -> None:
    class Here(DeclarativeBase):
        pass

    class Named(_Options, HasContextColumn, Here):
        __tablename__ = "named"
        __context_column__ = "the data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[dict[str, Any] | None] = mapped_column("the data", sa.JSON)

    Here.metadata.create_all(engine)
    with Session(engine) as session:
        row = Named(id=1)
        session.add(row)
        row.context.talk("1")
        session.commit()
        assert row.data is not None


@pytest.mark.databases("mysql")
def test_a_text_of_64_kb_warns_once(engine: sa.Engine) -> None:
    class Here(DeclarativeBase):
        pass

    class Short(_Options, HasContextColumn, Here):
        __tablename__ = "short"
        __context_column__ = "data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[str | None] = mapped_column(sa.Text)

    Here.metadata.create_all(engine)
    with Session(engine) as session:
        row = Short(id=1)
        row.context.talk("1")
        session.add(row)
        with pytest.warns(UserWarning, match=r"Short\.data is TEXT .*64 KB"):
            session.commit()
        row.context.talk("2")
        session.commit()


def test_a_document_past_a_megabyte_warns_once_and_names_the_link(host: sa.Engine) -> None:
    with Session(host) as session:
        row = Ticket()
        session.add(row)
        row.context.user("x" * 600_000)
        with pytest.warns(UserWarning, match="HasContextLink"):
            row.context.user("x" * 600_000)
        row.context.user("y")
        session.commit()
        link = Case()
        session.add(link)
        link.context.user("x" * 1_200_000)
        session.commit()


# -- deferral


class Deferred(_Options, HasContext, Plain):
    __tablename__ = "deferred"
    __context_deferred__ = True
    id: Mapped[int] = mapped_column(primary_key=True)


def test_lists_do_not_pay_for_a_deferred_document(engine: sa.Engine) -> None:
    Plain.metadata.create_all(engine)
    with Session(engine) as session:
        row = Deferred(id=1)
        session.add(row)
        row.context.talk("1")
        session.commit()
    said: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda c, cur, statement, *_: said.append(statement))
    with Session(engine) as session:
        (row,) = session.scalars(sa.select(Deferred).where(Deferred.context_used > 50))
        assert row.context_used == 100
        assert all("context_data" not in statement for statement in said)
        assert texts(row) == ["1", "pong"]
        row.context.talk("2")
        session.commit()
        assert texts(row) == ["1", "pong", "2", "pong"]


def test_nothing_warns_that_need_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure_mappers()
