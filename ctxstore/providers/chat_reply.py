"""What Chat Completions answers: one body, or a stream of chunks, read from bytes that are cut anywhere.

Which of the two it is the bytes tell, not the headers: servers send JSON as octet-stream, pad it with blank lines to
keep the connection alive, and answer a request for a stream with plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from ..errors import ProviderError, ServerError, StreamInterruptedError
from ..messages import Delta
from .base import ModelRequest, Reply
from .chat_choice import Choice
from .chat_usage import merged, usage_in, usage_of
from .dialect import Dialect
from .errors import request_id_of
from .sse import Event, EventReader

__all__ = ["ChatDecoder"]

Fail: TypeAlias = Callable[[int | None, Any], ProviderError]
"""Makes the error for a status and a body."""

_BLANK = b" \t\r\n"
_EVENT_LINE = re.compile(rb"(?:data|event|id|retry)?:|d(?:a(?:ta?)?)?$|e(?:v(?:e(?:nt?)?)?)?$|\Z")


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
        self._head = b""  # how the body begins, to tell a stream that was cut from a page that is none
        self._error: ProviderError | None = None

    # -- the decoder of the turn

    def feed(self, data: bytes) -> Sequence[Delta]:
        """The deltas that ``data`` completes.

        Raises:
            ProviderError: the stream carries an error. ``partial()`` gives what came before it.
        """
        with self._readable():
            return self._feed(data)

    def _feed(self, data: bytes) -> Sequence[Delta]:
        if self._error is not None:
            raise self._error
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
            if len(self._head) < 200:
                self._head += data[:200]
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
        with self._readable():
            return self._finish()

    def _finish(self) -> Reply:
        if self._events is not None:
            self._take(self._events.flush())
            if self._error is not None:
                raise self._error
            if not self._finished:
                head = self._head.lstrip(_BLANK)
                if not self._reply.began and not _EVENT_LINE.match(head):
                    raise self._fail(200, head.decode("utf-8", "replace"))
                raise self._broken("the stream ended before the reply did")
        elif self._plain is None:
            raise self._broken("the response is empty")
        elif not self._finished:
            self._read_plain()
        return self._reply.build(self._headers)

    def partial(self) -> Reply | None:
        """What of a reply came so far, None when nothing did."""
        try:
            with self._readable():
                return self._reply.build(self._headers) if self._reply.began else None
        except ServerError:
            return None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What is JSON but in no form that a reply has, in whatever place, is the server's error."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # pydantic's is a ValueError
            raise ServerError(
                f"{self._name}: the reply is not in the form of Chat Completions: {error}",
                status=200,
                request_id=request_id_of(self._headers),
                retryable=False,
            ) from error

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
                self._error = self._broken(f"a chunk of the stream is no JSON: {data[:200]!r}")
                self._error.__cause__ = error
                break
            if not isinstance(chunk, Mapping):
                continue
            if chunk.get("error") or event.name == "error":
                self._error = self._fail(None, chunk)
                break
            self._finished = self._reply.take_chunk(chunk, deltas) or self._finished
        if self._error is not None and not deltas:
            raise self._error
        return deltas  # what came before an error is shown first; the error follows at the next call

    def _broken(self, what: str) -> StreamInterruptedError:
        return StreamInterruptedError(f"{self._name}: {what}", request_id=request_id_of(self._headers))


class _Reply:
    """A reply as it grows."""

    def __init__(self, request: ModelRequest, dialect: Dialect, name: str) -> None:
        self.request, self.dialect, self.name = request, dialect, name
        self.choices: dict[int, Choice] = {}
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
                if choice.get("finish_reason"):
                    found.finish_reason = str(choice["finish_reason"])
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

    def _choice(self, index: Any) -> Choice:
        number = index if type(index) is int else 0
        if number not in self.choices:
            self.choices[number] = Choice(self.dialect, self.name)
        return self.choices[number]

    def build(self, headers: Mapping[str, str]) -> Reply:
        taken = {call.id for m in self.request.messages if isinstance(m.content, list) for call in m.tool_calls}
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
