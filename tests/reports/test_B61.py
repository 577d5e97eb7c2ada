"""B61: one id from a clock that was years ahead put itself after all later messages."""

from __future__ import annotations

import datetime as dt

from ctxstore import clock

from .scenes import elsewhere, scripted, texts

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
AHEAD = NOW + dt.timedelta(days=730)


def test_order_is_that_of_appending_whatever_the_clock_did(store, do):
    with clock.frozen(NOW):
        ctx = do(store, "create", scripted(*(f"r{n}" for n in range(5))))
    for n in range(5):
        with clock.frozen(AHEAD if n == 1 else NOW + dt.timedelta(seconds=n)):
            do(ctx, "talk", f"q{n}")
    wrote = [text for n in range(5) for text in (f"q{n}", f"r{n}")]
    with clock.frozen(NOW + dt.timedelta(minutes=1)):
        back = do(store, "load", ctx.id, scripted("r5"))
        assert texts(back.messages) == wrote
        assert [m.id for m in back.messages] != sorted(m.id for m in back.messages), "the ids alone would say otherwise"
        assert texts(do(store, "messages", ctx.id, limit=3)) == wrote[-3:]
        assert texts(do(store, "history", ctx.id)) == wrote
        do(back, "talk", "q5")
        assert texts(do(store, "messages", ctx.id, limit=3)) == ["r4", "q5", "r5"]
        first, *_ = page = do(store, "messages", ctx.id, limit=4)
        before = do(store, "messages", ctx.id, limit=4, before=first.position)
        assert texts([*before, *page]) == [*wrote, "q5", "r5"][-8:]


def test_nothing_is_hidden_from_the_pages_of_newest_contexts(store, do):
    made = []
    for n in range(7):
        with clock.frozen(AHEAD if n == 3 else NOW + dt.timedelta(seconds=n)):
            ctx = do(store, "create", scripted("ok"))
            do(ctx, "talk", str(n))
            made.append(ctx.id)
    seen, after = [], None
    while page := do(store, "list", limit=2, after=after):
        seen += [s.id for s in page]
        after = page[-1].cursor
    assert seen == [made[3], *(made[n] for n in (6, 5, 4, 2, 1, 0))]


def test_ids_follow_the_clock_back(store):
    """One wrong moment does not spoil the ids of a day; within a small step back they keep their order."""
    with clock.frozen(AHEAD):
        wrong = clock.new_id()
    with clock.frozen(NOW):
        assert clock.new_id() < wrong and abs(clock.time_of(clock.new_id()) - NOW) < dt.timedelta(milliseconds=51)
        ids = [clock.new_id() for _ in range(1000)]
        with clock.frozen(NOW - dt.timedelta(milliseconds=20)):
            ids += [clock.new_id() for _ in range(1000)]
    assert ids == sorted(set(ids))


def test_in_another_process_with_another_clock(store, url):
    ctx = store.create(scripted("one"))
    ctx.talk("a")
    code = """
        import datetime as dt
        from ctxstore import Store, clock
        from ctxstore.testing import ScriptedProvider
        with clock.frozen(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), Store(url) as store:
            store.load(identity, ScriptedProvider(["two"])).talk("b")
    """
    elsewhere(code, url=url, identity=str(ctx.id))
    back = store.load(ctx.id, scripted("three"))
    back.talk("c")
    assert texts(store.load(ctx.id, scripted()).messages) == ["a", "one", "b", "two", "c", "three"]
