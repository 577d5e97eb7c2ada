"""The hot statements: written once in SQLAlchemy Core, compiled once a dialect, sent as ready text.

Compiling, or looking a compiled statement up, costs more than a row on SQLite; and these are sent at every turn. What
is sent seldom is plain Core in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from .tables import contexts, in_flight, messages, usage
from .types import UtcDateTime

__all__ = ["HEAD", "Hot", "Statements", "database_later", "database_now", "statements"]


class database_now(FunctionElement[Any]):
    """The time by the database's clock, whatever transaction it is asked in: what leases are judged by."""

    type = UtcDateTime()
    inherit_cache = True
    name = "ctxstore_now"


class database_later(FunctionElement[Any]):
    """The same, so many seconds (a float) later."""

    type = UtcDateTime()
    inherit_cache = True
    name = "ctxstore_later"


@compiles(database_now, "sqlite")
def _now_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"


@compiles(database_now, "postgresql")
def _now_postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(database_now)
def _now_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    return "UTC_TIMESTAMP(6)"


@compiles(database_later, "sqlite")
def _later_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"


@compiles(database_later, "postgresql")
def _later_postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)})"


@compiles(database_later)
def _later_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    return f"TIMESTAMPADD(MICROSECOND, ROUND({compiler.process(element.clauses, **kw)} * 1000000), UTC_TIMESTAMP(6))"


class Hot:
    """One statement, ready to be sent on connections of one dialect."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text: str = compiled.string
        self._positional = compiled.positiontup is not None
        self._names = tuple(compiled.positiontup or compiled.binds)
        self._values = itemgetter(*self._names)
        types = [compiled.binds[name].type.dialect_impl(dialect) for name in self._names]
        processors = [kind.bind_processor(dialect) for kind in types]
        self._processors: list[tuple[int, Callable[[Any], Any]]] = [
            (index, process) for index, process in enumerate(processors) if process is not None
        ]

    def _bound(self, values: Mapping[str, Any]) -> Any:
        row = list(self._values(values))
        for index, process in self._processors:
            value = row[index]
            if value is not None:
                row[index] = process(value)
        return tuple(row) if self._positional else dict(zip(self._names, row, strict=True))

    def run(self, connection: sa.Connection, values: Mapping[str, Any]) -> int:
        """Send it; the number of rows it found."""
        result = connection.exec_driver_sql(self.text, self._bound(values))
        return result.rowcount

    def run_many(self, connection: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> int:
        """Send it once a row; the number of rows it found, which not every driver says (-1)."""
        bound = [self._bound(row) for row in rows]
        if not bound:
            return 0
        return connection.exec_driver_sql(self.text, bound[0] if len(bound) == 1 else bound).rowcount


HEAD = (
    "schema_version",
    "revision",
    "last_save",
    "next_position",
    "title",
    "provider",
    "model",
    "mode",
    "compacted",
    "message_count",
    "context_used",
    "context_window",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "input_audio_tokens",
    "output_audio_tokens",
    "input_image_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "total_tokens",
    "cost_pico_usd",
    "unpriced",
    "updated_at",
    "payload",
)
"""Columns of a context that every save writes."""

_BORN = ("id", "owner", "forked_from", "forked_at", "created_at", "lease_epoch")


def _stands() -> Any:
    """The row is ours to follow: it is at the save we stand on and in no version from the future."""
    return sa.and_(
        contexts.c.id == sa.bindparam("b_id", type_=contexts.c.id.type),
        contexts.c.last_save == sa.bindparam("b_base", type_=sa.String()),
        contexts.c.schema_version <= sa.bindparam("b_version", type_=sa.Integer()),
    )


def _no_lease() -> Any:
    return sa.or_(contexts.c.locked_until.is_(None), contexts.c.locked_until <= database_now())


def _our_lease() -> Any:
    return contexts.c.lease_epoch == sa.bindparam("b_epoch", type_=sa.Integer())


def _lasts() -> dict[str, Any]:
    """The lease lasts so many seconds from now, unless it was given back in the meantime."""
    later = database_later(sa.bindparam("b_seconds", type_=sa.Float()))
    return {"locked_until": sa.case((contexts.c.locked_by.is_not(None), later))}


def _in_flight(lease: Any) -> Any:
    c = in_flight.c
    here = in_flight.alias("here")
    noted = sa.exists().where(
        here.c.context_id == sa.bindparam("context_id", type_=c.context_id.type),
        here.c.turn_id == sa.bindparam("turn_id", type_=c.turn_id.type),
    )
    row = sa.select(*(sa.bindparam(column.name, type_=column.type) for column in c))
    there = row.select_from(contexts).where(_stands(), lease, ~noted)
    there = there.with_for_update(read=True, key_share=True)  # a deletion at this moment would leave the prompt behind
    return sa.insert(in_flight).from_select([column.name for column in c], there)


class Statements:
    """All of them, for one dialect; each is compiled when it is first sent."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def _hot(self, statement: Any) -> Hot:
        return Hot(statement, self._dialect)

    @cached_property
    def born(self) -> Hot:
        """A new context, unless its id is taken."""
        names = (*_BORN, *HEAD)
        binds = [sa.bindparam(n, type_=contexts.c[n].type) for n in names]
        taken = sa.exists().where(contexts.c.id == sa.bindparam("id", type_=contexts.c.id.type))
        return self._hot(sa.insert(contexts).from_select(names, sa.select(*binds).where(~taken)))

    def _save(self, lease: Any, **more: Any) -> Hot:
        values = {n: sa.bindparam(n, type_=contexts.c[n].type) for n in HEAD}
        return self._hot(sa.update(contexts).where(_stands(), lease).values(values | more))

    @cached_property
    def save(self) -> Hot:
        """The head, where it stands as we know it and nobody holds a lease."""
        return self._save(_no_lease())

    @cached_property
    def save_leased(self) -> Hot:
        """The head, where it stands as we know it and the lease is ours, which has its own length again."""
        return self._save(_our_lease(), **_lasts())

    @cached_property
    def retire(self) -> Hot:
        """Messages leave the live window."""
        first, last = sa.bindparam("b_first", type_=sa.Integer()), sa.bindparam("b_last", type_=sa.Integer())
        return self._hot(
            sa.update(messages)
            .where(
                messages.c.context_id == sa.bindparam("b_id", type_=messages.c.context_id.type),
                messages.c.position.between(first, last),
                messages.c.retired_at_revision.is_(None),
            )
            .values(retired_at_revision=sa.bindparam("b_revision", type_=sa.Integer()))
        )

    @cached_property
    def append(self) -> Hot:
        """A message joins at the end."""
        names = [c.name for c in messages.c if c.name != "retired_at_revision"]
        return self._hot(sa.insert(messages).values({n: sa.bindparam(n, type_=messages.c[n].type) for n in names}))

    @cached_property
    def enter(self) -> Hot:
        """An attempt enters the ledger."""
        return self._hot(sa.insert(usage).values({c.name: sa.bindparam(c.name, type_=c.type) for c in usage.c}))

    @cached_property
    def note(self) -> Hot:
        """A prompt is in flight, where the context stands as we know it and nobody holds a lease."""
        return self._hot(_in_flight(_no_lease()))

    @cached_property
    def note_leased(self) -> Hot:
        """A prompt is in flight, where the context stands as we know it and the lease is ours."""
        return self._hot(_in_flight(_our_lease()))

    @cached_property
    def land(self) -> Hot:
        """A prompt is no longer in flight."""
        return self._hot(
            sa.delete(in_flight).where(
                in_flight.c.context_id == sa.bindparam("context_id", type_=in_flight.c.context_id.type),
                in_flight.c.turn_id == sa.bindparam("turn_id", type_=in_flight.c.turn_id.type),
            )
        )

    @cached_property
    def extend(self) -> Hot:
        """A lease that is still ours lasts so many seconds from now."""
        return self._hot(
            sa.update(contexts)
            .where(contexts.c.id == sa.bindparam("b_id", type_=contexts.c.id.type), _our_lease())
            .values(_lasts())
        )


_KNOWN: WeakKeyDictionary[Dialect, Statements] = WeakKeyDictionary()


def statements(connection: sa.Connection) -> Statements:
    """The hot statements for ``connection``."""
    found = _KNOWN.get(connection.dialect)
    if found is None:
        found = _KNOWN[connection.dialect] = Statements(connection.dialect)
    return found
