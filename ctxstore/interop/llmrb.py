"""Contexts that llm.rb (``acts_as_llm``, its Sequel plugin) keeps in a column of an application's table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa

from .. import clock
from ..errors import ConfigurationError, PayloadError
from ..payload import codec
from ..store import Store, editing
from ..store.transfer import Import
from .source import Brought, Found, Source, bring, open_source, raw, reflected, shown, text_of, tried

__all__ = ["aimport_column", "import_column"]


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
    return store._runner.drive(bring(table, _contexts(source, table, column), owner, progress))


async def aimport_column(
    store: Store,
    source: Source,
    table: str,
    column: str = "data",
    *,
    owner: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Import:
    """``import_column`` for asyncio; ``source`` is read in a thread."""
    return await store._runner.adrive(bring(table, _contexts(source, table, column), owner, progress))


def _contexts(source: Source, name: str, column: str) -> Brought:
    with open_source(source) as c:
        table = reflected(c, name, column)
        keys = list(table.primary_key.columns)
        if not keys:
            raise ConfigurationError(f"{name} has no primary key, so its contexts have no names")
        place = table.c[column]
        query = sa.select(*(raw(c, key) for key in keys), text_of(c, place)).where(place.is_not(None)).order_by(*keys)
        for row in c.execute(query.execution_options(yield_per=100)):
            *key, text = row
            if isinstance(text, memoryview):
                text = bytes(text)
            if _holds_something(text):
                names = tuple(map(shown, key))
                yield names[0] if len(key) == 1 else names, tried(partial(_context, table, tuple(key), text))


def _holds_something(text: str | bytes) -> bool:
    """Whether there is a conversation, or what a record holds that has none yet."""
    plain = text if isinstance(text, str) else text.decode(errors="replace")
    return plain.strip() not in ("", "{}", "[]", "null", '""', "0", "false")


def _context(table: sa.Table, key: tuple[Any, ...], text: str | bytes) -> Found:
    if None in key:
        raise PayloadError("its key is null, so it has no name")
    identity = clock.parse_id(key[0]) if len(key) == 1 and clock.is_uuid7(key[0]) else None
    document = codec.load(text, context_id=identity, place=":".join([str(table), *map(str, key)]))
    document.head.metadata.setdefault("llm.rb", {"table": str(table), "key": [str(part) for part in key]})
    return document, editing.imported_usage(document, None), ()
