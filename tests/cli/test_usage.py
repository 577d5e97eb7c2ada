"""``ctxstore usage`` and ``ctxstore purge``, as a shell sees them."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterator
from typing import Any

import pytest

from ctxstore import Store, clock
from ctxstore.errors import ServerError
from ctxstore.testing import ScriptedProvider

from .conftest import Run

PRICES = {"gpt-large": {"input": 3, "output": 15}}
USAGE = {"input_tokens": 1000, "output_tokens": 100}
REPLY = {"text": "x", "usage": USAGE}
NOW = dt.datetime(2026, 3, 31, 12, tzinfo=dt.UTC)
pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture(autouse=True)
def _today() -> Iterator[None]:
    with clock.frozen(NOW):
        yield


def talked(store: Store, *days: int, replies: int = 1, model: str = "gpt-large", owner: str | None = "team-7") -> None:
    """Replies of 1,100 tokens on days of March 2026."""
    ctx = store.create(ScriptedProvider([REPLY] * (replies * len(days)), model=model, prices=PRICES), owner=owner)
    for day in days:
        with clock.frozen(dt.datetime(2026, 3, day, 23, 30, tzinfo=dt.UTC)):
            for _ in range(replies):
                ctx.talk("q")


def table(store: Store) -> None:
    talked(store, 1, 2, replies=3)
    talked(store, 5)
    talked(store, 4, model="gpt-small-with-a-rather-long-name-2026-03-01")


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_table_with_bars_and_the_course_of_days(
    run: Run, store: Store, url: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table(store)
    done = run("usage", "--db", url)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(len(line.rstrip()) for line in lines[:8]) <= width
    large = next(line for line in lines if line.startswith("gpt-large"))
    assert "7,700" in large and "$0.0315" in large
    assert ("█" in large) == (width >= 60)
    assert "8,800" in next(line for line in lines if line.startswith("all"))
    assert "tokens by day ██·▃▃ 2026-03-01 to 2026-03-05" in done.out
    assert "1 reply without a price" in done.out


def test_since_and_until_and_the_zone(run: Run, store: Store, url: str) -> None:
    talked(store, 1, 24, 30)

    def days(*options: str) -> list[str]:
        return [row["day"] for row in run("usage", "--db", url, "--by", "day", "--json", *options).json]

    assert days() == ["2026-03-01", "2026-03-24", "2026-03-30"]
    assert days("--since", "7d") == ["2026-03-24", "2026-03-30"]
    assert days("--since", "1w", "--until", "48h") == ["2026-03-24"]
    assert days("--tz", "Europe/Berlin") == ["2026-03-02", "2026-03-25", "2026-03-31"]
    assert days("--since", "2026-03-31", "--tz", "Europe/Berlin") == ["2026-03-31"], "a date begins in the zone"
    assert days("--since", "2026-03-30T23:30:00.000001+00:00") == []


def test_groups_and_filters(run: Run, store: Store, url: str) -> None:
    talked(store, 1), talked(store, 2, owner=None), talked(store, 2, model="other")
    rows = run("usage", "--db", url, "--by", "owner, model,owner", "--json").json
    assert [(r["owner"], r["model"], r["requests"]) for r in rows] == [
        ("team-7", "gpt-large", 1), ("team-7", "other", 1), (None, "gpt-large", 1)
    ]  # fmt: skip
    assert [r["requests"] for r in run("usage", "--db", url, "--owner", "team-7", "--json").json] == [1, 1]
    assert [r["requests"] for r in run("usage", "--db", url, "--model", "other", "--by", "", "--json").json] == [1]
    assert "–" in run("usage", "--db", url, "--by", "owner").out, "what has no owner"


def test_failures_are_told(run: Run, store: Store, url: str) -> None:
    ctx = store.create(ScriptedProvider([ServerError("no"), "silent"]))
    with pytest.raises(ServerError):
        ctx.talk("q")
    ctx.talk("q")
    done = run("usage", "--db", url)
    assert "1 request failed." in done.out and "1 reply did not say what was used." in done.out


@pytest.mark.parametrize("owner", ["=HYPERLINK(1)", "+1", "-1", "@x", "a,b", 'a"b', "\x1b[31mred", "[bold]m[/bold]"])
def test_names_reach_neither_spreadsheet_nor_terminal_as_commands(run: Run, store: Store, url: str, owner: str) -> None:
    talked(store, 1, owner=owner)
    done = run("usage", "--db", url, "--by", "owner,day", "--csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert row["owner"] == ("'" if owner[0] in "=+-@" else "") + owner.replace("\x1b", "\\x1b")
    assert (row["day"], row["requests"], row["total_tokens"], row["cost_usd"]) == ("2026-03-01", "1", "1100", "0.0045")
    shown = run("usage", "--db", url, "--by", "owner").out
    assert "\x1b" not in done.out + shown
    assert owner.replace("\x1b", "\\x1b") in shown


def test_csv_of_nothing_has_its_header(run: Run, store: Store, url: str) -> None:
    assert run("usage", "--db", url, "--csv").out.startswith("model,requests,errors,contexts,input_tokens,")
    assert run("usage", "--db", url, "--csv").out.count("\n") == 1
    assert run("usage", "--db", url, "--json").json == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--by", "weekday"], "there is no 'weekday', only owner"),
        (["--tz", "Mars/Olympus"], "no time zone 'Mars/Olympus'"),
        (["--since", "yesterday"], "'yesterday' is no time"),
        (["--since", "999999w"], "'999999w' is no time"),
        (["--since", "1d", "--until", "2d"], "ends before it begins"),
        (["--kind", "other"], "no kind 'other'"),
        (["--csv", "--json"], "not both"),
    ],
)
def test_what_cannot_be_asked_ends_with_2(run: Run, store: Store, url: str, options: list[str], words: str) -> None:
    done = run("usage", "--db", url, *options)
    assert (done.code, done.out) == (2, "")
    assert words in " ".join(done.err.replace("│", " ").split())


def test_purge(run: Run, store: Store, url: str) -> None:
    talked(store, 1), talked(store, 2, owner="team-8"), talked(store, 30)

    def purge(*options: str) -> Any:
        return run("purge", "--db", url, "--older-than", "7d", *options)

    assert purge("--owner", "team-8").out == "archived 1\n"
    assert purge().out == "archived 1\n"
    assert purge().out == "archived 0\n"
    refused = purge("--delete")
    assert (refused.code, refused.out) == (1, "") and "--yes" in refused.err
    assert purge("--delete", "--yes").out == "deleted 2\n"
    assert [r["requests"] for r in run("usage", "--db", url, "--json").json] == [3]
    assert run("purge", "--db", url, "--older-than", "1h", "--delete", "--erase-usage", "--yes").out == "deleted 1\n"
    assert [r["requests"] for r in run("usage", "--db", url, "--json").json] == [2]
    assert purge("--erase-usage").code == 1
    assert run("purge", "--db", url, "--older-than", "soon").code == 2
