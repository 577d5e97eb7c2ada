"""Saved payloads, moved up to the current version in bulk while the application runs.

Rows are read in batches by key and worked on outside of any transaction; what comes of them is written in a short one,
onto rows that still hold what was read. A live writer neither waits for that nor loses to it: the row that it wrote
since is read again. Nothing remembers how far a run came but the rows themselves, so a run that was killed is begun
again and does what is left. There is no way down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from .. import clock, jsontext
from ..errors import ConfigurationError, CtxstoreError, PayloadError, SchemaVersionError, StoreError
from ..payload import codec
from ..payload.upcasts import current
from .keeping import flight_messages, flight_text
from .repository import message_row
from .running import Flow, job
from .statements import Hot
from .tables import contexts, in_flight, messages
from .types import short

__all__ = [
    "Migration",
    "Progress",
    "Refusal",
    "Row",
    "Target",
    "count_versions",
    "migrate",
    "own_targets",
    "past",
    "reason",
    "some",
    "unreadable",
]

Progress: TypeAlias = Callable[[int, int], object]
"""Called with how many rows are done, and of how many."""

TRIES = 5
GROUP = 64
"""Rows that go through the stages of their upcast together. One by one each takes half as long again: the code of one
stage stays in the processor's cache, that of all of them does not."""
BYTES = 16_000_000
"""A batch ends early when its payloads are longer than this, so that memory is bounded whatever a row holds."""
GROUP_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that was left as it is: its table, its key (the context's id in ctxstore's own tables), and why."""

    table: str
    key: Any
    reason: str


@dataclass(slots=True)
class Migration:
    """What came of a run. ``unchanged`` rows are in the current version already, or hold no context."""

    dry_run: bool = False
    migrated: int = 0
    unchanged: int = 0
    refused: list[Refusal] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        refused = [{"table": r.table, "key": r.key, "reason": r.reason} for r in self.refused]
        return {
            "dry_run": self.dry_run,
            "migrated": self.migrated,
            "unchanged": self.unchanged,
            "refused": refused,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Row:
    """A row as it was read, and the values it shall have."""

    key: tuple[Any, ...]
    raw: Any
    version: int | None = None
    token: str | None = None
    work: Any = None
    """What one stage of the upcast leaves to the next."""
    new: dict[str, Any] = field(default_factory=dict)


Stage: TypeAlias = Callable[[Row], bool]


class Target(Protocol):
    """A table whose rows are moved up."""

    @property
    def name(self) -> str:
        """The table's name, for reports."""
        ...

    def count(self, c: sa.Connection) -> tuple[int, int]:
        """How many rows there are, and how many of them ``read`` will not give because there is nothing to do."""
        ...

    def read(self, c: sa.Connection, after: tuple[Any, ...] | None, limit: int) -> list[Row]:
        """The next rows in the order of their keys."""
        ...

    @property
    def stages(self) -> Sequence[Stage]:
        """The steps that fill ``row.new``, one after the other. A step returns False when the row is as it should be;
        it does no IO, and raises ``CtxstoreError`` to refuse the row."""
        ...

    def write(self, c: sa.Connection, rows: Sequence[Row]) -> tuple[int, list[Row]]:
        """Write ``rows`` where they stand as they were read: how many that were, and the others as they stand now."""
        ...

    def key_of(self, row: Row) -> Any:
        """What a report calls ``row``."""
        ...


def migrate(
    targets: Sequence[Target],
    *,
    dry_run: bool = False,
    batch: int = 500,
    pause: float = 0.0,
    progress: Progress | None = None,
) -> Flow[Migration]:
    """Move the rows of ``targets`` up."""
    if type(batch) is not int or batch < 1:
        raise ConfigurationError(f"batch must be a whole number of 1 or more, not {batch!r}")
    if not pause >= 0:
        raise ConfigurationError(f"pause is a number of seconds, not {pause!r}")
    begun = clock.monotonic()
    report = Migration(dry_run)
    total = done = 0
    for target in targets:
        rows, ready = yield from job(target.count)
        total += rows
        report.unchanged += ready
    done = report.unchanged
    for target in targets:
        after: tuple[Any, ...] | None = None
        while found := (yield from job(target.read, after, batch)):
            after = found[-1].key
            yield from _move(target, found, report)
            done += len(found)
            if progress is not None:
                progress(done, max(total, done))
            if pause:
                yield float(pause)
    if progress is not None and done < total:  # rows were deleted while this went on
        progress(total, total)
    report.seconds = clock.monotonic() - begun
    return report


def _move(target: Target, rows: list[Row], report: Migration) -> Flow[None]:
    for _ in range(TRIES):
        with codec.collector_held():
            moved = [row for group in _groups(rows) for row in _upcast(target, group, report)]
        if report.dry_run or not moved:
            report.migrated += len(moved)
            return
        rows = yield from _write(target, moved, report)
        if not rows:
            return
    report.refused += [
        Refusal(target.name, target.key_of(row), "other writers changed it again and again; run this once more")
        for row in rows
    ]


def _groups(rows: list[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += _length(row)
        if len(group) == GROUP or size > GROUP_BYTES:
            yield group
            group, size = [], 0
    yield group


def _upcast(target: Target, rows: list[Row], report: Migration) -> list[Row]:
    """Those of ``rows`` that have something to write; the report says of the others why not."""
    for stage in target.stages:
        passed = []
        for row in rows:
            try:
                if stage(row):
                    passed.append(row)
                else:
                    report.unchanged += 1
            except CtxstoreError as error:
                report.refused.append(Refusal(target.name, target.key_of(row), reason(error)))
        rows = passed
    for row in rows:
        row.work = None
    return rows


def _write(target: Target, rows: list[Row], report: Migration) -> Flow[list[Row]]:
    """Write ``rows``; one that the database refuses costs the others nothing. Returns those that changed meanwhile."""
    try:
        written, left = yield from job(target.write, rows)
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        if len(rows) == 1:
            report.refused.append(Refusal(target.name, target.key_of(rows[0]), str(error)))
            return []
        left = []
        for row in rows:
            left += yield from _write(target, [row], report)
        return left
    report.migrated += written
    return left


def reason(error: CtxstoreError) -> str:
    """Why a row was refused, for a report."""
    if isinstance(error, SchemaVersionError) and type(error.found) is int and error.found > current():
        return f"{error}; there is no way down: leave it to the newer ctxstore"
    return str(error)


def some(result: Any, row_of: Callable[[Any], Row]) -> list[Row]:
    """The first rows of ``result``, as many as fit into a batch's memory."""
    out: list[Row] = []
    size = 0
    for found in result:
        row = row_of(found)
        out.append(row)
        size += _length(row)
        if size > BYTES:
            break
    result.close()
    return out


def _length(row: Row) -> int:
    return len(row.raw) if isinstance(row.raw, str) else 0


def past(keys: Sequence[Any], after: tuple[Any, ...] | None) -> list[Any]:
    """The condition that a row comes after the key ``after`` in their order."""
    if after is None:
        return []
    if len(keys) == 1:
        return [keys[0] > after[0]]
    steps = [
        sa.and_(*(k == v for k, v in zip(keys[:i], after, strict=False)), keys[i] > after[i]) for i in range(len(keys))
    ]
    return [keys[0] >= after[0], sa.or_(*steps)]


# -- ctxstore's own tables


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

    def _select(self) -> Any:
        token = contexts.c.last_save if self.table is contexts else sa.null()
        version = self.table.c.get("schema_version", sa.null())
        return sa.select(*self._keys, version, token, self.table.c.payload)

    def _row(self, found: Any) -> Row:
        return Row(tuple(found[:-3]), found[-1], found[-3], found[-2])

    def count(self, c: sa.Connection) -> tuple[int, int]:
        ready = sa.func.coalesce(sa.func.sum(sa.case((self.table.c.schema_version == current(), 1), else_=0)), 0)
        total, done = c.execute(sa.select(sa.func.count(), ready).select_from(self.table)).one()
        return int(total), int(done)

    def read(self, c: sa.Connection, after: tuple[Any, ...] | None, limit: int) -> list[Row]:
        query = self._select().where(*past(self._keys, after)).order_by(*self._keys).limit(limit)
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
            found = c.execute(self._select().where(*here)).first()
            now = None if found is None else self._row(found)
            if now is not None and now.raw == row.new["payload"]:
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
        head = codec.load_head(row.raw, row.version or 0, context_id=row.key[0])
        text = codec.dump_head(head, jsontext.loads(row.raw))
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
        row.work = codec.parse_row(row.raw, row.version or 0, row.key[1])
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
        found = flight_messages(row.raw, row.key[0])
        if jsontext.loads(row.raw)["schema_version"] == current():
            return False
        row.new = {"payload": flight_text(found)}
        return True


# -- what there is


def count_versions(c: sa.Connection) -> list[tuple[str, int | None, int]]:
    """Table, version and number of rows; the version is None where a row does not say one."""
    out: list[tuple[str, int | None, int]] = []
    for table in (contexts, messages):
        query = sa.select(table.c.schema_version, sa.func.count()).group_by(table.c.schema_version)
        out += [(table.name, version, count) for version, count in sorted(map(tuple, c.execute(query)))]
    flights: dict[int | None, int] = {}
    for (text,) in c.execute(sa.select(in_flight.c.payload)):
        version = _said(text)
        flights[version] = flights.get(version, 0) + 1
    return out + [(in_flight.name, version, flights[version]) for version in sorted(flights, key=lambda v: v or 0)]


def _said(text: str) -> int | None:
    try:
        found: Any = jsontext.loads(text)
    except PayloadError:
        return None
    version = found.get("schema_version") if isinstance(found, dict) else None
    return version if type(version) is int else None


def unreadable(counts: Iterable[tuple[str, int | None, int]]) -> int:
    """How many of the rows are in a version that this program cannot read."""
    return sum(count for _, version, count in counts if version is None or not 1 <= version <= current())
