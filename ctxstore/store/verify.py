"""Reading everything as a load would, and holding what is written for queries to what the runtime derives.

A finding names the context and what is wrong. ``repair`` rewrites projections (the columns and the keys of the head
that are never read back) and nothing else: what a message says is never touched.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import clock, jsontext
from ..errors import CtxstoreError
from ..messages import Message
from ..payload import codec
from ..payload.schema import PROJECTIONS, Document
from ..state import State
from ..usage import COUNTS
from .bulk import Progress
from .keeping import flight_messages
from .lines import Line, snapshot
from .repository import message_row, projections
from .running import Flow, Runner, job
from .tables import contexts, in_flight, messages, usage
from .transfer import HEADS, ROWS, all_lines
from .types import short

__all__ = ["Finding", "Verification", "compare", "verify"]

_WRITTEN = ("role", "created_at", "provider", "model", "input_tokens", "output_tokens", "total_tokens", "text")
"""Columns of a message that repeat something of its payload."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be. ``kind``: unreadable, position, pair, revision, projection, ledger, orphan,
    or, between two databases, missing, added, different. ``repaired`` when it is put right."""

    id: UUID
    kind: str
    text: str
    repaired: bool = False


@dataclass(slots=True)
class Verification:
    """What was read and what was found. ``digest`` is the SHA-256 over the hashes of all conversations and ledgers:
    equal digests, equal databases; None when it was not asked for."""

    contexts: int = 0
    messages: int = 0
    attempts: int = 0
    findings: list[Finding] = field(default_factory=list)
    digest: str | None = None
    against: str | None = None
    seconds: float = 0.0

    @property
    def open(self) -> list[Finding]:
        """What was found and is not repaired."""
        return [f for f in self.findings if not f.repaired]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        found = [{"id": f.id, "kind": f.kind, "text": f.text, "repaired": f.repaired} for f in self.findings]
        return {
            "contexts": self.contexts,
            "messages": self.messages,
            "attempts": self.attempts,
            "findings": found,
            "digest": self.digest,
            "against": self.against,
            "seconds": round(self.seconds, 3),
        }


def verify(repair: bool, progress: Progress | None) -> Flow[Verification]:
    """Read every row of the store."""
    begun, report = clock.monotonic(), Verification()
    total = yield from job(_count)
    after: UUID | None = None
    while True:
        found, last = yield from job(_page, after)
        if last is None:
            break
        after = last
        for one in found:
            report.contexts += 1
            report.messages += one.messages
            report.attempts += one.attempts
            repaired = False
            if repair and (one.fixes or one.rows):
                repaired = yield from job(_repair, one)
            report.findings += [
                Finding(one.id, kind, text, repaired and kind == "projection") for kind, text in one.findings
            ]
        if progress is not None:
            progress(report.contexts, max(total, report.contexts))
    report.findings += yield from job(_orphans)
    report.seconds = clock.monotonic() - begun
    return report


def _count(c: sa.Connection) -> int:
    return int(c.execute(sa.select(sa.func.count()).select_from(contexts)).scalar_one())


# -- one context


@dataclass(slots=True)
class _Checked:
    id: UUID
    token: str
    messages: int
    attempts: int
    findings: list[tuple[str, str]] = field(default_factory=list)
    fixes: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def say(self, kind: str, text: str) -> None:
        self.findings.append((kind, text))


def _page(c: sa.Connection, after: UUID | None) -> tuple[list[_Checked], UUID | None]:
    snapshot(c)
    query = sa.select(contexts).order_by(contexts.c.id).limit(HEADS)
    if after is not None:
        query = query.where(contexts.c.id > after)
    heads: list[Any] = []
    rows = 0
    for head in c.execute(query):
        rows += head.next_position
        if heads and rows > ROWS:
            break
        heads.append(head)
    if not heads:
        return [], None
    ids = [head.id for head in heads]
    parts = [_of(c, table, ids) for table in (messages, in_flight, usage)]
    return [_check(head, *(part.get(head.id, []) for part in parts)) for head in heads], ids[-1]


def _of(c: sa.Connection, table: sa.Table, ids: Sequence[UUID]) -> dict[UUID, list[Any]]:
    key = table.c.context_id
    found = c.execute(sa.select(table).where(key.in_(ids)).order_by(key, list(table.primary_key.columns)[1])).all()
    return {context_id: list(rows) for context_id, rows in groupby(found, attrgetter("context_id"))}


def _check(head: Any, rows: list[Any], flights: list[Any], attempts: list[Any]) -> _Checked:
    one = _Checked(head.id, head.last_save, len(rows), len(attempts))
    for row in flights:
        try:
            flight_messages(row.payload, head.id)
        except CtxstoreError as error:
            one.say("unreadable", f"the prompt in flight of turn {row.turn_id}: {error}")
    found = _messages(one, rows)
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
    _check_ledger(one, attempts, dict(zip((row.position for row in rows), found, strict=True)))
    return one


def _messages(one: _Checked, rows: list[Any]) -> list[Message]:
    """The messages as a load reads them; where one cannot be read a finding, and those that can."""
    texts, versions = [row.payload for row in rows], [row.schema_version for row in rows]
    try:
        return codec.load_messages(texts, versions, positions=[r.position for r in rows], context_id=one.id)
    except CtxstoreError:
        out = []
    for row in rows:
        try:
            out += codec.load_messages([row.payload], [row.schema_version], positions=[row.position], context_id=one.id)
        except CtxstoreError as error:
            text = str(error)
            one.say("unreadable", text if "at position" in text else f"the message at position {row.position}: {text}")
    return out


def _check_order(one: _Checked, head: Any, rows: list[Any]) -> None:
    positions = [row.position for row in rows]
    if positions != list(range(head.next_position)):
        missing = sorted(set(range(head.next_position)) - set(positions))
        beyond = [p for p in positions if p >= head.next_position]
        if missing:
            one.say("position", f"there is no message at {_some(missing)} of {head.next_position}")
        if beyond:
            one.say("position", f"there are messages at {_some(beyond)}, from next_position {head.next_position} on")
    for row in rows:
        retired = row.retired_at_revision
        if retired is not None and not 1 <= retired <= head.revision:
            text = f"the message at position {row.position} left at {retired}, the context is at {head.revision}"
            one.say("revision", text)


def _some(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:5]))
    return text if len(numbers) <= 5 else f"{text} and {len(numbers) - 5} more"


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
    wrong = {name: value for name, value in want.items() if getattr(head, name) != value}
    for name, value in wrong.items():
        one.say("projection", f"{name} is {getattr(head, name)!r:.60}, the messages say {value!r:.60}")
    one.fixes |= wrong
    raw = jsontext.loads(head.payload)
    here = codec.dump_raw(state.head, [], projections(state))
    told = [k for k in PROJECTIONS if k in ("context_used", "token_usage") or (k == "cost" and priced)]
    told = [k for k in told if k in raw and not _equal(raw[k], here[k])]
    if told:
        for key in told:
            one.say("projection", f"{key} in the payload is {raw[key]!r:.60}, the messages say {here[key]!r:.60}")
        one.fixes["payload"] = jsontext.dumps({**raw, **{k: here[k] for k in told}})


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


def _check_ledger(one: _Checked, attempts: list[Any], by_position: dict[int, Message]) -> None:
    seen: dict[int, Any] = {}
    for row in attempts:
        if row.position is None:
            continue
        message = by_position.get(row.position)
        if message is None or message.role != "assistant":
            one.say("ledger", f"the attempt {row.id} names position {row.position}, where no reply stands")
            continue
        if row.position in seen:
            text = f"the reply at position {row.position} is in the ledger twice: {seen[row.position]}, {row.id}"
            one.say("ledger", text)
        seen[row.position] = row.id
        used = message.usage
        if used is None or row.total_tokens is None:
            continue
        differ = [n for n, v in zip(COUNTS, used.counts(), strict=True) if v is not None and getattr(row, n) != v]
        for name in differ:
            text = f"{name} of the attempt {row.id} is {getattr(row, name)}, its reply says {getattr(used, name)}"
            one.say("ledger", text)


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
        query = sa.select(table.c.context_id, sa.func.count()).where(alone).group_by(table.c.context_id)
        for context_id, count in c.execute(query.order_by(table.c.context_id)):
            out.append(Finding(context_id, "orphan", f"{count} rows in {table.name} belong to no context"))
    return out


# -- two databases


def digests() -> Flow[dict[tuple[UUID, bool], str]]:
    """The hash of each context (True) and of each ledger of a deleted one (False)."""
    feed: Any = all_lines()
    out: dict[tuple[UUID, bool], str] = {}
    answer: Any = None
    while True:
        try:
            step = feed.send(answer)
        except StopIteration:
            return out
        answer = None
        if not isinstance(step, list):
            answer = yield step
            continue
        for line in step:
            out[_place(line)] = line.hash or f"unreadable: {line.reason}"


def _place(line: Line) -> tuple[UUID, bool]:
    return line.id, line.text is None or not line.text.startswith('{"ctxstore_export":1,"ledger"')


def compare(ours: dict[tuple[UUID, bool], str], theirs: dict[tuple[UUID, bool], str]) -> list[Finding]:
    """What is not the same in two databases."""
    out = []
    for place in sorted(ours.keys() | theirs.keys()):
        what = "the context" if place[1] else "the ledger of this deleted context"
        if place not in theirs:
            out.append(Finding(place[0], "missing", f"{what} is not in the other database"))
        elif place not in ours:
            out.append(Finding(place[0], "added", f"{what} is only in the other database"))
        elif ours[place] != theirs[place]:
            out.append(Finding(place[0], "different", f"{what} has another content in the other database"))
    return out


def digest_of(found: dict[tuple[UUID, bool], str]) -> str:
    """One hash for all of them."""
    whole = hashlib.sha256()
    for (identity, context), value in sorted(found.items()):
        whole.update(f"{identity} {int(context)} {value}\n".encode())
    return whole.hexdigest()


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
