"""URLs, drivers, hosts' engines, asyncio: the same store in every world."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from ctxstore import Store, new_id
from ctxstore.errors import ConfigurationError, ContextLockedError, ContextNotFoundError, StaleContextError
from ctxstore.store.engines import url_of
from ctxstore.testing import ScriptedProvider

ODD = {"z": 2**70, "a": -0.0, "t": "nul\x00 lone \ud800 \U0001f44d", "n": None}


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:///a.db", "sqlite+pysqlite:///a.db"),
        ("sqlite+aiosqlite:///a.db", "sqlite+pysqlite:///a.db"),
        ("postgresql://u@h/d", "postgresql+psycopg://u@h/d"),
        ("postgres://u@h/d", "postgresql+psycopg://u@h/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql+psycopg://u@h/d"),
        ("mysql://u@h/d", "mysql+pymysql://u@h/d"),
        ("mariadb://u@h/d?charset=utf8mb4", "mariadb+pymysql://u@h/d?charset=utf8mb4"),
        ("mysql+aiomysql://u@h/d", "mysql+pymysql://u@h/d"),
    ],
)
def test_what_a_url_means(given: str, meant: str) -> None:
    assert str(url_of(given)) == meant


@pytest.mark.parametrize("wrong", ["nonsense", "oracle://u@h/d", "", 7, None])
def test_what_is_no_url(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        Store(wrong)


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("postgresql://u@h/d", "psycopg", "ctxstore[postgres]"),
        ("mysql://u@h/d", "pymysql", "ctxstore[mysql]"),
        ("mariadb://u@h/d", "pymysql", "ctxstore[mysql]"),
    ],
)
def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, url: str, missing: str, extra: str) -> None:
    _hide(monkeypatch, missing)
    with pytest.raises(ConfigurationError) as caught:
        Store(url).list()
    assert missing in str(caught.value) and extra in str(caught.value)


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("sqlite:///a.db", {"aiosqlite"}, "ctxstore[async]"),
        ("postgresql://u@h/d", {"psycopg", "asyncpg"}, "ctxstore[async,postgres]"),
        ("mysql://u@h/d", {"aiomysql", "asyncmy"}, "ctxstore[async,mysql]"),
    ],
)
def test_an_async_driver_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, url: str, missing: set[str], extra: str
) -> None:
    _hide(monkeypatch, *missing)
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(Store(url).alist())
    assert extra in str(caught.value)


def _hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name in names else find(name, *rest)  # noqa: E731
    monkeypatch.setattr("ctxstore.store.engines.find_spec", hidden)


# -- a host's engine


@pytest.fixture
def hostile(url: str) -> Any:
    """An engine of a host's whose JSON is its own."""
    options: dict[str, Any] = {}
    if not url.startswith("mysql"):
        options["json_deserializer"] = lambda text: {"not": "yours"}
        options["json_serializer"] = lambda value: '"nor mine"'
    engine = sa.create_engine(url, **options)
    yield engine
    engine.dispose()


def test_a_hosts_engine_is_taken_and_left_as_it_is(hostile: sa.Engine) -> None:
    before = hostile.pool.status(), hostile.get_execution_options()
    store = Store(hostile)
    ctx = store.create(llm("one"), metadata=ODD)
    ctx.talk(ODD["t"])
    back = store.load(ctx.id, llm())
    assert back.metadata == ODD and back.messages[0].text == ODD["t"] and back.to_json() == ctx.to_json()
    assert repr(back.metadata["a"]) == "-0.0"
    assert hostile.get_execution_options() == before[1]
    if hostile.dialect.name == "sqlite":
        with hostile.connect() as c:
            assert c.exec_driver_sql("PRAGMA busy_timeout").scalar() == 5000, "no pragma of ours"
    store.close()
    with hostile.connect() as c:
        assert c.exec_driver_sql("SELECT count(*) FROM ctxstore_contexts").scalar() == 1
    with pytest.raises(ConfigurationError, match="a-verbs"):
        asyncio.run(store.alist())


def test_a_hosts_async_engine_has_the_a_verbs_only(aurl: str) -> None:
    async def main() -> None:
        engine = create_async_engine(aurl)
        store = Store(engine)
        ctx = await store.acreate(llm("one", "two"), metadata=ODD)
        await ctx.atalk("a")
        with pytest.raises(ConfigurationError, match="a-verbs"):
            ctx.talk("b")
        with pytest.raises(ConfigurationError, match="a-verbs"):
            store.list()
        assert (await store.aload(ctx.id, llm())).metadata == ODD
        assert (await store.aget(ctx.id)).created_at == ctx.created_at
        await store.aclose()
        await engine.dispose()

    asyncio.run(main())


async def _whole_story(store: Store) -> None:
    """Every a-verb once."""
    me = str(new_id())
    ctx = await store.acreate(llm("one", "two"), owner=me, metadata=ODD)
    await ctx.atalk("a \x00 \ud800")
    stale = await store.aload(ctx.id, llm("never"), owner=me)
    ctx.user("b")
    await store.asave(ctx)
    stale.user("c")
    with pytest.raises(StaleContextError):
        await store.asave(stale)
    await store.asave(stale, on_conflict="append")
    assert [m.text for m in await store.amessages(ctx.id)] == ["a \x00 \ud800", "one", "b", "c"]
    assert [m.text for m in await store.ahistory(ctx.id, owner=me)] == ["a \x00 \ud800", "one", "b", "c"]
    assert (await store.alist(owner=me))[0] == await store.aget(ctx.id)
    async with store.alease(ctx.id, llm("three"), length=30) as live:
        with pytest.raises(ContextLockedError):
            async with store.alease(ctx.id, llm(), wait=0):
                raise AssertionError("there are two")
        await live.atalk("d")
    assert (await store.afork(ctx.id, at=1)).message_count == 2
    payload = await store.aexport(ctx.id)
    assert payload["metadata"] == ODD and len(payload["messages"]) == 6
    assert [m.text for m in await store.asearch("ONE", owner=me)] == ["one", "one"]
    assert (await store.ausage(by=("owner",)))[0].requests == 2
    assert await store.ain_flight(ctx.id) == []
    await store.aarchive(ctx.id)
    await store.aunarchive(ctx.id)
    await store.adelete(ctx.id)
    assert (await store.aimport_payload(payload)).id == ctx.id
    with pytest.raises(ContextNotFoundError):
        await store.adelete(ctx.id, owner=me)


def test_the_a_verbs_in_one_loop_after_another(store: Store) -> None:
    async def main() -> None:
        async with store:
            await _whole_story(store)

    for _ in range(2):
        asyncio.run(main())


@pytest.mark.databases("postgresql", "mysql")
def test_the_other_async_drivers(url: str) -> None:
    parsed = sa.make_url(url)
    driver = {"postgresql": "asyncpg", "mysql": "asyncmy"}[parsed.get_backend_name()]
    if not importlib.util.find_spec(driver):
        pytest.skip(f"{driver} is not installed")

    async def main() -> None:
        async with Store(parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}")) as store:
            assert (await store._runner.async_engine()).dialect.driver == driver
            await _whole_story(store)

    asyncio.run(main())


# -- SQLite


def test_in_memory_is_one_database_for_both_worlds_and_all_threads() -> None:
    with Store("sqlite://") as store:
        store.upgrade()
        ctx = store.create(llm(*["r"] * 9))
        ctx.talk("a")

        async def main() -> int:
            await (await store.aload(ctx.id, llm("b!"))).atalk("b")
            return len(await store.amessages(ctx.id))

        assert asyncio.run(main()) == 4
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    store.create(llm("x")).talk("y")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and len(store.list(limit=99)) == 21


@pytest.mark.databases("sqlite")
def test_our_own_files_survive_a_power_cut_by_default(url: str) -> None:
    with Store(url) as store, store.engine.connect() as c:
        assert c.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert c.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    with Store(url, synchronous="NORMAL", busy_timeout=1.5) as store, store.engine.connect() as c:
        assert c.exec_driver_sql("PRAGMA synchronous").scalar() == 1
        assert c.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1500
    with pytest.raises(ConfigurationError):
        Store(url, synchronous="OFF")  # type: ignore[arg-type]


@pytest.mark.databases("sqlite")
def test_a_file_that_may_only_be_read_can_be_read(url: str) -> None:
    with Store(url) as store:
        ctx = store.create(llm("one"))
        ctx.talk("a")
    with Store(f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true") as store:
        assert store.load(ctx.id, llm()).messages[-1].text == "one"


# -- engines and processes that would save halves, or leave something behind


def test_a_hosts_engine_that_commits_each_statement_saves_no_half_turn(url: str) -> None:
    host = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with Store(host) as store:
        ctx = store.create(llm("one", "two"))
        ctx.talk("a")

        @sa.event.listens_for(host, "before_cursor_execute")
        def killed(_: Any, __: Any, statement: str, *rest: Any) -> None:
            if statement.startswith("INSERT INTO ctxstore_messages"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ctx.talk("b")
        sa.event.remove(host, "before_cursor_execute", killed)
        assert store.get(ctx.id).message_count == len(store.messages(ctx.id)) == 2
    host.dispose()


def test_a_loop_that_ends_leaves_no_connection_and_no_thread(store: Store) -> None:
    def held() -> tuple[int, int]:
        gc.collect()  # what earlier tests left
        files = "/proc/self/fd"
        return threading.active_count(), len(os.listdir(files)) if os.path.isdir(files) else 0

    asyncio.run(store.alist())
    before = held()
    for _ in range(5):
        asyncio.run(store.alist())
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)


def test_a_forked_process_has_connections_of_its_own(store: Store) -> None:
    ctx = store.create(llm())

    def read() -> None:
        for _ in range(20):
            assert store.get(ctx.id).id == ctx.id

    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                read()
            except BaseException:
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    read()
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    read()


@pytest.mark.parametrize("url", ["sqlite:///no/such/folder/app.db", "sqlite://app.db"])
def test_a_file_that_cannot_be_is_a_matter_of_configuration(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be"):
        with Store(url) as store:
            store.upgrade()
