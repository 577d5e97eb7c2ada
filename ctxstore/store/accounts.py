"""The verbs of ``Store`` about usage: sums of the ledger, single attempts, corrections; and what is kept how long."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from uuid import UUID

from .. import clock
from ..usage import Kind, Outcome, Price, TokenUsage, Turn, UsageEntry
from . import ledger, retention
from .retention import Erased
from .running import Runner
from .sums import Question, UsageRow, question, sums

__all__ = ["Accounts"]


class Accounts:
    """The half of ``Store`` that keeps the accounts."""

    _runner: Runner

    # -- sums

    def usage(
        self,
        by: str | Iterable[str] = ("model",),
        *,
        since: dt.datetime | dt.date | None = None,
        until: dt.datetime | dt.date | None = None,
        tz: str | dt.tzinfo = "UTC",
        owner: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        context: UUID | str | None = None,
        kind: Kind | None = None,
        outcome: Outcome | None = None,
        include_imported: bool = False,
    ) -> list[UsageRow]:
        """What was used, summed in the database by one statement: one row a group, in the order of the groups' keys.

        ``by`` is any of ``owner``, ``provider``, ``model``, ``kind``, ``outcome``, ``context``, ``hour``, ``day``,
        ``week`` and ``month``; ``()`` sums all. Periods begin in the zone ``tz``: a day is a date, a week the date of
        its Monday, a month that of its first day, an hour an aware datetime. ``since`` is the first moment that counts
        and ``until`` the first that no longer does: an aware datetime, or a date, which is the beginning of that day in
        ``tz``. Replies that ``import_payload`` brought are counted only with ``include_imported`` or
        ``kind="imported"``.

        Raises:
            ConfigurationError: a grouping or the zone is unknown, a datetime has no zone, or the range ends before it
                begins.
        """
        asked = _question(by, since, until, tz, owner, model, provider, context, kind, outcome, include_imported)
        return self._runner.run(sums, asked)

    async def ausage(
        self,
        by: str | Iterable[str] = ("model",),
        *,
        since: dt.datetime | dt.date | None = None,
        until: dt.datetime | dt.date | None = None,
        tz: str | dt.tzinfo = "UTC",
        owner: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        context: UUID | str | None = None,
        kind: Kind | None = None,
        outcome: Outcome | None = None,
        include_imported: bool = False,
    ) -> list[UsageRow]:
        """``usage`` for asyncio."""
        asked = _question(by, since, until, tz, owner, model, provider, context, kind, outcome, include_imported)
        return await self._runner.arun(sums, asked)

    # -- attempts

    def attempts(self, id: UUID | str, *, owner: str | None = None) -> list[UsageEntry]:
        """What the ledger holds of one context, deleted or not: every attempt at a provider, the oldest first."""
        return self._runner.run(ledger.attempts, clock.parse_id(id), owner)

    async def aattempts(self, id: UUID | str, *, owner: str | None = None) -> list[UsageEntry]:
        """``attempts`` for asyncio."""
        return await self._runner.arun(ledger.attempts, clock.parse_id(id), owner)

    def record_usage(self, turn: Turn, *, owner: str | None = None) -> int:
        """Write what ``turn`` (of an error, or of a context whose transaction was rolled back) paid for to the ledger.

        Returns how many attempts were not there yet; it may be called again.
        """
        return self._runner.run(ledger.record_turn, turn, owner)

    async def arecord_usage(self, turn: Turn, *, owner: str | None = None) -> int:
        """``record_usage`` for asyncio."""
        return await self._runner.arun(ledger.record_turn, turn, owner)

    def correct_usage(
        self,
        id: UUID | str,
        attempt: UUID | str,
        usage: TokenUsage | Mapping[str, Any],
        *,
        price: Price | Mapping[str, Any] | None = None,
    ) -> bool:
        """Enter what an attempt used that the provider did not say at the time, once: an unknown becomes known.

        ``id`` is the context's, ``attempt`` the ``.id`` of one of ``attempts(id)``. The ledger is corrected, and with
        it every sum and view of usage; the message and the context's own counts stay what the provider said. Without
        ``price`` (as ``llm.price(model)`` gives it, or USD per million tokens as a mapping) it stays unpriced.

        Returns whether it was entered: False when the usage of that attempt is known already, which stays.

        Raises:
            ContextNotFoundError: there is no such attempt.
            ConfigurationError: the usage says nothing, or has a count that cannot be.
        """
        checked, rates = ledger.checked_usage(usage), _price(price)
        return self._runner.run(ledger.correct, clock.parse_id(id), clock.parse_id(attempt), checked, rates)

    async def acorrect_usage(
        self,
        id: UUID | str,
        attempt: UUID | str,
        usage: TokenUsage | Mapping[str, Any],
        *,
        price: Price | Mapping[str, Any] | None = None,
    ) -> bool:
        """``correct_usage`` for asyncio."""
        checked, rates = ledger.checked_usage(usage), _price(price)
        return await self._runner.arun(ledger.correct, clock.parse_id(id), clock.parse_id(attempt), checked, rates)

    # -- retention

    def purge(
        self,
        older_than: dt.timedelta | dt.datetime,
        *,
        owner: str | None = None,
        action: Literal["archive", "delete"] = "archive",
        erase_usage: bool = False,
        batch: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Archive, or delete for good, the contexts that were not saved since: an age, or an aware datetime.

        It works in transactions of ``batch`` contexts and may be stopped and called again at any time; after each,
        ``progress`` is told how many there were so far. What is archived can be brought back by ``unarchive``; what is
        deleted is in no table but the ledger, whose sums do not change unless ``erase_usage``. A context that somebody
        holds a lease on is left alone.

        Returns how many contexts there were.

        Raises:
            ConfigurationError: ``older_than`` lies in the future or has no zone, or ``erase_usage`` without deleting.
        """
        return self._runner.drive(retention.purge(older_than, owner, action, erase_usage, batch, progress))

    async def apurge(
        self,
        older_than: dt.timedelta | dt.datetime,
        *,
        owner: str | None = None,
        action: Literal["archive", "delete"] = "archive",
        erase_usage: bool = False,
        batch: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """``purge`` for asyncio."""
        return await self._runner.adrive(retention.purge(older_than, owner, action, erase_usage, batch, progress))

    def erase(self, owner: str, *, batch: int = 500) -> Erased:
        """Forget ``owner``: nothing that she wrote or read, and not her name, is left in any table.

        Her contexts are deleted, archived ones too. What she used stays in the sums, under a random name that says
        nothing (``.owner`` of the result); the ids that providers gave, their raw usage and the texts of errors go. It
        works in transactions of ``batch`` contexts and may be called again: after one that was stopped, or for a turn
        that was under way meanwhile. What the database keeps beside its tables (backups, logs, the free pages of a
        file) is not in its reach.

        Raises:
            ConfigurationError: ``owner`` cannot be the name of one.
        """
        return self._runner.drive(retention.erase(owner, batch))

    async def aerase(self, owner: str, *, batch: int = 500) -> Erased:
        """``erase`` for asyncio."""
        return await self._runner.adrive(retention.erase(owner, batch))


def _question(
    by: str | Iterable[str],
    since: dt.datetime | dt.date | None,
    until: dt.datetime | dt.date | None,
    tz: str | dt.tzinfo,
    owner: str | None,
    model: str | None,
    provider: str | None,
    context: UUID | str | None,
    kind: str | None,
    outcome: str | None,
    include_imported: bool,
) -> Question:
    return question(
        by,
        since,
        until,
        tz,
        include_imported,
        owner=owner,
        model=model,
        provider=provider,
        context=None if context is None else clock.parse_id(context),
        kind=kind,
        outcome=outcome,
    )


def _price(price: Price | Mapping[str, Any] | None) -> Price | None:
    return price if price is None or isinstance(price, Price) else Price.of(price)
