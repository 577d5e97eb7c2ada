"""Sums of the ledger: one statement on plain columns, whatever the grouping; no message is read.

``GROUPINGS`` are the names that ``store.usage(by=...)`` takes. Rows are found by their slot, which is indexed; the
slots at the edges of a range that does not begin with one are looked at row by row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from ..errors import ConfigurationError
from ..usage import COUNTS, PICO, TokenUsage
from .periods import PERIODS, SLOT_SECONDS, instant, period, slot_of, zone_of
from .tables import usage as table

__all__ = ["GROUPINGS", "Question", "UsageRow", "question", "sums"]

_COLUMNS: dict[str, sa.ColumnElement[Any]] = {
    "owner": table.c.owner,
    "provider": table.c.provider,
    "model": table.c.model,
    "kind": table.c.kind,
    "outcome": table.c.outcome,
    "context": table.c.context_id,
}
GROUPINGS = (*_COLUMNS, *PERIODS)


class UsageRow:
    """One group of the ledger: the group's keys as attributes (``row.model``), and its sums.

    ``usage`` sums what is known, from 0; ``unknown`` counts the replies that did not say. ``cost`` is in USD, None when
    nothing is priced, and ``unpriced`` counts the replies without a price. ``requests`` are the replies (those lost to
    another writer too), ``errors`` the attempts without one, ``contexts`` the conversations.
    """

    __slots__ = ("contexts", "cost", "errors", "keys", "requests", "unknown", "unpriced", "usage")

    keys: Mapping[str, Any]
    usage: TokenUsage
    cost: Decimal | None
    requests: int
    errors: int
    unknown: int
    unpriced: int
    contexts: int

    def __init__(self, keys: Mapping[str, Any], usage: TokenUsage, cost: Decimal | None, **counts: int) -> None:
        values = {"keys": dict(keys), "usage": usage, "cost": cost, **counts}
        for name in UsageRow.__slots__:
            object.__setattr__(self, name, values[name])

    def __getattr__(self, name: str) -> Any:
        if name not in UsageRow.__slots__ and name in self.keys:
            return self.keys[name]
        raise AttributeError(f"this row is not grouped by {name!r}, only by {', '.join(self.keys) or 'nothing'}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a row of usage is read-only")

    def __reduce__(self) -> Any:
        return _rebuilt, ({name: getattr(self, name) for name in UsageRow.__slots__},)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UsageRow) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(tuple(self.keys.items()))

    def __repr__(self) -> str:
        return f"UsageRow({', '.join(f'{k}={v!r}' for k, v in self.to_dict().items())})"

    def to_dict(self) -> dict[str, Any]:
        """Keys and sums, flat, in the order of a table."""
        out = dict(self.keys)
        out.update((n, getattr(self, n)) for n in ("requests", "errors", "contexts"))
        out.update(zip(COUNTS, self.usage.counts(), strict=True))
        out.update((n, getattr(self, n)) for n in ("unknown", "cost", "unpriced"))
        return out


def _rebuilt(values: dict[str, Any]) -> UsageRow:
    return UsageRow(**values)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the ledger, checked."""

    by: tuple[str, ...]
    since: dt.datetime | None
    until: dt.datetime | None
    zone: dt.tzinfo
    filters: Mapping[str, Any]
    include_imported: bool


def question(
    by: str | Iterable[str],
    since: dt.datetime | dt.date | None,
    until: dt.datetime | dt.date | None,
    tz: str | dt.tzinfo,
    include_imported: bool,
    **filters: Any,
) -> Question:
    """What ``store.usage`` was asked.

    Raises:
        ConfigurationError: a grouping or the zone is unknown, a time has no zone, or the range ends before it begins.
    """
    names = tuple(dict.fromkeys((by,) if isinstance(by, str) else by))
    for name in names:
        if name not in GROUPINGS:
            raise ConfigurationError(f"usage cannot be grouped by {name!r}, only by {', '.join(GROUPINGS)}")
    zone = zone_of(tz)
    begin, end = instant(since, zone, "since"), instant(until, zone, "until")
    if begin is not None and end is not None and begin > end:
        raise ConfigurationError(f"the range ends before it begins: since is {since}, until is {until}")
    return Question(names, begin, end, zone, filters, include_imported)


# -- the statement

_REPLIED = table.c.outcome.in_([sa.literal_column("'ok'"), sa.literal_column("'lost'")])
_COST = table.c.cost_pico_usd
_HIGH = 20  # bits: one BIGINT of pico-dollars ends at 9.2 million USD, so the sum is taken in two parts


def _sum(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(sa.func.sum(column), sa.literal_column("0"))


def _count(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((sa.and_(*conditions), sa.literal_column("1"))))


_SUMS: tuple[sa.ColumnElement[Any], ...] = (
    *(_sum(table.c[name]) for name in COUNTS),
    sa.func.sum(_COST.op(">>")(sa.literal_column(str(_HIGH)))),
    sa.func.sum(_COST.op("&")(sa.literal_column(str((1 << _HIGH) - 1)))),
    _count(_REPLIED),
    sa.func.count(),
    _count(table.c.input_tokens.is_(None), table.c.output_tokens.is_(None), table.c.total_tokens.is_(None), _REPLIED),
    _count(_COST.is_(None), _REPLIED),
    sa.func.count(table.c.context_id.distinct()),
)


def _statement(q: Question) -> tuple[sa.Select[Any], list[Callable[[Any], Any]]]:
    groups: list[sa.ColumnElement[Any]] = []
    readers: list[Callable[[Any], Any]] = []
    for name in q.by:
        if name in _COLUMNS:
            groups.append(_COLUMNS[name])
            readers.append(_as_is)
        else:
            group, reader = period(name, table.c.slot, q.zone, q.since, q.until)
            groups.append(group)
            readers.append(reader)
    query = sa.select(*(g.label(f"key_{i}") for i, g in enumerate(groups)), *_SUMS).where(*_conditions(q))
    return query.group_by(*groups), readers


def _as_is(value: Any) -> Any:
    return value


def _conditions(q: Question) -> Iterable[sa.ColumnElement[bool]]:
    slot, time = table.c.slot, table.c.created_at
    if q.since is not None:
        first = slot_of(q.since)
        yield slot >= first
        if q.since.timestamp() % SLOT_SECONDS:
            yield sa.or_(slot > first, time >= q.since)
    if q.until is not None:
        last = slot_of(q.until)
        if q.until.timestamp() % SLOT_SECONDS:
            yield slot <= last
            yield sa.or_(slot < last, time < q.until)
        else:
            yield slot < last
    for name, value in q.filters.items():
        if value is not None:
            yield _COLUMNS[name] == value
    if not q.include_imported and q.filters.get("kind") is None:
        yield table.c.kind != "imported"


def sums(c: sa.Connection, q: Question) -> list[UsageRow]:
    """Sums of the ledger, one row a group, in the order of the groups' keys; no group, one row.

    The order is made here, by code points and with None last: databases differ in theirs.
    """
    query, readers = _statement(q)
    rows = [_row(q.by, readers, row) for row in c.execute(query)]
    return sorted(rows, key=_order)


def _order(row: UsageRow) -> list[tuple[bool, Any]]:
    return [(key is None, "" if key is None else key) for key in row.keys.values()]


def _row(by: Sequence[str], readers: Sequence[Callable[[Any], Any]], row: Any) -> UsageRow:
    values = list(row)
    keys, rest = values[: len(by)], values[len(by) :]
    counts: dict[str, Any] = {k: int(v) for k, v in zip(COUNTS, rest, strict=False)}
    high, low, replied, attempts, unknown, unpriced, contexts = rest[len(COUNTS) :]
    return UsageRow(
        {name: read(key) for name, read, key in zip(by, readers, keys, strict=True)},
        TokenUsage.model_construct(**counts),
        None if high is None else Decimal((int(high) << _HIGH) + int(low)) / PICO,
        requests=replied,
        errors=attempts - replied,
        unknown=unknown,
        unpriced=unpriced,
        contexts=contexts,
    )
