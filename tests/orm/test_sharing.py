"""B69 on host rows: one long-lived object served user A, then B, whose first request went on with A's words."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ctxstore import HasContext, new_id
from ctxstore.testing import ScriptedProvider


class Base(DeclarativeBase):
    pass


class Chat(HasContext, Base):
    __tablename__ = "b69_chats"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=new_id)
    user: Mapped[str] = mapped_column(sa.String(20))
    llm: Any = None

    __allow_unmapped__ = True

    def context_options(self) -> dict[str, Any]:
        return {"provider": Chat.llm, "owner": self.user}


def sent(llm: ScriptedProvider) -> list[list[str | None]]:
    return [[m.text for m in request.messages] for request in llm.requests]


def test_rows_of_two_users_under_one_class(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    Chat.llm = llm = ScriptedProvider(["to A", "to B", "to A again"])
    with Session(engine) as session:
        a, b = Chat(user="A"), Chat(user="B")
        session.add_all([a, b])
        a.context.talk("my PIN is 4711")
        b.context.talk("hello")
        session.commit()
        a.context.talk("and?")
        session.commit()
        assert sent(llm) == [["my PIN is 4711"], ["hello"], ["my PIN is 4711", "to A", "and?"]]
        assert a.context.id != b.context.id
        assert (a.context.state.owner, b.context.state.owner) == ("A", "B")
        a.context_data = b.context_data
        assert [m.text for m in a.context.messages] == ["hello", "to B"], "it never outlives what its row holds"
        session.rollback()


def test_a_row_that_takes_the_place_of_another_starts_anew(engine: sa.Engine) -> None:
    """The same Python object, the same key: what was said before is not in it."""
    Base.metadata.create_all(engine)
    Chat.llm = llm = ScriptedProvider(["to A", "to B"])
    key = new_id()
    with Session(engine) as session:
        session.add(row := Chat(id=key, user="A"))
        row.context.talk("my PIN is 4711")
        session.commit()
        session.delete(row)
        session.commit()
        session.add(other := Chat(id=key, user="B"))
        other.context.talk("hello")
        session.commit()
    assert sent(llm)[-1] == ["hello"]


def test_many_threads_and_tasks_keep_to_themselves(engine: sa.Engine, aurl: str) -> None:
    Base.metadata.create_all(engine)
    Chat.llm = llm = ScriptedProvider(["ok"] * 48)
    with Session(engine) as session:
        rows = [Chat(id=new_id(), user=f"u{n}") for n in range(8)]
        keys = [row.id for row in rows]
        session.add_all(rows)
        session.commit()

    def thread(n: int) -> None:
        for k in range(3):
            with Session(engine) as session:
                row = session.get_one(Chat, keys[n])
                ctx = row.context
                session.commit()
                ctx.talk(f"u{n} says {k}")

    async def tasks() -> None:
        aengine = create_async_engine(aurl)

        async def one(n: int) -> None:
            for k in range(3):
                async with AsyncSession(aengine) as session:
                    ctx = (await session.get_one(Chat, keys[n])).context
                    await session.commit()
                    await ctx.atalk(f"u{n} says {k}")

        await asyncio.gather(*(one(n) for n in range(8)))
        await aengine.dispose()

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    asyncio.run(tasks())
    assert len(llm.requests) == 48
    assert all(len({text.split()[0] for text in texts if text and text.startswith("u")}) == 1 for texts in sent(llm))
