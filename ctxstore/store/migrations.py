"""ctxstore's own lineage of Alembic migrations: upgrading, checking, and living beside a host's lineage.

Everything takes a synchronous connection. The lineage has a version table of its own, so that a host's ``alembic``
stays single-headed; the host's autogenerate needs ``host_hooks`` to leave our tables alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ..errors import DatabaseNotUpgradedError, StoreUnavailableError
from .tables import PREFIX, VERSION_TABLE
from .types import MYSQL

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["check", "current", "downgrade", "head", "host_hooks", "include_own", "migrations_path", "upgrade"]

LOCK_SECONDS = 60
_LOCK_NAME = "ctxstore_migrations"
_LOCK_NUMBER = 0x637478_73746F72  # "ctxstor" on PostgreSQL, whose locks have numbers
_alembic = threading.Lock()  # its proxies (op, context) are global to the process


def migrations_path() -> Path:
    """The folder with ``env.py`` and the revisions: inside the installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _config(connection: sa.Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this program's tables are at."""
    from alembic.script import ScriptDirectory

    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def current(connection: sa.Connection) -> str | None:
    """The revision that the database is at, None when it has no tables of ours."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def check(connection: sa.Connection) -> str:
    """The revision, when it is the one this program needs.

    Raises:
        DatabaseNotUpgradedError: it is older, newer, or there are no tables.
    """
    found, wanted = current(connection), head()
    if found != wanted:
        raise DatabaseNotUpgradedError(
            f"the database is at {found or 'nothing'}, this program needs {wanted}; run: "
            "ctxstore db upgrade --db URL, or call store.upgrade()"
        )
    return wanted


def upgrade(connection: sa.Connection, revision: str = "head") -> None:
    """Bring the tables up to ``revision``. Nothing happens when they are; two that start at once wait for another.

    The caller commits. What an upgrade that was killed left half done (MySQL and MariaDB commit each statement) is
    finished.

    Raises:
        StoreUnavailableError: another process is upgrading for more than a minute.
        DatabaseNotUpgradedError: the database is at a revision that this program does not know: it is newer.
    """
    from alembic import command

    if revision == "head" and current(connection) == head():
        return
    with _alone(connection):
        _refuse_newer(connection)
        command.upgrade(_config(connection), revision)


def downgrade(connection: sa.Connection, revision: str = "base") -> None:
    """Take the tables back to ``revision``; ``base`` leaves nothing of ours, and no conversation.

    Raises: as ``upgrade``.
    """
    from alembic import command

    with _alone(connection):
        _refuse_newer(connection)
        command.downgrade(_config(connection), revision)
        if revision == "base":
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {VERSION_TABLE}"))


def _refuse_newer(connection: sa.Connection) -> None:
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    found = current(connection)
    if found is not None:
        try:
            ScriptDirectory.from_config(_config()).get_revision(found)
        except CommandError as error:
            raise DatabaseNotUpgradedError(
                f"the database is at {found}, which this program does not know; use the newer ctxstore that made it"
            ) from error


@contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    """Nobody else migrates this database, and nobody else in this process uses Alembic through us."""
    until = time.monotonic() + LOCK_SECONDS
    while not _alembic.acquire(blocking=False):
        _pause(connection, until)
    try:
        with _database_lock(connection):
            yield
    finally:
        _alembic.release()


def _pause(connection: sa.Connection, until: float) -> None:
    if time.monotonic() > until:
        raise StoreUnavailableError("another upgrade of this database has been running for a minute; try again")
    if connection.dialect.is_async:  # the one that holds the lock may be a task of this very thread
        from sqlalchemy.util import await_only  # needs greenlet, which is there when this is

        await_only(asyncio.sleep(0.02))
    else:
        time.sleep(0.02)


@contextmanager
def _database_lock(connection: sa.Connection) -> Iterator[None]:
    name = connection.dialect.name
    if name == "sqlite":
        if not getattr(connection.connection.driver_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
    elif name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
        yield
    elif name in MYSQL:
        lock = sa.func.left(sa.func.concat(_LOCK_NAME, ":", sa.func.database()), 64)  # names are the whole server's
        if not connection.execute(sa.select(sa.func.get_lock(lock, LOCK_SECONDS))).scalar():
            raise StoreUnavailableError("another upgrade of this database has been running for a minute; try again")
        connection.exec_driver_sql("COMMIT")  # and begin anew: what was read before is from an older snapshot
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(sa.select(sa.func.release_lock(lock)))
    else:
        yield


# -- beside a host's lineage


def include_own(name: str | None, type_: str, parent_names: Any) -> bool:
    """``include_name`` of our own env.py: only our tables."""
    return type_ != "table" or (name or "").startswith(PREFIX)


def host_hooks(
    include_name: Callable[..., bool] | None = None, render_item: Callable[..., Any] | None = None
) -> dict[str, Callable[..., Any]]:
    """What a host's env.py hands to ``context.configure(..., **host_hooks())``.

    It keeps autogenerate from dropping ctxstore's tables, and renders our column types with the import they need. The
    host's own two functions, if it has them, are asked for everything else.
    """

    def name(name_: str | None, type_: str, parent_names: Any) -> bool:
        if type_ == "table" and (name_ or "").startswith(PREFIX):
            return False
        return include_name(name_, type_, parent_names) if include_name is not None else True

    def item(type_: str, value: Any, autogen_context: Any) -> Any:
        module = type(value).__module__
        if type_ == "type" and module.startswith("ctxstore."):
            autogen_context.imports.add(f"import {module}")
            return f"{module}.{value!r}"
        return render_item(type_, value, autogen_context) if render_item is not None else False

    return {"include_name": name, "render_item": item}
