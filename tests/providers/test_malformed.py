"""Replies in no form that is documented, or that no payload can hold: an error of the server's, told as one of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxstore import Context, Store
from ctxstore.errors import ServerError

from .test_http import World, llm, sse, world
from .wire_server import Answer, WireServer, chunk, failure, reply

__all__ = ["world"]  # a fixture


def body(message: Any, **rest: Any) -> Answer:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer(pieces=[json.dumps({"choices": [choice], "usage": usage, **rest}).encode()])


def details(value: Any) -> Answer:
    return body({"content": "x", "reasoning_details": [{"type": "t", "d": value}]})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "answer",
    [
        body(5),
        body(["text"]),
        body({"content": [{"no": "type"}]}),
        body({"tool_calls": 5}),
        body({"content": "x", "reasoning_details": 5}),
        sse(b'data: {"choices":5}\n\n', b"data: [DONE]\n\n"),
        sse(b'data: {"choices":[{"delta":5}]}\n\n', b"data: [DONE]\n\n"),
        sse(chunk({"tool_calls": [{"index": [1], "id": "a", "function": {"name": "n"}}]}), chunk({}, "stop")),
    ],
)
def test_json_that_is_no_reply(server: WireServer, world: World, answer: Answer) -> None:
    server.answer(answer, reply("fine"))
    ctx = Context(llm(server), stream=True if answer.content_type == "text/event-stream" else None)
    with pytest.raises(ServerError, match="not in the form") as caught:
        world.talk(ctx)
    assert not caught.value.retryable and not ctx.messages
    assert world.talk(ctx).text == "fine"


@pytest.mark.parametrize("value", [float("nan"), nested(200)])
def test_a_reply_that_no_payload_can_hold_does_not_spoil_the_context(server: WireServer, url: str, value: Any) -> None:
    server.answer(details(value), reply("fine"))
    with Store(url) as store:
        ctx = store.create(llm(server))
        with pytest.raises(ServerError, match="cannot be kept") as caught:
            ctx.talk("Hi")
        assert caught.value.turn.usage[0].usage.total_tokens == 15
        ctx.talk("Hi")
        told = [(e.outcome, e.usage and e.usage.total_tokens) for e in store.attempts(ctx.id)]
        assert told == [("error", 15), ("ok", 15)]


@pytest.mark.parametrize("odd", [{"x": float("nan")}, {"x": nested(200)}, {"prompt_tokens": 2**70}])
def test_usage_that_no_column_can_hold_does_not_lose_the_reply(server: WireServer, url: str, odd: Any) -> None:
    server.answer(body({"content": "paid"}, usage={"completion_tokens": 5, **odd}))
    with Store(url) as store:
        ctx = store.create(llm(server))
        assert ctx.talk("Hi").text == "paid"
        assert ctx.token_usage.output_tokens == 5 and ctx.token_usage.input_tokens == 0
        assert store.load(ctx.id, llm(server)).messages[-1].text == "paid"


def test_a_finish_reason_that_is_no_text(server: WireServer, world: World) -> None:
    server.answer(Answer(pieces=[b'{"choices":[{"message":{"content":"x"},"finish_reason":5}]}']))
    assert world.talk(Context(llm(server))).finish_reason == "5"


def test_the_providers_retry_budget_holds_when_the_context_says_none(server: WireServer, world: World) -> None:
    server.answer(failure(500, headers={"retry-after": "0.01"}), reply("ok"))
    assert world.talk(Context(llm(server, retry_budget=1))).text == "ok"
