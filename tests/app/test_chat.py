"""The example of the README as a real application: FastAPI, uvicorn, AsyncSession, a pool of five connections."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from ctxstore.providers import OpenAI

from .chat import Base, create_app
from .serving import Model, serving


@contextmanager
def application(aurl: str, engine: sa.Engine, model: Model) -> Iterator[tuple[str, Any]]:
    Base.metadata.create_all(engine)
    with serving(model.app) as there:
        app = create_app(aurl, OpenAI(key="test-key", model="echo", base_url=f"{there}/v1"))
        with serving(app) as here:
            yield here, app


async def events(client: httpx.AsyncClient, chat: str, text: str) -> AsyncGenerator[tuple[str, Any], None]:
    async with client.stream("POST", f"/chats/{chat}/turns", json={"text": text}) as response:
        assert response.status_code == 200, await response.aread()
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])


async def said(client: httpx.AsyncClient, chat: str, text: str) -> str:
    found = [e async for e in events(client, chat, text)]
    assert found[-1] == ("done", found[-1][1]), found
    return "".join(data for name, data in found if name == "delta")


@pytest.mark.databases("postgresql")
def test_fifty_chats_on_five_connections(aurl: str, engine: sa.Engine) -> None:
    """The model answers nobody before all fifty have asked: with a connection held by each, five could ask."""
    model = Model(together=50)

    async def story(here: str, app: Any) -> None:
        pool = app.state.engine.sync_engine.pool
        held: list[int] = []
        model.on_all_here = lambda: held.append(pool.checkedout())
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(base_url=here, timeout=60, limits=limits) as client:
            chats = [(await client.post("/chats", json={"owner": f"o{n}"})).json() for n in range(50)]
            replies = await asyncio.gather(*(said(client, chat, f"number {n}") for n, chat in enumerate(chats)))
            assert replies == [f"you said number {n} " for n in range(50)]
            assert held == [0], "nobody holds a connection while the model thinks"
            for n in (0, 49):
                history = (await client.get(f"/chats/{chats[n]}")).json()
                assert history == [f"number {n}", f"you said number {n} "]
        assert pool.checkedout() == 0

    with application(aurl, engine, model) as (here, app):
        asyncio.run(story(here, app))
    with engine.connect() as connection:
        counted = connection.execute(sa.text("SELECT count(*), sum(context_total_tokens) FROM chats")).one()
    assert tuple(counted) == (50, 500)


@pytest.mark.databases("sqlite", "postgresql")
def test_a_client_that_leaves_costs_its_turn_and_nothing_else(aurl: str, engine: sa.Engine) -> None:
    model = Model()

    async def story(here: str, app: Any) -> None:
        async with httpx.AsyncClient(base_url=here, timeout=60) as client:
            chat, other = [(await client.post("/chats", json={"owner": "o"})).json() for _ in range(2)]
            assert await said(client, chat, "one") == "you said one "
            async with aclosing(events(client, chat, "two *forever and ever")) as reading:
                assert (await anext(reading))[0] == "delta"
            until = time.monotonic() + 20
            while model.given_up < 1:
                assert time.monotonic() < until, "the request to the model was not given up"
                await asyncio.sleep(0.02)
            assert app.state.engine.sync_engine.pool.checkedout() == 0
            assert await said(client, other, "elsewhere") == "you said elsewhere "
            assert (await client.get(f"/chats/{chat}")).json() == ["one", "you said one "]
            assert await said(client, chat, "three") == "you said three "
            assert (await client.get(f"/chats/{chat}")).json()[2:] == ["three", "you said three "]

    with application(aurl, engine, model) as (here, app):
        asyncio.run(story(here, app))


@pytest.mark.databases("sqlite", "postgresql")
def test_two_tabs_at_once(aurl: str, engine: sa.Engine) -> None:
    """The second to finish is told; its turn is not mixed into the first's."""
    model = Model(together=2)

    async def story(here: str, app: Any) -> None:
        async with httpx.AsyncClient(base_url=here, timeout=60) as client:
            chat = (await client.post("/chats", json={"owner": "o"})).json()

            async def tab(text: str) -> tuple[str, Any]:
                return [e async for e in events(client, chat, text)][-1]

            ends = sorted(await asyncio.gather(tab("short"), tab("a longer one, so that it comes second")))
            assert [name for name, _ in ends] == ["done", "error"]
            assert "another writer" in ends[1][1]
            assert len((await client.get(f"/chats/{chat}")).json()) == 2
            assert (await client.get(f"/chats/{'0' * 32}")).status_code == 404

    with application(aurl, engine, model) as (here, app):
        asyncio.run(story(here, app))
