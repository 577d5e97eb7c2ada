"""For the tests of applications: a provider that answers from a list, without a key and without a network.

It goes through the same turn, drivers and accounting as a real one::

    llm = ScriptedProvider(["Hello!", {"tool_calls": [{"id": "c1", "name": "stock", "arguments": {"sku": "A"}}]}])
    ctx = Context(llm)
    assert ctx.talk("Hi").text == "Hello!"
    assert llm.requests[0].messages[-1].text == "Hi"
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import jsontext
from .effects import Response
from .errors import ConfigurationError, ProviderError, ServerError, StreamInterruptedError
from .messages import Delta, ReasoningPart, TextPart, ToolCall
from .providers.base import Decoder, ModelRequest, Provider, Reply, WireRequest
from .usage import Price, TokenUsage

__all__ = ["ScriptedProvider"]

_WORD = re.compile(r"\S+\s*|\s+")
_KEYS = {"text", "reasoning", "tool_calls", "usage", "finish_reason", "model", "response_id"}


@dataclass(frozen=True, slots=True)
class _ScriptedRequest(WireRequest):
    request: ModelRequest | None = None


class ScriptedProvider(Provider):
    """Answers each request with the next of ``replies``.

    A reply is a string, a mapping (``text``, ``reasoning``, ``tool_calls``, ``usage``, ``finish_reason``) or an
    exception to raise; usage left out is unknown. It streams word by word. ``prices`` are USD per million tokens:
    ``{"scripted-1": {"input": 3, "output": 15}}``.

    ``replies`` is what is left, a list that may be added to; ``requests`` what was sent, each with ``.messages`` and
    ``.params``; ``on_request`` is called with each before its reply is taken. When the replies run out it raises
    ConfigurationError.
    """

    name = "scripted"
    modes = ("completions",)

    def __init__(
        self,
        replies: Sequence[Any] = (),
        model: str = "scripted-1",
        context_window: int | None = None,
        prices: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(model)
        self.replies: list[Any] = list(replies)
        self.requests: list[ModelRequest] = []
        self.on_request: Callable[[ModelRequest], Any] | None = None
        self._window = context_window
        self._prices = {name: Price.of(rates) for name, rates in (prices or {}).items()}
        self.transport = _ScriptedTransport(self)

    def build(self, request: ModelRequest) -> WireRequest:
        return _ScriptedRequest("POST", "scripted:", {}, b"", request=request)

    def decoder(self, request: ModelRequest, headers: Mapping[str, str]) -> Decoder:
        return _ScriptedDecoder(request)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return ServerError(body.decode("utf-8", "replace") or None, status=status)

    def context_window(self, model: str) -> int | None:
        return self._window

    def price(self, model: str) -> Price | None:
        return self._prices.get(model)


class _ScriptedTransport:
    def __init__(self, provider: ScriptedProvider) -> None:
        self.provider = provider

    def open(self, request: WireRequest) -> _ScriptedBody:
        sent = request.request if isinstance(request, _ScriptedRequest) else None
        if sent is None:
            raise ConfigurationError("a ScriptedProvider sends only what it built itself")
        self.provider.requests.append(sent)
        if self.provider.on_request is not None:
            self.provider.on_request(sent)
        return _ScriptedBody(self.provider, sent)


class _ScriptedBody:
    response = Response(200, {})

    def __init__(self, provider: ScriptedProvider, request: ModelRequest) -> None:
        self.provider, self.request = provider, request
        self.chunks: Iterator[bytes] | None = None

    def read(self) -> bytes:
        if self.chunks is None:
            self.chunks = self._chunks()
        return next(self.chunks, b"")

    def close(self) -> None:
        self.chunks = iter(())

    def _chunks(self) -> Iterator[bytes]:
        if not self.provider.replies:
            raise ConfigurationError(
                f"the ScriptedProvider has no reply left for request {len(self.provider.requests)}; "
                "give it more, or append to .replies"
            )
        reply = self.provider.replies.pop(0)
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        if isinstance(reply, str):
            reply = {"text": reply}
        if not isinstance(reply, Mapping) or set(reply) - _KEYS:
            keys = ", ".join(sorted(_KEYS))
            raise ConfigurationError(f"a reply is a string, an exception or a mapping of {keys}, not {reply!r}")
        yield from (_line({"reasoning": piece}) for piece in self._pieces(reply.get("reasoning")))
        yield from (_line({"text": piece}) for piece in self._pieces(reply.get("text")))
        rest = {k: v for k, v in reply.items() if k not in ("text", "reasoning")}
        yield _line({"end": rest})

    def _pieces(self, text: str | None) -> list[str]:
        if text is None:
            return []
        return _WORD.findall(text) if self.request.stream and text else [text]


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


class _ScriptedDecoder:
    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.buffer = b""
        self.text: str | None = None
        self.thoughts: str | None = None
        self.end: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Sequence[Delta]:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        deltas: list[Delta] = []
        for line in lines:
            event = json.loads(line)
            if "text" in event:
                self.text = (self.text or "") + event["text"]
                deltas.append(Delta(text=event["text"]))
            elif "reasoning" in event:
                self.thoughts = (self.thoughts or "") + event["reasoning"]
                deltas.append(Delta(reasoning=event["reasoning"]))
            else:
                self.end = event["end"]
        return deltas

    def finish(self) -> Reply:
        if self.end is None:
            raise StreamInterruptedError()
        reply = self.partial()
        assert reply is not None
        return reply

    def partial(self) -> Reply | None:
        end = self.end or {}
        calls = deque(_call(c, i) for i, c in enumerate(end.get("tool_calls") or ()))
        parts: list[Any] = []
        if self.thoughts is not None:
            parts.append(ReasoningPart(type="reasoning", text=self.thoughts))
        if self.text is not None and (parts or calls):
            parts.append(TextPart(type="text", text=self.text))
        parts.extend(calls)
        usage = end.get("usage")
        return Reply(
            choices=(parts or self.text,),
            finish_reason=end.get("finish_reason") or ("tool_calls" if calls else "stop" if self.end else None),
            usage=None if usage is None else _usage(usage),
            usage_raw=usage,
            model=end.get("model") or self.request.model,
            response_id=end.get("response_id"),
        )


def _usage(data: Mapping[str, Any]) -> TokenUsage:
    try:
        return TokenUsage(**data)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the usage of a scripted reply is a mapping of token counts, not {data!r}") from error


def _call(data: Mapping[str, Any], index: int) -> ToolCall:
    arguments = data.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = jsontext.dumps(arguments)
    return ToolCall(
        type="tool_call", id=str(data.get("id") or f"call_{index}"), name=data["name"], arguments_json=arguments
    )
