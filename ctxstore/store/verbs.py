"""The verbs of ``Store`` that need no live context: lists, pages, histories, and what changes rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias
from uuid import UUID

from .. import clock
from . import editing, reading, repository
from .accounts import Accounts
from .reading import InFlight, StoredContext, StoredMessage
from .types import check_owner

__all__ = ["Verbs"]

Contexts: TypeAlias = list[StoredContext]
Messages: TypeAlias = list[StoredMessage]
Flights: TypeAlias = list[InFlight]
Id: TypeAlias = UUID | str
Payload: TypeAlias = Mapping[str, Any] | str | bytes


class Verbs(Accounts):
    """The half of ``Store`` that reads and edits rows. ``owner=`` makes another owner's context one not found."""

    # -- reading

    def list(
        self, *, owner: str | None = None, archived: bool | None = False, limit: int = 50, after: str | None = None
    ) -> Contexts:
        """Contexts without their messages, the one that changed last first.

        ``archived`` picks those in the archive, None all. ``after`` is the ``.cursor`` of the last row of the page
        before: pages do not shift when contexts are added.
        """
        return self._runner.run(reading.summaries, owner, archived, limit, after)

    async def alist(
        self, *, owner: str | None = None, archived: bool | None = False, limit: int = 50, after: str | None = None
    ) -> Contexts:
        """``list`` for asyncio."""
        return await self._runner.arun(reading.summaries, owner, archived, limit, after)

    def get(self, id: Id, *, owner: str | None = None) -> StoredContext:
        """One context without its messages, as ``list`` gives it.

        Raises:
            ContextNotFoundError: there is none, or it is another owner's.
        """
        return self._runner.run(reading.summary, clock.parse_id(id), owner)

    async def aget(self, id: Id, *, owner: str | None = None) -> StoredContext:
        """``get`` for asyncio."""
        return await self._runner.arun(reading.summary, clock.parse_id(id), owner)

    def messages(self, id: Id, *, limit: int = 50, before: int | None = None, owner: str | None = None) -> Messages:
        """The last ``limit`` live messages, in order; ``before`` a position, those before it.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        return self._runner.run(reading.page, clock.parse_id(id), owner, limit, before)

    async def amessages(
        self, id: Id, *, limit: int = 50, before: int | None = None, owner: str | None = None
    ) -> Messages:
        """``messages`` for asyncio."""
        return await self._runner.arun(reading.page, clock.parse_id(id), owner, limit, before)

    def history(self, id: Id, *, owner: str | None = None) -> Messages:
        """Every message that was ever saved, those no longer live too (``.retired``), each once, in order.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        return self._runner.run(reading.history, clock.parse_id(id), owner)

    async def ahistory(self, id: Id, *, owner: str | None = None) -> Messages:
        """``history`` for asyncio."""
        return await self._runner.arun(reading.history, clock.parse_id(id), owner)

    def search(self, text: str, *, owner: str | None = None, limit: int = 50) -> Messages:
        """Live messages with ``text`` in their text, tool calls or results, the newest first.

        The text is taken to the letter; ASCII letters match in either case, others as the database compares them.
        """
        return self._runner.run(reading.search, text, owner, limit)

    async def asearch(self, text: str, *, owner: str | None = None, limit: int = 50) -> Messages:
        """``search`` for asyncio."""
        return await self._runner.arun(reading.search, text, owner, limit)

    def in_flight(self, id: Id, *, owner: str | None = None) -> Flights:
        """Prompts that were sent and never got a reply, the oldest first: for ``ctx.resend`` or ``drop_in_flight``.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        return self._runner.run(reading.in_flights, clock.parse_id(id), owner)

    async def ain_flight(self, id: Id, *, owner: str | None = None) -> Flights:
        """``in_flight`` for asyncio."""
        return await self._runner.arun(reading.in_flights, clock.parse_id(id), owner)

    def export(self, id: Id, *, owner: str | None = None) -> dict[str, Any]:
        """The context as a payload of the current version.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        return self._runner.run(editing.export, clock.parse_id(id), owner)

    async def aexport(self, id: Id, *, owner: str | None = None) -> dict[str, Any]:
        """``export`` for asyncio."""
        return await self._runner.arun(editing.export, clock.parse_id(id), owner)

    # -- editing

    def archive(self, id: Id, *, owner: str | None = None) -> None:
        """Take a context out of ``list``; it can be loaded and talked to as before.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        self._runner.run(editing.archive, clock.parse_id(id), owner, True)

    async def aarchive(self, id: Id, *, owner: str | None = None) -> None:
        """``archive`` for asyncio."""
        await self._runner.arun(editing.archive, clock.parse_id(id), owner, True)

    def unarchive(self, id: Id, *, owner: str | None = None) -> None:
        """Put a context back into ``list``. Raises as ``archive``."""
        self._runner.run(editing.archive, clock.parse_id(id), owner, False)

    async def aunarchive(self, id: Id, *, owner: str | None = None) -> None:
        """``unarchive`` for asyncio."""
        await self._runner.arun(editing.archive, clock.parse_id(id), owner, False)

    def delete(self, id: Id, *, erase_usage: bool = False, owner: str | None = None) -> None:
        """Delete a context from every table; the ledger keeps what it used unless ``erase_usage``.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        self._runner.run(repository.delete, clock.parse_id(id), owner, erase_usage)

    async def adelete(self, id: Id, *, erase_usage: bool = False, owner: str | None = None) -> None:
        """``delete`` for asyncio."""
        await self._runner.arun(repository.delete, clock.parse_id(id), owner, erase_usage)

    def drop_in_flight(self, id: Id, turn_id: Id, *, owner: str | None = None) -> bool:
        """Forget a prompt that never got a reply; whether there was one.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
        """
        return self._runner.run(editing.drop_in_flight, clock.parse_id(id), clock.parse_id(turn_id), owner)

    async def adrop_in_flight(self, id: Id, turn_id: Id, *, owner: str | None = None) -> bool:
        """``drop_in_flight`` for asyncio."""
        return await self._runner.arun(editing.drop_in_flight, clock.parse_id(id), clock.parse_id(turn_id), owner)

    def fork(self, id: Id, *, at: Id | int | None = None, owner: str | None = None) -> StoredContext:
        """A new context with a copy of another's live messages up to and with ``at``: a message's id or its position.

        Messages keep their ids; what they used stays the other's: the fork has used nothing yet. It has the same
        owner, metadata and summary.

        Raises:
            ContextNotFoundError: there is no such context, or it is another owner's.
            ConfigurationError: ``at`` is no live message, or the cut would part a tool call from its result; the
                position where it may be cut is named.
        """
        return self._runner.run(editing.forked, clock.parse_id(id), _place(at), owner, clock.new_id())

    async def afork(self, id: Id, *, at: Id | int | None = None, owner: str | None = None) -> StoredContext:
        """``fork`` for asyncio."""
        return await self._runner.arun(editing.forked, clock.parse_id(id), _place(at), owner, clock.new_id())

    def import_payload(
        self, payload: Payload, *, owner: str | None = None, prices: editing.Prices | None = None
    ) -> StoredContext:
        """Save a payload of any version as a context here, with its own id or one made from its content.

        The same document again gives the context that it made before. Its replies enter the ledger as ``imported``, at
        the cost that they bring; one that brings none is unpriced, unless ``prices`` are given: ``"catalog"`` for the
        catalogue's of the day of the reply, or USD per million tokens by model.

        Raises:
            PayloadError: it is no payload; SchemaVersionError: of a version that cannot be read.
            ConfigurationError: its id is taken by a context of another owner, or ``prices`` are none.
        """
        work = _import(payload, owner, prices)
        return self._runner.run(editing.import_, work, owner)

    async def aimport_payload(
        self, payload: Payload, *, owner: str | None = None, prices: editing.Prices | None = None
    ) -> StoredContext:
        """``import_payload`` for asyncio."""
        work = _import(payload, owner, prices)
        return await self._runner.arun(editing.import_, work, owner)


def _import(payload: Payload, owner: str | None, prices: editing.Prices | None) -> repository.Work:
    check_owner(owner)
    return repository.prepare(editing.imported(payload, owner, prices))


def _place(at: Id | int | None) -> UUID | int | None:
    return at if at is None or isinstance(at, int) else clock.parse_id(at)
