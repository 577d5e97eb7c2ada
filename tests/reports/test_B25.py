"""B25: a thought that was stored without its signature was sent back bare, and every later request refused."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from ctxstore import Context
from ctxstore.messages import Message, ReasoningPart, TextPart
from ctxstore.providers import DeepSeek, Groq, Mistral, OpenAI

from .scenes import call, result, scripted, sent

SIGNATURE = "EqQBCgIYAhIkM2E1Zg+/=="
PROVIDERS = [OpenAI("k"), DeepSeek("k", model="m"), Mistral("k"), Groq("k", model="m")]


def thinking(signature):
    state = None if signature is None else {"provider": "other", "signature": signature}
    return Message.new(
        "assistant",
        [
            ReasoningPart(type="reasoning", text="first, look", state=state),
            TextPart(type="text", text="I will look."),
            call("c1"),
            ReasoningPart(type="reasoning", text="", state=state),
        ],
        origin={"provider": "other", "api": "messages", "model": "m-thinks", "response_id": "resp-1"},
    )


def test_text_signature_and_place_are_equal_after_a_load(store, do):
    for signature in (SIGNATURE, None):
        message = thinking(signature)
        ctx = do(store, "create", scripted())
        ctx.user("go").append(message).append(result("c1", 1))
        do(store, "save", ctx)
        back = do(store, "load", ctx.id, scripted())
        assert back.messages[1] == message
        assert json.dumps(back.messages[1].to_payload()) == json.dumps(message.to_payload())


@given(st.text(st.characters(codec="utf-8")), st.none() | st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_thought_and_any_signature(text, signature):
    state = None if signature is None else {"signature": signature, "redacted": None, "n": [1, 2.0]}
    thought = ReasoningPart(type="reasoning", text=text, state=state)
    ctx = Context(scripted()).append(Message.new("assistant", [thought]))
    (part,) = Context.restore(ctx.to_json(), provider=scripted()).messages[0].content
    assert (part.text, part.state) == (text, state)


def test_elsewhere_neither_signature_nor_bare_thought_is_sent():
    """To servers that did not think it, the block is left out; in the context it stays."""
    llm = scripted("ok")
    for signature in (SIGNATURE, None):
        ctx = Context(llm).user("go").append(thinking(signature)).append(result("c1", 1))
        kept = ctx.to_payload()["messages"]
        llm.replies.append("ok")
        ctx.talk("next")
        for provider in PROVIDERS:
            body = json.dumps(sent(llm.requests[-1], provider))
            assert SIGNATURE not in body and "first, look" not in body
            assert "I will look." in body
        assert ctx.to_payload()["messages"][:3] == kept
