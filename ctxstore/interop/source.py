"""Another program's database, opened for reading, and what comes from it brought into a store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

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

__all__ = ["Brought", "Found", "Source", "bring", "open_source", "reflected", "tried"]

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
        with engine.connect() as c:
            yield c
            c.rollback()
    except sa.exc.SQLAlchemyError as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise StoreError(f"the database to import from cannot be read: {text}") from error
    finally:
        if engine is not source:
            engine.dispose()


def _engine(source: str) -> sa.Engine:
    url = url_of(source if "://" in source else f"sqlite:///{source}")
    path = url.database
    if url.get_backend_name() == "sqlite" and path and not Path(path).exists():
        raise ConfigurationError(f"there is no database at {path}")
    return sa.create_engine(url, poolclass=sa.NullPool)


def reflected(c: sa.Connection, name: str) -> sa.Table:
    """The table as the database describes it.

    Raises:
        ConfigurationError: there is none.
    """
    schema, _, plain = name.rpartition(".")
    try:
        return sa.Table(plain, sa.MetaData(), schema=schema or None, autoload_with=c, resolve_fks=False)
    except NoSuchTableError as error:
        names = ", ".join(sorted(sa.inspect(c).get_table_names())) or "none"
        raise ConfigurationError(f"there is no table {name!r}, only {names}") from error


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
    with closing(found):
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
