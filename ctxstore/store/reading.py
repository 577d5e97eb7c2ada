"""Reading without loading: lists, pages, histories, searches. Nothing here makes a live context.

Every page is one query on an index with an order of its own; an extra one asks, when nothing was found, whether the
context is there at all.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import jsontext
from ..errors import ConfigurationError
from ..messages import Message, Origin, ToolCall, ToolResult
from ..payload import codec
from ..usage import PICO, TokenUsage
from . import repository
from .keeping import flight_messages
from .tables import contexts, in_flight, messages

__all__ = [
    "InFlight",
    "StoredContext",
    "StoredMessage",
    "history",
    "in_flights",
    "page",
    "search",
    "summaries",
    "summary",
]

_COLUMNS = [c for c in contexts.c if c.name != "payload"]


class StoredContext:
    """One row of ``ctxstore_contexts`` but its payload: its columns as attributes, times in UTC.

    ``cost`` is ``cost_pico_usd`` in USD, ``cursor`` what ``store.list(after=...)`` goes on from.
    """

    __slots__ = ("_row",)

    id: UUID
    schema_version: int
    revision: int
    owner: str | None
    title: str | None
    provider: str | None
    model: str | None
    mode: str | None
    compacted: bool
    message_count: int
    context_used: int | None
    context_window: int | None
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost_pico_usd: int | None
    unpriced: int
    forked_from: UUID | None
    forked_at: int | None
    created_at: dt.datetime
    updated_at: dt.datetime
    archived_at: dt.datetime | None
    locked_by: str | None
    locked_until: dt.datetime | None

    def __init__(self, row: Any) -> None:
        object.__setattr__(self, "_row", dict(row._mapping))

    def __getattr__(self, name: str) -> Any:
        if name == "_row" or name not in self._row:  # copying asks before the slot is filled
            raise AttributeError(f"ctxstore_contexts has no column {name!r}")
        return self._row[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a row that was read is read-only")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredContext) and self._row == other._row

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<StoredContext {self.id} {self.title!r} {self.message_count} messages>"

    @property
    def usage(self) -> TokenUsage:
        """The ten token sums as one value."""
        return TokenUsage(**{k: self._row[k] for k in TokenUsage.model_fields})

    @property
    def cost(self) -> Decimal | None:
        """US dollars as a Decimal, None when nothing was priced."""
        return None if self.cost_pico_usd is None else Decimal(self.cost_pico_usd) / PICO

    @property
    def cursor(self) -> str:
        """Where a list goes on after this row; opaque."""
        return base64.urlsafe_b64encode(f"{self.updated_at.isoformat()} {self.id}".encode()).decode()

    def to_dict(self) -> dict[str, Any]:
        """The columns by name."""
        return dict(self._row)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and where it stands: ``position`` in its context, ``retired`` when it left the live window."""

    context_id: UUID
    position: int
    message: Message
    retired: bool = False

    @property
    def id(self) -> UUID:
        """The message's id."""
        return self.message.id

    @property
    def role(self) -> str:
        """The message's role."""
        return self.message.role

    @property
    def text(self) -> str | None:
        """The message's text, None when it has none."""
        return self.message.text

    @property
    def content(self) -> Any:
        """The message's content."""
        return self.message.content

    @property
    def created_at(self) -> dt.datetime | None:
        """When the message was made."""
        return self.message.created_at

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that it asks for."""
        return self.message.tool_calls

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results that it carries."""
        return self.message.tool_results

    @property
    def usage(self) -> TokenUsage | None:
        """What it used, None for what is no reply or when the provider did not say."""
        return self.message.usage

    @property
    def origin(self) -> Origin | None:
        """Where it came from, None for what is no reply."""
        return self.message.origin


@dataclass(frozen=True, slots=True)
class InFlight:
    """A prompt that was sent and has no reply: for ``ctx.resend`` or ``store.drop_in_flight``."""

    context_id: UUID
    turn_id: UUID
    base_revision: int
    created_at: dt.datetime
    messages: tuple[Message, ...]


# -- contexts


def summaries(
    c: sa.Connection, owner: str | None, archived: bool | None, limit: int, after: str | None
) -> list[StoredContext]:
    """Contexts, the one that changed last first."""
    query = sa.select(*_COLUMNS).order_by(contexts.c.updated_at.desc(), contexts.c.id.desc()).limit(_limit(limit))
    if owner is not None:
        query = query.where(contexts.c.owner == owner)
    if archived is not None:
        query = query.where(contexts.c.archived_at.is_not(None) if archived else contexts.c.archived_at.is_(None))
    if after is not None:
        time, last = _cursor(after)
        query = query.where(contexts.c.updated_at <= time, sa.or_(contexts.c.updated_at < time, contexts.c.id < last))
    return [StoredContext(row) for row in c.execute(query)]


def summary(c: sa.Connection, context_id: UUID, owner: str | None = None) -> StoredContext:
    """One context.

    Raises:
        ContextNotFoundError: there is none, or it is another owner's.
    """
    row = c.execute(sa.select(*_COLUMNS).where(contexts.c.id == context_id)).first()
    if row is None or (owner is not None and row.owner != owner):
        raise repository.not_found(context_id)
    return StoredContext(row)


def _cursor(text: str) -> tuple[dt.datetime, UUID]:
    try:
        time, last = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
        return dt.datetime.fromisoformat(time), UUID(last)
    except (ValueError, binascii.Error, AttributeError) as error:
        raise ConfigurationError(f"after= takes the .cursor of a row that list() gave, not {text!r:.80}") from error


def _limit(limit: int) -> int:
    if type(limit) is not int or limit < 1:
        raise ConfigurationError(f"limit must be a whole number of 1 or more, not {limit!r}")
    return limit


# -- messages

_MESSAGE = (
    messages.c.context_id,
    messages.c.position,
    messages.c.schema_version,
    messages.c.retired_at_revision,
    messages.c.payload,
)


def page(c: sa.Connection, context_id: UUID, owner: str | None, limit: int, before: int | None) -> list[StoredMessage]:
    """The last ``limit`` live messages before position ``before``, in order."""
    query = sa.select(*_MESSAGE).where(messages.c.context_id == context_id, messages.c.retired_at_revision.is_(None))
    if before is not None:
        query = query.where(messages.c.position < before)
    query = query.order_by(messages.c.position.desc()).limit(_limit(limit))
    found = _of_owner(c, context_id, owner, query)
    return _stored(found[::-1])


def history(c: sa.Connection, context_id: UUID, owner: str | None = None) -> list[StoredMessage]:
    """Every message that was ever saved, in order, each once at the place where it first stood.

    A message that a rewind or an edit put there again is retired only when its last copy is; one that was rewritten
    under its old id stands here in each of its forms.
    """
    query = sa.select(*_MESSAGE).where(messages.c.context_id == context_id).order_by(messages.c.position)
    out: list[StoredMessage] = []
    seen: dict[UUID, list[int]] = {}
    for stored in _stored(_of_owner(c, context_id, owner, query)):
        for index in seen.setdefault(stored.id, []):
            first = out[index]
            if first.message.model_copy(update={"inherited": stored.message.inherited}) == stored.message:
                retired = first.retired and stored.retired
                out[index] = StoredMessage(context_id, first.position, first.message, retired)
                break
        else:
            seen[stored.id].append(len(out))
            out.append(stored)
    return out


def search(c: sa.Connection, text: str, owner: str | None, limit: int) -> list[StoredMessage]:
    """Live messages whose text has ``text`` in it, the newest first. ASCII letters match in either case."""
    if type(text) is not str or not text:
        raise ConfigurationError("search needs a text to look for")
    pattern = jsontext.searchable(text)
    for special in "!%_":
        pattern = pattern.replace(special, f"!{special}")
    like = sa.func.lower(messages.c.text).like(sa.func.lower(f"%{pattern}%"), escape="!")
    query = sa.select(*_MESSAGE).where(messages.c.retired_at_revision.is_(None), like)
    if owner is not None:
        query = query.join(contexts, contexts.c.id == messages.c.context_id).where(contexts.c.owner == owner)
    order = (messages.c.created_at.desc(), messages.c.context_id, messages.c.position.desc())
    return _stored(c.execute(query.order_by(*order).limit(_limit(limit))).all())


def _of_owner(c: sa.Connection, context_id: UUID, owner: str | None, query: Any) -> Sequence[Any]:
    if owner is not None:
        mine = sa.exists().where(contexts.c.id == context_id, contexts.c.owner == owner)
        query = query.where(mine)
    found = c.execute(query).all()
    if not found:
        summary(c, context_id, owner)
    return found


def _stored(rows: Iterable[Any]) -> list[StoredMessage]:
    out: list[StoredMessage] = []
    for context_id, group in groupby(rows, attrgetter("context_id")):
        here = list(group)
        positions = [row.position for row in here]
        texts, versions = [row.payload for row in here], [row.schema_version for row in here]
        found = codec.load_messages(texts, versions, positions=positions, context_id=context_id)
        retired = (row.retired_at_revision is not None for row in here)
        out.extend(map(StoredMessage, repeat(context_id), positions, found, retired))
    return out


# -- in flight


def in_flights(c: sa.Connection, context_id: UUID, owner: str | None = None) -> list[InFlight]:
    """Prompts without a reply, the oldest first."""
    query = sa.select(in_flight).where(in_flight.c.context_id == context_id)
    query = query.order_by(in_flight.c.created_at, in_flight.c.turn_id)
    return [
        InFlight(
            context_id, row.turn_id, row.base_revision, row.created_at, tuple(flight_messages(row.payload, context_id))
        )
        for row in _of_owner(c, context_id, owner, query)
    ]
