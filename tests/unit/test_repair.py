"""Whatever stands in a history, what is sent has each call answered once, right after it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctxstore.messages import Message, ToolCall, ToolResult
from ctxstore.repair import repair

IDS = st.sampled_from("abcd")


def message(kind, ids):
    if kind == "call":
        return Message.new("assistant", [ToolCall(type="tool_call", id=i, name="t", arguments_json="{}") for i in ids])
    if kind == "result":
        return Message.new("tool", [ToolResult(type="tool_result", id=i, value=1) for i in ids])
    return Message.new(kind, "text")


HISTORY = st.lists(
    st.builds(message, st.sampled_from(["call", "result", "user", "assistant"]), st.lists(IDS, min_size=1, max_size=3, unique=True)),
    max_size=12,
)


@given(HISTORY)
def test_calls_and_results_are_paired(history):
    sent = repair(history)
    open_calls: list[str] = []
    for m in sent:
        if m.tool_results:
            for r in m.tool_results:
                assert r.id in open_calls, "a result without its call before it"
                open_calls.remove(r.id)
        else:
            assert open_calls == [], "something stands between a call and its result"
            open_calls = [c.id for c in m.tool_calls if c.id not in {r.id for x in sent[: sent.index(m)] for r in x.tool_results}]
    assert open_calls == []
    assert [m.text for m in sent if m.role == "user"] == [m.text for m in history if m.role == "user"]


@given(HISTORY)
def test_mending_twice_is_mending_once(history):
    once = repair(history)
    assert [m.to_payload() for m in repair(once)] == [m.to_payload() for m in once]
    assert [m.to_payload() for m in repair(history)] == [m.to_payload() for m in once], "the same bytes each time"
