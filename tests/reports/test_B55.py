"""B55: the session was closed, its rollback expired everything, and reading the context's id ended the stream."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, HasContextLink, new_id
from ctxstore.testing import ScriptedProvider


class Base(DeclarativeBase):
    pass


class _Row:
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=new_id)

    def context_options(self) -> dict[str, Any]:
        reply = {"text": "pong", "usage": {"input_tokens": 5, "output_tokens": 2}}
        return {"provider": ScriptedProvider([reply] * 9), "owner": "team-7"}


class Ticket(_Row, HasContext, Base):
    __tablename__ = "b55_tickets"


class Case(_Row, HasContextLink, Base):
    __tablename__ = "b55_cases"


def facts(ctx: Any) -> tuple[Any, ...]:
    texts = [m.text for m in ctx.messages]
    return ctx.id, ctx.state.owner, texts, ctx.token_usage.total_tokens, ctx.revision, ctx.model, ctx.created_at


@pytest.fixture(params=[Ticket, Case], ids=lambda m: m.__name__)
def Model(request: pytest.FixtureRequest, engine: sa.Engine) -> Any:
    Base.metadata.create_all(engine)
    return request.param


def saved(engine: sa.Engine, Model: Any) -> Any:
    with Session(engine) as session:
        row = Model()
        session.add(row)
        row.context.talk("ping")
        session.commit()
        return row.id


@pytest.mark.parametrize("end", ["close", "rollback", "commit", "expunge", "expire"])
def test_a_context_is_readable_without_its_session(Model: Any, engine: sa.Engine, end: str) -> None:
    key = saved(engine, Model)
    session = Session(engine)
    row = session.get_one(Model, key)
    ctx = row.context
    getattr(session, {"expunge": "expunge_all", "expire": "expire_all"}.get(end, end))()
    session.close()
    said: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda c, cur, statement, *_: said.append(statement))
    assert facts(ctx)[:5] == (key, "team-7", ["ping", "pong"], 7, 1)
    assert facts(row.context) == facts(ctx)
    assert said == []
    assert ctx.talk("again").text == "pong"
    assert said == []


def test_the_same_under_asyncio(Model: Any, engine: sa.Engine, aurl: str) -> None:
    key = saved(engine, Model)

    async def story() -> None:
        aengine = create_async_engine(aurl)
        async with AsyncSession(aengine) as session:
            row = await session.get_one(Model, key)
            ctx = await session.run_sync(lambda _: row.context)
            await session.rollback()
            said = [d.text async for d in ctx.astream("again")]
            assert "".join(filter(None, said)) == "pong"
        assert facts(ctx)[2] == ["ping", "pong", "again", "pong"]
        assert row.context is ctx
        await aengine.dispose()

    asyncio.run(story())
