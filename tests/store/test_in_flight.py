"""What was sent and never got a reply stays in flight, however the turn was cut short, and its attempts are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Context, Store
from ctxstore.compaction import Summarize
from ctxstore.errors import Interrupted, RateLimitError, StoreUnavailableError
from ctxstore.sink import Sink
from ctxstore.testing import ScriptedProvider


def llm(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(list(replies))


def busy() -> RateLimitError:
    return RateLimitError("busy", retry_after=20.0, retryable=True)


def prompts(store: Store, ctx: Context) -> list[list[str | None]]:
    return [[m.text for m in flight.messages] for flight in store.in_flight(ctx.id)]


class _Stopping(Sink):
    """Ends the turn when it is about to wait for the next attempt."""

    def __init__(self, stop: Any) -> None:
        self.stop = stop

    def on_retry(self, error: Any, attempt: int) -> None:
        self.stop()


def test_an_interrupt_between_two_attempts_keeps_prompt_and_attempt(store: Store) -> None:
    ctx = store.create(llm(busy(), "two"), retry_budget=1)
    with pytest.raises(Interrupted) as caught:
        ctx.talk("one?", stream=_Stopping(lambda: ctx.interrupt()))
    assert [e.outcome for e in caught.value.turn.usage] == ["error"]
    assert prompts(store, ctx) == [["one?"]]
    ctx.talk("two?")
    assert prompts(store, ctx) == [["one?"]], "another turn does not take it out of flight"
    assert [(e.outcome, e.error) for e in store.attempts(ctx.id)] == [("error", "RateLimitError"), ("ok", None)]


def test_a_cancellation_between_two_attempts_keeps_prompt_and_attempt(store: Store) -> None:
    ctx = store.create(llm(busy(), "two"), retry_budget=1)

    async def main() -> None:
        task = asyncio.ensure_future(ctx.atalk("one?", stream=_Stopping(lambda: task.cancel())))
        with pytest.raises(asyncio.CancelledError):
            await task
        await ctx.atalk("two?")

    asyncio.run(main())
    assert prompts(store, ctx) == [["one?"]]
    assert [e.outcome for e in store.attempts(ctx.id)] == ["error", "ok"]


def test_what_a_sink_raises_between_two_attempts_loses_neither(store: Store) -> None:
    def fail() -> None:
        raise LookupError("the sink")

    ctx = store.create(llm(busy(), "two"), retry_budget=1)
    with pytest.raises(LookupError):
        ctx.talk("one?", stream=_Stopping(fail))
    ctx.talk("two?")
    assert prompts(store, ctx) == [["one?"]]
    assert [e.outcome for e in store.attempts(ctx.id)] == ["error", "ok"]


@pytest.mark.parametrize("wait", [0.0, 0.0005, 0.001, 0.002, 0.004, 0.008])
def test_a_cancellation_at_any_moment_leaves_no_lock_and_no_half_turn(store: Store, wait: float) -> None:
    ctx = store.create(llm("one", "two"))

    async def main() -> None:
        async with store:
            task = asyncio.ensure_future(ctx.atalk("one?"))
            await asyncio.sleep(wait)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                # while the traceback still holds whatever was under way
                await asyncio.wait_for(store.adrop_in_flight(ctx.id, ctx.id), 5)
            else:
                return
            await ctx.atalk("two?")

    asyncio.run(main())
    live = store.load(ctx.id, llm())
    assert list(live.messages) == list(ctx.messages)
    assert len(live.messages) % 2 == 0


def test_a_note_whose_writing_got_no_answer_goes_with_the_next_save(store: Store) -> None:
    ctx = store.create(llm("one"))
    lost = []

    @sa.event.listens_for(store.engine, "commit")
    def lose(connection: sa.Connection) -> None:
        if len(lost) < 2:  # the second try too
            lost.append(connection)
            connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
            raise sa.exc.OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)

    with pytest.raises(StoreUnavailableError):
        ctx.talk("one?")
    assert prompts(store, ctx) == [["one?"]]
    ctx.talk("one?")
    assert prompts(store, ctx) == [], "it was not sent, and was said again"


def test_an_interrupted_summary_is_in_the_ledger(store: Store) -> None:
    model = ScriptedProvider(
        [{"text": "one", "usage": {"input_tokens": 90, "output_tokens": 5, "total_tokens": 95}}, "summary"],
        context_window=100,
    )
    ctx = store.create(model, compactor=Summarize(keep=0))
    ctx.talk("one?")
    model.on_request = lambda request: ctx.interrupt()
    with pytest.raises(Interrupted):
        ctx.talk("two?")
    assert [(e.kind, e.outcome) for e in store.attempts(ctx.id)] == [("turn", "ok"), ("compaction", "interrupted")]
