"""B05: first saves of several threads in one SQLite file failed with "database is locked"."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from ctxstore import Store
from ctxstore.errors import StoreUnavailableError

from .scenes import scripted, texts

pytestmark = pytest.mark.databases("sqlite")


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "a store each"])
def test_eight_first_saves_at_once(url, shared):
    barrier, made, failed = threading.Barrier(8), [], []
    common = Store(url)

    def work(n):
        try:
            store = common if shared else Store(url)
            barrier.wait()
            ctx = store.create(scripted(f"r{n}"), owner=str(n))
            ctx.talk(f"q{n}")
            made.append(ctx.id)
            if not shared:
                store.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = sorted(tuple(texts(common.load(identity, scripted()).messages)) for identity in made)
    assert found == [(f"q{n}", f"r{n}") for n in range(8)]
    common.close()


def test_eight_tasks_at_once(url):
    async def main():
        async with Store(url) as store:
            made = await asyncio.gather(*(store.acreate(scripted(f"r{n}")) for n in range(8)))
            await asyncio.gather(*(ctx.atalk("q") for ctx in made))
            assert sorted([(await store.aload(c.id, scripted())).messages[-1].text for c in made]) == [
                f"r{n}" for n in range(8)
            ]

    asyncio.run(main())


@pytest.mark.parametrize("world", ["sync", "async"])
def test_a_lock_that_is_kept_too_long_is_a_typed_error_and_nothing_is_lost(url, world):
    path = url.removeprefix("sqlite:///")
    with Store(url, busy_timeout=0.05) as store, asyncio.Runner() as runner:
        ctx = store.create(scripted("one", "two", "three"))
        ctx.talk("a")
        beside = sqlite3.connect(path, isolation_level=None)
        beside.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError) as caught:
            runner.run(ctx.atalk("b")) if world == "async" else ctx.talk("b")
        assert caught.value.retryable
        ctx.user("c")
        with pytest.raises(StoreUnavailableError):
            runner.run(store.asave(ctx)) if world == "async" else store.save(ctx)
        assert texts(store.load(ctx.id, scripted()).messages) == ["a", "one"], "the previous state loads meanwhile"
        beside.execute("COMMIT")
        beside.close()
        store.save(ctx)
        assert texts(store.load(ctx.id, scripted()).messages) == texts(ctx.messages)
        assert texts(ctx.messages)[-1] == "c"
        runner.run(store.aclose())
