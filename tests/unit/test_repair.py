"""Whatever stands in a history, what is sent has each call answered once, right after it."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ctxstore.messages import Message, ToolCall, ToolResult
from ctxstore.repair import repair

IDS = st.sampled_from("abcd")


def message(kind, ids):
    if kind == "call":
        return Message.new("assistant", [ToolCall(type="tool_call", id=i, name="t", arguments_json="{}") for i in ids])
    if kind == "result":
        return Message.new("tool", [ToolResult(type="tool_result", id=i, value=1) for i in ids])
    return Message.new(kind, "text")


KINDS = st.sampled_from(["call", "result", "user", "assistant"])
HISTORY = st.lists(st.builds(message, KINDS, st.lists(IDS, min_size=1, max_size=3, unique=True)), max_size=12)


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
            open_calls = [c.id for c in m.tool_calls]
    assert open_calls == []
    assert [m.text for m in sent if m.role == "user"] == [m.text for m in history if m.role == "user"]


@given(HISTORY)
def test_mending_twice_is_mending_once(history):
    once = repair(history)
    assert [m.to_payload() for m in repair(once)] == [m.to_payload() for m in once]
    assert [m.to_payload() for m in repair(history)] == [m.to_payload() for m in once], "the same bytes each time"


def test_an_id_that_comes_again_is_another_call():
    one, two = message("result", "a"), message("result", "a")
    call = message("call", "a")
    assert repair([call, one, message("call", "a"), two])[1::2] == [one, two]
    sent = repair([call, message("user", "-"), message("call", "a"), two])
    assert [[r.error for r in m.tool_results] for m in sent if m.tool_results] == [[True], [False]]


def test_what_is_in_order_is_passed_on_as_it_is():
    history = [message("call", "ab"), message("result", "a"), message("result", "b"), message("user", "-")]
    assert all(a is b for a, b in zip(repair(history), history, strict=True))


def test_a_message_with_calls_and_results_in_it_gives_up_the_results():
    mixed = Message.new("assistant", [*message("result", "a").content, *message("call", "b").content])
    sent = repair([message("call", "a"), mixed])
    assert [[p.id for p in m.parts] for m in sent] == [["a"], ["a"], ["b"], ["b"]]
