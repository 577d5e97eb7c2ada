"""Records under asyncio: the same class, the same session rules, and a hint where an attribute cannot load itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, undefer

from ctxstore import HasContext, Store
from ctxstore.errors import ConfigurationError, StaleContextError
from ctxstore.testing import ScriptedProvider

from .hosts import Base, Case, Ticket, texts


class Other(DeclarativeBase):
    pass


class Deferred(HasContext, Other):
    __tablename__ = "deferred"
    __context_deferred__ = True
    id: Mapped[int] = mapped_column(primary_key=True)

    def context_options(self) -> dict[str, Any]:
        return {"provider": ScriptedProvider(["pong"] * 9)}


@pytest.fixture
def run(aurl: str) -> Any:
    """Run a coroutine function with an async engine on the host's tables."""

    def with_engine(story: Any) -> None:
        async def main() -> None:
            engine = create_async_engine(aurl)
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
                await connection.run_sync(Other.metadata.create_all)
            try:
                await story(engine)
            finally:
                await engine.dispose()

        coroutine: Coroutine[Any, Any, None] = main()
        asyncio.run(coroutine)

    return with_engine


def test_talking_and_streaming(run: Any) -> None:
    async def story(engine: Any) -> None:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            row = Ticket()
            session.add(row)
            await row.context.atalk("1")
            await session.commit()
            said = [delta.text async for delta in row.context.astream("2")]
            assert "".join(filter(None, said)) == "pong"
            await session.commit()
            key = row.id
        async with AsyncSession(engine) as session:
            row = await session.get(Ticket, key)
            assert texts(row)[::2] == ["1", "2"]

    run(story)


def test_a_live_context_needs_no_reading_after_a_commit(run: Any) -> None:
    async def story(engine: Any) -> None:
        async with AsyncSession(engine) as session:  # which expires everything on commit
            row = Ticket()
            session.add(row)
            live = row.context
            await live.atalk("1")
            await session.commit()
            assert row.context is live
            await row.context.atalk("2")
            await session.commit()
            await session.refresh(row)
            assert row.context is live
            key = row.id
        async with AsyncSession(engine) as one, AsyncSession(engine) as two:
            a, b = await one.get(Ticket, key), await two.get(Ticket, key)
            mine = b.context
            await two.rollback()
            await a.context.atalk("3")
            await one.commit()
            await mine.atalk("4")
            with pytest.raises(StaleContextError) as caught:
                await two.commit()
            assert caught.value.turn is not None
            await two.rollback()
            with pytest.raises(ConfigurationError, match=r"await session\.refresh"):
                b.context
            await two.refresh(b)
            assert texts(b)[::2] == ["1", "2", "3"]

    run(story)


def test_a_deferred_document_says_how_it_is_loaded(run: Any) -> None:
    async def story(engine: Any) -> None:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            session.add(Deferred(id=1))
            await session.commit()
        async with AsyncSession(engine) as session:
            row = await session.get_one(Deferred, 1)
            with pytest.raises(ConfigurationError, match=r"refresh\(record, \['context_data', 'context_token'\]\)"):
                row.context
            await session.refresh(row, ["context_data", "context_token"])
            await row.context.atalk("1")
            await session.commit()
        async with AsyncSession(engine) as session:
            (row,) = await session.scalars(sa.select(Deferred).options(undefer(Deferred.context_data)))
            assert texts(row) == ["1", "pong"]

    run(story)


def test_a_link_is_opened_where_waiting_is_possible(run: Any) -> None:
    async def story(engine: Any) -> None:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            row = Case()
            session.add(row)
            await row.context.atalk("1")
            await session.commit()
            await row.context.atalk("2")
            await session.commit()
            key = row.id
        async with AsyncSession(engine) as session:
            row = await session.get_one(Case, key)
            with pytest.raises(ConfigurationError, match="run_sync"):
                row.context
            ctx = await session.run_sync(lambda _: row.context)
            assert [m.text for m in ctx.messages][::2] == ["1", "2"]
            assert row.context is ctx
            await ctx.atalk("3")
            await session.commit()
        store = Store(engine)
        (listed,) = await store.alist()
        assert listed.message_count == 6

    run(story)


def test_a_cancelled_turn_costs_that_turn_and_nothing_else(run: Any) -> None:
    async def story(engine: Any) -> None:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            row = Ticket()
            session.add(row)
            await row.context.atalk("1")
            await session.commit()
            stream = row.context.astream("2")
            await anext(stream)
            await stream.aclose()
            assert not session.dirty
            await row.context.atalk("3")
            await session.commit()
            assert texts(row)[::2] == ["1", "3"]

    run(story)
