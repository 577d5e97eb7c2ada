"""The store in ``context_options`` is one of the database that the row is in: another one is refused, and only that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ctxstore import Store
from ctxstore.errors import ConfigurationError
from ctxstore.testing import ScriptedProvider

from .hosts import REPLY, Base, Ticket, saved


@pytest.fixture
def given(Model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the rows give this store."""

    def give(store: Store) -> None:
        options = {"provider": ScriptedProvider([REPLY] * 9), "store": store}
        monkeypatch.setattr(Model, "context_options", lambda self: options)

    return give


@pytest.fixture
def elsewhere(host: sa.Engine, tmp_path: Path) -> Iterator[str]:
    """The URL of another database of the same kind."""
    if host.dialect.name == "sqlite":
        yield f"sqlite:///{tmp_path}/elsewhere.db"
        return
    name = f"{host.url.database}_2"
    with host.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            yield host.url.set(database=name).render_as_string(hide_password=False)
        finally:
            c.exec_driver_sql(f"DROP DATABASE {name}")


def refused(host: sa.Engine, Model: Any, given: Any, store: Store) -> None:
    given(store)
    with Session(host) as session:
        row = Model(title="mine")
        session.add(row)
        row.context.talk("1")
        with pytest.raises(ConfigurationError, match=r"of another database.*leave 'store' out") as caught:
            session.commit()
        assert [m.text for m in caught.value.turn.messages] == ["1", "pong"]  # type: ignore[union-attr]
        session.rollback()
        assert session.scalar(sa.select(sa.func.count()).select_from(Model)) == 0
    with Store(host) as beside:
        assert beside.usage(by=())[0].requests == 0


def taken(host: sa.Engine, Model: Any, given: Any, store: Store) -> None:
    given(store)
    saved(host, Model, "1", "2")
    assert store.usage(by=())[0].requests == 2


def test_a_database_of_the_same_kind(host: sa.Engine, Model: Any, given: Any, elsewhere: str) -> None:
    with Store(elsewhere) as store:
        store.upgrade()
        refused(host, Model, given, store)
    other = sa.create_engine(elsewhere)
    refused(host, Model, given, Store(other))
    other.dispose()


def test_a_database_of_another_kind(host: sa.Engine, Model: Any, given: Any, tmp_path: Path) -> None:
    refused(host, Model, given, Store("sqlite://"))
    url = "postgresql://127.0.0.1/x" if host.dialect.name == "sqlite" else f"sqlite:///{tmp_path}/x.db"
    refused(host, Model, given, Store(url))


@pytest.mark.parametrize("Model", [Ticket])
def test_a_database_of_the_same_kind_under_asyncio(
    host: sa.Engine, aurl: str, given: Any, Model: Any, elsewhere: str
) -> None:
    async def main(store: Store) -> None:
        engine = create_async_engine(aurl)
        given(store)
        async with AsyncSession(engine, expire_on_commit=False) as session:
            row = Model()
            session.add(row)
            await row.context.atalk("1")
            with pytest.raises(ConfigurationError, match="of another database"):
                await session.commit()
        await engine.dispose()

    async def on_an_engine() -> None:
        driver = make_url(aurl).drivername
        other = create_async_engine(make_url(elsewhere).set(drivername=driver))
        await main(Store(other))
        await other.dispose()

    with Store(elsewhere) as store:
        store.upgrade()
        asyncio.run(main(store))
    asyncio.run(on_an_engine())


def test_the_same_by_another_road(host: sa.Engine, url: str, given: Any, Model: Any) -> None:
    with Store(url) as store:
        taken(host, Model, given, store)


@pytest.mark.parametrize("Model", [Ticket])
@pytest.mark.parametrize("how", ["options", "engine", "its own engine", "name", "unreachable name"])
def test_the_same_by_other_names(
    host: sa.Engine, url: str, given: Any, Model: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_url(url)
    sqlite = host.dialect.name == "sqlite"
    if how == "options":
        query = {"timeout": "7"} if sqlite else {"connect_timeout": "7"}
        store = Store(here.set(query=query))
    elif how == "engine":
        store = Store(sa.create_engine(here))
    elif how == "its own engine":
        store = Store(here)
        host = store.engine
    elif sqlite:
        path = Path(str(here.database))
        monkeypatch.chdir(path.parent)
        if how == "name":
            store = Store(f"sqlite:///{path.name}")
        else:
            os.symlink(path, path.parent / "linked.db")
            store = Store(f"sqlite:///{path.parent}/linked.db")
    elif how == "name":  # as behind a pooler: what the URL calls it is not its name

        def connect(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
            parameters["dbname" if "dbname" in parameters else "database"] = here.database

        engine = sa.create_engine(here.set(database="alias"))
        sa.event.listen(engine, "do_connect", connect)
        store = Store(engine)
    else:  # nobody can tell
        with Store(here.set(port=1, database="alias")) as away:
            given(away)
            saved(host, Model, "1")
        with Store(here) as store:
            assert store.usage(by=())[0].requests == 1
        return
    taken(host, Model, given, store)
    store.engine.dispose()
    store.close()


@pytest.mark.databases("sqlite")
def test_a_file_that_is_attached(host: sa.Engine, url: str, given: Any, Model: Any, tmp_path: Path) -> None:
    """The host's tables in one file, ctxstore's in another, written in one transaction."""
    main = sa.create_engine(f"sqlite:///{tmp_path}/main.db")

    @sa.event.listens_for(main, "connect")
    def attach(connection: Any, record: Any) -> None:
        connection.execute("ATTACH DATABASE ? AS ctxstore", (make_url(url).database,))

    Base.metadata.create_all(main)
    with Store(url) as store:
        taken(main, Model, given, store)
    main.dispose()


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("Model", [Ticket])
def test_memory(host: sa.Engine, given: Any, Model: Any) -> None:
    with Store("sqlite://") as store, Store("sqlite://") as other:
        for one in (store, other):
            one.upgrade()
            Base.metadata.create_all(one.engine)
        taken(store.engine, Model, given, store)
        given(other)
        with Session(store.engine) as session:
            row = Model()
            session.add(row)
            row.context.talk("1")
            with pytest.raises(ConfigurationError, match="of another database"):
                session.commit()
    shared = sa.create_engine("sqlite:///file:shared?mode=memory&cache=shared&uri=true", poolclass=sa.pool.QueuePool)
    with Store(shared) as store, Store(shared.url) as same, shared.connect():
        store.upgrade()
        Base.metadata.create_all(shared)
        taken(shared, Model, given, same)
    shared.dispose()


@pytest.mark.parametrize("Model", [Ticket])
def test_a_session_of_several_databases(host: sa.Engine, url: str, given: Any, Model: Any, elsewhere: str) -> None:
    """What counts is the one that the row is in."""
    other = sa.create_engine(elsewhere)
    with Store(url) as store, Session(other, binds={Model: host}) as session:
        given(store)
        row = Model()
        session.add(row)
        row.context.talk("1")
        session.commit()
        assert store.usage(by=())[0].requests == 1
    with (
        Store(url) as store,
        host.connect() as c,
        c.begin() as outer,
        Session(c) as session,
    ):  # as in a test that rolls back
        row = Model()
        session.add(row)
        row.context.talk("2")
        session.commit()
        outer.rollback()
        assert store.usage(by=())[0].requests == 1
    other.dispose()
