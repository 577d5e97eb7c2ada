"""Two writers, lost answers, busy and absent databases: a turn is saved or told, never lost and never doubled."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, new_id
from ctxstore.errors import (
    ConfigurationError,
    ContextNotFoundError,
    ServerError,
    StaleContextError,
    StoreError,
    StoreUnavailableError,
)
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 10, "output_tokens": 2}


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider([{"text": r, "usage": USAGE} if isinstance(r, str) else r for r in replies])


def texts(store: Store, ctx: Context) -> list[str | None]:
    return [m.text for m in store.load(ctx.id, llm()).messages]


def overtaken(store: Store) -> tuple[Context, Context]:
    """Two live copies of one context, the second of which has saved a turn meanwhile."""
    ctx = store.create(llm("one", "winner"))
    ctx.talk("a")
    mine = store.load(ctx.id, llm("mine", "later"))
    ctx.talk("b")
    return mine, ctx


def test_a_lost_turn_is_put_after_the_winners_when_asked(store: Store) -> None:
    ctx = store.create(llm("one"))
    ctx.talk("a")
    provider = llm("mine", "later")
    mine = store.load(ctx.id, provider)
    other = store.load(ctx.id, llm("winner"))
    provider.on_request = lambda request: other.talk("b") if len(other.messages) == 2 else None
    with pytest.raises(StaleContextError) as caught:
        mine.talk("c")
    assert [m.text for m in caught.value.turn.messages] == ["c", "mine"]  # type: ignore[union-attr]
    assert [e.outcome for e in caught.value.turn.usage] == ["ok"]  # type: ignore[union-attr]
    assert [m.text for m in mine.messages] == ["a", "one"]
    store.save(mine, on_conflict="append")
    assert [m.text for m in mine.messages] == ["a", "one", "b", "winner", "c", "mine"] == texts(store, mine)
    assert mine.token_usage.total_tokens == 36
    assert [(r.outcome, r.requests) for r in store.usage(by=("outcome",))] == [("lost", 1), ("ok", 2)]
    mine.talk("d")
    assert texts(store, mine)[-2:] == ["d", "later"]
    assert store.in_flight(mine.id) == []
    store.save(mine, on_conflict="append")
    assert len(texts(store, mine)) == 8, "once is enough"


def test_unsaved_messages_are_put_after_the_winners_when_asked(store: Store) -> None:
    mine, _ = overtaken(store)
    mine.user("mine")
    with pytest.raises(StaleContextError) as caught:
        store.save(mine)
    assert [m.text for m in caught.value.turn.messages] == ["mine"]  # type: ignore[union-attr]
    store.save(mine, on_conflict="append")
    assert texts(store, mine) == ["a", "one", "b", "winner", "mine"]


def test_what_was_taken_out_cannot_be_appended(store: Store) -> None:
    mine, _ = overtaken(store)
    mine.clear()
    with pytest.raises(StaleContextError):
        store.save(mine, on_conflict="append")
    assert texts(store, mine) == ["a", "one", "b", "winner"]
    with pytest.raises(ConfigurationError):
        store.save(mine, on_conflict="merge")  # type: ignore[arg-type]


def test_a_stale_writer_is_told_before_it_pays(store: Store) -> None:
    mine, _ = overtaken(store)
    with pytest.raises(StaleContextError) as caught:
        mine.talk("c")
    assert caught.value.turn is None and mine.provider.requests == []
    assert store.in_flight(mine.id) == []


@pytest.mark.parametrize("phase", ["create", "begin", "save"])
def test_a_commit_whose_answer_was_lost_is_recognised(store: Store, engine: sa.Engine, phase: str) -> None:
    """The COMMIT got through, the connection broke before its answer: no false conflict and no doubled turn."""
    host = Store(engine)
    breaking = {"create": 1, "begin": 2, "save": 3}[phase]
    count = 0
    real = engine.dialect.do_commit

    def commit(connection: Any) -> None:
        nonlocal count
        count += 1
        real(connection)
        if count == breaking:
            raise engine.dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")

    engine.dialect.do_commit = commit  # type: ignore[method-assign]
    ctx = host.create(llm("one", "two"))
    ctx.talk("a")
    del engine.dialect.do_commit
    assert texts(store, ctx) == ["a", "one"]
    ctx.talk("b")
    assert texts(store, ctx) == ["a", "one", "b", "two"] and store.in_flight(ctx.id) == []
    assert store.usage(by=())[0].requests == 2


def test_a_save_that_was_done_though_nobody_said_so_is_gone_on_from(store: Store, engine: sa.Engine) -> None:
    """The COMMIT got through and then the database was away: the caller is told, and the next save knows."""
    host = Store(engine)
    ctx = host.create(llm("one", "two"))
    real, away = engine.dialect.do_commit, False

    def commit(connection: Any) -> None:
        nonlocal away
        real(connection)
        away = True
        raise engine.dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")

    def execute(connection: Any, cursor: Any, *_: Any) -> None:
        if away:
            raise engine.dialect.loaded_dbapi.OperationalError("server is not there")

    ctx.provider.on_request = lambda request: setattr(engine.dialect, "do_commit", commit)
    sa.event.listen(engine, "before_cursor_execute", execute)
    with pytest.raises(StoreUnavailableError) as caught:
        ctx.talk("a")
    ctx.provider.on_request = None
    assert [m.text for m in caught.value.turn.messages] == ["a", "one"]  # type: ignore[union-attr]
    sa.event.remove(engine, "before_cursor_execute", execute)
    del engine.dialect.do_commit
    ctx.user("more")
    host.save(ctx)
    assert texts(store, ctx) == ["a", "one", "more"]
    ctx.talk("b")
    assert texts(store, ctx) == ["a", "one", "more", "b", "two"]
    assert store.usage(by=())[0].requests == 2


def test_what_could_not_be_saved_is_saved_by_the_next_save(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    ctx = host.create(llm("one"))

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            raise engine.dialect.loaded_dbapi.OperationalError("server is not there")

    sa.event.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(StoreUnavailableError):
        ctx.talk("a")
    sa.event.remove(engine, "before_cursor_execute", refuse)
    assert texts(store, ctx) == [] and len(store.in_flight(ctx.id)) == 1
    ctx.save()
    assert texts(store, ctx) == ["a", "one"] and store.in_flight(ctx.id) == []
    assert store.usage(by=())[0].requests == 1


def test_a_half_written_save_is_not_there(store: Store, engine: sa.Engine) -> None:
    host = Store(engine)
    ctx = host.create(llm("one", "two"))
    ctx.talk("a")

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO ctxstore_usage"):
            raise ZeroDivisionError

    before = store.get(ctx.id)
    sa.event.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(ZeroDivisionError):
        ctx.talk("b")
    sa.event.remove(engine, "before_cursor_execute", refuse)
    assert texts(store, ctx) == ["a", "one"] and store.get(ctx.id) == before


STRICT = {
    "sqlite": {"isolation_level": "SERIALIZABLE"},
    "postgresql": {"isolation_level": "SERIALIZABLE"},  # every conflict is a 40001
    "mysql": {"connect_args": {"init_command": "SET SESSION innodb_snapshot_isolation = ON"}},  # ... a 1020
}


@pytest.mark.parametrize("strict", [False, True])
def test_many_threads_lose_nothing_that_they_were_not_told_of(store: Store, url: str, strict: bool) -> None:
    ctx = store.create(llm())
    options: dict[str, Any] = STRICT[sa.make_url(url).get_backend_name()]
    told, done, broken = [], [], []

    def work(name: str) -> None:
        try:
            engine = sa.create_engine(url, **options)
            with Store(engine if strict else url) as mine:
                for n in range(6):
                    try:
                        mine.load(ctx.id, llm(f"{name}{n}!")).talk(f"{name}{n}")
                        done.append(f"{name}{n}")
                    except StaleContextError:
                        told.append(f"{name}{n}")
            engine.dispose()
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == [] and len(done) + len(told) == 36 and done
    found = texts(store, ctx)
    assert sorted(found[::2]) == sorted(done), "every acknowledged turn is there, once"  # type: ignore[type-var]
    assert found[1::2] == [f"{text}!" for text in found[::2]], "no turn is half there, none interleave"
    assert [m.position for m in store.history(ctx.id)] == list(range(len(found)))


def test_a_failed_request_is_in_the_ledger_and_not_in_flight(store: Store) -> None:
    ctx = store.create(llm(ServerError("overloaded", status=529), "one"), owner="o")
    with pytest.raises(ServerError):
        ctx.talk("a")
    assert store.in_flight(ctx.id) == []
    (row,) = store.usage(by=("owner",))
    assert (row.owner, row.requests, row.errors, row.usage.total_tokens) == ("o", 0, 1, 0)
    ctx.talk("a")
    assert store.usage(by=())[0].requests == 1


def test_usage_that_was_lost_can_be_recorded_once(store: Store) -> None:
    free = Context(llm("one"))
    free.talk("a")
    (entry,) = free.state.pending_usage
    from ctxstore.usage import Turn

    turn = Turn(new_id(), free.id, (), (entry,))
    assert store.record_usage(turn, owner="o") == 1
    assert store.record_usage(turn, owner="o") == 0
    assert store.usage(by=("owner",))[0].requests == 1


# -- SQLite's locks, and databases that are not there


@pytest.mark.databases("sqlite")
def test_a_lock_past_the_wait_is_told_and_what_was_saved_stays(url: str) -> None:
    with Store(url, busy_timeout=0.2) as store:
        ctx = store.create(llm("one", "two"))
        ctx.talk("a")
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="busy"):
            ctx.talk("b")
        assert StoreUnavailableError.retryable
        assert texts(store, ctx) == ["a", "one"]
        other.execute("ROLLBACK")
        other.close()
        ctx.talk("b")
        assert texts(store, ctx) == ["a", "one", "b", "two"]


@pytest.mark.databases("sqlite")
def test_first_access_by_many_at_once(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    barrier, failures = threading.Barrier(8), []

    def work() -> None:
        try:
            barrier.wait()
            with Store(url) as store:
                store.upgrade()
                store.create(llm("one")).talk("a")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Store(url) as store:
        assert [s.message_count for s in store.list()] == [2] * 8


@pytest.mark.databases("postgresql", "mysql")
def test_connections_that_the_server_cut_are_made_anew(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm("one"))
    with engine.connect() as c:
        if engine.dialect.name == "postgresql":
            c.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        else:
            others = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
            for number in c.exec_driver_sql(others).scalars().all():
                c.exec_driver_sql(f"KILL {number}")
    ctx.talk("a")
    assert texts(store, ctx) == ["a", "one"]


def test_a_server_that_is_not_there(_server: Any) -> None:  # noqa: PT019 -- its value is used
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted: type[Exception] = StoreUnavailableError
    if _server is None:  # a folder that is not there does not come by itself
        url, wanted = "sqlite:////nowhere/at/all.db", ConfigurationError
    else:
        url = f"{_server.base.get_backend_name()}://someone:secret@127.0.0.1:{port}/x"
    with Store(url) as store, pytest.raises(wanted) as caught:
        store.list()
    assert "secret" not in str(caught.value) and "secret" not in repr(store)

    async def main() -> None:
        async with Store(url) as store:
            with pytest.raises(wanted):
                await store.alist()
        await asyncio.sleep(0.1)  # aiosqlite's thread still has something to tell the loop after it could not connect

    asyncio.run(main())


@pytest.mark.databases("postgresql", "mysql")
def test_a_database_that_does_not_let_us_in(_server: Any) -> None:  # noqa: PT019 -- its value is used
    url = _server.base.set(database="ctxstore_no_such_database")
    with Store(url) as store, pytest.raises(ConfigurationError, match="ctxstore_no_such_database"):
        store.list()

    async def main(url: sa.URL) -> None:
        async with Store(url) as store:
            await store.alist()

    for driver in ("psycopg", "asyncpg") if _server.postgres else ("aiomysql",):
        with pytest.raises(ConfigurationError, match="ctxstore_no_such_database"):
            asyncio.run(main(url.set(drivername=f"{url.get_backend_name()}+{driver}")))


def test_what_the_database_refuses_is_an_error_of_ours_without_the_text(store: Store, engine: sa.Engine) -> None:
    ctx = store.create(llm("one"))
    with engine.begin() as c:
        if engine.dialect.name == "sqlite":
            c.exec_driver_sql(
                "CREATE TRIGGER no BEFORE INSERT ON ctxstore_messages BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        elif engine.dialect.name == "postgresql":
            c.exec_driver_sql("ALTER TABLE ctxstore_messages ADD CONSTRAINT no CHECK (position < 0)")
        else:
            c.exec_driver_sql(
                "CREATE TRIGGER no_rows BEFORE INSERT ON ctxstore_messages FOR EACH ROW "
                "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"
            )
    try:
        with pytest.raises(StoreError) as caught:
            ctx.talk("my secret")
        assert type(caught.value).__module__ == "ctxstore.errors"
        assert "my secret" not in str(caught.value)
        assert [m.text for m in caught.value.turn.messages] == ["my secret", "one"]  # type: ignore[union-attr]
        assert texts(store, ctx) == []
    finally:
        with engine.begin() as c:
            if engine.dialect.name == "postgresql":
                c.exec_driver_sql("ALTER TABLE ctxstore_messages DROP CONSTRAINT no")
            else:
                c.exec_driver_sql(f"DROP TRIGGER {'no' if engine.dialect.name == 'sqlite' else 'no_rows'}")
    with pytest.raises(ContextNotFoundError):
        store.get(new_id())


# -- what else a context holds when its turn is put after another's


def test_metadata_that_were_not_saved_are_put_there_too(store: Store) -> None:
    mine, _ = overtaken(store)
    mine.metadata = {"k": 1}
    mine.user("c")
    store.save(mine, on_conflict="append")
    assert store.load(mine.id, llm()).metadata == {"k": 1}


def test_metadata_that_both_changed_are_not_merged_in_silence(store: Store) -> None:
    mine, theirs = overtaken(store)
    theirs.metadata = {"k": 2}
    theirs.save()
    mine.metadata = {"k": 1}
    with pytest.raises(StaleContextError, match="metadata"):
        store.save(mine, on_conflict="append")
    assert store.load(mine.id, llm()).metadata == {"k": 2}


def test_a_context_goes_on_with_its_own_provider_after_anothers_turn(store: Store) -> None:
    mine, theirs = overtaken(store)
    theirs.use(ScriptedProvider(["elsewhere"], model="other-1"), model="other-1").talk("c")
    mine.user("d")
    store.save(mine, on_conflict="append")
    mine.talk("e")
    assert mine._provider.requests[-1].model == "scripted-1"


@pytest.mark.databases("postgresql")
def test_a_deletion_while_a_turn_begins_leaves_no_prompt(store: Store, engine: sa.Engine, url: str) -> None:
    ctx = store.create(llm("one"))
    with Store(url) as other:
        deletion = threading.Thread(target=other.delete, args=(ctx.id,))

        @sa.event.listens_for(store.engine, "commit")
        def meanwhile(_: Any) -> None:
            if deletion.ident is None:
                deletion.start()
                deletion.join(0.3)

        with pytest.raises(ContextNotFoundError):
            ctx.talk("a secret")
        deletion.join()
    with engine.connect() as c:
        assert c.execute(sa.text("SELECT count(*) FROM ctxstore_in_flight")).scalar() == 0
