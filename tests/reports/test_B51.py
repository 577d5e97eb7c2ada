"""B51: on MariaDB a JSON column came back as LONGTEXT, and every autogenerate run proposed to change it."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ctxstore import HasContext, HasContextColumn, HasContextLink, new_id
from ctxstore.store import migrations, tables


def host() -> Any:
    class Base(DeclarativeBase):
        pass

    class Ticket(HasContext, Base):
        __tablename__ = "tickets"
        id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=new_id)

    class Case(HasContextLink, Base):
        __tablename__ = "cases"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Legacy(HasContextColumn, Base):
        __tablename__ = "legacies"
        __context_column__ = "data"
        id: Mapped[int] = mapped_column(primary_key=True)
        data: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)

    return Base.metadata


def proposed(engine: sa.Engine, metadata: Any, **options: Any) -> list[Any]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, **options})
        return compare_metadata(context, metadata)


def test_nothing_is_proposed_after_an_upgrade(store: Any, engine: sa.Engine) -> None:
    own = {"include_name": migrations.include_own, "version_table": tables.VERSION_TABLE}
    assert proposed(engine, tables.metadata, **own) == []
    metadata = host()
    metadata.create_all(engine)
    assert proposed(engine, metadata, **migrations.host_hooks()) == []


def test_what_autogenerate_writes_makes_the_tables_that_create_all_makes(empty_url: str) -> None:
    engine, metadata = sa.create_engine(empty_url), host()
    with engine.begin() as connection:
        opts = {**migrations.host_hooks(), "target_metadata": metadata}
        context = MigrationContext.configure(connection, opts=opts)
        script = produce_migrations(context, metadata)
        assert script.upgrade_ops is not None
        text = render_python_code(script.upgrade_ops, migration_context=context, render_item=opts["render_item"])
        from alembic.operations import Operations

        import ctxstore.store.types

        with Operations.context(context) as op:
            scope = {"op": op, "sa": sa, "ctxstore": ctxstore}
            exec("from sqlalchemy.dialects import mysql\nif True:\n    " + text, scope)
    assert proposed(engine, metadata, **migrations.host_hooks()) == []
    written = reflected(engine)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    assert reflected(engine) == written
    engine.dispose()


def reflected(engine: sa.Engine) -> dict[str, list[tuple[str, str, bool]]]:
    inspector = sa.inspect(engine)
    return {
        table: [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)]
        for table in inspector.get_table_names()
    }
