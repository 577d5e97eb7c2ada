"""B41: a time was written in UTC and read as local: a context looked as if it had changed hours in the future."""

from __future__ import annotations

import asyncio
import datetime as dt
from urllib.parse import quote

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from ctxstore import Store
from ctxstore.messages import Message

from .scenes import elsewhere, scripted

CODE = """
    import datetime as dt
    from ctxstore import Store
    from ctxstore.testing import ScriptedProvider
    with Store(url) as store:
        ctx = store.create(ScriptedProvider(["ok"]))
        ctx.talk("hi")
        back = store.load(ctx.id, ScriptedProvider([]))
        (row,) = store.list(limit=1)
        first, second = store.history(ctx.id)
        times = [back.created_at, back.updated_at, back.started_at, row.created_at, row.updated_at, first.created_at]
        out = [str(ctx.id), *((t.isoformat(), t.utcoffset() == dt.timedelta(0)) for t in times)]
"""


def in_session_zone(url):
    """The same database, by sessions that keep another time."""
    if url.startswith("postgresql"):
        return f"{url}?options={quote('-c timezone=Asia/Tokyo')}"
    return f"{url}?init_command={quote('SET time_zone = ' + repr('+09:00'))}" if "mysql" in url else url


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_times_are_true_and_in_utc_whatever_zone_wrote_and_reads_them(store, url, zone):
    identity, *times = elsewhere(CODE, url=in_session_zone(url), environment={"TZ": zone})
    now = dt.datetime.now(dt.UTC)
    for written, utc in times:
        assert utc
        assert abs(dt.datetime.fromisoformat(written) - now) < dt.timedelta(seconds=20)
    back = store.load(identity, scripted())
    assert back.updated_at.isoformat() == times[1][0], "and the same here, to the microsecond"
    (row,) = store.list(limit=1)
    assert row.updated_at == back.updated_at and row.updated_at.tzinfo is dt.UTC
    assert row.created_at == back.created_at
    (day,) = store.usage(by=("day",), tz="UTC")
    assert str(day.day) in {str(now.date()), str((now - dt.timedelta(seconds=20)).date())}


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_an_aware_time_of_any_zone_is_saved(url, driver):
    there = dt.timezone(dt.timedelta(hours=-9, minutes=-30))
    said = dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=there)
    message = Message(id=Message.new("user").id, role="user", created_at=said, content="from afar")

    async def main():
        engine = create_async_engine(url.replace("+psycopg", f"+{driver}"))
        async with Store(engine) as store:
            ctx = await store.acreate(scripted("ok"))
            await ctx.append(message).asave()
            await ctx.atalk("hi")
            (row, *_) = await store.ahistory(ctx.id)
            back = await store.aload(ctx.id, scripted())
            assert back.messages[0].created_at == row.created_at == said
            assert row.created_at.utcoffset() is not None
            assert (await store.alist())[0].updated_at == back.updated_at
        await engine.dispose()

    asyncio.run(main())
