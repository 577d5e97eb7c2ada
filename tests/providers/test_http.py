"""The transports against servers that behave badly: what is raised, how soon, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest

from ctxstore import Context, errors
from ctxstore.providers import OpenAI
from ctxstore.runtime.http import ASYNC_HTTP, SYNC_HTTP

from .wire_server import Answer, WireServer, chunk, failure, reply, stream

SOON = 0.25
"""Seconds within which an interrupt has to have freed whoever waits; it takes about one millisecond."""


def llm(server: WireServer | str, **options: Any) -> OpenAI:
    url = server if isinstance(server, str) else server.url
    return OpenAI("sk-test-1234", "test-model", url, **options)


def sse(*pieces: bytes, **rest: Any) -> Answer:
    return Answer(pieces=pieces, content_type="text/event-stream", **rest)


class World:
    """One call, in the sync or the async world."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def talk(self, ctx: Context, prompt: str = "Hi", **options: Any) -> Any:
        if self.kind == "sync":
            return ctx.talk(prompt, **options)
        return asyncio.run(ctx.atalk(prompt, **options))


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


# -- good servers


def test_plain_and_streamed(server: WireServer, world: World) -> None:
    server.answer(reply("Hello!"), stream("He", "llo", "!"))
    ctx = Context(llm(server))
    assert world.talk(ctx).text == "Hello!"
    shown: list[str] = []
    assert world.talk(ctx, "again", stream=lambda d: shown.append(d.text)).text == "Hello!"
    assert shown == ["He", "llo", "!"]
    assert [m["role"] for m in server.seen[1].json["messages"]] == ["user", "assistant", "user"]
    assert server.seen[0].path == "/v1/chat/completions"
    assert server.seen[0].headers["authorization"] == "Bearer sk-test-1234"


def test_a_connection_is_kept(server: WireServer) -> None:
    server.answer(reply())
    provider = llm(server)
    ctx = Context(provider)
    for _ in range(3):
        ctx.talk("Hi")
    assert len({seen.connection for seen in server.seen}) == 1
    provider.close()
    server.wait_until_idle()
    ctx.talk("and again")
    assert len({seen.connection for seen in server.seen}) == 2
    provider.close()


def test_a_connection_is_kept_on_a_loop(server: WireServer) -> None:
    server.answer(reply())
    provider = llm(server)

    async def talk() -> None:
        ctx = Context(provider)
        for _ in range(3):
            await ctx.atalk("Hi")
        await provider.aclose()
        await ctx.atalk("and again")

    asyncio.run(talk())
    assert len({seen.connection for seen in server.seen}) == 2
    server.wait_until_idle()  # the loop closed what nobody had
    asyncio.run(talk())
    server.wait_until_idle()


def test_requests_at_the_same_time(server: WireServer) -> None:
    server.answer(reply("Hello!", delay=0.1))
    provider = llm(server)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(Context(provider).talk("Hi").text)) for _ in range(12)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["Hello!"] * 12
    assert time.monotonic() - began < 0.8  # one after the other it takes 1.2
    provider.close()


# -- a kept connection that the server closed


def test_a_connection_that_the_server_closed_is_no_error(server: WireServer, world: World) -> None:
    server.answer(reply("one", hang_up=True), reply("two"))
    provider = llm(server)

    async def talk() -> list[Any]:
        ctx = Context(provider)
        return [(await ctx.atalk("a")).text, (await ctx.atalk("b")).text]

    if world.kind == "async":
        assert asyncio.run(talk()) == ["one", "two"]
    else:
        ctx = Context(provider)
        assert [ctx.talk("a").text, ctx.talk("b").text] == ["one", "two"]
    provider.close()


class _Stale:
    """A server that reads the second request of a connection and hangs up: what a race with its timeout looks like."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"

    def _serve(self) -> None:
        body = reply("Hello!").pieces[0]
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                self._request(peer)
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                peer.sendall(head + body)
                self._request(peer)

    def _request(self, peer: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            got = peer.recv(65536)
            if not got:
                return
            data += got
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(rest) < length:
            rest += peer.recv(65536)
        self.requests += 1


@pytest.fixture
def stale() -> Iterator[_Stale]:
    made = _Stale()
    yield made
    made.listener.close()


@pytest.mark.parametrize("client", ["ours", "httpx", "httpx2"])
def test_a_request_into_a_closing_connection_is_sent_again_at_once(stale: _Stale, world: World, client: str) -> None:
    library: Any = {"httpx": httpx, "httpx2": httpx2}.get(client)

    def sync() -> None:
        own = library.Client() if library else None
        provider = llm(stale.url, client=own)
        ctx = Context(provider)
        assert [ctx.talk("a").text, ctx.talk("b").text] == ["Hello!"] * 2
        provider.close()
        if own is not None:
            own.close()

    async def aio() -> None:
        own = library.AsyncClient() if library else None
        ctx = Context(llm(stale.url, aclient=own))
        assert [(await ctx.atalk("a")).text, (await ctx.atalk("b")).text] == ["Hello!"] * 2
        if own is not None:
            await own.aclose()

    sync() if world.kind == "sync" else asyncio.run(aio())
    assert stale.requests == 3


def test_a_fresh_connection_that_breaks_is_not_sent_again(server: WireServer, world: World) -> None:
    server.answer(Answer(hang_up=True))
    with pytest.raises(errors.ConnectionFailedError) as caught:
        world.talk(Context(llm(server)))
    assert caught.value.retryable
    assert caught.value.__cause__ is not None
    assert len(server.seen) == 1


# -- bad servers


def test_no_server(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.ConnectionFailedError, match=f"127.0.0.1:{port}"):
        world.talk(Context(llm(f"http://127.0.0.1:{port}/v1")))


def test_no_head_in_time(server: WireServer, world: World) -> None:
    server.answer(reply(delay=5))
    with pytest.raises(errors.ConnectionFailedError, match=r"within 0\.2 s"):
        world.talk(Context(llm(server, first_byte_timeout=0.2)))


@pytest.mark.parametrize("pieces", [[], [chunk({"content": "He"})]])
def test_a_stall(server: WireServer, world: World, pieces: list[bytes]) -> None:
    """The first byte of the body may take longer than the gap between two."""
    server.answer(sse(*pieces, stall=5))
    provider = llm(server, first_byte_timeout=0.6, read_timeout=0.2)
    ctx = Context(provider)
    began = time.monotonic()
    with pytest.raises(errors.StreamInterruptedError, match="nothing came for 0.2 s" if pieces else "0.6 s") as caught:
        world.talk(ctx, stream=True)
    assert (0.15 if pieces else 0.55) < time.monotonic() - began < (0.55 if pieces else 2)
    assert not caught.value.retryable
    assert list(ctx.messages) == []
    if pieces:
        assert caught.value.turn is not None
        assert caught.value.turn.messages[-1].text == "He"


def test_slow_but_steady(server: WireServer, world: World) -> None:
    server.answer(stream("a", "b", "c", "d", between=0.1))
    assert world.talk(Context(llm(server, first_byte_timeout=2, read_timeout=0.25)), stream=True).text == "abcd"


@pytest.mark.parametrize(
    "answer",
    [
        sse(chunk({"content": "Hello"}), cut=True),
        Answer(pieces=[b'{"choices": [{"message": {"con'], cut=True),
        Answer(pieces=[b'{"choices": [{"message": {"con']),
        stream("Hello", end=False),
        Answer(pieces=[]),
        sse(),
        sse(b'data: {"choi'),
        sse(b'data: {"choi\n\n'),
    ],
    ids=["cut", "cut JSON", "short JSON", "no end", "empty", "empty stream", "half an event", "broken event"],
)
def test_a_reply_that_breaks_off(server: WireServer, world: World, answer: Answer) -> None:
    server.answer(answer)
    ctx = Context(llm(server), retry_budget=2)
    with pytest.raises(errors.StreamInterruptedError):
        world.talk(ctx, stream=answer.content_type == "text/event-stream")
    assert list(ctx.messages) == []


@pytest.mark.parametrize("status", [200, 404, 502])
def test_html(server: WireServer, world: World, status: int) -> None:
    server.answer(Answer(status, pieces=[b"<html><body>Bad gateway</body></html>"], content_type="text/html"))
    with pytest.raises(errors.ProviderError, match="is the base_url right") as caught:
        world.talk(Context(llm(server)))
    assert type(caught.value) is {200: errors.ServerError, 404: errors.NotFoundError, 502: errors.ServerError}[status]
    assert caught.value.retryable is (status == 502)
    assert "Bad gateway" in (caught.value.body or "")


@pytest.mark.parametrize("body", [b"OK", b'"OK"', b"[]", b"{}", b'{"choices": null}', b'{"object": "list"}'])
def test_a_success_that_is_no_reply(server: WireServer, world: World, body: bytes) -> None:
    server.answer(Answer(pieces=[body], content_type="text/plain"))
    with pytest.raises(errors.ServerError) as caught:
        world.talk(Context(llm(server)))
    assert not caught.value.retryable


def test_another_content_type(server: WireServer, world: World) -> None:
    server.answer(Answer(pieces=reply("Hello!").pieces, content_type="application/octet-stream"))
    assert world.talk(Context(llm(server))).text == "Hello!"


def test_plain_json_where_a_stream_was_asked_for(server: WireServer, world: World) -> None:
    server.answer(reply("Hello!"))
    shown: list[str] = []
    assert world.talk(Context(llm(server)), stream=lambda d: shown.append(d.text)).text == "Hello!"
    assert shown == ["Hello!"]


def test_a_redirect_is_not_followed_with_a_key(server: WireServer, world: World) -> None:
    server.answer(Answer(302, {"location": "http://127.0.0.1:1/elsewhere"}))
    with pytest.raises(errors.ServerError) as caught:
        world.talk(Context(llm(server)))
    assert caught.value.status == 302
    assert not caught.value.retryable


def test_the_error_in_a_stream_keeps_what_came(server: WireServer, world: World) -> None:
    told = b'data: {"error": {"message": "Overloaded", "type": "overloaded_error"}}\n\n'
    server.answer(sse(chunk({"content": "Hel"}), chunk({"content": "lo"}) + told))
    ctx = Context(llm(server), retry_budget=3)
    shown: list[str] = []
    with pytest.raises(errors.ServerError, match="Overloaded") as caught:
        world.talk(ctx, stream=lambda d: shown.append(d.text))
    assert caught.value.turn is not None
    assert caught.value.turn.messages[-1].text == "Hello" == "".join(shown)
    assert len(server.seen) == 1  # never again once something was shown


# -- retries


def test_a_busy_server_is_asked_again(server: WireServer, world: World) -> None:
    server.answer(
        failure(429, "slow down", {"retry-after-ms": "120", "retry-after": "9"}),
        failure(503, "busy", {"retry-after": "0.1"}),
        reply("Hello!"),
    )
    ctx = Context(llm(server), retry_budget=2)
    assert world.talk(ctx).text == "Hello!"
    first, second, third = (seen.at for seen in server.seen)
    assert 0.11 < second - first < 0.4
    assert 0.09 < third - second < 0.4


def test_a_server_that_never_heals(server: WireServer, world: World) -> None:
    server.answer(failure(500, "broken", {"retry-after-ms": "1"}))
    ctx = Context(llm(server), retry_budget=3)
    with pytest.raises(errors.ServerError, match="broken"):
        world.talk(ctx)
    assert len(server.seen) == 4
    assert list(ctx.messages) == []


@pytest.mark.parametrize(
    "answer",
    [
        failure(429, "You exceeded your current quota", code="insufficient_quota"),
        failure(401, "Incorrect API key"),
        failure(400, "bad"),
        failure(402, "Insufficient Balance"),
        failure(500, "no", {"x-should-retry": "false"}),
        failure(429, "come back tomorrow", {"retry-after": "3600"}),
    ],
)
def test_what_is_not_worth_asking_again(server: WireServer, world: World, answer: Answer) -> None:
    server.answer(answer)
    with pytest.raises(errors.ProviderError):
        world.talk(Context(llm(server), retry_budget=3))
    assert len(server.seen) == 1


# -- clients of the caller's own


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_client_of_the_callers_own(server: WireServer, library: Any) -> None:
    server.answer(reply(), stream("He", "llo"))
    with library.Client(headers={"x-mine": "yes"}) as client:
        ctx = Context(llm(server, client=client))
        assert ctx.talk("Hi").text == "Hello!"
        assert ctx.talk("Hi", stream=True).text == "Hello"
        ctx.provider.close()
        assert not client.is_closed
    assert [seen.headers["x-mine"] for seen in server.seen] == ["yes", "yes"]
    with pytest.raises(errors.ConfigurationError, match="closed"):
        ctx.talk("Hi")

    async def aio() -> None:
        async with library.AsyncClient(headers={"x-mine": "async"}) as client:
            ctx = Context(llm(server, aclient=client))
            server.answer(stream("Hel", "lo"))
            assert (await ctx.atalk("Hi", stream=True)).text == "Hello"
            await ctx.provider.aclose()
            assert not client.is_closed

    asyncio.run(aio())
    assert server.seen[-1].headers["x-mine"] == "async"


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_errors_of_either_library_are_ours(server: WireServer, library: Any) -> None:
    with library.Client() as client:
        provider = llm(server, client=client, first_byte_timeout=0.2, read_timeout=0.2)
        server.answer(reply(delay=2))
        with pytest.raises(errors.ConnectionFailedError, match=r"within 0\.2 s"):
            Context(provider).talk("Hi")
        server.answer(stream("a", end=False, cut=True))
        with pytest.raises(errors.StreamInterruptedError, match="broke"):
            Context(provider).talk("Hi", stream=True)


def test_a_transport_that_has_no_socket() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"".join(reply("mocked").pieces))

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        assert Context(llm("http://nowhere.invalid/v1", client=client)).talk("Hi").text == "mocked"


# -- proxies


def test_a_proxy_of_the_environment(server: WireServer, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer(reply("through the proxy"))
    monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
    assert world.talk(Context(llm("http://llm.test/v1"))).text == "through the proxy"
    assert server.seen[0].path == "http://llm.test/v1/chat/completions"


# -- nothing is left behind


def test_a_program_that_closes_nothing_ends_without_a_warning(server: WireServer) -> None:
    server.answer(reply())
    program = textwrap.dedent(f"""
        import asyncio
        from ctxstore import Context
        from ctxstore.providers import OpenAI

        llm = OpenAI("k", base_url={server.url!r})
        Context(llm).talk("Hi")

        async def talk():
            await Context(llm).atalk("Hi")

        asyncio.run(talk())
        asyncio.run(talk())
        print("done")
    """)
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_providers_that_are_forgotten_close_their_connections(server: WireServer) -> None:
    server.answer(reply())
    for _ in range(3):
        Context(llm(server)).talk("Hi")
    gc.collect()
    server.wait_until_idle()

    async def talk() -> None:
        for _ in range(3):
            await Context(llm(server)).atalk("Hi")
        gc.collect()
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.wait_until_idle)

    asyncio.run(talk())


def test_the_transports_are_the_seam() -> None:
    assert type(SYNC_HTTP).__module__.startswith("ctxstore.runtime.http")
    assert type(ASYNC_HTTP).__module__.startswith("ctxstore.runtime.http")
