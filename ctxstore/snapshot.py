"""A context at one moment, as a plain value; and how large one is."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from .messages import Message

__all__ = ["ContextSize", "ContextSnapshot", "estimate_tokens"]

CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb for English text; an estimate, for what no provider has counted yet."""


class ContextSize(BaseModel):
    """How full a context is, by the characters of what a person would read.

    ``used_percent`` is 0 to 100 and capped there; it and ``remaining_tokens`` are None without a window, and the
    percentage for a window of 0 too.
    """

    model_config = ConfigDict(frozen=True)

    message_count: int
    estimated_tokens: int
    context_window: int | None = None
    remaining_tokens: int | None = None
    used_percent: float | None = None

    @classmethod
    def of(cls, messages: Iterable[Message], summary: str | None, window: int | None) -> ContextSize:
        """The size of ``messages`` and the summary in a ``window`` of so many tokens."""
        listed = list(messages)
        used = estimate_tokens(listed, summary)
        return cls(
            message_count=len(listed),
            estimated_tokens=used,
            context_window=window,
            remaining_tokens=None if window is None else max(window - used, 0),
            used_percent=min(used / window * 100, 100.0) if window else None,
        )


def estimate_tokens(messages: Iterable[Message], summary: str | None = None) -> int:
    """Tokens of ``messages`` by their characters, rounded up."""
    characters = sum(len(m.plain_text) for m in messages) + len(summary or "")
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


class ContextSnapshot(BaseModel):
    """A copy of a context at one moment, with no link to it: ``ctx.resume(snapshot)`` goes back there."""

    model_config = ConfigDict(frozen=True)

    id: UUID
    thread_id: UUID
    provider: str | None
    model: str | None
    started_at: dt.datetime
    updated_at: dt.datetime
    summary: str | None
    compacted: bool
    metadata: dict[str, Any]
    messages: tuple[Message, ...]
    estimated_tokens: int

    @property
    def message_count(self) -> int:
        """How many messages it holds."""
        return len(self.messages)
