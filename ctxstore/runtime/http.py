"""HTTP, sync and async: the only module that knows the client library.

Clients are made when first needed, kept with their provider, and closed with it; a client of the caller's own is used
as it is, ``httpx`` or ``httpx2`` alike, and left open. Errors of the library are told apart by their class names, which
both share, and never leave this module bare.

A blocked thread is freed at once by an interrupt. Sending waits in a helper thread, since a connection that is being
made has no socket yet that could be shut; reading shuts down the socket under the read. The thread that was left
behind ends with its socket. Each connection of ours has a client to itself, so that the socket of a request is known
from its first byte on.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextvars import copy_context
from functools import cache
from typing import Any, Protocol

from ..effects import Response
from ..errors import ConfigurationError, ConnectionFailedError, Interrupted, ProviderError, StreamInterruptedError
from ..providers.base import Provider, WireRequest

__all__ = ["ASYNC_HTTP", "SYNC_HTTP", "AsyncBody", "AsyncHTTP", "Cancel", "SyncBody", "SyncHTTP"]

KEPT_OPEN = 60.0
"""Seconds that an idle connection is kept; providers close theirs after 5 to 600."""

IDLE_CONNECTIONS = 8
"""Idle connections kept for each provider; more are closed when they become idle."""

STALE_WITHIN = 2.0
"""A kept connection that the server had closed fails within a round trip. What fails later was being worked on."""


class Cancel(Protocol):
    """The switch that ends a turn from another thread."""

    @property
    def is_set(self) -> bool: ...
    def on_interrupt(self, callback: Callable[[], None]) -> Callable[[], None]: ...


# -- what both worlds share


@cache
def _ssl_context() -> Any:
    import httpx

    return httpx.create_ssl_context()  # reading the system's certificates takes longer than all the rest


def _timeouts(request: WireRequest) -> dict[str, float]:
    return {
        "connect": request.connect_timeout,
        "read": request.first_byte_timeout,
        "write": request.first_byte_timeout,
        "pool": request.connect_timeout,
    }


def _build(client: Any, request: WireRequest, trace: Any) -> Any:
    return client.build_request(
        request.method,
        request.url,
        headers=dict(request.headers),
        content=request.body,
        extensions={"timeout": _timeouts(request), "trace": trace},
    )


def _head(response: Any) -> Response:
    return Response(response.status_code, {k.lower(): v for k, v in response.headers.items()})


def _is(error: BaseException, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


class _Watch:
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
            and _is(error, "RemoteProtocolError", "ReadError", "WriteError")
            and time.monotonic() - self.started < STALE_WITHIN
        )


def _before(error: Exception, provider: Provider, request: WireRequest) -> Exception:
    """What an error before the response means."""
    at = _where(request.url)
    if _is(error, "ConnectTimeout", "PoolTimeout"):
        text = f"no connection to {at} within {request.connect_timeout:g} s"
    elif _is(error, "TimeoutException"):
        text = f"{at} did not begin to answer within {request.first_byte_timeout:g} s"
    elif _is(error, "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"):
        return ConfigurationError(f"{provider.name}: the request to {at} cannot be sent: {error}")
    elif _is(error, "ConnectError", "ProxyError"):
        text = f"no connection to {at}: {error}"
    elif _is(error, "HTTPError", "OSError"):
        text = f"the connection to {at} broke before a response: {error}"
    elif isinstance(error, RuntimeError) and "closed" in str(error):
        return ConfigurationError(f"{provider.name}: the client that was given is closed")
    else:
        return error
    return ConnectionFailedError(f"{provider.name}: {text}")


def _within(error: Exception, provider: Provider, began: bool, request: WireRequest) -> Exception:
    """What an error in the middle of a body means."""
    if _is(error, "TimeoutException", "TimeoutError"):
        seconds = request.read_timeout if began else request.first_byte_timeout
        text = f"nothing came for {seconds:g} s in the middle of the reply"
    elif _is(error, "DecodingError"):
        text = f"the reply's content encoding is broken: {error}"
    elif _is(error, "HTTPError", "StreamError", "OSError"):
        text = f"the connection broke in the middle of the reply: {error}"
    else:
        return error
    return StreamInterruptedError(f"{provider.name}: {text}")


def _where(url: str) -> str:
    return url.partition("?")[0]  # what follows may hold a key


# -- threads


class _Line:
    """One connection of ours, with a client to itself; used by one request at a time."""

    def __init__(self) -> None:
        import httpx

        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT_OPEN)
        self.client = httpx.Client(verify=_ssl_context(), limits=limits)
        self.socket: socket.socket | None = None
        self.patience: float | None = None
        """Seconds that a read may wait; None: what the library was told when the request began."""

    def take(self, stream: Any) -> None:
        """A connection was made (or wrapped in TLS): note its socket, and have its reads wait as long as we say.

        The library fixes one timeout for a whole body; ours differ for its first byte and the rest.
        """
        self.socket = stream.get_extra_info("socket")
        read = stream.read

        def patient(max_bytes: int, timeout: float | None = None) -> bytes:
            data: bytes = read(max_bytes, timeout if self.patience is None else self.patience)
            return data

        stream.read = patient

    def close(self) -> None:
        self.client.close()


class _Lines:
    """The idle connections to one provider."""

    def __init__(self) -> None:
        self.idle: list[_Line] = []

    def get(self, fresh: bool = False) -> _Line:
        try:
            return _Line() if fresh else self.idle.pop()
        except IndexError:
            return _Line()

    def put(self, line: _Line) -> None:
        line.patience = None
        if len(self.idle) < IDLE_CONNECTIONS:
            self.idle.append(line)
        else:
            line.close()

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


class SyncHTTP:
    """Opens requests for the threads' driver."""

    def __init__(self) -> None:
        self._lines: weakref.WeakKeyDictionary[Provider, _Lines] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def open(self, provider: Provider, request: WireRequest, cancel: Cancel) -> SyncBody:
        """Send ``request`` and wait for the head of its response.

        Raises:
            ConnectionFailedError: there was none.
            Interrupted: ``cancel`` was thrown meanwhile.
        """
        sending = _Sending(provider, request, None if provider.client is not None else self._of(provider))
        return sending.wait(cancel)

    def close(self, provider: Provider) -> None:
        """Close the idle connections to ``provider``; a later request makes new ones."""
        lines = self._lines.get(provider)
        if lines is not None:
            lines.close()

    def _of(self, provider: Provider) -> _Lines:
        with self._lock:
            lines = self._lines.get(provider)
            if lines is None:
                lines = self._lines[provider] = _Lines()
                weakref.finalize(provider, lines.close)  # at exit too
                provider.on_close(lines.close)
            return lines


class _Sending:
    """One request on its way: sent in a helper thread, awaited in the caller's."""

    def __init__(self, provider: Provider, request: WireRequest, lines: _Lines | None) -> None:
        self.provider, self.request, self.lines = provider, request, lines
        self.line: _Line | None = None
        self.socket: socket.socket | None = None
        self.watch = _Watch()
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.abandoned = False
        self.response: Any = None
        self.error: BaseException | None = None

    def wait(self, cancel: Cancel) -> SyncBody:
        threading.Thread(
            target=copy_context().run, args=(self._run,), name="ctxstore-send", daemon=True
        ).start()
        remove = cancel.on_interrupt(self._stop)
        try:
            self.done.wait()
            if cancel.is_set:
                raise Interrupted()
        except BaseException:
            self._abandon()
            raise
        finally:
            remove()
        if self.error is not None:
            assert isinstance(self.error, Exception)
            mapped = _before(self.error, self.provider, self.request)
            if mapped is self.error:
                raise mapped
            raise mapped from self.error
        return SyncBody(self, cancel)

    def _stop(self) -> None:
        self.done.set()

    def _abandon(self) -> None:
        """Nobody waits any more: cut what is under way; the helper thread puts away what is left of it."""
        with self.lock:
            self.abandoned = True
            finished = self.response is not None
        if finished:
            self.finish(reusable=False)
        else:
            self.cut()

    def _run(self) -> None:
        response: Any = None
        error: BaseException | None = None
        try:
            response = self._send()
        except BaseException as caught:
            error = caught
        with self.lock:
            self.response, self.error = response, error
            abandoned = self.abandoned
        if error is not None or abandoned:
            self.finish(reusable=False)
        self.done.set()

    def _send(self) -> Any:
        retries = 0
        while True:
            self.watch = _Watch()
            if self.lines is not None:
                self.line = self.lines.get(fresh=retries > 0)
            client = self.line.client if self.line is not None else self.provider.client
            sent = _build(client, self.request, self._trace)
            try:
                response = client.send(sent, stream=True)
            except Exception as error:
                if self.abandoned or retries > IDLE_CONNECTIONS or not self.watch.is_stale(error):
                    raise
                if self.line is not None:
                    self.line.close()
                retries += 1
                continue
            if self.line is not None:
                self.line.patience = self.request.first_byte_timeout
            else:
                sent.extensions["timeout"]["read"] = self.request.read_timeout
                stream = response.extensions.get("network_stream")
                self.socket = stream.get_extra_info("socket") if stream is not None else None
            return response

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        if self.watch.see(name):
            stream = info["return_value"]
            if self.line is not None:
                self.line.take(stream)
            else:
                self.socket = stream.get_extra_info("socket")
            if self.abandoned:
                _shut(stream.get_extra_info("socket"))

    def began(self) -> None:
        """The first byte of the body came."""
        if self.line is not None:
            self.line.patience = self.request.read_timeout

    def cut(self) -> None:
        """Wake whoever is blocked on the connection, with an error."""
        line = self.line
        _shut(line.socket if line is not None else self.socket)

    def finish(self, reusable: bool) -> None:
        """Put away the response and the connection."""
        response, line = self.response, self.line
        self.line = None
        if response is not None:
            try:
                response.close()
            except Exception as error:
                if not _is(error, "HTTPError", "OSError"):
                    raise
        if line is not None:
            if reusable and self.lines is not None:
                self.lines.put(line)
            else:
                line.close()


def _shut(sock: socket.socket | None) -> None:
    """Shut a socket down under whoever is blocked on it; closing it would not wake them."""
    if sock is not None:
        try:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not the TLS layer's own, which the reader is inside of
        except OSError:
            pass  # it is closed already


class SyncBody:
    """A response whose body is read in the caller's thread."""

    def __init__(self, sending: _Sending, cancel: Cancel) -> None:
        self.response = _head(sending.response)
        self._sending = sending
        self._cancel = cancel
        self._pieces: Iterator[bytes] = sending.response.iter_bytes()
        self._began = False
        self._ended = False
        self._closed = False

    def read(self) -> bytes:
        """The next piece, ``b""`` at the end.

        Raises:
            StreamInterruptedError: the body broke off.
            Interrupted: the switch was thrown.
        """
        remove = self._cancel.on_interrupt(self._sending.cut)
        try:
            for data in self._pieces:
                if data:
                    if not self._began:
                        self._began = True
                        self._sending.began()
                    return data
            if self._cancel.is_set:
                raise Interrupted()
            self._ended = True
            return b""
        except Exception as error:
            if self._cancel.is_set:
                raise Interrupted() from None
            mapped = _within(error, self._sending.provider, self._began, self._sending.request)
            if mapped is error:
                raise
            raise mapped from error
        finally:
            remove()

    def close(self) -> None:
        """Let the connection go: kept when the body was read to its end, closed otherwise."""
        if not self._closed:
            self._closed = True
            self._sending.finish(reusable=self._ended and not self._cancel.is_set)


# -- asyncio


class _Loop:
    """The client of one provider on one event loop.

    It is held by an async generator, which the loop closes when it shuts down: so ``asyncio.run`` leaves no open
    connection behind, whether or not anyone called ``aclose()``.
    """

    def __init__(self) -> None:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=KEPT_OPEN)
        self.client = httpx.AsyncClient(verify=_ssl_context(), limits=limits)
        self.holder = _hold(self.client)


async def _hold(client: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.aclose()


def _atrace(watch: _Watch) -> Any:
    async def trace(name: str, info: Mapping[str, Any]) -> None:
        watch.see(name)

    return trace


class AsyncHTTP:
    """Opens requests for the asyncio driver."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[Provider, dict[Any, _Loop]] = weakref.WeakKeyDictionary()

    async def open(self, provider: Provider, request: WireRequest) -> AsyncBody:
        """Send ``request`` and wait for the head of its response. Cancel the wait to end it.

        Raises:
            ConnectionFailedError: there was none.
        """
        client = provider.aclient if provider.aclient is not None else (await self._of(provider)).client
        retries = 0
        while True:
            watch = _Watch()
            sent = _build(client, request, _atrace(watch))
            try:
                response = await client.send(sent, stream=True)
            except Exception as error:
                if retries <= IDLE_CONNECTIONS and watch.is_stale(error):
                    retries += 1  # the pool drops a connection that failed: at last it must make one
                    continue
                mapped = _before(error, provider, request)
                if mapped is error:
                    raise
                raise mapped from error
            sent.extensions["timeout"]["read"] = None  # the body's reads are timed here
            return AsyncBody(provider, request, response)

    async def close(self, provider: Provider) -> None:
        """Close the connections to ``provider`` on the running loop; a later request makes new ones."""
        loop = self._loops.get(provider, {}).pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.holder.aclose()

    async def _of(self, provider: Provider) -> _Loop:
        loops = self._loops.get(provider)
        if loops is None:
            loops = self._loops[provider] = {}
            provider.on_aclose(self.close)
        running = asyncio.get_running_loop()
        found = loops.get(running)
        if found is None:
            for over in [loop for loop in list(loops) if loop.is_closed()]:
                loops.pop(over, None)
            found = loops[running] = _Loop()
            await anext(found.holder)  # from here on the loop knows it
        return found


class AsyncBody:
    """A response whose body is awaited piece by piece."""

    def __init__(self, provider: Provider, request: WireRequest, response: Any) -> None:
        self.response = _head(response)
        self._provider, self._request, self._response = provider, request, response
        self._pieces = response.aiter_bytes()
        self._began = False

    async def read(self) -> bytes:
        """The next piece, ``b""`` at the end.

        Raises:
            StreamInterruptedError: the body broke off.
        """
        patience = self._request.read_timeout if self._began else self._request.first_byte_timeout
        try:
            async with asyncio.timeout(patience):
                async for data in self._pieces:
                    if data:
                        self._began = True
                        return bytes(data)
            return b""
        except Exception as error:
            mapped = _within(error, self._provider, self._began, self._request)
            if mapped is error:
                raise
            raise mapped from error

    async def close(self) -> None:
        """Let the connection go: kept when the body was read to its end, closed otherwise."""
        try:
            await self._response.aclose()
        except Exception as error:
            if not _is(error, "HTTPError", "OSError"):
                raise


SYNC_HTTP = SyncHTTP()
ASYNC_HTTP = AsyncHTTP()
