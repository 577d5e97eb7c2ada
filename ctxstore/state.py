"""The state of a live context: its head, its live messages, and what of them is saved.

Sums and the index of open calls are kept up to date as messages come and go, so that no turn scans the conversation.
``messages[:len(positions)]`` are saved, each at the position of the same index; the rest is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from . import clock, jsontext
from .messages import Message, ToolCall
from .payload.schema import Document, Head
from .usage import PICO, Cost, Price, TokenUsage, Turn, UsageEntry

__all__ = ["Changes", "State"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a save has to write: positions that leave the live window, and messages that join at its end.

    Appended messages take the positions from ``first_position`` on.
    """

    retired: Sequence[int]
    appended: Sequence[Message]
    first_position: int
    usage: Sequence[UsageEntry]
    head: bool

    def __bool__(self) -> bool:
        return bool(self.retired or self.appended or self.usage or self.head)


@dataclass(slots=True)
class _Totals:
    usage: TokenUsage = field(default_factory=TokenUsage.zero)
    cost: int = 0
    priced: int = 0
    unpriced: int = 0


class State:
    """Mutable, owned by one ``Context``; stores read its ``changes()`` and answer with ``saved()``."""

    def __init__(self, head: Head, price: Callable[[str, str | None], Price | None] | None = None) -> None:
        self.head = head
        self.messages: list[Message] = []
        self.positions: list[int] = []
        self.next_position = 0
        self.last_save: str | None = None
        """The token of the save that this state stands on; None when it was never saved."""
        self.lease_epoch: int | None = None
        """The epoch of the lease that this context is held under, None when it is held under none."""
        self.owner: str | None = None
        self.context_window: int | None = None
        """Tokens that the model of the next request can take, None when unknown."""
        self.pending_usage: list[UsageEntry] = []
        self.lost: Turn | None = None
        """The turn that the last conflict kept out of the history."""
        self.open_calls: dict[str, ToolCall] = {}
        self._answered: dict[str, int] = {}
        self._price = price
        self._retired: list[int] = []
        self._totals = _Totals()
        self._last_reply: Message | None = None
        self._first_user: Message | None = None
        self._head_changed = True

    # -- reading

    @property
    def token_usage(self) -> TokenUsage:
        """Everything this conversation used: what was carried over, and the live replies that are not inherited."""
        return self.head.carried_usage + self._totals.usage

    @property
    def cost_pico_usd(self) -> int:
        """What it cost, as far as it is priced."""
        return self.head.carried_cost + self._totals.cost

    @property
    def cost(self) -> Cost:
        """What it cost, in USD; the total is None when there are replies and none is priced."""
        known = self._totals.priced or self.head.carried_cost or not self.unpriced
        return Cost(total=Decimal(self.cost_pico_usd) / PICO if known else None, unpriced=self.unpriced)

    @property
    def unpriced(self) -> int:
        """Replies without a price."""
        return self.head.carried_unpriced + self._totals.unpriced

    @property
    def last_reply(self) -> Message | None:
        """The newest assistant message."""
        return self._last_reply

    @property
    def context_used(self) -> int | None:
        """Tokens of the live conversation at its last reply; None without one or when the reply did not say."""
        reply = self._last_reply
        return None if reply is None or reply.usage is None else reply.usage.total_tokens

    @property
    def answered(self) -> set[str]:
        """The ids of the calls that have a result in the live messages."""
        return set(self._answered)

    @property
    def uses_tools(self) -> bool:
        """Whether a live message asks for a tool or carries a result."""
        return bool(self._answered or self.open_calls)

    def has_answer(self, call_id: str) -> bool:
        """Whether a live message carries the result of this call."""
        return call_id in self._answered

    # -- changing

    def touch(self) -> None:
        """The head changed: the next save writes it."""
        self.head.updated_at = clock.now()
        self._head_changed = True

    def append(self, messages: Iterable[Message]) -> None:
        """Put ``messages`` at the end."""
        for message in messages:
            self.messages.append(message)
            self._enter(message)
        self.touch()

    def remove(self, indexes: Iterable[int]) -> list[Message]:
        """Take the messages at ``indexes`` out of the live window; what they used is carried over.

        Returns the messages that were taken out. Saved ones are retired at the next save, never deleted.
        """
        gone = set(indexes)
        if not gone:
            return []
        out = [self.messages[i] for i in sorted(gone)]
        saved = len(self.positions)
        self._retired.extend(self.positions[i] for i in sorted(gone) if i < saved)
        self.positions = [p for i, p in enumerate(self.positions) if i not in gone]
        self._carry(out)
        self._rebuild([m for i, m in enumerate(self.messages) if i not in gone])
        self.touch()
        return out

    def replace(self, messages: Sequence[Message], inherited: bool = False) -> None:
        """Make ``messages`` the live window. A common beginning stays as it is; the rest retires and is appended.

        Replies that were in the window before come back ``inherited``, and with ``inherited`` every reply does: what
        they used is counted where it was paid.
        """
        same = 0
        for old, new in zip(self.messages, messages, strict=False):
            if old is not new and old != new:
                break
            same += 1
        before = {m.id for m in self.messages}
        self.remove(range(same, len(self.messages)))
        again = (m.role == "assistant" and (inherited or m.id in before) for m in messages[same:])
        pairs = zip(messages[same:], again, strict=True)
        self.append(m.model_copy(update={"inherited": True}) if a else m for m, a in pairs)

    def _carry(self, messages: Iterable[Message]) -> None:
        for m in messages:
            if _is_paid(m):
                if m.usage is not None:
                    self.head.carried_usage = self.head.carried_usage + m.usage
                cost = self._cost(m)
                if cost is None:
                    self.head.carried_unpriced += 1
                else:
                    self.head.carried_cost += cost

    def _rebuild(self, messages: list[Message]) -> None:
        self.messages, self.open_calls, self._answered = messages, {}, {}
        self._totals, self._last_reply, self._first_user = _Totals(), None, None
        for message in messages:
            self._enter(message)

    def _enter(self, m: Message) -> None:
        if m.role == "assistant":
            self._last_reply = m
            if _is_paid(m):
                if m.usage is not None:
                    self._totals.usage = self._totals.usage + m.usage
                cost = self._cost(m)
                if cost is None:
                    self._totals.unpriced += 1
                else:
                    self._totals.cost += cost
                    self._totals.priced += 1
        elif self._first_user is None and m.role == "user":
            self._first_user = m
        if type(m.content) is list:
            for call in m.tool_calls:
                if call.id not in self._answered:
                    self.open_calls[call.id] = call
            for result in m.tool_results:
                self._answered[result.id] = 1
                self.open_calls.pop(result.id, None)

    def _cost(self, m: Message) -> int | None:
        if m.cost_pico_usd is not None:
            return m.cost_pico_usd
        if m.usage is None or self._price is None or m.origin is None or m.origin.model is None:
            return None
        price = self._price(m.origin.model, m.origin.provider)
        return None if price is None else price.cost(m.usage).pico_usd

    # -- saving

    def changes(self) -> Changes:
        """What is not saved yet."""
        return Changes(
            self._retired, self.messages[len(self.positions) :], self.next_position, self.pending_usage, self._head_changed
        )

    def saved(self, token: str, revision: int) -> None:
        """Everything in ``changes()`` is in the database now, under ``token``."""
        new = len(self.messages) - len(self.positions)
        self.positions.extend(range(self.next_position, self.next_position + new))
        self.next_position += new
        self.last_save, self.head.revision = token, revision
        self._retired = []
        self.pending_usage = []
        self._head_changed = False

    def stands_on(self, positions: list[int], next_position: int, token: str) -> None:
        """The live messages were read from a store at ``positions``, as saved under ``token``."""
        self.positions, self.next_position, self.last_save = positions, next_position, token
        self._retired, self.pending_usage, self._head_changed, self.lost = [], [], False, None

    def loaded(self, document: Document, positions: list[int], next_position: int, token: str) -> None:
        """Take over what a store read: everything in it is saved."""
        self.head = document.head
        self._rebuild(document.messages)
        self.stands_on(positions, next_position, token)

    def mark(self) -> tuple[Any, ...]:
        """A point to go back to with ``back_to``, as long as messages were only appended since."""
        h = self.head
        return (
            len(self.messages),
            _Totals(self._totals.usage, self._totals.cost, self._totals.priced, self._totals.unpriced),
            self._last_reply,
            dict(self.open_calls),
            h.updated_at,
            h.compacted,
            self._head_changed,
            (h.model, h.provider, h.mode),
        )

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Undo what was appended since ``mark``."""
        length, self._totals, self._last_reply, self.open_calls, updated, compacted, changed, who = mark
        for message in self.messages[length:]:
            for result in message.tool_results:
                self._answered.pop(result.id, None)
        if self._first_user is not None and self._first_user in self.messages[length:]:
            self._first_user = None
        del self.messages[length:]
        del self.positions[length:]
        self.head.updated_at, self.head.compacted, self._head_changed = updated, compacted, changed
        self.head.model, self.head.provider, self.head.mode = who

    @property
    def id(self) -> UUID:
        """The context's id."""
        return self.head.id

    @property
    def title(self) -> str | None:
        """``metadata["title"]``, else the beginning of the first user message, in one line of at most 120 characters."""
        given = self.head.metadata.get("title")
        if isinstance(given, str):
            text = given
        elif self._first_user is not None:
            text = self._first_user.plain_text
        else:
            return None
        line = " ".join(jsontext.searchable(text[:500]).split())
        return line if len(line) <= 120 else line[:119] + "\u2026"


def _is_paid(m: Message) -> bool:
    """Whether a provider was paid for ``m`` in this conversation: hand-written and inherited replies cost nothing."""
    return m.role == "assistant" and not m.inherited and (m.usage is not None or m.origin is not None)
