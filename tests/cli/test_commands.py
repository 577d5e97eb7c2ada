"""The command as people call it: what it prints, what it refuses, with which exit code."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from ctxstore import Store, clock, new_id
from ctxstore.cli.app import app
from ctxstore.testing import ScriptedProvider

from .conftest import Run

USAGE = {"input_tokens": 1000, "output_tokens": 100}
PRICES = {"scripted-1": {"input": 3, "output": 15}}


def talked(store: Store, *replies: Any, owner: str | None = None, prompt: str = "What is left?") -> Any:
    llm = ScriptedProvider(list(replies) or [{"text": "Three.", "usage": USAGE}], prices=PRICES)
    ctx = store.create(llm, owner=owner)
    for _ in range(len(llm.replies)):
        ctx.talk(prompt)
    return ctx


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, name: str) -> None:
        found[name] = command
        for key, sub in getattr(command, "commands", {}).items():
            walk(sub, f"{name} {key}".strip())

    walk(typer.main.get_command(app), "")
    return found


COMMANDS = commands()

# -- what stands there


def test_list_and_show(run: Run, store: Store, url: str) -> None:
    first = talked(store, owner="team-7")
    second = talked(store, {"text": "Bonjour.", "usage": USAGE}, {"text": "x"}, owner="team-8")
    done = run("list", "--db", url)
    assert done.code == 0
    ids = re.findall(r"[0-9a-f-]{36}", done.out)
    assert ids == [str(second.id), str(first.id)]
    assert "1,100" in done.out
    rows = run("list", "--db", url, "--json", "--owner", "team-7").json
    assert [(r["id"], r["owner"], r["message_count"], r["total_tokens"], r["cost_usd"]) for r in rows] == [
        (str(first.id), "team-7", 2, 1100, "0.0045")
    ]
    page = run("list", "--db", url, "--json", "--limit", 1).json
    rest = run("list", "--db", url, "--json", "--limit", 5, "--after", page[0]["cursor"]).json
    assert [r["id"] for r in page + rest] == ids

    shown = run("show", first.id, "--db", url)
    assert shown.code == 0
    assert "user │ What is left?" in shown.out
    assert "assistant │ Three." in shown.out
    whole = run("show", str(second.id).upper(), "--db", url, "--json").json
    assert [m["content"] for m in whole["messages"]] == ["What is left?", "Bonjour.", "What is left?", "x"]
    assert [
        m["position"]
        for m in run("show", second.id, "--db", url, "--json", "--limit", 2, "--before", 3).json["messages"]
    ] == [1, 2]


def test_usage(run: Run, store: Store, url: str) -> None:
    talked(store, owner="a")
    talked(store, {"text": "x", "usage": USAGE}, {"text": "unknown"}, owner="b")
    rows = run("usage", "--db", url, "--by", "owner,model", "--json").json
    assert [(r["owner"], r["model"], r["requests"], r["total_tokens"], r["unknown"]) for r in rows] == [
        ("a", "scripted-1", 1, 1100, 0),
        ("b", "scripted-1", 2, 1100, 1),
    ]
    done = run("usage", "--db", url, "--by", "owner")
    assert done.code == 0
    assert "2,200" in done.out
    assert "█" in done.out
    assert "1 reply did not say what was used." in done.out
    assert run("usage", "--db", url, "--by", "").code == 0
    assert "no usage recorded" in run("usage", "--db", url, "--owner", "nobody").out


@pytest.mark.databases("sqlite")
def test_usage_by_day_and_as_csv(run: Run, store: Store, url: str) -> None:
    for day in (1, 2, 5):
        with clock.frozen(dt.datetime(2026, 3, day, 23, 30, tzinfo=dt.UTC)):
            talked(store, *[{"text": "x", "usage": USAGE}] * day, owner="=cmd()")
    rows = run("usage", "--db", url, "--by", "day", "--tz", "Europe/Berlin", "--since", "2026-03-03", "--json").json
    assert [(r["day"], r["requests"]) for r in rows] == [("2026-03-03", 2), ("2026-03-06", 5)]
    assert "tokens by day ▂▄··█" in run("usage", "--db", url, "--by", "day").out
    lines = list(csv.DictReader(io.StringIO(run("usage", "--db", url, "--by", "owner,day", "--csv").out)))
    assert [(r["owner"], r["day"], r["total_tokens"], r["cost_usd"]) for r in lines] == [
        ("'=cmd()", "2026-03-01", "1100", "0.0045"),
        ("'=cmd()", "2026-03-02", "2200", "0.009"),
        ("'=cmd()", "2026-03-05", "5500", "0.0225"),
    ]
    assert run("usage", "--db", url, "--kind", "compaction", "--json").json == []
    assert (
        run("usage", "--db", url, "--model", "scripted-1", "--provider", "scripted", "--json").json[0]["requests"] == 8
    )


@pytest.mark.databases("sqlite")
def test_search_fork_purge(run: Run, store: Store, url: str) -> None:
    with clock.frozen(dt.datetime(2025, 1, 1, tzinfo=dt.UTC)):
        old = talked(store, "100% of the teapots", "second", owner="a")
    found = run("search", "100% of", "--db", url)
    assert str(old.id) in found.out
    assert "assistant │ 100% of the teapots" in found.out
    assert [r["position"] for r in run("search", "100% of", "--db", url, "--json").json] == [1]
    assert "nothing found" in run("search", "100% of", "--db", url, "--owner", "b").out
    made = run("fork", old.id, "--db", url, "--at", 1, "--json").json
    assert (made["message_count"], made["forked_from"]) == (2, str(old.id))
    assert "4 messages" in run("fork", old.id, "--db", url).out
    assert run("purge", "--db", url, "--older-than", "90d").out == "archived 1\n"
    assert len(run("list", "--db", url, "--json").json) == 2
    assert run("purge", "--db", url, "--older-than", "0h", "--delete").code == 1, "it asks first"
    assert run("purge", "--db", url, "--older-than", "90d", "--delete", "--yes").out == "deleted 1\n"
    assert run("show", old.id, "--db", url).code == 1
    assert run("usage", "--db", url, "--json").json[0]["requests"] == 2


def test_archive_and_delete(run: Run, store: Store, url: str) -> None:
    ctx = talked(store, owner="a")
    assert run("archive", ctx.id, "--db", url, "--owner", "b").code == 1, "another owner's is not found"
    assert run("archive", ctx.id, "--db", url).code == 0
    assert run("list", "--db", url, "--json").json == []
    assert len(run("list", "--db", url, "--json", "--archived").json) == 1
    asked = run("delete", ctx.id, "--db", url)
    assert (asked.code, asked.out) == (1, "")
    assert "--yes" in asked.err
    assert run("delete", ctx.id, "--db", url, "--yes").code == 0
    assert run("show", ctx.id, "--db", url).code == 1
    assert run("usage", "--db", url, "--json").json[0]["total_tokens"] == 1100, "the ledger outlives it"


@pytest.mark.databases("sqlite")
def test_text_of_a_conversation_does_not_act_on_the_terminal(run: Run, store: Store, url: str) -> None:
    evil = "\x1b]0;title\x07\x1b[2J[bold red]x[/] \u202egnp.exe"
    ctx = talked(store, evil, owner="[red]o[/]", prompt="ask\x9b31m")
    for command in (("show", ctx.id), ("list",), ("usage", "--by", "owner"), ("show", ctx.id, "--json")):
        done = run(*command, "--db", url)
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x9b\u202e")
    shown = run("show", ctx.id, "--db", url).out
    assert r"\x1b]0;title\x07\x1b[2J[bold red]x[/] \u202egnp.exe" in shown
    assert "[red]o[/]" in run("list", "--db", url).out
    back = run("show", ctx.id, "--db", url, "--json").json
    assert back["messages"][1]["content"] == evil


# -- the database


def test_upgrade_check_current(run: Run, empty_url: str) -> None:
    if empty_url.startswith("sqlite"):
        assert run("db", "check", "--db", empty_url).code == 1
        assert not Path(empty_url.removeprefix("sqlite:///")).exists()
    else:
        behind = run("db", "check", "--db", empty_url)
        assert behind.code == 1
        assert "ctxstore db upgrade" in behind.err
        assert run("list", "--db", empty_url).err.count("\n") == 1
    assert "upgraded from nothing" in run("db", "upgrade", "--db", empty_url).out
    assert "nothing to do" in run("db", "upgrade", "--db", empty_url).out
    assert run("db", "check", "--db", empty_url).code == 0
    state = run("db", "check", "--db", empty_url, "--json").json
    assert state["ok"]
    assert state["current"] == state["head"]
    assert run("db", "current", "--db", empty_url).out.strip() == state["head"]
    assert "no conversations" in run("list", "--db", empty_url).out


def test_path_names_the_migrations(run: Run) -> None:
    folder = Path(run("db", "path").out.strip())
    assert (folder / "env.py").is_file()
    assert list(Path(run("db", "path", "--versions").out.strip()).glob("ctxstore_0001*.py"))


@pytest.mark.parametrize("command", [("list",), ("show", new_id()), ("usage",), ("db", "current"), ("db", "check")])
def test_reading_makes_no_file(run: Run, command: tuple[str, ...]) -> None:
    for database in ("nowhere.db", "sqlite:///nowhere.db", "sqlite:///file:nowhere.db?uri=true"):
        done = run(*command, "--db", database)
        assert done.code == 1
        told = r"ctxstore: there is no database at nowhere.db: .*ctxstore db upgrade --db nowhere.db\n"
        assert re.fullmatch(told, done.err)
    assert os.listdir() == []


@pytest.mark.databases("sqlite")
def test_the_database_comes_from_the_environment(
    run: Run, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(store)
    monkeypatch.setenv("CTXSTORE_DB", url.removeprefix("sqlite:///"))
    assert len(run("list", "--json").json) == 1


# -- what goes wrong


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("--db", "postgresql://nobody@127.0.0.1:1/x"), "127.0.0.1"),
        (("--db", "oracle://x/y"), "oracle"),
        (("--db", "://"), "URL"),
        (("--db", "notadb.txt"), "not a database"),
        (("--after", "nonsense", "--db", "made.db"), "cursor"),
    ],
)
def test_a_failure_is_one_line(run: Run, command: tuple[str, ...], says: str) -> None:
    Path("notadb.txt").write_text("This is no database. " * 100)
    run("db", "upgrade", "--db", "made.db")
    done = run("list", *command)
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(r"ctxstore: [^\n]+\n", done.err)
    assert says in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("nonsense",),
        ("list", "--nonsense"),
        ("list", "--limit", "0"),
        ("show",),
        ("usage", "--since", "yesterday", "--db", "x"),
        ("usage", "--kind", "gift", "--db", "x"),
        ("purge", "--older-than", "old", "--db", "x"),
        ("usage", "--since", "2026-01-01", "--tz", "Mars/Olympus", "--db", "x"),
    ],
)
def test_called_wrongly(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert done.err


def test_an_unknown_id(run: Run) -> None:
    run("db", "upgrade", "--db", "app.db")
    for identity, says in ((new_id(), "no context"), ("custom", "UUIDv7")):
        done = run("show", identity, "--db", "app.db")
        assert done.code == 1
        assert says in done.err


def test_a_table_from_elsewhere_is_no_upgraded_database(run: Run) -> None:
    with closing(sqlite3.connect("host.db")) as c:
        c.executescript("create table users (id int); insert into users values (1)")
    done = run("list", "--db", "host.db")
    assert done.code == 1
    assert "ctxstore db upgrade" in done.err


# -- help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(run: Run, name: str) -> None:
    done = run(*name.split(), "--help")
    assert done.code == 0
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts}"
            assert parameter.opts[0] in done.out


def test_no_arguments_show_help_and_version_the_version(run: Run) -> None:
    assert "Commands" in run().out + run().err
    assert run("--version").out.startswith("ctxstore ")


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ctxstore", "list", "--db", "no.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ctxstore: there is no database at no.db")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Store(f"sqlite:///{path}") as store:
        store.upgrade()
        for _ in range(3):
            talked(store, "x " * 50_000)
        ctx = store.list()[0]
    process = subprocess.Popen(
        [sys.executable, "-m", "ctxstore", "show", str(ctx.id), "--db", str(path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b"{"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in {0, 1}


@pytest.mark.parametrize("command", [("verify", "--json"), ("list",), ("usage", "--json"), ("db", "check")])
def test_a_closed_standard_output_is_no_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    with Store(f"sqlite:///{tmp_path}/app.db") as store:
        store.upgrade()
        talked(store, "x")
    line = [sys.executable, "-m", "ctxstore", *command, "--db", str(tmp_path / "app.db")]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *line],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_json_of_every_reading_command_parses(run: Run) -> None:
    run("db", "upgrade", "--db", "app.db")
    for command in (("list",), ("usage",), ("db", "current"), ("db", "check")):
        json.loads(run(*command, "--db", "app.db", "--json").out)
