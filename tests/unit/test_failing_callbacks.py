"""What a callback raises ends the turn; what was paid for or done by then is kept."""

from __future__ import annotations

from typing import Any

import pytest

from ctxstore import Context, ToolPolicy, tool
from ctxstore.compaction import Callback, Summarize
from ctxstore.errors import ConfigurationError
from ctxstore.sink import Sink
from ctxstore.testing import ScriptedProvider

USAGE = {"input_tokens": 90, "output_tokens": 5, "total_tokens": 95}


class _Failing(Sink):
    def on_tool_return(self, call: Any, result: Any) -> None:
        raise LookupError("the sink")


def test_what_a_tool_did_is_kept_when_whoever_hears_of_it_fails() -> None:
    ran = []

    @tool
    def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    llm = ScriptedProvider([{"tool_calls": [{"id": "c", "name": "pay", "arguments": {}}]}, "done"])
    ctx = Context(llm, tools=[pay], tool_policy=ToolPolicy(allow=["pay"]), stream=_Failing())
    with pytest.raises(LookupError):
        ctx.talk("pay")
    assert [r.value for r in ctx.tool_results] == ["paid"] and not ctx.pending_calls
    assert ctx.resend(stream=lambda delta: None).text == "done" and ran == [1]


def test_a_reply_is_kept_when_the_compactor_fails() -> None:
    def fail(messages: Any) -> Any:
        raise LookupError("the compactor")

    ctx = Context(ScriptedProvider([{"text": "one", "usage": USAGE}]), compactor=Callback(fail, max_messages=1))
    with pytest.raises(LookupError):
        ctx.talk("one?")
    assert [m.text for m in ctx.messages] == ["one?", "one"]
    assert [e.outcome for e in ctx.state.pending_usage] == ["ok"]


def test_a_summary_without_words_was_paid_for_all_the_same() -> None:
    llm = ScriptedProvider([{"text": "one", "usage": USAGE}, {"text": "", "usage": USAGE}], context_window=100)
    ctx = Context(llm, compactor=Summarize(keep=0))
    ctx.talk("one?")
    with pytest.raises(ConfigurationError, match="no summary"):
        ctx.talk("two?")
    assert [(e.kind, e.outcome) for e in ctx.state.pending_usage] == [("turn", "ok"), ("compaction", "ok")]


def test_scripted_usage_that_is_none_is_told() -> None:
    with pytest.raises(ConfigurationError, match="usage"):
        Context(ScriptedProvider([{"text": "x", "usage": {"input_tokens": "many"}}])).talk("Hi")
