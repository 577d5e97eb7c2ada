"""Retention: contexts by age, in batches that may be stopped; and owners of whom nothing may be left."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store, clock, new_id
from ctxstore.errors import ConfigurationError, ContextNotFoundError, ServerError
from ctxstore.store.tables import metadata
from ctxstore.testing import ScriptedProvider

NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
USAGE = {"input_tokens": 10, "output_tokens": 2}
DAYS_90 = dt.timedelta(days=90)


@pytest.fixture(autouse=True)
def _today() -> Iterator[None]:
    with clock.frozen(NOW):
        yield


def aged(store: Store, *days: float, owner: str | None = "o") -> list[Any]:
    """Ids of contexts with one turn, so many days ago."""
    made = []
    for ago in days:
        with clock.frozen(NOW - dt.timedelta(days=ago)):
            ctx = store.create(ScriptedProvider([{"text": "answer", "usage": USAGE}]), owner=owner)
            ctx.talk("question")
        made.append(ctx.id)
    return made


def there(store: Store, archived: bool | None = False) -> set[Any]:
    return {row.id for row in store.list(archived=archived)}


def count(engine: sa.Engine, table: str) -> int:
    with engine.connect() as c:
        return int(c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def test_archives_what_is_older_and_nothing_else(store: Store) -> None:
    old, edge, young = aged(store, 91, 90, 89)
    assert store.purge(DAYS_90) == 1
    assert (there(store), there(store, True)) == ({edge, young}, {old})
    assert store.purge(DAYS_90) == 0, "what is archived is done"
    assert store.purge(NOW - dt.timedelta(days=89.5)) == 1
    assert there(store) == {young}
    assert len(store.messages(old)) == 2
    store.unarchive(old)
    assert there(store) == {old, young}


def test_deletes_from_every_table_but_the_ledger(store: Store, engine: sa.Engine) -> None:
    old, young = aged(store, 100, 1)
    before = store.usage(by=("owner", "model", "day"))
    assert store.purge(DAYS_90, action="delete") == 1
    assert there(store, None) == {young}
    assert count(engine, "ctxstore_messages") == 2
    assert store.usage(by=("owner", "model", "day")) == before, "sums do not change"
    with pytest.raises(ContextNotFoundError):
        store.get(old)


def test_deletes_what_is_archived_too(store: Store) -> None:
    old, _ = aged(store, 100, 1)
    store.archive(old)
    assert store.purge(DAYS_90, action="delete") == 1


def test_the_ledger_goes_when_it_is_asked_for(store: Store) -> None:
    aged(store, 100, 101, 1)
    assert store.purge(DAYS_90, action="delete", erase_usage=True) == 2
    assert [r.requests for r in store.usage(by=())] == [1]


def test_an_owner_alone(store: Store) -> None:
    (mine,), (theirs,) = aged(store, 100, owner="a"), aged(store, 100, owner="b")
    assert store.purge(DAYS_90, owner="a", action="delete") == 1
    assert there(store) == {theirs} and mine != theirs


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_in_batches_that_may_be_stopped_and_called_again(store: Store, action: Any) -> None:
    aged(store, *[100] * 4, *(101 + n / 10 for n in range(3)), 1)
    told: list[int] = []

    def stop(done: int) -> None:
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.purge(DAYS_90, action=action, batch=2, progress=stop)
    assert told == [2, 4] and len(there(store)) == 4, "what was done is done"
    assert store.purge(DAYS_90, action=action, batch=2, progress=told.append) == 3
    assert told[2:] == [2, 3]
    assert len(there(store)) == 1
    assert store.usage(by=())[0].requests == 8


def test_a_context_that_is_saved_meanwhile_stays_whole(store: Store) -> None:
    first, second, third = sorted(aged(store, 100, 100, 100))

    def talk(done: int) -> None:
        if done == 1:
            store.load(second, ScriptedProvider(["still here"])).talk("are you?")

    assert store.purge(DAYS_90, action="delete", batch=1, progress=talk) == 2
    assert there(store) == {second}
    assert len(store.messages(second)) == 4
    assert first != third


def test_a_lease_keeps_it(store: Store) -> None:
    old, other = aged(store, 100, 100)
    with store.lease(old, ScriptedProvider(["r"])):
        assert store.purge(DAYS_90, action="delete") == 1
    assert there(store) == {old} and old != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"older_than": NOW.replace(tzinfo=None)}, "no time zone"),
        ({"older_than": NOW + DAYS_90}, "future"),
        ({"older_than": -DAYS_90}, "future"),
        ({"older_than": dt.timedelta.max}, "more than there is of time"),
        ({"older_than": "90d"}, "timedelta"),
        ({"older_than": DAYS_90, "action": "forget"}, "'archive' or 'delete'"),
        ({"older_than": DAYS_90, "erase_usage": True}, "action='delete'"),
        ({"older_than": DAYS_90, "batch": 0}, "batch"),
    ],
)
@pytest.mark.databases("sqlite")
def test_what_cannot_be_purged_is_named(store: Store, arguments: dict[str, Any], words: str) -> None:
    aged(store, 100)
    with pytest.raises(ConfigurationError, match=words):
        store.purge(**arguments)
    assert len(there(store)) == 1


# -- the right to be forgotten

NAME = "Ada Lovelace-47"
WORD = "xylophone-secret"


def leave_traces(store: Store) -> tuple[Any, Any]:
    """An owner's name and words wherever they can come to stand; one live context and one that was deleted."""
    raw = {**USAGE, WORD: 3}
    replies = [
        {"text": WORD, "usage": raw, "finish_reason": f"stop {WORD}", "response_id": f"resp_{WORD}"},
        ServerError(f"{WORD} is down"),
        {"tool_calls": [{"id": WORD, "name": "look", "arguments": {"what": WORD}}]},
    ]
    made = []
    for _ in range(2):
        provider = ScriptedProvider(list(replies))
        ctx = store.create(provider, owner=NAME, metadata={"title": WORD, "by": NAME}, instructions=WORD)
        ctx.talk(WORD)
        with pytest.raises(ServerError):
            ctx.talk(WORD)
        ctx.talk(WORD)
        provider.replies.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            ctx.talk(f"{WORD} in flight", tools=[])
        assert len(store.in_flight(ctx.id)) == 1
        made.append(ctx)
    store.delete(made[1].id)
    store.archive(made[0].id)
    return made[0], made[1]


def everything(engine: sa.Engine) -> str:
    """Every column of every table that there is, as one text."""
    with engine.connect() as c:
        tables = sa.inspect(engine).get_table_names()
        assert set(metadata.tables) <= set(tables)
        return "\n".join(str(tuple(row)) for table in tables for row in c.exec_driver_sql(f"SELECT * FROM {table}"))


@pytest.mark.parametrize("batch", [1, 500])
def test_nothing_of_an_owner_is_left(store: Store, engine: sa.Engine, batch: int) -> None:
    live, deleted = leave_traces(store)
    (other,) = aged(store, 1, owner="somebody else")
    before = store.usage(by=("kind", "outcome", "model", "provider", "day"))
    assert NAME in everything(engine) and WORD in everything(engine)

    report = store.erase(NAME, batch=batch)

    text = everything(engine)
    assert NAME not in text and WORD not in text and NAME.lower() not in text.lower()
    assert (report.contexts, report.attempts) == (1, 8)
    assert report.owner not in (NAME, None) and NAME not in report.owner
    assert store.usage(by=("kind", "outcome", "model", "provider", "day")) == before, "the sums stay"
    owners = {r.owner: r.contexts for r in store.usage(by=("owner",))}
    assert owners == {report.owner: 2, "somebody else": 1}
    assert there(store, None) == {other} and len(store.messages(other)) == 2
    assert live.id != deleted.id
    again = store.erase(NAME)
    assert (again.contexts, again.attempts) == (0, 0)
    assert again.owner != report.owner, "the name is made of nothing"


def test_a_live_context_of_hers_cannot_go_on(store: Store, engine: sa.Engine) -> None:
    live, _ = leave_traces(store)
    store.erase(NAME)
    live.provider.replies[:] = [WORD]
    with pytest.raises(ContextNotFoundError):
        live.talk("and now?")
    assert NAME not in everything(engine) and WORD not in everything(engine)
    assert live.provider.replies == [WORD], "nothing was sent"


def test_a_turn_that_was_under_way_is_caught_by_the_next_call(store: Store, engine: sa.Engine) -> None:
    provider = ScriptedProvider([{"text": WORD, "usage": USAGE}])
    ctx = store.create(provider, owner=NAME)
    provider.on_request = lambda request: store.erase(NAME)
    with pytest.raises(ContextNotFoundError) as error:
        ctx.talk("q")
    assert error.value.turn is not None and error.value.turn.messages[-1].text == WORD
    assert store.erase(NAME).attempts == 1
    assert NAME not in everything(engine) and WORD not in everything(engine)
    assert store.usage(by=())[0].requests == 1


@pytest.mark.parametrize("owner", [None, "", " padded ", "x" * 192])
@pytest.mark.databases("sqlite")
def test_an_owner_that_cannot_be_is_refused(store: Store, owner: Any) -> None:
    aged(store, 1, owner=None)
    with pytest.raises(ConfigurationError):
        store.erase(owner)
    assert len(there(store)) == 1


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with Store(url) as store:
            provider = ScriptedProvider(["r", "r"])
            for owner in ("a", "b"):
                ctx = await store.acreate(provider, owner=owner)
                await ctx.atalk("q")
            assert await store.apurge(dt.timedelta(0), owner="a") == 0
            with clock.frozen(NOW + DAYS_90 + dt.timedelta(seconds=1)):
                assert await store.apurge(DAYS_90, owner="a", action="delete") == 1
            assert (await store.aerase("b")).contexts == 1
            assert await store.alist(archived=None) == []
            (row,) = await store.ausage(by=())
            assert row.requests == 2

    asyncio.run(main())


def test_a_name_that_begins_like_hers_is_not_hers(store: Store) -> None:
    others = ["ada", "Ada ", "Ada%", "Ad_", "Ada2", str(new_id())]
    for owner in ("Ada", *(o.strip() for o in others)):
        aged(store, 1, owner=owner)
    kept = {o.strip() for o in others} - {"Ada"}
    store.erase("Ada")
    assert {r.owner for r in store.list()} == kept
