"""The driver for threads: the only code that blocks on a request, a tool or a save."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from ..effects import Body, BoundCall, Emit, Flow, Invoke, Keep, Open, Read, Sleep
from ..errors import ConfigurationError
from ..keeper import Keeper
from ..messages import Delta, ToolResult
from ..tools import failed
from .http import SYNC_HTTP
from .interrupt import Caller, Interruption, helping

__all__ = ["World", "invoke", "iterate", "run"]

T = TypeVar("T")


@dataclass(slots=True)
class World:
    """What a flow's effects act on: who keeps the turn, and who may end it."""

    keeper: Keeper
    interruption: Interruption


def run(flow: Flow[T], world: World) -> T:
    """Drive ``flow`` to its end and give its result; deltas go nowhere."""
    steps = iterate(flow, world)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def iterate(flow: Flow[T], world: World) -> Generator[Delta, None, T]:
    """Drive ``flow``, yielding its deltas. Closing this generator closes the flow and its response."""
    body: Body | None = None
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = flow.throw(error) if error is not None else flow.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = error = None
            try:
                match effect:
                    case Emit(delta):
                        yield delta
                    case Keep(step):
                        world.keeper.take(step)
                    case Open(provider, request):
                        if body is not None:
                            body.close()
                            body = None
                        world.interruption.check()
                        if provider.transport is not None:
                            body = provider.transport.open(request)
                        else:
                            body = SYNC_HTTP.open(provider, request, world.interruption)
                        answer = body.response
                    case Read():
                        assert body is not None
                        answer = body.read()
                    case Invoke(calls, strategy):
                        answer = invoke(calls, strategy, world.interruption)
                    case Sleep(seconds):
                        world.interruption.wait(seconds)
                if not isinstance(effect, Keep):
                    world.interruption.check()
            except Exception as caught:
                error = caught
    finally:
        flow.close()
        if body is not None:
            body.close()


def invoke(calls: list[BoundCall] | Any, strategy: str, interruption: Interruption | None = None) -> list[ToolResult]:
    """Run the tools and give their results in the order of the calls; an exception of a tool becomes its result.

    ``sequential`` runs them in the caller's thread, ``thread`` each in one of its own when there are several.

    Raises:
        ConfigurationError: a tool is a coroutine function, or there is no such strategy.
    """
    for bound in calls:
        if bound.tool.is_async:
            raise ConfigurationError(
                f"the tool {bound.tool.name!r} is async: use atalk, astream or arun_tools, or make it a plain function"
            )
    if strategy not in ("sequential", "thread"):
        raise ConfigurationError(f"there is no strategy {strategy!r}; use 'sequential' or 'thread'")
    if strategy == "sequential" or len(calls) < 2:
        results = []
        for bound in calls:
            if interruption is not None:
                interruption.check()
            results.append(_answer(bound))
        return results
    with ThreadPoolExecutor(len(calls), thread_name_prefix="ctxstore-tool") as pool:
        me = Caller.here(waits=True)
        futures = [pool.submit(copy_context().run, helping(me)(_answer), bound) for bound in calls]
        return [future.result() for future in futures]


def _answer(bound: BoundCall) -> ToolResult:
    arguments, wrong = bound.tool.validate(bound.call)
    if arguments is None:
        return failed(bound.call, wrong or "the arguments are invalid", "InvalidArguments")
    try:
        return bound.tool.answer(bound.call, bound.tool.function(**arguments))
    except Exception as error:  # what a tool raises is told to the model; control flow passes
        return failed(bound.call, error)
