"""Alembic's entry. A program hands over its connection; without one the URL is taken from -x db=..., the
configuration's sqlalchemy.url or CTXSTORE_DB, in this order. With --sql the statements are printed.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context

from ctxstore.store.migrations import include_own
from ctxstore.store.tables import VERSION_TABLE, metadata

config = context.config


def _url() -> sa.URL:
    from ctxstore.store.engines import url_of

    given = context.get_x_argument(as_dictionary=True).get("db") or config.get_main_option("sqlalchemy.url")
    return url_of(given or os.environ.get("CTXSTORE_DB", "sqlite:///ctxstore.db"))


def _run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=include_own,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    context.configure(
        url=_url(),
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        context.run_migrations()
elif (given := config.attributes.get("connection")) is not None:
    _run(given)
else:
    with sa.create_engine(_url(), poolclass=sa.NullPool).begin() as own:
        _run(own)
