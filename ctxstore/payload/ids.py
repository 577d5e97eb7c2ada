"""Ids for what came without one: the same every time, since they are made from where it stands or what it says."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from uuid import UUID

__all__ = ["EPOCH", "message_id_of", "message_id_texts", "stable_id"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def message_id_of(context_id: UUID, position: int) -> UUID:
    """The id of a message that came without one, the same every time: from its context's id and its position."""
    return UUID(message_id_texts(context_id, (position,))[0])


def message_id_texts(context_id: UUID, positions: Iterable[int]) -> list[str]:
    """``message_id_of`` for many, as texts."""
    time, seed = _time_text(context_id.int >> 80), context_id.bytes
    return [_uuid7(time, seed + position.to_bytes(8, "big")) for position in positions]


def stable_id(time: dt.datetime, place: str) -> UUID:
    """The id of what stands at ``place``, which names it and nothing else, since ``time``: the same every time."""
    milliseconds = max((time - EPOCH) // _MILLISECOND, 0)
    return UUID(_uuid7(_time_text(milliseconds), place.encode()))


def _time_text(milliseconds: int) -> str:
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _uuid7(time: str, seed: bytes) -> str:
    digest = hashlib.sha256(seed).hexdigest()
    return f"{time}-7{digest[:3]}-{_VARIANT[digest[4]]}{digest[5:8]}-{digest[8:20]}"


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""Two bits of each digit say the variant of the UUID, two are the digit's own."""
