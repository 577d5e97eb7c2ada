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

from .. import clock, jsontext
from ..errors import (
    ConfigurationError,
    CtxstoreError,
    PayloadError,
    SchemaVersionError,
    StoreError,
)
from ..payload import codec
from ..payload.upcasts import current
from .failures import hung_up
from .running import Flow, job
from .tables import contexts, in_flight, messages

__all__ = [
    "Migration",
    "Progress",
    "Refusal",
    "Row",
    "Target",
    "count_versions",
    "migrate",
    "past",
    "raw_text",
    "reason",
    "some",
    "text_of",
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
    """A row as it was read, and the values it shall have. Two are equal when they were read as the same."""

    key: tuple[Any, ...]
    raw: Any
    version: int | None = None
    token: str | None = None
    name: tuple[Any, ...] = ()
    """The key as it is told, where ``key`` is not what a person knows the row by."""
    work: Any = field(default=None, compare=False)
    """What one stage of the upcast leaves to the next."""
    new: dict[str, Any] = field(default_factory=dict, compare=False)


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
    if type(batch) is not int or not 1 <= batch <= 1_000_000:
        raise ConfigurationError(f"batch must be a whole number from 1 to a million, not {batch!r}")
    if not 0 <= pause <= 86_400:
        raise ConfigurationError(f"pause is a number of seconds, at most a day, not {pause!r}")
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
            if found[-1].key == after or None in found[-1].key:
                raise ConfigurationError(
                    f"the key {found[-1].key!r} of {target.name} does not put its rows in an order; name other columns"
                )
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
        if hung_up(error):
            yield from job(_answers)  # that it does again means that a row was too large for it
        elif type(error) is not StoreError:
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


def _answers(c: sa.Connection) -> None:
    c.execute(sa.select(1))


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
    return len(row.raw) if isinstance(row.raw, str | bytes) else 0


def raw_text(column: sa.ColumnElement[Any], c: sa.Connection) -> sa.ColumnElement[Any]:
    """``column`` for ``text_of``: on SQLite its bytes, since one text that is no UTF-8 would end the whole query."""
    return sa.cast(column, sa.LargeBinary()) if c.dialect.name == "sqlite" else column


def text_of(raw: Any) -> Any:
    """The text of a row as it was read.

    Raises:
        PayloadError: its bytes are none.
    """
    if not isinstance(raw, bytes):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"this is no text in UTF-8: {error}") from error


def past(keys: Sequence[Any], after: tuple[Any, ...] | None) -> list[Any]:
    """The condition that a row comes after the key ``after`` in their order."""
    if after is None:
        return []
    values = [sa.bindparam(None, v, type_=k.type, unique=True) for k, v in zip(keys, after, strict=True)]
    if len(keys) == 1:
        return [keys[0] > values[0]]
    steps = [
        sa.and_(*(k == v for k, v in zip(keys[:i], values, strict=False)), keys[i] > values[i])
        for i in range(len(keys))
    ]
    return [keys[0] >= values[0], sa.or_(*steps)]


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
