"""A server on the loopback address that answers what a test tells it to, well or badly, over real HTTP."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One response. ``pieces`` are sent one chunk each.

    ``delay`` is the wait before its head, ``stall`` the wait after the pieces, in seconds; ``cut`` breaks the
    connection off there instead of ending the body; ``hang_up`` closes the connection after a good response, without
    having said so.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes] = ()
    content_type: str | None = "application/json"
    delay: float = 0.0
    between: float = 0.0
    stall: float = 0.0
    cut: bool = False
    hang_up: bool = False


def reply(text: str = "Hello!", **rest: Any) -> Answer:
    """A plain reply of Chat Completions."""
    body = {
        "id": "chatcmpl-1",
        "model": "test-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    return Answer(pieces=[json.dumps(body).encode()], **rest)


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **rest: Any) -> bytes:
    """One event of a stream."""
    body = {"id": "chatcmpl-1", "model": "test-model", "choices": [{"index": 0, "delta": delta or {}}], **rest}
    if finish is not None:
        body["choices"][0]["finish_reason"] = finish  # type: ignore[index]
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def stream(*texts: str, end: bool = True, **rest: Any) -> Answer:
    """A streamed reply, one chunk a text."""
    pieces = [chunk({"content": text}) for text in texts]
    if end:
        pieces += [chunk({}, "stop"), b"data: [DONE]\n\n"]
    return Answer(pieces=pieces, content_type="text/event-stream", **rest)


def failure(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **error: Any) -> Answer:
    """An error in OpenAI's form."""
    body = {"error": {"message": message, **error}}
    return Answer(status, headers or {}, [json.dumps(body).encode()])


@dataclass(frozen=True)
class Seen:
    """A request as the server saw it."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer] = []
        self.last: Answer | None = None
        self.seen: list[Seen] = []
        self.open: set[socket.socket] = set()
        self.ended = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away is what many tests are about


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _wait(self, seconds: float) -> bool:
        """Wait; True when the client went away meanwhile, or the test ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.server.ended.wait(min(left, 0.005)):
                return True
            if select.select([self.connection], [], [], 0)[0]:
                self.close_connection = True
                return True
        return False

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {k.lower(): v for k, v in self.headers.items()}
        server.seen.append(Seen(self.path, headers, body, time.monotonic(), self.client_address[1]))
        if server.answers:
            server.last = server.answers.pop(0)
        answer = server.last
        assert answer is not None, "the test gave no answer"
        if self._wait(answer.delay):
            return
        if answer.hang_up and not answer.pieces:
            self.close_connection = True
            return
        self.send_response(answer.status)
        if answer.content_type is not None:
            self.send_header("content-type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for index, piece in enumerate(answer.pieces):
            if index and self._wait(answer.between):
                return
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()
        if self._wait(answer.stall):
            return
        if answer.cut:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
        if answer.hang_up:
            self.close_connection = True


class WireServer:
    """The server; ``answer(...)`` queues responses, of which the last is given again and again."""

    def __init__(self) -> None:
        self._server = _Server()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def seen(self) -> list[Seen]:
        """The requests so far."""
        return self._server.seen

    def wrap(self, context: ssl.SSLContext) -> None:
        """Speak TLS from here on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def answer(self, *answers: Answer) -> None:
        self._server.answers.extend(answers)

    def wait_for(self, count: int, seconds: float = 5.0) -> None:
        """Wait until ``count`` requests have come in."""
        end = time.monotonic() + seconds
        while len(self.seen) < count:
            assert time.monotonic() < end, f"{len(self.seen)} requests came, not {count}"
            time.sleep(0.002)

    def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Wait until no client holds a connection."""
        end = time.monotonic() + seconds
        while self._server.open:
            assert time.monotonic() < end, "a client still holds a connection"
            time.sleep(0.002)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._server.open)

    def close(self) -> None:
        self._server.ended.set()
        for sock in list(self._server.open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
