"""Another program's database, opened for reading, and what comes from it brought into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchTableError

from .. import clock
from ..errors import ConfigurationError, CtxstoreError, StoreError
from ..payload.schema import Document
from ..state import State
from ..store import Store, repository
from ..store.bulk import Refusal
from ..store.engines import url_of
from ..store.transfer import Import, import_one
from ..store.types import check_owner
from ..usage import UsageEntry

__all__ = ["Brought", "Source", "bring", "open_source", "reflected"]

Source: TypeAlias = str | sa.Engine
Brought: TypeAlias = tuple[Any, Callable[[], tuple[Document, Sequence[UsageEntry], Iterable[str]]]]
"""The key of a conversation where it comes from, and what reads it: the document, its usage, and what had no place."""


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


def bring(
    store: Store, table: str, found: Iterable[Brought], owner: str | None, progress: Callable[[int], object] | None
) -> Import:
    """Save each conversation in a transaction of its own, unless it is there; one that cannot be read is reported."""
    check_owner(owner)
    begun, report = clock.monotonic(), Import()
    for done, (key, load) in enumerate(found, 1):
        try:
            document, usage, notes = load()
            state = State(document.head)
            state.owner = owner
            updated = document.head.updated_at
            state.append(document.messages)
            document.head.updated_at, document.head.revision = updated, 0
            state.pending_usage.extend(usage)
            work = repository.prepare(state)
        except CtxstoreError as error:
            report.refused.append(Refusal(table, key, str(error)))
        else:
            more = Import()
            store._runner.run(import_one, work, owner, key, more)
            report.imported += more.imported
            report.there += more.there
            report.attempts += more.attempts
            report.clashes += more.clashes
            report.notes += [f"{key}: {note}" for note in notes]
        if progress is not None:
            progress(done)
    report.seconds = clock.monotonic() - begun
    return report
