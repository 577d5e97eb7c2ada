"""Export and import: whole databases in a stream, a conversation a line; memory does not grow with their number.

An import adds what is not there. What is there already, equal to the hash, is passed over; the same id with another
hash is a clash, which is reported and not merged. So the same file may be imported again, as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, BinaryIO
from uuid import UUID

import sqlalchemy as sa

from .. import clock, jsontext
from ..errors import ContextNotFoundError, CtxstoreError, PayloadError, StoreError, TransferError
from ..payload import codec
from . import editing, repository
from .bulk import Progress, Refusal
from .lines import Line, Parcel, deleted, end_line, ledger_lines, ledgers, lines, parcel, snapshot
from .repository import not_found
from .running import Flow, job
from .tables import contexts, in_flight, messages, usage
from .types import check_owner

__all__ = [
    "MAX_LINE",
    "Export",
    "Import",
    "all_lines",
    "export",
    "import_",
    "import_one",
]

MAX_LINE = 256_000_000
"""Bytes of the longest line that is read, unless the caller says otherwise."""

HEADS, ROWS = 100, 5_000
"""Contexts and messages that are read in one transaction, at most, but always one context whole."""
PARCELS, BYTES = 100, 8_000_000
"""Lines and bytes that are written in one transaction, at most."""


@dataclass(slots=True)
class Export:
    """What was written. ``refused`` are contexts that are not in the file because their rows hold no JSON."""

    contexts: int = 0
    messages: int = 0
    attempts: int = 0
    ledgers: int = 0
    refused: list[Refusal] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "contexts": self.contexts,
            "messages": self.messages,
            "attempts": self.attempts,
            "ledgers_of_deleted_contexts": self.ledgers,
            "refused": [{"table": r.table, "key": r.key, "reason": r.reason} for r in self.refused],
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Import:
    """What came of it: ``imported`` conversations are new here, those in ``there`` were here and equal; ``clashes`` are
    here with another content and were left alone, conversations or attempts of theirs in the ledger. ``refused`` could
    not be read where they came from, and ``notes`` say what had no place. ``attempts`` are new rows of the ledger."""

    imported: int = 0
    there: int = 0
    attempts: int = 0
    clashes: list[Refusal] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """The conversations that were read."""
        return self.imported + self.there + sum(r.table == contexts.name for r in self.clashes)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "imported": self.imported,
            "there": self.there,
            "attempts": self.attempts,
            "clashes": [{"key": r.key, "reason": r.reason} for r in self.clashes],
            "refused": [{"key": r.key, "reason": r.reason} for r in self.refused],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


# -- out


def export(
    write: Callable[[bytes], object], owner: str | None, ids: Sequence[UUID] | None, progress: Progress | None
) -> Flow[Export]:
    """Write the lines of an export.

    Raises:
        ContextNotFoundError: one of ``ids`` is not there.
    """
    check_owner(owner)
    begun, report = clock.monotonic(), Export()
    total = len(ids) if ids is not None else (yield from job(_count, owner))
    feed = all_lines(owner, ids)
    answer: Any = None
    done = 0
    while True:
        try:
            step = feed.send(answer)
        except StopIteration:
            break
        if not isinstance(step, list):
            answer = yield step
            continue
        answer = None
        for line in step:
            _written(write, line, report)
        done = report.contexts + len(report.refused)
        if progress is not None:
            progress(done, max(total, done))
    write(end_line(report.contexts, report.ledgers).encode() + b"\n")
    report.seconds = clock.monotonic() - begun
    return report


def _written(write: Callable[[bytes], object], line: Line, report: Export) -> None:
    if line.text is None:
        report.refused.append(Refusal(contexts.name, line.id, line.reason or ""))
        return
    write(line.text.encode() + b"\n")
    ledger_only = line.text.startswith('{"ctxstore_export":1,"ledger"')
    report.contexts += not ledger_only
    report.ledgers += ledger_only
    report.messages += line.messages
    report.attempts += line.attempts


def _count(c: sa.Connection, owner: str | None) -> int:
    query = sa.select(sa.func.count()).select_from(contexts)
    return int(c.execute(query if owner is None else query.where(contexts.c.owner == owner)).scalar_one())


def all_lines(owner: str | None = None, ids: Sequence[UUID] | None = None) -> Generator[Any, Any, None]:
    """A flow that also yields lists of ``Line``, in the order of their ids: contexts, and the ledgers of deleted ones
    among them. Each id is looked at in one transaction, so one that is deleted meanwhile is not there twice."""
    if ids is not None:
        for first in range(0, len(ids), HEADS):
            wanted = ids[first : first + HEADS]
            found: list[Line] = yield from job(_chosen, wanted, owner)
            yield found
        return
    after: UUID | None = None
    while found := (yield from job(_page, after, owner)):
        yield found
        after = found[-1].id


def _page(c: sa.Connection, after: UUID | None, owner: str | None) -> list[Line]:
    snapshot(c)
    query = sa.select(contexts.c.id, contexts.c.next_position).order_by(contexts.c.id).limit(HEADS)
    if after is not None:
        query = query.where(contexts.c.id > after)
    if owner is not None:
        query = query.where(contexts.c.owner == owner)
    ids: list[UUID] = []
    rows = 0
    for identity, count in c.execute(query):
        rows += count
        if ids and rows > ROWS:
            break
        ids.append(identity)
    gone = deleted(c, after, ids[-1] if ids else None, HEADS, owner)
    if len(gone) == HEADS:  # there may be more of them before the last context
        ids = [identity for identity in ids if identity < gone[-1]]
    return sorted(lines(c, ids) + ledger_lines(c, gone), key=attrgetter("id"))


def _chosen(c: sa.Connection, ids: Sequence[UUID], owner: str | None) -> list[Line]:
    snapshot(c)
    query = sa.select(contexts.c.id).where(contexts.c.id.in_(ids))
    there = set(c.scalars(query if owner is None else query.where(contexts.c.owner == owner)))
    for identity in ids:
        if identity not in there:
            raise not_found(identity)
    return lines(c, ids)


# -- in


def import_(
    file: BinaryIO, owner: str | None, atomic: bool, max_line: int, progress: Callable[[int], object] | None
) -> Flow[Import]:
    """Add what stands in ``file``. With ``atomic`` in one transaction: all of it or nothing.

    Raises:
        TransferError: a line cannot be read. Without ``atomic`` those before it are in the store.
    """
    check_owner(owner)
    begun = clock.monotonic()
    if atomic:
        start = file.tell()
        report: Import = yield from job(_all, file, start, owner, max_line, progress)
    else:
        report = Import()
        batches = _batches(file, owner, max_line)
        while True:
            broken: TransferError | None = None
            batch: list[_Item] = []
            try:
                for item in batches:
                    if item is None:
                        break
                    batch.append(item)
                else:
                    batches = iter(())
            except TransferError as error:
                broken = error
            if batch:
                added: Import = yield from job(_write, batch)
                _add(report, added)
                if progress is not None:
                    progress(report.done)
            if broken is not None:
                raise _told(broken, report) from broken
            if not batch:
                break
    report.seconds = clock.monotonic() - begun
    return report


def _told(error: TransferError, report: Import) -> TransferError:
    done = report.done
    if not done:
        rest = "nothing was imported"
    else:
        rest = (
            f"the {done} conversations before it are done ({report.imported} imported): import the repaired file "
            "again, what is there is passed over"
        )
    return TransferError(f"{error}; {rest}", line=error.line, imported=report.imported)


def _add(report: Import, more: Import) -> None:
    report.imported += more.imported
    report.there += more.there
    report.attempts += more.attempts
    report.clashes += more.clashes


def _all(
    c: sa.Connection,
    file: BinaryIO,
    start: int,
    owner: str | None,
    max_line: int,
    progress: Callable[[int], object] | None,
) -> Import:
    file.seek(start)
    report = Import()
    batch: list[_Item] = []
    try:
        for item in _batches(file, owner, max_line):
            if item is not None:
                batch.append(item)
                continue
            _add(report, _write(c, batch))
            batch = []
            if progress is not None:
                progress(report.done)
        _add(report, _write(c, batch))
    except TransferError as error:
        raise TransferError(f"{error}; nothing was imported", line=error.line) from error
    return report


@dataclass(frozen=True, slots=True)
class _Item:
    """One line, ready to be written: an export's, or a payload of any version."""

    line: int
    parcel: Parcel | None
    work: repository.Work | None
    owner: str | None


def _batches(file: BinaryIO, owner: str | None, max_line: int) -> Iterator[_Item | None]:
    """The lines of ``file``; None where a batch ends."""
    count, size, number = 0, 0, 0
    found: list[int] | None = None  # contexts and ledgers in an export whose last line is still to come
    for number, line in _lines(file, max_line):
        try:
            item = _item(number, line, owner)
        except CtxstoreError as error:
            cut = "" if line.endswith(b"\n") else ", which has no end: the file was cut here"
            raise TransferError(f"line {number}{cut}: {error}", line=number) from error
        if isinstance(item, tuple):
            for said, seen, what in zip(item, found or (0, 0), ("conversations", "ledgers"), strict=True):
                if said != seen:
                    raise TransferError(
                        f"line {number} says that the export had {said} {what}, there are {seen}: lines are missing",
                        line=number,
                    )
            found = None
            continue
        if item.parcel is not None:
            found = found or [0, 0]
            found[item.parcel.head is None] += 1
        yield item
        count, size = count + 1, size + len(line)
        if count >= PARCELS or size >= BYTES:
            yield None
            count = size = 0
    if found is not None:
        raise TransferError(
            f"the file ends with line {number}, and the line that ends an export is not there: it was cut", line=number
        )
    if not number:
        raise TransferError("the file is empty", line=0)


def _lines(file: BinaryIO, max_line: int) -> Iterator[tuple[int, bytes]]:
    number = 0
    while True:
        line = file.readline(65_536)
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
            if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise TransferError("line 1 is UTF-16; an export is UTF-8", line=1)
        if not line.strip() and line.endswith(b"\n"):
            continue
        if not line.lstrip().startswith(b"{"):
            raise TransferError(
                f"line {number} is no line of an export and no saved context: it does not begin with '{{'", line=number
            )
        if not line.endswith(b"\n"):
            line += file.readline(max(max_line - len(line), 0) + 1)
        if len(line) > max_line:
            raise TransferError(f"line {number} is longer than {max_line:,} bytes; see max_line", line=number)
        yield number, line


def _item(number: int, line: bytes, owner: str | None) -> _Item | tuple[int, int]:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"it is no UTF-8 at byte {error.start}; an export is UTF-8") from error
    content: Any = jsontext.loads(line)
    if isinstance(content, dict) and "ctxstore_export" in content:
        found = parcel(content, line)
        return found if isinstance(found, tuple) else _Item(number, found, None, None)
    if isinstance(content, dict) and "schema_version" in content:
        return _Item(number, None, repository.prepare(editing.imported(line, owner)), owner)
    raise PayloadError("it is no line of an export (ctxstore_export) and no saved context (schema_version)")


def import_one(c: sa.Connection, work: repository.Work, owner: str | None, key: Any, report: Import) -> None:
    """Write one context that came as a document, unless it is there."""
    batch = [_Item(0, None, work, owner)]
    added = _write(c, batch)
    report.imported, report.there, report.attempts = added.imported, added.there, added.attempts
    report.clashes = [Refusal(r.table, key, r.reason) for r in added.clashes]


def _write(c: sa.Connection, batch: Sequence[_Item]) -> Import:
    """Write what is not there."""
    report = Import()
    parcels = [item.parcel for item in batch if item.parcel is not None]
    here = {line.id: line.hash for line in lines(c, [p.id for p in parcels if p.head is not None])}
    new: list[tuple[int, Parcel]] = []
    for item in batch:
        p = item.parcel
        if p is None:
            _payload(c, item, report)
        elif p.head is None:
            new.append((item.line, p))
        elif p.id not in here:
            here[p.id] = p.hash
            report.imported += 1
            new.append((item.line, p))
        elif here[p.id] == p.hash:
            report.there += 1
        else:
            reason = f"line {item.line}: the store has a context with this id and another content"
            report.clashes.append(Refusal(contexts.name, p.id, reason))
    _insert(c, contexts, [p.head for _, p in new if p.head is not None])
    _insert(c, messages, [row for _, p in new for row in p.messages])
    _insert(c, in_flight, [row for _, p in new for row in p.in_flight])
    _insert(c, usage, _attempts(c, new, report))
    return report


def _attempts(c: sa.Connection, new: Sequence[tuple[int, Parcel]], report: Import) -> list[dict[str, Any]]:
    """The attempts that are not in the ledger yet; what is there with another content is reported and stays."""
    there = ledgers(c, [p.id for _, p in new])
    out = []
    for line, p in new:
        known, other = there.setdefault(p.id, {}), 0
        for row in p.usage:
            if row["id"] not in known:
                known[row["id"]] = row
                out.append(row)
            other += known[row["id"]] != row
        if other:
            reason = f"line {line}: the ledger has {other} attempts of this context with another content"
            report.clashes.append(Refusal(usage.name, p.id, reason))
    report.attempts += len(out)
    return out


def _insert(c: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        c.execute(sa.insert(table), rows)


def _payload(c: sa.Connection, item: _Item, report: Import) -> None:
    work = item.work
    assert work is not None
    try:
        there = repository.load(c, work.id)
    except ContextNotFoundError:
        repository.create(c, work)
        report.imported += 1
        report.attempts += len(work.usage)
        return
    except CtxstoreError as error:
        if isinstance(error, StoreError):
            raise
        reason = f"line {item.line}: the store has a context with this id that cannot be read: {error}"
        report.clashes.append(Refusal(contexts.name, work.id, reason))
        return
    same = [codec.dump_message(m) for m in there.document.messages] == [row["payload"] for row in work.messages]
    if same and there.owner == item.owner:
        report.there += 1
    else:
        what = "content" if not same else "owner"
        reason = f"line {item.line}: the store has a context with this id and another {what}"
        report.clashes.append(Refusal(contexts.name, work.id, reason))
