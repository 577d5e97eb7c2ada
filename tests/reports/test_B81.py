"""B81: the beginning of the request changed from turn to turn, so the provider's cache never found it."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, strategies as st

from ctxstore import Context, ToolPolicy, tool
from ctxstore.compaction import Trim
from ctxstore.providers import DeepSeek, Mistral, OpenAI

from .scenes import asking, scripted, sent

PROVIDERS = [OpenAI("k"), DeepSeek("k", model="m"), Mistral("k")]


@tool
def look(where: str = "here") -> dict[str, object]:
    """Look somewhere."""
    return {"b": where, "a": [1, 2.0, None]}


TURN = st.sampled_from(["text", "reasoning", "tools", "data", "pending", "reload"])


def options():
    return {"tools": [look], "instructions": "Be brief."}


@given(st.lists(TURN, min_size=2, max_size=6))
def test_what_was_sent_is_the_beginning_of_what_is_sent_next(turns):
    llm = scripted()
    ctx = Context(llm, **options()).system("You are kind.")
    allow = ToolPolicy(allow=["look"])
    for n, kind in enumerate(turns):
        ctx.tool_policy = allow if kind == "tools" else ToolPolicy()
        if kind == "reload":
            ctx = Context.restore(ctx.to_json(), provider=llm, **options())
        if kind in ("tools", "pending"):
            llm.replies.append(asking(f"c{n}", name="look", arguments='{ "where":"there" }'))
        if kind != "pending":
            llm.replies.append({"text": f"r{n}", "reasoning": "hm"} if kind == "reasoning" else f"r{n}")
        ctx.talk({"n": n, "z": 1, "a": 2} if kind == "data" else f"q{n}")
    for provider in PROVIDERS:
        bodies = [sent(request, provider) for request in llm.requests]
        for one, following in pairwise(bodies):
            assert json.dumps(following["messages"]).startswith(json.dumps(one["messages"])[:-1])
            assert json.dumps(following["tools"]) == json.dumps(one["tools"])
        assert [m["role"] for m in bodies[0]["messages"][:2]] == ["system", "system"]


def test_across_save_and_load(store, do):
    llm = scripted("one", "two", asking("c1"), "three")
    ctx = do(store, "create", llm, **options())
    do(ctx, "talk", "a")
    for prompt in ("b", "c", "d"):
        ctx = do(store, "load", ctx.id, llm, **options())
        do(ctx, "talk", prompt)
    bodies = [sent(request) for request in llm.requests]
    for one, following in pairwise(bodies):
        assert json.dumps(following["messages"]).startswith(json.dumps(one["messages"])[:-1])


def test_a_compaction_leaves_system_and_tools_as_they_were_and_nothing_to_do_changes_nothing(store, do):
    llm = scripted("one", "two", "three")
    ctx = do(store, "create", llm, **options())
    ctx.system("You are kind.")
    do(ctx, "talk", "a")
    do(ctx, "talk", "b")
    do(ctx, "compact", "what was said", keep=2)
    do(ctx, "talk", "c")
    before, after = sent(llm.requests[1]), sent(llm.requests[2])
    assert json.dumps(before["tools"]) == json.dumps(after["tools"])
    assert after["messages"][:2] == before["messages"][:2]
    assert [m["content"] for m in after["messages"][3:]] == ["b", "two", "c"]


def test_a_compactor_with_nothing_to_do_changes_nothing(store, do, engine):
    for compactor in (Trim(max_messages=50), Trim(max_tokens=10**6)):
        llm = scripted("one", "two")
        ctx = do(store, "create", llm, compactor=compactor)
        do(ctx, "talk", "a")
        do(ctx, "talk", "b")
        assert [m.text for m in ctx.messages] == ["a", "one", "b", "two"]
        assert not ctx.compacted and ctx.summary is None
        revision = ctx.revision
        do(store, "save", ctx)
        assert ctx.revision == revision
