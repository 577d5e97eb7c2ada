"""How store functions are run: each in a transaction of its own, again when the database asks for it, in both worlds.

A function takes a synchronous connection and decides by reading, so it may be run again. What takes more than one
transaction, or a wait, is a flow: a generator that yields ``Job``, ``Outside`` and seconds to wait. It never yields in
``finally``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.pool import Pool

from ..errors import ConfigurationError, CtxstoreError
from .engines import Synchronous, async_engine, connected_to, in_memory, names, sync_engine, transactional, url_of
from .failures import Patience, is_foreign

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # loads greenlet, which a synchronous program may not have

__all__ = ["Flow", "Job", "Outside", "Runner", "job", "outside"]

P = ParamSpec("P")
T = TypeVar("T")


class Job:
    """One function to be run in a transaction."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs


class Outside:
    """One function that waits for something else than our database; under asyncio it has a thread."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


Flow: TypeAlias = Generator[Job | Outside | float, Any, T]


def job(function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
    """Run ``function`` in a transaction and give its result; ``yield from`` this."""
    result: T = yield Job(function, args, kwargs)
    return result


def outside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
    """Run ``function``, which blocks, and give its result; ``yield from`` this."""
    result: T = yield Outside(partial(function, *args, **kwargs))
    return result


class _Loop:
    """The engine of one event loop, since pooled connections belong to theirs.

    It is held by an async generator, which the loop closes when it shuts down: ``asyncio.run`` leaves no connection
    and no thread behind, whether or not anyone called ``aclose()``.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine.execution_options(preserve_rowcount=True)
        self.holder = _hold(engine)


async def _hold(engine: AsyncEngine) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await engine.dispose()


GRACE = 10.0
"""Seconds that a cancellation waits for the transaction under way."""

_under_way: set[asyncio.Future[Any]] = set()
"""The loop knows its tasks only weakly."""


async def _whole(transaction: Coroutine[Any, Any, T]) -> T:
    """The result of ``transaction``, which a cancellation does not cut short: when it is raised, all is done or undone.

    What aiosqlite was cut off from keeps its transaction, and so the file's lock, until its cursor is collected.
    """
    task = asyncio.ensure_future(transaction)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task], timeout=GRACE)
        task.cancel()
        raise


class Runner:
    """Engines, and what runs on them. Nothing is connected to before the first call."""

    def __init__(
        self, database: str | URL | sa.Engine | AsyncEngine, *, synchronous: Synchronous, busy_timeout: float
    ) -> None:
        self._url: str | URL | None = None
        self._host: sa.Engine | None = None
        self._ahost: AsyncEngine | None = None
        self._own: sa.Engine | None = None
        self._aown: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._set_up: dict[str, Any] = {"synchronous": synchronous, "busy_timeout": busy_timeout}
        self._memory = False
        self._process = os.getpid()
        self._beside: WeakSet[Pool] = WeakSet()
        if isinstance(database, sa.Engine):
            self._host = database.execution_options(preserve_rowcount=True, **transactional(database))
        elif isinstance(database, str | URL):
            self._url = database
            self._memory = in_memory(url_of(database))
        elif isinstance(getattr(database, "sync_engine", None), sa.Engine):
            self._ahost = database.execution_options(preserve_rowcount=True, **transactional(database.sync_engine))
        else:
            raise ConfigurationError(f"a Store needs a URL, an Engine or an AsyncEngine, not {database!r}")

    def __repr__(self) -> str:
        if self._url is not None:
            return f"<Store {sa.make_url(self._url).render_as_string(hide_password=True)}>"
        return f"<Store {(self._host or self._ahost)!r}>"

    def _forked(self) -> None:
        """Leave the connections to the process that this one was forked from: two cannot speak on one."""
        self._process = os.getpid()
        if self._own is not None:
            self._own.dispose(close=False)

    @property
    def engine(self) -> sa.Engine:
        """The synchronous engine.

        Raises:
            ConfigurationError: the store stands on an ``AsyncEngine``, or the driver is not installed.
        """
        if self._host is not None:
            return self._host
        if self._url is None:
            raise ConfigurationError("this store stands on an AsyncEngine and has only the a-verbs (aload, asave ...)")
        if self._process != os.getpid() and not self._memory:
            self._forked()
        if self._own is None:
            engine = sync_engine(self._url, **self._set_up)
            self._own = engine.execution_options(preserve_rowcount=True)
        return self._own

    async def async_engine(self) -> AsyncEngine:
        """The asyncio engine; of a URL, one for each event loop.

        Raises:
            ConfigurationError: the store stands on a synchronous ``Engine``, or no asyncio driver is installed.
        """
        if self._ahost is not None:
            return self._ahost
        if self._url is None:
            raise ConfigurationError("this store stands on a synchronous Engine and has no a-verbs; give it a URL")
        loop = asyncio.get_running_loop()
        found = self._aown.get(loop)
        if found is None:
            for over in [known for known in list(self._aown) if known.is_closed()]:
                self._aown.pop(over, None)
            found = self._aown[loop] = _Loop(async_engine(self._url, **self._set_up))
            await anext(found.holder)  # from here on the loop knows it
        return found.engine

    def run(self, function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function`` in a transaction that is committed.

        Raises:
            StoreUnavailableError, DatabaseNotUpgradedError, StoreError: see ``Patience.wait``.
        """
        patience = Patience()
        while True:
            try:
                with self.engine.connect() as c:
                    c.begin()  # what is not committed is rolled back when the connection is closed
                    result = function(c, *args, **kwargs)
                    c.commit()
                    return result
            except Exception as error:
                if not is_foreign(error):
                    raise
                pause = patience.wait(error)
            time.sleep(pause)

    async def arun(self, function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``run`` for asyncio. SQLite's memory has no waits, so there it is the same connection."""
        if self._memory:
            return self.run(function, *args, **kwargs)
        return await _whole(self._arun(function, *args, **kwargs))

    async def _arun(self, function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        patience = Patience()
        while True:
            try:
                async with (await self.async_engine()).begin() as c:
                    return await c.run_sync(function, *args, **kwargs)
            except Exception as error:
                if not is_foreign(error):
                    raise
                pause = patience.wait(error)
            await asyncio.sleep(pause)

    def drive(self, flow: Flow[T]) -> T:
        """The result of ``flow``."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = flow.throw(error) if error is not None else flow.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = error = None
            try:
                if isinstance(step, Job):
                    answer = self.run(step.function, *step.args, **step.kwargs)
                elif isinstance(step, Outside):
                    answer = step.function()
                else:
                    time.sleep(step)
            except Exception as caught:
                error = caught

    async def adrive(self, flow: Flow[T]) -> T:
        """``drive`` for asyncio; a cancellation closes the flow where it stands."""
        answer: Any = None
        error: Exception | None = None
        try:
            while True:
                try:
                    step = flow.throw(error) if error is not None else flow.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer = error = None
                try:
                    if isinstance(step, Job):
                        answer = await self.arun(step.function, *step.args, **step.kwargs)
                    elif isinstance(step, Outside):
                        answer = await _whole(asyncio.to_thread(step.function))
                    else:
                        await asyncio.sleep(step)
                except Exception as caught:
                    error = caught
        finally:
            flow.close()

    def is_beside(self, c: sa.Connection) -> bool:
        """Whether ``c`` writes into this database; True as well where nobody can tell.

        Pools whose databases are called differently in their URLs are asked for the true names, once.
        """
        pool = c.engine.pool
        if pool not in self._beside:
            if not self._same(c):
                return False
            self._beside.add(pool)
        return True

    def _same(self, c: sa.Connection) -> bool:
        known = [self._host or self._own, self._ahost, *(there.engine for there in self._aown.values())]
        if any(engine is not None and engine.pool is c.engine.pool for engine in known):
            return True
        url = url_of(self._url) if self._url is not None else (self._host or self._ahost).url  # type: ignore[union-attr]
        (kind, name), (other_kind, other_name) = names(url), names(c.engine.url)
        if kind is None or other_kind is None:
            return True
        if kind != other_kind:
            return False
        if name is None:
            return not (self._memory and url.database in (None, "", ":memory:"))  # which is this runner's alone
        if name == other_name:
            return True
        own = {name} if kind == "sqlite" else self._true_names()
        return own is None or not own.isdisjoint(connected_to(c))

    def _true_names(self) -> set[str] | None:
        """What the database says that it is called, None when it cannot be asked from here."""
        from sqlalchemy.util.concurrency import await_only, in_greenlet  # loads greenlet

        try:
            if in_greenlet() and self._host is None:
                return await_only(self.arun(connected_to))
            return self.run(connected_to)
        except CtxstoreError:
            return None

    def close(self) -> None:
        """Close the connections of our own engines; a host's engine is left as it is."""
        if self._own is not None:
            self._own.dispose()
            self._own = None
        for there in self._aown.values():  # their loops are not ours to run: the connections are let go
            there.engine.sync_engine.dispose(close=False)
        self._aown.clear()

    async def aclose(self) -> None:
        """``close`` for asyncio: the connections of this loop are closed in order."""
        here = self._aown.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.holder.aclose()
        self.close()
