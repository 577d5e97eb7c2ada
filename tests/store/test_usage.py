"""Sums of the ledger: every grouping, every range, every outcome, against sums made here."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import pickle
from collections import Counter
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st

from ctxstore import Store, TokenUsage, clock, new_id
from ctxstore.compaction import Trim
from ctxstore.errors import ConfigurationError, ContextNotFoundError, ServerError, StaleContextError
from ctxstore.store.sums import GROUPINGS
from ctxstore.testing import ScriptedProvider
from ctxstore.usage import Price

PRICES = {"cheap": {"input": 3, "output": 15, "cache_read": 0.3}, "dear": {"input": 15, "output": 75}}
MARCH = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def said(input: int, output: int, **more: int) -> dict[str, Any]:
    return {"text": "x", "usage": {"input_tokens": input, "output_tokens": output, **more}}


def llm(*replies: Any, model: str = "cheap") -> ScriptedProvider:
    return ScriptedProvider(list(replies), model=model, prices=PRICES)


def at(store: Store, *times: dt.datetime, owner: str | None = None) -> None:
    """One reply of 1 and 1 tokens at each of ``times``."""
    ctx = store.create(llm(*[said(1, 1)] * len(times)), owner=owner)
    for time in times:
        with clock.frozen(time):
            ctx.talk("q")


# -- groupings


def test_every_grouping_gives_its_keys_as_attributes(store: Store) -> None:
    with clock.frozen(dt.datetime(2026, 3, 8, 12, 40, tzinfo=dt.UTC)):
        ctx = store.create(llm(said(5, 2)), owner="o")
        ctx.talk("q")
    (row,) = store.usage(by=GROUPINGS, tz="Asia/Kathmandu")
    assert (row.owner, row.provider, row.model, row.kind, row.outcome) == ("o", "scripted", "cheap", "turn", "ok")
    assert (row.context, row.day, row.week, row.month) == (
        ctx.id, dt.date(2026, 3, 8), dt.date(2026, 3, 2), dt.date(2026, 3, 1)
    )  # fmt: skip
    assert row.hour == dt.datetime(2026, 3, 8, 18, tzinfo=ZoneInfo("Asia/Kathmandu"))
    assert (row.requests, row.errors, row.contexts, row.usage.total_tokens) == (1, 0, 1, 7)
    assert row.cost == Decimal("0.000045")
    with pytest.raises(AttributeError, match="only by"):
        row.weekday
    assert list(row.to_dict())[:4] == ["owner", "provider", "model", "kind"]
    assert pickle.loads(pickle.dumps(row)) == copy.copy(row) == row


def test_rows_come_in_the_same_order_everywhere(store: Store) -> None:
    for owner in ("b", "Ä", "a", None, "B", "\U0001f600", "￿"):
        at(store, MARCH, owner=owner)
    owners = [r.owner for r in store.usage(by="owner")]
    assert owners == ["B", "a", "b", "Ä", "￿", "\U0001f600", None]


def test_filters(store: Store) -> None:
    ctx = store.create(llm(said(1, 1), said(2, 2), ServerError("no")), owner="a")
    ctx.talk("1"), ctx.talk("2", model="dear")
    with pytest.raises(ServerError):
        ctx.talk("3")
    at(store, MARCH, owner="b")

    def requests(**filters: Any) -> tuple[int, int]:
        (row,) = store.usage(by=(), **filters)
        return row.requests, row.errors

    assert requests() == (3, 1)
    assert requests(owner="a") == (2, 1)
    assert requests(owner="nobody") == (0, 0)
    assert requests(model="dear") == (1, 0)
    assert requests(provider="scripted", owner="b") == (1, 0)
    assert requests(outcome="error") == (0, 1)
    assert requests(kind="compaction") == (0, 0)
    assert requests(context=str(ctx.id)) == (2, 1)


def test_nothing_used_is_zero_and_has_no_groups(store: Store) -> None:
    assert store.usage() == store.usage(by=("day", "owner"), tz="Europe/Berlin") == []
    (row,) = store.usage(by=())
    assert (row.requests, row.errors, row.contexts, row.unknown, row.unpriced, row.cost) == (0, 0, 0, 0, 0, None)
    assert row.usage == TokenUsage.zero()


@pytest.mark.parametrize("by", [(), ("model",), ("day", "model", "owner"), GROUPINGS])
def test_one_statement_whatever_the_grouping(engine: sa.Engine, by: tuple[str, ...]) -> None:
    host, seen = Store(engine), []
    at(host, MARCH)
    sa.event.listen(engine, "before_cursor_execute", lambda c, cursor, statement, *_: seen.append(statement))
    host.usage(by=by, tz="America/New_York", since=MARCH, until=MARCH + dt.timedelta(days=3, minutes=7), owner="x")
    assert len(seen) == 1
    assert "ctxstore_messages" not in seen[0] and "ctxstore_contexts" not in seen[0]


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with Store(url) as store:
            ctx = await store.acreate(llm(said(5, 2)), owner="o")
            await ctx.atalk("q")
            (row,) = await store.ausage(by=("owner", "day"), tz="Asia/Tokyo")
            assert (row.owner, row.requests) == ("o", 1)
            (entry,) = await store.aattempts(ctx.id)
            assert not await store.acorrect_usage(ctx.id, entry.id, {"input_tokens": 1})
            with pytest.raises(ConfigurationError, match="Mars"):
                await store.ausage(tz="Mars/Olympus")

    asyncio.run(main())


# -- ranges


def test_a_range_begins_at_since_and_ends_before_until_to_the_microsecond(store: Store) -> None:
    edge = dt.datetime(2026, 3, 8, 12, 7, 30, 5, tzinfo=dt.UTC)
    tick = dt.timedelta(microseconds=1)
    at(store, edge - tick, edge, edge + tick, edge + dt.timedelta(minutes=1), edge + dt.timedelta(hours=1))

    def count(**range: Any) -> int:
        return store.usage(by=(), **range)[0].requests

    assert count(since=edge) == 4
    assert count(until=edge) == 1
    assert count(since=edge, until=edge + tick) == 1
    assert count(since=edge, until=edge) == 0
    assert count(since=edge.astimezone(ZoneInfo("Asia/Kolkata")), until=edge + dt.timedelta(hours=1)) == 3
    assert count(since=edge.replace(minute=0, second=0, microsecond=0)) == 5
    assert count(until=edge.replace(minute=15, second=0, microsecond=0)) == 4


def test_a_date_is_the_beginning_of_that_day_in_the_zone(store: Store) -> None:
    at(store, *(dt.datetime(2026, 3, 8, hour, tzinfo=dt.UTC) for hour in (3, 4, 5, 12)))
    day, zone = dt.date(2026, 3, 8), "America/New_York"  # begins at 05:00 UTC
    assert store.usage(by=(), since=day, tz=zone)[0].requests == 2
    assert store.usage(by=(), until=day, tz=zone)[0].requests == 2
    assert store.usage(by=(), since=day, until=day + dt.timedelta(days=1))[0].requests == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": ("weekday",)}, "grouped by 'weekday', only by owner, provider"),
        ({"by": ("model; DROP TABLE x",)}, "cannot be grouped"),
        ({"tz": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"since": MARCH.replace(tzinfo=None)}, "since is .* no time zone"),
        ({"until": MARCH.replace(tzinfo=None)}, "until is .* no time zone"),
        ({"since": "2026-01-01"}, "since must be"),
        ({"since": MARCH, "until": MARCH - dt.timedelta(days=1)}, "ends before it begins"),
        ({"since": dt.date(2026, 3, 2), "until": dt.date(2026, 3, 1)}, "ends before it begins"),
        ({"context": "no id"}, "no id"),
    ],
)
@pytest.mark.databases("sqlite")
def test_what_cannot_be_asked_is_named(store: Store, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        store.usage(**options)


TIMES = st.integers(0, 210 * 86_400_000_000).map(
    lambda n: dt.datetime(2025, 10, 1, tzinfo=dt.UTC) + dt.timedelta(0, 0, n)
)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(TIMES, min_size=1, max_size=12),
    zone=st.sampled_from(["UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Casablanca"]),
    edges=st.tuples(TIMES, TIMES),
)
def test_days_weeks_and_months_on_every_database(
    store: Store, times: list[dt.datetime], zone: str, edges: tuple[dt.datetime, dt.datetime]
) -> None:
    owner = str(new_id())
    at(store, *times, owner=owner)
    since, until = min(edges), max(edges)
    local = [t.astimezone(ZoneInfo(zone)).date() for t in times if since <= t < until]
    truth = {
        "day": Counter(local),
        "week": Counter(d - dt.timedelta(days=d.weekday()) for d in local),
        "month": Counter(d.replace(day=1) for d in local),
    }
    for name, wanted in truth.items():
        rows = store.usage(by=(name,), since=since, until=until, tz=zone, owner=owner)
        assert {getattr(r, name): r.requests for r in rows} == wanted
        assert [getattr(r, name) for r in rows] == sorted(wanted)


# -- every attempt counts once


def test_failures_compactions_and_lost_replies_are_in_the_ledger(store: Store) -> None:
    provider = llm(said(10, 1), ServerError("down"), said(20, 2), said(40, 4))
    ctx = store.create(provider, owner="o")
    ctx.talk("1")
    with pytest.raises(ServerError):
        ctx.talk("2")
    other = store.load(ctx.id, provider)
    other.talk("2")
    with pytest.raises(StaleContextError):
        ctx.talk("3")  # refused before it was sent: nothing is paid
    rows = {r.outcome: r for r in store.usage(by=("outcome",))}
    assert {k: (r.requests, r.errors, r.usage.total_tokens) for k, r in rows.items()} == {
        "ok": (2, 0, 33), "error": (0, 1, 0)
    }  # fmt: skip
    entries = store.attempts(ctx.id)
    assert [(e.outcome, e.error) for e in entries] == [("ok", None), ("error", "ServerError"), ("ok", None)]
    assert entries[0].usage == TokenUsage(input_tokens=10, output_tokens=1)
    assert entries[0].cost_pico_usd == 45_000_000
    assert entries[0].price is not None and entries[0].price["source"] == "caller"
    assert entries[1].usage is None and entries[1].cost_pico_usd is None
    assert store.attempts(ctx.id, owner="another") == store.attempts(new_id()) == []


def test_a_reply_that_lost_its_race_was_paid_for(store: Store) -> None:
    provider = llm(said(1, 1), said(2, 2))
    ctx = store.create(provider)

    def overtake(request: Any) -> None:
        provider.on_request = None
        store.load(ctx.id, provider).talk("first")

    provider.on_request = overtake
    with pytest.raises(StaleContextError):
        ctx.talk("second")
    (row,) = store.usage(by=())
    assert (row.requests, row.errors, row.usage.input_tokens) == (2, 0, 3)
    assert Counter(r.outcome for r in store.usage(by=("outcome",))) == {"ok": 1, "lost": 1}


def test_compaction_is_paid_for_and_shrinks_nothing(store: Store) -> None:
    ctx = store.create(llm(said(10, 1), said(20, 1), said(30, 1), said(5, 5)), compactor=Trim(max_messages=2))
    ctx.talk("1"), ctx.talk("2"), ctx.talk("3")
    assert store.usage(by=())[0].usage.input_tokens == 60
    ctx.compact()
    by_kind = {r.kind: r.usage.input_tokens for r in store.usage(by=("kind",))}
    assert by_kind == {"turn": 60, "compaction": 5}


def test_sums_past_what_64_bits_hold(store: Store, engine: sa.Engine) -> None:
    at(store, MARCH)
    with engine.begin() as c:
        c.exec_driver_sql(f"UPDATE ctxstore_usage SET cost_pico_usd = {9 * 10**18}")
        columns = ", ".join(n for n in _columns(engine) if n != "id")
        for _ in range(3):
            c.exec_driver_sql(
                f"INSERT INTO ctxstore_usage (id, {columns}) SELECT '{new_id()}', {columns} FROM ctxstore_usage LIMIT 1"
            )
    (row,) = store.usage(by=())
    assert row.cost == Decimal(36_000_000), "in USD"


def _columns(engine: sa.Engine) -> list[str]:
    return [c["name"] for c in sa.inspect(engine).get_columns("ctxstore_usage")]


# -- corrections


def test_an_unknown_is_corrected_once(store: Store) -> None:
    ctx = store.create(llm("no usage"), owner="o")
    ctx.talk("q")
    (entry,) = store.attempts(ctx.id)
    (before,) = store.usage(by=())
    assert (before.unknown, before.unpriced, before.usage.input_tokens) == (1, 1, 0)
    late = TokenUsage(input_tokens=1000, output_tokens=100)
    assert store.correct_usage(ctx.id, entry.id, late, price=ctx.provider.price("cheap"))
    assert not store.correct_usage(ctx.id, entry.id, late), "once"
    assert not store.correct_usage(str(ctx.id), str(entry.id), {"input_tokens": 5})
    (row,) = store.usage(by=())
    assert (row.unknown, row.unpriced, row.usage.total_tokens, row.cost) == (0, 0, 1100, Decimal("0.0045"))
    (entry,) = store.attempts(ctx.id)
    assert entry.usage is not None and entry.usage.input_tokens == 1000
    assert entry.price == {"input": "3", "output": "15", "cache_read": "0.3", "source": "caller"}


def test_a_correction_without_a_price_stays_unpriced_and_outlives_the_context(store: Store) -> None:
    ctx = store.create(llm("no usage"))
    ctx.talk("q")
    store.delete(ctx.id)
    (entry,) = store.attempts(ctx.id)
    assert store.correct_usage(ctx.id, entry.id, {"total_tokens": 7})
    (row,) = store.usage(by=())
    assert (row.unknown, row.unpriced, row.usage.total_tokens, row.cost) == (0, 1, 7, None)


def test_what_cannot_be_corrected_is_named(store: Store) -> None:
    ctx = store.create(llm("no usage"))
    ctx.talk("q")
    (entry,) = store.attempts(ctx.id)
    for usage in ({}, {"reasoning_tokens": 3}, {"input_tokens": -1}, {"input_tokens": 2**63}, {"input_tokens": "many"}):
        with pytest.raises(ConfigurationError):
            store.correct_usage(ctx.id, entry.id, usage)
    with pytest.raises(ContextNotFoundError, match="no attempt"):
        store.correct_usage(ctx.id, new_id(), {"input_tokens": 1})
    with pytest.raises(ContextNotFoundError, match="no attempt"):
        store.correct_usage(new_id(), entry.id, {"input_tokens": 1})
    assert store.usage(by=())[0].unknown == 1


# -- reading only the range


@pytest.mark.parametrize("owner", [None, "o"])
def test_the_index_is_used(store: Store, engine: sa.Engine, owner: str | None) -> None:
    at(store, MARCH, owner="o")
    if engine.dialect.name == "postgresql":
        _many(engine)
    with engine.connect() as c:
        asked: list[tuple[str, Any]] = []
        host = Store(engine)
        sa.event.listen(engine, "before_cursor_execute", lambda c, cursor, *sent: asked.append(sent[:2]))
        host.usage(by=("model", "day"), since=MARCH, until=MARCH + dt.timedelta(days=1), owner=owner)
        text, values = asked[0]
        explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
        plan = " ".join(str(tuple(row)) for row in c.exec_driver_sql(explain + text, values))
    assert "ix_ctxstore_usage_owner_slot" in plan or (owner is None and "ix_ctxstore_usage_slot" in plan), plan


def _many(engine: sa.Engine) -> None:
    """Rows enough that PostgreSQL does not read them all."""
    columns = ", ".join(n for n in _columns(engine) if n not in ("id", "slot"))
    with engine.begin() as c:
        c.exec_driver_sql(
            f"INSERT INTO ctxstore_usage (id, slot, {columns}) SELECT gen_random_uuid(), n, {columns} "
            "FROM ctxstore_usage CROSS JOIN generate_series(1, 5000) n"
        )
        c.exec_driver_sql("ANALYZE ctxstore_usage")


# -- an independent sum


STEP = st.one_of(
    st.tuples(
        st.just("talk"),
        st.sampled_from(["cheap", "dear", "unpriced"]),
        st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 1000)),
    ),
    st.tuples(st.just("fail")),
    st.tuples(st.just("race"), st.integers(0, 1000)),
    st.tuples(st.just("fork")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("reload"), st.booleans()),
    st.tuples(st.just("edit")),
    st.tuples(st.just("correct"), st.integers(0, 1000)),
)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=14))
def test_totals_are_those_of_an_independent_sum(store: Store, steps: list[tuple[Any, ...]]) -> None:
    owner, provider = str(new_id()), llm()
    paid: list[dict[str, Any]] = []  # one a reply or failure: the truth

    def pay(model: str, outcome: str, usage: dict[str, int] | None) -> dict[str, Any] | None:
        rates = PRICES.get(model)
        cost = None
        if usage is not None and rates is not None:
            read = usage["cache_read_tokens"]
            plain = (usage["input_tokens"] - read) * Decimal(rates["input"]) + usage["output_tokens"] * rates["output"]
            cost = (plain + read * Decimal(str(rates.get("cache_read", rates["input"])))) / 1_000_000
        paid.append({"model": model, "outcome": outcome, "usage": usage, "cost": cost})
        return usage

    ctx = store.create(provider, owner=owner)
    for step, *rest in steps:
        if step == "talk":
            model, counts = rest
            usage = None
            if counts is not None:
                fresh, output, read = counts
                usage = {"input_tokens": fresh + read, "output_tokens": output, "cache_read_tokens": read}
            provider.replies.append({"text": "x", "usage": pay(model, "ok", usage)})
            ctx.talk("q", model=model)
        elif step == "fail":
            provider.replies.append(ServerError("down"))
            pay("cheap", "error", None)
            with pytest.raises(ServerError):
                ctx.talk("q", model="cheap")
        elif step == "race":
            first, second = ({"input_tokens": rest[0], "output_tokens": n, "cache_read_tokens": 0} for n in (1, 2))
            provider.replies += [{"text": "x", "usage": pay("cheap", "ok", first)}, {"text": "x", "usage": second}]
            pay("cheap", "lost", second)

            provider.on_request = partial(_overtake, store, provider, ctx.id)
            with pytest.raises(StaleContextError):
                ctx.talk("second", model="cheap")
            ctx = store.load(ctx.id, provider)
        elif step == "fork":
            ctx = store.load(store.fork(ctx.id).id, provider)
        elif step == "delete":
            store.delete(ctx.id)
            ctx = store.create(provider, owner=owner)
        elif step == "reload":
            ctx = store.load(ctx.id, provider, compactor=Trim(max_messages=2) if rest[0] else None)
        elif step == "edit":
            ctx.clear()
            ctx.user("x").save()
        else:
            found = [e for e in store.attempts(ctx.id) if e.usage is None and e.outcome == "ok"]
            if found:
                late = {"input_tokens": rest[0], "output_tokens": 1, "cache_read_tokens": 0}
                entry = found[-1]
                assert store.correct_usage(ctx.id, entry.id, late, price=_rates(entry.model))
                silent = {"model": entry.model, "outcome": "ok", "usage": None, "cost": None}
                paid.remove(silent)
                pay(entry.model or "", "ok", late)
    assert provider.replies == []
    rows = {(r.model, r.outcome): r for r in store.usage(by=("model", "outcome"), owner=owner)}
    assert set(rows) == {(p["model"], p["outcome"]) for p in paid}
    for (model, outcome), row in rows.items():
        mine = [p for p in paid if (p["model"], p["outcome"]) == (model, outcome)]
        known = [p["usage"] for p in mine if p["usage"] is not None]
        for name in ("input_tokens", "output_tokens", "cache_read_tokens"):
            assert getattr(row.usage, name) == sum(u[name] for u in known)
        assert row.usage.total_tokens == sum(u["input_tokens"] + u["output_tokens"] for u in known)
        costs = [p["cost"] for p in mine if p["cost"] is not None]
        assert row.cost == (sum(costs) if costs else None)
        replied = outcome != "error"
        assert (row.requests, row.errors) == ((len(mine), 0) if replied else (0, len(mine)))
        assert row.unknown == (len(mine) - len(known) if replied else 0)
        assert row.unpriced == (len(mine) - len(costs) if replied else 0)
    (whole,) = store.usage(by=(), owner=owner)
    assert whole.usage == sum((r.usage for r in rows.values()), TokenUsage.zero())


def _overtake(store: Store, provider: ScriptedProvider, id: UUID, request: Any) -> None:
    provider.on_request = None
    store.load(id, provider).talk("first", model="cheap")


def _rates(model: str | None) -> Price | None:
    rates = PRICES.get(model or "")
    return None if rates is None else Price.of(rates)


# -- what was imported


def payload(model: str) -> dict[str, Any]:
    """A conversation as llm.rb saved it: counts, but no cost."""
    usage = {"input_tokens": 1_000_000, "output_tokens": 0, "total_tokens": 1_000_000}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "usage": usage}]
    return {"schema_version": 2, "id": str(new_id()), "model": model, "messages": messages}


def test_imported_usage_is_apart_and_unpriced_unless_asked(store: Store) -> None:
    store.import_payload(payload("gpt-5-mini"), owner="o")
    assert store.usage() == []
    (row,) = store.usage(kind="imported")
    assert (row.model, row.requests, row.usage.input_tokens) == ("gpt-5-mini", 1, 1_000_000)
    assert (row.cost, row.unpriced) == (None, 1)
    assert store.usage(by=(), include_imported=True)[0].requests == 1


@pytest.mark.parametrize(
    ("model", "prices", "cost"),
    [
        ("gpt-5-mini", "catalog", Decimal("0.25")),
        ("gpt-5-mini", {"gpt-5-mini": {"input": 7, "output": 0}}, Decimal(7)),
        ("gpt-5-mini", {"another": {"input": 7, "output": 0}}, None),
        ("no-such-model", "catalog", None),
    ],
)
@pytest.mark.databases("sqlite")
def test_imported_usage_is_priced_when_asked(store: Store, model: str, prices: Any, cost: Decimal | None) -> None:
    made = store.import_payload(payload(model), prices=prices)
    (row,) = store.usage(kind="imported")
    assert (row.cost, row.unpriced) == (cost, 0 if cost else 1)
    assert made.cost == cost, "the context says the same"
    assert store.load(made.id, llm()).cost.total == cost


@pytest.mark.databases("sqlite")
def test_prices_that_are_none_are_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="prices are"):
        store.import_payload(payload("m"), prices="today")  # type: ignore[arg-type]
    assert store.list() == []


def test_what_brings_its_cost_keeps_it(store: Store) -> None:
    ctx = store.create(llm(said(1000, 0)))
    ctx.talk("q")
    document = store.export(ctx.id)
    store.delete(ctx.id)
    store.import_payload(document, prices={"cheap": {"input": 99, "output": 99}})
    (row,) = store.usage(kind="imported")
    assert row.cost == Decimal("0.003")
