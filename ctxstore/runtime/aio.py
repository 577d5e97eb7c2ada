"""The driver for asyncio: the twin of ``sync``, over the same flows."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..effects import Body, BoundCall, Emit, Flow, Invoke, Keep, Open, Read, Response, Sleep
from ..errors import ConfigurationError, Interrupted
from ..messages import Delta, ToolResult
from ..tools import failed
from .http import ASYNC_HTTP
from .interrupt import Caller, Interruption, helping
from .sync import World

__all__ = ["Result", "ainvoke", "aiterate", "arun"]

T = TypeVar("T")


class AsyncBody(Protocol):
    """A response whose body is awaited piece by piece."""

    response: Response

    async def read(self) -> bytes: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class Result(Generic[T]):
    """Where an async generator, which cannot return, leaves the flow's result."""

    value: T | None = field(default=None)


async def arun(flow: Flow[T], world: World) -> T:
    """Drive ``flow`` to its end and give its result; deltas go nowhere."""
    result: Result[T] = Result()
    async for _ in aiterate(flow, world, result):
        pass
    return result.value  # type: ignore[return-value]


async def aiterate(flow: Flow[T], world: World, result: Result[T]) -> AsyncGenerator[Delta, None]:
    """Drive ``flow``, yielding its deltas; its result is left in ``result``."""
    here: Body | None = None
    there: AsyncBody | None = None
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = flow.throw(error) if error is not None else flow.send(answer)
            except StopIteration as stop:
                result.value = stop.value
                return
            answer = error = None
            try:
                match effect:
                    case Emit(delta):
                        yield delta
                    case Keep(step):
                        await world.keeper.atake(step)
                    case Open(provider, request):
                        if there is not None:
                            await there.close()
                        here = there = None
                        world.interruption.check()
                        if provider.transport is not None:
                            here = provider.transport.open(request)
                            answer = here.response
                        else:
                            opening = ASYNC_HTTP.open(provider, request)
                            opened = await _or_interrupt(opening, world.interruption, lambda late: late.close())
                            answer, there = opened.response, opened
                    case Read():
                        if there is not None:
                            answer = await _or_interrupt(there.read(), world.interruption)
                        else:
                            assert here is not None
                            answer = here.read()
                    case Invoke(calls, strategy):
                        tools = ainvoke(calls, strategy, Caller.here(waits=False))
                        answer = await _or_interrupt(tools, world.interruption)
                    case Sleep(seconds):
                        await _or_interrupt(asyncio.sleep(seconds), world.interruption)
                if not isinstance(effect, Keep):
                    world.interruption.check()
            except Exception as caught:
                error = caught
    finally:
        flow.close()
        if here is not None:
            here.close()
        if there is not None:
            await there.close()


async def _or_interrupt(
    wait: Awaitable[T], interruption: Interruption, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """The result of ``wait``, or Interrupted as soon as the switch is thrown, from whatever thread.

    A result that comes in the moment of a cancellation is nobody's: ``undo`` is given it.
    """
    task = asyncio.ensure_future(wait)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    loop = asyncio.get_running_loop()
    remove = interruption.on_interrupt(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        # to await the task would hand every cancellation on to it, and a cancel scope of anyio cancels again and again:
        # what the task does to end in order would be cut off
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        try:
            await asyncio.wait([task])
            if undo is not None and not task.cancelled() and task.exception() is None:
                await asyncio.wait([asyncio.ensure_future(undo(task.result()))])
        except asyncio.CancelledError:
            pass
        raise
    finally:
        remove()
    if task.cancelled() and interruption.is_set:
        raise Interrupted()
    return task.result()


async def ainvoke(calls: Sequence[BoundCall], strategy: str, boss: Caller | None = None) -> list[ToolResult]:
    """Run the tools and give their results in the order of the calls. ``boss`` waits for them, else the caller.

    Coroutine tools are awaited; plain functions run in the caller's thread, or in threads of their own under
    ``thread``, where several calls run at once.

    Raises:
        ConfigurationError: there is no such strategy.
    """
    if strategy not in ("sequential", "thread"):
        raise ConfigurationError(f"there is no strategy {strategy!r}; use 'sequential' or 'thread'")
    boss = boss or Caller.here(waits=False)
    if strategy == "sequential":
        return [await _answer(bound, boss, False) for bound in calls]
    return list(await asyncio.gather(*(_answer(bound, boss, True) for bound in calls)))


async def _answer(bound: BoundCall, boss: Caller, in_thread: bool) -> ToolResult:
    arguments, wrong = bound.tool.validate(bound.call)
    if arguments is None:
        return failed(bound.call, wrong or "the arguments are invalid", "InvalidArguments")
    try:
        with helping(boss):
            if bound.tool.is_async:
                value = await bound.tool.function(**arguments)
            elif in_thread:
                value = await asyncio.to_thread(helping(boss)(bound.tool.function), **arguments)
            else:
                value = bound.tool.function(**arguments)
            if inspect.isawaitable(value):
                value = await value
        return bound.tool.answer(bound.call, value)
    except Exception as error:  # what a tool raises is told to the model; control flow passes
        return failed(bound.call, error)
