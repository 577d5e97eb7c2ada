"""B17: a second run that saved its whole input again doubled the history."""

from __future__ import annotations

import pytest

from ctxstore import Context
from ctxstore.errors import StaleContextError

from .scenes import scripted, stored, texts, watched


def run_one(store, do):
    ctx = do(store, "create", scripted({"text": "a1", "usage": {"input_tokens": 3, "output_tokens": 1}}))
    do(ctx, "talk", "u1")
    return ctx.id


def whole(ctx, how):
    """The history as a caller holds it, with two new messages behind."""
    new = [{"role": "user", "content": "u2"}, {"role": "assistant", "content": "a2"}]
    if how == "messages":
        return [*ctx.messages, *new]
    if how == "payload":
        return [*ctx.to_payload()["messages"], *new]
    return [*ctx.snapshot().messages, *new]


@pytest.mark.parametrize("how", ["messages", "payload", "snapshot"])
def test_the_whole_input_again_adds_what_is_new(store, do, how, engine):
    identity = run_one(store, do)
    ctx = do(store, "load", identity, scripted())
    ctx.extend(whole(ctx, how))
    do(store, "save", ctx)
    again = do(store, "load", identity, scripted())
    assert texts(again.messages) == ["u1", "a1", "u2", "a2"]
    assert again.token_usage.total_tokens == 4
    assert len(stored(engine, "ctxstore_messages", "position")) == 4, "nothing was written twice and retired"
    again.extend(again.messages)
    do(store, "save", again)
    assert again.revision == ctx.revision
    assert texts(do(store, "load", identity, scripted()).messages) == ["u1", "a1", "u2", "a2"]


def test_as_a_prompt_too(store, do):
    identity = run_one(store, do)
    llm = scripted("a2")
    ctx = do(store, "load", identity, llm)
    do(ctx, "talk", [*ctx.messages, {"role": "user", "content": "u2"}])
    assert texts(llm.requests[0].messages) == ["u1", "a1", "u2"]
    assert texts(do(store, "load", identity, scripted()).messages) == ["u1", "a1", "u2", "a2"]


def test_cleared_and_written_anew_it_is_paid_for_once(store, do):
    identity = run_one(store, do)
    ctx = do(store, "load", identity, scripted())
    history = list(ctx.messages)
    ctx.clear().extend(history)
    do(store, "save", ctx)
    back = do(store, "load", identity, scripted())
    assert texts(back.messages) == ["u1", "a1"] and back.token_usage.total_tokens == 4


def test_saving_what_did_not_change_writes_nothing(store, engine):
    ctx = store.create(scripted("a1"))
    ctx.talk("u1")
    before = [stored(engine, f"ctxstore_{t}") for t in ("contexts", "messages", "usage", "in_flight")]
    with watched(store.engine) as seen:
        for _ in range(3):
            store.save(ctx)
            ctx.save()
        store.save(store.load(ctx.id, scripted()))
    assert [s for s in seen if not s.upper().startswith(("SELECT", "(SELECT"))] == []
    assert [stored(engine, f"ctxstore_{t}") for t in ("contexts", "messages", "usage", "in_flight")] == before


def test_a_name_in_use_is_refused_and_not_appended_to(store, do, engine):
    identity = run_one(store, do)
    before = stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")
    with pytest.raises(StaleContextError, match="already"):
        do(store, "create", scripted(), id=identity)
    with pytest.raises(StaleContextError, match="already"):
        do(store, "save", Context(scripted(), id=identity).user("another conversation"))
    copy = do(store, "fork", identity)
    assert copy.id != identity and copy.message_count == 2
    assert do(store, "load", copy.id, scripted()).token_usage.total_tokens == 0, "paid for where it was made"
    do(store, "delete", copy.id)
    assert (stored(engine, "ctxstore_contexts"), stored(engine, "ctxstore_messages")) == before
