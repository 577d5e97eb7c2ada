"""The current version of the payload: what is written, and what everything older is moved up to.

=======  ==============================================================================================
version  what it is
=======  ==============================================================================================
1        llm.rb up to 15: tool calls in the provider's wire form beside the abstract one
2        llm.rb 16: abstract tool calls only, ``token_usage`` in the head
3        ctxstore: typed parts, ids and times on messages, what was carried over a trim, unknown keys kept
=======  ==============================================================================================
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ..messages import Message
from ..usage import TokenUsage

__all__ = ["MESSAGE_DEPTH", "PROJECTIONS", "VERSION", "Document", "Head"]

VERSION = 3
"""The version that is written, and the newest that is read."""

MESSAGE_DEPTH = -2
"""The depth at which a message begins, so that 128 levels are left to a tool result in it, as in the tool."""

PROJECTIONS = ("context_used", "context_window", "token_usage", "cost")
"""Keys of the head that are written for queries and never read back."""


@dataclass(slots=True)
class Head:
    """Everything of a saved context but its messages.

    ``carried_usage`` (with its cost in pico-dollars and the count of unpriced replies) is what was used by replies
    that are no longer in the messages. ``extras`` are keys that this version does not know, written back as they came.
    """

    id: UUID
    thread_id: UUID
    started_at: dt.datetime
    updated_at: dt.datetime
    provider: str | None = None
    mode: str | None = None
    model: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    summary: str | None = None
    compacted: bool = False
    revision: int = 0
    carried_usage: TokenUsage = field(default_factory=TokenUsage.zero)
    carried_cost: int = 0
    carried_unpriced: int = 0
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """A whole saved context: its head and its live messages, in order."""

    head: Head
    messages: list[Message]
