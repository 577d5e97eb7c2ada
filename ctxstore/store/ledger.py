"""The ledger: attempts go in once and stay. One whose usage is unknown is corrected once, when it is known later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import jsontext
from ..errors import ConfigurationError, ContextNotFoundError, UnsupportedValueError
from ..messages import Message
from ..usage import COUNTS, Price, TokenUsage, Turn, UsageEntry
from .periods import slot_of
from .statements import statements
from .tables import usage as table
from .types import plain, short

__all__ = ["attempts", "checked_usage", "correct", "entry_rows", "record", "record_turn"]

_UNKNOWN: dict[str, Any] = dict.fromkeys(COUNTS)


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
        "provider": short(e.provider),
        "requested_model": short(e.requested_model),
        "model": short(e.model if e.model is not None else e.requested_model),
        "created_at": e.created_at,
        "slot": slot_of(e.created_at),
        "position": position,
        "usage_raw": _raw(e.usage_raw),
        "cost_pico_usd": e.cost_pico_usd,
        "price": None if e.price is None else _json(dict(e.price)),
        "finish_reason": plain(e.finish_reason),
        "error": plain(e.error),
        "response_id": plain(e.response_id),
        "request_id": plain(e.request_id),
        "latency_ms": e.latency_ms,
        "ttft_ms": e.ttft_ms,
    }
    row.update(_UNKNOWN if e.usage is None else zip(COUNTS, e.usage.counts(), strict=True))
    return row


def _raw(value: Any) -> str | None:
    """What the provider said, for people; a NaN or a depth that no database takes must not lose the turn."""
    try:
        return None if value is None else _json(value)
    except UnsupportedValueError:
        return None


def _json(value: Any) -> str:
    return jsontext.dumps(jsontext.check(value, "usage"))


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


# -- corrections


def checked_usage(usage: TokenUsage | Mapping[str, Any]) -> TokenUsage:
    """``usage`` as a correction may have it.

    Raises:
        ConfigurationError: it says nothing, or a count is negative or beyond 64 bits.
    """
    try:
        found = usage if isinstance(usage, TokenUsage) else TokenUsage.model_validate(usage)
    except ValueError as error:
        raise ConfigurationError(f"a correction needs whole numbers for {', '.join(COUNTS)}: {error}") from error
    known = found.to_payload()
    for name in COUNTS:
        if not 0 <= known.get(name, 0) < 2**63:
            raise ConfigurationError(f"{name} cannot be {known[name]}")
    if not set(_NEEDED) & set(known):
        raise ConfigurationError(f"a correction says one of {', '.join(_NEEDED)} at least")
    return found


_NEEDED = ("input_tokens", "output_tokens", "total_tokens")


def correct(c: sa.Connection, context_id: UUID, id: UUID, usage: TokenUsage, price: Price | None) -> bool:
    """Give an attempt whose usage is unknown what it used; False when it was known already.

    Raises:
        ContextNotFoundError: there is no such attempt in the ledger.
    """
    here = (table.c.context_id == context_id, table.c.id == id)
    cost = price.cost(usage).pico_usd if price is not None else None
    values: dict[str, Any] = dict(zip(COUNTS, usage.counts(), strict=True))
    if price is not None and cost is not None:
        values |= {"cost_pico_usd": cost, "price": _json(price.to_payload())}
    change = sa.update(table).where(*here, *(table.c[name].is_(None) for name in _NEEDED)).values(values)
    if c.execute(change).rowcount:
        return True
    if c.execute(sa.select(table.c.id).where(*here)).first() is None:
        raise ContextNotFoundError(f"there is no attempt {id} of a context {context_id} in the ledger")
    return False


_ENTRY = ("kind", "outcome", "owner", "provider", "requested_model", "model", "created_at", "cost_pico_usd",
          "finish_reason", "error", "response_id", "request_id", "latency_ms", "ttft_ms", "turn_id", "attempt", "id",
          "context_id")  # fmt: skip


def attempts(c: sa.Connection, context_id: UUID, owner: str | None) -> list[UsageEntry]:
    """What the ledger holds of one context, in the order in which it was asked."""
    query = sa.select(table).where(table.c.context_id == context_id).order_by(table.c.created_at, table.c.id)
    if owner is not None:
        query = query.where(table.c.owner == owner)
    return [_entry(row) for row in c.execute(query)]


def _entry(row: Any) -> UsageEntry:
    counts = {name: getattr(row, name) for name in COUNTS}
    return UsageEntry(
        **{name: getattr(row, name) for name in _ENTRY},
        usage=None if all(v is None for v in counts.values()) else TokenUsage.model_construct(**counts),
        usage_raw=None if row.usage_raw is None else jsontext.loads(row.usage_raw),
        price=None if row.price is None else jsontext.loads(row.price),
    )
