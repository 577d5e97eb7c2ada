"""Bounds of a conversation: what may go, what must stay, and what it cost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from ctxstore import Context
from ctxstore.compaction import Callback, Summarize, Trim
from ctxstore.errors import ConfigurationError, ServerError
from ctxstore.testing import ScriptedProvider


def reply(text, i=10, o=5):
    return {"text": text, "usage": {"input_tokens": i, "output_tokens": o}}


KINDS = st.lists(st.sampled_from(["system", "user", "assistant", "call", "answer"]), max_size=25)


def build(kinds):
    ctx, open_calls = Context(ScriptedProvider([])), []
    for n, kind in enumerate(kinds):
        if kind == "call":
            open_calls.append(f"c{n}")
            ctx.assistant(None, tool_calls=[{"id": f"c{n}", "name": "t", "arguments": "{}"}])
        elif kind == "answer":
            if open_calls:
                ctx.tool(open_calls.pop(0), n)
        else:
            ctx.append({"role": kind, "content": f"{kind} {n}"})
    return ctx


@given(KINDS, st.integers(1, 12))
def test_trim_keeps_pairs_system_and_the_newest_user_message(kinds, limit):
    ctx = build(kinds)
    before = list(ctx.messages)
    pairs = {r.id for m in before for r in m.tool_results}
    Trim(max_messages=limit).apply(ctx.state)
    after = list(ctx.messages)
    assert [m for m in before if m in after] == after, "order and messages are the same"
    assert [m for m in after if m.role == "system"] == [m for m in before if m.role == "system"]
    calls = {c.id for m in after for c in m.tool_calls}
    answered = {r.id for m in after for r in m.tool_results}
    assert answered == calls & pairs, "a call goes with its result, and a result with its call"
    users = [m for m in before if m.role == "user"]
    if users:
        assert users[-1] in after
        newest = before.index(users[-1])
        removable = [
            m for i, m in enumerate(before) if i < newest and m.role not in ("system", "user") or m in users[:-1]
        ]
        if len(after) > limit:
            assert not [m for m in removable if m in after and not m.tool_calls and not m.tool_results]


@given(KINDS, st.integers(0, 12))
def test_a_summary_stands_for_whole_pairs(kinds, keep):
    ctx = build(kinds)
    before = list(ctx.messages)
    ctx.compact(summary="S", keep=keep)
    after = list(ctx.messages)
    assert [m for m in after if m.role == "system"] == [m for m in before if m.role == "system"]
    tail = [m for m in before if m.role != "system"][-keep:] if keep else []
    assert all(m in after for m in tail)
    assert {r.id for m in after for r in m.tool_results} <= {c.id for m in after for c in m.tool_calls}
    assert ctx.summary == "S" and ctx.compacted


def test_trim_counts_tokens_and_leaves_what_was_used():
    ctx = Context(ScriptedProvider([reply("a" * 40, 100, 50), reply("b" * 40, 200, 50), reply("c" * 40, 300, 50)]))
    ctx.compactor = Trim(max_tokens=260)
    ctx.talk("x" * 40), ctx.talk("y" * 40)
    assert len(ctx) == 4 and not ctx.compacted
    ctx.talk("z" * 40)
    assert [m.text[0] for m in ctx.messages] == ["z", "c"] or len(ctx) < 6
    assert ctx.compacted and ctx.token_usage.total_tokens == 150 + 250 + 350, "trimming does not unspend"


def test_a_callback_may_drop_or_write_anew():
    ctx = Context(ScriptedProvider([]), compactor=Callback(lambda ms: [ms[0], ms[-1]], max_messages=2))
    ctx.system("s").user("1").user("2")
    assert [m.text for m in ctx.messages] == ["s", "2"]
    ctx.compactor = Callback(lambda ms: ["no message"], max_messages=2)
    with pytest.raises(ConfigurationError, match="must return messages"):
        ctx.user("3")


@pytest.mark.parametrize(
    "bad", [lambda: Trim(max_messages=-1), lambda: Summarize(at_percent=0), lambda: Summarize(keep=-1)]
)
def test_limits_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigurationError):
        bad()


def test_a_summary_is_paid_for_and_taken_into_the_next():
    prices = {"scripted-1": {"input": 1, "output": 1}}
    llm = ScriptedProvider([reply("one"), reply("FIRST", 50, 10), reply("two"), reply("SECOND", 60, 10)], prices=prices)
    ctx = Context(llm).system("Be brief.")
    ctx.talk("a")
    assert ctx.compact() == "FIRST" and ctx.token_usage.total_tokens == 75 and ctx.context_used is None
    assert [m.text for m in ctx.messages] == ["Be brief."]
    ctx.talk("b")
    assert asyncio.run(ctx.acompact(prompt="Shorter, please.")) == "SECOND"
    sent = llm.requests[-1].messages
    assert "FIRST" in "".join(m.text or "" for m in sent if m.role == "system") and sent[-1].text == "Shorter, please."
    assert ctx.cost.unpriced == 0 and ctx.cost.pico_usd == (15 + 60 + 15 + 70) * 10**6
    assert [e.kind for e in ctx.state.pending_usage] == ["turn", "compaction", "turn", "compaction"]
    assert Context.restore(ctx.to_json(), provider=llm).token_usage.total_tokens == 160


def test_a_failed_summary_changes_nothing():
    for failure in (ServerError("down", status=500), ""):
        ctx = Context(ScriptedProvider([reply("one"), failure]))
        ctx.talk("first")
        before = ctx.to_json()
        with pytest.raises((ServerError, ConfigurationError)):
            ctx.compact()
        assert ctx.to_json() == before


def test_trimmed_messages_stay_in_the_history_of_a_store(store):
    ctx = store.create(ScriptedProvider([reply(f"r{n}") for n in range(5)]), compactor=Trim(max_messages=4))
    ctx.user("never sent alone")
    for n in range(5):
        ctx.talk(f"q{n}")
    back = store.load(ctx.id, ScriptedProvider([]))
    assert [m.text for m in back.messages] == [m.text for m in ctx.messages] == ["q3", "r3", "q4", "r4"]
    assert [m.text for m in store.history(ctx.id)] == ["never sent alone"] + [
        t for n in range(5) for t in (f"q{n}", f"r{n}")
    ]
    assert back.token_usage.total_tokens == 75
    (row,) = store.usage(by=())
    assert row.usage.total_tokens == 75


def test_what_left_before_it_was_saved_is_in_the_history_too(store):
    ctx = store.create(ScriptedProvider([reply("one")]), compactor=Trim(max_messages=2))
    ctx.user("1").user("2").user("3").user("4")
    ctx.save()
    assert [m.text for m in store.load(ctx.id, ctx.provider).messages] == ["3", "4"]
    assert [m.text for m in store.history(ctx.id)] == ["1", "2", "3", "4"]
    ctx.talk("5")
    assert [m.text for m in store.load(ctx.id, ctx.provider).messages] == [m.text for m in ctx.messages]
