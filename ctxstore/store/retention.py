"""What is kept for how long: contexts by age, and owners who want to be forgotten.

Both are flows of short transactions, each of which does whole contexts: stopped anywhere, what was done is done, and
the next call goes on with the rest.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from .. import clock
from ..errors import ConfigurationError
from .periods import instant
from .running import Flow, job
from .statements import database_now
from .tables import contexts, in_flight, messages, usage
from .types import check_owner

__all__ = ["Erased", "erase", "purge"]

ANONYMOUS = "erased-"


@dataclass(frozen=True, slots=True)
class Erased:
    """What ``store.erase`` did: the name that stands for the owner now, how many contexts and attempts were hers."""

    owner: str
    contexts: int
    attempts: int


def purge(
    older_than: dt.timedelta | dt.datetime,
    owner: str | None,
    action: str,
    erase_usage: bool,
    batch: int,
    progress: Callable[[int], object] | None,
) -> Flow[int]:
    """Archive or delete what was not saved since, batch after batch; how many contexts there were.

    Raises:
        ConfigurationError: an argument cannot be.
    """
    before = _moment(older_than)
    if action not in ("archive", "delete"):
        raise ConfigurationError(f"action is 'archive' or 'delete', not {action!r}")
    if erase_usage and action != "delete":
        raise ConfigurationError("erase_usage goes with action='delete': what is archived can be talked to again")
    _check_batch(batch)
    done, last = 0, None
    while True:
        found, last = yield from job(_purge, before, owner, action, erase_usage, batch, last)
        done += found
        if last is None:
            return done
        if progress is not None:
            progress(done)


def _moment(older_than: Any) -> dt.datetime:
    now = clock.now()
    if isinstance(older_than, dt.timedelta):
        try:
            moment = now - older_than
        except OverflowError as error:
            raise ConfigurationError(f"older_than is more than there is of time: {older_than}") from error
    else:
        found = instant(older_than, dt.UTC, "older_than") if isinstance(older_than, dt.datetime) else None
        if found is None:
            raise ConfigurationError(f"older_than is a timedelta or an aware datetime, not {older_than!r}")
        moment = found
    if moment > now:
        raise ConfigurationError(f"older_than lies in the future: {older_than}")
    return moment


def _check_batch(batch: int) -> None:
    if type(batch) is not int or not 1 <= batch <= 10_000:
        raise ConfigurationError(f"batch is a number from 1 to 10,000, not {batch!r}")


_Place = tuple[dt.datetime, UUID]


def _purge(
    c: sa.Connection,
    before: dt.datetime,
    owner: str | None,
    action: str,
    erase_usage: bool,
    batch: int,
    after: _Place | None,
) -> tuple[int, _Place | None]:
    _alone(c)
    time, id = contexts.c.updated_at, contexts.c.id
    query = sa.select(time, id).where(
        time < before, sa.or_(contexts.c.locked_until.is_(None), contexts.c.locked_until <= database_now())
    )
    if owner is not None:
        query = query.where(contexts.c.owner == owner)
    if action == "archive":
        query = query.where(contexts.c.archived_at.is_(None))
    if after is not None:
        query = query.where(time >= after[0], sa.or_(time > after[0], id > after[1]))
    found = c.execute(query.order_by(time, id).limit(batch).with_for_update()).all()
    if not found:
        return 0, None
    ids = [row.id for row in found]
    if action == "archive":
        c.execute(sa.update(contexts).where(id.in_(ids)).values(archived_at=clock.now()))
    else:
        _delete(c, ids)
        if erase_usage:
            c.execute(sa.delete(usage).where(usage.c.context_id.in_(ids)))
    return len(ids), (found[-1].updated_at, found[-1].id)


def _alone(c: sa.Connection) -> None:
    """What is read next may be acted on: SQLite has no locks on rows, and its driver begins only before a change."""
    if c.dialect.name == "sqlite" and not getattr(c.connection.driver_connection, "in_transaction", False):
        c.exec_driver_sql("BEGIN IMMEDIATE")


def _delete(c: sa.Connection, ids: Sequence[UUID]) -> None:
    c.execute(sa.delete(contexts).where(contexts.c.id.in_(ids)))
    for table in (messages, in_flight):
        c.execute(sa.delete(table).where(table.c.context_id.in_(ids)))


# -- an owner


def erase(owner: str, batch: int) -> Flow[Erased]:
    """Delete the contexts of ``owner``, and make the ledger's rows those of nobody.

    Raises:
        ConfigurationError: ``owner`` cannot be the name of one.
    """
    if owner is None:
        raise ConfigurationError("erase needs the name of the owner; what has no owner has nobody's name on it")
    check_owner(owner)
    _check_batch(batch)
    anonymous = ANONYMOUS + secrets.token_hex(8)
    deleted = attempts = 0
    while count := (yield from job(_erase_contexts, owner, anonymous, batch)):
        deleted += count[0]
        attempts += count[1]
    while more := (yield from job(_erase_attempts, owner, anonymous, batch)):
        attempts += more
    return Erased(anonymous, deleted, attempts)


def _erase_contexts(c: sa.Connection, owner: str, anonymous: str, batch: int) -> tuple[int, int] | None:
    _alone(c)
    query = sa.select(contexts.c.id).where(contexts.c.owner == owner).limit(batch).with_for_update()
    ids = list(c.scalars(query))
    if not ids:
        return None
    _delete(c, ids)
    return len(ids), c.execute(_anonymized(anonymous).where(usage.c.context_id.in_(ids))).rowcount


def _erase_attempts(c: sa.Connection, owner: str, anonymous: str, batch: int) -> int:
    """Attempts of contexts that were deleted before, or that live in a table of the host's."""
    query = sa.select(usage.c.context_id).where(usage.c.owner == owner).limit(batch)
    ids = set(c.scalars(query))
    if not ids:
        return 0
    change = _anonymized(anonymous).where(usage.c.context_id.in_(ids), usage.c.owner == owner)
    return c.execute(change).rowcount


def _anonymized(anonymous: str) -> sa.Update:
    """The ledger's row without a word that came from outside but the names of provider and model."""
    nothing = dict.fromkeys(("usage_raw", "finish_reason", "error", "response_id", "request_id"))
    return sa.update(usage).values(owner=anonymous, **nothing)
