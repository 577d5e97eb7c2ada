"""The keys of a host's rows: read, put in order and found again without loss, and as names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import NoSuchTableError

from ..errors import ConfigurationError, PayloadError
from ..store.bulk import Row

__all__ = ["Keys", "place_of", "require_unique"]

CHUNK = 500
"""Rows that one condition names: databases limit its parameters and its depth."""


def place_of(table: object, key: Sequence[Any]) -> str:
    """The name of a row, from which the id of its context is made when it has none."""
    return ":".join([str(table), *(part.name if isinstance(part, Enum) else str(part) for part in key)])


class Keys:
    """The columns that tell the rows of a table apart.

    A row is found again by its *handle*: what the driver gave, with nothing made of it in between, and on SQLite the
    row's own number, since a column there may hold anything.
    """

    def __init__(self, columns: Sequence[sa.Column[Any]], *, reflected: bool) -> None:
        self.columns, self._reflected = list(columns), reflected
        self.handles: list[Any] = list(columns)
        self.ordered: list[Any] = list(columns)
        self._beside: list[Any] = []
        self._values: list[Callable[[Any], Any] | None] = [_plain if reflected else None] * len(self.columns)

    @property
    def selected(self) -> list[Any]:
        """The columns of a query, which ``row`` takes."""
        return [*self.handles, *self._beside]

    def row(self, found: Any, raw: Any) -> Row:
        """A row of ``selected``."""
        count = len(self.handles)
        handle = tuple(found[:count])
        return Row(handle, raw, name=tuple(found[count : count + len(self._beside)]) or handle)

    def look(self, c: sa.Connection) -> None:
        """Find out how this database finds a row again.

        Raises:
            ConfigurationError: there is no such table, or its keys cannot be compared exactly.
        """
        table: sa.Table = self.columns[0].table
        try:
            described: Any = sa.inspect(c).get_columns(table.name, table.schema)
        except NoSuchTableError as error:
            raise ConfigurationError(f"there is no table {table.fullname!r} in this database") from error
        if c.dialect.name == "sqlite":
            self.handles = self.ordered = [self._raw(i, c, sa.types.NullType()) for i in range(len(self.columns))]
            number = _row_number(c, table, {column["name"].lower() for column in described})
            if number is not None:
                self._beside = self.handles
                self.handles = self.ordered = [sa.literal_column(number, sa.BigInteger())]
            return
        types = {column["name"]: column["type"] for column in described}
        for i, column in enumerate(self.columns):
            kind = types.get(column.name)
            if isinstance(kind, sa.REAL if c.dialect.name == "postgresql" else mysql.FLOAT):
                raise ConfigurationError(
                    f"{table.fullname}.{column.name} is of type {kind}, which is not exact enough to find a row by; "
                    "name other columns by --key"
                )
            if isinstance(kind, mysql.ENUM | mysql.SET):  # in the order of their declaration, and compared as texts
                self.handles[i] = self._raw(i, c, sa.String())
                self.ordered[i] = sa.cast(column, sa.CHAR())
            elif isinstance(kind, mysql.DOUBLE | mysql.REAL):  # which SQLAlchemy rounds to ten digits
                self.handles[i] = self.ordered[i] = self._raw(i, c, sa.types.NullType())

    def _raw(self, index: int, c: sa.Connection, kind: Any) -> Any:
        column = self.columns[index]
        made = column.type.dialect_impl(c.dialect).result_processor(c.dialect, None)
        self._values[index] = partial(_reflected, made) if self._reflected else made
        return sa.type_coerce(column, kind)

    def values(self, row: Row) -> tuple[Any, ...]:
        """The key as the host's class has it.

        Raises:
            PayloadError: the type of its columns cannot read it.
        """
        if None in row.name:  # SQLite takes it in a primary key too, more than once
            raise PayloadError(f"the key {row.name!r} has no value, so it names no row")
        try:
            pairs = zip(row.name, self._values, strict=True)
            return tuple(part if make is None else make(part) for part, make in pairs)
        except (TypeError, ValueError) as error:
            raise PayloadError(f"the key {row.name!r} cannot be read: {error}") from error

    def where(self, rows: Sequence[Row]) -> Iterator[Any]:
        """Conditions that together find ``rows``."""
        for begin in range(0, len(rows), CHUNK):
            handles = [row.key for row in rows[begin : begin + CHUNK]]
            if len(self.handles) == 1:
                yield self.handles[0].in_([handle[0] for handle in handles])
            else:
                yield sa.tuple_(*self.handles).in_(handles)


def _reflected(make: Callable[[Any], Any] | None, part: Any) -> Any:
    try:
        return _plain(part if make is None else make(part))
    except (TypeError, ValueError):  # a name for the type that means another one to this database
        return _plain(part)


def _plain(part: Any) -> Any:
    """As a class of the host's most probably has it: UUIDs are 32 hex digits where a database has no type for them."""
    return UUID(part) if isinstance(part, str) and _HEX.fullmatch(part) else part


_HEX = re.compile("[0-9a-f]{32}")


def _row_number(c: sa.Connection, table: sa.Table, taken: set[str]) -> str | None:
    """What SQLite calls the number of a row, None for a table without."""
    name = next((n for n in ("_rowid_", "rowid", "oid") if n not in taken), None)
    if name is None or table.name in sa.inspect(c).get_view_names(table.schema):
        return None
    try:
        c.execute(sa.select(sa.literal_column(name)).select_from(table).limit(0))
    except sa.exc.OperationalError:  # WITHOUT ROWID
        return None
    return name


def require_unique(c: sa.Connection, table: sa.Table, key: Sequence[sa.Column[Any]]) -> None:
    """Refuse columns that two rows may share.

    Raises:
        ConfigurationError: no primary key and no unique index of the table lies within ``key`` without a null.
    """
    look = sa.inspect(c)
    named = {column.name for column in key}
    unique: list[set[Any]] = [
        set(found["column_names"]) for found in look.get_unique_constraints(table.name, table.schema)
    ]
    for index in look.get_indexes(table.name, table.schema):
        partial = any(option.endswith("_where") for option in index.get("dialect_options", {}))
        if index["unique"] and not index.get("expressions") and not partial:
            unique.append(set(index["column_names"]))
    nullable = {column.name for column in table.c if column.nullable}
    whole = [set(table.primary_key.columns.keys()), *(columns for columns in unique if not columns & nullable)]
    if not any(columns and columns <= named for columns in whole):
        raise ConfigurationError(
            f"two rows of {table.fullname} may have the same {', '.join(sorted(named))}, or none at all: --key takes "
            "columns with a primary key or a unique index on them, and NOT NULL"
        )
