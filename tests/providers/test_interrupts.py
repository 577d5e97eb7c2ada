"""Ending a request from outside: whoever waits is free at once, and the server sees the connection go."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from ctxstore import Context, errors
from ctxstore.providers import OpenAI

from .wire_server import Answer, WireServer, chunk, reply

SOON = 0.25
"""Seconds within which an interrupt has to have freed whoever waits; it takes about one millisecond."""


def llm(server: WireServer | str, **options: Any) -> OpenAI:
    url = server if isinstance(server, str) else server.url
    return OpenAI("sk-test-1234", "test-model", url, **options)


def sse(*pieces: bytes, **rest: Any) -> Answer:
    return Answer(pieces=pieces, content_type="text/event-stream", **rest)


class _Deaf:
    """A server that accepts no connection: its backlog is full."""

    def __init__(self) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(self.listener.getsockname())
            self.fillers.append(filler)

    def close(self) -> None:
        for sock in (*self.fillers, self.listener):
            sock.close()


def interrupted(ctx: Context, talk: Callable[[], Any], ready: Callable[[], None]) -> float:
    """Interrupt ``talk()`` from another thread once ``ready`` returns; gives the seconds that it took to return."""
    thrown: list[float] = []

    def throw() -> None:
        ready()
        time.sleep(0.05)
        thrown.append(time.monotonic())
        ctx.interrupt()

    thread = threading.Thread(target=throw)
    thread.start()
    with pytest.raises(errors.Interrupted):
        talk()
    took = time.monotonic() - thrown[0]
    thread.join()
    return took


def no_thread_stays() -> None:
    """The threads that were left behind end by themselves, soon."""
    end = time.monotonic() + 2
    while [t for t in threading.enumerate() if t.name.startswith("ctxstore")]:
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("client", ["ours", "httpx", "httpx2"])
@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize("when", ["head", "first byte", "middle"])
def test_an_interrupt_frees_a_thread_at_once(server: WireServer, client: str, kept: bool, when: str) -> None:
    own = {"ours": None, "httpx": httpx.Client, "httpx2": httpx2.Client}[client]
    given = own() if own is not None else None
    provider = llm(server, client=given)
    ctx = Context(provider)
    if kept:
        server.answer(reply())
        ctx.talk("Hi")
    before, messages = len(server.seen), list(ctx.messages)
    pieces = [chunk({"content": "Hello"})] if when == "middle" else []
    server.answer(sse(*pieces, **{"delay" if when == "head" else "stall": 30.0}))
    took = interrupted(ctx, lambda: ctx.talk("Go on", stream=True), lambda: server.wait_for(before + 1))
    assert took < SOON
    assert list(ctx.messages) == messages
    server.answer(reply("still here"))
    assert ctx.talk("Again").text == "still here"
    provider.close()
    if given is not None:
        given.close()


def test_an_interrupted_request_is_cut(server: WireServer) -> None:
    """The server sees the connection go, so that it stops generating what nobody reads."""
    server.answer(reply(), sse(stall=30))
    provider = llm(server)
    ctx = Context(provider)
    ctx.talk("Hi")
    for _ in range(2):
        interrupted(ctx, lambda: ctx.talk("Go on", stream=True), lambda: None)
    server.wait_until_idle()
    no_thread_stays()


def test_an_interrupt_while_connecting() -> None:
    deaf = _Deaf()
    ctx = Context(llm(deaf.url, connect_timeout=20))
    assert interrupted(ctx, lambda: ctx.talk("Hi"), lambda: None) < SOON
    deaf.close()


def test_an_interrupt_frees_a_task(server: WireServer) -> None:
    server.answer(Answer(delay=30), sse(chunk({"content": "He"}), stall=30))
    ctx = Context(llm(server))
    for index in (1, 2):
        took = interrupted(
            ctx,
            lambda: asyncio.run(ctx.atalk("Hi", stream=True)),
            lambda index=index: server.wait_for(index),  # type: ignore[misc]
        )
        assert took < SOON
    server.wait_until_idle()


def test_a_cancelled_task_leaves_no_connection(server: WireServer) -> None:
    server.answer(sse(chunk({"content": "He"}), stall=30))
    ctx = Context(llm(server))

    async def cancel() -> None:
        task = asyncio.create_task(ctx.atalk("Hi", stream=True))
        await asyncio.to_thread(server.wait_for, 1)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.wait_until_idle)

    asyncio.run(cancel())


def test_closing_a_stream_early_closes_its_connection(server: WireServer) -> None:
    server.answer(sse(chunk({"content": "He"}), stall=30))
    ctx = Context(llm(server))
    deltas = ctx.stream("Hi")
    assert next(iter(deltas)).text == "He"
    deltas.close()
    server.wait_until_idle()


def test_an_interrupt_at_any_moment(server: WireServer) -> None:
    """Whenever it comes, the turn is either whole or not there, and the context goes on."""
    server.answer(sse(*(chunk({"content": t}) for t in "abc"), chunk({}, "stop"), between=0.001))
    provider = llm(server)
    ctx = Context(provider)
    rng = random.Random(7)
    cut = 0
    for _ in range(60):
        before = len(ctx.messages)
        timer = threading.Timer(rng.uniform(0, 0.012), ctx.interrupt)
        timer.start()
        try:
            assert ctx.talk("Hi", stream=True).text == "abc"
            assert len(ctx.messages) == before + 2
        except errors.Interrupted:
            cut += 1
            assert len(ctx.messages) == before
        timer.join()
    assert ctx.talk("Hi", stream=True).text == "abc"
    assert cut
    provider.close()
    server.wait_until_idle()
    no_thread_stays()


# -- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file."""
    path = tmp_path / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(tmp_path / "crt.pem")]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificate, and is not here")
    path.write_text(path.read_text() + (tmp_path / "crt.pem").read_text())
    return path


def test_an_interrupt_under_tls(server: WireServer, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.wrap(context)
    trust = ssl.create_default_context(cafile=str(certificate))
    provider = llm(server.url.replace("http:", "https:"))
    server.answer(reply(), sse(chunk({"content": "He"}), stall=30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctxstore.runtime.http.threads.ssl_context", lambda: trust)
        ctx = Context(provider)
        assert ctx.talk("Hi").text == "Hello!"
        took = interrupted(ctx, lambda: ctx.talk("Go on", stream=True), lambda: server.wait_for(2))
    assert took < SOON
    server.wait_until_idle()
    provider.close()
