"""B33: a stream reports running totals, and they were added up: usage is that of the same reply without a stream.

From pydantic-ai issue 2770; LibreChat issue 12968.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxstore import new_id
from ctxstore.messages import Message
from ctxstore.providers import DeepSeek, Groq, OpenAI
from ctxstore.providers.base import ModelRequest, Provider
from ctxstore.usage import TokenUsage


def decoded(llm: Provider, body: bytes, stream: bool) -> Any:
    request = ModelRequest("m", (Message.new("user", "Hi"),), new_id(), "completions", stream)
    decoder = llm.decoder(request, {})
    decoder.feed(body)
    return decoder.finish()


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


def chunk(text: str, usage: dict[str, int] | None = None, finish: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], "usage": usage, **rest}


FIRST, LAST = ({"prompt_tokens": 120, "completion_tokens": n, "total_tokens": 120 + n} for n in (1, 40))
WANTED = TokenUsage(input_tokens=120, output_tokens=40)

STREAMS = [
    (OpenAI("k"), events(chunk("a", FIRST), chunk("b", LAST, "stop"))),
    (OpenAI("k"), events(chunk("a"), chunk("b", None, "stop"), {"choices": [], "usage": LAST})),
    (DeepSeek("k"), events(chunk("a", FIRST), chunk("b", LAST, "stop"), {"choices": [], "usage": LAST})),
    (Groq("k"), events(chunk("a"), chunk("b", LAST, "stop", x_groq={"id": "r", "usage": LAST}))),
    (Groq("k"), events(chunk("a"), chunk("b", None, "stop", x_groq={"id": "r", "usage": LAST}))),
]


@pytest.mark.parametrize(("llm", "body"), STREAMS)
def test_usage_of_a_stream_is_its_last_value(llm: Provider, body: bytes) -> None:
    streamed = decoded(llm, body, True)
    plain = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": LAST}
    assert streamed.usage == WANTED == decoded(llm, json.dumps(plain).encode(), False).usage
    assert streamed.usage_raw == LAST
    assert streamed.choices == ("ab",)


def test_a_null_after_a_value_does_not_erase_it() -> None:
    last = {"prompt_tokens": None, "completion_tokens": 40, "total_tokens": 160}
    body = events(chunk("a", FIRST), chunk("b", last, "stop"), {"choices": [], "usage": None})
    reply = decoded(OpenAI("k"), body, True)
    assert reply.usage.input_tokens == 120
    assert reply.usage.output_tokens == 40
