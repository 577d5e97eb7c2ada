"""``kill -9`` at any moment of a talking process: what was acknowledged is there, nothing is there by half."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ctxstore import Store
from ctxstore.testing import ScriptedProvider

from .oracle import Processes, journal, stored
from .talker import USAGE, Hasty

LEASE_SECONDS = 0.5


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    found = Processes(tmp_path_factory.mktemp("processes") / "errors")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("kills", "leased"),
    [
        (5, 0),
        (2, LEASE_SECONDS),
        pytest.param(100, 0, marks=pytest.mark.stress),
        pytest.param(20, LEASE_SECONDS, marks=pytest.mark.stress),
    ],
)
def test_a_process_that_is_killed(
    store: Store, engine: sa.Engine, url: str, processes: Processes, tmp_path: Path, kills: int, leased: float
) -> None:
    ctx = store.create(ScriptedProvider(), owner="o")
    path = tmp_path / "journal"
    mine: list[str] = []  # turns of the lives between the kills, acknowledged to this process
    dropped: set[str] = set()
    flying = 0
    for life in range(kills):
        processes.start("endless", url=url, id=ctx.id, life=life, leased=leased, journal=path)
        if life % 5 != 4:
            wait_for_a_turn(path, life)
        time.sleep(random.uniform(0, 0.1))
        processes.kill()

        provider = Hasty()
        if leased:
            with store.lease(ctx.id, provider, wait=60) as back:
                flying += check_and_go_on(store, engine, back, path, mine, dropped, life)
        else:
            back = store.load(ctx.id, provider)
            flying += check_and_go_on(store, engine, back, path, mine, dropped, life)
    done = journal(path, "done")
    assert len(done) >= kills - kills // 5, "every kill but the early ones came after a turn"
    print(f"{kills} kills, {len(done)} acknowledged turns, {flying} prompts in flight, none lost")


def wait_for_a_turn(path: Path, life: int) -> None:
    until = time.monotonic() + 60
    while not any(text.startswith(f"q{life}.") for text in journal(path, "done")[-1:]):
        assert time.monotonic() < until, "the process does not talk"
        time.sleep(0.002)


def check_and_go_on(store, engine, back, path: Path, mine: list[str], dropped: set[str], life: int) -> int:
    """Look at what a kill left, then do with its prompt what an application would, and talk on."""
    rows = stored(engine, back.id)
    assert [position for position, _, _ in rows] == list(range(len(rows)))
    assert [role for _, role, _ in rows] == ["user", "assistant"] * (len(rows) // 2), "no turn is there by half"
    asked, answered = [c for _, _, c in rows[::2]], [c for _, _, c in rows[1::2]]
    assert answered == [f"r{text[1:]}" for text in asked]
    assert len(set(asked)) == len(asked), "none is there twice"
    assert [m.text for m in back.messages] == [c for _, _, c in rows], "and the context loads"

    sent, done = journal(path, "sent"), journal(path, "done")
    there = set(asked)
    assert set(done) <= there and set(mine) <= there, "every turn that was acknowledged is there"
    flights = store.in_flight(back.id)
    in_flight = [m.text for flight in flights for m in flight.messages]
    assert len(flights) <= 1 and len(in_flight) == len(flights)
    assert there.isdisjoint(in_flight), "a prompt is in flight or has its reply, not both"
    assert set(sent) <= there | dropped | set(in_flight), "no prompt that was sent has gone"
    unsaid = there - set(sent) - set(mine)
    assert not unsaid, f"nothing is there that nobody said: {unsaid}"

    (row,) = store.usage(by=()) or [None]
    assert (row.requests if row else 0) == len(answered), "the ledger has one row a reply"
    assert (row.errors if row else 0) == 0
    assert back.token_usage.total_tokens == 12 * len(answered) == store.get(back.id).total_tokens

    for flight in flights:
        if life % 2:
            back.provider.replies.append({"text": f"r{flight.messages[0].text[1:]}", "usage": USAGE})
            back.resend(flight)
            mine.append(flight.messages[0].text)
        else:
            store.drop_in_flight(back.id, flight.turn_id)
            dropped.add(flight.messages[0].text)
    back.provider.replies.append({"text": f"rafter {life}", "usage": USAGE})
    assert back.talk(f"qafter {life}").text == f"rafter {life}", "the next turn works"
    mine.append(f"qafter {life}")
    assert store.in_flight(back.id) == []
    return len(flights)
