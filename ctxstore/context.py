"""One conversation, live: what was said, what it used, and the next turn.

A context is free (``Context(llm)``), bound to a store (``store.create``, ``store.load``) or to a record of the host's
own (``ticket.context``). It talks the same in each; bound, every completed request is kept before ``talk`` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from . import clock, jsontext, prompts
from .compaction import Compactor
from .effects import BoundCall
from .errors import ConfigurationError, NoSuchToolError, PayloadError
from .files import write_file
from .keeper import FREE, Keeper, Step
from .messages import FilePart, ImagePart, Message, ToolCall, ToolResult, openai_shape
from .payload import codec
from .payload.schema import MESSAGE_DEPTH, VERSION, Document, Head
from .policy import ToolPolicy
from .prompts import Prompt, as_messages, from_mapping
from .providers.base import Provider, Schema
from .repair import cancelled
from .runtime import aio, sync
from .runtime.interrupt import TurnQueue
from .sink import as_sink
from .snapshot import ContextSnapshot
from .state import State
from .talking import Talking
from .tools import Tool, as_tools, failed
from .usage import Price, Turn

__all__ = ["Context"]


class Context(Talking):
    """A conversation with ``provider``.

    Args:
        provider: who is talked to; may be changed with ``use``.
        id: a UUIDv7 or its text; else the ``record``'s ``id`` when that is one, else a new one.
        record: the host's row that the conversation belongs to, as ``ctx.record``.
        mode: one of ``provider.modes``, the first when left out.
        model: the model of the requests, the provider's own when left out.
        tools: functions or ``Tool`` objects that the model may ask for; never stored.
        tool_policy: which of them run without being asked about; without one every call stays pending.
        instructions: text that goes before every request and is no message.
        schema: a pydantic model, a type or a JSON schema that replies follow; see ``Response.parsed``.
        compactor: ``Trim``, ``Callback`` or ``Summarize``: what keeps the conversation within bounds.
        filter: a function that rewrites the last message of a prompt before it is sent and stored.
        intercept: a function of an allowed call that may answer it in the tool's place.
        retry_budget: how often a request that failed and may be repeated is sent again.
        stream: where replies go while they arrive: a file, a function of a ``Delta``, a ``Sink``.
        tracer: an object with any of ``on_request_start/finish/error`` and ``on_tool_start/finish``.
        metadata: JSON of the caller's own, saved with the context.
        file_roots: folders under which paths that come from a payload may be read.
        params: the request's own, as ``{"temperature": 0.2}``; saved. Keys and addresses are refused.

    Raises:
        InvalidIdError: the id is no UUIDv7.
        ConfigurationError: something here cannot work, named.
    """

    schema_version = VERSION

    def __init__(
        self,
        provider: Provider,
        *,
        id: UUID | str | None = None,
        record: Any = None,
        mode: str | None = None,
        model: str | None = None,
        tools: Any = (),
        tool_policy: ToolPolicy | None = None,
        instructions: str | None = None,
        schema: Any = None,
        compactor: Compactor | None = None,
        filter: Callable[[Message], Message] | None = None,
        intercept: Callable[[ToolCall], ToolResult | None] | None = None,
        retry_budget: int = 0,
        stream: Any = None,
        tracer: Any = None,
        metadata: Mapping[str, Any] | None = None,
        file_roots: Iterable[str | Path] = (),
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(provider, Provider):
            raise ConfigurationError(f"the provider must be a ctxstore provider such as OpenAI(), not {provider!r}")
        if retry_budget < 0:
            raise ConfigurationError(f"retry_budget must be 0 or more, not {retry_budget}")
        self.record = record
        self.instructions = instructions
        self.schema = Schema.of(schema)
        self.compactor = compactor
        """What keeps the conversation within bounds; may be changed at any time."""
        self.filter, self.intercept, self.tracer = filter, intercept, tracer
        self.retry_budget = retry_budget
        self.tools: tuple[Tool, ...] = as_tools(tools)
        self.tool_policy = tool_policy or ToolPolicy()
        self.file_roots = tuple(Path(root) for root in file_roots)
        self._sink = as_sink(stream)
        self._provider = provider
        self._keeper: Keeper = FREE
        self._turns, self._saves = TurnQueue(), TurnQueue()
        self._interruption = None
        self._trusted: set[UUID] = set()
        checked = dict(jsontext.check(dict(params or {}), "params"))
        codec.check_params(checked)
        now = clock.now()
        identity = self._identity(id, record) or clock.new_id()
        head = Head(identity, clock.new_id(), now, now, params=checked)
        head.metadata = dict(jsontext.check(dict(metadata or {}), "metadata"))
        self.state = State(head, self._price)
        self._settle(mode, model)

    @staticmethod
    def _identity(id: UUID | str | None, record: Any) -> UUID | None:
        if id is not None:
            return clock.parse_id(id)
        own = getattr(record, "id", None)
        return clock.parse_id(own) if clock.is_uuid7(own) else None

    def _settle(self, mode: str | None, model: str | None) -> None:
        """Bring the head in line with the provider, and with what the caller named."""
        head, provider = self.state.head, self._provider
        known = head.provider in (None, provider.name)
        head.mode = self._mode(mode or (head.mode if known and head.mode in provider.modes else None))
        head.model = model or (head.model if known else None) or provider.model
        head.provider = provider.name
        if self.tools:
            head.tools = tuple(t.name for t in self.tools)
        self.state.context_window = provider.context_window(head.model)

    def _mode(self, mode: str | None) -> str:
        if mode is None:
            return self._provider.modes[0]
        if mode not in self._provider.modes:
            raise ConfigurationError(
                f"{self._provider.name} has no mode {mode!r} here, only {', '.join(self._provider.modes)}"
            )
        return mode

    def _price(self, model: str, provider: str | None) -> Price | None:
        return self._provider.price(model) if provider in (None, "unknown", self._provider.name) else None

    # -- coming back

    @classmethod
    def restore(
        cls,
        payload: Mapping[str, Any] | str | bytes | None = None,
        *,
        path: str | Path | None = None,
        provider: Provider,
        id: UUID | str | None = None,
        record: Any = None,
        **options: Any,
    ) -> Context:
        """A live context from a payload: a mapping, a JSON text or a file; ``options`` as in ``Context(...)``.

        Older payloads are moved up to the current version; the source is not changed.

        Raises:
            SchemaVersionError: it was written by a newer program, or says no version.
            PayloadError: it is no payload; the message says where it breaks.
        """
        if (payload is None) == (path is None):
            raise ConfigurationError("give either a payload or path=, and not both")
        if path is not None:
            try:
                payload = Path(path).read_bytes()
            except OSError as error:
                raise PayloadError(f"the payload file cannot be read: {error}") from error
        elif isinstance(payload, str) and payload.endswith(".json"):
            raise PayloadError(f"{payload!r} is no payload; for a file of this name say path={payload!r}")
        document = codec.load(payload, context_id=cls._identity(id, record))  # type: ignore[arg-type]
        return cls._from_document(provider, document, record=record, **options)

    @classmethod
    def _from_document(
        cls,
        provider: Provider,
        document: Document,
        *,
        metadata: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Context:
        model, mode = options.pop("model", None), options.pop("mode", None)
        ctx = cls(provider, id=document.head.id, **options)
        head = document.head
        if metadata is not None:
            head.metadata = dict(jsontext.check(dict(metadata), "metadata"))
        if params is not None:
            head.params = dict(jsontext.check(dict(params), "params"))
            codec.check_params(head.params)
        ctx.state.take(document)
        ctx._settle(mode, model)
        return ctx

    @classmethod
    def _from_store(
        cls,
        provider: Provider,
        document: Document,
        positions: list[int],
        next_position: int,
        token: str,
        *,
        keeper: Keeper,
        owner: str | None,
        **options: Any,
    ) -> Context:
        """A live context from what a store read, bound to its keeper; everything in it counts as saved."""
        ctx = cls._from_document(provider, document, **options)
        changed = options.get("metadata") is not None or options.get("params") is not None
        ctx.state.owner = owner
        ctx.state.stands_on(positions, next_position, token)
        if changed:
            ctx.state.touch()
        ctx._keeper = keeper
        return ctx

    def _bind(self, keeper: Keeper) -> None:
        self._keeper = keeper

    # -- adding

    def append(self, message: Any) -> Context:
        """Put a message at the end without sending anything: a ``Message``, a tool result, or a mapping in the
        OpenAI shape. Returns the context.

        Raises:
            PayloadError: it is no message; UnsupportedValueError names a value that JSON cannot hold.
        """
        return self.extend([message])

    def extend(self, messages: Iterable[Any]) -> Context:
        """Put several messages at the end; all of them or, when one is wrong, none.

        A message that is in the context already, by its id, is not put there twice.
        """
        listed: list[Message] = []
        for item in messages:
            listed.extend([from_mapping(item)] if isinstance(item, Mapping) else as_messages(item))
        self._append(listed)
        return self

    def _append(self, messages: list[Message]) -> None:
        for index, message in enumerate(messages):
            jsontext.check(message.to_payload(), f"messages[{len(self.state.messages) + index}]", MESSAGE_DEPTH)
        new = self.state.unknown(messages)
        self._trust(new)
        self.state.append(new)
        if self.compactor is not None:
            self.compactor.apply(self.state)

    def system(self, text: Any) -> Context:
        """Append a system message."""
        return self.append(Message.new("system", prompts.content_of(text)))

    def user(self, text: Any) -> Context:
        """Append a user message: text, parts, or data."""
        return self.append(Message.new("user", prompts.content_of(text)))

    def assistant(self, text: Any = None, tool_calls: Iterable[Any] = ()) -> Context:
        """Append a reply that no provider was paid for."""
        return self.append({"role": "assistant", "content": text, "tool_calls": list(tool_calls)})

    def tool(self, call_id: str, value: Any, error: bool = False) -> Context:
        """Append the result of the call ``call_id``."""
        call = self.state.open_calls.get(call_id)
        checked = prompts.plain(value, "value")
        name = call.name if call else None
        return self.append(ToolResult(type="tool_result", id=call_id, name=name, value=checked, error=error))

    # -- tools

    def run_tools(self, strategy: str = "sequential", *, skip: Iterable[Any] = ()) -> list[ToolResult]:
        """Run the pending calls and give their results, in order; ``talk(results)`` sends them.

        ``skip`` names calls (or their ids) to leave pending. What a tool raises becomes its result.
        """
        bound, missing = self._bound(skip)
        return self._in_order(sync.invoke(bound, strategy), bound, missing)

    async def arun_tools(self, strategy: str = "sequential", *, skip: Iterable[Any] = ()) -> list[ToolResult]:
        """``run_tools`` for asyncio: coroutine tools are awaited."""
        bound, missing = self._bound(skip)
        return self._in_order(await aio.ainvoke(bound, strategy), bound, missing)

    def cancel(self, call: ToolCall | str, reason: str | None = None) -> ToolResult:
        """The result that tells the model that a pending call will not be run; ``talk`` or ``append`` it."""
        found = self.state.open_calls.get(call if isinstance(call, str) else call.id)
        if found is None:
            raise NoSuchToolError(f"there is no pending call {call!r}")
        return cancelled(found, reason or "function call cancelled")

    def _bound(self, skip: Iterable[Any]) -> tuple[list[BoundCall], list[ToolResult]]:
        skipped = {getattr(call, "id", call) for call in skip}
        tools = {t.name: t for t in self.tools}
        calls = [c for c in self.pending_calls if c.id not in skipped]
        bound = [BoundCall(c, tools[c.name]) for c in calls if c.name in tools]
        missing = [failed(c, f"there is no tool {c.name!r}", "NoSuchToolError") for c in calls if c.name not in tools]
        return bound, missing

    def _in_order(
        self, results: list[ToolResult], bound: list[BoundCall], missing: list[ToolResult]
    ) -> list[ToolResult]:
        by_id = {one.call.id: r for one, r in zip(bound, results, strict=True)} | {r.id: r for r in missing}
        return [by_id[call_id] for call_id in self.state.open_calls if call_id in by_id]

    # -- going on differently

    def use(self, provider: Provider | None = None, model: str | None = None) -> Context:
        """Go on with another provider, another model, or both; the history stays."""
        if provider is not None:
            if not isinstance(provider, Provider):
                raise ConfigurationError(f"the provider must be a ctxstore provider such as OpenAI(), not {provider!r}")
            self._provider = provider
        self._settle(None, model)
        self.state.touch()
        return self

    def clear(self) -> Context:
        """Begin a new thread: no messages, no summary. What was used stays used; id, tools and metadata stay."""
        state = self.state
        state.remove(range(len(state.messages)))
        state.head.thread_id, state.head.started_at = clock.new_id(), clock.now()
        state.head.summary, state.head.compacted = None, False
        state.touch()
        return self

    def rewind(self, to: UUID | str | int) -> Context:
        """Go back to just after the message ``to``: its id, or its index in ``messages``. Later ones retire."""
        state = self.state
        if isinstance(to, int):
            index = to if to >= 0 else len(state.messages) + to
            if not 0 <= index < len(state.messages):
                raise ConfigurationError(f"there is no message {to}; the context has {len(state.messages)}")
        else:
            wanted = clock.parse_id(to)
            found = [i for i, m in enumerate(state.messages) if m.id == wanted]
            if not found:
                raise ConfigurationError(f"there is no live message with the id {wanted}")
            index = found[-1]
        state.remove(range(index + 1, len(state.messages)))
        return self

    def snapshot(self) -> ContextSnapshot:
        """A copy of the context as it is now, a plain value."""
        head, size = self.state.head, self.size()
        return ContextSnapshot(
            id=head.id,
            thread_id=head.thread_id,
            provider=head.provider,
            model=head.model,
            started_at=head.started_at,
            updated_at=head.updated_at,
            summary=head.summary,
            compacted=head.compacted,
            metadata=head.metadata,
            messages=tuple(self.state.messages),
            estimated_tokens=size.estimated_tokens,
        )

    def resume(
        self,
        snapshot: ContextSnapshot | Mapping[str, Any] | str | bytes | None = None,
        *,
        thread_id: UUID | str | None = None,
        messages: Iterable[Any] | None = None,
        model: str | None = None,
        summary: str | None = None,
    ) -> Context:
        """Take over the history of a snapshot or a payload, or of the parts given; it replaces what is here.

        The id stays. Replies that come back this way are ``inherited``: they were paid for where they were made.
        """
        if snapshot is None:
            listed = [m for item in messages or () for m in as_messages(item)]
            thread, started = clock.parse_id(thread_id or clock.new_id()), clock.now()
            source_model, text = None, summary
        elif isinstance(snapshot, ContextSnapshot):
            listed, thread, started = list(snapshot.messages), snapshot.thread_id, snapshot.started_at
            source_model, text = snapshot.model if snapshot.provider == self._provider.name else None, snapshot.summary
        else:
            document = codec.load(snapshot, context_id=self.id)
            head = document.head
            listed, thread, started, text = document.messages, head.thread_id, head.started_at, head.summary
            source_model = head.model if head.provider == self._provider.name else None
        state = self.state
        state.replace(listed, inherited=True)
        state.head.thread_id, state.head.started_at, state.head.summary = thread, started, text
        state.head.model = model or source_model or state.head.model
        state.touch()
        return self

    # -- out

    def _projections(self) -> dict[str, Any]:
        state = self.state
        cost = state.cost
        return {
            "context_used": state.context_used,
            "context_window": state.context_window,
            "token_usage": state.token_usage.to_payload(),
            "cost": None if cost.total is None else str(cost.total),
        }

    def to_payload(self) -> dict[str, Any]:
        """The context as a payload of the current version, a fresh dict."""
        return codec.dump(Document(self.state.head, self.state.messages), self._projections())

    def to_json(self) -> str:
        """The payload as JSON text."""
        return jsontext.dumps(self.to_payload())

    def to_openai(self) -> list[dict[str, Any]]:
        """The messages in the shape of OpenAI's Chat Completions; usage and provider state are not in it."""
        return [shaped for m in self.state.messages for shaped in openai_shape(m)]

    def save(self, path: str | Path | None = None) -> None:
        """Write what is new to the store or record this context is bound to, or the whole payload to a file.

        The former waits for a turn that is under way in another thread or task, but not for the one it is called from.
        A file is replaced in one step: whoever reads it sees the old or the new one.

        Raises:
            ConfigurationError: it is bound to nothing and no path is given.
            StaleContextError: another writer saved first.
        """
        if path is not None:
            write_file(Path(path), self.to_json())
        else:
            step = self._save_step()
            with self._alone():
                self._keeper.take(step)

    async def asave(self, path: str | Path | None = None) -> None:
        """``save`` for asyncio."""
        if path is not None:
            await asyncio.to_thread(write_file, Path(path), self.to_json())
        else:
            step = self._save_step()
            async with self._aalone():
                await self._keeper.atake(step)

    def _save_step(self) -> Step:
        if self._keeper is FREE:
            raise ConfigurationError(
                "this context is bound to no store: use store.create or store.save(ctx), or save(path=...) for a file"
            )
        return Step("keep", self.state, Turn(clock.new_id(), self.id))

    @staticmethod
    def validate_schema(version: Any) -> int:
        """``version`` when this program can read payloads of it.

        Raises:
            SchemaVersionError: it is newer, older than 1, missing, or no integer.
        """
        return codec.check_version(version)

    # -- building prompts

    def prompt(self) -> Prompt:
        """An empty prompt of several roles, for ``talk``."""
        return Prompt()

    def image_url(self, url: str, detail: str | None = None) -> ImagePart:
        """An image by its address, as a part of a prompt."""
        return prompts.image_url(url, detail)

    def local_file(self, path: str | Path) -> ImagePart | FilePart:
        """A local file, as a part of a prompt; it is read when the request is built."""
        return prompts.local_file(path)

    def remote_file(self, file: Mapping[str, Any] | str) -> FilePart:
        """A file that the provider has already, as a part of a prompt."""
        return prompts.remote_file(file)
