"""B31: a reply that hit its token limit inside a call left broken arguments, and every later request failed."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from ctxstore import Context
from ctxstore.providers import DeepSeek, Groq, LlamaCpp, Mistral, OpenAI, OpenRouter

from .scenes import asking, elsewhere, scripted, sent

CUT = '{"command": "echo'
BROKEN = [CUT, "", "{", "[1]", "null", '"text"', "{'a': 1}", '{"a": NaN}', '{"a": 1} x', "\x00", "{" * 300]
BROKEN.append('{"a": "\ud83d')
PROVIDERS = [
    OpenAI("k"),
    DeepSeek("k", model="m"),
    Mistral("k"),
    Groq("k", model="m"),
    OpenRouter("k", model="m"),
    LlamaCpp(model="m"),
]


def test_the_string_is_kept_and_nothing_raises(store, do, engine, url):
    for broken in BROKEN:
        reply = asking("c1", arguments=broken) | {"finish_reason": "length"}
        ctx = do(store, "create", scripted(reply))
        do(ctx, "talk", "run it")
        back = do(store, "load", ctx.id, scripted("ok"))
        (found,) = back.pending_calls
        assert found.arguments_json == broken
        assert found.arguments == ({} if broken == "" else None)
        assert back.messages[1].finish_reason == "length"
        do(back, "talk", "go on")
        again = do(store, "load", ctx.id, scripted())
        assert again.messages[1].tool_calls[0].arguments_json == broken, "still the original"


@given(st.text())
def test_the_next_request_is_valid_with_any_provider(broken):
    llm = scripted(asking("c1", arguments=broken), "ok")
    ctx = Context(llm)
    ctx.talk("run it")
    ctx.talk("go on")
    for provider in PROVIDERS:
        (call,) = (c for m in sent(llm.requests[1], provider)["messages"] for c in m.get("tool_calls") or ())
        arguments = call["function"]["arguments"]
        assert isinstance(json.loads(arguments), dict)
        if isinstance(ctx.messages[1].tool_calls[0].arguments, dict) and broken.strip():
            assert arguments == broken, "what is valid goes to the letter"
    assert ctx.messages[1].tool_calls[0].arguments_json == broken


def test_a_tool_is_not_run_on_it_and_the_model_is_told():
    ran = []

    def look(command: str) -> str:
        """Look."""
        ran.append(command)
        return "done"

    ctx = Context(scripted(asking("c1", arguments=CUT)), tools=[look])
    ctx.talk("run it")
    (answer,) = ctx.run_tools()
    assert ran == [] and answer.error and CUT in answer.value["message"]


def test_in_another_process(store, url):
    ctx = store.create(scripted(asking("c1", arguments=CUT) | {"finish_reason": "length"}))
    ctx.talk("run it")
    code = """
        import json
        from ctxstore import Store
        from ctxstore.providers import OpenAI
        from ctxstore.testing import ScriptedProvider
        llm = ScriptedProvider(["ok"])
        with Store(url) as store:
            ctx = store.load(identity, llm)
            ctx.talk("go on")
            call = json.loads(OpenAI("k").build(llm.requests[0]).body)["messages"][1]["tool_calls"][0]
            out = [ctx.messages[1].tool_calls[0].arguments_json, json.loads(call["function"]["arguments"])]
    """
    kept, went = elsewhere(code, url=url, identity=str(ctx.id))
    assert kept == CUT and isinstance(went, dict)
