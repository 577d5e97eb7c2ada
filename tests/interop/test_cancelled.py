"""Imports under asyncio that are cancelled: what was imported stays, nothing is half there, nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.interop import aimport_column, aimport_sessions
from ctxstore.store import running

from .rows import GOOD, V1, chats, sessions

COUNT = 12


@pytest.fixture(params=["openai-agents", "llm.rb"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[sa.Engine, Callable[..., Any]]]:
    if request.param == "llm.rb":
        path = chats(tmp_path / "host.db", [(i, V1) for i in range(COUNT)])
    else:
        path = sessions(tmp_path / "host.db", [(f"s{i}", GOOD, None) for i in range(COUNT)])
    engine = sa.create_engine(f"sqlite:///{path}")
    yield (
        engine,
        lambda store, **more: (
            aimport_column(store, engine, "chats", **more)
            if request.param == "llm.rb"
            else aimport_sessions(store, engine, **more)
        ),
    )
    engine.dispose()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13])
def test_a_cancellation_leaves_what_was_imported(
    store: Store, url: str, source: tuple[sa.Engine, Callable[..., Any]], steps: int
) -> None:
    engine, run = source
    before, done = threading.active_count(), 0

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def later(count: int) -> None:  # so that the cancellation falls anywhere: in a read, in a transaction
            if count:
                loop.call_soon(later, count - 1)
            else:
                task.cancel()

        def progress(count: int) -> None:
            nonlocal done
            done = count
            if count == 3:
                later(steps)

        own = Store(url)
        task = asyncio.ensure_future(run(own, progress=progress))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]

    asyncio.run(main())
    gc.collect()
    assert threading.active_count() == before
    there = store.list(limit=100)
    assert len(there) in (done, done + 1)
    assert not store.verify().findings
    rest = asyncio.run(run(store))
    assert (rest.imported, rest.there) == (COUNT - len(there), len(there))
    assert not rest.clashes and not store.verify().findings


@pytest.mark.databases("sqlite")
def test_a_read_that_does_not_end_is_left_to_its_thread(
    store: Store, source: tuple[sa.Engine, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, run = source
    monkeypatch.setattr(running, "GRACE", 0.01)
    reading, go_on = threading.Event(), threading.Event()

    def block(*_: Any) -> None:
        reading.set()
        go_on.wait(30)

    sa.event.listen(engine, "before_cursor_execute", block)

    async def main() -> None:
        task = asyncio.ensure_future(run(store))
        await asyncio.to_thread(reading.wait)
        task.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            go_on.set()

    asyncio.run(main())  # which waits for its threads
    gc.collect()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert store.list() == []
