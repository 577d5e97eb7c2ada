"""Ending a turn from outside: the switch that ``ctx.interrupt()`` throws, and the order in which turns are served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, Interrupted

__all__ = ["Caller", "Interruption", "TurnQueue", "helping"]


class Interruption:
    """One turn's switch. Thrown once, from any thread; whoever waits registers how it is to be woken."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._next = 0

    @property
    def is_set(self) -> bool:
        """Whether it was thrown."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise Interrupted when it was thrown."""
        if self._event.is_set():
            raise Interrupted()

    def set(self) -> None:
        """Throw it: everyone registered is woken once, in the calling thread."""
        with self._lock:
            callbacks = [] if self._event.is_set() else list(self._callbacks.values())
            self._event.set()
        for callback in callbacks:
            try:
                callback()
            except RuntimeError:
                pass  # its loop is closed: nobody waits there any more

    def on_interrupt(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have ``callback`` called when it is thrown, at once if it was. Returns what takes the callback back."""
        with self._lock:
            key, self._next = self._next, self._next + 1
            self._callbacks[key] = callback
            thrown = self._event.is_set()
        if thrown:
            callback()

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return remove

    def wait(self, seconds: float) -> None:
        """Sleep; raises Interrupted as soon as it is thrown."""
        self._event.wait(seconds)
        self.check()


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Who asks for a turn: the thread, with the loop and the task in it, if it runs in any."""

    thread: int
    loop: asyncio.AbstractEventLoop | None
    task: asyncio.Task[Any] | None
    waits: bool
    """Whether it holds up its thread."""
    boss: Caller | None
    """Who waits for what this one does: a turn for a tool that runs in a thread or a task of its own."""
    wake: Callable[[], object]

    @classmethod
    def here(cls, *, waits: bool, wake: Callable[[], object] = lambda: None) -> Caller:
        """The code that is running now."""
        thread, loop = threading.get_ident(), asyncio._get_running_loop()
        task = asyncio.current_task() if loop is not None else None
        return cls(thread, loop, task, waits, _bosses.get(task) or _bosses.get(thread), wake)

    def is_within(self, holder: Caller) -> bool:
        """Whether the turn of ``holder`` stands still for this caller, or for who waits for it."""
        same = self.task is holder.task or (holder.waits and self.loop is not holder.loop)
        if same and self.thread == holder.thread:
            return True
        return self.boss is not None and self.boss.is_within(holder)

    def holds_up(self, holder: Caller) -> bool:
        """Whether the turn of ``holder`` cannot go on since this caller, or who waits for it, holds up its thread."""
        if self.waits and self.thread == holder.thread:
            return True
        return self.boss is not None and self.boss.holds_up(holder)


_bosses: dict[asyncio.Task[Any] | int | None, Caller] = {}
"""Who waits for what is done in a task or a thread."""


@contextmanager
def helping(boss: Caller) -> Iterator[None]:
    """``boss`` waits for what is done within, in this task or, outside of a loop, in this thread."""
    me = Caller.here(waits=False)
    key = me.task or me.thread
    before = _bosses.get(key)
    _bosses[key] = boss
    try:
        yield
    finally:
        if before is None:
            del _bosses[key]
        else:
            _bosses[key] = before


class TurnQueue:
    """First come, first served, for threads and tasks alike: turns of one context never interleave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Caller | None = None
        self._waiting: deque[Caller] = deque()

    def acquire(self) -> None:
        """Wait for this thread's turn.

        Raises:
            ConfigurationError: it could never come, because the turn under way needs this thread to go on.
        """
        woken = threading.Event()
        me = Caller.here(waits=True, wake=woken.set)
        if not self._enter(me):
            try:
                woken.wait()
            except BaseException:
                self._leave(me)
                raise

    async def aacquire(self) -> None:
        """Wait for this task's turn.

        Raises:
            ConfigurationError: as ``acquire``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        me = Caller.here(waits=False, wake=lambda: loop.call_soon_threadsafe(wake))
        if not self._enter(me):
            try:
                await future
            except BaseException:
                self._leave(me)
                raise

    def release(self) -> None:
        """Let the next one in."""
        while True:
            with self._lock:
                self._holder = self._waiting.popleft() if self._waiting else None
                holder = self._holder
            if holder is None:
                return
            try:
                holder.wake()
                return
            except RuntimeError:
                pass  # its loop was closed while it waited: it will never come

    def is_here(self) -> bool:
        """Whether the code that is running now is within the turn under way."""
        holder = self._holder
        return holder is not None and Caller.here(waits=False).is_within(holder)

    def _enter(self, me: Caller) -> bool:
        with self._lock:
            if self._holder is None:
                self._holder = me
                return True
            if me.is_within(self._holder):
                raise ConfigurationError(
                    "this context is in the middle of a turn: a tool, a callback or an unfinished stream of the same "
                    "turn cannot begin another; close the stream first, or use another context"
                )
            if me.holds_up(self._holder):
                raise ConfigurationError(
                    "this context is in the middle of a turn of another task, which cannot go on while this thread "
                    "waits for it: await the verb that begins with an a (atalk, asave ...)"
                )
            self._waiting.append(me)
            return False

    def _leave(self, me: Caller) -> None:
        with self._lock:
            if me in self._waiting:
                self._waiting.remove(me)
                return
        self.release()  # it was served in the moment it gave up
