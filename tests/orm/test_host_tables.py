"""Tables of the host's as they come: keys and columns of every type, and what a database refuses of a row."""

from __future__ import annotations

import datetime as dt
import enum
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

from ctxstore import HasContextColumn, Store, migrate_payloads
from ctxstore.cli import main
from ctxstore.errors import ConfigurationError
from ctxstore.orm import migrate_table
from ctxstore.testing import ScriptedProvider

V1 = (Path(__file__).parent.parent / "data" / "llmrb-v1" / "tool_parallel_done.json").read_text(encoding="utf-8")
LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
DAY = "2024-03-01 10:00:0"

KEYS = {
    "sqlite": [
        ("TEXT PRIMARY KEY", ["'a'", "'B'", "'a '", "'it''s'", "7", "x'00ff'", "1.5"]),
        ("DATETIME PRIMARY KEY", [f"'{DAY}1'", f"'{DAY}2'", f"'{DAY}3.5'", "'no time'"]),
        ("UUID PRIMARY KEY", ["'0198f2c4-7a10-4c31-9d55-3b1f0e6a9c42'", "'x'", "5"]),
        ("REAL PRIMARY KEY", ["0.1", "0.2", "1e300"]),
        ("BOOLEAN PRIMARY KEY", ["0", "1"]),
        ("BLOB PRIMARY KEY", ["x'00'", "x'0001'", "x'ff'"]),
        ("INTEGER PRIMARY KEY", ["-5", "0", "9223372036854775807"]),
        ("TEXT PRIMARY KEY) WITHOUT ROWID --", ["'a'", "'b'", "'c'"]),
        ("TEXT, _rowid_ INT DEFAULT 1, PRIMARY KEY (k)", ["'a'", "'b'", "'c'"]),
    ],
    "postgresql": [
        ("text PRIMARY KEY", ["'a'", "'B'", "'a '", "''"]),
        ("timestamptz PRIMARY KEY", [f"'{DAY}1+14'", f"'{DAY}2.000001'"]),
        ("uuid PRIMARY KEY", ["'0198f2c4-7a10-4c31-9d55-3b1f0e6a9c42'", "gen_random_uuid()"]),
        ("double precision PRIMARY KEY", ["0.1", "0.2", "1e300"]),
        ("numeric PRIMARY KEY", ["0.1", "1e30", "-2"]),
        ("boolean PRIMARY KEY", ["true", "false"]),
        ("bytea PRIMARY KEY", ["'\\x00'", "'\\x0001'", "'\\xff'"]),
        ("inet PRIMARY KEY", ["'10.0.0.1'", "'::1'"]),
        ("interval PRIMARY KEY", ["'1 day'", "'25 hours'"]),
        ("bigint, l date DEFAULT '2024-01-01', PRIMARY KEY (k, l)", ["1", "2", "3"]),
    ],
    "mysql": [
        ("varchar(20) PRIMARY KEY", ["'a'", "'B'", "'c '"]),
        ("datetime(6) PRIMARY KEY", [f"'{DAY}1'", f"'{DAY}2.000001'"]),
        ("enum('c', 'a', 'b') PRIMARY KEY", ["'a'", "'b'", "'c'"]),
        ("enum('c', 'a'), l int DEFAULT 1, PRIMARY KEY (k, l)", ["'a'", "'c'"]),
        ("double PRIMARY KEY", ["0.1", "0.2", "1e300"]),
        ("decimal(10, 2) PRIMARY KEY", ["0.1", "-2", "7"]),
        ("bool PRIMARY KEY", ["true", "false"]),
        ("binary(4) PRIMARY KEY", ["x'00000001'", "x'00ff0000'"]),
        ("bigint unsigned PRIMARY KEY", ["1", "18446744073709551615"]),
    ],
}


def made(engine: sa.Engine, ddl: str, keys: list[str], *, kind: str | None = None, value: Any = V1) -> None:
    """The table ``chats`` with the key ``k`` and a row for each of ``keys``."""
    kind = kind or ("LONGTEXT" if engine.dialect.name in ("mysql", "mariadb") else "TEXT")
    with engine.begin() as c:
        c.exec_driver_sql(f"CREATE TABLE chats (data {kind}, k {ddl}\n)".replace("--\n)", ""))
        for key in keys:
            c.execute(
                sa.text(f"INSERT INTO chats (k, data) VALUES ({key}, :value)".replace("\\:", ":")), {"value": value}
            )


def stored(engine: sa.Engine) -> list[Any]:
    with engine.connect() as c:
        return list(c.exec_driver_sql("SELECT data FROM chats").scalars())


def versions(engine: sa.Engine) -> list[int]:
    return sorted(json.loads(text)["schema_version"] for text in stored(engine))


def test_every_row_is_found_again_whatever_its_key(engine: sa.Engine) -> None:
    for ddl, keys in KEYS[engine.dialect.name.replace("mariadb", "mysql")]:
        made(engine, ddl, keys)
        report = migrate_table(engine, "chats", "data", batch=2)
        assert (ddl, report.migrated, report.unchanged, report.refused) == (ddl, len(keys), 0, [])
        assert versions(engine) == [3] * len(keys)
        assert migrate_table(engine, "chats", "data", batch=1).unchanged == len(keys)
        with engine.begin() as c:
            c.exec_driver_sql("DROP TABLE chats")


@pytest.mark.parametrize(
    "more",
    [
        "",
        "CREATE UNIQUE INDEX u ON chats (team)",
        "CREATE UNIQUE INDEX u ON chats (team, n)",
        "CREATE INDEX u ON chats (k)",
    ],
)
def test_a_key_that_two_rows_may_share_is_refused(engine: sa.Engine, more: str) -> None:
    with engine.begin() as c:
        c.exec_driver_sql("CREATE TABLE chats (k INTEGER, n INTEGER NOT NULL, team VARCHAR(20), data TEXT)")
        c.execute(sa.text("INSERT INTO chats VALUES (1, 1, 'a', :d), (1, 2, NULL, :d)"), {"d": V1})
        if more:
            c.exec_driver_sql(more)
    for key in (["team"], ["k"]):
        with pytest.raises(ConfigurationError, match=f"two rows of chats may have the same {key[0]}"):
            migrate_table(engine, "chats", "data", key)
    assert stored(engine) == [V1, V1]
    with engine.begin() as c:
        c.exec_driver_sql("CREATE UNIQUE INDEX v ON chats (n)")
    assert migrate_table(engine, "chats", "data", ["n"]).migrated == 2


@pytest.mark.databases("postgresql", "mysql")
def test_a_key_that_is_not_exact_is_refused(engine: sa.Engine) -> None:
    made(engine, "REAL PRIMARY KEY" if engine.dialect.name == "postgresql" else "FLOAT PRIMARY KEY", ["0.1"])
    with pytest.raises(ConfigurationError, match="not exact enough"):
        migrate_table(engine, "chats", "data")


@pytest.mark.databases("sqlite", "postgresql")
def test_a_partial_index_tells_no_rows_apart(engine: sa.Engine) -> None:
    made(engine, "INTEGER NOT NULL", ["1", "1"])
    with engine.begin() as c:
        c.exec_driver_sql("CREATE UNIQUE INDEX u ON chats (k) WHERE k > 1")
    with pytest.raises(ConfigurationError, match="may have the same k"):
        migrate_table(engine, "chats", "data", ["k"])


@pytest.mark.databases("sqlite")
def test_a_row_whose_key_is_null_is_told_of(engine: sa.Engine) -> None:
    made(engine, "TEXT PRIMARY KEY", ["NULL", "NULL", "'a'"])
    report = migrate_table(engine, "chats", "data", batch=1)
    assert (report.migrated, [r.key for r in report.refused]) == (1, [None, None])
    assert "names no row" in report.refused[0].reason


class Kind(enum.Enum):
    web = "w"
    app = "a"


class Base(DeclarativeBase):
    pass


def model(name: str, kind: Any) -> Any:
    """A class whose key is of the type ``kind``."""
    members = {
        "__tablename__": name,
        "__context_column__": "data",
        "id": mapped_column(kind, primary_key=True, autoincrement=False),
        "data": mapped_column(LONG, nullable=True),
        "context_options": lambda self: {"provider": ScriptedProvider([])},
    }
    return type(name, (HasContextColumn, Base), members)


@pytest.mark.parametrize("by", ["class", "table"])
@pytest.mark.parametrize(
    ("row", "key"),
    [
        (model("by_uuid", sa.Uuid()), UUID("0198f2c4-7a10-4c31-9d55-3b1f0e6a9c42")),
        (model("by_uuid7", sa.Uuid()), UUID("0198f2c4-7a10-7c31-9d55-3b1f0e6a9c42")),
        (model("by_enum", sa.Enum(Kind, name="kinds")), Kind.app),
        (model("by_text", sa.String(20)), "a b"),
        (model("by_date", sa.Date()), dt.date(2024, 1, 1)),
        (model("by_time", sa.DateTime()), dt.datetime.fromisoformat("2024-01-01T01:01:01")),
        (model("by_number", sa.Numeric(10, 2)), Decimal("1.50")),
    ],
)
def test_the_id_that_is_made_from_a_key_is_the_same_everywhere(engine: sa.Engine, by: str, row: Any, key: Any) -> None:
    row.__table__.create(engine, checkfirst=True)  # the type of an enum outlives its table
    with Session(engine) as session:
        session.add(row(id=key, data=V1))
        session.commit()
        before = session.get_one(row, key).context.id
    if by == "class":
        report = migrate_payloads(engine, row)
    else:
        report = migrate_table(engine, row.__tablename__, "data")
    assert (report.migrated, report.refused) == (1, [])
    with Session(engine) as session:
        found = session.get_one(row, key)
        assert json.loads(found.data)["id"] == str(before) == str(found.context.id)


@pytest.mark.databases("postgresql")
def test_the_schema_that_is_looked_into_anyway_is_no_part_of_a_name(engine: sa.Engine) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1"])
    migrate_table(engine, "public.chats", "data")
    first = stored(engine)
    with engine.begin() as c:
        c.execute(sa.text("UPDATE chats SET data = :d"), {"d": V1})
    migrate_table(engine, "chats", "data")
    assert stored(engine) == first


# -- columns


def test_bytes_stay_bytes(engine: sa.Engine) -> None:
    kinds = {"sqlite": ["BLOB"], "postgresql": ["bytea"]}.get(engine.dialect.name, ["BLOB", "MEDIUMBLOB", "LONGBLOB"])
    for kind in kinds:
        made(engine, "INTEGER PRIMARY KEY", ["1"], kind=kind, value=V1.encode())
        assert migrate_table(engine, "chats", "data").migrated == 1
        assert b'"schema_version":3' in bytes(stored(engine)[0])
        with engine.begin() as c:
            c.exec_driver_sql("DROP TABLE chats")


@pytest.mark.databases("mysql")
def test_bytes_that_do_not_fit_are_refused(engine: sa.Engine) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1"], kind="TINYBLOB", value=b'{"schema_version":1}')
    assert "Data too long" in migrate_table(engine, "chats", "data").refused[0].reason
    assert stored(engine) == [b'{"schema_version":1}']


@pytest.mark.databases("sqlite")
def test_what_is_no_utf_8_costs_no_other_row_anything(engine: sa.Engine, store: Store) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1", "2", "3"])
    ctx = store.create(ScriptedProvider(["one"]))
    ctx.talk("hello")
    with engine.begin() as c:
        c.exec_driver_sql("UPDATE chats SET data = CAST(x'7b22ff' AS TEXT) WHERE k = 2")
        c.exec_driver_sql("UPDATE ctxstore_messages SET schema_version = 2, payload = CAST(x'7b22ff' AS TEXT)")
    report = migrate_table(engine, "chats", "data")
    assert (report.migrated, [r.key for r in report.refused]) == (2, [2])
    assert "no text in UTF-8" in report.refused[0].reason
    assert [r.key for r in store.migrate_payloads().refused] == [ctx.id, ctx.id]
    with engine.connect() as c:
        assert c.exec_driver_sql("SELECT CAST(data AS BLOB) FROM chats WHERE k = 2").scalar() == b'{"\xff'


@pytest.mark.databases("mysql")
@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("varchar(300)", '{"schema_version": 1, "messages": [{"role": "user", "content": "what a day"}]}'),
        ("varchar(4000) CHARACTER SET latin1", '{"schema_version": 1, "mode": "\\ud83d\\ude00 \\u4e16"}'),
    ],
)
def test_nothing_is_cut_to_fit(engine: sa.Engine, mode: str, kind: str, value: str) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1", "2"], kind=kind, value=value)
    loose = sa.create_engine(engine.url, poolclass=sa.StaticPool)
    with loose.connect() as c:
        c.execute(sa.text("SET SESSION sql_mode = :mode"), {"mode": mode})
        c.commit()
    report = migrate_table(loose, "chats", "data")
    assert (report.migrated, [r.key for r in report.refused]) == (0, [1, 2])
    assert stored(engine) == [value, value]
    with loose.connect() as c:
        assert c.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar() == mode, "the host's session is as it was"
    loose.dispose()


@pytest.mark.databases("mysql")
@pytest.mark.parametrize("how", ["trigger", "check"])
def test_a_row_that_the_database_refuses_costs_no_other_anything(engine: sa.Engine, how: str) -> None:
    check = "" if how == "trigger" else ", CHECK (k <> 2 OR char_length(data) < 2000)"
    made(engine, f"INTEGER PRIMARY KEY{check}", ["1", "2", "3"])
    if how == "trigger":
        with engine.begin() as c:
            c.exec_driver_sql(
                "CREATE TRIGGER frozen BEFORE UPDATE ON chats FOR EACH ROW IF OLD.k = 2 THEN "
                "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this row is frozen'; END IF"
            )
    report = migrate_table(engine, "chats", "data")
    assert (report.migrated, [r.key for r in report.refused]) == (2, [2])
    assert ("frozen" if how == "trigger" else "CONSTRAINT") in report.refused[0].reason


@pytest.mark.databases("mysql")
def test_what_the_database_sets_on_an_update_stays(engine: sa.Engine) -> None:
    made(engine, "INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT '2020-01-01' ON UPDATE CURRENT_TIMESTAMP", ["1"])
    assert migrate_table(engine, "chats", "data").migrated == 1
    with engine.connect() as c:
        assert c.exec_driver_sql("SELECT at FROM chats").scalar() == dt.datetime.fromisoformat("2020-01-01")


@pytest.mark.databases("sqlite", "postgresql")
def test_batches_larger_than_what_one_statement_takes(engine: sa.Engine) -> None:
    with engine.begin() as c:
        c.exec_driver_sql("CREATE TABLE chats (a INTEGER, b INTEGER, data TEXT, PRIMARY KEY (a, b))")
        rows = [{"a": i, "b": -i, "d": '{"schema_version":1}'} for i in range(3_000)]
        c.execute(sa.text("INSERT INTO chats VALUES (:a, :b, :d)"), rows)
    assert migrate_table(engine, "chats", "data", batch=100_000).migrated == 3_000


# -- what is refused before anything is read


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pause": float("inf")}, "pause"),
        ({"pause": -1.0}, "pause"),
        ({"batch": 10**20}, "batch"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bounds(engine: sa.Engine, options: dict[str, Any], words: str) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1"])
    with pytest.raises(ConfigurationError, match=words):
        migrate_table(engine, "chats", "data", **options)


def test_our_own_tables_are_no_host_s(engine: sa.Engine, store: Store) -> None:
    with pytest.raises(ConfigurationError, match="own tables"):
        migrate_table(engine, "ctxstore_contexts", "payload")


@pytest.mark.databases("postgresql")
def test_who_may_not_write_is_told_so(engine: sa.Engine) -> None:
    made(engine, "INTEGER PRIMARY KEY", ["1"])
    reader = sa.create_engine(engine.url, connect_args={"options": "-c default_transaction_read_only=on"})
    with pytest.raises(ConfigurationError, match="does not let this user do that"):
        migrate_table(reader, "chats", "data")
    assert migrate_table(reader, "chats", "data", dry_run=True).migrated == 1
    reader.dispose()


# -- the command


@pytest.mark.databases("sqlite")
def test_the_command_leaves_the_file_as_it_is_kept(engine: sa.Engine, url: str, tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with sqlite3.connect(path) as c:
        c.execute("PRAGMA foreign_keys = OFF")
        c.execute("CREATE TABLE chats (k BLOB PRIMARY KEY, data TEXT, gone INTEGER REFERENCES nowhere (id))")
        c.execute("CREATE TABLE 'with.dot' (k INTEGER PRIMARY KEY, data TEXT)")
        c.executemany("INSERT INTO chats (k, data) VALUES (?, ?)", [(b"\x01", V1), (b"\xff", "{")])
    c.close()
    before = path.read_bytes()
    arguments = ["migrate", "--db", f"sqlite:///{path}", "--table", "chats", "--column", "data"]
    assert main([*arguments, "--dry-run"]) == 1
    assert path.read_bytes() == before
    assert main([*arguments, "--json"]) == 1
    assert main(["migrate", "--db", f"sqlite:///{path}", "--table", "with.dot", "--column", "data"]) == 0
    with sqlite3.connect(path) as c:
        assert c.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    c.close()


@pytest.mark.databases("sqlite")
def test_a_key_of_bytes_in_a_report(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.db"
    with sqlite3.connect(path) as c:
        c.execute("CREATE TABLE chats (k BLOB PRIMARY KEY, data TEXT)")
        c.execute("INSERT INTO chats VALUES (?, ?)", (b"\x01\xff", "{"))
    c.close()
    assert main(["migrate", "--db", f"sqlite:///{path}", "--table", "chats", "--column", "data", "--json"]) == 1
    assert [r["key"] for r in json.loads(capsys.readouterr().out)["refused"]] == ["01ff"]
