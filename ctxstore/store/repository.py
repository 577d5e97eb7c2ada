"""Saving and loading one context, as functions over a synchronous connection in a transaction.

A save is an UPDATE of the head where it stands as the writer knows it, which is the lock and the check in one; then
come the rows that are new. A row count of 0 is decided by reading again. Every function may be run again from its
beginning after it failed: it finds its own work done, or undone.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import clock
from ..errors import (
    ContextLockedError,
    ContextNotFoundError,
    CtxstoreError,
    SchemaVersionError,
    StaleContextError,
    StoreError,
)
from ..messages import Message
from ..payload import codec
from ..payload.schema import Document
from ..payload.upcasts import current
from ..state import State
from ..usage import COUNTS, TokenUsage, UsageEntry
from .ledger import entry_rows, record
from .statements import database_now, statements
from .tables import TOKEN_LENGTH, contexts, in_flight, messages, usage
from .types import plain, short

__all__ = [
    "Flight",
    "Loaded",
    "Work",
    "begin",
    "close",
    "create",
    "delete",
    "derived",
    "load",
    "locked",
    "lost",
    "message_row",
    "not_found",
    "prepare",
    "projections",
    "save",
    "short",
    "stands",
]

_TOKENS = ("input_tokens", "output_tokens", "total_tokens")
_UNKNOWN = dict.fromkeys(_TOKENS)


@dataclass(frozen=True, slots=True)
class Work:
    """Everything a save writes, made before the transaction begins: what has no form in JSON is refused here."""

    id: UUID
    base: str | None
    token: str
    revision: int
    epoch: int | None
    edits: int
    head: dict[str, Any]
    retired: Sequence[tuple[int, int]]
    appended: Sequence[Message]
    messages: Sequence[dict[str, Any]]
    usage: Sequence[dict[str, Any]]
    landed: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class Flight:
    """What ``begin`` needs to know."""

    id: UUID
    base: str
    epoch: int | None
    turn_id: UUID
    revision: int
    payload: str | None
    created_at: dt.datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context as it was read: its values, and where they stand."""

    document: Document
    positions: list[int]
    next_position: int
    token: str
    owner: str | None


def projections(state: State, used: TokenUsage | None = None) -> dict[str, Any]:
    """The keys of the payload's head that are written for queries."""
    return {
        "context_used": state.context_used,
        "context_window": state.context_window,
        "token_usage": used or state.token_usage,
        "cost": state.cost_usd,
    }


def derived(state: State, used: TokenUsage | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is written for queries and can be told from the head and the live messages alone: columns of the context's
    row, and keys of its payload."""
    used, total = used or state.token_usage, state.cost_usd
    columns: dict[str, Any] = {
        "title": short(state.title),
        "provider": short(state.head.provider),
        "model": short(state.head.model),
        "mode": short(state.head.mode),
        "compacted": state.head.compacted,
        "message_count": len(state.messages),
        "context_used": state.context_used,
        "cost_pico_usd": None if total is None else state.cost_pico_usd,
        "unpriced": state.unpriced,
    }
    columns.update(zip(COUNTS, used.counts(), strict=True))
    cost = None if total is None else str(total)
    return columns, {"context_used": state.context_used, "token_usage": used.to_payload(), "cost": cost}


def prepare(
    state: State,
    *,
    landed: Sequence[UUID] = (),
    lease_seconds: float = 0.0,
    forked_from: UUID | None = None,
    forked_at: int | None = None,
) -> Work:
    """The work of saving ``state``. ``landed`` are the turns whose rows in flight go with it, ``lease_seconds`` how
    long the lease that it is held under lasts from then on.

    Raises:
        UnsupportedValueError: something in it has no form in JSON; nothing was written.
    """
    edits, changes, head = state.edits, state.changes(), state.head
    revision = head.revision + 1
    first, appended = changes.first_position, tuple(changes.appended)
    used = state.token_usage
    text = codec.dump_head(head, projections(state, used), revision=revision)
    columns: dict[str, Any] = {
        "schema_version": current(),
        "revision": revision,
        "last_save": secrets.token_hex(TOKEN_LENGTH // 2),
        "next_position": first + len(appended),
        "context_window": state.context_window,
        "updated_at": head.updated_at,
        "payload": text,
        **derived(state, used)[0],
    }
    if state.last_save is None:
        columns |= {
            "id": head.id,
            "owner": state.owner,
            "created_at": clock.time_of(head.id),
            "forked_from": forked_from,
            "forked_at": forked_at,
            "lease_epoch": 0,
        }
    else:
        columns |= {
            "b_id": head.id,
            "b_base": state.last_save,
            "b_version": current(),
            "b_epoch": state.lease_epoch,
            "b_seconds": lease_seconds,
        }
    return Work(
        id=head.id,
        base=state.last_save,
        token=columns["last_save"],
        revision=revision,
        epoch=state.lease_epoch,
        edits=edits,
        head=columns,
        retired=_ranges([*changes.retired, *(first + i for i in changes.dead)]),
        appended=appended,
        messages=[message_row(head.id, first + i, m) for i, m in enumerate(appended)],
        usage=entry_rows(changes.usage, state.owner, first, appended),
        landed=landed,
    )


def message_row(
    context_id: UUID, position: int, m: Message, payload: str | None = None, version: int | None = None
) -> dict[str, Any]:
    """The row of a message; ``payload`` is its text when that is there already, ``version`` the one of that."""
    row: dict[str, Any] = {
        "context_id": context_id,
        "position": position,
        "schema_version": version or current(),
        "id": m.id,
        "role": short(m.role),
        "created_at": m.created_at,
        "provider": None,
        "model": None,
        "payload": codec.dump_message(m, f"messages[{position}]") if payload is None else payload,
        "text": plain(m.plain_text),
    }
    if m.origin is not None:
        row["provider"], row["model"] = short(m.origin.provider), short(m.origin.model)
    row.update(_UNKNOWN if m.usage is None else {k: getattr(m.usage, k) for k in _TOKENS})
    return row


def _ranges(positions: Iterable[int]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for position in sorted(positions):
        if out and position == out[-1][1] + 1:
            out[-1] = (out[-1][0], position)
        else:
            out.append((position, position))
    return out


# -- writing


def create(c: sa.Connection, work: Work) -> None:
    """Write a context that was never saved.

    Raises:
        StaleContextError: its id is taken.
    """
    sql = statements(c)
    if not sql.born.run(c, work.head):
        if stands(c, work.id) == work.token:
            return  # an earlier try got through, only its answer was lost
        raise StaleContextError(f"there is a context {work.id} already; load it, or save this one under another id")
    _write_rows(c, work)


def save(c: sa.Connection, work: Work) -> None:
    """Write what is new.

    Raises:
        StaleContextError: another writer saved first.
        ContextLockedError: another writer holds the lease.
        ContextNotFoundError: the context was deleted.
        SchemaVersionError: the row was written by a newer program.
    """
    sql = statements(c)
    hot = sql.save if work.epoch is None else sql.save_leased
    if not hot.run(c, work.head) and diagnose(c, work.id, work.base, work.epoch, done=work.token):
        return
    _write_rows(c, work)


def _write_rows(c: sa.Connection, work: Work) -> None:
    sql = statements(c)
    sql.append.run_many(c, work.messages)
    for first, last in work.retired:
        sql.retire.run(c, {"b_id": work.id, "b_first": first, "b_last": last, "b_revision": work.revision})
    sql.enter.run_many(c, work.usage)
    sql.land.run_many(c, [{"context_id": work.id, "turn_id": turn_id} for turn_id in work.landed])


def begin(c: sa.Connection, flight: Flight) -> None:
    """Check that a turn may begin, make the lease cover it, and note its prompt as in flight.

    Raises: as ``save``.
    """
    sql = statements(c)
    known = {"b_id": flight.id, "b_base": flight.base, "b_version": current(), "b_epoch": flight.epoch}
    if flight.epoch is not None:
        sql.extend.run(c, {"b_id": flight.id, "b_epoch": flight.epoch, "b_seconds": flight.seconds})
    if flight.payload is None:
        diagnose(c, flight.id, flight.base, flight.epoch, lock=False)
        return
    row = {
        "context_id": flight.id,
        "turn_id": flight.turn_id,
        "base_revision": flight.revision,
        "created_at": flight.created_at,
        "payload": flight.payload,
    }
    note = sql.note if flight.epoch is None else sql.note_leased
    if not note.run(c, known | row):
        diagnose(c, flight.id, flight.base, flight.epoch)
        sql.land.run(c, row)  # this turn's row is there, from an earlier request or a try whose answer was lost
        if not note.run(c, known | row):
            raise StoreError(f"the prompt of turn {flight.turn_id} could not be noted as in flight")


def close(c: sa.Connection, context_id: UUID, landed: Sequence[UUID], rows: Sequence[dict[str, Any]]) -> None:
    """Write attempts that gave nothing to save, and take the turns ``landed`` out of flight."""
    statements(c).land.run_many(c, [{"context_id": context_id, "turn_id": turn_id} for turn_id in landed])
    if rows:
        record(c, rows)


_STANDING = sa.select(
    contexts.c.last_save,
    contexts.c.schema_version,
    contexts.c.revision,
    contexts.c.lease_epoch,
    contexts.c.locked_by,
    contexts.c.locked_until,
    sa.case((contexts.c.locked_until > database_now(), 1), else_=0).label("locked"),
).where(contexts.c.id == sa.bindparam("id"))


def stands(c: sa.Connection, context_id: UUID) -> str | None:
    """The token of the last save, None when there is no such context."""
    row = c.execute(_STANDING, {"id": context_id}).first()
    return None if row is None else row.last_save


def diagnose(
    c: sa.Connection,
    context_id: UUID,
    base: str | None,
    epoch: int | None,
    *,
    done: str | None = None,
    lock: bool = True,
) -> bool:
    """Why a write found no row, by reading what is there now.

    Returns whether ``done``, the writer's own token, stands there: an earlier try got through and only the answer to
    its COMMIT was lost. False when the row is as the writer knows it.

    Raises: as ``save``.
    """
    row = c.execute(_STANDING.with_for_update() if lock else _STANDING, {"id": context_id}).first()
    if row is None:
        raise not_found(context_id)
    if row.schema_version > current():
        raise _from_the_future(row.schema_version)
    if done is not None and row.last_save == done:
        return True
    if row.last_save != base:
        raise StaleContextError(
            f"another writer saved context {context_id} (now at revision {row.revision}) since it was loaded here; "
            "load it again and repeat the turn, or store.save(ctx, on_conflict='append')"
        )
    if epoch is None and row.locked or epoch is not None and row.lease_epoch != epoch:
        raise locked(context_id, row)
    if done is not None:
        raise StoreError(f"context {context_id} could not be written and nothing says why")
    return False


def locked(context_id: UUID, row: Any) -> ContextLockedError:
    """The refusal while somebody else holds the lease."""
    if row.locked_by is None:
        text = f"the lease on context {context_id} ran out and was taken by another writer since"
    else:
        text = f"context {context_id} is leased by {row.locked_by} until {row.locked_until}"
    return ContextLockedError(text, holder=row.locked_by, until=row.locked_until)


def not_found(context_id: UUID) -> ContextNotFoundError:
    """The refusal of an unknown id, and of another owner's."""
    return ContextNotFoundError(f"there is no context {context_id} here, or it belongs to another owner")


def _from_the_future(version: int) -> CtxstoreError:
    supported = range(1, current() + 1)
    return SchemaVersionError(
        f"the context was saved in schema_version {version} by a newer ctxstore; this one writes {current()} and "
        "leaves it alone",
        found=version,
        supported=supported,
    )


# -- reading

_HEAD = sa.select(
    contexts.c.schema_version,
    contexts.c.revision,
    contexts.c.last_save,
    contexts.c.next_position,
    contexts.c.owner,
    contexts.c.payload,
).where(contexts.c.id == sa.bindparam("id"))


def _live() -> Any:
    """The live messages as of one revision, whatever was saved since: the two statements of a load need no snapshot.

    Two selects rather than an OR, so that each is one range of the index; the second is empty but in a race. What was
    appended since stands at ``next_position`` and after.
    """
    columns = (messages.c.position, messages.c.schema_version, messages.c.payload)
    here = sa.select(*columns).where(messages.c.context_id == sa.bindparam("id"))
    later = here.where(messages.c.retired_at_revision > sa.bindparam("revision"))
    return sa.union_all(here.where(messages.c.retired_at_revision.is_(None)), later).order_by("position")


_LIVE = _live()


def load(c: sa.Connection, context_id: UUID, owner: str | None = None) -> Loaded:
    """The context as its last save left it.

    Raises:
        ContextNotFoundError: there is none, or it is another owner's.
        SchemaVersionError: it was saved by a newer program.
        PayloadError: what stands there is no context.
    """
    row = c.execute(_HEAD, {"id": context_id}).first()
    if row is None or (owner is not None and row.owner != owner):
        raise not_found(context_id)
    head = codec.load_head(row.payload, row.schema_version, context_id=context_id)
    head.revision = row.revision
    end, found = row.next_position, c.execute(_LIVE, {"id": context_id, "revision": row.revision}).all()
    if found and found[-1][0] >= end:  # in their order; what was appended since is not of this moment
        found = [r for r in found if r[0] < end]
    positions = [r[0] for r in found]
    values = codec.load_messages(
        [r[2] for r in found], [r[1] for r in found], positions=positions, context_id=context_id
    )
    return Loaded(Document(head, values), positions, row.next_position, row.last_save, row.owner)


# -- deleting


def delete(c: sa.Connection, context_id: UUID, owner: str | None, erase_usage: bool) -> None:
    """Delete the context from every table, from the ledger only when asked.

    Raises:
        ContextNotFoundError: there is none, or it is another owner's.
    """
    gone = sa.delete(contexts).where(contexts.c.id == context_id)
    if owner is not None:
        gone = gone.where(contexts.c.owner == owner)
    if not c.execute(gone).rowcount:
        raise not_found(context_id)
    for table in (messages, in_flight, *((usage,) if erase_usage else ())):
        c.execute(sa.delete(table).where(table.c.context_id == context_id))


def lost(entries: Iterable[UsageEntry]) -> list[UsageEntry]:
    """``entries`` as the ledger keeps them when their replies were kept out of the history by another writer."""
    return [replace(e, outcome="lost") if e.outcome == "ok" else e for e in entries]
