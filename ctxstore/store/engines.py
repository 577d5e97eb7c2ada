"""From a URL to engines: which driver speaks for whom, and how our own connections are set up.

On an engine of the host's nothing is set and nothing is listened to.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from ..errors import ConfigurationError
from .types import MYSQL

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # loads greenlet, which a synchronous program may not have

__all__ = [
    "Synchronous",
    "async_engine",
    "connected_to",
    "host_engine",
    "in_memory",
    "names",
    "strict",
    "sync_engine",
    "transactional",
    "url_of",
]

E = TypeVar("E")
Synchronous: TypeAlias = Literal["FULL", "NORMAL"]

_FAMILIES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mariadb",
}
_SYNC = {"sqlite": "pysqlite", "postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_ASYNC = {
    "sqlite": ("aiosqlite",),
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("aiomysql", "asyncmy"),
    "mariadb": ("aiomysql", "asyncmy"),
}
_MODULES = {"pysqlite": "sqlite3"}  # where a driver's module is not called like the driver
_EXTRAS = {"sqlite": "async", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


def url_of(given: str | URL) -> URL:
    """The URL of the synchronous engine: ``postgresql://`` means psycopg, ``mysql://`` and ``mariadb://`` PyMySQL.

    Raises:
        ConfigurationError: it is no URL, or of a database that ctxstore does not know.
    """
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise ConfigurationError(
            "this is no database URL; write it as sqlite:///file.db, postgresql://user@host/name or mysql://user@host/name"
        ) from error
    family = _FAMILIES.get(url.get_backend_name())
    if family is None:
        raise ConfigurationError(
            f"{url.get_backend_name()}:// is no database that ctxstore knows; use sqlite, postgresql, mysql or mariadb"
        )
    driver = url.drivername.partition("+")[2]
    if not driver or driver in _ASYNC[family]:
        driver = _SYNC[family]
    return url.set(drivername=f"{family}+{driver}")


def in_memory(url: URL) -> bool:
    """Whether the database is SQLite's own memory: there is one connection, and both worlds share it."""
    return url.get_backend_name() == "sqlite" and (
        url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    )


def names(url: URL) -> tuple[str | None, str | None]:
    """The kind of database that ``url`` is of and what it is called there, as far as a URL tells."""
    family, name = _FAMILIES.get(url.get_backend_name()), url.database
    if family == "sqlite":
        return family, None if in_memory(url) or str(name).startswith("file:") else os.path.realpath(str(name))
    return "mysql" if family == "mariadb" else family, name.lower() if name else None


def connected_to(c: sa.Connection) -> set[str]:
    """What the database that ``c`` is connected to says that it is called; the files, when it is SQLite."""
    if c.dialect.name == "sqlite":
        files = c.exec_driver_sql("PRAGMA database_list").all()
        return {os.path.realpath(file) for _, _, file in files if file}
    query = "SELECT current_database()" if c.dialect.name == "postgresql" else "SELECT DATABASE()"
    return {str(c.exec_driver_sql(query).scalar()).lower()}


def transactional(engine: sa.Engine) -> dict[str, Any]:
    """Options under which an engine of the host's has transactions: one that commits each statement would save halves
    of a turn."""
    set_up = getattr(engine.dialect, "_on_connect_isolation_level", None)  # what create_engine() was given
    level = engine.get_execution_options().get("isolation_level") or set_up
    if level != "AUTOCOMMIT":
        return {}
    return {"isolation_level": _LEVELS[engine.dialect.name]} if engine.dialect.name in _LEVELS else {}


_LEVELS = {
    "sqlite": "SERIALIZABLE",
    "postgresql": "READ COMMITTED",
    "mysql": "REPEATABLE READ",
    "mariadb": "REPEATABLE READ",
}
"""The levels that these databases have by themselves."""


def sync_engine(given: str | URL, *, synchronous: Synchronous, busy_timeout: float) -> sa.Engine:
    """An engine of our own for ``given``.

    Raises:
        ConfigurationError: the driver is not installed; the extra that brings it is named.
    """
    url = url_of(given)
    family, driver = url.drivername.split("+")
    _require(family, driver)
    options = _options(family, driver, busy_timeout)
    if in_memory(url):
        options["connect_args"]["check_same_thread"] = False
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    return _prepared(_make(sa.create_engine, url, options), family, synchronous, busy_timeout)


def async_engine(given: str | URL, *, synchronous: Synchronous, busy_timeout: float) -> AsyncEngine:
    """The same for asyncio, by the driver the URL names or the first one that is installed.

    Raises:
        ConfigurationError: no asyncio driver of this database is installed; the extra that brings one is named.
    """
    url = url_of(given)
    family = url.drivername.partition("+")[0]
    named = make_url(given).drivername.partition("+")[2]
    choices = (named,) if named in _ASYNC[family] else _ASYNC[family]
    driver = next((d for d in choices if find_spec(d)), None)
    if driver is None or not find_spec("greenlet"):
        raise ConfigurationError(
            f"the a-verbs on {family} need {' or '.join(choices)} (and greenlet); run: pip install "
            f"'ctxstore[{','.join(sorted({_EXTRAS[family], 'async'}))}]'"
        )
    from sqlalchemy.ext.asyncio import create_async_engine

    options = _options(family, driver, busy_timeout)
    engine = _make(create_async_engine, url.set(drivername=f"{family}+{driver}"), options)
    _prepared(engine.sync_engine, family, synchronous, busy_timeout)
    return engine


@contextmanager
def strict(c: sa.Connection) -> Iterator[None]:
    """Have MySQL and MariaDB refuse what a column cannot hold; without strict mode they cut it and go on."""
    mode = str(c.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar()) if c.dialect.name in MYSQL else "STRICT"
    if "STRICT" in mode:
        yield
        return
    c.execute(sa.text("SET SESSION sql_mode = :mode"), {"mode": f"STRICT_ALL_TABLES,{mode}"})
    try:
        yield
    finally:
        with suppress(sa.exc.SQLAlchemyError):  # a session that was lost has no mode to restore, and its error to tell
            c.execute(sa.text("SET SESSION sql_mode = :mode"), {"mode": mode})


def host_engine(given: str | URL) -> sa.Engine:
    """An engine for a table of the host's: nothing is set on its connections, so its file stays as it is kept.

    Raises:
        ConfigurationError: the driver is not installed.
    """
    url = url_of(given)
    family, driver = url.drivername.split("+")
    _require(family, driver)
    return _make(sa.create_engine, url, _options(family, driver, 30.0))


def _require(family: str, driver: str) -> None:
    if not find_spec(_MODULES.get(driver, driver)):
        hint = f"pip install 'ctxstore[{_EXTRAS[family]}]'" if driver == _SYNC[family] else f"pip install {driver}"
        raise ConfigurationError(f"{family}:// needs {driver}, which is not installed; run: {hint}")


def _make(create: Callable[..., E], url: URL, options: dict[str, Any]) -> E:
    try:
        return create(url, hide_parameters=True, **options)
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigurationError(f"SQLAlchemy has no driver {url.drivername!r}: {error}") from error


def _options(family: str, driver: str, busy_timeout: float) -> dict[str, Any]:
    connect: dict[str, Any] = {}
    if family == "sqlite":
        connect["timeout"] = busy_timeout
    elif driver == "psycopg":  # a pooler in transaction mode hands each transaction to another server process, which
        connect["prepare_threshold"] = None  # knows nothing of statements prepared in the one before
    elif driver == "asyncpg":
        connect |= {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__ctxstore_{uuid.uuid4().hex}__",
        }
    elif family in ("mysql", "mariadb"):
        connect["charset"] = "utf8mb4"
    return {"connect_args": connect}


def _prepared(engine: sa.Engine, family: str, synchronous: Synchronous, busy_timeout: float) -> sa.Engine:
    if family == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def set_up(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            try:
                _write_ahead(cursor, busy_timeout)
                cursor.execute(f"PRAGMA synchronous={synchronous}")
            finally:
                cursor.close()

    return engine


def _write_ahead(cursor: Any, busy_timeout: float) -> None:
    """Put the file in WAL mode. SQLite's busy timeout does not cover this, so processes that are first wait here."""
    until = time.monotonic() + busy_timeout
    while True:
        try:
            cursor.execute("PRAGMA journal_mode")
            if cursor.fetchone()[0] in ("wal", "memory"):
                return
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.fetchall()
            return
        except Exception as error:  # sqlite3's own, or the adapted one of aiosqlite
            if "readonly" in str(error):
                return
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.002, 0.02))
