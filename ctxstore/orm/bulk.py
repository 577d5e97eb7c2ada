"""``migrate_payloads``: the documents in a column of the host's table, moved up in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import ArgumentError, NoSuchTableError
from sqlalchemy.orm import Mapper

from .. import clock, jsontext
from ..errors import ConfigurationError, PayloadError
from ..messages import Message
from ..payload import codec
from ..payload.schema import Document
from ..payload.upcasts import current
from ..state import State
from ..store import bulk
from ..store.bulk import Migration, Progress, Row, Stage
from ..store.engines import strict
from ..store.repository import projections
from ..store.running import Runner
from ..store.tables import metadata
from ..store.types import MYSQL, JsonText
from .column import COLUMNS, TOKEN, ColumnBinding, holds_something, values_of
from .keys import Keys, place_of, require_unique
from .record import KEY

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["HostColumn", "amigrate_payloads", "migrate_payloads", "migrate_table", "of_table"]


def migrate_payloads(
    engine: sa.Engine,
    model: type[Any],
    *,
    dry_run: bool = False,
    batch: int = 500,
    pause: float = 0.0,
    progress: Progress | None = None,
) -> Migration:
    """Move the documents that ``model`` (a class with ``HasContext`` or ``HasContextColumn``) keeps up to this version.

    Args:
        engine: of the database with the table; it stays as it is.
        model: the mapped class. Its mappers' events, validators and ``onupdate`` defaults are not involved.
        dry_run: read, and report what would be done.
        batch: rows a transaction.
        pause: seconds to wait between two batches.
        progress: called with the rows done and their total after each batch.

    Returns the report: ``.migrated``, ``.unchanged`` (in this version, or without a context) and ``.refused``, each
    with ``.key`` and ``.reason``; what is refused is left as it is, byte by byte. It may be run while the application
    does, and again after it was killed.

    Raises:
        ConfigurationError: the class keeps no context in a column.
        StoreUnavailableError: the database cannot be reached; batches before are done.
    """
    target = of_model(model)
    runner = Runner(engine, synchronous="FULL", busy_timeout=30.0)
    return runner.drive(bulk.migrate([target], dry_run=dry_run, batch=batch, pause=pause, progress=progress))


async def amigrate_payloads(
    engine: AsyncEngine,
    model: type[Any],
    *,
    dry_run: bool = False,
    batch: int = 500,
    pause: float = 0.0,
    progress: Progress | None = None,
) -> Migration:
    """``migrate_payloads`` for asyncio."""
    target = of_model(model)
    runner = Runner(engine, synchronous="FULL", busy_timeout=30.0)
    return await runner.adrive(bulk.migrate([target], dry_run=dry_run, batch=batch, pause=pause, progress=progress))


def migrate_table(
    engine: sa.Engine,
    table: str,
    column: str,
    key: Sequence[str] = (),
    *,
    dry_run: bool = False,
    batch: int = 500,
    pause: float = 0.0,
    progress: Progress | None = None,
) -> Migration:
    """``migrate_payloads`` for a column by its name; ``key`` are the columns of its key when it has no primary one.

    Ids of contexts that have none are made from the table's name and the key as a class has them: where it has a type
    of its own for the key, or another name for the table, give the class.

    Raises:
        ConfigurationError: there is no such table or column, or nothing that tells its rows apart.
    """
    runner = Runner(engine, synchronous="FULL", busy_timeout=30.0)
    target = runner.run(of_table, table, column, key)
    return runner.drive(bulk.migrate([target], dry_run=dry_run, batch=batch, pause=pause, progress=progress))


def of_model(model: type[Any]) -> HostColumn:
    """The column in which ``model`` keeps its contexts.

    Raises:
        ConfigurationError: it is no mapped class of ours, or keeps a link to ctxstore's own tables.
    """
    mapper: Any = sa.inspect(model, raiseerr=False)
    binding = None
    if isinstance(mapper, Mapper):
        mapper.registry.configure()
        binding = mapper.class_manager.info.get(KEY)
    if not isinstance(binding, ColumnBinding):
        raise ConfigurationError(
            f"{getattr(model, '__name__', model)!r} keeps no context in a column of its own: give a class with "
            "HasContext or HasContextColumn; ctxstore's own tables are moved by store.migrate_payloads()"
        )
    table = binding.column.table
    beside: dict[str, Any] = {key: mapper.column_attrs[key].columns[0] for key in binding.values}
    keys = Keys(list(table.primary_key.columns), reflected=False)
    return HostColumn(binding.column, keys, str(mapper.base_mapper.local_table), beside)


def of_table(c: sa.Connection, table: str, column: str, key: Sequence[str] = ()) -> HostColumn:
    """A column by its name in the database, for a table without a class here; ``table`` may have a schema before it.

    Raises:
        ConfigurationError: there is no such table or column, or nothing that tells its rows apart.
    """
    schema, _, name = ("", "", table) if sa.inspect(c).has_table(table) else table.rpartition(".")
    if schema == sa.inspect(c).default_schema_name:
        schema = ""
    if name in metadata.tables:
        raise ConfigurationError(f"{name} is one of ctxstore's own tables: leave --table and --column out for them")
    try:
        found = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=c, resolve_fks=False)
        place = found.c[column]
        keys = [found.c[k] for k in key] or list(found.primary_key.columns)
    except NoSuchTableError as error:
        raise ConfigurationError(f"there is no table {table!r} in this database") from error
    except (KeyError, ArgumentError) as error:
        raise ConfigurationError(f"{table} has no column {error}; it has {', '.join(found.c.keys())}") from error
    if not keys:
        raise ConfigurationError(f"{table} has no primary key; name the columns that tell its rows apart by --key")
    require_unique(c, found, keys)
    ours = place.name == "context_data" and TOKEN in found.c
    beside = {k: found.c[k] for k in COLUMNS if ours and k in found.c and k not in ("context_data", TOKEN)}
    return HostColumn(place, Keys(keys, reflected=True), str(found), beside)


@dataclass(slots=True)
class _Work:
    """A document on its way: what each stage leaves to the next."""

    content: dict[str, Any]
    raw: dict[str, Any] = field(default_factory=dict)
    id: Any = None
    head: Any = None
    messages: list[Message] = field(default_factory=list)
    projections: dict[str, Any] = field(default_factory=dict)


_COLUMNS = sa.table(
    "columns", *map(sa.column, ("table_schema", "table_name", "column_name", "extra")), schema="information_schema"
)
_BINARY = (sa.LargeBinary, sa.VARBINARY, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB)


class HostColumn:
    """A column of the host's that holds documents; ``beside`` are the columns that repeat something of them."""

    def __init__(self, column: sa.Column[Any], keys: Keys, place: str, beside: dict[str, sa.Column[Any]]) -> None:
        self.column, self.keys, self.place, self.beside = column, keys, place, beside
        self.table: sa.Table = column.table
        kind = column.type
        self.decorated = isinstance(kind, sa.types.TypeDecorator) and not isinstance(kind, JsonText)
        inner = kind.impl_instance if isinstance(kind, sa.types.TypeDecorator) else kind
        self.json, self.binary = isinstance(inner, sa.JSON), isinstance(inner, _BINARY)
        self._moving: set[str] = set()
        """Columns that the database itself sets when a row is updated."""

    @property
    def name(self) -> str:
        return self.table.name

    def key_of(self, row: Row) -> Any:
        try:
            key = self.keys.values(row)
        except PayloadError:
            key = row.name
        return key[0] if len(key) == 1 else key

    def count(self, c: sa.Connection) -> tuple[int, int]:
        self.keys.look(c)
        if c.dialect.name in MYSQL:
            there = _COLUMNS.c
            here = there.table_schema == (self.table.schema or sa.func.database()), there.table_name == self.table.name
            query = sa.select(there.column_name).where(*here, there.extra.ilike("%on update%"))
            self._moving = set(c.scalars(query))
        return c.execute(sa.select(sa.func.count()).select_from(self.table)).scalar_one(), 0

    def _raw(self, c: sa.Connection) -> Any:
        """The text as it stands, whatever JSON reader the host's engine has; a type of the host's own reads its own."""
        if self.decorated or self.binary:
            return self.column
        if isinstance(self.column.type, JsonText) or c.dialect.name == "sqlite":
            return bulk.raw_text(self.column, c)
        if self.json:
            return sa.cast(self.column, sa.Text())
        return sa.type_coerce(self.column, sa.Text())

    def read(self, c: sa.Connection, after: tuple[Any, ...] | None, limit: int) -> list[Row]:
        query = sa.select(*self.keys.selected, self._raw(c)).where(*bulk.past(self.keys.ordered, after))
        query = query.order_by(*self.keys.ordered).limit(limit)
        result = c.execute(query.execution_options(stream_results=True, max_row_buffer=64))
        return bulk.some(result, self._row)

    def _row(self, found: Any) -> Row:
        return self.keys.row(found, found[-1])

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._parse, self._upcast, self._identify, self._head, self._mint, self._validate, self._sum, self._dump

    def _parse(self, row: Row) -> bool:
        raw = bulk.text_of(row.raw)
        if not holds_something(raw):
            return False
        row.work = _Work(codec.parse(raw))
        return True

    def _upcast(self, row: Row) -> bool:
        row.work.raw = codec.upcast(row.work.content)
        return True

    def _identify(self, row: Row) -> bool:
        key = self.keys.values(row)
        if len(key) == 1 and clock.is_uuid7(key[0]):
            row.work.id = clock.parse_id(key[0])
        else:
            row.work.id = codec.identify(row.work.content, place_of(self.place, key))
        return True

    def _head(self, row: Row) -> bool:
        row.work.head = codec.head_of(row.work.raw, row.work.id)
        return True

    def _mint(self, row: Row) -> bool:
        row.work.raw["messages"] = codec.with_ids(row.work.raw["messages"], row.work.id)
        return True

    def _validate(self, row: Row) -> bool:
        row.work.messages = codec.validated(row.work.raw["messages"])
        return bool(row.work.content["schema_version"] != current())

    def _sum(self, row: Row) -> bool:
        work = row.work
        state = State(work.head)
        state.take(Document(work.head, work.messages))
        work.projections = projections(state)
        if self.beside:
            row.new = {k: v for k, v in values_of(state).items() if k in self.beside and k != "context_window"}
        return True

    def _dump(self, row: Row) -> bool:
        payload = codec.dump_raw(row.work.head, row.work.raw["messages"], row.work.projections)
        if self.decorated and not isinstance(row.raw, str | bytes):
            row.new["payload"] = payload
        else:
            text = jsontext.dumps(payload)
            as_bytes = self.binary or (self.decorated and isinstance(row.raw, bytes))
            row.new["payload"] = text.encode() if as_bytes else text
        return True

    def write(self, c: sa.Connection, rows: Sequence[Row]) -> tuple[int, list[Row]]:
        if c.dialect.name == "sqlite":  # a SELECT takes no lock there
            self._lock(c, rows[0])
        stand = {found.key: found for found in self._standing(c, rows)}
        here = [(row, stand[row.key]) for row in rows if row.key in stand]
        same = [row for row, found in here if found == row]
        if same:
            with strict(c):
                c.execute(self._update(c, same[0]), [self._bound(row) for row in same])
        return len(same), [found for row, found in here if found != row]

    def _lock(self, c: sa.Connection, row: Row) -> None:
        (here,) = self.keys.where([row])
        c.execute(sa.update(self.table).where(here).values({**self._kept(), self.column: self.column}))

    def _standing(self, c: sa.Connection, rows: Sequence[Row]) -> list[Row]:
        query = sa.select(*self.keys.selected, self._raw(c)).order_by(*self.keys.ordered).with_for_update()
        return [self._row(found) for here in self.keys.where(rows) for found in c.execute(query.where(here))]

    def _kept(self) -> dict[Any, Any]:
        """Nothing of the row's own changes, so what an UPDATE would set by itself in the host's row stays as it is."""
        return {c: c for c in self.table.c if c.onupdate is not None or c.name in self._moving}

    def _update(self, c: sa.Connection, row: Row) -> Any:
        new: Any = sa.bindparam("ctx_payload", type_=self.column.type)
        if self.json and not self.decorated:
            new = sa.bindparam("ctx_payload", type_=sa.Text())
            if c.dialect.name == "postgresql":
                new = sa.cast(new, self.column.type)
        values = {
            self.beside[k]: sa.bindparam(f"ctx_{k}", type_=self.beside[k].type) for k in row.new if k in self.beside
        }
        here = [k == sa.bindparam(f"ctx_key_{i}", type_=k.type) for i, k in enumerate(self.keys.handles)]
        return sa.update(self.table).where(*here).values({**self._kept(), **values, self.column: new})

    def _bound(self, row: Row) -> dict[str, Any]:
        keys = {f"ctx_key_{i}": part for i, part in enumerate(row.key)}
        return {**keys, **{f"ctx_{k}": v for k, v in row.new.items()}}
