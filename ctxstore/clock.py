"""Time and ids: the only place where either is made.

``now()`` is the time in UTC, ``new_id()`` a UUIDv7. ``frozen()`` holds time still in tests; ids stay unique and in
order while it does.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from .errors import InvalidIdError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["frozen", "is_uuid7", "monotonic", "new_id", "now", "parse_id", "time_of"]

AHEAD_MS = 50
"""How far an id may run ahead of the clock, and how far the clock may step back before ids follow it."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH
_lock = threading.Lock()
_last_tick = 0  # milliseconds << 12 | counter
_frozen: dt.datetime | None = None


def now() -> dt.datetime:
    """The time, aware, in UTC, to the microsecond."""
    return _frozen or dt.datetime.now(dt.UTC)


def monotonic() -> float:
    """Seconds on a clock that never steps back, for latencies."""
    return time.monotonic()


@contextmanager
def frozen(at: dt.datetime) -> Iterator[None]:
    """Hold ``now()`` and the time in new ids at ``at`` (aware). For tests: it is process-wide."""
    global _frozen
    if at.tzinfo is None:
        raise ValueError("clock.frozen needs an aware datetime")
    before, _frozen = _frozen, at.astimezone(dt.UTC)
    try:
        yield
    finally:
        _frozen = before


def new_id() -> UUID:
    """A UUIDv7 that sorts after the ones made before it in this process.

    Strictly increasing while the clock steps back by less than 50 ms and never more than 50 ms ahead of it; after a
    larger step ids follow the clock, so that one wrong clock does not spoil the ids of a day.
    """
    global _last_tick
    with _lock:
        micros = (now() - _EPOCH) // dt.timedelta(microseconds=1)
        tick = micros // 1000 << 12 | micros % 1000 * 4096 // 1000
        if tick <= _last_tick and (_last_tick - tick) >> 12 < AHEAD_MS:
            tick = _last_tick + 1  # one tick is 0.24 us, less than making an id takes: this never runs away
        _last_tick = tick
    rand = int.from_bytes(os.urandom(8), "big") & 0x3FFFFFFFFFFFFFFF
    return UUID(int=(tick >> 12) << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 2 << 62 | rand)


def parse_id(value: object) -> UUID:
    """``value`` as a UUIDv7.

    Takes a ``uuid.UUID`` and its text, hyphened or as 32 hex digits, in either case. Braces and ``urn:`` are refused.

    Raises:
        InvalidIdError: it is anything else, another version of UUID included.
    """
    found = _uuid7(value)
    if found is None:
        raise InvalidIdError(f"an id must be a UUIDv7 (such as {UUID(int=7 << 76 | 2 << 62)}), not {value!r}")
    return found


def is_uuid7(value: object) -> bool:
    """Whether ``parse_id`` would take it."""
    return _uuid7(value) is not None


def _uuid7(value: object) -> UUID | None:
    found: UUID | None = None
    if isinstance(value, UUID):
        found = value
    elif isinstance(value, str) and len(value) in (32, 36) and value[0] not in "{u":
        try:
            found = UUID(value)
        except ValueError:
            found = None
        if found is not None and value.lower() not in (str(found), found.hex):
            found = None
    return found if found is not None and found.version == 7 else None


def time_of(identity: UUID) -> dt.datetime:
    """The time that a UUIDv7 carries, in UTC, to the millisecond; at most the last that a datetime holds."""
    return _EPOCH + min(dt.timedelta(milliseconds=identity.int >> 80), _LAST)
