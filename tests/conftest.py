"""Databases for the tests, and a fence around them.

A test that asks for ``url`` or ``store`` runs on SQLite, PostgreSQL and MariaDB. Without ``CTXSTORE_TEST_URLS`` the
servers are looked for on the loopback address and a test is skipped, with the reason, where there is none.
``CTXSTORE_TEST_URLS`` (comma-separated, sync) names the servers instead, and then they have to be there; set but empty
it means SQLite alone. Tests never touch the database that a URL names: each worker makes one of its own on that server
and drops it at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url

HERE = ("postgresql+psycopg://postgres@127.0.0.1:5432/postgres", "mysql+pymysql://root@127.0.0.1:3306/mysql")
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+aiomysql"}

# A machine that is busy makes no test fail: examples may take as long as they do.
settings.register_profile("ctxstore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ctxstore")

# -- which databases


def _servers() -> dict[str, tuple[str, bool]]:
    """Name -> URL of the server and whether it was asked for by name."""
    given = os.environ.get("CTXSTORE_TEST_URLS")
    found = {}
    for text in HERE if given is None else (u.strip() for u in given.split(",") if u.strip()):
        url = make_url(text)
        url = url.set(drivername=DRIVERS[url.get_backend_name()])
        found[url.get_backend_name()] = (url.render_as_string(hide_password=False), given is not None)
    return found


SERVERS = _servers()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "_server" in metafunc.fixturenames:
        names = ["sqlite", *SERVERS]
        marker = metafunc.definition.get_closest_marker("databases")
        if marker is not None:
            names = [n for n in names if n in marker.args]
        metafunc.parametrize("_server", names, indirect=True)


# -- a database of our own on each


class _Server:
    """One server and this worker's database on it."""

    def __init__(self, text: str) -> None:
        self.base = make_url(text)
        self.postgres = self.base.get_backend_name() == "postgresql"
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.name = f"ctxtest_{worker}_{secrets.token_hex(4)}"
        self.url = self.base.set(database=self.name).render_as_string(hide_password=False)
        self.tables: set[str] | None = None
        """ctxstore's own tables and views, once they were made here."""
        arguments = {"connect_timeout": 5}
        self._admin = sa.create_engine(
            self.base, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool, connect_args=arguments
        )
        self._engine = sa.create_engine(self.url, poolclass=sa.NullPool, connect_args=arguments)

    def create(self) -> None:
        options = "TEMPLATE template0 ENCODING 'UTF8'" if self.postgres else "CHARACTER SET utf8mb4"
        with self._admin.connect() as c:
            c.exec_driver_sql(f"CREATE DATABASE {self.name} {options}")

    def drop(self) -> None:
        self._hang_up()
        with self._admin.connect() as c:
            c.exec_driver_sql(f"DROP DATABASE IF EXISTS {self.name}")

    def _hang_up(self) -> None:
        """End connections that an earlier test left: their locks would make this one wait."""
        with self._admin.connect() as c:
            if self.postgres:
                c.exec_driver_sql(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'"
                )
                return
            for (number,) in c.exec_driver_sql(
                f"SELECT id FROM information_schema.processlist WHERE db = '{self.name}'"
            ).all():
                try:
                    c.exec_driver_sql(f"KILL {int(number)}")
                except sa.exc.DBAPIError:
                    pass  # it ended by itself

    def _standing(self, c: sa.Connection) -> tuple[set[str], set[str]]:
        inspector = sa.inspect(c)
        return set(inspector.get_table_names()), set(inspector.get_view_names())

    def empty(self) -> None:
        """Leave nothing in the database."""
        self._hang_up()
        self.tables = None
        with self._engine.begin() as c:
            if self.postgres:
                schemas = c.exec_driver_sql(
                    "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
                ).scalars()
                for schema in schemas.all():
                    c.exec_driver_sql(f'DROP SCHEMA "{schema}" CASCADE')
                c.exec_driver_sql("CREATE SCHEMA public")
            else:
                self._drop(c, *self._standing(c))

    def _drop(self, c: sa.Connection, tables: set[str], views: set[str]) -> None:
        quote = c.dialect.identifier_preparer.quote
        cascade = " CASCADE" if self.postgres else ""
        if not self.postgres:
            c.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 0")
        for name in views:
            c.exec_driver_sql(f"DROP VIEW IF EXISTS {quote(name)}{cascade}")
        for name in tables:
            c.exec_driver_sql(f"DROP TABLE IF EXISTS {quote(name)}{cascade}")

    def clean(self) -> None:
        """Leave ctxstore's tables, without a row, and nothing else."""
        if self.tables is not None:
            self._hang_up()
            with self._engine.begin() as c:
                tables, views = self._standing(c)
                if self.tables <= tables | views:
                    self._drop(c, tables - self.tables, views - self.tables)
                    for name in tables & self.tables - {"ctxstore_alembic_version"}:
                        c.exec_driver_sql(f"DELETE FROM {name}")
                    return
        self.empty()
        _upgrade(self.url)
        with self._engine.connect() as c:
            tables, views = self._standing(c)
            self.tables = tables | views


def _upgrade(url: str) -> None:
    from ctxstore import Store

    with Store(url) as store:
        store.upgrade()


@pytest.fixture(scope="session")
def _own_databases() -> Iterator[dict[str, _Server | str]]:
    """The servers in use by this worker; a string is the reason why there is none."""
    found: dict[str, _Server | str] = {}
    yield found
    for server in found.values():
        if isinstance(server, _Server):
            server.drop()


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with ctxstore's tables, to be copied: faster than to migrate for every test."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    _upgrade(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def _server(request: pytest.FixtureRequest, _own_databases: dict[str, _Server | str]) -> _Server | None:
    """The server that this test runs on, None for SQLite."""
    name = request.param
    if name == "sqlite":
        return None
    text, asked = SERVERS[name]
    if name not in _own_databases:
        server = _Server(text)
        try:
            server.create()
            _own_databases[name] = server
        except sa.exc.DBAPIError as error:
            if asked:
                raise
            _own_databases[name] = f"no {name} at {make_url(text).host}: {str(error.orig).splitlines()[0]}"
    found = _own_databases[name]
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def empty_url(_server: _Server | None, tmp_path: Path) -> str:
    """The sync URL of a database with nothing in it. For SQLite the file does not exist yet."""
    if _server is None:
        return f"sqlite:///{tmp_path}/empty.db"
    _server.empty()
    return _server.url


@pytest.fixture
def url(request: pytest.FixtureRequest, _server: _Server | None, tmp_path: Path) -> str:
    """The sync URL of a database with ctxstore's tables at head and no rows."""
    if _server is None:
        path = tmp_path / "app.db"
        shutil.copyfile(request.getfixturevalue("_template"), path)
        return f"sqlite:///{path}"
    _server.clean()
    return _server.url


@pytest.fixture
def aurl(url: str) -> str:
    """``url`` for ``create_async_engine``: aiosqlite, psycopg, aiomysql."""
    parsed = make_url(url)
    return parsed.set(drivername=ASYNC_DRIVERS[parsed.get_backend_name()]).render_as_string(hide_password=False)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    """A ``Store`` on an upgraded database without rows."""
    from ctxstore import Store

    with Store(url) as found:
        yield found


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """A plain engine on the same database as ``store``, as a host or an analyst has it."""
    found = sa.create_engine(url)
    yield found
    found.dispose()


# -- the fence

SECRET_ENDINGS = ("_API_KEY", "_API_TOKEN", "_PROXY")
LOOPBACK = ("127.", "::1", "::ffff:127.")


@pytest.fixture(autouse=True)
def _scrubbed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no proxy and no database of the person who runs the tests."""
    for name in list(os.environ):
        if name.upper().endswith(SECRET_ENDINGS) or name == "CTXSTORE_DB":
            monkeypatch.delenv(name)


def _fence(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and not str(address[0]).startswith((*LOOPBACK, "localhost")):
            raise AssertionError(f"a test opened a connection beyond the loopback address: {address!r}")
    elif event == "socket.getaddrinfo":
        host = arguments[0]
        host = host.decode() if isinstance(host, bytes) else host
        # names under .invalid are reserved for not being found: tests of "no such server" use them
        if host and not host.startswith((*LOOPBACK, "localhost", "0.0.0.0")) and not host.endswith(".invalid"):
            raise AssertionError(f"a test looked up a host beyond the loopback address: {host!r}")


sys.addaudithook(_fence)
