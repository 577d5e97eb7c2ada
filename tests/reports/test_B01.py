"""B01: two messages written in one batch at one and the same time came back in the wrong order now and then."""

from __future__ import annotations

import datetime as dt

from hypothesis import HealthCheck, given, settings, strategies as st

from ctxstore import clock
from ctxstore.messages import Message, ReasoningPart

from .scenes import scripted, texts, watched

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def test_two_hundred_loads_give_the_reasoning_before_the_reply(store, do):
    ctx = do(store, "create", scripted())
    with clock.frozen(NOON):
        thought = Message.new("assistant", [ReasoningPart(type="reasoning", text="hm", state={"id": "r1"})])
        reply = Message.new("assistant", "a1")
        assert thought.created_at == reply.created_at
        ctx.extend([thought, reply])
        do(store, "save", ctx)
        for _ in range(200):
            assert [m.id for m in do(store, "load", ctx.id, scripted()).messages] == [thought.id, reply.id]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=5), max_size=5))
def test_whatever_the_times_say_the_order_is_that_of_appending(store, batches):
    """Also the ids: each is made at another time, ahead or behind."""
    ctx = store.create(scripted())
    wrote = []
    for batch in batches:
        for seconds in batch:
            with clock.frozen(NOON + dt.timedelta(seconds=seconds)):
                ctx.user(f"{len(wrote)}")
            wrote.append(str(len(wrote)))
        store.save(ctx)
    assert texts(store.load(ctx.id, scripted()).messages) == wrote
    assert texts(store.history(ctx.id)) == wrote
    assert texts(store.messages(ctx.id, limit=3)) == wrote[-3:]


def test_every_select_of_messages_says_its_order(store):
    with clock.frozen(NOON):
        ctx = store.create(scripted("one"))
        ctx.talk("a")
        flight = Message.new("user", "b")
        ctx.append(flight).save()
        with watched(store.engine) as seen:
            store.load(ctx.id, scripted())
            store.messages(ctx.id)
            store.messages(ctx.id, limit=1, before=2)
            store.history(ctx.id)
            store.search("a")
            store.export(ctx.id)
            store.fork(ctx.id)
    of_messages = [s for s in seen if s.upper().startswith(("SELECT", "(SELECT", "WITH")) and "ctxstore_messages" in s]
    assert len(of_messages) >= 5
    for statement in of_messages:
        assert "position" in statement.upper().rpartition("ORDER BY")[2].lower(), statement
