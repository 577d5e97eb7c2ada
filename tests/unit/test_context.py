"""A context as a value: what it holds, how it changes, how it goes into a file and comes back."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from fractions import Fraction

import pytest

from ctxstore import Context, clock, new_id
from ctxstore.errors import ConfigurationError, PayloadError
from ctxstore.testing import ScriptedProvider


def reply(text, i=10, o=5):
    return {"text": text, "usage": {"input_tokens": i, "output_tokens": o}}


def test_role_helpers_chain_and_append_takes_what_people_write():
    ctx = Context(ScriptedProvider([]))
    assert ctx.system("s").user("u").assistant("a") is ctx
    ctx.append(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "x", "function": {"name": "t", "arguments": "{}"}}],
        }
    )
    ctx.tool("x", {"left": 3})
    ctx.append({"role": "tool", "tool_call_id": "y", "content": [1, None]})
    ctx.append(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ],
        }
    )
    assert [m.role for m in ctx.messages] == ["system", "user", "assistant", "assistant", "tool", "tool", "user"]
    assert ctx.messages[3].tool_calls[0].name == "t" and ctx.messages[4].tool_results[0].name == "t"
    assert ctx.messages[5].tool_results[0].value == [1, None]
    assert ctx.messages[6].parts[1].url == "https://x.test/a.png"
    before = ctx.to_json()
    with pytest.raises(PayloadError, match="role"):
        ctx.extend([{"role": "user", "content": "fine"}, {"content": "no role"}])
    assert ctx.to_json() == before, "all of them or none"


@pytest.mark.parametrize("value", [1, 2.5, True, [1, 2], {"a": {"b": None}}, 2**70])
def test_data_is_content_too(value):
    ctx = Context(ScriptedProvider([])).user(value)
    back = Context.restore(ctx.to_json(), provider=ScriptedProvider([]))
    assert back.messages[0].parts[0].value == value and back.messages[0].text is None


def test_ids_and_their_chain():
    class Row:
        id: object = None

    row, identity, other = Row(), new_id(), new_id()
    row.id = identity
    llm = ScriptedProvider([])
    assert Context(llm, record=row).id == identity and Context(llm, record=row).record is row
    assert Context(llm, record=row, id=other).id == other
    row.id = 7
    assert Context(llm, record=row).id not in (identity, other)
    payload = Context(llm, id=identity).to_payload()
    assert Context.restore(payload, provider=llm).id == identity
    assert Context.restore(payload, provider=llm, id=other).id == other
    assert Context(llm, id=identity.hex.upper()).id == identity
    with clock.frozen(dt.datetime(2026, 3, 8, 12, tzinfo=dt.UTC)):
        assert Context(llm).created_at == dt.datetime(2026, 3, 8, 12, tzinfo=dt.UTC)


def test_options_of_the_runtime_never_reach_a_request():
    llm = ScriptedProvider(["one"])
    ctx = Context(llm, params={"temperature": 0.2}, metadata={"ticket": 41}, retry_budget=1)
    ctx.talk("a", params={"top_p": 0.5})
    assert llm.requests[0].params == {"temperature": 0.2, "top_p": 0.5}
    assert ctx.params == {"temperature": 0.2}


@pytest.mark.parametrize("bad", [{"api_key": "sk-1"}, {"headers": {"Authorization": "x"}}, {"base_url": "http://x"}])
def test_keys_and_addresses_are_refused_by_name(bad):
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        Context(ScriptedProvider([]), params=bad)
    with pytest.raises(ConfigurationError):
        Context(ScriptedProvider(["x"])).talk("a", params=bad)


def test_the_measures_are_different_things():
    ctx = Context(ScriptedProvider([reply("a", 100, 20), reply("b", 150, 30)], context_window=1000))
    assert (ctx.context_used, ctx.context_usage, ctx.token_usage.total_tokens, ctx.cost.total) == (
        None,
        None,
        0,
        Decimal(0),
    )
    ctx.talk("1"), ctx.talk("2")
    assert (ctx.token_usage.total_tokens, ctx.context_used, ctx.context_usage) == (300, 180, Fraction(180, 1000))
    size = ctx.size(context_window=10)
    assert (size.message_count, size.estimated_tokens, size.remaining_tokens, size.used_percent) == (4, 1, 9, 10.0)
    assert ctx.size(context_window=0).used_percent is None and ctx.size(0).remaining_tokens == 0
    assert ctx.size().remaining_tokens == 999 and Context(ScriptedProvider([])).size().remaining_tokens is None


def test_each_reply_is_priced_by_its_own_model_and_stays_so():
    prices = {"cheap": {"input": 3, "output": 15}, "dear": {"input": 15, "output": 75}}
    llm = ScriptedProvider([reply("x", 1000, 100)] * 3 + [reply("y")], model="cheap", prices=prices)
    ctx = Context(llm)
    ctx.talk("1"), ctx.talk("2"), ctx.talk("3", model="dear")
    assert ctx.cost.total == Decimal("0.0315") and ctx.cost.unpriced == 0
    later = ScriptedProvider([], prices={"cheap": {"input": 300, "output": 1500}})
    assert Context.restore(ctx.to_json(), provider=later).cost.total == Decimal("0.0315"), "old turns keep their price"
    ctx.talk("4", model="unknown")
    assert ctx.cost.total == Decimal("0.0315") and ctx.cost.unpriced == 1


def test_clear_rewind_and_resume_never_unspend():
    ctx = Context(ScriptedProvider([reply("one"), reply("two"), reply("three")]), metadata={"k": 1})
    ctx.talk("a"), ctx.talk("b")
    saved, thread = ctx.snapshot(), ctx.thread_id
    ctx.rewind(to=1)
    assert [m.text for m in ctx.messages] == ["a", "one"] and ctx.token_usage.total_tokens == 30
    ctx.talk("c")
    ctx.clear()
    assert len(ctx) == 0 and ctx.thread_id != thread and ctx.metadata == {"k": 1} and ctx.token_usage.total_tokens == 45
    ctx.resume(saved)
    assert [m.text for m in ctx.messages] == ["a", "one", "b", "two"] and ctx.thread_id == thread
    assert ctx.token_usage.total_tokens == 45
    assert Context.restore(ctx.to_json(), provider=ctx.provider).token_usage.total_tokens == 45
    assert type(saved).model_validate_json(saved.model_dump_json()) == saved
    ctx.rewind(to=ctx.messages[1].id)
    assert len(ctx) == 2
    with pytest.raises(ConfigurationError, match="no message 9"):
        ctx.rewind(to=9)


def test_resume_by_parts():
    ctx = Context(ScriptedProvider(["x"])).user("old")
    thread = new_id()
    ctx.resume(thread_id=thread, messages=[{"role": "user", "content": "new"}], model="m", summary="S")
    assert [m.text for m in ctx.messages] == ["new"] and (ctx.thread_id, ctx.model, ctx.summary) == (thread, "m", "S")


def test_the_summary_is_sent_after_the_leading_system_messages():
    llm = ScriptedProvider(["x"])
    ctx = Context(llm).resume(
        messages=[{"role": "system", "content": "S"}, {"role": "user", "content": "u"}], summary="old things"
    )
    ctx.talk("now")
    sent = llm.requests[0].messages
    assert [m.role for m in sent] == ["system", "system", "user", "user"]
    assert sent[0].text == "S" and "old things" in (sent[1].text or "")


def test_saving_to_a_file_is_all_or_nothing(tmp_path):
    path = tmp_path / "chat.json"
    ctx = Context(ScriptedProvider(["one"])).user("a")
    ctx.save(path=path)
    first = path.read_text()
    assert json.loads(first)["schema_version"] == 3
    ctx.talk("b")
    ctx.save(path=path)
    back = Context.restore(path=path, provider=ScriptedProvider([]))
    assert back.to_payload() == ctx.to_payload()
    assert [p.name for p in tmp_path.iterdir()] == ["chat.json"], "no temporary file is left"
    with pytest.raises(PayloadError, match="cannot be read"):
        Context.restore(path=tmp_path / "gone.json", provider=ScriptedProvider([]))
    with pytest.raises(ConfigurationError):
        Context.restore(provider=ScriptedProvider([]))


def test_use_goes_on_elsewhere_with_the_history():
    class Other(ScriptedProvider):
        name = "other"

    ctx = Context(ScriptedProvider(["one"], model="m-first"))
    ctx.talk("a")
    ctx.use(provider=Other(["two"], model="m-other"))
    assert ctx.model == "m-other" and ctx.talk("b").model == "m-other"
    assert [m.origin.provider for m in ctx.messages if m.origin] == ["scripted", "other"]


def test_messages_are_read_only_and_repr_tells_no_secret():
    ctx = Context(ScriptedProvider(["one"]), params={"temperature": 0.2}).user("my secret")
    with pytest.raises((TypeError, AttributeError)):
        ctx.messages[0] = None  # type: ignore[index]
    with pytest.raises(ValueError, match="frozen"):
        ctx.messages[0].role = "system"
    assert "my secret" not in repr(ctx)
    assert ctx.messages.find_last(lambda m: m.role == "user") is ctx.messages[0]


def test_to_openai_has_one_message_a_result():
    ctx = Context(ScriptedProvider([])).user("u")
    ctx.assistant(
        None, tool_calls=[{"id": "a", "name": "t", "arguments": {"x": 1}}, {"id": "b", "name": "t", "arguments": ""}]
    )
    ctx.append([*(r for r in (ctx.cancel("a"), ctx.cancel("b")))])
    shaped = ctx.to_openai()
    assert [m["role"] for m in shaped] == ["user", "assistant", "tool", "tool"]
    assert (
        shaped[1]["tool_calls"][0]["function"] == {"name": "t", "arguments": '{"x":1}'} and "content" not in shaped[1]
    )
    assert [m["tool_call_id"] for m in shaped[2:]] == ["a", "b"]


def test_a_file_name_given_as_a_payload_is_recognised():
    with pytest.raises(PayloadError, match=r"path='talk\.json'"):
        Context.restore("talk.json", provider=ScriptedProvider([]))


def test_the_catalog_knows_windows_and_prices():
    llm = ScriptedProvider([], model="m", context_window=100, prices={"m": {"input": 1, "output": 2}})
    catalog = Context(llm).catalog
    assert catalog.context_window() == 100 and catalog.price().output == Decimal(2)
    assert catalog.price("unknown") is None
