"""Reading everything as a load would, and holding what is written for queries to what the runtime derives.

A finding names the context and what is wrong. ``repair`` rewrites projections (the columns and the keys of the head
that are never read back) and nothing else: what a message says is never touched.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from .. import clock, jsontext
from ..errors import CtxstoreError
from ..messages import Message
from ..payload import codec
from ..payload.schema import PROJECTIONS, Document
from ..state import State
from ..usage import COUNTS
from . import damaged
from .audit import check_attempts, check_replies
from .bulk import Progress
from .damaged import Id
from .digests import compare, digest_of, digests
from .findings import Finding, Verification
from .keeping import flight_messages
from .lines import snapshot
from .repository import message_row, projections
from .running import Flow, Runner, job
from .tables import contexts, in_flight, messages, usage
from .transfer import HEADS, ROWS
from .types import short

__all__ = ["Finding", "Verification", "arun", "run", "verify"]

_WRITTEN = ("role", "created_at", "provider", "model", "input_tokens", "output_tokens", "total_tokens", "text")
"""Columns of a message that repeat something of its payload."""

SHOWN = 5
"""Positions that a finding names."""

After: TypeAlias = sa.ColumnElement[Any]


def verify(repair: bool, progress: Progress | None) -> Flow[Verification]:
    """Read every row of the store."""
    begun, report = clock.monotonic(), Verification()
    total = yield from job(_count)
    after: After | None = None
    while True:
        found, after = yield from job(_page, after)
        if after is None:
            break
        for one in found:
            report.contexts += 1
            report.messages += one.messages
            report.attempts += one.attempts
            report.unaccounted += one.unaccounted
            repaired = False
            if repair and (one.fixes or one.rows):
                repaired = yield from job(_repair, one)
            report.findings += [
                Finding(one.id, kind, text, repaired and kind == "projection") for kind, text in one.findings
            ]
        if progress is not None:
            progress(report.contexts, max(total, report.contexts))
    report.findings += yield from job(_orphans)
    while True:
        said, after = yield from job(_ledgers, after)
        report.findings += said
        if after is None:
            break
    report.seconds = clock.monotonic() - begun
    return report


def _count(c: sa.Connection) -> int:
    return int(c.execute(sa.select(sa.func.count()).select_from(contexts)).scalar_one())


# -- one context


@dataclass(slots=True)
class _Checked:
    id: Id
    token: str = ""
    messages: int = 0
    attempts: int = 0
    unaccounted: int = 0
    findings: list[tuple[str, str]] = field(default_factory=list)
    fixes: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def say(self, kind: str, text: str) -> None:
        self.findings.append((kind, text))


def _page(c: sa.Connection, after: After | None) -> tuple[list[_Checked], After | None]:
    """The next contexts, and what comes after them; None when there were none."""
    snapshot(c)
    query = sa.select(contexts).order_by(contexts.c.id).limit(HEADS)
    if after is not None:
        query = query.where(contexts.c.id > after)
    heads: list[Any] = []
    rows = 0
    try:
        for head in c.execute(query):
            rows += head.next_position if damaged.fits(contexts, head) else 0
            if heads and rows > ROWS:
                break
            heads.append(head)
    except Exception as error:
        if not damaged.is_damage(error):
            raise
        return _single(c, after)
    if not heads:
        return [], None
    return _checked(c, heads), sa.literal(heads[-1].id, contexts.c.id.type)


def _single(c: sa.Connection, after: After | None) -> tuple[list[_Checked], After | None]:
    """``_page`` of one context, which may be the one that cannot be read."""
    where = [] if after is None else [contexts.c.id > after]
    ((key, _),) = damaged.keys(c, contexts.c.id, *where, limit=1)
    heads, wrong = damaged.read(c, contexts, contexts.c.id, [key.value])
    if heads:
        return _checked(c, heads), key.value
    one = _Checked(key.id)
    for _, text in wrong:
        one.say("unreadable", f"the head: {text}")
    return [one], key.value


def _checked(c: sa.Connection, heads: Sequence[Any]) -> list[_Checked]:
    ids = [head.id for head in heads]
    parts, wrong = [], dict[Id, list[str]]()
    for table in (messages, in_flight, usage):
        found, said = damaged.read(c, table, table.c.context_id, ids)
        parts.append({k: list(rows) for k, rows in groupby(found, attrgetter("context_id"))})
        for identity, text in said:
            wrong.setdefault(identity, []).append(text)
    forks = _forks(c, heads)
    out = []
    for head in heads:
        said_of = wrong.get(head.id, [])
        if not damaged.fits(contexts, head):
            said_of.insert(0, f"the head: {damaged.broken(contexts, head)}")
        if said_of:  # nothing can be said of the rest as long as a part is missing
            one = _Checked(head.id)
            for text in said_of:
                one.say("unreadable", text)
        else:
            of_head = [part.get(head.id, []) for part in parts]
            one = _check(head, *of_head)
            _check_fork(one, head, of_head[0], forks.get(head.id))
        out.append(one)
    return out


def _check(head: Any, rows: list[Any], flights: list[Any], attempts: list[Any]) -> _Checked:
    one = _Checked(head.id, head.last_save, len(rows), len(attempts))
    for row in flights:
        try:
            flight_messages(row.payload, head.id)
        except CtxstoreError as error:
            one.say("unreadable", f"the prompt in flight of turn {row.turn_id}: {error}")
        if row.base_revision > head.revision:
            text = f"the prompt in flight of turn {row.turn_id} is of revision {row.base_revision}, the context at"
            one.say("revision", f"{text} {head.revision}")
    ledger = partial(one.say, "ledger")
    check_attempts(attempts, ledger)
    found = _messages(one, head.id, rows)
    _check_order(one, head, rows)
    try:
        of_head = codec.load_head(head.payload, head.schema_version, context_id=head.id)
    except CtxstoreError as error:
        one.say("unreadable", f"the head: {error}")
        return one
    if of_head.revision != head.revision:
        one.say("revision", f"the column says {head.revision}, the payload {of_head.revision}")
    if len(found) != len(rows):
        return one
    live = [m for m, row in zip(found, rows, strict=True) if row.retired_at_revision is None]
    _check_pairs(one, live)
    state = State(of_head)
    state.take(Document(of_head, live))
    _check_projections(one, head, state)
    _check_rows(one, head.id, rows, found)
    placed = list(zip((row.position for row in rows), found, strict=True))
    one.unaccounted = check_replies(head.id, head, placed, attempts, ledger)
    return one


def _messages(one: _Checked, context_id: UUID, rows: list[Any]) -> list[Message]:
    """The messages as a load reads them; where one cannot be read a finding, and those that can."""
    texts, versions = [row.payload for row in rows], [row.schema_version for row in rows]
    try:
        return codec.load_messages(texts, versions, positions=[r.position for r in rows], context_id=context_id)
    except CtxstoreError:
        out = []
    for row in rows:
        try:
            out += codec.load_messages(
                [row.payload], [row.schema_version], positions=[row.position], context_id=context_id
            )
        except CtxstoreError as error:
            text = str(error)
            one.say("unreadable", text if "at position" in text else f"the message at position {row.position}: {text}")
    return out


def _check_order(one: _Checked, head: Any, rows: list[Any]) -> None:
    end, positions = head.next_position, [row.position for row in rows]
    inside = [p for p in positions if 0 <= p < end]
    if len(inside) != end:
        gaps = [(a + 1, b) for a, b in zip([-1, *inside], [*inside, end], strict=True) if b > a + 1]
        first = [p for a, b in gaps for p in range(a, min(b, a + SHOWN))]
        one.say("position", f"there is no message at {_some(first, max(end, 0) - len(inside))} of {end}")
    if len(inside) != len(positions):
        outside = [p for p in positions if not 0 <= p < end]
        one.say("position", f"there are messages at {_some(outside, len(outside))}, from next_position {end} on")
    for row in rows:
        retired = row.retired_at_revision
        if retired is not None and not 1 <= retired <= head.revision:
            text = f"the message at position {row.position} left at {retired}, the context is at {head.revision}"
            one.say("revision", text)


def _some(numbers: list[int], count: int) -> str:
    text = ", ".join(map(str, numbers[:SHOWN]))
    return text if count <= SHOWN else f"{text} and {count - SHOWN} more"


def _check_pairs(one: _Checked, live: Sequence[Message]) -> None:
    asked: set[str] = set()
    ids: set[UUID] = set()
    for message in live:
        if message.id in ids:
            one.say("pair", f"the message {message.id} is live twice")
        ids.add(message.id)
        for result in message.tool_results:
            if result.id not in asked:
                one.say("pair", f"the result of call {result.id!r:.60} stands before its call, or without one")
        asked.update(call.id for call in message.tool_calls)


def _check_projections(one: _Checked, head: Any, state: State) -> None:
    h = state.head
    want: dict[str, Any] = {
        "title": short(state.title),
        "provider": short(h.provider),
        "model": short(h.model),
        "mode": short(h.mode),
        "compacted": h.compacted,
        "message_count": len(state.messages),
        "context_used": state.context_used,
        **dict(zip(COUNTS, state.token_usage.counts(), strict=True)),
    }
    priced = all(m.usage is None or m.cost_pico_usd is not None for m in state.messages if m.role == "assistant")
    if priced:  # else a reply without a cost of its own was priced by whoever saved it, or not
        total = state.cost_usd
        want |= {"cost_pico_usd": None if total is None else state.cost_pico_usd, "unpriced": state.unpriced}
    raw = jsontext.loads(head.payload)
    want["created_at"] = clock.time_of(head.id)
    if isinstance(raw.get("updated_at"), str):
        want["updated_at"] = h.updated_at.astimezone(dt.UTC)
    window = raw.get("context_window")
    if "context_window" in raw and (window is None or type(window) is int):
        want["context_window"] = window
    wrong = {name: value for name, value in want.items() if getattr(head, name) != value}
    for name, value in wrong.items():
        one.say("projection", f"{name} is {getattr(head, name)!r:.60}, the messages say {value!r:.60}")
    one.fixes |= wrong
    here = codec.dump_raw(state.head, [], projections(state))
    told = [k for k in PROJECTIONS if k in ("context_used", "token_usage") or (k == "cost" and priced)]
    told = [k for k in told if k in raw and not _equal(raw[k], here[k])]
    if told:
        for key in told:
            one.say("projection", f"{key} in the payload is {raw[key]!r:.60}, the messages say {here[key]!r:.60}")
        one.fixes["payload"] = jsontext.dumps({**raw, **{k: here[k] for k in told}})


def _forks(c: sa.Connection, heads: Sequence[Any]) -> dict[UUID, Any]:
    """Of the forks among ``heads``: how far what they came from goes, and its message at the cut."""
    ids = [head.id for head in heads if head.forked_from is not None]
    if not ids:
        return {}
    source = contexts.alias()
    joined = contexts.join(source, source.c.id == contexts.c.forked_from).outerjoin(
        messages,
        sa.and_(messages.c.context_id == source.c.id, messages.c.position == contexts.c.forked_at),
    )
    query = sa.select(contexts.c.id, source.c.next_position, messages.c.id.label("message")).select_from(joined)
    return {row.id: row for row in c.execute(query.where(contexts.c.id.in_(ids)))}


def _check_fork(one: _Checked, head: Any, rows: list[Any], source: Any) -> None:
    at = head.forked_at
    if at is None:
        return
    if head.forked_from is None or at < 0:
        one.say("position", f"forked_at is {at}, forked_from {head.forked_from}")
    elif source is not None and at >= source.next_position:
        text = f"it was forked after position {at} of {head.forked_from}, which has {source.next_position}"
        one.say("position", text)
    elif source is not None and source.message is not None and all(row.id != source.message for row in rows):
        one.say("position", f"the message {source.message}, after which it was forked, is not here")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        try:
            return Decimal(a) == Decimal(b)
        except ArithmeticError:
            return a == b
    return bool(a == b)


def _check_rows(one: _Checked, context_id: UUID, rows: list[Any], found: list[Message]) -> None:
    for row, message in zip(rows, found, strict=True):
        if row.id != message.id:
            one.say("position", f"the row at {row.position} has the id {row.id}, its message {message.id}")
        want = message_row(context_id, row.position, message, row.payload)
        wrong = {n: want[n] for n in _WRITTEN if not _as_stored(getattr(row, n), want[n])}
        for name, value in wrong.items():
            text = f"{name} at position {row.position} is {getattr(row, name)!r:.60}, the message says {value!r:.60}"
            one.say("projection", text)
        if wrong:
            one.rows.append((row.position, wrong))


def _as_stored(stored: Any, value: Any) -> bool:
    if isinstance(value, dt.datetime):
        return isinstance(stored, dt.datetime) and stored == value.astimezone(dt.UTC)
    return bool(stored == value)


# -- repairing and orphans


def _repair(c: sa.Connection, one: _Checked) -> bool:
    """Write the projections, where the context still stands as it was read."""
    here = (contexts.c.id == one.id, contexts.c.last_save == one.token)
    values = one.fixes or {"last_save": one.token}
    if not c.execute(sa.update(contexts).where(*here).values(values)).rowcount:
        return False
    for position, wrong in one.rows:
        place = (messages.c.context_id == one.id, messages.c.position == position)
        c.execute(sa.update(messages).where(*place).values(wrong))
    return True


def _orphans(c: sa.Connection) -> list[Finding]:
    out = []
    for table in (messages, in_flight):
        alone = ~sa.exists().where(contexts.c.id == table.c.context_id)
        for key, count in damaged.keys(c, table.c.context_id, alone):
            out.append(Finding(key.id, "orphan", f"{count} rows in {table.name} belong to no context"))
    return out


def _ledgers(c: sa.Connection, after: After | None) -> tuple[list[Finding], After | None]:
    """What is wrong with the next attempts of contexts that are not here, and what comes after them."""
    alone = ~sa.exists().where(contexts.c.id == usage.c.context_id)
    where = [alone] if after is None else [alone, usage.c.context_id > after]
    found = damaged.keys(c, usage.c.context_id, *where, limit=HEADS)
    out = [
        Finding(key.id, "unreadable", f"{count} rows in {usage.name} have no UUID as their context's id")
        for key, count in found
        if isinstance(key.id, str)
    ]
    ids = [key.id for key, _ in found if isinstance(key.id, UUID)]
    attempts, wrong = damaged.read(c, usage, usage.c.context_id, ids)
    out += [Finding(identity, "unreadable", text) for identity, text in wrong]
    for context_id, rows in groupby(attempts, attrgetter("context_id")):
        said: list[str] = []
        check_attempts(rows, said.append)
        out += [Finding(context_id, "ledger", text) for text in said]
    return out, found[-1][0].value if found else None


# -- with another database


def run(runner: Runner, repair: bool, against: Runner | None, progress: Progress | None) -> Verification:
    """``verify``, and the comparison when there is another database."""
    report = runner.drive(verify(repair, progress))
    return _against(report, runner.drive(digests()), against, None if against is None else against.drive(digests()))


async def arun(runner: Runner, repair: bool, against: Runner | None, progress: Progress | None) -> Verification:
    """``run`` for asyncio."""
    report = await runner.adrive(verify(repair, progress))
    theirs = None if against is None else await against.adrive(digests())
    return _against(report, await runner.adrive(digests()), against, theirs)


def _against(report: Verification, ours: Any, against: Runner | None, theirs: Any) -> Verification:
    report.digest = digest_of(ours)
    if against is not None:
        report.against = digest_of(theirs)
        report.findings += compare(ours, theirs)
    return report
