"""Talking in the terminal, against a server on the loopback address that speaks Chat Completions."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from ctxstore import Store
from ctxstore.testing import ScriptedProvider

from .conftest import Done, Run


class Model(ThreadingHTTPServer):
    """Answers with ``replies`` in order; one that ends with ``STALL`` stops there until the test is over."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[str] = []
        self.requests: list[Any] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        reply = self.server.replies.pop(0)
        if reply == "401":
            content = b'{"error": {"message": "no such key", "code": "invalid_api_key"}}'
            self.send_response(401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in reply.removesuffix("STALL").split(" "):
            self._send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": word + " "}}]})
        if reply.endswith("STALL"):
            self.server.over.wait(30)
            return
        self._send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._send({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, chunk: dict[str, Any]) -> None:
        chunk |= {"id": "c", "object": "chat.completion.chunk", "model": "tiny"}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def upgraded(run: Run) -> str:
    assert run("db", "upgrade", "--db", "app.db").code == 0
    return "app.db"


def chat(run: Run, monkeypatch: pytest.MonkeyPatch, model: Model, lines: str, *arguments: object) -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return run("chat", "--model", "ollama:tiny", "--base-url", model.url, "--db", "app.db", *arguments)


def test_a_conversation_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch, model: Model, upgraded: str) -> None:
    model.replies += ["Noted: blue.", "Blue, \x1b[31mof course."]
    first = chat(run, monkeypatch, model, "My colour is blue.\n", "--owner", "me", "--system", "Be brief.")
    assert first.code == 0
    assert "assistant │ Noted: blue." in first.out
    (row,) = run("list", "--db", upgraded, "--json").json
    second = chat(run, monkeypatch, model, "Which colour?\n/usage\n/nonsense\n", "--id", row["id"])
    assert r"Blue, \x1b[31mof course." in second.out
    assert "60 in, 10 out, 70 tokens" in second.out
    assert "no such command: /nonsense" in second.out
    assert [m["content"] for m in model.requests[1]["messages"]] == [
        "Be brief.",
        "My colour is blue.",
        "Noted: blue. ",
        "Which colour?",
    ]
    assert run("list", "--db", upgraded, "--json", "--owner", "me").json[0]["message_count"] == 5


def test_what_fails(run: Run, monkeypatch: pytest.MonkeyPatch, model: Model, upgraded: str) -> None:
    model.replies += ["401"]
    refused = chat(run, monkeypatch, model, "Hi\n")
    assert refused.code == 1
    assert "no such key" in refused.err
    assert refused.err.count("\n") == 1
    assert run("usage", "--db", upgraded, "--json").json[0]["errors"] == 1
    for arguments, says in (
        (("--model", "nobody:x", "--db", upgraded), "nobody"),
        (("--model", "openai:gpt-5-mini", "--db", upgraded), "OPENAI_API_KEY"),
        (("--model", "ollama:tiny", "--db", "missing.db"), "missing.db"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
        done = run("chat", *arguments)
        assert done.code == 1, arguments
        assert says in done.err
    assert not Path("missing.db").exists()
    assert run("list", "--db", upgraded, "--json").json == [], "what was never talked in is no conversation"


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100"}
        self.process = Popen(
            [sys.executable, "-W", "error", "-m", "ctxstore", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=_controlling,
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, text: str, seconds: float = 20) -> None:
        """Wait for ``text``, which is then behind us."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come; this did: {self.shown!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.shown += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the terminal is closed
                    assert text in self.shown, self.shown
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


def _controlling() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_ctrl_c_ends_the_reply_and_not_the_program(tmp_path: Path, model: Model) -> None:
    with Store(f"sqlite:///{tmp_path}/app.db") as store:
        store.upgrade()
    model.replies += ["Once upon a timeSTALL", "Short."]
    terminal = Terminal(
        tmp_path, "chat", "--model", "ollama:tiny", "--base-url", model.url, "--db", "app.db", "--owner", "me"
    )
    try:
        terminal.until("Ctrl-D")
        terminal.type("Tell me a story\n")
        terminal.until("upon")
        terminal.type("\x03")
        terminal.until("interrupted")
        terminal.until(">")
        terminal.type("\x03")
        terminal.until("/quit ends")
        terminal.type("Say it in a word\n")
        terminal.until("Short.")
        terminal.until("30 in, 5 out")
        terminal.type("\x04")
        terminal.until("go on with: ctxstore chat")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()
    with Store(f"sqlite:///{tmp_path}/app.db") as store:
        (row,) = store.list(owner="me")
        ctx = store.load(row.id, ScriptedProvider())
        assert [m.text for m in ctx.messages] == ["Say it in a word", "Short. "]
        (waiting,) = store.in_flight(row.id)
        assert [m.text for m in waiting.messages] == ["Tell me a story"]
