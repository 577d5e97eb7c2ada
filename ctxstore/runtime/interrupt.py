"""Ending a turn from outside: the switch that ``ctx.interrupt()`` throws, and the order in which turns are served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError, Interrupted

__all__ = ["Interruption", "TurnQueue"]


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
        """Throw it: everyone registered is woken, in the calling thread."""
        with self._lock:
            self._event.set()
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

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


class TurnQueue:
    """First come, first served, for threads and tasks alike: turns of one context never interleave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Any = None
        self._waiting: deque[tuple[Any, Callable[[], object]]] = deque()

    def acquire(self) -> None:
        """Wait for this thread's turn."""
        me = threading.get_ident()
        woken = threading.Event()
        entry = (me, woken.set)
        if not self._enter(entry):
            try:
                woken.wait()
            except BaseException:
                self._leave(entry)
                raise

    async def aacquire(self) -> None:
        """Wait for this task's turn."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        entry = (task, lambda: loop.call_soon_threadsafe(wake))
        if not self._enter(entry):
            try:
                await future
            except BaseException:
                self._leave(entry)
                raise

    def release(self) -> None:
        """Let the next one in."""
        with self._lock:
            self._holder, wake = self._waiting.popleft() if self._waiting else (None, None)
        if wake is not None:
            wake()

    def _enter(self, entry: tuple[Any, Callable[[], object]]) -> bool:
        with self._lock:
            if self._holder is None:
                self._holder = entry[0]
                return True
            if self._holder == entry[0]:
                raise ConfigurationError(
                    "this context is in the middle of a turn: a tool, a callback or an unfinished stream of the same "
                    "turn cannot begin another; close the stream first, or use another context"
                )
            self._waiting.append(entry)
            return False

    def _leave(self, entry: tuple[Any, Callable[[], object]]) -> None:
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
                return
        self.release()  # it was served in the moment it gave up
