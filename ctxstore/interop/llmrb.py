"""Contexts that llm.rb (``acts_as_llm``, its Sequel plugin) keeps in a column of an application's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from .. import clock
from ..errors import ConfigurationError
from ..payload import codec
from ..payload.schema import Document
from ..store import Store, editing
from ..store.transfer import Import
from ..usage import UsageEntry
from .source import Brought, Source, bring, open_source, reflected

__all__ = ["import_column"]


def import_column(
    store: Store,
    source: Source,
    table: str,
    column: str = "data",
    *,
    owner: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Import:
    """Import the contexts that llm.rb wrote to ``column`` of ``table``, each into ctxstore's own tables.

    Args:
        source: a URL, the path of a SQLite file, or an engine.
        owner: whose they are here.
        progress: called with the number done.

    Replies with usage are in the ledger as ``imported``. ``metadata["llm.rb"]`` says where a context came from. To go
    on using the column itself, ``migrate_payloads`` moves it up in place.

    Raises:
        ConfigurationError: there is no such table or column, or no primary key.
        StoreError: the database cannot be read.
    """
    with open_source(source) as c:
        found = reflected(c, table)
        keys = list(found.primary_key.columns)
        if column not in found.c:
            raise ConfigurationError(f"{table} has no column {column!r}; it has {', '.join(found.c.keys())}")
        if not keys:
            raise ConfigurationError(f"{table} has no primary key, so its contexts have no names")
        return bring(store, table, _contexts(c, found, keys, found.c[column]), owner, progress)


def _contexts(c: sa.Connection, table: sa.Table, keys: Sequence[Any], column: sa.Column[Any]) -> Iterator[Brought]:
    raw: Any = sa.type_coerce(column, sa.Text())
    if isinstance(column.type, sa.JSON) and c.dialect.name != "sqlite":
        raw = sa.cast(column, sa.Text())
    query = sa.select(*keys, raw).where(column.is_not(None)).order_by(*keys)
    for row in c.execute(query.execution_options(yield_per=100)):
        *key, text = row
        if text and text.strip() not in ("{}", "null", '""'):
            yield key[0] if len(key) == 1 else tuple(key), _loader(table, tuple(key), text)


def _loader(
    table: sa.Table, key: tuple[Any, ...], text: str
) -> Callable[[], tuple[Document, Sequence[UsageEntry], Sequence[str]]]:
    def load() -> tuple[Document, Sequence[UsageEntry], Sequence[str]]:
        identity = clock.parse_id(key[0]) if len(key) == 1 and clock.is_uuid7(key[0]) else None
        document = codec.load(text, context_id=identity, place=":".join([str(table), *map(str, key)]))
        document.head.metadata.setdefault("llm.rb", {"table": str(table), "key": [str(part) for part in key]})
        return document, editing.imported_usage(document, None), ()

    return load
