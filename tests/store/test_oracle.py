"""Many processes on one conversation, and on one new file: what each was told is what the database holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.testing import ScriptedProvider

from .oracle import Processes, journal, stored

SMALL, FULL = (4, 5), pytest.param(8, 25, marks=pytest.mark.stress)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    found = Processes(tmp_path_factory.mktemp("processes") / "errors")
    yield found
    found.close()


def check(engine: sa.Engine, context_id: object, done: list[str]) -> None:
    """The turns ``done`` and no others are there, each whole and once, and positions have no gap."""
    rows = stored(engine, context_id)
    assert [position for position, _, _ in rows] == list(range(len(rows)))
    assert [role for _, role, _ in rows] == ["user", "assistant"] * (len(rows) // 2)
    asked, answered = [c for _, _, c in rows[::2]], [c for _, _, c in rows[1::2]]
    assert answered == [f"r{text[1:]}" for text in asked], "no turn is torn, no two interleave"
    assert sorted(asked) == sorted(done)


@pytest.mark.parametrize("work", ["share", "ashare"])
@pytest.mark.parametrize(("count", "turns"), [SMALL, FULL])
def test_writers_that_lease_lose_nothing(
    store: Store, engine: sa.Engine, url: str, processes: Processes, tmp_path: Path, work: str, count: int, turns: int
) -> None:
    ctx = store.create(ScriptedProvider())
    path = tmp_path / "journal"
    processes.run(work, url=url, id=ctx.id, processes=count, turns=turns, leased=True, journal=path)
    done = journal(path, "done")
    assert journal(path, "told") == [] and len(done) == count * turns
    check(engine, ctx.id, done)
    assert len(stored(engine, ctx.id)) == 2 * count * turns
    (row,) = store.usage(by=())
    assert row.requests == count * turns and row.usage.total_tokens == 12 * count * turns
    assert store.in_flight(ctx.id) == [] and store.get(ctx.id).locked_by is None


@pytest.mark.parametrize("work", ["share", "ashare"])
@pytest.mark.parametrize(("count", "turns"), [SMALL, FULL])
def test_writers_that_do_not_are_told_of_every_turn_that_lost(
    store: Store, engine: sa.Engine, url: str, processes: Processes, tmp_path: Path, work: str, count: int, turns: int
) -> None:
    ctx = store.create(ScriptedProvider())
    path = tmp_path / "journal"
    processes.run(work, url=url, id=ctx.id, processes=count, turns=turns, leased=False, journal=path)
    done, told = journal(path, "done"), journal(path, "told")
    assert done and len(done) + len(told) == len({*done, *told}) == count * turns
    check(engine, ctx.id, done)
    outcomes = {row.outcome: row.requests for row in store.usage(by=("outcome",))}
    assert outcomes["ok"] == len(done) and outcomes.get("lost", 0) <= len(told), "told before they paid, or lost"
    assert store.in_flight(ctx.id) == []
    live = store.load(ctx.id, ScriptedProvider(["goes on"]))
    assert live.token_usage.total_tokens == 12 * len(done)
    assert live.talk("and now").text == "goes on"
    print(f"{count} processes: {len(done)} turns stored + {len(told)} conflicts told = {count * turns}")


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("count", "threads"),
    [
        (6, 5),
        pytest.param(200, 1, marks=pytest.mark.stress),
        pytest.param(8, 25, marks=pytest.mark.stress),
    ],
)
def test_everybody_comes_to_a_new_file_at_once(
    empty_url: str, processes: Processes, tmp_path: Path, count: int, threads: int
) -> None:
    path = tmp_path / "journal"
    processes.run("first", url=empty_url, processes=count, threads=threads, journal=path)
    names = sorted(f"{n}.{t}" for n in range(count) for t in range(threads))
    assert sorted(journal(path, "done")) == names
    with Store(empty_url) as store:
        found, cursor = [], None
        while page := store.list(limit=100, after=cursor):
            found += page
            cursor = page[-1].cursor
        assert sorted(s.owner for s in found if s.owner) == names
        for summary in found:
            assert [m.text for m in store.messages(summary.id)] == [f"q{summary.owner}", f"r{summary.owner}"]
        assert store.usage(by=())[0].requests == count * threads
