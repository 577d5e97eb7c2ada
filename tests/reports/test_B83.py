"""B83: the model of an old conversation was retired, and the conversation could not be opened any more."""

from __future__ import annotations

import pytest

from ctxstore.errors import NotFoundError

from .scenes import asking, elsewhere, scripted, texts

USAGE = {"input_tokens": 5, "output_tokens": 2}


def old(store, do):
    llm = scripted({"text": "one", "usage": USAGE}, asking("c1", name="retired_tool"), model="m-old")
    ctx = do(store, "create", llm, params={"temperature": 0.2}, metadata={"k": 1})
    ctx.system("You are kind.")
    do(ctx, "talk", "a")
    do(ctx, "talk", "b")
    return ctx.id


class Elsewhere(type(scripted())):
    """Another provider, whose models these are not."""

    name = "elsewhere"


def test_it_opens_without_its_model_and_goes_on_with_another(store, do):
    identity = old(store, do)
    llm = Elsewhere(["three"], model="m-new")
    back = do(store, "load", identity, llm)
    assert back.model == "m-new" and llm.requests == []
    assert [(m.origin.model, m.usage.total_tokens if m.usage else None) for m in back.messages if m.origin] == [
        ("m-old", 7),
        ("m-old", None),
    ]
    assert back.params == {"temperature": 0.2} and back.metadata == {"k": 1}
    assert back.messages[0].text == "You are kind."
    do(back, "talk", "c")
    (request,) = llm.requests
    assert request.model == "m-new" and request.params == {"temperature": 0.2}
    assert request.messages[0].text == "You are kind."
    final = do(store, "load", identity, llm)
    assert texts(m for m in final.messages if m.role == "assistant") == ["one", None, "three"]
    assert [m.origin.model for m in final.messages if m.origin] == ["m-old", "m-old", "m-new"]


def test_with_its_own_provider_the_stored_model_is_asked_for_unless_another_is_named(store, do):
    """The provider decides what is retired; its refusal is typed, and naming a model goes on."""
    identity = old(store, do)
    gone = NotFoundError("no such model: m-old", status=404)
    llm = scripted(gone, "three", model="m-default")
    back = do(store, "load", identity, llm)
    assert back.model == "m-old"
    before = back.to_json()
    with pytest.raises(NotFoundError, match="m-old"):
        do(back, "talk", "c")
    assert back.to_json() == before
    assert do(back, "talk", "c", model="m-new").model == "m-new"
    assert do(store, "load", identity, scripted("x", model="z"), model="m-named").model == "m-named"


def test_other_tools_than_it_was_made_with(store, do):
    identity = old(store, do)
    back = do(store, "load", identity, scripted("three"))
    assert [c.name for c in back.pending_calls] == ["retired_tool"]
    (missing,) = do(back, "run_tools")
    assert missing.error and "retired_tool" in missing.value["message"]
    do(back, "talk", [missing])
    assert do(store, "load", identity, scripted()).pending_calls == []


def test_in_a_process_that_knows_nothing_of_it(store, url):
    identity = old(store, lambda thing, verb, *args, **options: getattr(thing, verb)(*args, **options))
    code = """
        from ctxstore import Store
        from ctxstore.testing import ScriptedProvider
        llm = ScriptedProvider(["three"], model="m-new")
        with Store(url) as store:
            ctx = store.load(identity, llm, model="m-new")
            ctx.talk("c")
            out = [llm.requests[0].model, llm.requests[0].params, llm.requests[0].messages[0].text]
    """
    assert elsewhere(code, url=url, identity=str(identity)) == ["m-new", {"temperature": 0.2}, "You are kind."]
