"""Ids for what came without one: the same every time, since they are made from where it stands or what it says."""

from __future__ import annotations

import datetime as dt
import hashlib
from uuid import UUID

__all__ = ["EPOCH", "message_id_of", "stable_id"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def message_id_of(context_id: UUID, position: int) -> UUID:
    """The id of a message that came without one, the same every time: from its context's id and its position."""
    return _uuid7(context_id.int >> 80, context_id.bytes + position.to_bytes(8, "big"))


def stable_id(time: dt.datetime, place: str) -> UUID:
    """The id of what stands at ``place``, which names it and nothing else, since ``time``: the same every time."""
    return _uuid7(max(time - EPOCH, dt.timedelta()) // dt.timedelta(milliseconds=1), place.encode())


def _uuid7(milliseconds: int, seed: bytes) -> UUID:
    digest = int.from_bytes(hashlib.sha256(seed).digest()[:10], "big")
    random = (digest >> 68 << 64) | (digest & (1 << 62) - 1)
    return UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | random)
