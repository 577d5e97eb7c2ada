"""Two databases, held to each other by the hash of each conversation and of each ledger of a deleted one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import sqlalchemy as sa

from ..errors import StoreError
from . import damaged
from .damaged import Id, Key
from .findings import Finding
from .lines import Line, ledger_lines, lines, snapshot
from .running import Flow, job
from .tables import contexts, usage
from .transfer import all_lines

__all__ = ["Digests", "compare", "digest_of", "digests"]

Digests: TypeAlias = dict[tuple[Id, bool], str]
"""The hash of each context (True) and of each ledger of a deleted one (False)."""


def digests() -> Flow[Digests]:
    """The hashes of everything; where a row cannot be read, that it cannot."""
    try:
        return (yield from _at_once())
    except (TypeError, ValueError, AttributeError, StoreError):  # whatever it is that cannot be read
        return (yield from _one_by_one())


def _at_once() -> Flow[Digests]:
    feed: Any = all_lines()
    out: Digests = {}
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


def _place(line: Line) -> tuple[Id, bool]:
    return line.id, line.text is None or not line.text.startswith('{"ctxstore_export":1,"ledger"')


def _one_by_one() -> Flow[Digests]:
    out: Digests = {}
    for read in (_context, _ledger):
        key: Key | None = None
        while True:
            key, said = yield from job(read, key)
            if key is None:
                break
            out[key.id, read is _context] = said
    return out


def _context(c: sa.Connection, after: Key | None) -> tuple[Key | None, str]:
    snapshot(c)
    where = [] if after is None else [contexts.c.id > after.value]
    return _hash(damaged.keys(c, contexts.c.id, *where, limit=1), lambda id: lines(c, [id]))


def _ledger(c: sa.Connection, after: Key | None) -> tuple[Key | None, str]:
    where = [~sa.exists().where(contexts.c.id == usage.c.context_id)]
    if after is not None:
        where.append(usage.c.context_id > after.value)
    found = damaged.keys(c, usage.c.context_id, *where, limit=1)
    return _hash(found, lambda id: ledger_lines(c, [id]))


def _hash(found: list[tuple[Key, int]], read: Callable[[Any], list[Line]]) -> tuple[Key | None, str]:
    if not found:
        return None, ""
    key = found[0][0]
    if isinstance(key.id, str):
        return key, "unreadable: its id is no UUID"
    try:
        (line,) = read(key.id)
    except Exception as error:
        if not damaged.is_damage(error):
            raise
        return key, "unreadable: a column cannot be read"
    return key, line.hash or f"unreadable: {line.reason}"


def compare(ours: Digests, theirs: Digests) -> list[Finding]:
    """What is not the same in two databases."""
    out = []
    for place in sorted(ours.keys() | theirs.keys(), key=_order):
        what = "the context" if place[1] else "the ledger of this deleted context"
        if place not in theirs:
            out.append(Finding(place[0], "missing", f"{what} is not in the other database"))
        elif place not in ours:
            out.append(Finding(place[0], "added", f"{what} is only in the other database"))
        elif ours[place] != theirs[place]:
            out.append(Finding(place[0], "different", f"{what} has another content in the other database"))
    return out


def _order(place: tuple[Id, bool]) -> tuple[str, bool]:
    return str(place[0]), place[1]


def digest_of(found: Digests) -> str:
    """One hash for all of them."""
    whole = hashlib.sha256()
    for place in sorted(found, key=_order):
        whole.update(f"{place[0]} {int(place[1])} {found[place]}\n".encode())
    return whole.hexdigest()
