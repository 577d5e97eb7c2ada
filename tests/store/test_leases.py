"""Leases: one writer at a time, judged by the database's clock, taken over when they run out."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, clock, new_id
from ctxstore.errors import ConfigurationError, ContextLockedError, ContextNotFoundError, StaleContextError
from ctxstore.testing import ScriptedProvider


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


def texts(store: Store, ctx: Context) -> list[str | None]:
    return [m.text for m in store.load(ctx.id, llm()).messages]


def test_whoever_holds_it_is_named(store: Store) -> None:
    ctx = store.create(llm())
    with store.lease(ctx.id, llm("one"), length=60) as live:
        started = time.monotonic()
        with pytest.raises(ContextLockedError) as caught:
            with store.lease(ctx.id, llm(), wait=0.2):
                raise AssertionError("there are two")
        assert 0.2 <= time.monotonic() - started < 5
        host, pid, thread = caught.value.holder.split(":")  # type: ignore[union-attr]
        assert host and int(pid) and thread
        assert caught.value.until.tzinfo is not None
        row = store.get(ctx.id)
        assert row.locked_by == caught.value.holder and row.locked_until is not None
        live.talk("a")
    assert store.get(ctx.id).locked_by is None and texts(store, ctx) == ["a", "one"]


def test_nobody_else_saves_while_it_lives(store: Store) -> None:
    ctx = store.create(llm("never sent"))
    with store.lease(ctx.id, llm("one")) as live:
        with pytest.raises(ContextLockedError):
            ctx.talk("b")
        assert ctx.provider.replies == ["never sent"], "told before the request was sent"
        ctx.user("b")
        with pytest.raises(ContextLockedError) as caught:
            store.save(ctx)
        assert [m.text for m in caught.value.turn.messages] == ["b"]  # type: ignore[union-attr]
        live.talk("a")
    with pytest.raises(StaleContextError):
        store.save(ctx)


def test_it_is_given_back_after_an_exception(store: Store) -> None:
    ctx = store.create(llm())
    with pytest.raises(ZeroDivisionError):
        with store.lease(ctx.id, llm()):
            raise ZeroDivisionError
    with store.lease(ctx.id, llm(), wait=0):
        pass
    with pytest.raises(ConfigurationError):
        with store.lease(ctx.id, llm(), mode="no such mode"):
            raise AssertionError("such a context cannot be")
    with store.lease(ctx.id, llm(), wait=0):
        pass


def test_the_context_goes_on_after_the_block(store: Store) -> None:
    ctx = store.create(llm())
    with store.lease(ctx.id, llm("one", "two")) as live:
        live.talk("a")
    live.talk("b")
    assert texts(store, ctx) == ["a", "one", "b", "two"]


def test_one_that_ran_out_is_taken_over_and_its_writer_told(store: Store) -> None:
    ctx = store.create(llm())
    slow = store.lease(ctx.id, llm(), length=0.05)
    stale = slow.__enter__()
    stale.user("too late")
    time.sleep(0.1)
    with store.lease(ctx.id, llm(), wait=5) as live:
        with pytest.raises(ContextLockedError):
            stale.save()
        live.user("in time")
        live.save()
        slow.__exit__(None, None, None)
        assert store.get(ctx.id).locked_by is not None, "the old holder does not give back the new one's lease"
    assert texts(store, ctx) == ["in time"]


def test_one_that_ran_out_and_was_not_taken_over_still_saves(store: Store) -> None:
    ctx = store.create(llm())
    with store.lease(ctx.id, llm("one"), length=0.05) as live:
        live.user("a")
        time.sleep(0.1)
        live.save()
    assert texts(store, ctx) == ["a"]


def test_a_request_extends_it(store: Store) -> None:
    """A request may take longer than the lease: it is made to cover the request before that is sent."""
    provider = llm("one", "two")
    ctx = store.create(llm())
    with store.lease(ctx.id, provider, length=0.3) as live:
        first = store.get(ctx.id).locked_until

        def slow(request: Any) -> None:
            time.sleep(0.4)
            with pytest.raises(ContextLockedError):
                with store.lease(ctx.id, llm(), wait=0):
                    raise AssertionError("it was taken over in mid request")

        provider.on_request = slow
        live.talk("a")
        assert store.get(ctx.id).locked_until > first  # type: ignore[operator]
    assert texts(store, ctx) == ["a", "one"]


def test_a_save_brings_it_back_to_its_length(store: Store) -> None:
    """A request extends it by ten minutes: who dies after its turn must not hold the others up so long."""
    provider = llm("one", "two")
    ctx = store.create(llm())
    dead = store.lease(ctx.id, provider, length=0.3)
    live = dead.__enter__()  # and never an end of the block
    for prompt in "ab":
        live.talk(prompt)
    with store.lease(ctx.id, llm("three"), wait=10) as other:
        other.talk("c")
    assert texts(store, ctx) == ["a", "one", "b", "two", "c", "three"]


def test_the_databases_clock_judges(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm())
    now, later = {
        "sqlite": ("datetime('now')", "datetime('now', '62 seconds')"),
        "postgresql": ("clock_timestamp()", "clock_timestamp() + INTERVAL '62 seconds'"),
        "mysql": ("UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6) + INTERVAL 62 SECOND"),
    }[engine.dialect.name]
    with clock.frozen(dt.datetime(2099, 1, 1, tzinfo=dt.UTC)):
        with store.lease(ctx.id, llm(), length=60), engine.connect() as c:
            query = f"SELECT locked_until > {now} AND locked_until < {later} FROM ctxstore_contexts"
            assert c.exec_driver_sql(query).scalar()


def test_processes_wait_for_each_other(store: Store, url: str) -> None:
    ctx = store.create(llm())
    code = f"""
        import sys
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        with Store({url!r}) as store:
            for n in range(4):
                name = f"{{sys.argv[1]}}{{n}}"
                with store.lease({str(ctx.id)!r}, ScriptedProvider([name + "!"]), wait=60) as live:
                    live.talk(name)
    """
    processes = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), name]) for name in "abc"]
    assert [p.wait(timeout=120) for p in processes] == [0, 0, 0]
    found = texts(store, ctx)
    assert len(found) == 24 and len(set(found)) == 24
    assert found[1::2] == [f"{text}!" for text in found[::2]]


def test_tasks_wait_for_each_other(url: str) -> None:
    async def main() -> list[str | None]:
        async with Store(url) as store:
            ctx = await store.acreate(llm())

            async def one(name: str) -> None:
                for n in range(3):
                    async with store.alease(ctx.id, llm(f"{name}{n}!"), wait=60) as live:
                        await live.atalk(f"{name}{n}")

            await asyncio.gather(*(one(name) for name in "abc"))
            return [m.text for m in (await store.aload(ctx.id, llm())).messages]

    found = asyncio.run(main())
    assert len(set(found)) == 18 and found[1::2] == [f"{text}!" for text in found[::2]]


def test_what_cannot_be_leased(store: Store) -> None:
    with pytest.raises(ContextNotFoundError):
        with store.lease(new_id(), llm()):
            raise AssertionError("there is none")
    ctx = store.create(llm(), owner="a")
    with pytest.raises(ContextNotFoundError):
        with store.lease(ctx.id, llm(), owner="b"):
            raise AssertionError("it is another's")
    for options in ({"wait": -1}, {"length": 0}):
        with pytest.raises(ConfigurationError):
            store.lease(ctx.id, llm(), **options)  # type: ignore[arg-type]


def test_one_that_was_cancelled_while_it_was_taken_is_given_back(store: Store) -> None:
    ctx = store.create(llm())

    async def main() -> None:
        async with store:
            for step in range(25):
                try:
                    async with asyncio.timeout(step * 0.0005), store.alease(ctx.id, llm(), wait=0, length=300):
                        await asyncio.sleep(5)
                except TimeoutError:
                    pass
                assert (await store.aget(ctx.id)).locked_by is None, f"after {step * 0.5} ms"

    asyncio.run(main())


def test_one_whose_taking_got_no_answer_is_ours(store: Store) -> None:
    ctx = store.create(llm("one"))
    lost = []

    @sa.event.listens_for(store.engine, "commit")
    def lose(connection: sa.Connection) -> None:
        if not lost:
            lost.append(connection)
            connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
            raise sa.exc.OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)

    with store.lease(ctx.id, llm("one"), wait=0) as live:
        live.talk("a")
    assert lost and store.get(ctx.id).locked_by is None and texts(store, ctx) == ["a", "one"]
