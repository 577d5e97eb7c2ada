"""Turns of a context, in the four forms they are asked for: whole or as a stream, for threads and for asyncio.

All of them run the same flow (``turn.py``); what is here begins one, serves one after the other, and sees to it that a
request cut short is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from . import clock, jsontext
from .compaction import Compactor, Summarize, compact_by_hand, summarize
from .effects import Flow
from .errors import ConfigurationError
from .facts import Facts
from .keeper import FREE, Keeper, Step
from .messages import Delta, Message, ToolCall, ToolResult
from .payload import codec
from .payload.schema import MESSAGE_DEPTH
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

T = TypeVar("T")


class Talking(Facts):
    """The talking half of ``Context``."""

    instructions: str | None
    schema: Schema | None
    filter: Callable[[Message], Message] | None
    intercept: Callable[[ToolCall], ToolResult | None] | None
    tracer: Any
    compactor: Compactor | None
    retry_budget: int
    tools: tuple[Tool, ...]
    tool_policy: ToolPolicy
    file_roots: tuple[Path, ...]
    _sink: Sink | None
    _keeper: Keeper
    _turns: TurnQueue
    _saves: TurnQueue
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

        ``prompt`` is text, a list of text and parts, tool results, messages or a ``Prompt``; a message that is in
        the context already, by its id, is not put there twice. The rest overrides the context's own for this call. A
        failed request changes nothing.

        Raises:
            ProviderError: the provider gave no reply; ``.turn`` holds what was sent and paid.
            StaleContextError: another writer saved first.
            Interrupted: ``interrupt()`` was called.
        """
        run, sink, messages = self._run(prompt, model, tools, schema, stream, params)
        with closing(self._drive(run, self._flow(run, messages))) as steps:
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
        run, _, messages = self._run(prompt, model, tools, schema, True, params)
        return self._drive(run, self._flow(run, messages))

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
        async with aclosing(self._adrive(run, self._flow(run, messages), result)) as steps:
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
        async with aclosing(self._adrive(run, self._flow(run, messages), aio.Result())) as steps:
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
            with self._alone():
                self._keeper.take(step)
        return response

    async def aresend(self, in_flight: Any = None, *, stream: Any = None) -> Response:
        """``resend`` for asyncio."""
        response = await self.atalk(self._unsent(in_flight), stream=stream)
        if (step := self._landed(in_flight)) is not None:
            async with self._aalone():
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
        if not isinstance(prompt, str):
            messages = self.state.unknown(messages)
        for index, message in enumerate(messages):
            jsontext.check(message.to_payload(), f"prompt[{index}]", MESSAGE_DEPTH)
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
            retry_budget=self.retry_budget or self._provider.retry_budget,
            instructions=self.instructions,
            file_roots=self.file_roots,
            trusted=frozenset(self._trusted),
            filter=self.filter,
            compact=self.compactor.apply if self.compactor is not None else None,
            intercept=self.intercept,
            trace=self._trace,
            on_retry=sink.on_retry if sink is not None else None,
            on_tool=sink.on_tool_return if sink is not None else None,
        )
        return run, sink, messages

    def _trust(self, messages: Iterable[Message]) -> None:
        """Paths in ``messages`` come from code in this process and may be read from anywhere."""
        self._trusted.update(m.id for m in messages if any(getattr(part, "path", None) for part in m.parts))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No turn and no other save goes on meanwhile. A turn that this is within stands still for it anyway."""
        queue = self._saves if self._turns.is_here() else self._turns
        queue.acquire()
        try:
            yield
        finally:
            queue.release()

    @asynccontextmanager
    async def _aalone(self) -> AsyncIterator[None]:
        """``_alone`` for asyncio."""
        queue = self._saves if self._turns.is_here() else self._turns
        await queue.aacquire()
        try:
            yield
        finally:
            queue.release()

    def _drive(self, run: Run, flow: Flow[T]) -> Generator[Delta, None, T]:
        self._turns.acquire()
        world = sync.World(self._keeper, Interruption())
        self._interruption = world.interruption
        try:
            return (yield from sync.iterate(flow, world))
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

    async def _adrive(self, run: Run, flow: Flow[T], result: aio.Result[T]) -> AsyncGenerator[Delta, None]:
        await self._turns.aacquire()
        world = sync.World(self._keeper, Interruption())
        self._interruption = world.interruption
        try:
            async with aclosing(aio.aiterate(flow, world, result)) as steps:
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

    def _flow(self, run: Run, prompt: list[Message]) -> Flow[Response]:
        """The turn, after the summary that it makes room by, when that is due."""
        how = self.compactor
        if isinstance(how, Summarize) and how.due(run.state):
            first = replace(run, id=clock.new_id(), model=how.model or run.model, stream=False, tools=(), schema=None)
            run.within = first
            yield from summarize(first, how.prompt, how.keep)
        return (yield from turn(run, prompt))

    def compact(self, summary: str | None = None, prompt: str | None = None, keep: int = 0) -> str:
        """Let a summary stand for the conversation, but for system messages and the last ``keep`` messages.

        ``summary`` gives it; without one the model writes it, asked with ``prompt``. Returns the summary.

        Raises:
            ProviderError: the model gave none; nothing has changed.
        """
        if summary is not None:
            with self._alone():
                compact_by_hand(self.state, summary, keep)
                if self._keeper is not FREE:
                    self._keeper.take(Step("keep", self.state, Turn(clock.new_id(), self.id)))
            return summary
        run, _, _ = self._run(None, None, (), None, None, None)
        return _drain(self._drive(run, summarize(run, prompt, keep)), None)

    async def acompact(self, summary: str | None = None, prompt: str | None = None, keep: int = 0) -> str:
        """``compact`` for asyncio."""
        if summary is not None:
            async with self._aalone():
                compact_by_hand(self.state, summary, keep)
                if self._keeper is not FREE:
                    await self._keeper.atake(Step("keep", self.state, Turn(clock.new_id(), self.id)))
            return summary
        run, _, _ = self._run(None, None, (), None, None, None)
        result: aio.Result[str] = aio.Result()
        async for _ in self._adrive(run, summarize(run, prompt, keep), result):
            pass
        return result.value or ""

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


def _drain(steps: Generator[Delta, None, T], sink: Sink | None) -> T:
    while True:
        try:
            delta = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if sink is not None:
            sink.on_delta(delta)


def _with_files(prompt: Any, files: Iterable[str | Path]) -> Any:
    parts = [local_file(path) for path in files]
    if not parts:
        return prompt
    return [*(prompt if isinstance(prompt, list | tuple) else [prompt]), *parts]
