"""Turns of a context, in the four forms they are asked for: whole or as a stream, for threads and for asyncio.

All of them run the same flow (``turn.py``); what is here begins one, serves one after the other, and sees to it that a
request cut short is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import UUID

from . import jsontext
from .errors import ConfigurationError
from .facts import Facts
from .keeper import Keeper, Step
from .messages import Delta, Message, ToolCall, ToolResult
from .payload import codec
from .policy import ToolPolicy
from .prompts import as_messages, local_file
from .providers.base import Schema
from .response import Response
from .runtime import aio, sync
from .runtime.interrupt import Interruption, TurnQueue
from .sink import Sink, as_sink
from .tools import Tool, as_tools
from .turn import Run, abandon, turn
from .usage import Turn

__all__ = ["Talking"]

log = logging.getLogger("ctxstore")


class Talking(Facts):
    """The talking half of ``Context``."""

    instructions: str | None
    schema: Schema | None
    filter: Callable[[Message], Message] | None
    intercept: Callable[[ToolCall], ToolResult | None] | None
    tracer: Any
    retry_budget: int
    tools: tuple[Tool, ...]
    tool_policy: ToolPolicy
    file_roots: tuple[Path, ...]
    _sink: Sink | None
    _keeper: Keeper
    _turns: TurnQueue
    _interruption: Interruption | None
    _trusted: set[UUID]

    def talk(
        self,
        prompt: Any = None,
        *,
        model: str | None = None,
        tools: Any = None,
        schema: Any = None,
        stream: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Response:
        """Send ``prompt`` and give the reply, after the tools that the policy allows have run.

        ``prompt`` is text, a list of text and parts, tool results, messages or a ``Prompt``. The rest overrides the
        context's own for this call. A failed request changes nothing.

        Raises:
            ProviderError: the provider gave no reply; ``.turn`` holds what was sent and paid.
            StaleContextError: another writer saved first.
            Interrupted: ``interrupt()`` was called.
        """
        run, sink, messages = self._run(prompt, model, tools, schema, stream, params)
        with closing(self._drive(run, messages, sink)) as steps:
            return _drain(steps, sink)

    def stream(
        self,
        prompt: Any = None,
        *,
        model: str | None = None,
        tools: Any = None,
        schema: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Generator[Delta, None, Response]:
        """As ``talk``, but an iterator of deltas; the turn is kept when it is read to its end.

        Leaving the loop early gives the request up; the context is as it was before it.
        """
        run, sink, messages = self._run(prompt, model, tools, schema, True, params)
        return self._drive(run, messages, sink)

    def ask(self, prompt: Any, *, files: Iterable[str | Path] = (), stream: Any = None) -> Response:
        """As ``talk``, with local files after the text."""
        return self.talk(_with_files(prompt, files), stream=stream)

    async def atalk(
        self,
        prompt: Any = None,
        *,
        model: str | None = None,
        tools: Any = None,
        schema: Any = None,
        stream: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Response:
        """``talk`` for asyncio."""
        run, sink, messages = self._run(prompt, model, tools, schema, stream, params)
        result: aio.Result[Response] = aio.Result()
        async with aclosing(self._adrive(run, messages, result)) as steps:
            async for delta in steps:
                if sink is not None:
                    sink.on_delta(delta)
        return result.value  # type: ignore[return-value]

    async def astream(
        self,
        prompt: Any = None,
        *,
        model: str | None = None,
        tools: Any = None,
        schema: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """``stream`` for asyncio. Wrap it in ``contextlib.aclosing`` when the loop may be left early."""
        run, _, messages = self._run(prompt, model, tools, schema, True, params)
        async with aclosing(self._adrive(run, messages, aio.Result())) as steps:
            async for delta in steps:
                yield delta

    async def aask(self, prompt: Any, *, files: Iterable[str | Path] = (), stream: Any = None) -> Response:
        """``ask`` for asyncio."""
        return await self.atalk(_with_files(prompt, files), stream=stream)

    def resend(self, in_flight: Any = None, *, stream: Any = None) -> Response:
        """Go on from what has no reply yet: the last messages, or a prompt of ``store.in_flight``.

        Raises:
            ConfigurationError: the last message is a reply already.
        """
        response = self.talk(self._unsent(in_flight), stream=stream)
        if (step := self._landed(in_flight)) is not None:
            self._keeper.take(step)
        return response

    async def aresend(self, in_flight: Any = None, *, stream: Any = None) -> Response:
        """``resend`` for asyncio."""
        response = await self.atalk(self._unsent(in_flight), stream=stream)
        if (step := self._landed(in_flight)) is not None:
            await self._keeper.atake(step)
        return response

    def _unsent(self, in_flight: Any) -> list[Message]:
        known = {m.id for m in self.state.messages}
        prompt = [m for m in in_flight.messages if m.id not in known] if in_flight is not None else []
        last = self.state.messages[-1] if self.state.messages else None
        if not prompt and (last is None or (last.role == "assistant" and not last.tool_calls)):
            raise ConfigurationError("there is nothing to resend: the last message of this context is a reply")
        return prompt

    def _landed(self, in_flight: Any) -> Step | None:
        """The step that takes a resent prompt out of flight."""
        return None if in_flight is None else Step("fail", self.state, Turn(in_flight.turn_id, self.id))

    def _run(
        self, prompt: Any, model: str | None, tools: Any, schema: Any, stream: Any, params: Mapping[str, Any] | None
    ) -> tuple[Run, Sink | None, list[Message]]:
        sink = as_sink(stream) if stream is not None else self._sink
        messages = as_messages(prompt) if prompt is not None else []
        for index, message in enumerate(messages):
            jsontext.check(message.to_payload(), f"prompt[{index}]")
        self._trust(messages)
        extra = dict(jsontext.check(dict(params or {}), "params"))
        codec.check_params(extra)
        state = self.state
        run = Run(
            state=state,
            provider=self._provider,
            model=model or self.model,
            mode=self.mode,
            tools=self.tools if tools is None else as_tools(tools),
            policy=self.tool_policy,
            schema=self.schema if schema is None else Schema.of(schema),
            params={**state.head.params, **extra},
            stream=sink is not None,
            retry_budget=self.retry_budget,
            instructions=self.instructions,
            file_roots=self.file_roots,
            trusted=frozenset(self._trusted),
            filter=self.filter,
            intercept=self.intercept,
            trace=self._trace,
            on_retry=sink.on_retry if sink is not None else None,
            on_tool=sink.on_tool_return if sink is not None else None,
        )
        return run, sink, messages

    def _trust(self, messages: Iterable[Message]) -> None:
        """Paths in ``messages`` come from code in this process and may be read from anywhere."""
        self._trusted.update(m.id for m in messages if any(getattr(part, "path", None) for part in m.parts))

    def _drive(self, run: Run, prompt: list[Message], sink: Sink | None) -> Generator[Delta, None, Response]:
        self._turns.acquire()
        world = sync.World(self._keeper, Interruption())
        self._interruption = world.interruption
        try:
            return (yield from sync.iterate(turn(run, prompt), world))
        except BaseException as error:
            if (step := abandon(run)) is not None:
                error.turn = step.turn  # type: ignore[attr-defined]
                try:
                    self._keeper.take(step)
                except Exception as second:
                    error.add_note(f"and the attempt could not be recorded: {second}")
            raise
        finally:
            self._interruption = None
            self._turns.release()

    async def _adrive(
        self, run: Run, prompt: list[Message], result: aio.Result[Response]
    ) -> AsyncGenerator[Delta, None]:
        await self._turns.aacquire()
        world = sync.World(self._keeper, Interruption())
        self._interruption = world.interruption
        try:
            async with aclosing(aio.aiterate(turn(run, prompt), world, result)) as steps:
                async for delta in steps:
                    yield delta
        except BaseException as error:
            if (step := abandon(run)) is not None:
                error.turn = step.turn  # type: ignore[attr-defined]
                try:
                    await asyncio.shield(self._keeper.atake(step))
                except Exception as second:
                    error.add_note(f"and the attempt could not be recorded: {second}")
            raise
        finally:
            self._interruption = None
            self._turns.release()

    def _trace(self, hook: str, *args: Any) -> None:
        method = getattr(self.tracer, hook, None)
        if method is not None:
            try:
                method(*args)
            except Exception:
                log.exception("the tracer failed in %s; the turn goes on", hook)

    def interrupt(self) -> None:
        """End the turn that is under way, from any thread; nothing happens when there is none."""
        if (interruption := self._interruption) is not None:
            interruption.set()


def _drain(steps: Generator[Delta, None, Response], sink: Sink | None) -> Response:
    while True:
        try:
            delta = next(steps)
        except StopIteration as stop:
            response: Response = stop.value
            return response
        if sink is not None:
            sink.on_delta(delta)


def _with_files(prompt: Any, files: Iterable[str | Path]) -> Any:
    parts = [local_file(path) for path in files]
    if not parts:
        return prompt
    return [*(prompt if isinstance(prompt, list | tuple) else [prompt]), *parts]
