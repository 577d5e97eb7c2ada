"""What changes stored contexts without talking: archiving, forks, imports, and what is in flight."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from .. import clock
from ..errors import ConfigurationError, ContextNotFoundError
from ..messages import Message
from ..payload import codec
from ..payload.schema import Document, Head
from ..providers import catalog
from ..state import State
from ..usage import Price, TokenUsage, UsageEntry
from . import repository
from .reading import StoredContext, summary
from .tables import contexts, in_flight

__all__ = [
    "Prices",
    "archive",
    "cut",
    "drop_in_flight",
    "export",
    "forked",
    "import_",
    "imported",
    "imported_usage",
]

Prices: TypeAlias = Literal["catalog"] | Mapping[str, Price | Mapping[str, Any]]
"""Where the cost of past replies comes from: the catalogue, or rates by model."""


def archive(c: sa.Connection, context_id: UUID, owner: str | None, archived: bool) -> None:
    """Take a context out of lists, or put it back. Its conversation does not change.

    Raises:
        ContextNotFoundError: there is none, or it is another owner's.
    """
    change = sa.update(contexts).where(contexts.c.id == context_id)
    if owner is not None:
        change = change.where(contexts.c.owner == owner)
    if not c.execute(change.values(archived_at=clock.now() if archived else None)).rowcount:
        raise repository.not_found(context_id)


def drop_in_flight(c: sa.Connection, context_id: UUID, turn_id: UUID, owner: str | None) -> bool:
    """Forget a prompt that never got a reply; whether there was one.

    Raises:
        ContextNotFoundError: there is no such context, or it is another owner's.
    """
    gone = sa.delete(in_flight).where(in_flight.c.context_id == context_id, in_flight.c.turn_id == turn_id)
    if owner is not None:
        gone = gone.where(sa.exists().where(contexts.c.id == context_id, contexts.c.owner == owner))
    if c.execute(gone).rowcount:
        return True
    summary(c, context_id, owner)
    return False


def export(c: sa.Connection, context_id: UUID, owner: str | None) -> dict[str, Any]:
    """The context as a payload of the current version."""
    found = repository.load(c, context_id, owner)
    state = State(found.document.head)
    state.loaded(found.document, found.positions, found.next_position, found.token)
    window = summary(c, context_id).context_window
    state.context_window = window
    return codec.dump(found.document, repository.projections(state))


# -- forks


def forked(c: sa.Connection, context_id: UUID, at: UUID | int | None, owner: str | None, new_id: UUID) -> StoredContext:
    """A new context with the live messages of another up to and with ``at``, in one transaction.

    Raises:
        ContextNotFoundError: there is no such context, or it is another owner's.
        ConfigurationError: ``at`` is no live message, or would part a tool call from its result.
    """
    if repository.stands(c, new_id) is not None:  # an earlier try got through, only its answer was lost
        return summary(c, new_id)
    found = repository.load(c, context_id, owner)
    source, live = found.document.head, found.document.messages
    count = len(live) if at is None else cut(live, found.positions, at)
    now = clock.now()
    head: Head = replace(
        source,
        id=new_id,
        thread_id=clock.new_id(),
        started_at=now,
        updated_at=now,
        revision=0,
        params=dict(source.params),
        metadata=dict(source.metadata),
        extras=dict(source.extras),
        carried_usage=TokenUsage.zero(),
        carried_cost=0,
        carried_unpriced=0,
    )
    state = State(head)
    state.owner = found.owner
    state.context_window = summary(c, context_id).context_window
    state.append(m if m.role != "assistant" else m.model_copy(update={"inherited": True}) for m in live[:count])
    forked_at = found.positions[count - 1] if count else None
    repository.create(c, repository.prepare(state, forked_from=context_id, forked_at=forked_at))
    return summary(c, new_id)


def cut(live: Sequence[Message], positions: Sequence[int], at: UUID | int) -> int:
    """How many of the ``live`` messages a cut after ``at`` leaves.

    Raises:
        ConfigurationError: ``at`` is no live message, or the result of a call stands behind the cut; the error names
            the position after which it may be cut.
    """
    if isinstance(at, int):
        index = next((i for i, p in enumerate(positions) if p == at), None)
    else:
        index = next((i for i in range(len(live) - 1, -1, -1) if live[i].id == at), None)
    if index is None:
        raise ConfigurationError(f"there is no live message {at} to cut after; see store.messages(id)")
    open_calls: set[str] = set()
    for message in live[: index + 1]:
        open_calls.update(call.id for call in message.tool_calls)
        open_calls.difference_update(result.id for result in message.tool_results)
    last = index
    for i in range(index + 1, len(live)):
        if any(result.id in open_calls for result in live[i].tool_results):
            last = i
    if last != index:
        raise ConfigurationError(
            f"a cut after position {positions[index]} would part a tool call from its result; cut after position "
            f"{positions[last]}"
        )
    return index + 1


# -- imports


def imported(payload: Mapping[str, Any] | str | bytes, owner: str | None, prices: Prices | None = None) -> State:
    """The state of a payload that comes from outside, with one attempt in the ledger for each reply it brings.

    Raises:
        PayloadError: it is no payload.
        SchemaVersionError: of a version that cannot be read.
        ConfigurationError: ``prices`` are none.
    """
    document: Document = codec.load(payload)
    head = document.head
    if prices is not None:
        rate = _rate(prices)
        document.messages[:] = [_priced(head, m, rate) for m in document.messages]
    state = State(head)
    state.owner = owner
    updated = head.updated_at
    state.append(document.messages)
    head.updated_at, head.revision = updated, 0
    state.pending_usage.extend(imported_usage(document, owner))
    return state


def _rate(prices: Prices) -> Callable[[str | None, str, dt.datetime], Price | None]:
    if prices == "catalog":
        return catalog.price_then
    if not isinstance(prices, Mapping):
        raise ConfigurationError(f"prices are 'catalog' or a mapping of models to rates, not {prices!r}")
    own = {model: rates if isinstance(rates, Price) else Price.of(rates) for model, rates in prices.items()}
    return lambda provider, model, at: own.get(model)


def _priced(head: Head, m: Message, rate: Callable[[str | None, str, dt.datetime], Price | None]) -> Message:
    """A reply that brought no cost of its own, at the rate of its model when it was made."""
    if m.role != "assistant" or m.usage is None or m.cost_pico_usd is not None:
        return m
    origin = m.origin
    model = (origin.model if origin is not None else None) or head.model
    provider = (origin.provider if origin is not None else None) or head.provider
    if provider == "unknown":
        provider = None
    price = None if model is None else rate(provider, model, m.created_at or head.started_at)
    return m if price is None else m.model_copy(update={"cost_pico_usd": price.cost(m.usage).pico_usd})


def imported_usage(document: Document, owner: str | None) -> list[UsageEntry]:
    """One attempt for each reply that ``document`` brings and that was paid for."""
    head, seen, out = document.head, set[UUID](), []
    for position, m in enumerate(document.messages):
        if m.role == "assistant" and not m.inherited and (m.usage is not None or m.origin is not None):
            attempt = codec.message_id_of(head.id, position) if m.id in seen else m.id
            seen.add(attempt)
            out.append(_entry(head, m, owner, attempt))
    return out


def _entry(head: Head, m: Message, owner: str | None, attempt: UUID) -> UsageEntry:
    origin = m.origin
    model = (origin.model if origin is not None else None) or head.model
    return UsageEntry(
        id=attempt,
        context_id=head.id,
        turn_id=attempt,
        attempt=1,
        kind="imported",
        outcome="ok",
        provider=(origin.provider if origin is not None else None) or head.provider or "unknown",
        requested_model=model or "unknown",
        created_at=m.created_at or head.started_at,
        model=model,
        usage=m.usage,
        cost_pico_usd=m.cost_pico_usd,
        finish_reason=m.finish_reason,
        response_id=origin.response_id if origin is not None else None,
        owner=owner,
    )


def import_(c: sa.Connection, work: repository.Work, owner: str | None) -> StoredContext:
    """Write an imported context, or give the one that the same document made before.

    Raises:
        ConfigurationError: there is one with this id, of another owner.
    """
    try:
        there = summary(c, work.id)
    except ContextNotFoundError:
        repository.create(c, work)
        return summary(c, work.id)
    if there.owner != owner:
        raise ConfigurationError(f"the id {work.id} of this payload is taken by a context of another owner")
    return there
