"""B27: ids that one provider's server had made up were sent to another, which refused them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from ctxstore import Context
from ctxstore.messages import ImagePart, Message, ReasoningPart, TextPart, ToolCall
from ctxstore.providers import DeepSeek, Groq, Mistral, OpenAI, OpenRouter

from .scenes import result, scripted, sent

PROVIDERS = [OpenAI("k"), DeepSeek("k", model="m"), Mistral("k"), Groq("k", model="m"), OpenRouter("k", model="m")]
MARK = "rs_made-up-elsewhere"


def foreign(call_id="call_1"):
    state = {"provider": "other", "id": MARK, "signature": MARK, "extra_content": {"x": MARK}}
    return Message.new(
        "assistant",
        [
            ReasoningPart(type="reasoning", text="aha", state=state),
            TextPart(type="text", text="Looking.", state=state),
            ToolCall(type="tool_call", id=call_id, name="look", arguments_json="{}", state=state),
        ],
        origin={"provider": "other", "api": "responses", "model": "m", "response_id": MARK},
    )


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)
def test_nothing_of_another_origin_is_sent(provider):
    llm = scripted("ok")
    ctx = Context(llm).user("go").append(foreign()).append(result("call_1", 1))
    kept = ctx.to_payload()["messages"]
    ctx.talk("next")
    body = json.dumps(sent(llm.requests[0], provider))
    assert MARK not in body
    assert "Looking." in body
    assert ctx.to_payload()["messages"][:3] == kept, "the stored copy is as it was"


def test_it_comes_back_on_switching_back(store, do):
    """The state stays at its part through save, load, and a turn with somebody else."""
    ctx = do(store, "create", scripted())
    ctx.user("go").append(foreign()).append(result("call_1", 1))
    do(store, "save", ctx)
    back = do(store, "load", ctx.id, scripted("ok"))
    do(back, "talk", "next")
    again = do(store, "load", ctx.id, scripted())
    assert again.messages[1].content == foreign().content
    assert again.messages[1].origin.response_id == MARK


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=80), min_size=1, max_size=4, unique=True))
def test_call_ids_fit_and_stay_paired(ids):
    llm = scripted("ok")
    ctx = Context(llm)
    for identity in ids:
        ctx.append(foreign(identity)).append(result(identity, f"of {identity}"))
    ctx.talk("next")
    for provider in PROVIDERS:
        messages = sent(llm.requests[0], provider)["messages"]
        calls = [c["id"] for m in messages for c in m.get("tool_calls") or ()]
        answers = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
        assert list(answers) == calls and len(set(calls)) == len(ids)
        assert list(answers.values()) == [f"of {identity}" for identity in ids]
        for identity in calls:
            assert provider.dialect.call_id.fullmatch(identity)
            assert len(identity) <= (9 if provider.name == "mistral" else 40)
    assert [c.id for m in ctx.messages for c in m.tool_calls] == ids


def test_pictures_go_with_the_message_and_not_with_an_upload_elsewhere():
    llm = scripted("ok")
    picture = ImagePart(type="image", url="https://example.invalid/a.png", state={"provider": "other", "file_id": MARK})
    Context(llm).talk(["look", picture])
    assert MARK not in json.dumps(sent(llm.requests[0]))
