"""A save by hand and a turn of the same live context: they come one after the other, or the one within the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store, ToolPolicy, tool
from ctxstore.errors import ConfigurationError
from ctxstore.testing import ScriptedProvider

TURNS = 30


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


def agree(store: Store, ctx: Context) -> None:
    """What is live is what is saved, and nothing is left over."""
    assert list(store.load(ctx.id, llm()).messages) == list(ctx.messages)
    assert store.verify().findings == [] and store.in_flight(ctx.id) == []


def test_threads_that_save_are_in_no_turns_way(store: Store) -> None:
    ctx = store.create(llm(*(f"r{n}" for n in range(TURNS))))
    done, failed = threading.Event(), []

    def save(verb: Callable[[], None]) -> None:
        while not done.is_set():
            try:
                verb()
            except Exception as error:
                failed.append(error)

    verbs = (lambda: store.save(ctx), ctx.save, lambda: asyncio.run(ctx.asave()))
    threads = [threading.Thread(target=save, args=(verb,)) for verb in verbs]
    for thread in threads:
        thread.start()
    try:
        for n in range(TURNS):
            ctx.talk(f"q{n}")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert len(ctx.messages) == 2 * TURNS == 2 * len(store.attempts(ctx.id))
    agree(store, ctx)


def test_tasks_that_save_are_in_no_turns_way(url: str, store: Store) -> None:
    ctx = store.create(llm(*(f"r{n}" for n in range(TURNS))))

    async def main() -> None:
        async def save(verb: Callable[[], Any]) -> None:
            while len(ctx.messages) < 2 * TURNS:
                await verb()
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(save(ctx.asave))
            tasks.create_task(save(lambda: store.asave(ctx)))
            for n in range(TURNS):
                await ctx.atalk(f"q{n}")
        await store.aclose()

    asyncio.run(main())
    assert len(store.attempts(ctx.id)) == TURNS
    agree(store, ctx)


def test_a_save_of_another_thread_leaves_the_prompt_in_flight(store: Store) -> None:
    provider = llm("one")
    ctx = store.create(provider)
    other = threading.Thread(target=store.save, args=(ctx,))

    def asked(request: Any) -> None:
        other.start()
        other.join(0.3)  # as long as it would have taken
        assert len(store.in_flight(ctx.id)) == 1

    provider.on_request = asked
    ctx.talk("a")
    other.join()
    agree(store, ctx)


def test_a_summary_by_hand_waits_for_the_turn(store: Store) -> None:
    provider = llm("one", "two")
    ctx = store.create(provider)
    ctx.talk("a")
    other = threading.Thread(target=ctx.compact, args=("All that was said.",))

    def asked(request: Any) -> None:
        other.start()
        other.join(0.3)
        assert ctx.summary is None

    provider.on_request = asked
    ctx.talk("b")
    other.join()
    assert ctx.summary == "All that was said." and len(ctx.messages) == 0
    agree(store, ctx)


@pytest.mark.parametrize("how", ["create", "save"])
@pytest.mark.parametrize(("edit", "left"), [("user", ["first", "later"]), ("clear", [])])
def test_an_edit_while_a_save_is_under_way_is_saved_by_the_next(
    store: Store, how: str, edit: str, left: list[str]
) -> None:
    ctx = store.create(llm("one")) if how == "save" else Context(llm("one"))
    seen = []

    @sa.event.listens_for(store.engine, "commit")
    def meanwhile(connection: sa.Connection) -> None:
        if not seen:
            seen.append(ctx.user("later") if edit == "user" else ctx.clear())

    store.save(ctx.user("first"))
    store.save(ctx)
    assert seen and [m.text for m in ctx.messages] == left
    agree(store, ctx)
    ctx.talk("a")
    agree(store, ctx)


@pytest.mark.parametrize("strategy", ["sequential", "thread"])
@pytest.mark.parametrize("world", ["sync", "async"])
def test_a_tool_may_save_the_context_that_calls_it(store: Store, world: str, strategy: Any) -> None:
    @tool
    def note(text: str) -> str:
        """Write it down."""
        ctx.user(text)
        ctx.save()
        store.save(ctx)
        return str(len(store.load(ctx.id, llm()).messages))

    @tool
    async def anote(text: str) -> str:
        """Write it down."""
        ctx.user(text)
        await ctx.asave()
        await store.asave(ctx)
        return str(len((await store.aload(ctx.id, llm())).messages))

    name = "note" if world == "sync" else "anote"
    asked = [{"id": i, "name": name, "arguments": {"text": f"{i}!"}} for i in ("x", "y")]
    ctx = store.create(
        llm({"tool_calls": asked}, "done"), tools=[note, anote], tool_policy=ToolPolicy([name], strategy=strategy)
    )

    async def main() -> None:
        await ctx.atalk("go")
        await store.aclose()

    if world == "sync":
        ctx.talk("go")
    else:
        asyncio.run(main())
    results = ctx.tool_results
    assert not any(r.error for r in results), results
    if strategy == "sequential":
        assert [r.value for r in results] == ["3", "4"], "it is saved when the verb returns"
    assert {"x!", "y!"} <= {m.text for m in ctx.messages}
    agree(store, ctx)


def test_a_save_from_within_a_request_leaves_its_prompt_in_flight(store: Store) -> None:
    provider = llm("one two", "three")
    ctx = store.create(provider)

    def asked(request: Any) -> None:
        ctx.metadata = {"seen": True}
        store.save(ctx)
        assert len(store.in_flight(ctx.id)) == 1

    provider.on_request = asked
    for _ in ctx.stream("a"):
        ctx.save()
        assert len(store.in_flight(ctx.id)) == 1
    ctx.talk("b")
    agree(store, ctx)


def test_a_save_that_would_hold_up_the_loop_of_the_turn_is_refused(store: Store) -> None:
    ctx = store.create(llm("one", "two"))

    async def main() -> None:
        stream = ctx.astream("a")
        await anext(stream)

        async def save() -> None:
            with pytest.raises(ConfigurationError, match="asave"):
                store.save(ctx)
            with pytest.raises(ConfigurationError, match="atalk"):
                ctx.talk("b")

        await asyncio.create_task(save())
        await stream.aclose()
        await store.aclose()

    asyncio.run(main())
    assert len(store.in_flight(ctx.id)) == 1
