"""Forks, imports, exports, and prompts in flight."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

from ctxstore import Context, Store, new_id
from ctxstore.errors import ConfigurationError, Interrupted, PayloadError, SchemaVersionError
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 10, "output_tokens": 2}


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider([{"text": r, "usage": USAGE} if isinstance(r, str) else r for r in replies])


def talked(store: Store, *turns: str, **options: Any) -> Context:
    ctx = store.create(llm(*[f"{t}!" for t in turns]), **options)
    for turn in turns:
        ctx.talk(turn)
    return ctx


# -- forks


def test_a_fork_goes_its_own_way_and_has_used_nothing(store: Store) -> None:
    ctx = talked(store, "a", "b", owner="o", metadata={"k": 1})
    fork = store.fork(ctx.id)
    assert (fork.forked_from, fork.forked_at, fork.owner, fork.message_count) == (ctx.id, 3, "o", 4)
    assert fork.total_tokens == 0 and fork.cost is None or fork.cost == 0
    live = store.load(fork.id, llm("c!"))
    assert [m.id for m in live.messages] == [m.id for m in ctx.messages], "messages keep their ids"
    assert live.metadata == {"k": 1} and live.thread_id != ctx.thread_id
    live.talk("c")
    assert live.token_usage.total_tokens == 12 and ctx.token_usage.total_tokens == 24
    assert [m.text for m in store.load(ctx.id, llm()).messages] == ["a", "a!", "b", "b!"]
    assert store.usage(by=())[0].usage.total_tokens == 36, "what was inherited is not counted again"
    again = store.fork(fork.id, at=live.messages[1].id)
    assert [m.text for m in store.messages(again.id)] == ["a", "a!"]


def test_where_a_fork_may_be_cut(store: Store) -> None:
    ctx = store.create(llm())
    ctx.user("q")
    ctx.append({"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "name": "t", "arguments": "{}"}, {"id": "c2", "name": "t", "arguments": "{}"}]})  # fmt: skip
    ctx.tool("c1", 1).tool("c2", 2).assistant("done")
    store.save(ctx)
    for at, count in ((0, 1), (3, 4), (4, 5), (ctx.messages[0].id, 1), (str(ctx.messages[4].id), 5)):
        assert store.fork(ctx.id, at=at).message_count == count
    for at in (1, 2, ctx.messages[1].id):
        with pytest.raises(ConfigurationError, match="cut after position 3"):
            store.fork(ctx.id, at=at)
    for unknown in (5, -1, new_id()):
        with pytest.raises(ConfigurationError, match="no live message"):
            store.fork(ctx.id, at=unknown)
    assert len(store.list(limit=99)) == 6


def test_an_open_call_may_be_forked(store: Store) -> None:
    ctx = store.create(llm())
    ctx.user("q").append({"role": "assistant", "content": None,
                          "tool_calls": [{"id": "c1", "name": "t", "arguments": "{}"}]})  # fmt: skip
    store.save(ctx)
    fork = store.load(store.fork(ctx.id, at=1).id, llm())
    assert [c.id for c in fork.pending_calls] == ["c1"]
    assert store.load(store.fork(store.create(llm()).id).id, llm()).messages[:] == [], "nothing can be forked too"


# -- imports and exports


def test_what_is_exported_can_be_imported_elsewhere(store: Store, tmp_path: Any) -> None:
    ctx = talked(store, "a", "b", owner="o", metadata={"k": [1, None]}, params={"temperature": 0.2})
    payload = store.export(ctx.id)
    assert payload == store.load(ctx.id, llm()).to_payload()
    with Store(f"sqlite:///{tmp_path}/other.db") as other:
        other.upgrade()
        row = other.import_payload(payload, owner="p")
        assert (row.id, row.owner, row.message_count) == (ctx.id, "p", 4)
        assert other.import_payload(payload, owner="p") == row, "once is enough"
        back = other.load(ctx.id, llm("c!"))
        assert [m.message for m in other.history(ctx.id)] == list(ctx.messages)
        assert (back.metadata, back.params, back.token_usage) == (ctx.metadata, ctx.params, ctx.token_usage)
        back.talk("c")
        assert other.import_payload(payload, owner="p").message_count == 6, "it went on here: it is not put back"
        assert [r.requests for r in other.usage(by=())] == [1], "imported replies were paid elsewhere"
        assert other.usage(by=(), include_imported=True)[0].usage.total_tokens == 36
        assert other.usage(by=(), kind="imported")[0].requests == 2
        with pytest.raises(ConfigurationError, match="another owner"):
            other.import_payload(payload, owner="q")


def test_what_is_no_payload_is_not_imported(store: Store) -> None:
    payload = talked(store, "a").to_payload()
    for wrong in ("{", "[]", {}, {**payload, "messages": 7}):
        with pytest.raises(PayloadError):
            store.import_payload(wrong)  # type: ignore[arg-type]
    with pytest.raises(SchemaVersionError):
        store.import_payload({**payload, "schema_version": 99})
    with pytest.raises(ConfigurationError):
        store.import_payload(payload, owner=" o")
    assert len(store.list()) == 1


# -- in flight


def test_an_interrupt_leaves_the_prompt_in_flight(store: Store) -> None:
    provider = llm("never", "one")
    ctx = store.create(provider, owner="o")
    ctx.system("Be brief.")
    provider.on_request = lambda request: ctx.interrupt()
    with pytest.raises(Interrupted):
        ctx.talk("a")
    provider.on_request = None
    (lost,) = store.in_flight(ctx.id)
    assert [m.text for m in lost.messages] == ["Be brief.", "a"] and lost.context_id == ctx.id
    assert lost.created_at.tzinfo is not None and lost.base_revision == 1
    assert [r.outcome for r in store.usage(by=("outcome",))] == ["interrupted"]
    provider.replies[:] = ["one"]
    back = store.load(ctx.id, provider)
    assert list(back.messages) == [] and back.resend(lost).text == "one"
    assert [m.text for m in back.messages] == ["Be brief.", "a", "one"]
    assert store.in_flight(ctx.id) == []


def test_a_crash_leaves_it_and_it_can_be_dropped(store: Store, url: str) -> None:
    ctx = store.create(llm())
    code = f"""
        import os
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        llm = ScriptedProvider(["never"])
        llm.on_request = lambda request: os._exit(9)
        Store({url!r}).load({str(ctx.id)!r}, llm).talk("here I am")
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == 9
    (lost,) = store.in_flight(ctx.id)
    assert lost.messages[0].text == "here I am"
    assert store.drop_in_flight(ctx.id, lost.turn_id) is True
    assert store.drop_in_flight(ctx.id, lost.turn_id) is False
    assert store.in_flight(ctx.id) == []


def test_it_can_be_switched_off(url: str) -> None:
    with Store(url, record_in_flight=False) as store:
        provider = llm("one")
        ctx = store.create(provider)
        during: list[Any] = []
        provider.on_request = lambda request: during.extend(store.in_flight(ctx.id))
        ctx.talk("a")
        assert during == []
        stale = store.load(ctx.id, llm("never"))
        ctx.provider.replies.append("two")
        ctx.talk("b")
        from ctxstore.errors import StaleContextError

        with pytest.raises(StaleContextError):
            stale.talk("c")
        assert stale.provider.requests == [], "a stale writer is told before it pays all the same"


def test_two_turns_in_flight_are_told_apart(store: Store) -> None:
    ctx = store.create(llm("one"))
    first = llm("never")
    mine = store.load(ctx.id, first)

    def die(request: Any) -> None:
        raise KeyboardInterrupt

    first.on_request = die
    with pytest.raises(KeyboardInterrupt):
        mine.talk("first")
    ctx.talk("second")
    assert [f.messages[0].text for f in store.in_flight(ctx.id)] == ["first"]
