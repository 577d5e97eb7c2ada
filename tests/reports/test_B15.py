"""B15: a text that looks like the beginning of JSON was guessed to be some, and the loader crashed on it."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from ctxstore import Context, tool
from ctxstore.messages import TextPart

from .scenes import asking, elsewhere, scripted, sent

LOOKS_LIKE_JSON = ["[not json", '{"a": 1', "123", "null", '"q"', '[{"type":"text","text":"x"}]', "", "true", "NaN"]
PARTS = [{"type": "text", "text": "x"}]
PARAMETERS = {
    "type": "object",
    "properties": {"zebra": {"type": "string"}, "apple": {"type": "integer", "minimum": 1, "default": 2}},
    "required": ["zebra"],
    "additionalProperties": False,
}


def test_a_text_stays_a_text_and_a_list_a_list(store, do):
    ctx = do(store, "create", scripted(*LOOKS_LIKE_JSON))
    for text in LOOKS_LIKE_JSON:
        do(ctx, "talk", text)
        ctx.append({"role": "user", "content": text}).tool("c", text)
    ctx.append({"role": "user", "content": PARTS})
    do(store, "save", ctx)
    back = do(store, "load", ctx.id, scripted())
    seen = [(m.role, m.content if m.role != "tool" else m.tool_results[0].value) for m in back.messages]
    assert seen[:-1] == [(role, text) for text in LOOKS_LIKE_JSON for role in ("user", "assistant", "user", "tool")]
    assert back.messages[-1].content == [TextPart(type="text", text="x")]
    for m in back.messages:
        assert all(type(r.value) is str for r in m.tool_results)


@given(st.text(st.characters(codec="utf-8")))
def test_no_text_is_guessed_at(text):
    back = Context.restore(Context(scripted()).user(text).user([text]).to_json(), provider=scripted())
    assert back.messages[0].content == text
    assert back.messages[1].content == [TextPart(type="text", text=text)]


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.none(), max_size=6))
def test_data_keeps_its_types_and_the_order_of_its_keys(data):
    back = Context.restore(Context(scripted()).tool("c", data).user(data).to_json(), provider=scripted())
    for value in (back.tool_results[0].value, back.messages[1].content[0].value):
        assert list(value.items()) == list(data.items())


def test_tool_definitions_keep_the_order_of_their_keys(store, url):
    """The same bytes before and after, and in another process: what a provider's cache goes by."""

    @tool(name="look", description="Look.", parameters=PARAMETERS)
    def look(**arguments):
        return arguments

    llm = scripted(asking("c1"), "again")
    ctx = store.create(llm, tools=[look])
    ctx.talk("go")
    first = json.dumps(sent(llm.requests[0])["tools"])
    assert json.loads(first)[0]["function"]["parameters"] == PARAMETERS
    assert first.index("zebra") < first.index("apple") < first.index("required")
    code = """
        import json
        from ctxstore import Store, tool
        from ctxstore.providers import OpenAI
        from ctxstore.testing import ScriptedProvider
        look = tool(name="look", description="Look.", parameters=parameters)(lambda **given: given)
        llm = ScriptedProvider(["ok"])
        with Store(url) as store:
            store.load(identity, llm, tools=[look]).talk("go on")
        out = json.dumps(json.loads(OpenAI("sk-test").build(llm.requests[0]).body)["tools"])
    """
    assert elsewhere(code, url=url, identity=str(ctx.id), parameters=PARAMETERS) == first
