"""B03: two workers on the same old copy each saved a tool call, and the store merged both without a word."""

from __future__ import annotations

import datetime as dt

import pytest

from ctxstore import Store, clock
from ctxstore.errors import StaleContextError

from .scenes import asking, result, scripted, texts

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def stored_three(store, do):
    ctx = do(store, "create", scripted("sure"))
    ctx.system("Be brief.")
    do(ctx, "talk", "help me")
    return ctx.id


@pytest.mark.parametrize("told", ["before its request", "after its request"])
def test_the_second_writer_is_told_and_comes_after_the_first(store, do, told):
    with clock.frozen(NOON):
        identity = stored_three(store, do)
        llm = scripted(asking("b1"))
        a, b = do(store, "load", identity, scripted(asking("a1"), "a2")), do(store, "load", identity, llm)
        if told == "before its request":
            do(a, "talk", "from A")
            with pytest.raises(StaleContextError):
                do(b, "talk", "from B")
            assert llm.requests == [], "nothing was paid"
        else:
            with Store(store.engine) as beside:
                other = beside.load(identity, scripted(asking("a1"), "a2"))
                llm.on_request = lambda request: other.talk("from A")
                with pytest.raises(StaleContextError) as caught:
                    do(b, "talk", "from B")
                assert [m.role for m in caught.value.turn.messages] == ["user", "assistant"], "what was paid is kept"
            a = do(store, "load", identity, scripted("a2"))
        now = do(store, "load", identity, scripted())
        assert texts(now.messages) == ["Be brief.", "help me", "sure", "from A", None]
        do(a, "talk", [result("a1", 1)])  # its second save in the same tick of the clock
        again = do(store, "load", identity, scripted(asking("b1"), "b2"))
        do(again, "talk", "from B")
        do(again, "talk", [result("b1", 2)])
    final = do(store, "load", identity, scripted())
    assert texts(final.messages)[3:] == ["from A", None, None, "a2", "from B", None, None, "b2"]
    assert [c.id for m in final.messages for c in m.tool_calls] == ["a1", "b1"]
    assert final.pending_calls == []


def test_by_hand_too(store, do):
    identity = stored_three(store, do)
    a, b = do(store, "load", identity, scripted()), do(store, "load", identity, scripted())
    do(store, "save", a.user("A"))
    b.user("B")
    for _ in range(2):
        with pytest.raises(StaleContextError):
            do(store, "save", b)
    do(store, "save", b, on_conflict="append")
    assert texts(do(store, "load", identity, scripted()).messages)[3:] == ["A", "B"]


def test_equal_times_are_no_conflict(store, do):
    with clock.frozen(NOON):
        ctx = do(store, "create", scripted(*"abcde"))
        for n in range(5):
            do(ctx, "talk", str(n))
        assert ctx.updated_at == NOON
    assert len(do(store, "load", ctx.id, scripted()).messages) == 10
