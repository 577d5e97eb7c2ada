"""The views, as an analyst reads them: by SQL alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store, clock, new_id
from ctxstore.compaction import Trim
from ctxstore.errors import ServerError
from ctxstore.store import migrations
from ctxstore.testing import ScriptedProvider
from ctxstore.usage import COUNTS

VIEWS = {"ctxstore_usage_daily", "ctxstore_context_summary", "ctxstore_messages_text"}
PRICES = {"m": {"input": 3, "output": 15}}
USAGE = {"input_tokens": 1000, "output_tokens": 100, "cache_read_tokens": 10}


@pytest.fixture
def sql(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as c:
        yield c


def rows(sql: sa.Connection, query: str) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in sql.exec_driver_sql(query)]


def talked(store: Store, *replies: Any, owner: str | None = "o", text: str = "q", **options: Any) -> Any:
    ctx = store.create(ScriptedProvider(list(replies), model="m", prices=PRICES), owner=owner, **options)
    for reply in replies:
        try:
            ctx.talk(text)
        except ServerError:
            assert isinstance(reply, ServerError)
    return ctx


def test_usage_daily(store: Store, sql: sa.Connection) -> None:
    for day in (7, 8):
        with clock.frozen(dt.datetime(2026, 3, day, 23, 59, 59, tzinfo=dt.UTC)):
            talked(store, {"text": "x", "usage": USAGE}, ServerError("no"), "silent")
    found = rows(sql, "SELECT * FROM ctxstore_usage_daily ORDER BY day")
    assert [str(r["day"]) for r in found] == ["2026-03-07", "2026-03-08"]
    row = found[0]
    assert (row["owner"], row["provider"], row["model"], row["kind"]) == ("o", "scripted", "m", "turn")
    counted = ("requests", "errors", "contexts", "unknown_usage", "unpriced", "input_tokens", "total_tokens")
    assert [row[name] for name in counted] == [2, 1, 1, 1, 1, 1000, 1100]
    assert float(row["cost_usd"]) == pytest.approx(0.0045)
    if sql.dialect.name != "sqlite":
        assert isinstance(row["cost_usd"], Decimal) and row["cost_usd"] == Decimal("0.0045")
        assert isinstance(row["day"], dt.date)
    assert all(type(row[name]) is int for name in (*counted, *COUNTS))


def test_usage_daily_agrees_with_the_store(store: Store, sql: sa.Connection) -> None:
    for day, owner in ((1, "a"), (1, None), (2, "a")):
        with clock.frozen(dt.datetime(2026, 3, day, 12, tzinfo=dt.UTC)):
            talked(store, {"text": "x", "usage": USAGE}, "silent", owner=owner)
    found = rows(
        sql, "SELECT * FROM ctxstore_usage_daily ORDER BY day, CASE WHEN owner IS NULL THEN 1 ELSE 0 END, owner"
    )
    wanted = store.usage(by=("day", "owner", "provider", "model", "kind"))
    assert len(found) == len(wanted) == 3
    for row, mine in zip(found, wanted, strict=True):
        assert (str(row["day"]), row["owner"], row["requests"]) == (str(mine.day), mine.owner, mine.requests)
        assert tuple(row[name] for name in COUNTS) == mine.usage.counts()
        assert (row["unknown_usage"], row["unpriced"]) == (mine.unknown, mine.unpriced)
        assert float(row["cost_usd"]) == pytest.approx(float(mine.cost or 0))


def test_what_is_unpriced_has_no_cost_and_large_sums_hold(store: Store, engine: sa.Engine, sql: sa.Connection) -> None:
    talked(store, "silent")
    (row,) = rows(sql, "SELECT cost_usd, unpriced FROM ctxstore_usage_daily")
    assert (row["cost_usd"], row["unpriced"]) == (None, 1)
    sql.rollback()
    talked(store, "silent"), talked(store, "silent")
    with engine.begin() as c:
        c.exec_driver_sql(f"UPDATE ctxstore_usage SET cost_pico_usd = {9 * 10**18}")
    (row,) = rows(sql, "SELECT SUM(cost_usd) AS cost_usd FROM ctxstore_usage_daily")
    assert row["cost_usd"] == 27_000_000


def test_context_summary(store: Store, sql: sa.Connection) -> None:
    ctx = talked(store, {"text": "x", "usage": USAGE}, "silent", metadata={"title": "A title"})
    store.archive(ctx.id)
    (row,) = rows(sql, "SELECT * FROM ctxstore_context_summary")
    assert (str(row["id"]), row["owner"], row["title"], row["model"]) == (str(ctx.id), "o", "A title", "m")
    assert (row["message_count"], row["input_tokens"], row["unpriced"]) == (4, 1000, 1)
    assert float(row["cost_usd"]) == pytest.approx(0.0045)
    assert row["archived_at"] is not None and row["forked_from"] is None
    assert "payload" not in row and "last_save" not in row


def test_messages_text_says_what_is_live_and_survives_any_character(store: Store, sql: sa.Connection) -> None:
    hostile = "a\x00b \ud800 \U0001f600 'quoted' ; DROP"
    talked(store, hostile, {"text": "second", "usage": USAGE}, text=hostile, compactor=Trim(max_messages=2))
    found = rows(sql, "SELECT * FROM ctxstore_messages_text ORDER BY position")
    assert [(r["position"], r["role"], r["live"]) for r in found] == [
        (0, "user", 0), (1, "assistant", 0), (2, "user", 1), (3, "assistant", 1)
    ]  # fmt: skip
    assert found[0]["text"] == found[1]["text"] == "a�b � \U0001f600 'quoted' ; DROP"
    assert (found[3]["text"], found[3]["model"], found[3]["total_tokens"]) == ("second", "m", 1100)
    assert {r["owner"] for r in found} == {"o"}
    (one,) = rows(sql, "SELECT COUNT(*) AS n FROM ctxstore_messages_text WHERE text LIKE '%%quoted%%'")
    assert one["n"] == 3
    assert len(rows(sql, "SELECT * FROM ctxstore_context_summary")) == 1


def test_views_go_and_come_with_the_tables_and_the_hosts_autogenerate_does_not_see_them(engine: sa.Engine) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def views() -> set[str]:
        return set(sa.inspect(engine).get_view_names())

    assert views() == VIEWS
    with engine.connect() as c:
        options = {**migrations.host_hooks(), "include_schemas": False}
        assert compare_metadata(MigrationContext.configure(c, opts=options), sa.MetaData()) == []
    with engine.begin() as c:
        migrations.downgrade(c)
    assert views() == set()
    with engine.begin() as c:
        migrations.upgrade(c)
    assert views() == VIEWS


def test_one_conversation_is_found_by_its_id_as_text(store: Store, sql: sa.Connection) -> None:
    ctx = talked(store, *["r"] * 5)
    talked(store, "another", owner="p")
    query = f"SELECT text FROM ctxstore_messages_text WHERE context_id = '{ctx.id}' AND role = 'assistant'"
    assert [r["text"] for r in rows(sql, query)] == ["r"] * 5
    assert rows(sql, f"SELECT id FROM ctxstore_context_summary WHERE id = '{new_id()}'") == []
