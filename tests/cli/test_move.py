"""``migrate``, ``export``, ``import``, ``verify`` and ``db check`` as an operator calls them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxstore import Store
from ctxstore.cli.progress import Meter
from ctxstore.payload import upcasts
from ctxstore.payload.upcasts import Upcast
from ctxstore.testing import ScriptedProvider

from .conftest import Run

OLD = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
V1 = OLD[0].read_text(encoding="utf-8")


@pytest.fixture
def app(run: Run) -> Iterator[Store]:
    """A database ``app.db`` in the folder of the command, with two conversations."""
    with Store("sqlite:///app.db") as store:
        store.upgrade()
        for owner in ("team-7", "team-8"):
            ctx = store.create(ScriptedProvider(["one", {"text": "two", "usage": {"input_tokens": 3}}]), owner=owner)
            ctx.talk("a \x1b[31m red")
            ctx.talk("b")
        yield store


def test_a_host_table_moves(run: Run) -> None:
    with sqlite3.connect("host.db") as c:
        c.execute("create table chats (id integer primary key, data text)")
        c.executemany("insert into chats values (?, ?)", [(1, V1), (2, V1), (3, "{\x1b[31m"), (4, None)])
    c.close()
    arguments = ("migrate", "--db", "host.db", "--table", "chats", "--column", "data")
    dry = run(*arguments, "--dry-run", "--json")
    assert dry.code == 1 and dry.json["dry_run"] and dry.json["migrated"] == 2
    done = run(*arguments, "--batch", "1", "--pause", "0.001")
    assert done.code == 1 and done.err.count("\n") == 1
    assert re.search(r"2\s+migrated", done.out) and re.search(r"1\s+refused", done.out) and "chats" in done.out
    assert "\x1b" not in done.out + done.err
    again = run(*arguments, "--json").json
    assert (again["migrated"], again["unchanged"], [r["key"] for r in again["refused"]]) == (0, 3, [3])
    with sqlite3.connect("host.db") as c:
        c.execute("delete from chats where id = 3")
    c.close()
    assert run(*arguments).code == 0
    assert run("migrate", "--db", "host.db", "--table", "chats").code == 2
    assert run("migrate", "--db", "host.db", "--table", "nothing", "--column", "data").code == 1


@pytest.mark.parametrize("payload", ["x", "[]", '{"schema_version":3}', '{"schema_version":3,"messages":null}'])
def test_a_damaged_prompt_in_flight_is_named(run: Run, app: Store, payload: str) -> None:
    ctx = app.list()[0]
    with sqlite3.connect("app.db") as c:
        values = (str(ctx.id), str(ctx.id), "2026-01-01 00:00:00.000000", payload)
        c.execute("insert into ctxstore_in_flight values (?, ?, 1, ?, ?)", values)
    c.close()
    refused = run("migrate", "--db", "app.db", "--json")
    assert refused.code == 1 and [r["key"] for r in refused.json["refused"]] == [str(ctx.id)]
    found = run("verify", "--db", "app.db", "--json")
    assert found.code == 1 and [(f["id"], f["kind"]) for f in found.json["findings"]] == [(str(ctx.id), "unreadable")]
    assert "newer" not in run("db", "check", "--db", "app.db").err
    run("export", "--db", "app.db", "--out", "all.jsonl")
    with Store("sqlite:///other.db") as other:
        other.upgrade()
    taken = run("import", "all.jsonl", "--db", "other.db")
    assert "Error:" not in taken.err


def test_our_own_tables_move_and_check_counts_them(run: Run, app: Store) -> None:
    assert run("db", "check", "--db", "app.db").code == 0
    upcasts.STEPS[3] = Upcast("a key more", message=lambda message, source: {**message, "four": 4})
    try:
        before = run("db", "check", "--db", "app.db")
        assert before.code == 0 and "ctxstore migrate" in before.out
        done = run("migrate", "--db", "app.db", "--json")
        assert done.code == 0 and done.json["migrated"] == 10
    finally:
        del upcasts.STEPS[3]
    older = run("db", "check", "--db", "app.db")
    assert older.code == 1 and "no way down" in older.err and "cannot be read by this program" in older.out
    counts = run("db", "check", "--db", "app.db", "--json").json
    assert counts["unreadable"] == 10 and not counts["ok"]
    assert {(p["schema_version"], p["readable"]) for p in counts["payloads"]} == {(4, False)}
    refused = run("migrate", "--db", "app.db")
    assert (
        refused.code == 1 and re.search(r"10\s+refused", refused.out) and "no way down" in " ".join(refused.out.split())
    )
    assert len(run("list", "--db", "app.db", "--json").json) == 2, "it can still be listed"


def test_export_and_import(run: Run, app: Store) -> None:
    done = run("export", "--db", "app.db", "-o", "all.jsonl", "--json")
    assert (done.code, done.json["contexts"], done.json["messages"]) == (0, 2, 8)
    piped = run("export", "--db", "app.db")
    assert piped.out == Path("all.jsonl").read_text() and "conversations" in piped.err
    assert run("import", "all.jsonl", "--db", "copy.db").code == 1, "a reading of a database that is not there"
    assert run("db", "upgrade", "--db", "copy.db").code == 0
    assert run("import", "all.jsonl", "--db", "copy.db", "--json").json["imported"] == 2
    again = run("import", "all.jsonl", "--db", "copy.db")
    assert again.code == 0 and re.search(r"2\s+here already", again.out)
    same = run("verify", "--db", "copy.db", "--against", "app.db", "--json")
    assert same.code == 0 and same.json["digest"] == same.json["against"] and not same.json["findings"]
    one = app.list()[0]
    app.load(one.id, ScriptedProvider(["x"])).talk("since")
    run("export", str(one.id), "--db", "app.db", "-o", "one.jsonl")
    clash = run("import", "one.jsonl", "--db", "copy.db")
    assert clash.code == 1 and str(one.id) in clash.out and "another content" in clash.out
    other = run("verify", "--db", "copy.db", "--against", "app.db")
    assert other.code == 1 and "different" in other.out and str(one.id) in other.out
    assert run("verify", "--db", "app.db", "--against", "app.db").code == 1


def test_a_damaged_file(run: Run, app: Store) -> None:
    run("export", "--db", "app.db", "-o", "all.jsonl")
    run("db", "upgrade", "--db", "copy.db")
    data = Path("all.jsonl").read_bytes()
    Path("cut.jsonl").write_bytes(data[: len(data) * 2 // 3])
    whole = run("import", "cut.jsonl", "--db", "copy.db", "--atomic")
    assert (
        whole.code == 1
        and "line 2" in whole.err
        and "nothing was imported" in whole.err
        and "Traceback" not in whole.err
    )
    assert run("list", "--db", "copy.db", "--json").json == []
    part = run("import", "cut.jsonl", "--db", "copy.db")
    assert part.code == 1 and "line 2" in part.err and "1 imported" in part.err
    assert run("import", "all.jsonl", "--db", "copy.db", "--json").json == {
        **run("import", "all.jsonl", "--db", "copy.db", "--json").json,
        "imported": 1,
        "there": 1,
        "attempts": 2,
        "seconds": pytest.approx(0, abs=60),
    }


def test_payloads_of_another_program(run: Run) -> None:
    run("db", "upgrade", "--db", "app.db")
    Path("old.jsonl").write_text("\n".join(path.read_text(encoding="utf-8").strip() for path in OLD), encoding="utf-8")
    done = run("import", "old.jsonl", "--db", "app.db", "--owner", "moved", "--json")
    assert done.code == 0 and done.json["imported"] == len(OLD)
    with sqlite3.connect("host.db") as c:
        c.execute("create table chats (id integer primary key, data text)")
        c.executemany("insert into chats values (?, ?)", [(1, V1), (2, "{")])
    c.close()
    done = run("import", "--from", "llm.rb", "host.db", "--table", "chats", "--db", "app.db", "--json")
    assert done.code == 1 and done.json["imported"] == 1 and [r["key"] for r in done.json["refused"]] == [2]
    assert run("import", "--from", "nothing", "host.db", "--db", "app.db").code == 1
    assert run("import", "--from", "openai-agents", "host.db", "--db", "app.db").code == 1


def test_verify_and_repair(run: Run, app: Store) -> None:
    assert run("verify", "--db", "app.db").code == 0
    with sqlite3.connect("app.db") as c:
        c.execute("update ctxstore_contexts set message_count = 99, title = char(27) || '[31m'")
    c.close()
    found = run("verify", "--db", "app.db")
    assert found.code == 1 and "message_count is 99" in found.out and "\x1b" not in found.out
    assert run("verify", "--db", "app.db", "--json").json["findings"][0]["kind"] == "projection"
    repaired = run("verify", "--db", "app.db", "--repair")
    assert repaired.code == 0 and re.search(r"4\s+repaired", repaired.out)
    assert run("verify", "--db", "app.db").code == 0


def test_through_a_pipe(app: Store) -> None:
    command = [sys.executable, "-m", "ctxstore"]
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([*command, "db", "upgrade", "--db", "copy.db"], check=True, capture_output=True, env=environment)
    export = [*command, "export", "--db", "app.db"]
    with subprocess.Popen(export, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as out:
        into = subprocess.run(
            [*command, "import", "-", "--atomic", "--db", "copy.db", "--json"],
            stdin=out.stdout,
            capture_output=True,
            env=environment,
        )
        out.communicate()
    assert out.returncode == into.returncode == 0
    assert json.loads(into.stdout)["imported"] == 2


def test_the_time_left() -> None:
    meter = Meter("rows")
    meter(100, 1_000)
    assert meter.text(200, 1_000, 10.0) == "200 of 1,000 rows, 20%, 1:20 left"
    assert meter.text(900, 100_000, 10.0).endswith("20:39 left")
    assert meter.text(110, 1_000_000, 10.0).endswith("277:44:50 left")
    assert meter.text(100, 1_000, 5.0) == "100 of 1,000 rows, 10%"
    assert meter.text(7, None, 5.0) == "7 rows"
