"""The state of a live context: its head, its live messages, and what of them is saved.

Sums and the index of open calls are kept up to date as messages come and go, so that no turn scans the conversation.
``messages[:len(positions)]`` are saved, each at the position of the same index; the rest is new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from . import clock, jsontext
from .messages import Message, ToolCall, ToolResult
from .payload.schema import Document, Head
from .usage import PICO, Cost, Price, TokenUsage, Turn, UsageEntry

__all__ = ["Changes", "State"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a save has to write: positions that leave the live window, and messages that join the conversation.

    Appended messages take the positions from ``first_position`` on. ``dead`` holds the indexes of those that left the
    live window before they were ever saved: they are written as retired, since history forgets nothing.
    """

    retired: Sequence[int]
    appended: Sequence[Message]
    first_position: int
    usage: Sequence[UsageEntry]
    head: bool
    dead: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.retired or self.appended or self.usage or self.head)

    @property
    def live(self) -> list[Message]:
        """Those that join and are still in the live window."""
        return [m for i, m in enumerate(self.appended) if i not in self.dead] if self.dead else list(self.appended)


@dataclass(slots=True)
class _Totals:
    usage: TokenUsage = field(default_factory=TokenUsage.zero)
    unsummed: list[TokenUsage] = field(default_factory=list)
    """What came since; summed when somebody asks, so that a load of thousands does not add one by one."""
    cost: int = 0
    priced: int = 0
    unpriced: int = 0

    def sum(self) -> TokenUsage:
        if self.unsummed:
            self.usage = TokenUsage.sum(self.unsummed, self.usage)
            self.unsummed = []
        return self.usage


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
        self.saved_metadata: dict[str, Any] = {}
        """The metadata as last read or saved, to tell a change that is not saved yet."""
        self.pending_usage: list[UsageEntry] = []
        self.lost: Turn | None = None
        """The turn that the last conflict kept out of the history."""
        self.on_change: Callable[[], None] | None = None
        """Called after each change, for a keeper that has to know before it is asked to save."""
        self.edits = 0
        """How often it was changed, to tell what comes from another thread or task while a save is under way."""
        self.open_calls: dict[str, ToolCall] = {}
        self._answered: set[str] = set()
        self._ids: set[UUID] | None = None
        self._counted: set[UUID] = set()
        self._price = price
        self._retired: list[int] = []
        self._new: list[Message] = []
        self._dead: set[int] = set()
        self._totals = _Totals()
        self._last_reply: Message | None = None
        self._first_user: Message | None = None
        self._head_changed = True

    # -- reading

    @property
    def token_usage(self) -> TokenUsage:
        """Everything this conversation used: what was carried over, and the live replies that are not inherited."""
        carried, live = self.head.carried_usage, self._totals.sum()
        return carried + live if carried is not TokenUsage.zero() and any(carried.counts()) else live

    @property
    def cost_pico_usd(self) -> int:
        """What it cost, as far as it is priced."""
        return self.head.carried_cost + self._totals.cost

    @property
    def cost(self) -> Cost:
        """What it cost, in USD; the total is None when there are replies and none is priced."""
        return Cost(total=self.cost_usd, unpriced=self.unpriced)

    @property
    def cost_usd(self) -> Decimal | None:
        """The total of ``cost``."""
        known = self._totals.priced or self.head.carried_cost or not self.unpriced
        return Decimal(self.cost_pico_usd) / PICO if known else None

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

    def unknown(self, messages: Iterable[Message]) -> list[Message]:
        """Those of ``messages`` that are not live already, each once: a history that comes back whole adds nothing."""
        if self._ids is None:
            self._ids = {m.id for m in self.messages}
        new = {m.id: m for m in messages if m.id not in self._ids}
        return list(new.values())

    # -- changing

    def touch(self) -> None:
        """The head changed: the next save writes it."""
        self.head.updated_at = clock.now()
        self.edits += 1
        self._head_changed = True
        if self.on_change is not None:
            self.on_change()

    def append(self, messages: Iterable[Message]) -> None:
        """Put ``messages`` at the end. Replies that were taken out of this window before come back ``inherited``."""
        before = len(self.messages)
        for message in messages:
            if message.id in self._counted:
                message = message.model_copy(update={"inherited": True})
            self.messages.append(message)
            self._new.append(message)
            self._enter(message)
        if len(self.messages) > before:
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
        unsaved = [j for j in range(len(self._new)) if j not in self._dead]
        self._dead.update(unsaved[i - saved] for i in gone if i >= saved)
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
                self._counted.add(m.id)
                if m.usage is not None:
                    self.head.carried_usage = self.head.carried_usage + m.usage
                cost = self._cost(m)
                if cost is None:
                    self.head.carried_unpriced += 1
                else:
                    self.head.carried_cost += cost

    def _rebuild(self, messages: list[Message]) -> None:
        self.messages, self.open_calls, self._answered = messages, {}, set()
        self._totals, self._last_reply, self._first_user, self._ids = _Totals(), None, None, None
        for message in messages:
            self._enter(message)

    def _enter(self, m: Message) -> None:
        if self._ids is not None:
            self._ids.add(m.id)
        if m.role == "assistant":
            self._last_reply = m
            if _is_paid(m):
                if m.usage is not None:
                    self._totals.unsummed.append(m.usage)
                cost = self._cost(m)
                if cost is None:
                    self._totals.unpriced += 1
                else:
                    self._totals.cost += cost
                    self._totals.priced += 1
        elif self._first_user is None and m.role == "user":
            self._first_user = m
        if m.content is None or isinstance(m.content, str):
            return
        for part in m.content:
            if isinstance(part, ToolCall):
                self.open_calls[part.id] = part
                self._answered.discard(part.id)  # an id that comes again is a new call
        for part in m.content:
            if isinstance(part, ToolResult):
                self.open_calls.pop(part.id, None)
                self._answered.add(part.id)

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
            self._retired, self._new, self.next_position, self.pending_usage, self._head_changed, frozenset(self._dead)
        )

    def saved(self, token: str, revision: int) -> None:
        """Everything in ``changes()`` is in the database now, under ``token``."""
        self._place(len(self._new))
        self.last_save, self.head.revision = token, revision
        self.saved_metadata = self.head.metadata
        self._retired = []
        self.pending_usage = []
        self._head_changed = False

    def saved_partly(self, token: str, revision: int, appended: int, retired: int, usage: Collection[UUID]) -> None:
        """Of ``changes()``, the first ``appended`` and ``retired`` and the attempts in ``usage`` are in the database
        now, under ``token``; the rest is still to be saved."""
        left_since = [self.next_position + j for j in self._dead if j < appended]
        self._place(appended)
        self.last_save, self.head.revision = token, revision
        self._retired = [*self._retired[retired:], *left_since]
        self.pending_usage = [e for e in self.pending_usage if e.id not in usage]

    def _place(self, count: int) -> None:
        """The first ``count`` of the new messages have their positions now."""
        self.positions.extend(self.next_position + j for j in range(count) if j not in self._dead)
        self.next_position += count
        self._new = self._new[count:]
        self._dead = {j - count for j in self._dead if j >= count}

    def take(self, document: Document) -> None:
        """Hold ``document``; nothing of it is saved."""
        self.head = document.head
        self._new, self._dead = list(document.messages), set()
        self._rebuild(document.messages)

    def stands_on(self, positions: list[int], next_position: int, token: str) -> None:
        """The live messages were read from a store at ``positions``, as saved under ``token``."""
        self.positions, self.next_position, self.last_save = positions, next_position, token
        self._new, self._dead, self._retired, self.pending_usage = [], set(), [], []
        self.saved_metadata = self.head.metadata
        self._head_changed, self.lost = False, None

    def loaded(self, document: Document, positions: list[int], next_position: int, token: str) -> None:
        """Take over what a store read: everything in it is saved."""
        self.take(document)
        self.stands_on(positions, next_position, token)

    def mark(self, whole: bool = False) -> tuple[Any, ...]:
        """A point to go back to with ``back_to``: as long as messages were only appended since, or, with ``whole``,
        whatever was done to the conversation."""
        h = self.head
        kept = (
            (
                list(self.messages),
                list(self.positions),
                list(self._retired),
                set(self._dead),
                (h.carried_usage, h.carried_cost, h.carried_unpriced, h.summary, set(self._counted)),
            )
            if whole
            else None
        )
        who = (h.model, h.provider, h.mode)
        return len(self.messages), len(self._new), h.updated_at, h.compacted, self._head_changed, who, kept

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Undo what was done since ``mark``."""
        h = self.head
        length, new, h.updated_at, h.compacted, self._head_changed, who, kept = mark
        h.model, h.provider, h.mode = who
        messages = self.messages[:length]
        if kept is not None:
            messages, self.positions, self._retired, self._dead, carried = kept
            h.carried_usage, h.carried_cost, h.carried_unpriced, h.summary, self._counted = carried
        del self._new[new:]
        self._rebuild(messages)

    @property
    def id(self) -> UUID:
        """The context's id."""
        return self.head.id

    @property
    def title(self) -> str | None:
        """``metadata["title"]``, else the beginning of the first user message: one line of at most 120 characters."""
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
