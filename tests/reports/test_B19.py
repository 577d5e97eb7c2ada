"""B19: a process that died with a tool call open left a conversation that no provider would take."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from ctxstore import Context
from ctxstore.providers import Groq, Mistral, OpenAI

from .scenes import asking, call, elsewhere, result, scripted, sent, stored

PROVIDERS = [OpenAI("k"), Mistral("k"), Groq("k", model="m")]


def assert_paired(messages):
    """As providers insist: after a message with calls come their results, each once, and nothing else is a result."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result without its call, or a second one"
            waiting.remove(message["tool_call_id"])
        else:
            assert waiting == [], "a call without its result"
            waiting = [c["id"] for c in message.get("tool_calls") or ()]
    assert waiting == []


def test_after_a_crash_the_next_request_is_whole(store, url, engine):
    code = """
        import os
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        llm = ScriptedProvider([{"tool_calls": [{"id": "t1", "name": "look", "arguments": "{}"}]}])
        store = Store(url)
        ctx = store.create(llm, id=identity)
        assert ctx.talk("look it up").tool_calls
        os._exit(9)
    """
    identity = str(Context(scripted()).id)
    elsewhere(code, expect=9, url=url, identity=identity)
    before = stored(engine, "ctxstore_messages")
    llm = scripted("never mind then")
    ctx = store.load(identity, llm)
    assert [c.id for c in ctx.pending_calls] == ["t1"]
    assert stored(engine, "ctxstore_messages") == before, "loading mends nothing on the disk"
    ctx.talk("hello?")
    request = llm.requests[0]
    body = sent(request)
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "user"]
    answer = body["messages"][2]
    assert answer["tool_call_id"] == "t1" and json.loads(answer["content"])["cancelled"] is True
    assert OpenAI("k").build(request).body == OpenAI("k").build(request).body
    after = stored(engine, "ctxstore_messages")
    assert after[:2] == before, "the old rows are as they were"
    (mark,) = store.load(identity, scripted()).tool_results
    assert mark.error and mark.value["cancelled"] is True, "what was put in says what it is"


@pytest.mark.parametrize("answered", [[], ["b"], ["a", "c"]])
def test_partly_answered_or_long_ago(store, do, answered):
    ctx = do(store, "create", scripted(asking("a", "b", "c")))
    do(ctx, "talk", "go")
    for identity in answered:
        ctx.append(result(identity, "done"))
    ctx.user("and then?").assistant("hm").user("well")
    do(store, "save", ctx)
    llm = scripted("ok", "ok")
    back = do(store, "load", ctx.id, llm)
    do(back, "talk", "now")
    do(back, "talk", "and now")
    for request in llm.requests:
        messages = sent(request)["messages"]
        assert_paired(messages)
        assert [m["role"] for m in messages[:6]] == ["user", "assistant", "tool", "tool", "tool", "user"]
        assert [m["content"] for m in messages[2:5]].count("done") == len(answered)


IDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=2)
HISTORY = st.lists(
    st.one_of(
        IDS.map(lambda ids: ("assistant", [call(i) for i in dict.fromkeys(ids)])),
        IDS.map(lambda ids: ("tool", [result(i, 1) for i in ids])),
        st.just(("user", "text")),
        st.just(("assistant", "text")),
    ),
    max_size=8,
)


@given(HISTORY)
def test_whatever_was_stored_the_request_is_whole_and_the_same_each_time(history):
    """Calls without results, results without calls, twice, too early, too late, ids that come again."""
    ctx = Context(llm := scripted("ok", "ok"))
    for role, content in history:
        ctx.append({"role": role, "content": content})
    kept = ctx.to_payload()["messages"]
    ctx.talk("next")
    assert ctx.to_payload()["messages"][: len(kept)] == kept
    for provider in PROVIDERS:
        assert_paired(sent(llm.requests[0], provider)["messages"])
        assert sent(llm.requests[0], provider) == sent(llm.requests[0], provider)
    again = Context.restore(ctx.to_json(), provider=llm)
    again.talk("and next")
    first, second = (sent(r)["messages"] for r in llm.requests)
    assert second[: len(first)] == first, "what was sent stays as it was sent"
