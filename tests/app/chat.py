"""A chat server: conversations in the application's own table, replies streamed to the browser."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, ClassVar
from uuid import UUID

from fastapi import Body, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from sqlalchemy import String
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ctxstore import HasContext, new_id
from ctxstore.errors import ProviderError, StaleContextError
from ctxstore.providers.base import Provider


class Base(DeclarativeBase):
    pass


class Chat(HasContext, Base):
    __tablename__ = "chats"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    owner: Mapped[str] = mapped_column(String(100))
    llm: ClassVar[Provider]

    def context_options(self) -> dict[str, Any]:
        return {"provider": self.llm, "owner": self.owner, "instructions": "Be brief."}


def create_app(url: str, llm: Provider) -> FastAPI:
    engine = create_async_engine(url, pool_size=5, max_overflow=0, pool_timeout=5)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    Chat.llm = llm

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    app.state.engine = engine

    async def find(chat_id: UUID) -> Chat:
        async with sessions() as session:
            chat = await session.get(Chat, chat_id)
        if chat is None:
            raise HTTPException(404)
        return chat

    @app.post("/chats")
    async def create(owner: Annotated[str, Body(embed=True)]) -> UUID:
        async with sessions.begin() as session:
            chat = Chat(id=new_id(), owner=owner)
            session.add(chat)
        return chat.id

    @app.get("/chats/{chat_id}")
    async def show(chat_id: UUID) -> list[str | None]:
        chat = await find(chat_id)
        return [message.text for message in chat.context.messages]

    @app.post("/chats/{chat_id}/turns")
    async def talk(chat_id: UUID, text: Annotated[str, Body(embed=True)]) -> StreamingResponse:
        chat = await find(chat_id)
        return StreamingResponse(reply(chat, text), media_type="text/event-stream")

    async def reply(chat: Chat, text: str) -> AsyncGenerator[str, None]:
        """The row is read in one session and saved in another; while the model thinks there is none."""
        try:
            async with aclosing(chat.context.astream(text)) as deltas:
                async for delta in deltas:
                    yield event("delta", delta.text)
            async with sessions.begin() as session:
                session.add(chat)
        except (ProviderError, StaleContextError) as error:
            yield event("error", str(error))
        else:
            yield event("done", chat.context_total_tokens)

    return app


def event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
