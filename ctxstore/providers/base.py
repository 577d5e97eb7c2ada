"""What a provider is to the rest: a translator between values and the wire. It opens no connection.

A turn hands ``build`` a ``ModelRequest`` and sends what comes back; ``decoder`` reads the reply's bytes, plain or
streamed, and ``error`` names what a response that is no reply means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import TypeAdapter

from .. import jsontext
from ..errors import ConfigurationError, ProviderError
from ..messages import Delta, Message
from ..tools import Tool
from ..usage import Price, TokenUsage

if TYPE_CHECKING:
    from ..effects import Transport

__all__ = ["Catalog", "Decoder", "ModelRequest", "Provider", "Reply", "Schema", "WireRequest"]


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema that the reply must follow; ``type`` is the pydantic model or type it came from, if any."""

    name: str
    schema: Mapping[str, Any]
    type: Any = None

    @classmethod
    def of(cls, value: Any) -> Schema | None:
        """From a pydantic model, any type that pydantic understands, a JSON schema as a mapping, or None.

        Raises:
            ConfigurationError: there is no JSON schema for it.
        """
        if value is None or isinstance(value, Schema):
            return value
        if isinstance(value, Mapping):
            return cls(str(value.get("title") or "reply"), jsontext.check(dict(value), "schema"))
        try:
            return cls(getattr(value, "__name__", "reply"), TypeAdapter(value).json_schema(), value)
        except Exception as error:
            raise ConfigurationError(f"there is no JSON schema for {value!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request in neutral values.

    ``messages`` are all that is to be sent, in order: instructions, summary, the repaired history and the prompt.
    ``params`` are the request's own (``temperature`` ...), passed through. ``file_roots`` are the folders under which
    a path that came from a payload may be read; ``trusted`` holds the ids of messages whose paths came from code in
    this process and may be read anywhere.
    """

    model: str
    messages: tuple[Message, ...]
    context_id: UUID
    mode: str
    stream: bool
    tools: tuple[Tool, ...] = ()
    schema: Schema | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    file_roots: tuple[Path, ...] = ()
    trusted: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One HTTP request. Timeouts are seconds: to connect, to the first byte, and between bytes."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    connect_timeout: float = 5.0
    first_byte_timeout: float = 600.0
    read_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a provider answered.

    ``choices`` are the messages' contents, one a choice, each a string, None or a list of parts; the last is the one
    that enters the context. ``finish_reason`` is the provider's word. ``usage`` is None when it said nothing.
    """

    choices: tuple[Any, ...]
    finish_reason: str | None = None
    usage: TokenUsage | None = None
    usage_raw: Any = None
    model: str | None = None
    response_id: str | None = None
    request_id: str | None = None


class Decoder(Protocol):
    """Reads the bytes of one response with status 200, plain or streamed, in pieces of any size."""

    def feed(self, data: bytes) -> Sequence[Delta]:
        """The deltas that ``data`` completes. Raises ProviderError when the stream carries an error."""
        ...

    def finish(self) -> Reply:
        """The reply, at the end of the bytes. Raises StreamInterruptedError when the end came too early."""
        ...

    def partial(self) -> Reply | None:
        """What of a reply came so far, for the turn of an error."""
        ...


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is known of the models of a provider."""

    provider: Provider

    def context_window(self, model: str | None = None) -> int | None:
        """Tokens that ``model`` (the provider's own when left out) can take, None when unknown."""
        return self.provider.context_window(model or self.provider.model)

    def price(self, model: str | None = None) -> Price | None:
        """Today's price of ``model`` (the provider's own when left out), None when unknown."""
        return self.provider.price(model or self.provider.model)


class Provider(ABC):
    """One account at one provider, speaking one wire format; shared by any number of contexts.

    ``name`` is what payloads and the ledger call it, ``model`` the model when none is named, ``modes`` the API forms
    that it can speak, the default first. ``retry_budget`` is how often a failed request is sent again when the
    context does not say.
    """

    name: str = "provider"
    modes: tuple[str, ...] = ("completions",)
    retry_budget: int = 0
    transport: Transport | None = None
    """None for HTTP; a provider that answers inside the process (as in tests) gives its own."""

    client: Any = None
    aclient: Any = None

    def __init__(self, model: str) -> None:
        self.model = model
        self._closers: list[Callable[[], None]] = []
        self._aclosers: list[Callable[[Provider], Awaitable[None]]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}:{self.model}>"

    @abstractmethod
    def build(self, request: ModelRequest) -> WireRequest:
        """The HTTP request for ``request``.

        Raises:
            ConfigurationError: something in it this provider cannot send, named.
            AuthenticationError: there is no key.
        """

    @abstractmethod
    def decoder(self, request: ModelRequest, headers: Mapping[str, str]) -> Decoder:
        """A reader for the response to ``request``; ``headers`` are the response's, names in lower case."""

    @abstractmethod
    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """The error that a response with this status and body means."""

    def context_window(self, model: str) -> int | None:
        """Tokens that ``model`` can take, None when unknown."""
        return None

    def price(self, model: str) -> Price | None:
        """Today's price of ``model``, None when unknown."""
        return None

    def close(self) -> None:
        """Close the connections that are kept for threads. A later request makes new ones; a given client stays."""
        for closer in self._closers:
            closer()

    async def aclose(self) -> None:
        """Close the connections that are kept on the running event loop, and those for threads."""
        for closer in self._aclosers:
            await closer(self)
        self.close()

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have ``closer`` called by ``close()``; for whoever keeps connections to this provider."""
        self._closers.append(closer)

    def on_aclose(self, closer: Callable[[Provider], Awaitable[None]]) -> None:
        """Have ``closer`` called by ``aclose()``, with this provider."""
        self._aclosers.append(closer)
