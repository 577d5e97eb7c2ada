"""B23: of two tool calls in one reply only the first one's result was stored."""

from __future__ import annotations

import itertools
import json

import pytest

from ctxstore import ToolPolicy, tool

from .scenes import asking, result, scripted, sent


def follow_up(llm):
    messages = sent(llm.requests[-1])["messages"]
    return [
        (m["role"], [c["id"] for c in m["tool_calls"]])
        if m.get("tool_calls")
        else (m["role"], m.get("tool_call_id"), m["content"])
        for m in messages
    ]


WHOLE = [("user", None, "go"), ("assistant", ["a", "b"]), ("tool", "a", "A"), ("tool", "b", "B")]


@pytest.mark.parametrize("order", list(itertools.permutations("ab")), ids="".join)
@pytest.mark.parametrize("how", ["together", "one by one", "with a restart between"])
def test_both_results_are_there_once_each(store, do, order, how):
    llm = scripted(asking("a", "b"), "done")
    ctx = do(store, "create", llm)
    do(ctx, "talk", "go")
    results = [result(i, i.upper()) for i in order]
    if how == "together":
        do(ctx, "talk", results)
    elif how == "one by one":
        ctx.append(results[0]).append(results[1])
        do(ctx, "talk", results)  # and again as the prompt
    else:
        do(store, "save", ctx.append(results[0]))
        ctx = do(store, "load", ctx.id, llm)
        assert [c.id for c in ctx.pending_calls] == [order[1]]
        do(ctx, "talk", [results[1]])
    back = do(store, "load", ctx.id, scripted())
    assert sorted(r.id for r in back.tool_results) == ["a", "b"]
    assert follow_up(llm) == WHOLE


@pytest.mark.parametrize("strategy", ["sequential", "thread"])
def test_run_by_the_policy_or_by_hand(store, do, strategy):
    @tool
    def look(which: str) -> str:
        """Look."""
        return which.upper()

    def asked():
        calls = [{"id": i, "name": "look", "arguments": json.dumps({"which": i})} for i in "ab"]
        return {"tool_calls": calls}

    llm = scripted(asked(), "done")
    do(do(store, "create", llm, tools=[look], tool_policy=ToolPolicy(allow=["look"], strategy=strategy)), "talk", "go")
    assert follow_up(llm) == WHOLE
    llm = scripted(asked(), "done")
    ctx = do(store, "create", llm, tools=[look])
    do(ctx, "talk", "go")
    do(ctx, "talk", do(ctx, "run_tools", strategy))
    assert follow_up(llm) == WHOLE
    assert sorted(r.id for r in do(store, "load", ctx.id, scripted()).tool_results) == ["a", "b"]


def test_ids_that_come_again_are_other_calls(store, do):
    """Some servers number their calls from 0 in every reply."""
    llm = scripted(asking("0"), "one", asking("0"), "two")
    ctx = do(store, "create", llm)
    for n in (1, 2):
        do(ctx, "talk", f"go {n}")
        ctx = do(store, "load", ctx.id, llm)
        assert [c.id for c in ctx.pending_calls] == ["0"]
        do(ctx, "talk", [result("0", f"R{n}")])
    assert [m["content"] for m in sent(llm.requests[-1])["messages"] if m["role"] == "tool"] == ["R1", "R2"]
