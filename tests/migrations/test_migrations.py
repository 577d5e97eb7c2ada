"""The tables come by migrations: the same as the models say, up and down and up, by many at once, after a kill."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from ctxstore import Store
from ctxstore.errors import DatabaseNotUpgradedError
from ctxstore.store import migrations
from ctxstore.store.tables import VERSION_TABLE, metadata
from ctxstore.testing import ScriptedProvider

TABLES = {"ctxstore_contexts", "ctxstore_messages", "ctxstore_in_flight", "ctxstore_usage", VERSION_TABLE}


@pytest.fixture
def empty(empty_url: str) -> Any:
    engine = sa.create_engine(empty_url)
    yield engine
    engine.dispose()


def _tables(engine: sa.Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names())


def _schema(engine: sa.Engine) -> dict[str, Any]:
    """Everything the database says of the tables, to compare two of them."""
    inspector = sa.inspect(engine)
    return {
        table: {
            "columns": [
                {**{k: c.get(k) for k in ("name", "nullable", "default", "autoincrement")}, "type": repr(c["type"])}
                for c in inspector.get_columns(table)
            ],
            "pk": inspector.get_pk_constraint(table),
            "indexes": sorted(str((i["name"], i["column_names"], i["unique"])) for i in inspector.get_indexes(table)),
            "checks": inspector.get_check_constraints(table) if engine.dialect.name != "mysql" else None,
        }
        for table in sorted(TABLES - {VERSION_TABLE})
    }  # fmt: skip


def test_models_are_what_the_migrations_make(store: Store, engine: sa.Engine) -> None:
    with engine.connect() as c:
        options = {"compare_type": True, "include_name": migrations.include_own, "version_table": VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(c, opts=options), metadata) == []


def test_create_all_makes_the_same(empty: sa.Engine) -> None:
    with empty.begin() as c:
        migrations.upgrade(c)
    made = _schema(empty)
    with empty.begin() as c:
        migrations.downgrade(c)
    metadata.create_all(empty)
    assert _schema(empty) == made


def test_one_head_and_ids_by_rule() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations.migrations_path()))
    script = ScriptDirectory.from_config(config)
    assert len(script.get_heads()) == 1
    revisions = list(script.walk_revisions())
    assert [r.revision for r in reversed(revisions)] == [f"ctxstore_{n + 1:04}" for n in range(len(revisions))]
    for revision in revisions:
        assert Path(revision.path).name.startswith(revision.revision)
        assert "ctxstore" not in [line.split()[1] for line in Path(revision.path).read_text().splitlines()
                                  if line.startswith(("import ", "from "))]  # fmt: skip


def test_up_down_up_leaves_the_hosts_tables_alone(empty: sa.Engine) -> None:
    with empty.begin() as c:
        c.exec_driver_sql("CREATE TABLE host (id INTEGER PRIMARY KEY)")
        c.exec_driver_sql("INSERT INTO host VALUES (7)")
        migrations.upgrade(c)
        assert migrations.current(c) == migrations.check(c) == migrations.head()
    assert _tables(empty) == TABLES | {"host"}
    with empty.begin() as c:
        migrations.downgrade(c)
    assert _tables(empty) == {"host"}
    assert sa.inspect(empty).get_view_names() == []
    if empty.dialect.name == "postgresql":
        with empty.connect() as c:
            left = c.exec_driver_sql("SELECT relname FROM pg_class WHERE relname LIKE '%%ctxstore%%'").scalars().all()
            types = c.exec_driver_sql("SELECT typname FROM pg_type WHERE typname LIKE '%%ctxstore%%'").scalars().all()
        assert left == types == []
    with empty.begin() as c:
        assert migrations.current(c) is None
        migrations.upgrade(c)
        assert c.exec_driver_sql("SELECT id FROM host").scalars().all() == [7]
    assert _tables(empty) == TABLES | {"host"}


def test_every_verb_names_the_command_when_there_are_no_tables(empty_url: str) -> None:
    with Store(empty_url) as store:
        for verb in (lambda: store.create(ScriptedProvider([])), store.list, store.usage):
            with pytest.raises(DatabaseNotUpgradedError, match="ctxstore db upgrade"):
                verb()
    engine = sa.create_engine(empty_url)
    with engine.connect() as c, pytest.raises(DatabaseNotUpgradedError, match="ctxstore db upgrade"):
        migrations.check(c)
    assert _tables(engine) == set(), "tables are never made implicitly"
    engine.dispose()


def test_a_newer_database_is_refused(store: Store, engine: sa.Engine) -> None:
    with engine.begin() as c:
        c.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = 'ctxstore_9999'")
    with pytest.raises(DatabaseNotUpgradedError, match="ctxstore_9999"):
        store.upgrade()
    with engine.begin() as c:
        c.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '{migrations.head()}'")


def _first_use(url: str, start: Any, results: Any) -> None:
    try:
        start.wait()
        with Store(url) as store:
            store.upgrade()
            store.create(ScriptedProvider(["one"])).talk("a")
        results.put(None)
    except BaseException as error:  # what a process says goes to the parent
        results.put(repr(error))


def test_many_processes_upgrade_at_once(empty_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=_first_use, args=(empty_url, start, results)) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    assert [results.get(timeout=120) for _ in processes] == [None] * 4
    for process in processes:
        process.join()
    with Store(empty_url) as store:
        assert [s.message_count for s in store.list()] == [2] * 4


def test_many_threads_and_tasks_upgrade_at_once(empty_url: str) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with Store(empty_url) as store:
                store.upgrade()
        except BaseException as error:
            failures.append(error)

    async def main() -> None:
        async def one() -> None:
            async with Store(empty_url) as store:
                await store.aupgrade()

        await asyncio.gather(*(one() for _ in range(4)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(main())
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.databases("mysql")
def test_killed_after_any_statement_it_is_finished_by_the_next(empty: sa.Engine) -> None:
    """MariaDB and MySQL commit after each statement of the schema; what was done stays done."""
    killed, after = 0, 0
    while True:
        left = after

        def kill(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            nonlocal left
            if statement.lstrip().upper().startswith(("CREATE", "INSERT", "UPDATE")):
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt

        sa.event.listen(empty, "before_cursor_execute", kill)
        try:
            with empty.begin() as c:
                migrations.upgrade(c)
            finished = True
        except KeyboardInterrupt:
            finished, killed = False, killed + 1
        finally:
            sa.event.remove(empty, "before_cursor_execute", kill)
        with empty.begin() as c:
            migrations.upgrade(c)
            migrations.check(c)
            if finished or not after:
                context = MigrationContext.configure(
                    c, opts={"include_name": migrations.include_own, "version_table": VERSION_TABLE}
                )
                assert compare_metadata(context, metadata) == []
            migrations.downgrade(c)
        assert _tables(empty) == set()
        if finished:
            break
        after += 1
    assert killed >= 11, "four tables, six indexes, and the version"


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_offline_sql_is_printed(dialect: str) -> None:
    config = Config(output_buffer=io.StringIO())
    config.set_main_option("script_location", str(migrations.migrations_path()))
    config.set_main_option("sqlalchemy.url", f"{dialect}://")
    command.upgrade(config, "head", sql=True)
    text = config.output_buffer.getvalue()
    assert text.count("CREATE TABLE") == 5 and text.count("CREATE INDEX") == 6
    if dialect == "mysql":
        for line in text.splitlines():
            if any(kind in line for kind in ("CHAR(", "LONGTEXT")) and "version_num" not in line:
                assert "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" in line, line


def _config(url: str) -> Config:
    config = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
    config.set_main_option("script_location", str(migrations.migrations_path()))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def test_alembic_check_proposes_nothing_to_developers(store: Store, url: str) -> None:
    command.check(_config(url))


def test_an_alembic_command_that_fails_leaves_no_connection(empty_url: str) -> None:
    opened: set[Any] = set()
    open_one, close_one = (lambda c, _: opened.add(c)), (lambda c, _: opened.discard(c))
    sa.event.listen(sa.Pool, "connect", open_one)
    sa.event.listen(sa.Pool, "close", close_one)
    try:
        with pytest.raises(CommandError, match="nonsense"):
            command.upgrade(_config(empty_url), "nonsense")
        assert opened == set()
    finally:
        sa.event.remove(sa.Pool, "connect", open_one)
        sa.event.remove(sa.Pool, "close", close_one)
        for left in opened:
            left.close()


def test_the_hosts_autogenerate_leaves_us_alone_and_can_name_our_types(store: Store, engine: sa.Engine) -> None:
    from alembic.autogenerate import produce_migrations, render_python_code

    from ctxstore.store.types import JsonText, UtcDateTime, Uuid

    host = sa.MetaData()
    sa.Table("notes", host, sa.Column("id", Uuid(), primary_key=True), sa.Column("data", JsonText()),
             sa.Column("at", UtcDateTime()))  # fmt: skip
    asked: list[str] = []

    def hosts_own(name: str | None, kind: str, parents: Any) -> bool:
        asked.append(name or "")
        return True

    with engine.connect() as c:
        hooks = migrations.host_hooks(include_name=hosts_own)
        context = MigrationContext.configure(c, opts={**hooks, "target_metadata": host})
        script = produce_migrations(context, host)
        imports: set[str] = set()
        code = render_python_code(script.upgrade_ops, migration_context=context, render_item=hooks["render_item"],
                                  imports=imports)  # fmt: skip
    assert "drop_table" not in code and "ctxstore_" not in code.replace("ctxstore.store", "")
    for name in ("Uuid()", "JsonText()", "UtcDateTime()"):
        assert f"ctxstore.store.types.{name}" in code
    assert any("ctxstore" not in name for name in asked) or asked == []
