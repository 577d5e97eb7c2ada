"""B37: a stream ends without a usage block, 0/0 is stored, and the call looks free. Unknown is not zero.

From hermes-agent issue 12023; open-webui pull request 22166.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ctxstore import Context, Store, new_id
from ctxstore.messages import Message
from ctxstore.providers import OpenAI
from ctxstore.providers.base import ModelRequest
from ctxstore.testing import ScriptedProvider

STREAM = b"".join(
    b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": t}, "finish_reason": f}]}).encode() + b"\n\n"
    for t, f in (("Hel", None), ("lo", "stop"))
)


def decoded(body: bytes, stream: bool) -> Any:
    llm = OpenAI("k")
    decoder = llm.decoder(ModelRequest("m", (Message.new("user", "Hi"),), new_id(), "completions", stream), {})
    decoder.feed(body)
    return decoder.finish()


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": None}])
def test_a_reply_that_says_nothing_of_its_usage(usage: Any) -> None:
    message = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": usage}
    for reply in (decoded(json.dumps(message).encode(), False), decoded(STREAM, True)):
        assert reply.usage is None
        assert reply.choices == ("Hello",)


def test_a_reported_zero_is_zero() -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    message = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": usage}
    found = decoded(json.dumps(message).encode(), False).usage
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (0, 0, 0)
    assert found.cache_read_tokens is None


def test_sums_give_what_is_known_and_how_many_are_unknown(store: Store) -> None:
    known = {"text": "b", "usage": {"input_tokens": 5, "output_tokens": 2}}
    ctx: Context = store.create(ScriptedProvider(["a", known], prices={"scripted-1": {"input": 1, "output": 1}}))
    assert ctx.talk("one").usage is None
    assert ctx.context_used is None
    ctx.talk("two")
    assert (ctx.token_usage.input_tokens, ctx.token_usage.output_tokens) == (5, 2)
    (row,) = store.usage(by=("model",))
    assert (row.requests, row.unknown, row.unpriced) == (2, 1, 1)
    assert row.usage.input_tokens == 5
    back = store.load(ctx.id, ScriptedProvider([]))
    assert [m.usage is None for m in back.messages if m.role == "assistant"] == [True, False]
