"""B57: the browser was closed in the middle of a long reply, and the question was gone with the answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ctxstore.errors import Interrupted

from .scenes import elsewhere, scripted, stored, texts

LONG = " ".join(f"word{n}" for n in range(40))
USAGE = {"input_tokens": 5, "output_tokens": 40}


async def cancelled_task(ctx):
    arrived = asyncio.Event()

    async def read():
        count = 0
        async with aclosing(ctx.astream("my question")) as deltas:
            async for _ in deltas:
                count += 1
                if count == 20:
                    arrived.set()
                    await asyncio.sleep(60)

    task = asyncio.create_task(read())
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def left_loop(ctx):
    async with aclosing(ctx.astream("my question")) as deltas:
        count = 0
        async for _ in deltas:
            count += 1
            if count == 20:
                break


def left_sync_loop(ctx):
    deltas = ctx.stream("my question")
    for _ in range(20):
        next(deltas)
    deltas.close()


def interrupted(ctx):
    seen = []

    def write(delta):
        seen.append(delta)
        if len(seen) == 20:
            ctx.interrupt()

    with pytest.raises(Interrupted):
        ctx.talk("my question", stream=write)


WAYS = {"cancelled": cancelled_task, "left": left_loop, "left, sync": left_sync_loop, "interrupted": interrupted}


@pytest.mark.parametrize("way", WAYS)
def test_the_question_is_kept_and_the_next_turn_works(store, engine, way):
    llm = scripted("one", {"text": LONG, "usage": USAGE}, "two", "three")
    with asyncio.Runner() as runner:
        ctx = store.create(llm)
        ctx.talk("a")
        before = stored(engine, "ctxstore_messages")
        done = WAYS[way](ctx)
        if done is not None:
            runner.run(done)
        runner.run(store.aclose())
    assert stored(engine, "ctxstore_messages") == before, "no half-written row"
    assert texts(ctx.messages) == texts(store.load(ctx.id, scripted()).messages) == ["a", "one"]
    (kept,) = store.in_flight(ctx.id)
    assert texts(kept.messages) == ["my question"]
    (row,) = (r for r in store.usage(by=("outcome",)) if r.outcome == "interrupted")
    assert row.errors == 1 and row.requests == 0
    raw = stored(engine, "ctxstore_usage", "outcome, input_tokens, output_tokens, total_tokens")
    assert ("interrupted", None, None, None) in raw, "unknown, and not zero"
    assert ctx.talk("b").text == "two"
    assert ctx.resend(kept).text == "three"
    assert store.in_flight(ctx.id) == []
    final = store.load(ctx.id, scripted())
    assert texts(final.messages) == ["a", "one", "b", "two", "my question", "three"]


def test_a_process_that_ends_in_mid_reply(store, url):
    ctx = store.create(scripted("one"))
    ctx.talk("a")
    code = """
        import os
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        ctx = Store(url).load(identity, ScriptedProvider([text]))
        for n, delta in enumerate(ctx.stream("my question")):
            if n == 20:
                os._exit(9)
    """
    elsewhere(code, expect=9, url=url, identity=str(ctx.id), text=LONG)
    back = store.load(ctx.id, scripted("answer"))
    assert texts(back.messages) == ["a", "one"]
    (kept,) = store.in_flight(ctx.id)
    assert texts(kept.messages) == ["my question"]
    assert back.resend(kept).text == "answer"
    assert texts(store.load(ctx.id, scripted()).messages) == ["a", "one", "my question", "answer"]
    assert store.in_flight(ctx.id) == []
