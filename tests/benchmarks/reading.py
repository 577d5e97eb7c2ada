"""Loading, listing and paging."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ctxstore import Store, new_id
from ctxstore.store.tables import contexts

from .measure import Line, compare
from .rows import Floor
from .saving import filled

__all__ = ["reading"]


def reading(name: str, url: str, quick: bool) -> list[Line]:
    """The lines about reading."""
    rounds = 5 if quick else 30
    plain = Floor(url)
    with Store(url) as store:
        ctx, llm = filled(store, 5_000)
        payload = "payload" if plain.sqlite else "payload::text"
        key = plain.key(ctx.id)

        def load() -> None:
            assert len(store.load(ctx.id, llm).messages) == 5_000

        def read() -> None:
            plain.all(f"SELECT {payload}, schema_version, revision, last_save FROM ctxstore_contexts WHERE id = ?", key)
            rows = plain.all(
                f"SELECT position, schema_version, {payload} FROM ctxstore_messages "
                "WHERE context_id = ? AND retired_at_revision IS NULL ORDER BY position",
                key,
            )
            assert len([json.loads(row[2]) for row in rows]) == 5_000

        lines = [compare(f"{name}: load 5,000 messages", load, read, rounds, 2.0)]
        lines.append(_listing(name, store, plain, 2_000 if quick else 100_000, rounds * 3))
        long, _ = filled(store, 1_000 if quick else 100_000)
        short, _ = filled(store, 100)
        plain.settle()
        lines.append(
            compare(
                f"{name}: the last 50 of {len(long.messages):,} messages against of 100",
                _drop(lambda: store.messages(long.id, limit=50)),
                _drop(lambda: store.messages(short.id, limit=50)),
                rounds * 3,
                1.5,
            )
        )
    plain.close()
    return lines


def _drop(function: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        function()

    return run


def _listing(name: str, store: Store, plain: Floor, many: int, rounds: int) -> Line:
    ctx, _ = filled(store, 2)
    (row,) = plain.rows(contexts, ctx.id)
    plain.begin()
    for first in range(0, many, 1_000):
        plain.insert(contexts, [{**row, "id": plain.key(new_id())} for _ in range(first, min(first + 1_000, many))])
    plain.commit()
    plain.settle()
    columns = ", ".join(c.name for c in contexts.columns if c.name not in {"payload", "last_save", "next_position"})

    def read() -> None:
        order = "ORDER BY updated_at DESC, id DESC LIMIT 50"
        assert len(plain.all(f"SELECT {columns} FROM ctxstore_contexts WHERE archived_at IS NULL {order}")) == 50

    return compare(
        f"{name}: the newest 50 of {many:,} conversations", _drop(lambda: store.list(limit=50)), read, rounds
    )
