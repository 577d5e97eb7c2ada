"""HTTP for threads.

A blocked thread is freed at once by an interrupt: the socket is shut down under it. A connection that is being made
has no socket yet, so it is made in a helper thread, which an interrupt leaves behind to end by itself. Each connection
of ours has a client to itself, so that the socket of a request is known before its response is. Of a client of the
caller's own it is known only then, so that waiting for its response is always left to a helper thread.
"""

from __future__ import annotations

import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from typing import Any, Protocol

from ...errors import Interrupted
from ...providers.base import Provider, WireRequest
from .seam import IDLE_CONNECTIONS, KEPT_OPEN, Watch, before, build, head_of, is_one_of, ssl_context, within

__all__ = ["SYNC_HTTP", "Cancel", "SyncBody", "SyncHTTP"]


class Cancel(Protocol):
    """The switch that ends a turn from another thread."""

    @property
    def is_set(self) -> bool: ...
    def on_interrupt(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class _Line:
    """One connection of ours, with a client to itself; used by one request at a time."""

    def __init__(self) -> None:
        import httpx

        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None)
        self.client = httpx.Client(verify=ssl_context(), limits=limits)
        self.socket: socket.socket | None = None
        self.idle_since = 0.0
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

    @property
    def is_open(self) -> bool:
        """Whether the connection can take a request: a closed one is readable, and an old one is about to close."""
        if self.socket is None or time.monotonic() - self.idle_since > KEPT_OPEN:
            return False
        try:
            return not _is_readable(self.socket)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self.client.close()


def _is_readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


class _Lines:
    """The idle connections to one provider."""

    def __init__(self) -> None:
        self.idle: list[_Line] = []

    def kept(self) -> _Line | None:
        """An open connection, the one that was used last; None when there is none."""
        while True:
            try:
                line = self.idle.pop()
            except IndexError:
                return None
            if line.is_open:
                return line
            line.close()

    def put(self, line: _Line) -> None:
        line.patience, line.idle_since = None, time.monotonic()
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
    """One request on its way, until its response has been read."""

    def __init__(self, provider: Provider, request: WireRequest, lines: _Lines | None) -> None:
        self.provider, self.request, self.lines = provider, request, lines
        self.line: _Line | None = None
        self.socket: socket.socket | None = None  # of a client that is not ours
        self.watch = Watch()
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.abandoned = False
        self.response: Any = None
        self.error: BaseException | None = None

    def wait(self, cancel: Cancel) -> SyncBody:
        """Send the request and wait for the head of the response."""
        line = self.lines.kept() if self.lines is not None else None
        if line is None or not self._here(line, cancel):
            self._apart(cancel)
        if isinstance(self.error, Exception):
            mapped = before(self.error, self.provider, self.request)
            if mapped is not self.error:
                raise mapped from self.error
        if self.error is not None:
            raise self.error
        return SyncBody(self, cancel)

    def _here(self, line: _Line, cancel: Cancel) -> bool:
        """Send on an open connection, in this thread: its socket can be shut. False: it was stale after all."""
        self.line = line
        remove = cancel.on_interrupt(self.cut)
        try:
            self.response = self._send(line.client)
        except BaseException as error:
            self.finish(reusable=False)
            if cancel.is_set:
                raise Interrupted() from None
            if self.watch.is_stale(error):
                return False
            self.error = error
        finally:
            remove()
        return True

    def _apart(self, cancel: Cancel) -> None:
        """Send from a helper thread: a connection that is being made cannot be cut, only left behind."""
        threading.Thread(target=copy_context().run, args=(self._run,), name="ctxstore-send", daemon=True).start()
        remove = cancel.on_interrupt(self.done.set)
        try:
            self.done.wait()
            if cancel.is_set:
                raise Interrupted()
        except BaseException:
            self._abandon()
            raise
        finally:
            remove()

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
            if self.lines is not None:
                self.line = _Line()
            response = self._send_again(self.line.client if self.line is not None else self.provider.client)
        except BaseException as caught:
            error = caught
        with self.lock:
            self.response, self.error = response, error
            abandoned = self.abandoned
        if error is not None or abandoned:
            self.finish(reusable=False)
        self.done.set()

    def _send_again(self, client: Any) -> Any:
        """Send, anew for each stale connection of a pool that is not ours: it drops the ones that failed."""
        for _ in range(IDLE_CONNECTIONS):
            try:
                return self._send(client)
            except Exception as error:
                if self.abandoned or not self.watch.is_stale(error):
                    raise
        return self._send(client)

    def _send(self, client: Any) -> Any:
        self.watch = Watch()
        sent = build(client, self.request, self._trace)
        response = client.send(sent, stream=True)
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
                if not is_one_of(error, "HTTPError", "OSError"):
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
        self.response = head_of(sending.response)
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
            mapped = within(error, self._sending.provider, self._began, self._sending.request)
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


SYNC_HTTP = SyncHTTP()
