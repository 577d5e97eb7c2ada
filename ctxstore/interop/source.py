"""Another program's database, opened for reading, and what comes from it brought into a store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import GEN_RUNNING, getgeneratorstate
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchTableError

from .. import clock
from ..errors import ConfigurationError, CtxstoreError, StoreError
from ..payload.schema import Document
from ..state import State
from ..store import repository
from ..store.bulk import Refusal
from ..store.engines import url_of
from ..store.running import Flow, job, outside
from ..store.transfer import Import, import_one
from ..store.types import check_owner
from ..usage import UsageEntry

__all__ = ["Brought", "Found", "Source", "bring", "open_source", "raw", "reflected", "shown", "text_of", "tried"]

Source: TypeAlias = str | sa.Engine
Found: TypeAlias = tuple[Document, Sequence[UsageEntry], Iterable[str]]
"""A conversation, its usage, and what of it had no place."""
Brought: TypeAlias = Generator[tuple[Any, Found | CtxstoreError], None, None]
"""Conversations as they come, each with its key where it comes from, or why it cannot be read."""


@contextmanager
def open_source(source: Source) -> Iterator[sa.Connection]:
    """A connection to ``source``: an engine, a URL, or the path of a SQLite file. Nothing is written there.

    Raises:
        ConfigurationError: there is no such file.
        StoreError: it cannot be read.
    """
    engine = source if isinstance(source, sa.Engine) else _engine(source)
    try:
        with engine.connect() as c, _undecoded(c):
            yield c
            c.rollback()
    except sa.exc.SQLAlchemyError as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise StoreError(f"the database to import from cannot be read: {text}") from error
    finally:
        if engine is not source:
            engine.dispose()


@contextmanager
def _undecoded(c: sa.Connection) -> Iterator[None]:
    """While this lasts, a text of SQLite that is no UTF-8 comes as its bytes, where the driver would end the whole
    query."""
    driver: Any = c.connection.dbapi_connection
    if getattr(driver, "text_factory", None) is not str:
        yield
        return
    driver.text_factory = _text
    try:
        yield
    finally:
        driver.text_factory = str


def _text(found: bytes) -> str | bytes:
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found


def _engine(source: str) -> sa.Engine:
    url = url_of(source if "://" in source else f"sqlite:///{source}")
    path = url.database
    if url.get_backend_name() == "sqlite" and path and not Path(path).exists():
        raise ConfigurationError(f"there is no database at {path}")
    return sa.create_engine(url, poolclass=sa.NullPool)


def reflected(c: sa.Connection, name: str, *columns: str) -> sa.Table:
    """The table as the database describes it.

    Raises:
        ConfigurationError: there is none, or none with these ``columns``.
    """
    schema, _, plain = name.rpartition(".")
    try:
        table = sa.Table(plain, sa.MetaData(), schema=schema or None, autoload_with=c, resolve_fks=False)
    except NoSuchTableError as error:
        names = ", ".join(sorted(sa.inspect(c).get_table_names())) or "none"
        raise ConfigurationError(f"there is no table {name!r}, only {names}") from error
    for column in columns:
        if column not in table.c:
            raise ConfigurationError(f"{name} has no column {column!r}; it has {', '.join(table.c.keys())}")
    return table


def raw(c: sa.Connection, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """``column`` without the conversions of its declared type, which on SQLite says little about what it holds."""
    return sa.type_coerce(column, sa.types.NullType()) if c.dialect.name == "sqlite" else column


def text_of(c: sa.Connection, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """``column`` as text whatever its type, or as bytes where that is what it holds."""
    if c.dialect.name != "sqlite" and isinstance(column.type, sa.String | sa.LargeBinary):
        return sa.type_coerce(column, sa.Text())
    return sa.cast(column, sa.Text())


def shown(key: Any) -> Any:
    """``key`` for a report: as it is, or as text where JSON has no form for it."""
    return key if key is None or isinstance(key, str | int | UUID) else str(key)


def tried(read: Callable[[], Found]) -> Found | CtxstoreError:
    """What ``read`` finds, or why it refuses to; what the other database says is raised."""
    try:
        return read()
    except CtxstoreError as error:
        return error


def bring(table: str, found: Brought, owner: str | None, progress: Callable[[int], object] | None) -> Flow[Import]:
    """Save each conversation in a transaction of its own, unless it is there; one that cannot be read is reported."""
    check_owner(owner)
    begun, report = clock.monotonic(), Import()
    done = 0
    with _closed(found):
        while (one := (yield from outside(_next, found, owner))) is not None:
            key, work, notes = one
            if isinstance(work, CtxstoreError):
                report.refused.append(Refusal(table, key, str(work)))
            else:
                more = Import()
                yield from job(import_one, work, owner, key, more)
                report.imported += more.imported
                report.there += more.there
                report.attempts += more.attempts
                report.clashes += more.clashes
                report.notes += [f"{key}: {note}" for note in notes]
            done += 1
            if progress is not None:
                progress(done)
    report.seconds = clock.monotonic() - begun
    return report


@contextmanager
def _closed(found: Brought) -> Iterator[None]:
    try:
        yield
    finally:
        if getgeneratorstate(found) != GEN_RUNNING:  # else a cancellation left it to its thread, and it ends with that
            found.close()


def _next(found: Brought, owner: str | None) -> tuple[Any, repository.Work | CtxstoreError, list[str]] | None:
    """The next conversation as it is to be saved, or why it cannot be; None after the last."""
    brought = next(found, None)
    if brought is None:
        return None
    key, read = brought
    if isinstance(read, CtxstoreError):
        return key, read, []
    document, usage, notes = read
    try:
        state = State(document.head)
        state.owner = owner
        updated = document.head.updated_at
        state.append(document.messages)
        document.head.updated_at, document.head.revision = updated, 0
        state.pending_usage.extend(usage)
        return key, repository.prepare(state), list(notes)
    except CtxstoreError as error:
        return key, error, []
