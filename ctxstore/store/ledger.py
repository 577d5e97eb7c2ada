"""The ledger: attempts go in once and stay; sums come out of plain columns, no message is read.

``GROUPS`` maps what ``store.usage(by=...)`` groups by to its SQL.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import jsontext
from ..errors import ConfigurationError
from ..messages import Message
from ..usage import COUNTS, PICO, TokenUsage, Turn, UsageEntry
from .statements import statements
from .tables import usage as table
from .types import NAME_LENGTH

__all__ = ["GROUPS", "SLOT_SECONDS", "UsageRow", "entry_rows", "record", "record_turn", "slot_of", "sums"]

SLOT_SECONDS = 900
"""A slot is a quarter of an hour: every zone's offset is a whole number of them."""

_UNKNOWN: dict[str, Any] = dict.fromkeys(COUNTS)


def slot_of(time: dt.datetime) -> int:
    """The slot that ``time`` (aware) lies in, counted from 1970."""
    return int(time.timestamp() // SLOT_SECONDS)


# -- in


def entry_rows(
    entries: Iterable[UsageEntry], owner: str | None, first: int = 0, appended: Sequence[Message] = ()
) -> list[dict[str, Any]]:
    """The rows of ``entries``. Replies among the messages ``appended`` from position ``first`` on give theirs."""
    replies = [first + i for i, m in enumerate(appended) if m.role == "assistant" and m.origin is not None]
    kept = [e for e in entries if e.outcome == "ok" and e.kind == "turn"]
    places = dict(zip((e.id for e in reversed(kept)), reversed(replies), strict=False))
    return [_row(e, owner, places.get(e.id)) for e in entries]


def _row(e: UsageEntry, owner: str | None, position: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "context_id": e.context_id,
        "id": e.id,
        "turn_id": e.turn_id,
        "attempt": e.attempt,
        "kind": e.kind,
        "outcome": e.outcome,
        "owner": e.owner if e.owner is not None else owner,
        "provider": _short(e.provider),
        "requested_model": _short(e.requested_model),
        "model": _short(e.model if e.model is not None else e.requested_model),
        "created_at": e.created_at,
        "slot": slot_of(e.created_at),
        "position": position,
        "usage_raw": None if e.usage_raw is None else _json(e.usage_raw),
        "cost_pico_usd": e.cost_pico_usd,
        "price": None if e.price is None else _json(dict(e.price)),
        "finish_reason": _clean(e.finish_reason),
        "error": _clean(e.error),
        "response_id": _clean(e.response_id),
        "request_id": _clean(e.request_id),
        "latency_ms": e.latency_ms,
        "ttft_ms": e.ttft_ms,
    }
    row.update(_UNKNOWN if e.usage is None else zip(COUNTS, e.usage.counts(), strict=True))
    return row


def _json(value: Any) -> str:
    return jsontext.dumps(jsontext.check(value, "usage"))


def _short(text: str | None) -> str | None:
    return None if text is None else jsontext.searchable(text)[:NAME_LENGTH]


def _clean(text: str | None) -> str | None:
    return None if text is None else jsontext.searchable(text)


def record(c: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write the rows that are not in the ledger yet; how many they were."""
    ids: dict[UUID, list[UUID]] = {}
    for row in rows:
        ids.setdefault(row["context_id"], []).append(row["id"])
    there: set[tuple[UUID, UUID]] = set()
    for context_id, wanted in ids.items():
        known = sa.select(table.c.id).where(table.c.context_id == context_id, table.c.id.in_(wanted))
        there.update((context_id, found) for found in c.scalars(known))
    new = [row for row in rows if (row["context_id"], row["id"]) not in there]
    statements(c).enter.run_many(c, new)
    return len(new)


def record_turn(c: sa.Connection, turn: Turn, owner: str | None) -> int:
    """Write what ``turn`` paid for, as far as it is not in the ledger yet; how many attempts that were."""
    return record(c, entry_rows(turn.usage, owner))


# -- out

GROUPS: dict[str, sa.ColumnElement[Any]] = {
    "owner": table.c.owner,
    "provider": table.c.provider,
    "model": table.c.model,
    "context": table.c.context_id,
    "kind": table.c.kind,
    "outcome": table.c.outcome,
}


class UsageRow:
    """One group of the ledger: the group's keys as attributes (``row.model``), and its sums.

    ``usage`` sums what is known, from 0; ``unknown`` counts the replies that did not say. ``cost`` is in USD, None when
    nothing is priced, and ``unpriced`` counts the replies without a price. ``requests`` are the replies (those lost to
    another writer too), ``errors`` the attempts without one, ``contexts`` the conversations.
    """

    __slots__ = ("keys", "usage", "cost", "requests", "errors", "unknown", "unpriced", "contexts")

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


_REPLIED = table.c.outcome.in_(("ok", "lost"))
_HIGH = 20  # bits: one BIGINT of pico-dollars ends at 9.2 million USD, so the sum is taken in two parts


def _count(*conditions: Any) -> Any:
    return sa.func.coalesce(sa.func.sum(sa.case((sa.and_(*conditions), 1), else_=0)), 0)


def sums(
    c: sa.Connection, by: Sequence[str], filters: Mapping[str, Any], include_imported: bool
) -> list[UsageRow]:
    """Sums of the ledger, one row a group, in the order of the groups' keys.

    Raises:
        ConfigurationError: a grouping is unknown.
    """
    for name in by:
        if name not in GROUPS:
            raise ConfigurationError(f"usage cannot be grouped by {name!r}, only by {', '.join(GROUPS)}")
    keys = [GROUPS[name].label(f"key_{i}") for i, name in enumerate(by)]
    cost = table.c.cost_pico_usd
    query = sa.select(
        *keys,
        *(sa.func.coalesce(sa.func.sum(table.c[name]), 0) for name in COUNTS),
        sa.func.sum(cost.bitwise_rshift(_HIGH)),
        sa.func.sum(cost.bitwise_and((1 << _HIGH) - 1)),
        _count(_REPLIED),
        _count(~_REPLIED),
        _count(_REPLIED, table.c.input_tokens.is_(None), table.c.output_tokens.is_(None), table.c.total_tokens.is_(None)),
        _count(_REPLIED, cost.is_(None)),
        sa.func.count(table.c.context_id.distinct()),
    )
    for name, value in filters.items():
        if value is not None:
            query = query.where(GROUPS[name] == value)
    if not include_imported and filters.get("kind") is None:
        query = query.where(table.c.kind != "imported")
    if keys:
        groups = [GROUPS[name] for name in by]
        query = query.group_by(*groups).order_by(*(g.is_(None) for g in groups), *groups)
    return [_usage_row(by, row) for row in c.execute(query)]


def _usage_row(by: Sequence[str], row: Any) -> UsageRow:
    values = list(row)
    keys, rest = values[: len(by)], values[len(by) :]
    counts, (high, low, requests, errors, unknown, unpriced, contexts) = rest[: len(COUNTS)], rest[len(COUNTS) :]
    return UsageRow(
        dict(zip(by, keys, strict=True)),
        TokenUsage.model_construct(**{k: int(v) for k, v in zip(COUNTS, counts, strict=True)}),
        None if high is None else Decimal((int(high) << _HIGH) + int(low)) / PICO,
        requests=int(requests),
        errors=int(errors),
        unknown=int(unknown),
        unpriced=int(unpriced),
        contexts=int(contexts),
    )
