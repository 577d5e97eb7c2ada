"""The floor: the same rows, written and read by the plain driver, with the same durability."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from ctxstore.store.tables import contexts, messages, usage
from ctxstore.store.types import JsonText

__all__ = ["Floor"]


class Floor:
    """One connection of the plain driver."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        self.mark = "?" if self.sqlite else "%s"
        self.c: Any
        if self.sqlite:
            self.c = sqlite3.connect(str(parsed.database), isolation_level=None)
            self.c.execute("PRAGMA journal_mode = WAL")
            self.c.execute("PRAGMA synchronous = FULL")
        else:
            self.c = psycopg.connect(
                parsed.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
            )

    def close(self) -> None:
        self.c.close()

    def key(self, value: UUID) -> Any:
        return str(value) if self.sqlite else value

    def all(self, sql: str, *values: Any) -> list[Any]:
        """The rows of a query; write its parameters as ``?``."""
        rows: list[Any] = self.c.execute(sql.replace("?", self.mark), values).fetchall()
        return rows

    def run(self, sql: str, *values: Any) -> None:
        """Send a change; write its parameters as ``?``."""
        self.c.execute((sql if self.sqlite else sql.replace("%", "%%")).replace("?", self.mark), values)

    def rows(self, table: sa.Table, context_id: UUID) -> list[dict[str, Any]]:
        """The rows of one context, as the driver takes them back."""
        names = [c.name for c in table.columns]
        column = "id" if table is contexts else "context_id"
        sql = f"SELECT {self._columns(table)} FROM {table.name} WHERE {column} = ?"
        return [dict(zip(names, row, strict=True)) for row in self.all(sql, self.key(context_id))]

    def _columns(self, table: sa.Table) -> str:
        return ", ".join(
            f'"{c.name}"::text' if isinstance(c.type, JsonText) and not self.sqlite else f'"{c.name}"'
            for c in table.columns
        )

    def insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of one shape; the caller has begun a transaction."""
        names = list(rows[0])
        marks = ", ".join([self.mark] * len(names))
        columns = ", ".join(f'"{n}"' for n in names)
        sql = f"INSERT INTO {table.name} ({columns}) VALUES ({marks})"
        self.many(sql, [tuple(row.values()) for row in rows])

    def many(self, sql: str, values: Sequence[tuple[Any, ...]]) -> None:
        """Run one statement for each of ``values``; the caller has begun a transaction."""
        if self.sqlite:
            self.c.executemany(sql, values)
        else:
            with self.c.cursor() as cursor:
                cursor.executemany(sql, values)

    def begin(self) -> None:
        self.c.execute("BEGIN IMMEDIATE" if self.sqlite else "BEGIN")

    def commit(self) -> None:
        self.c.execute("COMMIT")

    def settle(self) -> None:
        """Let PostgreSQL know what is in its tables, as it would by itself within a minute."""
        if not self.sqlite:
            self.c.execute("ANALYZE")

    def turn(
        self, head: Mapping[str, Any], base: str, new: Sequence[Mapping[str, Any]], spent: Mapping[str, Any]
    ) -> None:
        """One turn: the head where it stands, its messages, its row in the ledger; one transaction."""
        names = [n for n in head if n != "id"]
        changes = ", ".join(f'"{n}" = {self.mark}' for n in names)
        self.begin()
        self.c.execute(
            f"UPDATE {contexts.name} SET {changes} WHERE id = {self.mark} AND last_save = {self.mark}",
            (*(head[n] for n in names), head["id"], base),
        )
        self.insert(messages, new)
        self.insert(usage, [spent])
        self.commit()
