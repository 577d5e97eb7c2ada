"""What both worlds share: how a request is made, and what the library's errors mean."""

from __future__ import annotations

import time
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ...effects import Response
from ...errors import ConfigurationError, ConnectionFailedError, StreamInterruptedError
from ...providers.base import Provider, WireRequest

__all__ = [
    "IDLE_CONNECTIONS",
    "KEPT_OPEN",
    "Watch",
    "before",
    "build",
    "head_of",
    "is_one_of",
    "ssl_context",
    "within",
]

KEPT_OPEN = 60.0
"""Seconds that an idle connection is kept; providers close theirs after 5 to 600."""

IDLE_CONNECTIONS = 8
"""Idle connections kept for each provider; more are closed when they become idle."""

STALE_WITHIN = 2.0
"""A kept connection that the server had closed fails within a round trip. What fails later was being worked on."""


@cache
def ssl_context() -> Any:
    import httpx

    return httpx.create_ssl_context()  # reading the system's certificates takes longer than all the rest


def _timeouts(request: WireRequest) -> dict[str, float]:
    return {
        "connect": request.connect_timeout,
        "read": request.first_byte_timeout,
        "write": request.first_byte_timeout,
        "pool": request.connect_timeout,
    }


def build(client: Any, request: WireRequest, trace: Any) -> Any:
    return client.build_request(
        request.method,
        request.url,
        headers=dict(request.headers),
        content=request.body,
        extensions={"timeout": _timeouts(request), "trace": trace},
    )


def head_of(response: Any) -> Response:
    return Response(response.status_code, {k.lower(): v for k, v in response.headers.items()})


def is_one_of(error: BaseException, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


class Watch:
    """What is seen of one attempt, by the library's own trace."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.sent = False
        self.connected = False

    def see(self, name: str) -> bool:
        """Note an event; True when a connection was made."""
        self.sent = True
        made = name.endswith((".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete"))
        self.connected = self.connected or made
        return made

    def is_stale(self, error: BaseException) -> bool:
        """Whether ``error`` only says that the server had closed a connection that was kept open."""
        return (
            self.sent
            and not self.connected
            and is_one_of(error, "RemoteProtocolError", "ReadError", "WriteError")
            and time.monotonic() - self.started < STALE_WITHIN
        )


def before(error: Exception, provider: Provider, request: WireRequest) -> Exception:
    """What an error before the response means."""
    at = _where(request.url)
    if is_one_of(error, "ConnectTimeout", "PoolTimeout"):
        text = f"no connection to {at} within {request.connect_timeout:g} s"
    elif is_one_of(error, "TimeoutException"):
        text = f"{at} did not begin to answer within {request.first_byte_timeout:g} s"
    elif is_one_of(error, "UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "UnicodeError"):
        return ConfigurationError(f"{provider.name}: the request to {at} cannot be sent: {error}")
    elif is_one_of(error, "ConnectError", "ProxyError"):
        text = f"no connection to {at}: {error}"
    elif is_one_of(error, "HTTPError", "OSError"):
        text = f"the connection to {at} broke before a response: {error}"
    elif isinstance(error, RuntimeError) and "closed" in str(error):
        return ConfigurationError(f"{provider.name}: the client that was given is closed")
    else:
        return error
    return ConnectionFailedError(f"{provider.name}: {text}")


def within(error: Exception, provider: Provider, began: bool, request: WireRequest) -> Exception:
    """What an error in the middle of a body means."""
    if is_one_of(error, "TimeoutException", "TimeoutError"):
        seconds = request.read_timeout if began else request.first_byte_timeout
        text = f"nothing came for {seconds:g} s in the middle of the reply"
    elif is_one_of(error, "DecodingError"):
        text = f"the reply's content encoding is broken: {error}"
    elif is_one_of(error, "HTTPError", "StreamError", "OSError"):
        text = f"the connection broke in the middle of the reply: {error}"
    else:
        return error
    return StreamInterruptedError(f"{provider.name}: {text}")


def _where(url: str) -> str:
    parts = urlsplit(url)  # the user before an @ and what follows a question mark may hold a key
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
