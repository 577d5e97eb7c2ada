"""A turn through the public names: what is sent, what is kept, what an error leaves behind."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest

from ctxstore import Context, ToolPolicy, tool
from ctxstore.errors import (
    ConfigurationError,
    Interrupted,
    InvalidIdError,
    NoSuchToolError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
    ToolLoopError,
    UnsupportedValueError,
)
from ctxstore.sink import Sink
from ctxstore.testing import ScriptedProvider


@tool
def stock(sku: str, depth: int = 1) -> dict[str, object]:
    """How many are left."""
    return {"sku": sku, "left": 3, "depth": depth}


def calls(*pairs: tuple[str, str, object]) -> dict[str, object]:
    return {"tool_calls": [{"id": i, "name": n, "arguments": a} for i, n, a in pairs]}


def talk(ctx: Context, prompt: object, how: str) -> str | None:
    """One turn in each of the four forms."""
    if how == "talk":
        return ctx.talk(prompt).text
    if how == "stream":
        return "".join(d.text for d in ctx.stream(prompt))
    if how == "atalk":
        return asyncio.run(ctx.atalk(prompt)).text

    async def read() -> str:
        return "".join([d.text async for d in ctx.astream(prompt)])

    return asyncio.run(read())


FORMS = ["talk", "stream", "atalk", "astream"]


@pytest.mark.parametrize("how", FORMS)
def test_the_four_forms_do_the_same(how):
    llm = ScriptedProvider([{"text": "one two  three", "usage": {"input_tokens": 5, "output_tokens": 3}}, "four"])
    ctx = Context(llm).system("Be brief.")
    assert talk(ctx, "hi", how) == "one two  three"
    assert talk(ctx, "again", how) == "four"
    assert [(m.role, m.text) for m in ctx.messages] == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", "one two  three"),
        ("user", "again"),
        ("assistant", "four"),
    ]
    assert [m.text for m in llm.requests[1].messages] == ["Be brief.", "hi", "one two  three", "again"]
    assert ctx.token_usage.total_tokens == 8 and ctx.context_used is None, "the last reply did not say"
    assert llm.requests[0].stream is ("stream" in how)


@pytest.mark.parametrize("how", FORMS)
def test_a_failed_request_changes_nothing(how):
    llm = ScriptedProvider(["one", ServerError("overloaded", status=529)])
    ctx = Context(llm)
    ctx.talk("a")
    before = ctx.to_json()
    with pytest.raises(ServerError) as caught:
        talk(ctx, "b", how)
    assert ctx.to_json() == before
    assert [m.text for m in caught.value.turn.messages] == ["b"]
    (entry,) = caught.value.turn.usage
    assert (entry.outcome, entry.error, entry.usage) == ("error", "ServerError", None)


@pytest.mark.parametrize("how", FORMS)
def test_the_tool_loop_runs_in_every_form(how):
    llm = ScriptedProvider([calls(("c1", "stock", {"sku": "A"})), "three left"])
    ctx = Context(llm, tools=[stock], tool_policy=ToolPolicy(allow=["stock"]))
    assert talk(ctx, "how many?", how) == "three left"
    assert [m.role for m in ctx.messages] == ["user", "assistant", "tool", "assistant"]
    assert ctx.tool_results[0].value == {"sku": "A", "left": 3, "depth": 1}


@pytest.mark.parametrize("how", FORMS)
def test_an_interrupt_leaves_the_context_as_it_was(how):
    llm = ScriptedProvider(["one", "never", "two"])
    ctx = Context(llm)
    ctx.talk("a")
    before = ctx.to_json()
    llm.on_request = lambda request: ctx.interrupt()
    with pytest.raises(Interrupted) as caught:
        talk(ctx, "b", how)
    assert ctx.to_json() == before
    assert [e.outcome for e in caught.value.turn.usage] == ["interrupted"]
    assert caught.value.turn.usage[0].usage is None, "unknown, not zero"
    llm.on_request = None
    assert talk(ctx, "c", how) == "never"


def test_an_interrupt_when_nothing_runs_does_nothing():
    ctx = Context(ScriptedProvider(["one"]))
    ctx.interrupt()
    assert ctx.talk("a").text == "one"


def test_leaving_a_stream_early_gives_the_turn_up():
    ctx = Context(ScriptedProvider(["one two three", "four"]))
    stream = ctx.stream("a")
    assert next(stream).text == "one "
    stream.close()
    assert len(ctx) == 0
    assert ctx.talk("b").text == "four"


def test_a_cancelled_task_gives_the_turn_up():
    async def main() -> None:
        started = asyncio.Event()

        @tool
        async def forever() -> str:
            """Never ends."""
            started.set()
            await asyncio.sleep(60)
            return "no"

        llm = ScriptedProvider([calls(("c1", "forever", {})), "next"])
        ctx = Context(llm, tools=[forever], tool_policy=ToolPolicy(allow=["forever"]))
        task = asyncio.create_task(ctx.atalk("go"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [m.role for m in ctx.messages] == ["user", "assistant"], "the request that was completed stays"
        assert (await ctx.atalk("on")).text == "next"
        assert ctx.tool_results[0].value["cancelled"] is True

    asyncio.run(main())


def test_an_interrupt_from_another_thread_ends_an_async_tool():
    async def main() -> None:
        @tool
        async def forever() -> str:
            """Never ends."""
            threading.Thread(target=ctx.interrupt).start()
            await asyncio.sleep(60)
            return "no"

        llm = ScriptedProvider([calls(("c1", "forever", {}))])
        ctx = Context(llm, tools=[forever], tool_policy=ToolPolicy(allow=["forever"]))
        with pytest.raises(Interrupted):
            await ctx.atalk("go")
        assert [c.id for c in ctx.pending_calls] == ["c1"]

    asyncio.run(main())


def test_a_request_is_sent_again_within_its_budget():
    heard = []

    class Ear(Sink):
        def on_retry(self, error, attempt):
            heard.append((type(error), attempt))

    down = [ServerError("down", status=500, retry_after=0.01), RateLimitError("slow", status=429, retry_after=0.01)]
    ctx = Context(ScriptedProvider([*down, "up"]), retry_budget=2, stream=Ear())
    assert ctx.talk("a").text == "up"
    assert heard == [(ServerError, 1), (RateLimitError, 2)]
    assert [e.outcome for e in ctx.state.pending_usage] == ["error", "error", "ok"]
    assert [e.attempt for e in ctx.state.pending_usage] == [1, 2, 3]


def test_a_stream_that_broke_off_is_not_sent_again_once_something_was_shown():
    class Cut(ScriptedProvider):
        pass

    llm = Cut(["half", "whole"])
    ctx = Context(llm, retry_budget=5, stream=True)
    fired = []

    def cut(delta):
        if not fired:
            fired.append(delta)
            raise StreamInterruptedError()

    with pytest.raises(StreamInterruptedError):
        ctx.talk("a", stream=cut)
    assert len(llm.requests) == 1 and len(ctx) == 0


def test_where_a_reply_goes():
    out = io.StringIO()
    ctx = Context(ScriptedProvider(["one two", {"reasoning": "hm", "text": "three"}]), stream=out)
    ctx.talk("a")
    assert out.getvalue() == "one two"
    seen = []
    ctx.talk("b", stream=seen.append)
    assert [(d.text, d.reasoning) for d in seen] == [("", "hm"), ("three", "")]
    assert ctx.messages[-1].reasoning == "hm" and ctx.messages[-1].text == "three"
    with pytest.raises(ConfigurationError, match="stream="):
        ctx.talk("c", stream=7)


def test_what_is_not_allowed_waits_and_what_is_denied_is_answered():
    llm = ScriptedProvider([calls(("a", "stock", {"sku": "A"}), ("b", "rm", {}), ("c", "gone", {})), "ok"])

    @tool
    def rm() -> None:
        """Remove everything."""
        raise AssertionError("it ran")

    ctx = Context(llm, tools=[stock, rm], tool_policy=ToolPolicy(allow=["gone"], deny=["rm"]))
    reply = ctx.talk("go")
    assert [c.id for c in reply.tool_calls] == ["a", "b", "c"]
    assert [c.id for c in ctx.pending_calls] == ["a"]
    assert [(r.id, r.error, r.value["type"]) for r in ctx.tool_results] == [
        ("b", True, "ToolDenied"), ("c", True, "NoSuchToolError"),
    ]  # fmt: skip
    assert ctx.talk(ctx.run_tools()).text == "ok"
    assert [r.id for m in llm.requests[-1].messages for r in m.tool_results] == ["a", "b", "c"], (
        "in order after the call"
    )


def test_rounds_are_bounded_and_the_last_calls_stay_pending():
    llm = ScriptedProvider([calls((f"c{i}", "stock", {"sku": "A"})) for i in range(9)])
    ctx = Context(llm, tools=[stock], tool_policy=ToolPolicy(allow=["stock"], max_rounds=2))
    with pytest.raises(ToolLoopError):
        ctx.talk("go")
    assert len(llm.requests) == 3 and [c.id for c in ctx.pending_calls] == ["c2"]
    none = Context(
        ScriptedProvider([calls(("x", "stock", {}))]), tools=[stock], tool_policy=ToolPolicy(["stock"], max_rounds=0)
    )
    assert [c.id for c in none.talk("go").tool_calls] == ["x"] and none.pending_calls


def test_arguments_are_validated_before_a_tool_runs():
    ctx = Context(
        ScriptedProvider([calls(("a", "stock", {"sku": "A", "depth": "deep"}), ("b", "stock", {"extra": 1}))]),
        tools=[stock],
    )
    ctx.talk("go")
    first, second = ctx.run_tools("thread")
    assert first.error and "depth" in first.value["message"]
    assert second.error and "sku" in second.value["message"] and "extra" in second.value["message"]


def test_a_tool_result_that_json_cannot_hold_is_told_to_the_model():
    @tool
    def mean() -> dict[str, float]:
        """The mean."""
        return {"mean": float("nan")}

    llm = ScriptedProvider([calls(("a", "mean", {})), "sorry"])
    ctx = Context(llm, tools=[mean], tool_policy=ToolPolicy(allow=["mean"]))
    assert ctx.talk("go").text == "sorry"
    assert ctx.tool_results[0].error and ".mean" in ctx.tool_results[0].value["message"]
    with pytest.raises(UnsupportedValueError) as caught:
        ctx.tool("z", {"rows": [{"mean": float("inf")}]})
    assert caught.value.path == "value.rows[0].mean" and len(ctx) == 4


def test_a_sync_turn_refuses_an_async_tool_and_names_the_way():
    @tool
    async def later() -> str:
        """Later."""
        return "now"

    llm = ScriptedProvider([calls(("a", "later", {})), calls(("b", "later", {})), "done"])
    ctx = Context(llm, tools=[later], tool_policy=ToolPolicy(allow=["later"]))
    with pytest.raises(ConfigurationError, match="atalk"):
        ctx.talk("go")
    assert asyncio.run(ctx.atalk("again")).text == "done"
    assert ctx.tool_results[-1].value == "now"


def test_intercept_and_filter_have_their_say():
    from ctxstore.messages import ToolResult

    seen = []

    def guard(call):
        seen.append(call.name)
        return ToolResult.of(call, "not today") if call.arguments == {"sku": "B"} else None

    llm = ScriptedProvider([calls(("a", "stock", {"sku": "A"}), ("b", "stock", {"sku": "B"})), "ok"])
    ctx = Context(
        llm, tools=[stock], tool_policy=ToolPolicy(allow=["stock"]), intercept=guard,
        filter=lambda m: m.model_copy(update={"content": (m.text or "").upper()}),
    )  # fmt: skip
    ctx.talk("shout")
    assert seen == ["stock", "stock"] and [r.value for r in ctx.tool_results][1] == "not today"
    assert llm.requests[0].messages[-1].text == "SHOUT" and ctx.messages[0].text == "SHOUT"


def test_instructions_go_first_and_are_no_messages():
    llm = ScriptedProvider(["one"])
    ctx = Context(llm, instructions="Be kind.").system("Be brief.")
    ctx.talk("a")
    assert [m.text for m in llm.requests[0].messages] == ["Be kind.", "Be brief.", "a"]
    assert [m.text for m in ctx.messages] == ["Be brief.", "a", "one"]


def test_one_context_serves_turns_one_after_the_other():
    llm = ScriptedProvider([f"r{n}" for n in range(40)])
    ctx = Context(llm)
    barrier = threading.Barrier(8)

    def work(n):
        barrier.wait()
        for k in range(5):
            ctx.talk(f"q{n}.{k}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert [m.role for m in ctx.messages] == ["user", "assistant"] * 40
    assert [m.text for m in ctx.messages][1::2] == [f"r{n}" for n in range(40)]


def test_tasks_are_served_in_order_and_a_failed_one_takes_no_other_with_it():
    async def main() -> None:
        llm = ScriptedProvider(["r0", ServerError("down", status=500), "r2", "r3"])
        ctx = Context(llm)
        done = await asyncio.gather(*(ctx.atalk(f"q{n}") for n in range(4)), return_exceptions=True)
        assert [getattr(r, "text", None) for r in done] == ["r0", None, "r2", "r3"]
        assert [m.text for m in ctx.messages] == ["q0", "r0", "q2", "r2", "q3", "r3"]

    asyncio.run(main())


def test_a_turn_inside_a_turn_of_the_same_context_is_refused_not_hung():
    @tool
    def again() -> str:
        """Talk to myself."""
        ctx.talk("me?")
        return "no"

    llm = ScriptedProvider([calls(("a", "again", {})), "ok"])
    ctx = Context(llm, tools=[again], tool_policy=ToolPolicy(allow=["again"]))
    assert ctx.talk("go").text == "ok"
    assert ctx.tool_results[0].error and ctx.tool_results[0].value["type"] == "ConfigurationError"
    llm.replies += ["a b c"]
    for _ in (stream := ctx.stream("x")):
        with pytest.raises(ConfigurationError, match="in the middle of a turn"):
            ctx.talk("y")
        break
    stream.close()


def test_resend_goes_on_from_what_has_no_reply():
    ctx = Context(ScriptedProvider(["here", "there"])).user("hello?")
    assert ctx.resend().text == "here"
    with pytest.raises(ConfigurationError, match="nothing to resend"):
        ctx.resend()
    with pytest.raises(ConfigurationError, match="nothing to send"):
        Context(ScriptedProvider(["x"])).talk([])


def test_a_tracer_that_fails_does_not_fail_the_turn(caplog):
    class Broken:
        def on_request_start(self, request):
            raise RuntimeError("no disk")

    ctx = Context(ScriptedProvider(["one"]), tracer=Broken())
    assert ctx.talk("a").text == "one"
    assert "tracer failed" in caplog.text


def test_what_is_wrong_with_a_context_is_said_at_once():
    llm = ScriptedProvider([])
    with pytest.raises(ConfigurationError, match="provider"):
        Context("openai")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode"):
        Context(llm, mode="responses")
    with pytest.raises(ConfigurationError, match="two tools"):
        Context(llm, tools=[stock, stock])
    with pytest.raises(ConfigurationError, match="retry_budget"):
        Context(llm, retry_budget=-1)
    with pytest.raises(InvalidIdError):
        Context(llm, id="custom")
    with pytest.raises(NoSuchToolError):
        Context(llm).cancel("x")
    with pytest.raises(ConfigurationError, match="bound to no store"):
        Context(llm).save()
    with pytest.raises(TypeError):
        Context(llm, temprature=1)  # type: ignore[call-arg]


def test_when_the_script_runs_out_it_says_so():
    ctx = Context(ScriptedProvider(["one"]))
    ctx.talk("a")
    with pytest.raises(ConfigurationError, match="no reply left"):
        ctx.talk("b")
    assert len(ctx) == 2


def test_a_schema_is_followed_or_refused():
    from pydantic import BaseModel

    from ctxstore.errors import PayloadError

    class City(BaseModel):
        name: str
        people: int

    llm = ScriptedProvider(['{"name": "Oslo", "people": 7}', '{"name": "Oslo"}', "[1, 2]"])
    ctx = Context(llm, schema=City)
    assert ctx.talk("a").parsed == City(name="Oslo", people=7)
    assert llm.requests[0].schema.name == "City"
    with pytest.raises(PayloadError, match="people"):
        _ = ctx.talk("b").parsed
    assert ctx.talk("c", schema=list[int]).parsed == [1, 2]
