"""What Chat Completions answers: one body, or a stream of chunks, read from bytes that are cut anywhere.

Which of the two it is the bytes tell, not the headers: servers send JSON as octet-stream, pad it with blank lines to
keep the connection alive, and answer a request for a stream with plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from .. import clock
from ..errors import ProviderError, ServerError, StreamInterruptedError
from ..jsontext import join_surrogates
from ..messages import Delta, ReasoningPart, RefusalPart, TextPart, ToolCall, UnknownPart
from .base import ModelRequest, Reply
from .chat_usage import merged, usage_in, usage_of
from .dialect import Dialect
from .errors import request_id_of
from .sse import Event, EventReader

__all__ = ["ChatDecoder"]

Fail: TypeAlias = Callable[[int | None, Any], ProviderError]
"""Makes the error for a status and a body."""

_BLANK = b" \t\r\n"
_KNOWN = {"role", "content", "tool_calls", "refusal", "reasoning", "reasoning_content", "reasoning_details"}


def _parse(text: str) -> Any:
    """JSON as servers write it: NaN and lone surrogates included. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


class ChatDecoder:
    """Reads one response with a status of success."""

    def __init__(
        self, request: ModelRequest, headers: Mapping[str, str], dialect: Dialect, name: str, fail: Fail
    ) -> None:
        self._headers, self._fail, self._name = headers, fail, name
        self._plain: bytearray | None = None
        self._events: EventReader | None = None
        self._streamed = request.stream
        self._seen: bytes = b""
        self._reply = _Reply(request, dialect, name)
        self._finished = False  # by a finish_reason or by [DONE]

    # -- the decoder of the turn

    def feed(self, data: bytes) -> Sequence[Delta]:
        """The deltas that ``data`` completes.

        Raises:
            ProviderError: the stream carries an error. ``partial()`` gives what came before it.
        """
        if self._plain is None and self._events is None:
            data = self._seen + data
            head = data.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK)
            if not head:
                self._seen = data if len(data) < 4 else b""  # a BOM may be cut; blank lines mean nothing
                return ()
            if head[:1] in b"{[<":
                self._plain, data = bytearray(), head
            else:
                self._events = EventReader()
        if self._events is not None:
            return self._take(self._events.feed(data))
        assert self._plain is not None
        self._plain += data
        if self._streamed and self._plain.rstrip().endswith(b"}"):
            return self._whole()  # plain JSON where a stream was asked for: show it once it is whole
        return ()

    def finish(self) -> Reply:
        """The reply, at the end of the bytes.

        Raises:
            StreamInterruptedError: it broke off.
            ProviderError: it holds an error, or is no reply at all.
        """
        if self._events is not None:
            self._take(self._events.flush())
            if not self._finished:
                raise self._broken("the stream ended before the reply did")
        elif self._plain is None:
            raise self._broken("the response is empty")
        elif not self._finished:
            self._read_plain()
        return self._reply.build(self._headers)

    def partial(self) -> Reply | None:
        """What of a reply came so far, None when nothing did."""
        return self._reply.build(self._headers) if self._reply.began else None

    # -- plain

    def _whole(self) -> list[Delta]:
        if self._finished:
            return []
        try:
            self._read_plain()
        except StreamInterruptedError:
            return []
        choice = self._reply.choices.get(max(self._reply.choices, default=0))
        return [] if choice is None else choice.shown()

    def _read_plain(self) -> None:
        assert self._plain is not None
        text = bytes(self._plain).decode("utf-8", "replace")
        try:
            body = _parse(text)
        except ValueError as error:
            if text[0] == "<":
                raise self._fail(200, text) from error
            raise self._broken("the response ended in the middle") from error
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        if not isinstance(body, Mapping) or not isinstance(body.get("choices"), list):
            raise self._fail(200, body if isinstance(body, Mapping) else text)
        self._reply.take_body(body)
        for choice in body["choices"]:
            if isinstance(choice, Mapping) and choice.get("error"):
                raise self._fail(None, {"error": choice["error"]})
        self._finished = True

    # -- streamed

    def _take(self, events: Iterable[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            data = event.data.strip()
            if data == "[DONE]":
                self._finished = True
                continue
            if not data:
                continue
            try:
                chunk = _parse(data)
            except ValueError as error:
                raise self._broken(f"a chunk of the stream is no JSON: {data[:200]!r}") from error
            if not isinstance(chunk, Mapping):
                continue
            if chunk.get("error") or event.name == "error":
                raise self._fail(None, chunk)
            self._finished = self._reply.take_chunk(chunk, deltas) or self._finished
        return deltas

    def _broken(self, what: str) -> StreamInterruptedError:
        return StreamInterruptedError(f"{self._name}: {what}", request_id=request_id_of(self._headers))


class _Reply:
    """A reply as it grows."""

    def __init__(self, request: ModelRequest, dialect: Dialect, name: str) -> None:
        self.request, self.dialect, self.name = request, dialect, name
        self.choices: dict[int, _Choice] = {}
        self.usage: dict[str, Any] | None = None
        self.model: str | None = None
        self.id: str | None = None
        self.request_id: str | None = None
        self.began = False

    def take_body(self, body: Mapping[str, Any]) -> None:
        self._take_head(body)
        for index, choice in enumerate(body["choices"]):
            if isinstance(choice, Mapping):
                found = self._choice(choice.get("index", index))
                found.take(choice.get("message") or {}, [])
                found.finish_reason = choice.get("finish_reason") or found.finish_reason
        self.began = self.began or bool(self.choices)

    def take_chunk(self, chunk: Mapping[str, Any], deltas: list[Delta]) -> bool:
        """Add a chunk; True when it ends the first choice."""
        self._take_head(chunk)
        ended = False
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, Mapping):
                continue
            index = choice.get("index") or 0
            found = self._choice(index)
            shown: list[Delta] = []
            found.take(choice.get("delta") or choice.get("message") or {}, shown)
            if index == max(self.choices):  # of several choices the last enters the context, so it is the one shown
                deltas += shown
            if choice.get("finish_reason"):
                found.finish_reason = str(choice["finish_reason"])
                ended = True
                found.close(deltas)
            self.began = self.began or found.began
        return ended

    def _take_head(self, body: Mapping[str, Any]) -> None:
        usage = usage_in(body, self.dialect)
        if usage is not None:
            self.usage = merged(self.usage, usage)
            self.began = True
        if isinstance(body.get("model"), str) and body["model"]:
            self.model = body["model"]
        if isinstance(body.get("id"), str) and body["id"]:
            self.id = body["id"]
        self.request_id = self.request_id or request_id_of({}, body)

    def _choice(self, index: Any) -> _Choice:
        number = index if type(index) is int else 0
        if number not in self.choices:
            self.choices[number] = _Choice(self.dialect, self.name)
        return self.choices[number]

    def build(self, headers: Mapping[str, str]) -> Reply:
        taken = {call.id for m in self.request.messages if type(m.content) is list for call in m.tool_calls}
        choices = [self.choices[index] for index in sorted(self.choices)]
        return Reply(
            choices=tuple(choice.content(taken) for choice in choices),
            finish_reason=choices[-1].finish_reason if choices else None,
            usage=usage_of(self.usage, self.dialect),
            usage_raw=self.usage,
            model=self.model,
            response_id=self.id,
            request_id=request_id_of(headers) or self.request_id,
        )


class _Call:
    """A tool call as it grows."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.state: dict[str, Any] = {}

    def take(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        kind = delta.get("type") or "function"
        if not isinstance(function, Mapping):
            function = delta.get(kind) if isinstance(delta.get(kind), Mapping) else {}
        assert isinstance(function, Mapping)
        if delta.get("id"):
            self.id = str(delta["id"])
        if function.get("name"):
            self.name = str(function["name"])
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments.append(json.dumps(arguments, ensure_ascii=False))
        for key, value in delta.items():
            if key not in ("id", "type", "function", "index", kind) and value not in (None, ""):
                self.state[key] = value


class _Choice:
    """One choice as it grows: its parts in the order in which they came."""

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect, self.name = dialect, name
        self.finish_reason: str | None = None
        self.began = False
        self.parts: list[tuple[str, list[str], dict[str, Any]]] = []  # kind, pieces of text, state
        self.calls: list[_Call] = []
        self.by_index: dict[Any, _Call] = {}
        self.state: dict[str, Any] = {}
        self.details: list[dict[str, Any]] = []
        self.tags = _Tags() if dialect.think_tags else None
        self.has_list = False
        self.cut = ""  # half of a character that the next piece completes

    # -- growing

    def take(self, delta: Mapping[str, Any], shown: list[Delta]) -> None:
        """Add a delta of a stream, or the message of a plain reply."""
        field = next((f for f in ("reasoning_content", "reasoning") if isinstance(delta.get(f), str)), None)
        if field is not None and (delta[field] or self.began is False):
            self._text("reasoning", delta[field], {"field": field}, shown)
        for detail in delta.get("reasoning_details") or ():
            if isinstance(detail, Mapping):
                _merge_detail(self.details, detail)
        content = delta.get("content")
        if isinstance(content, str):
            self._content(content, shown)
        elif isinstance(content, list):
            self.has_list = True
            for chunk in content:
                self._chunk(chunk, shown)
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            self._text("refusal", delta["refusal"], {}, shown)
        for call in delta.get("tool_calls") or ():
            if isinstance(call, Mapping):
                self._take_call(call)
        for key, value in delta.items():
            if key not in _KNOWN and value not in (None, "", [], {}):
                self.state[key] = value

    def _content(self, text: str, shown: list[Delta]) -> None:
        if self.tags is None:
            self._text("text", text, {}, shown)
            return
        for kind, piece in self.tags.feed(text):
            self._text(kind, piece, {"field": "<think>"} if kind == "reasoning" else {}, shown)

    def _text(self, kind: str, text: str, state: Mapping[str, Any], shown: list[Delta]) -> None:
        if not self.parts or self.parts[-1][0] != kind:
            same = next((p for p in self.parts if p[0] == kind), None) if not self.has_list else None
            if same is None:
                self.parts.append((kind, [], dict(state)))
            else:
                self._grow(same, text, shown)
                return
        self._grow(self.parts[-1], text, shown)

    def _grow(self, part: tuple[str, list[str], dict[str, Any]], text: str, shown: list[Delta]) -> None:
        part[1].append(text)
        if not text:
            return
        self.began = True
        text = join_surrogates(self.cut + text)
        self.cut = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = text.removesuffix(self.cut) if self.cut else text
        if text and part[0] == "reasoning":
            shown.append(Delta(reasoning=text))
        elif text:
            shown.append(Delta(text=text))

    def _chunk(self, chunk: Any, shown: list[Delta]) -> None:
        """An element of a content that is a list."""
        if not isinstance(chunk, Mapping):
            return
        if chunk.get("type") == "text":
            self._text("text", str(chunk.get("text") or ""), {}, shown)
        elif chunk.get("type") == "thinking":
            inner = chunk.get("thinking") or ()
            text = inner if isinstance(inner, str) else "".join(str(t.get("text") or "") for t in inner)
            self._text("reasoning", text, {"chunk": {}}, shown)
            rest = {k: v for k, v in chunk.items() if k != "thinking"}
            self.parts[-1][2]["chunk"].update(rest)
        else:
            self.parts.append(("other", [], dict(chunk)))
            self.began = True

    def _take_call(self, delta: Mapping[str, Any]) -> None:
        self.began = True
        index = delta.get("index")
        call = self.by_index.get(index) if index is not None else None
        if call is None or (delta.get("id") and call.id and str(delta["id"]) != call.id and delta.get("function")):
            if index is None and self.calls and not delta.get("id") and not (delta.get("function") or {}).get("name"):
                call = self.calls[-1]  # more of the last call, from a server that counts none of them
            else:
                call = _Call()
                self.calls.append(call)
                if index is not None:
                    self.by_index[index] = call
        call.take(delta)

    def close(self, shown: list[Delta]) -> None:
        """The choice ended: show what was held back."""
        if self.tags is not None:
            for kind, piece in self.tags.flush():
                self._text(kind, piece, {}, shown)

    def shown(self) -> list[Delta]:
        """The whole choice as deltas."""
        return [
            Delta(reasoning="".join(pieces)) if kind == "reasoning" else Delta(text="".join(pieces))
            for kind, pieces, _ in self.parts
            if kind != "other" and any(pieces)
        ]

    # -- grown

    def content(self, taken: set[str]) -> Any:
        """The content of the message: text, None, or parts. ``taken`` are the ids of calls in the history."""
        parts: list[Any] = []
        carried = {k: v for k, v in self.state.items() if k in self.dialect.message_state}
        if self.details:
            carried["reasoning_details"] = self.details
        kept = [p for p in self._grown() if p[1] or p[0] == "other" or (p[0] == "text" and not self.calls)]
        if carried and not any(kind == "reasoning" for kind, _, _ in kept):
            kept.insert(0, ("reasoning", "", {"field": None}))
        for kind, text, state in kept:
            if kind == "reasoning":
                state = {"provider": self.name, **state}
                if "chunk" in state:
                    state["chunk"] = {**state["chunk"], "thinking": [{"type": "text", "text": text}]}
                if carried:
                    state |= carried
                    if self.details:
                        state["field"] = None  # the details say it all
                    carried = {}
                parts.append(ReasoningPart(type="reasoning", text=text, state=state))
            elif kind == "refusal":
                parts.append(RefusalPart(type="refusal", text=text))
            elif kind == "other":
                parts.append(UnknownPart.model_validate(state))
            else:
                parts.append(TextPart(type="text", text=text))
        for call in self.calls:
            parts.append(self._built(call, taken))
        if not parts:
            return None
        if len(parts) == 1 and type(parts[0]) is TextPart:
            return parts[0].text
        return parts

    def _grown(self) -> list[tuple[str, str, dict[str, Any]]]:
        held = [(kind, [piece], {}) for kind, piece in self.tags.held()] if self.tags is not None else []
        return [(kind, join_surrogates("".join(pieces)), state) for kind, pieces, state in [*self.parts, *held]]

    def _built(self, call: _Call, taken: set[str]) -> ToolCall:
        if not call.id or call.id in taken:  # none, or one that repeats: "0" in every reply
            call.id = f"call_{clock.new_id().hex}"
        taken.add(call.id)
        return ToolCall(
            type="tool_call",
            id=call.id,
            name=call.name,
            arguments_json=join_surrogates("".join(call.arguments)),
            state={"provider": self.name, **call.state} if call.state else None,
        )


def _merge_detail(details: list[dict[str, Any]], new: Mapping[str, Any]) -> None:
    """Add a piece of OpenRouter's reasoning_details: what has one index and type is one entry, its texts joined."""
    last = details[-1] if details else None
    if last is None or (last.get("index"), last.get("type")) != (new.get("index"), new.get("type")) or new.get("index") is None:
        details.append(dict(new))
        return
    for key, value in new.items():
        if key in ("text", "summary", "data") and isinstance(value, str):
            last[key] = (last.get(key) or "") + value
        elif value is not None:
            last[key] = value


class _Tags:
    """Splits the reasoning that raw models write between ``<think>`` and ``</think>`` at the head of their text."""

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        self._mode = "start"
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        self._held += text
        if self._mode == "start":
            if self._held.startswith(self._OPEN):
                self._held = self._held.removeprefix(self._OPEN)
                self._mode = "reasoning"
            elif not self._OPEN.startswith(self._held):
                self._mode = "text"
        if self._mode == "reasoning":
            thought, found, rest = self._held.partition(self._CLOSE)
            if found:
                self._mode, self._held = "text", rest
            else:
                keep = next((n for n in range(len(self._CLOSE) - 1, 0, -1) if thought.endswith(self._CLOSE[:n])), 0)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            if thought:
                out.append(("reasoning", thought))
        if self._mode == "text" and (self._held or not text):
            out.append(("text", self._held))
            self._held = ""
        return out

    def held(self) -> list[tuple[str, str]]:
        """What is held back because it may be the beginning of a tag."""
        kind = "reasoning" if self._mode == "reasoning" else "text"
        return [(kind, self._held)] if self._held else []

    def flush(self) -> list[tuple[str, str]]:
        """Give up what is held back: no more comes."""
        out, self._held = self.held(), ""
        return out
