"""What runs within a turn and asks for another turn of its own context: it is told, and never waits for itself."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ctxstore import Context, ToolPolicy, tool
from ctxstore.testing import ScriptedProvider

REFUSED = "this context is in the middle of a turn"


class Talk:
    """Tools that talk to ``ctx``, which calls them."""

    ctx: Context

    def plain(self) -> str:
        return self.ctx.talk("me?").text or ""

    def loop(self) -> str:
        """In a loop of its own."""
        return asyncio.run(self.coroutine())

    async def coroutine(self) -> str:
        return (await self.ctx.atalk("me?")).text or ""

    def through_another(self) -> str:
        """By way of a context whose own tool talks back, in a thread."""
        ctx, two = talking([self.plain, other], "thread")
        ctx.talk("go")
        return str(two()[0])

    async def through_another_task(self) -> str:
        ctx, two = talking([self.coroutine, other], "thread")
        await ctx.atalk("go")
        return str(two()[0])


def other() -> str:
    return "fine"


def talking(tools: list[Callable[..., Any]], strategy: Any) -> tuple[Context, Callable[[], list[Any]]]:
    """A context that calls ``tools`` in its first turn, and what they answered in it."""
    made = [tool(name=f"tool{i}", description="One.")(f) for i, f in enumerate(tools)]
    wanted = [{"id": f"call{i}", "name": t.name, "arguments": {}} for i, t in enumerate(made)]
    llm = ScriptedProvider([{"tool_calls": wanted}, "done", "later"])
    ctx = Context(llm, tools=made, tool_policy=ToolPolicy([t.name for t in made], strategy=strategy))
    return ctx, lambda: [r.value for m in ctx.messages for r in m.tool_results]


def in_time(work: Callable[[], Any]) -> None:
    """Run ``work``, which may hang."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    assert not failed, failed


FORMS = list(itertools.product(["sync", "async"], ["plain", "loop", "through_another"], ["sequential", "thread"]))
FORMS.remove(("async", "loop", "sequential"))  # a loop within a loop is refused by asyncio itself


@pytest.mark.parametrize(("world", "how", "strategy"), FORMS)
def test_a_tool_is_refused_a_turn(world: str, how: str, strategy: str) -> None:
    own = Talk()
    own.ctx, answers = talking([getattr(own, how), other], strategy)
    in_time(lambda: own.ctx.talk("go") if world == "sync" else asyncio.run(own.ctx.atalk("go")))
    assert REFUSED in str(answers()[0]) and answers()[1] == "fine"
    assert own.ctx.talk("and now?").text == "later"


@pytest.mark.parametrize("strategy", ["sequential", "thread"])
@pytest.mark.parametrize("how", ["coroutine", "through_another_task"])
def test_a_coroutine_tool_is_refused_a_turn(how: str, strategy: str) -> None:
    own = Talk()
    own.ctx, answers = talking([getattr(own, how), other], strategy)
    in_time(lambda: asyncio.run(own.ctx.atalk("go")))
    assert REFUSED in str(answers()[0]) and answers()[1] == "fine"
    assert own.ctx.talk("and now?").text == "later"


@pytest.mark.parametrize("strategy", ["sequential", "thread"])
def test_a_task_that_a_tool_leaves_behind_comes_after_the_turn(strategy: str) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leave() -> str:
        left.append(asyncio.create_task(ctx.atalk("and now?")))
        return "left"

    ctx, answers = talking([leave, other], strategy)

    async def main() -> None:
        await ctx.atalk("go")
        assert (await left[0]).text == "later"

    in_time(lambda: asyncio.run(main()))
    assert answers() == ["left", "fine"]


def test_tools_that_are_run_outside_of_a_turn_may_talk() -> None:
    own = Talk()
    own.ctx, _ = talking([own.plain, own.plain], "thread")
    own.ctx.tool_policy = ToolPolicy()
    own.ctx.talk("go")
    in_time(lambda: own.ctx.run_tools("thread"))
    assert [m.text for m in own.ctx.messages if m.role == "user"] == ["go", "me?", "me?"]
