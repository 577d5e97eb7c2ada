"""Rows of tables that may hold anything: what one of them cannot give does not hide the others.

SQLite takes any value in any column, and others have times that Python has not. A batch is read as ever; where that
fails it is read again row by row, and what is wrong with a row is said of that row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from .tables import contexts
from .types import MYSQL, UtcDateTime, Uuid

__all__ = ["Id", "Key", "broken", "fits", "is_damage", "keys", "read"]

Id: TypeAlias = UUID | str
"""An id; the text that stands in its place where it is none."""


class Key(NamedTuple):
    """One value of a column of ids; ``value`` is it to the database, to be compared with."""

    id: Id
    value: sa.ColumnElement[Any]


def is_damage(error: Exception) -> bool:
    """Whether ``error``, which came while rows were read, is about a value in one of them."""
    if isinstance(error, sa.exc.DBAPIError):
        return isinstance(error, sa.exc.DataError) or "Could not decode to UTF-8" in str(error.orig)
    return isinstance(error, TypeError | ValueError | AttributeError)


# -- keys


def keys(
    c: sa.Connection, column: sa.Column[Any], *where: sa.ColumnElement[bool], limit: int | None = None
) -> list[tuple[Key, int]]:
    """The values of ``column`` in their order, each once, and how many rows have it."""
    count = sa.func.count()
    query = sa.select(*_raw(c, column), count).where(*where).group_by(column).order_by(column).limit(limit)
    return [(_key(*found), number) for *found, number in c.execute(query)]


def _raw(c: sa.Connection, column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """The column past everything that makes a value of it, and the kind of it where rows differ in that."""
    if c.dialect.name == "sqlite":
        return [sa.cast(column, sa.LargeBinary()), sa.func.typeof(column)]
    return [sa.type_coerce(column, sa.String()) if c.dialect.name in MYSQL else column]


def _key(raw: Any, kind: str | None = None) -> Key:
    if isinstance(raw, bytes):
        value: sa.ColumnElement[Any] = sa.literal(raw, sa.LargeBinary())
        if kind == "text":
            value = sa.cast(value, sa.Text())
        return Key(_id(raw.decode(errors="backslashreplace")), value)
    return Key(_id(raw), sa.literal(raw, Uuid() if isinstance(raw, UUID) else sa.String()))


def _id(found: Any) -> Id:
    if isinstance(found, UUID):
        return found
    try:
        return UUID(found)
    except (ValueError, TypeError, AttributeError):
        return str(found)


# -- rows


def read(
    c: sa.Connection, table: sa.Table, column: sa.Column[Any], values: Sequence[Any]
) -> tuple[list[Any], list[tuple[Id, str]]]:
    """The rows whose ``column`` has one of ``values``, in the order of their keys; of those that cannot be read, that
    id and what is wrong."""
    order = table.primary_key.columns
    try:
        found = c.execute(sa.select(table).where(column.in_(values)).order_by(*order)).all()
    except Exception as error:
        if not is_damage(error):
            raise
        if len(values) == 1:
            return _one_by_one(c, table, column, values[0])
        parts = [read(c, table, column, [value]) for value in values]
        return [row for rows, _ in parts for row in rows], [said for _, wrong in parts for said in wrong]
    wrong = [row for row in found if not fits(table, row)]
    if not wrong:
        return list(found), []
    key = column.name
    said = [(getattr(row, key), f"{_place(table, row)}{broken(table, row)}") for row in wrong]
    return [row for row in found if fits(table, row)], said


def _one_by_one(
    c: sa.Connection, table: sa.Table, column: sa.Column[Any], value: Any
) -> tuple[list[Any], list[tuple[Id, str]]]:
    rows: list[Any] = []
    wrong: list[tuple[Id, str]] = []
    identity = _id(c.execute(sa.select(*_raw(c, column)).where(column == value).limit(1)).scalar_one())
    if isinstance(identity, str) and isinstance(value, UUID):
        identity = value
    for address in _addresses(c, table, column == value):
        try:
            row = c.execute(sa.select(table).where(address)).one()
        except Exception as error:
            if not is_damage(error):
                raise
            wrong.append((identity, _what(c, table, address)))
            continue
        if fits(table, row):
            rows.append(row)
        else:
            wrong.append((identity, f"{_place(table, row)}{broken(table, row)}"))
    return rows, wrong


def _addresses(c: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> list[sa.ColumnElement[bool]]:
    """A condition for each row, that it alone meets."""
    order = list(table.primary_key.columns)
    if c.dialect.name == "sqlite":
        number: sa.ColumnElement[int] = sa.literal_column("rowid", sa.Integer())
        return [number == n for n in c.scalars(sa.select(number).select_from(table).where(where).order_by(*order))]
    raw = [_raw(c, k)[0] if isinstance(k.type, Uuid) else k for k in order]
    found = c.execute(sa.select(*raw).where(where).order_by(*order)).all()
    return [sa.and_(*(k == value for k, value in zip(raw, row, strict=True))) for row in found]


def _what(c: sa.Connection, table: sa.Table, address: sa.ColumnElement[bool]) -> str:
    """What is wrong with the row at ``address``, and where it is, as far as that can be read."""
    second = list(table.primary_key.columns)[-1]
    if table is contexts:
        place = ""
    else:
        raw = c.execute(sa.select(*_raw(c, second)).where(address)).one()[0]
        place = _named(table, raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw)
    said = []
    for column in table.columns:
        try:
            c.execute(sa.select(column).where(address)).one()
        except Exception as error:
            if not is_damage(error):
                raise
            text = " ".join(str(getattr(error, "orig", None) or error).split())
            said.append(f"{column.name} cannot be read: {text:.120}")
    return place + "; ".join(said)


def _place(table: sa.Table, row: Any) -> str:
    return "" if table is contexts else _named(table, row[1])


def _named(table: sa.Table, second: Any) -> str:
    return f"the row at {second} of {table.name}: "


# -- types

_NAMES: dict[type, str] = {UUID: "a UUID", dt.datetime: "a time", bool: "a boolean", int: "a whole number", str: "text"}
_known: dict[str, set[tuple[type, ...]]] = {}


def fits(table: sa.Table, row: Any) -> bool:
    """Whether every value of ``row`` is of its column's type."""
    signature = tuple(map(type, row))
    known = _known.setdefault(table.name, set())
    if signature in known:
        return True
    if any(not _fits(column, kind) for column, kind in zip(table.columns, signature, strict=True)):
        return False
    known.add(signature)
    return True


def _fits(column: sa.Column[Any], kind: type) -> bool:
    return issubclass(kind, _type_of(column)) or (column.nullable is True and kind is type(None))


def _type_of(column: sa.Column[Any]) -> type:
    if isinstance(column.type, Uuid):
        return UUID
    if isinstance(column.type, UtcDateTime):
        return dt.datetime
    if isinstance(column.type, sa.Boolean):
        return bool
    return int if isinstance(column.type, sa.Integer) else str


def broken(table: sa.Table, row: Any) -> str:
    """Which values of ``row`` are not of their column's type."""
    pairs = zip(table.columns, row, strict=True)
    return "; ".join(
        f"{column.name} is {value!r:.60}, not {_NAMES[_type_of(column)]}"
        for column, value in pairs
        if not _fits(column, type(value))
    )
