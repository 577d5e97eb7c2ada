"""Column types that are the same on every database and whatever the engine was told.

Payloads are *text* to SQLAlchemy: a host's engine may have a JSON serializer of its own, and ``JSON`` columns change
what they hold on some databases. Every text column on MySQL and MariaDB names its character set and collation.
"""

from __future__ import annotations

import datetime as dt
import uuid
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect

from .. import jsontext
from ..errors import ConfigurationError

__all__ = [
    "MYSQL",
    "NAME_LENGTH",
    "JsonText",
    "UtcDateTime",
    "Uuid",
    "check_owner",
    "long_text",
    "name",
    "plain",
    "short",
]

NAME_LENGTH = 191
"""Characters of an owner, a provider or a model: what every MySQL can index in utf8mb4."""

MYSQL = ("mysql", "mariadb")
_UTF8 = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


def name(length: int = NAME_LENGTH) -> types.TypeEngine[str]:
    """A short text that is compared to the letter."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, **_UTF8), *MYSQL)


def long_text() -> types.TypeEngine[str]:
    """A text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(**_UTF8), *MYSQL)


class _PostgresJson(types.UserDefinedType[str]):
    """``JSON`` that is written and read as text: past the drivers' JSON codecs, which a host may have replaced."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"

    def bind_expression(self, bindvalue: Any) -> Any:
        return sa.cast(sa.cast(bindvalue, sa.Text()), self)

    def column_expression(self, column: Any) -> Any:
        return sa.cast(column, sa.Text())


class JsonText(types.TypeDecorator[str]):
    """A JSON text, kept to the letter: TEXT on SQLite, JSON on PostgreSQL, LONGTEXT on MySQL and MariaDB."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(_PostgresJson())
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.LONGTEXT(**_UTF8))
        return dialect.type_descriptor(sa.Text())


class UtcDateTime(types.TypeDecorator[dt.datetime]):
    """A time to the microsecond. It goes in aware, in any zone, and comes out aware, in UTC."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def bind_processor(self, dialect: Dialect) -> Any:
        return {"postgresql": _aware, "sqlite": _time_text}.get(dialect.name, _naive)  # one call a value, not three

    def process_literal_param(self, value: dt.datetime | None, dialect: Dialect) -> str:
        return repr(None if value is None else _time_text(value))

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _aware(value: dt.datetime | None) -> dt.datetime | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise ConfigurationError(f"a time must have its zone (datetime.now(UTC)); {value!r} has none")
    return value.astimezone(dt.UTC)


def _naive(value: dt.datetime | None) -> dt.datetime | None:
    utc = _aware(value)
    return None if utc is None else utc.replace(tzinfo=None)


def _time_text(value: dt.datetime | None) -> str | None:
    utc = _aware(value)
    return None if utc is None else utc.isoformat(" ", "microseconds")[:26]


class Uuid(types.TypeDecorator[uuid.UUID]):
    """A UUID: native on PostgreSQL, elsewhere its 36 characters, so that an id copied from anywhere finds its row."""

    impl = sa.CHAR
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(36)

    def __repr__(self) -> str:
        return "Uuid()"

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.Uuid())
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.CHAR(36, **_UTF8))
        return dialect.type_descriptor(sa.CHAR(36))

    def bind_processor(self, dialect: Dialect) -> Any:
        return _uuid if dialect.name == "postgresql" else _uuid_text

    def process_literal_param(self, value: uuid.UUID | str | None, dialect: Dialect) -> str:
        return repr(_uuid_text(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> uuid.UUID | None:
        return value if value is None or isinstance(value, uuid.UUID) else _parsed(value)


_parsed = lru_cache(maxsize=256)(uuid.UUID)  # the rows of one context repeat its id


def _uuid(value: uuid.UUID | str | None) -> uuid.UUID | None:
    return value if value is None or isinstance(value, uuid.UUID) else uuid.UUID(value)


def _uuid_text(value: uuid.UUID | str | None) -> str | None:
    return None if value is None else str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))


def plain(text: str | None) -> str | None:
    """``text`` as every text column takes it. Where it was changed, the payload has the original."""
    return None if text is None else jsontext.searchable(text)


def short(text: str | None, length: int = NAME_LENGTH) -> str | None:
    """The same for a short column: its beginning."""
    found = plain(text)
    return found if found is None or len(found) <= length else found[:length]


def check_owner(owner: str | None) -> None:
    """Refuse an owner that a database would take for another one.

    Raises:
        ConfigurationError: it is empty, longer than 191 characters, or begins or ends with a space.
    """
    if owner is None:
        return
    if type(owner) is not str or not owner:
        raise ConfigurationError(f"an owner is a text of 1 to {NAME_LENGTH} characters, not {owner!r}")
    if len(owner) > NAME_LENGTH:
        raise ConfigurationError(f"an owner may have {NAME_LENGTH} characters, {owner[:40]!r}... has {len(owner)}")
    if owner != owner.strip() or owner != plain(owner):
        raise ConfigurationError(
            f"an owner may not begin or end with a space, nor hold a NUL or half a surrogate pair: {owner!r}"
        )
