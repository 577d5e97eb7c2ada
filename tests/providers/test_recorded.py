"""Every recorded exchange, served over real HTTP, gives the parse that stands in its file.

Plain and streamed, sync and async, whole and cut into pieces at random bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ctxstore import errors
from ctxstore.messages import RefusalPart, ToolCall
from ctxstore.providers.base import Decoder, Provider, Reply
from ctxstore.runtime.http import ASYNC_HTTP, SYNC_HTTP
from ctxstore.runtime.interrupt import Interruption

from .wire_corpus import EXCHANGES, Exchange
from .wire_server import Answer, WireServer

KINDS: dict[str, type[errors.ProviderError]] = {
    "bad_request": errors.InvalidRequestError,
    "context_length": errors.ContextWindowExceededError,
    "auth": errors.AuthenticationError,
    "quota": errors.QuotaError,
    "not_found": errors.NotFoundError,
    "rate_limit": errors.RateLimitError,
    "overloaded": errors.ServerError,
    "server": errors.ServerError,
}
COUNTS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "total": "total_tokens",
    "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
    "reasoning": "reasoning_tokens",
    "input_audio": "input_audio_tokens",
    "output_audio": "output_audio_tokens",
    "input_image": "input_image_tokens",
}
"""The corpus's names of counts -> ours; what stands in neither (a cost, image output) is left to ``usage_raw``."""

every_exchange = pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda e: e.name)


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    made = WireServer()
    yield made
    made.close()


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({c % (len(body) + 1) for c in cuts} | {len(body)})
    return [body[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def outcome(provider: Provider, decoder: Decoder, data: list[bytes]) -> tuple[Reply, str, str]:
    """The reply, with the text and the reasoning that the deltas showed."""
    deltas = [d for piece in data for d in decoder.feed(piece)]
    return decoder.finish(), "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)


def parsed(reply: Reply, index: int) -> dict[str, Any]:
    """A choice in the form of the corpus."""
    content = reply.choices[index] if reply.choices else None
    parts = content if isinstance(content, list) else []
    calls = [p for p in parts if isinstance(p, ToolCall)]
    text = content if isinstance(content, str) else "".join(p.text for p in parts if p.type == "text")
    found = {
        "text": text,
        "reasoning_text": "".join(p.text for p in parts if p.type == "reasoning"),
        "refusal": "".join(p.text for p in parts if isinstance(p, RefusalPart)),
        "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in calls],
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        "id": reply.response_id,
        "usage": {} if reply.usage is None else reply.usage.to_payload(),
    }
    assert all(c.id for c in calls)
    assert len({c.id for c in calls}) == len(calls)
    return found


def expected(exchange: Exchange) -> dict[str, Any]:
    told = exchange.expected
    usage = {COUNTS[k]: v for k, v in (told.get("usage") or {}).items() if k in COUNTS}
    return {
        "text": told.get("text") or "",
        "reasoning_text": told.get("reasoning_text", ""),
        "refusal": told.get("refusal") or "",
        "tool_calls": [{"name": c["name"], "arguments": c["arguments"]} for c in told["tool_calls"]],
        "finish_reason": told.get("finish_reason"),
        "model": told.get("model"),
        "id": told.get("id"),
        "usage": usage,
    }


def check_reply(exchange: Exchange, reply: Reply, shown: tuple[str, str] | None = None) -> None:
    found = parsed(reply, 0)
    assert found == expected(exchange)
    assert (reply.usage is None) == (not exchange.expected.get("usage"))
    ids = [c["id"] for c in exchange.expected["tool_calls"]]
    content = reply.choices[0]
    got = [p.id for p in content if isinstance(p, ToolCall)] if isinstance(content, list) else []
    assert [g for g, i in zip(got, ids, strict=True) if i] == [i for i in ids if i]
    if shown is not None and exchange.streamed:
        assert shown == (found["text"], found["reasoning_text"])
    if exchange.expected.get("choices"):
        assert len(reply.choices) == exchange.expected["choices"]


def check_error(exchange: Exchange, error: errors.ProviderError) -> None:
    told = exchange.expected["error"]
    assert type(error) is KINDS[told["kind"]]
    assert error.status == told["status"]
    assert error.retryable == told["retryable"]
    assert error.retry_after == told.get("retry_after")
    assert error.code == (told.get("code") or told.get("type"))
    assert told["message"][:200] in str(error)
    assert error.body is not None
    assert error.request_id == exchange.headers.get("x-request-id")


def answer(exchange: Exchange, cuts: list[int]) -> Answer:
    return Answer(exchange.status, exchange.headers, pieces(exchange.body, cuts), exchange.content_type)


def over_http(server: WireServer, exchange: Exchange, provider: Provider, cuts: list[int]) -> None:
    server.answer(answer(exchange, cuts))
    request = exchange.model_request()
    body = SYNC_HTTP.open(provider, provider.build(request), Interruption())
    try:
        data = []
        while piece := body.read():
            data.append(piece)
    finally:
        body.close()
    judge(exchange, provider, body.response, data)


async def over_http_async(server: WireServer, exchange: Exchange, provider: Provider, cuts: list[int]) -> None:
    server.answer(answer(exchange, cuts))
    body = await ASYNC_HTTP.open(provider, provider.build(exchange.model_request()))
    try:
        data = []
        while piece := await body.read():
            data.append(piece)
    finally:
        await body.close()
    judge(exchange, provider, body.response, data)


def judge(exchange: Exchange, provider: Provider, response: Any, data: list[bytes]) -> None:
    assert response.status == exchange.status
    if "error" in exchange.expected:
        check_error(exchange, provider.error(response.status, response.headers, b"".join(data)))
    else:
        decoder = provider.decoder(exchange.model_request(), response.headers)
        reply, text, thoughts = outcome(provider, decoder, data)
        check_reply(exchange, reply, (text, thoughts))


def test_the_corpus_is_whole() -> None:
    assert len(EXCHANGES) >= 76
    assert len({e.data["provider"] for e in EXCHANGES}) == 12


@every_exchange
def test_sync(server: WireServer, exchange: Exchange) -> None:
    provider = exchange.provider(server.url)
    over_http(server, exchange, provider, [])
    over_http(server, exchange, provider, list(range(0, len(exchange.body), 997)))
    provider.close()


@every_exchange
def test_async(server: WireServer, exchange: Exchange) -> None:
    async def both() -> None:
        provider = exchange.provider(server.url)
        await over_http_async(server, exchange, provider, [])
        await over_http_async(server, exchange, provider, list(range(0, len(exchange.body), 997)))
        await provider.aclose()

    asyncio.run(both())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_exchange_cut_anywhere_over_http(server: WireServer, data: st.DataObject) -> None:
    exchange = data.draw(st.sampled_from(EXCHANGES))
    cuts = data.draw(st.lists(st.integers(0, 2**31), max_size=40))
    provider = exchange.provider(server.url)
    over_http(server, exchange, provider, cuts)
    provider.close()
    asyncio.run(over_http_async(server, exchange, exchange.provider(server.url), cuts))


@every_exchange
@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, 2**31), max_size=200))
def test_decoded_from_any_pieces(exchange: Exchange, cuts: list[int]) -> None:
    provider = exchange.provider()
    data = pieces(exchange.body, cuts)
    if "error" not in exchange.expected:
        decoder = provider.decoder(exchange.model_request(), {})
        reply, text, thoughts = outcome(provider, decoder, data)
        check_reply(exchange, reply, (text, thoughts))


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if e.streamed], ids=lambda e: e.name)
def test_byte_by_byte(exchange: Exchange) -> None:
    decoder = exchange.provider().decoder(exchange.model_request(), {})
    reply, text, thoughts = outcome(exchange.provider(), decoder, [bytes([b]) for b in exchange.body])
    check_reply(exchange, reply, (text, thoughts))


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if e.streamed], ids=lambda e: e.name)
def test_with_every_line_end(exchange: Exchange) -> None:
    for end in (b"\r\n", b"\r"):
        decoder = exchange.provider().decoder(exchange.model_request(), {})
        body = exchange.body.replace(b"\r\n", b"\n").replace(b"\n", end)
        reply, *shown = outcome(exchange.provider(), decoder, [body[:77], body[77:]])
        check_reply(exchange, reply, (shown[0], shown[1]))
