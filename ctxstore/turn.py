"""A turn, as a flow of effects: the prompt goes out, the reply comes in, the tools it asks for run, and so on.

Each request stands for itself: the state is swapped and saved after each one that was completed, tool results are
saved before the request that carries them, and a request that failed leaves the state as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from . import clock, jsontext
from .effects import BoundCall, Flow, emit, invoke, keep, open_, read, sleep
from .errors import (
    ConfigurationError,
    ContextLockedError,
    ContextNotFoundError,
    CtxstoreError,
    ProviderError,
    SchemaVersionError,
    ServerError,
    StaleContextError,
    ToolLoopError,
    UnsupportedValueError,
)
from .keeper import Step
from .messages import Delta, Message, ToolCall, ToolResult
from .payload.schema import MESSAGE_DEPTH
from .policy import PolicyStatus, ToolPolicy
from .prompts import tool_message
from .providers.base import Decoder, ModelRequest, Provider, Reply, Schema, WireRequest
from .providers.retry import retry_delay
from .repair import cancelled, repair
from .response import Response
from .state import State
from .tools import Tool, failed
from .usage import Kind, Outcome, Turn, UsageEntry

__all__ = ["Run", "abandon", "ask", "render", "save", "turn"]

log = logging.getLogger("ctxstore")

_CONFLICTS = (StaleContextError, ContextLockedError, ContextNotFoundError, SchemaVersionError)


@dataclass(slots=True)
class Run:
    """Everything one turn runs with, and how far it has come."""

    state: State
    provider: Provider
    model: str
    mode: str
    tools: tuple[Tool, ...]
    policy: ToolPolicy
    schema: Schema | None
    params: dict[str, Any]
    stream: bool
    retry_budget: int
    instructions: str | None = None
    file_roots: tuple[Path, ...] = ()
    trusted: frozenset[UUID] = frozenset()
    filter: Callable[[Message], Message] | None = None
    intercept: Callable[[ToolCall], ToolResult | None] | None = None
    compact: Callable[[State], object] | None = None
    on_retry: Callable[[ProviderError, int], None] | None = None
    on_tool: Callable[[ToolCall, ToolResult], None] | None = None
    trace: Callable[..., None] = lambda *args: None
    kind: Kind = "turn"
    id: UUID = field(default_factory=clock.new_id)
    attempts: int = 0
    asked: tuple[tuple[Message, ...], list[UsageEntry]] | None = None
    """The prompt that has no reply yet and the attempts so far, between retries too; None between requests."""
    open: _Attempt | None = None
    """The attempt under way."""
    within: Run | None = None
    """A run of its own that goes before this one: the summary that makes room for it."""


@dataclass(slots=True)
class _Attempt:
    """One request under way, and what came of it so far."""

    run: Run
    new: tuple[Message, ...]
    entries: list[UsageEntry]
    created_at: Any = field(default_factory=clock.now)
    started: float = field(default_factory=clock.monotonic)
    decoder: Decoder | None = None
    first: float | None = None

    def entry(self, outcome: Outcome, reply: Reply | None, error: BaseException | None = None) -> UsageEntry:
        run = self.run
        model = (reply.model if reply is not None else None) or run.model
        usage = reply.usage if reply is not None else None
        price = run.provider.price(model) or (run.provider.price(run.model) if model != run.model else None)
        cost = price.cost(usage).pico_usd if price is not None and usage is not None else None
        now = clock.monotonic()
        request_id = error.request_id if isinstance(error, ProviderError) else None
        return UsageEntry(
            id=clock.new_id(),
            context_id=run.state.id,
            turn_id=run.id,
            attempt=run.attempts,
            kind=run.kind,
            outcome=outcome,
            provider=run.provider.name,
            requested_model=run.model,
            created_at=self.created_at,
            model=reply.model if reply is not None else None,
            usage=usage,
            usage_raw=reply.usage_raw if reply is not None else None,
            cost_pico_usd=cost,
            price=price.to_payload() if price is not None and cost is not None else None,
            finish_reason=reply.finish_reason if reply is not None else None,
            error=type(error).__name__ if error is not None else None,
            response_id=reply.response_id if reply is not None else None,
            request_id=(reply.request_id if reply is not None else None) or request_id,
            latency_ms=round((now - self.started) * 1000),
            ttft_ms=None if self.first is None else round((self.first - self.started) * 1000),
            owner=run.state.owner,
        )

    def message(self, reply: Reply, entry: UsageEntry | None, content: Any) -> Message:
        run = self.run
        origin = {"provider": run.provider.name, "api": run.mode, "model": reply.model or run.model}
        if reply.response_id is not None:
            origin["response_id"] = reply.response_id
        return Message.new(
            "assistant",
            content,
            origin=origin,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            cost_pico_usd=entry.cost_pico_usd if entry is not None else None,
        )

    def unfinished(self) -> tuple[Reply | None, tuple[Message, ...]]:
        """What of the reply came, and the messages of a turn that ends here."""
        reply = self.decoder.partial() if self.decoder is not None else None
        if reply is None or not reply.choices or reply.choices[-1] in (None, ""):
            return reply, self.new
        return reply, (*self.new, self.message(replace(reply, finish_reason="interrupted"), None, reply.choices[-1]))


def turn(run: Run, prompt: Sequence[Message]) -> Flow[Response]:
    """Send ``prompt`` after the history, and go on with the tools that the policy allows until none is asked for.

    Raises:
        ProviderError: a request failed and its retries too; the rounds before it are saved.
        StaleContextError: another writer was faster. ``.turn`` holds what was paid for, if anything was.
        ToolLoopError: the model asked for more rounds than the policy allows.
    """
    rest = yield from _keep_results(run, prompt)
    rounds = 0
    while True:
        response = yield from _request(run, rest)
        rest = []
        calls = response.tool_calls
        if not calls or run.policy.max_rounds == 0:
            return response
        answers = [(call, *_decide(run, call)) for call in calls]
        if rounds >= run.policy.max_rounds and any(status is not PolicyStatus.PENDING for _, status, _ in answers):
            raise ToolLoopError(
                f"the model asked for tools {rounds + 1} times in one turn, the policy allows {run.policy.max_rounds}; "
                "its last calls are pending"
            )
        rounds += 1
        yield from _answer(run, answers)
        if run.state.open_calls:
            return response  # some calls wait for the caller


def _keep_results(run: Run, prompt: Sequence[Message]) -> Flow[list[Message]]:
    """Save the tool results in ``prompt`` before anything is sent, without those that are in history already."""
    state, rest, results = run.state, [], []
    for message in prompt:
        if message.role == "tool" and message.tool_results:
            new = [r for r in message.tool_results if not state.has_answer(r.id)]
            if len(new) == len(message.tool_results):
                results.append(message)
            elif new:
                results.append(tool_message(new))
        else:
            rest.append(message)
    if results:
        mark = state.mark()
        state.append(results)
        yield from save(run, mark, Turn(run.id, state.id, tuple(results)))
    if not rest and not results and not state.messages:
        raise ConfigurationError("there is nothing to send: the prompt is empty and so is the conversation")
    return rest


def save(run: Run, mark: Any, turn: Turn) -> Flow[None]:
    """Have the keeper save the state; a lost race takes back what was appended since ``mark`` and keeps it as lost."""
    state = run.state
    state.pending_usage.extend(turn.usage)
    try:
        yield from keep(Step("keep", state, turn))
    except _CONFLICTS as error:
        state.back_to(mark)
        state.pending_usage = [e for e in state.pending_usage if e not in turn.usage]
        state.lost = turn
        error.turn = turn
        raise
    except CtxstoreError as error:
        error.turn = turn  # the state still holds it: the next save writes it
        raise


def _request(run: Run, prompt: Sequence[Message]) -> Flow[Response]:
    state = run.state
    if run.filter is not None and prompt:
        prompt = [*prompt[:-1], run.filter(prompt[-1])]
    unanswered = list(state.open_calls.values())
    closing = [tool_message(cancelled(call) for call in unanswered)] if unanswered else []
    new = (*closing, *prompt)
    reply, message, entries = yield from ask(run, new)
    mark = state.mark(whole=run.compact is not None)
    state.head.provider, state.head.mode = run.provider.name, run.mode
    state.append((*new, message))
    state.head.compacted = False
    failure: Exception | None = None
    if run.compact is not None:
        try:
            run.compact(state)
        except Exception as error:
            failure = error
    yield from save(run, mark, Turn(run.id, state.id, (*new, message), tuple(entries)))
    if failure is not None:
        raise failure  # not before: the reply is paid for
    return Response(message, reply, run.schema)


def ask(run: Run, new: tuple[Message, ...]) -> Flow[tuple[Reply, Message, list[UsageEntry]]]:
    """One request with ``new`` after the history, sent again as far as the budget goes; nothing is changed.

    Gives the reply, the message it makes, and the attempts there were. A failure is recorded and raised.
    """
    state = run.state
    request = ModelRequest(
        model=run.model,
        messages=tuple(render(state, run.instructions, new)),
        context_id=state.id,
        mode=run.mode,
        stream=run.stream,
        tools=run.tools,
        schema=run.schema,
        params=run.params,
        file_roots=run.file_roots,
        trusted=run.trusted,
    )
    wire = run.provider.build(request)
    entries: list[UsageEntry] = []
    begun = Turn(run.id, state.id, new)
    run.asked = new, entries
    try:
        yield from keep(Step("begin", state, begun, wire.connect_timeout + wire.first_byte_timeout))
    except CtxstoreError:
        run.asked = None
        raise
    retries = 0
    while True:
        run.attempts += 1
        attempt = run.open = _Attempt(run, new, entries)
        run.trace("on_request_start", request)
        try:
            reply = yield from _exchange(run, attempt, request, wire)
            _check(run, attempt, reply)
        except ProviderError as error:
            run.trace("on_request_error", request, error)
            partial, messages = attempt.unfinished()
            entries.append(attempt.entry("error", partial, error))
            run.open = None
            may_repeat = retries < run.retry_budget and attempt.first is None
            delay = retry_delay(error, retries) if may_repeat else None
            if delay is None:
                error.turn = Turn(run.id, state.id, messages, tuple(entries))
                yield from _fail(Step("fail", state, error.turn), error)
                run.asked = None
                raise
            retries += 1
            if run.on_retry is not None:
                run.on_retry(error, retries)
            yield from sleep(delay)
            continue
        entry = attempt.entry("ok", reply)
        entries.append(entry)
        run.trace("on_request_finish", request, reply)
        run.open = run.asked = None
        return reply, attempt.message(reply, entry, reply.choices[-1] if reply.choices else None), entries


def _check(run: Run, attempt: _Attempt, reply: Reply) -> None:
    """Refuse a reply that no payload can hold, before it is in the context: every later save would fail on it."""
    message = attempt.message(reply, None, reply.choices[-1] if reply.choices else None)
    try:
        jsontext.check(message.to_payload(), "reply", MESSAGE_DEPTH)
    except UnsupportedValueError as error:
        text = f"{run.provider.name}: the reply cannot be kept: {error}"
        raise ServerError(text, status=200, request_id=reply.request_id, retryable=False) from error


def _exchange(run: Run, attempt: _Attempt, request: ModelRequest, wire: WireRequest) -> Flow[Reply]:
    response = yield from open_(run.provider, wire)
    if not 200 <= response.status < 300:
        body = bytearray()
        while data := (yield from read()):
            body += data
        raise run.provider.error(response.status, response.headers, bytes(body))
    decoder = attempt.decoder = run.provider.decoder(request, response.headers)
    while data := (yield from read()):
        for delta in decoder.feed(data):
            if attempt.first is None:
                attempt.first = clock.monotonic()
            if run.stream:
                yield from emit(delta)
    reply = decoder.finish()
    if run.stream:
        for part in reply.choices[-1] if reply.choices and isinstance(reply.choices[-1], list) else ():
            if isinstance(part, ToolCall):
                yield from emit(Delta(tool_call=part))
    return reply


def _fail(step: Step, error: BaseException) -> Flow[None]:
    """Have the ledger told; that it could not be is told beside the error, not in its place."""
    try:
        yield from keep(step)
    except CtxstoreError as second:
        error.add_note(f"and the attempt could not be recorded: {second}")


def abandon(run: Run) -> Step | None:
    """The step that records the request that was cut short, in an attempt or between two; None between requests."""
    if run.within is not None and run.within.asked is not None:
        run = run.within
    if run.asked is None:
        return None
    (messages, entries), attempt = run.asked, run.open
    run.asked = run.open = None
    if attempt is not None:
        reply, messages = attempt.unfinished()
        entries.append(attempt.entry("interrupted", reply))
    return Step("leave", run.state, Turn(run.id, run.state.id, messages, tuple(entries)))


def render(state: State, instructions: str | None, new: Sequence[Message] = ()) -> list[Message]:
    """What is sent: instructions, leading system messages, the summary, and the history with every call answered."""
    history = [*state.messages, *new]
    if instructions is not None:
        history = [m for m in history if not (m.__pydantic_extra__ or {}).get("instructions")]
    out = repair(history) if state.uses_tools or any(isinstance(m.content, list) for m in new) else history
    if state.head.summary is not None:
        lead = 0
        while lead < len(out) and out[lead].role in ("system", "developer"):
            lead += 1
        text = f"Summary of the conversation so far:\n\n{state.head.summary}"
        out.insert(lead, Message(id=state.id, role="system", content=text))
    if instructions is not None:
        out.insert(0, Message(id=state.id, role="system", content=instructions))
    return out


def _decide(run: Run, call: ToolCall) -> tuple[PolicyStatus, Tool | None]:
    tool = next((t for t in run.tools if t.name == call.name), None)
    try:
        return run.policy.status(call.name, tool), tool
    except Exception:
        log.exception("the evaluator of the tool policy failed for %r; the call stays pending", call.name)
        return PolicyStatus.PENDING, tool


def _answer(run: Run, answers: Sequence[tuple[ToolCall, PolicyStatus, Tool | None]]) -> Flow[None]:
    """Run what is allowed, answer what is denied or missing, and save the results."""
    state = run.state
    results: dict[str, ToolResult] = {}
    bound: list[BoundCall] = []
    for call, status, tool in answers:
        stopped = run.intercept(call) if run.intercept is not None and status is PolicyStatus.ALLOWED else None
        if stopped is not None:
            results[call.id] = stopped
        elif status is PolicyStatus.DENIED:
            results[call.id] = failed(call, f"the tool {call.name!r} is not allowed here", "ToolDenied")
        elif status is PolicyStatus.ALLOWED and tool is None:
            results[call.id] = failed(call, f"there is no tool {call.name!r}", "NoSuchToolError")
        elif tool is not None and status is PolicyStatus.ALLOWED:
            run.trace("on_tool_start", call)
            bound.append(BoundCall(call, tool))
    if bound:
        answered = yield from invoke(bound, run.policy.strategy)
        for one, result in zip(bound, answered, strict=True):
            results[one.call.id] = result
            run.trace("on_tool_finish", one.call, result)
    if not results:
        return
    ordered = [results[call.id] for call, _, _ in answers if call.id in results]
    message = tool_message(ordered)
    mark = state.mark()
    state.append([message])
    yield from save(run, mark, Turn(run.id, state.id, (message,)))
    if run.on_tool is not None:  # what it raises must not lose what the tools did
        for call, _, _ in answers:
            if call.id in results:
                run.on_tool(call, results[call.id])
