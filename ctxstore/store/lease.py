"""Leases: one writer at a time on a context, across threads, tasks, processes and machines.

The database's clock judges. Taking a lease counts ``lease_epoch`` up, and every save under it demands that epoch: a
writer whose lease ran out and was taken over can no longer save.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from uuid import UUID

import sqlalchemy as sa

from ..context import Context
from ..errors import ConfigurationError, ContextLockedError, StoreUnavailableError
from . import repository
from .running import Flow, Runner, job
from .statements import database_later, database_now
from .tables import contexts
from .types import NAME_LENGTH

__all__ = ["AsyncLease", "Lease"]


def holder() -> str:
    """Who holds a lease: host, process and thread for people, and what tells this lease from every other."""
    thread = threading.current_thread().name
    return f"{socket.gethostname()}:{os.getpid()}:{thread}-{secrets.token_hex(4)}"[-NAME_LENGTH:]


def take(c: sa.Connection, context_id: UUID, owner: str | None, who: str, seconds: float) -> int | ContextLockedError:
    """The epoch of the lease taken, or the refusal while somebody else holds it.

    Raises:
        ContextNotFoundError: there is no such context, or it is another owner's.
    """
    mine = [contexts.c.id == context_id, *([contexts.c.owner == owner] if owner is not None else [])]
    free = sa.or_(contexts.c.locked_until.is_(None), contexts.c.locked_until <= database_now())
    taken = c.execute(
        sa.update(contexts)
        .where(*mine, free)
        .values(
            locked_by=who,
            locked_until=database_later(sa.bindparam("seconds", seconds, type_=sa.Float())),
            lease_epoch=contexts.c.lease_epoch + 1,
        )
    ).rowcount
    there = sa.select(contexts.c.lease_epoch, contexts.c.locked_by, contexts.c.locked_until).where(*mine)
    row = c.execute(there.with_for_update()).first()
    if row is None:
        raise repository.not_found(context_id)
    if taken or row.locked_by == who:  # an earlier try got through, only its answer was lost
        return int(row.lease_epoch)
    return repository.locked(context_id, row)


def release(c: sa.Connection, context_id: UUID, who: str) -> None:
    """Give the lease back, if it is still ours."""
    c.execute(
        sa.update(contexts)
        .where(contexts.c.id == context_id, contexts.c.locked_by == who)
        .values(locked_by=None, locked_until=None)
    )


class _Leasing:
    """What both worlds share: taking the lease, loading under it, giving it back."""

    def __init__(
        self,
        runner: Runner,
        context_id: UUID,
        owner: str | None,
        wait: float,
        length: float,
        open_: Callable[[float], Flow[Context]],
    ) -> None:
        if wait < 0 or length <= 0:
            raise ConfigurationError(f"a lease needs wait >= 0 and length > 0 seconds, not {wait} and {length}")
        self._runner, self._id, self._owner, self._open = runner, context_id, owner, open_
        self._wait, self._length = wait, length
        self._who = ""
        self._context: Context | None = None

    def _acquire(self) -> Flow[Context]:
        self._who, until, pause = holder(), time.monotonic() + self._wait, 0.01
        while True:
            got = yield from job(take, self._id, self._owner, self._who, self._length)
            if isinstance(got, int):
                break
            left = until - time.monotonic()
            if left <= 0:
                raise got
            yield min(left, random.uniform(pause / 2, pause))
            pause = min(pause * 1.5, 0.25)
        try:
            ctx = yield from self._open(self._length)
        except Exception:
            yield from self._release()
            raise
        ctx.state.lease_epoch = got
        self._context = ctx
        return ctx

    def _release(self) -> Flow[None]:
        if self._context is not None:
            self._context.state.lease_epoch = None
        try:
            yield from job(release, self._id, self._who)
        except StoreUnavailableError:
            pass  # it runs out by itself; what was done under it is saved


class Lease(_Leasing):
    """``with store.lease(...) as ctx``: the context, loaded after the lease was taken, and given back at the end."""

    def __enter__(self) -> Context:
        try:
            return self._runner.drive(self._acquire())
        except BaseException as error:
            if not isinstance(error, Exception):  # cut short by Ctrl-C: nobody knows whether it was taken
                self._runner.drive(self._release())
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._runner.drive(self._release())


class AsyncLease(_Leasing):
    """``async with store.alease(...) as ctx``: the same for asyncio."""

    async def __aenter__(self) -> Context:
        try:
            return await self._runner.adrive(self._acquire())
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: nobody knows whether it was taken
                await asyncio.shield(self._runner.adrive(self._release()))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(self._runner.adrive(self._release()))
