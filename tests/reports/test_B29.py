"""B29: an assistant message without content lost its tool call, or its null became an empty string."""

from __future__ import annotations

import pytest

from ctxstore.errors import ServerError

from .scenes import asking, call, elsewhere, result, scripted, stored

ARGUMENTS = '{"city":"Oslo",  "days":2}'


def test_null_stays_null_and_empty_empty(store, do, url):
    ctx = do(store, "create", scripted())
    for content in (None, "", []):
        ctx.append({"role": "assistant", "content": content}).append({"role": "user", "content": content})
    ctx.assistant(None, [call("c1", ARGUMENTS)]).append(result("c1", None))
    ctx.assistant("", [call("c2", "")]).append(result("c2", ""))
    do(store, "save", ctx)
    back = do(store, "load", ctx.id, scripted())
    assert back.to_payload()["messages"] == ctx.to_payload()["messages"]
    assert [m.content for m in back.messages][:4] == [None, None, "", ""]
    assert [m.text for m in back.messages][6:9:2] == [None, ""]
    assert [r.value for r in back.tool_results] == [None, ""]
    one, two = (m.tool_calls[0] for m in back.messages if m.tool_calls)
    assert (one.id, one.name, one.arguments_json) == ("c1", "look", ARGUMENTS)
    assert (two.id, two.name, two.arguments_json) == ("c2", "look", "")
    code = """
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        with Store(url) as store:
            out = store.load(identity, ScriptedProvider([])).to_payload()["messages"]
    """
    assert elsewhere(code, url=url, identity=str(ctx.id)) == ctx.to_payload()["messages"]


def test_a_reply_of_nothing_but_a_call(store, do):
    ctx = do(store, "create", scripted(asking("c1", arguments=ARGUMENTS), {"text": None}, {"text": ""}))
    do(ctx, "talk", "go")
    do(ctx, "talk", [result("c1", 1)])
    do(ctx, "talk", "and?")
    back = do(store, "load", ctx.id, scripted())
    assert [m.text for m in back.messages if m.role == "assistant"] == [None, None, ""]
    assert back.messages[1].tool_calls[0].arguments_json == ARGUMENTS


@pytest.mark.parametrize("how", ["refused", "pending"])
def test_no_empty_row_stands_for_a_reply_that_is_not_there(store, do, engine, how):
    llm = scripted("one")
    ctx = do(store, "create", llm)
    do(ctx, "talk", "a")
    seen = []
    llm.on_request = lambda request: seen.append(stored(engine, "ctxstore_messages", "position, role, text"))
    llm.replies.append(ServerError("down", status=500) if how == "refused" else "two")
    if how == "refused":
        with pytest.raises(ServerError):
            do(ctx, "talk", "b")
    else:
        do(ctx, "talk", "b")
    rows = [(0, "user", "a"), (1, "assistant", "one")]
    assert seen == [rows], "while it is waited for"
    assert stored(engine, "ctxstore_in_flight") == []
    assert stored(engine, "ctxstore_messages", "position, role, text") == (
        rows if how == "refused" else [*rows, (2, "user", "b"), (3, "assistant", "two")]
    )
