"""Against llmock, a server of someone else's that speaks this form, breaks on demand, and grades its clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ctxstore import Context, ToolPolicy, errors, tool
from ctxstore.providers import OpenAI

pytest.importorskip("llmock")


class Talker:
    """The same conversation in either world."""

    def __init__(self, kind: str, llmock: Any) -> None:
        self.kind = kind
        llm = OpenAI("k", "gpt-4o", llmock.base_url(), read_timeout=0.5)
        self.ctx = Context(llm, tools=[weather], tool_policy=ToolPolicy(allow=["weather"]), retry_budget=3)

    def __call__(self, prompt: str = "Hi", **options: Any) -> Any:
        if self.kind == "sync":
            return self.ctx.talk(prompt, **options)

        return asyncio.run(self.ctx.atalk(prompt, **options))


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture(params=["sync", "async"])
def talk(request: pytest.FixtureRequest, llmock: Any) -> Talker:
    llmock.tool_mode("off")
    return Talker(request.param, llmock)


def test_plain_and_streamed(llmock: Any, talk: Talker) -> None:
    llmock.reply("Hello there.").reply("General.")
    assert talk().text == "Hello there."
    shown: list[str] = []
    response = talk("Again", stream=lambda d: shown.append(d.text))
    assert response.text == "General." == "".join(shown)
    assert response.usage is not None
    assert response.usage.total_tokens > 0
    assert [m.role for m in talk.ctx.messages] == ["user", "assistant"] * 2
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(llmock: Any, talk: Talker, stream: bool) -> None:
    llmock.call_tool("weather", {"city": "Paris"}).reply("It is sunny.")
    assert talk("How is Paris?", stream=stream).text == "It is sunny."
    assert [r.value for m in talk.ctx.messages for r in m.tool_results] == ["sunny in Paris"]


def test_broken_arguments_do_not_spoil_what_follows(llmock: Any, talk: Talker) -> None:
    llmock.call_tool("weather", {"city": "Paris"}).break_tool_call("malformed_arguments").reply("Sorry.")
    assert talk("How is Paris?").text == "Sorry."


@pytest.mark.parametrize("stream", [False, True])
def test_faults_that_pass(llmock: Any, talk: Talker, stream: bool) -> None:
    llmock.rate_limit(times=2, retry_after=0.3).reply("at last")
    assert talk(stream=stream).text == "at last"
    llmock.fail(529, times=1).reply("and again")
    assert talk("b", stream=stream).text == "and again"
    llmock.assert_resilient(strict=True)


def test_faults_that_stay(llmock: Any, talk: Talker) -> None:
    for status, code, kind in [
        (400, None, errors.InvalidRequestError),
        (400, "context_length_exceeded", errors.ContextWindowExceededError),
        (401, None, errors.AuthenticationError),
        (404, None, errors.NotFoundError),
    ]:
        llmock.fail(status, code=code)
        with pytest.raises(kind):
            talk(f"{status} {code}")
    assert len(llmock.requests) == 4
    assert list(talk.ctx.messages) == []
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt", "stall"])
def test_streams_that_break(llmock: Any, talk: Talker, fault: str) -> None:
    """A broken stream is told; the same turn sent again by the caller is what the server then sees."""
    llmock.reply("One two three four five six.", times=2).pace(20)
    getattr(llmock, fault)(after_chunks=2, **({"seconds": 3} if fault == "stall" else {}))
    with pytest.raises(errors.StreamInterruptedError) as caught:
        talk(stream=True)
    assert caught.value.turn is not None
    assert (caught.value.turn.messages[-1].text or "")[:3] == "One"
    assert list(talk.ctx.messages) == []
    assert len(llmock.requests) == 1  # which waits until the server, too, is done with it
    assert talk(stream=True).text == "One two three four five six."
    llmock.assert_resilient(strict=True)
