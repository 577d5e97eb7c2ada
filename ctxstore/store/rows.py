"""The rows of ctxstore's own tables, as targets of a migration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from .. import jsontext
from ..payload import codec
from ..payload.upcasts import current
from .bulk import Row, Stage, Target, past, raw_text, some, text_of
from .keeping import flight_messages, flight_text
from .repository import message_row
from .statements import Hot
from .tables import contexts, in_flight, messages
from .types import short

__all__ = ["own_targets"]


def own_targets() -> list[Target]:
    """Heads first: from then on an older program no longer saves into that conversation.

    What a head repeats of its messages (a title, sums) is written at its next save, or by ``verify`` with ``repair``.
    """
    return [_Heads(), _Messages(), _Flights()]


class _Own:
    table: sa.Table
    columns: tuple[str, ...]
    """Those of the key."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Dialect, tuple[str, ...]], Hot] = {}

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (self._move,)

    def _move(self, row: Row) -> bool:
        raise NotImplementedError

    @property
    def _keys(self) -> list[sa.Column[Any]]:
        return [self.table.c[name] for name in self.columns]

    def key_of(self, row: Row) -> Any:
        return row.key[0]

    def _select(self, c: sa.Connection) -> Any:
        token = contexts.c.last_save if self.table is contexts else sa.null()
        version = self.table.c.get("schema_version", sa.null())
        return sa.select(*self._keys, version, token, raw_text(self.table.c.payload, c))

    def _row(self, found: Any) -> Row:
        return Row(tuple(found[:-3]), found[-1], found[-3], found[-2])

    def count(self, c: sa.Connection) -> tuple[int, int]:
        ready = sa.func.coalesce(sa.func.sum(sa.case((self.table.c.schema_version == current(), 1), else_=0)), 0)
        total, done = c.execute(sa.select(sa.func.count(), ready).select_from(self.table)).one()
        return int(total), int(done)

    def read(self, c: sa.Connection, after: tuple[Any, ...] | None, limit: int) -> list[Row]:
        query = self._select(c).where(*past(self._keys, after)).order_by(*self._keys).limit(limit)
        if "schema_version" in self.table.c:
            query = query.where(self.table.c.schema_version != current())
        return some(c.execute(query.execution_options(stream_results=True, max_row_buffer=64)), self._row)

    def _here(self) -> list[Any]:
        return [k == sa.bindparam(f"b_{k.name}", type_=k.type) for k in self._keys]

    def _stands(self) -> list[Any]:
        return [self.table.c.schema_version == sa.bindparam("b_version", type_=sa.Integer())]

    def _change(self, names: tuple[str, ...], dialect: Dialect) -> Hot:
        known = self._compiled.get((dialect, names))
        if known is None:
            change = sa.update(self.table).where(*self._here(), *self._stands())
            new = {n: sa.bindparam(n, type_=self.table.c[n].type) for n in names}
            known = self._compiled[dialect, names] = Hot(change.values(new), dialect)
        return known

    def write(self, c: sa.Connection, rows: Sequence[Row]) -> tuple[int, list[Row]]:
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        names = (*(f"b_{name}" for name in self.columns), "b_version", "b_token")
        for row in rows:
            values = dict(zip(names, (*row.key, row.version, row.token), strict=True))
            groups.setdefault(tuple(row.new), []).append(values | row.new)
        found = [self._change(names, c.dialect).run_many(c, group) for names, group in groups.items()]
        if min(found) >= 0 and sum(found) == len(rows):
            return len(rows), []
        return self._decided(c, rows)

    def _decided(self, c: sa.Connection, rows: Sequence[Row]) -> tuple[int, list[Row]]:
        """Which of ``rows`` were written, by reading them again; an earlier try may have got through."""
        written, left = 0, []
        for row in rows:
            here = [k == v for k, v in zip(self._keys, row.key, strict=True)]
            found = c.execute(self._select(c).where(*here)).first()
            now = None if found is None else self._row(found)
            new = row.new["payload"]
            if now is not None and now.raw in (new, new.encode()):
                written += 1
            elif now is not None:
                left.append(now)
        return written, left


class _Heads(_Own):
    table, columns = contexts, ("id",)

    def _stands(self) -> list[Any]:
        return [*super()._stands(), contexts.c.last_save == sa.bindparam("b_token", type_=sa.String())]

    def _move(self, row: Row) -> bool:
        if row.version == current():
            return False
        old = text_of(row.raw)
        head = codec.load_head(old, row.version or 0, context_id=row.key[0])
        text = codec.dump_head(head, jsontext.loads(old))
        row.new = {
            "schema_version": current(),
            "payload": text,
            "provider": short(head.provider),
            "model": short(head.model),
            "mode": short(head.mode),
            "compacted": head.compacted,
        }
        return True


_BESIDE = ("role", "created_at", "content", "origin", "usage")
"""Keys of a message that columns of its row repeat."""


class _Messages(_Own):
    table, columns = messages, ("context_id", "position")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._parse, self._upcast, self._validate, self._dump

    def _parse(self, row: Row) -> bool:
        if row.version == current():
            return False
        row.work = codec.parse_row(text_of(row.raw), row.version or 0, row.key[1])
        return True

    def _upcast(self, row: Row) -> bool:
        context_id, position = row.key
        row.work = row.work, codec.upcast_row(row.work, row.version or 0, position, context_id)
        return True

    def _validate(self, row: Row) -> bool:
        row.work = *row.work, codec.message_of(row.work[1], row.key[1])
        return True

    def _dump(self, row: Row) -> bool:
        old, new, message = row.work
        text = jsontext.dumps(new)
        if all(old.get(key) == new.get(key) for key in _BESIDE):
            row.new = {"schema_version": current(), "payload": text}
            return True
        context_id, position = row.key
        row.new = message_row(context_id, position, message, text)
        for name in (*self.columns, "id"):
            del row.new[name]
        return True


class _Flights(_Own):
    table, columns = in_flight, ("context_id", "turn_id")

    def count(self, c: sa.Connection) -> tuple[int, int]:
        return c.execute(sa.select(sa.func.count()).select_from(in_flight)).scalar_one(), 0

    def _stands(self) -> list[Any]:
        return []  # written once, and deleted; it never changes

    def _move(self, row: Row) -> bool:
        text = text_of(row.raw)
        found = flight_messages(text, row.key[0])
        if jsontext.loads(text)["schema_version"] == current():
            return False
        row.new = {"payload": flight_text(found)}
        return True
