"""What a turn asks of the world.

A flow is a generator that yields effects and returns its result. The driver (``runtime/sync.py``, ``runtime/aio.py``)
carries each out and sends back its answer:

==========  ====================================  ========================================================
effect      asks for                              answered by
==========  ====================================  ========================================================
``Open``    a request to be sent                  a ``Response``: status and headers, the body unread
``Read``    the next piece of the body            ``bytes``, ``b""`` at the end
``Invoke``  tool calls to be run                  a list of ``ToolResult``, in the order of the calls
``Emit``    a delta to be shown                   ``None``
``Keep``    a step of the keeper (save ...)       ``None``
``Sleep``   a wait in seconds                     ``None``
==========  ====================================  ========================================================

What goes wrong is thrown in at the ``yield``: only subclasses of ``Exception``. An interrupt, a cancellation or a
reader that stops early closes the flow instead; so a flow never yields in ``finally``, and owns nothing that must be
closed: the driver does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from .messages import Delta, ToolCall, ToolResult
from .providers.base import Provider, WireRequest
from .tools import Tool

if TYPE_CHECKING:
    from .keeper import Step

__all__ = [
    "Body",
    "BoundCall",
    "Effect",
    "Emit",
    "Flow",
    "Invoke",
    "Keep",
    "Open",
    "Read",
    "Response",
    "Sleep",
    "Transport",
    "emit",
    "invoke",
    "keep",
    "open_",
    "read",
    "sleep",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Response:
    """The head of a response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]


class Body(Protocol):
    """A response whose body is read piece by piece; inside the process, for a provider's own ``transport``."""

    response: Response

    def read(self) -> bytes: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """Answers requests inside the process, without waiting."""

    def open(self, request: WireRequest) -> Body: ...


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call with the tool that answers it."""

    call: ToolCall
    tool: Tool


@dataclass(frozen=True, slots=True)
class Open:
    provider: Provider
    request: WireRequest


@dataclass(frozen=True, slots=True)
class Read:
    pass


@dataclass(frozen=True, slots=True)
class Invoke:
    calls: Sequence[BoundCall]
    strategy: Literal["sequential", "thread"]


@dataclass(frozen=True, slots=True)
class Emit:
    delta: Delta


@dataclass(frozen=True, slots=True)
class Keep:
    step: Step


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Effect: TypeAlias = Open | Read | Invoke | Emit | Keep | Sleep
Flow: TypeAlias = Generator[Effect, Any, T]


def open_(provider: Provider, request: WireRequest) -> Flow[Response]:
    """Send ``request``; raises ConnectionFailedError when there is no response."""
    response: Response = yield Open(provider, request)
    return response


def read() -> Flow[bytes]:
    """The next piece of the body of the response opened last, ``b""`` at its end."""
    data: bytes = yield Read()
    return data


def invoke(
    calls: Sequence[BoundCall], strategy: Literal["sequential", "thread"] = "sequential"
) -> Flow[list[ToolResult]]:
    """Run the tools; an exception of one becomes its result."""
    results: list[ToolResult] = yield Invoke(calls, strategy)
    return results


def emit(delta: Delta) -> Flow[None]:
    """Show ``delta`` to whoever streams."""
    yield Emit(delta)


def keep(step: Step) -> Flow[None]:
    """Have the keeper carry out ``step``; raises what the store raises."""
    yield Keep(step)


def sleep(seconds: float) -> Flow[None]:
    """Wait; an interrupt ends the wait."""
    yield Sleep(seconds)
