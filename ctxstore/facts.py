"""What a context is and holds, read-only: ids and times, messages, and the four measures of its size.

``token_usage`` is what all replies used, ``context_used`` how large the conversation is now, ``context_usage`` that as
a fraction of the window, and ``size()`` an estimate by characters for what no provider has counted yet.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, overload
from uuid import UUID

from . import clock, jsontext
from .messages import Message, ToolCall, ToolResult
from .providers.base import Catalog, Provider
from .snapshot import ContextSize
from .state import State
from .usage import Cost, TokenUsage, Turn

__all__ = ["Facts", "MessageList"]


class MessageList(Sequence[Message]):
    """The live messages, in order. Read-only: ``append``, ``rewind`` and ``clear`` of the context change them."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(tuple(self._messages))

    def __repr__(self) -> str:
        return f"<{len(self)} messages>"

    def find_last(self, predicate: Callable[[Message], bool]) -> Message | None:
        """The newest message for which ``predicate`` is true."""
        return next((m for m in reversed(self._messages) if predicate(m)), None)


class Facts:
    """The reading half of ``Context``."""

    state: State
    _provider: Provider

    def __repr__(self) -> str:
        return f"<Context {self.id} {self._provider.name}:{self.model} {len(self.state.messages)} messages>"

    def __len__(self) -> int:
        return len(self.state.messages)

    @property
    def id(self) -> UUID:
        """The context's UUIDv7."""
        return self.state.head.id

    @property
    def thread_id(self) -> UUID:
        """The id of the current thread: ``clear`` begins a new one."""
        return self.state.head.thread_id

    @property
    def created_at(self) -> dt.datetime:
        """The time in the id, in UTC, to the millisecond."""
        return clock.time_of(self.id)

    @property
    def started_at(self) -> dt.datetime:
        """When the current thread began."""
        return self.state.head.started_at

    @property
    def updated_at(self) -> dt.datetime:
        """When anything here last changed."""
        return self.state.head.updated_at

    @property
    def provider(self) -> Provider:
        """Who the next request goes to."""
        return self._provider

    @property
    def catalog(self) -> Catalog:
        """Windows and prices of the provider's models."""
        return Catalog(self._provider)

    @property
    def model(self) -> str:
        """The model of the next request."""
        return self.state.head.model or self._provider.model

    @property
    def mode(self) -> str:
        """The API form of the next request."""
        return self.state.head.mode or self._provider.modes[0]

    @property
    def params(self) -> dict[str, Any]:
        """The request's own parameters, to read."""
        params: dict[str, Any] = jsontext.read_only(self.state.head.params)
        return params

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's own data, to read; assign the whole to change it."""
        metadata: dict[str, Any] = jsontext.read_only(self.state.head.metadata)
        return metadata

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        checked = dict(jsontext.check(dict(value), "metadata"))
        if jsontext.dumps(checked) != jsontext.dumps(self.state.head.metadata):
            self.state.head.metadata = checked
            self.state.touch()

    @property
    def messages(self) -> MessageList:
        """The live messages, read-only."""
        return MessageList(self.state.messages)

    @property
    def summary(self) -> str | None:
        """What stands for the messages that were compacted away."""
        return self.state.head.summary

    @property
    def compacted(self) -> bool:
        """Whether history was compacted and no reply has come since."""
        return self.state.head.compacted

    @property
    def revision(self) -> int:
        """How often it was saved."""
        return self.state.head.revision

    @property
    def token_usage(self) -> TokenUsage:
        """What all replies of this conversation used, those no longer in it too."""
        return self.state.token_usage

    usage = token_usage

    @property
    def context_used(self) -> int | None:
        """Tokens of the live conversation at its last reply; None when unknown."""
        return self.state.context_used

    @property
    def context_window(self) -> int | None:
        """Tokens that the model can take, None when unknown."""
        return self._provider.context_window(self.model)

    @property
    def context_usage(self) -> Fraction | None:
        """``context_used`` over ``context_window``, 0 to 1 and beyond; None when either is unknown."""
        used, window = self.context_used, self.context_window
        if used is None or not window or len(self.state.messages) < 2:
            return None
        return Fraction(used, window)

    @property
    def cost(self) -> Cost:
        """What it cost in USD, each reply at its own model's price; see ``Cost.unpriced``."""
        return self.state.cost

    @property
    def turn(self) -> Turn | None:
        """The turn that was last taken back, by another writer's save or a rollback, with what it paid for."""
        return self.state.lost

    def size(self, context_window: int | None = None) -> ContextSize:
        """How full the context is by its characters, in the model's window or the one given."""
        window = self.context_window if context_window is None else context_window
        return ContextSize.of(self.state.messages, self.summary, window)

    @property
    def pending_calls(self) -> list[ToolCall]:
        """The calls that have no result yet, in order."""
        return list(self.state.open_calls.values())

    @property
    def tool_results(self) -> list[ToolResult]:
        """Every result in the live messages, in order."""
        return [r for m in self.state.messages for r in m.tool_results]
