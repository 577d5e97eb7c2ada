"""Versions 1 and 2, as llm.rb wrote them, become version 3; and a version 4 is one entry more."""

from __future__ import annotations

import copy
import datetime as dt
import json
from pathlib import Path
from uuid import UUID

import pytest

from ctxstore import clock, jsontext
from ctxstore.errors import PayloadError, SchemaVersionError
from ctxstore.messages import DataPart, FilePart, ImagePart, ReasoningPart, TextPart, ToolCall, ToolResult
from ctxstore.payload import codec, upcasts
from ctxstore.payload.upcasts import Source, Upcast

FILES = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
ID = UUID("0198f2c4-7a10-7c31-9d55-3b1f0e6a9c42")
MESSAGE_ID = "0198f2c4-7b20-7003-8000-000000000003"


def load(*messages, version=2, **head):
    return codec.load(
        {"schema_version": version, "id": str(ID), "model": "m-small", **head, "messages": list(messages)}
    )


def one(version=2, provider=None, **message):
    head = {} if provider is None else {"provider": provider}
    return load({"role": "user", **message}, version=version, **head).messages[0]


# -- real files


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_that_llm_rb_wrote(path):
    old = json.loads(path.read_text("utf-8"))
    before = copy.deepcopy(old)
    document = codec.load(old)
    assert old == before, "what is loaded is left as it was"
    assert [m.role for m in document.messages] == [m["role"] for m in old["messages"]]
    assert document.head.model == "gpt-4.1-mini"
    assert document.head.compacted is False
    new = codec.dump(document)
    assert new["schema_version"] == 3
    assert "original_tool_calls" not in jsontext.dumps(new)
    again = codec.load(new)
    assert codec.dump(again) == new
    assert codec.load(path.read_bytes()) == document, "text and mapping are one payload"
    assert sum(m.usage.total_tokens for m in document.messages if m.usage) == sum(
        m.get("usage", {}).get("total_tokens", 0) for m in old["messages"]
    )
    assert all((m.origin.provider, m.origin.model) == ("unknown", "gpt-4.1-mini") for m in document.messages if m.usage)


def test_the_texts_of_a_real_conversation():
    document = codec.load((FILES[0].parent / "text.json").read_text("utf-8"))
    assert [m.content for m in document.messages] == [
        "Hello",
        "Hello there — reply 1",
        "And again? <b>&\u2028 😀",
        "Hello there — reply 2",
    ]


def test_the_tool_calls_of_a_real_conversation():
    messages = codec.load((FILES[0].parent / "tool_parallel_done.json").read_text("utf-8")).messages
    assert [(c.id, c.name, c.arguments_json) for c in messages[2].tool_calls] == [
        ("call_3a", "weather", '{"city": "Lisbon"}'),
        ("call_3b", "weather", '{"city": "Oslo", "units": "c"}'),
    ]
    assert messages[2].text is None
    assert [r.value for r in messages[3].tool_results] == [
        {"city": "Lisbon", "degrees": 21.5, "note": None},
        {"city": "Oslo", "degrees": 21.5, "note": None},
    ]


# -- version 1


WIRE = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b" : 1,"a":2}'}}


@pytest.mark.parametrize(
    ("wire", "call"),
    [
        (WIRE, ("c1", '{"b" : 1,"a":2}')),
        ({"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"cut'}, ("c1", '{"cut')),
        ({"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}, ("c1", '{"a":1}')),
        ({"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}}, ("c1", '{"a":1}')),
        ({"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "x"}, ("call_0", '{"a":1}')),
        ({"functionCall": {"id": "c1", "name": "f"}}, ("c1", "{}")),
    ],
    ids=["chat", "responses", "anthropic", "bedrock", "google", "google-id"],
)
@pytest.mark.parametrize("tools", [None, []])
def test_calls_that_only_the_wire_form_has_are_derived(wire, call, tools):
    fields = {} if tools is None else {"tools": tools}
    message = one(1, role="assistant", content=None, original_tool_calls=[wire], **fields)
    assert [(c.id, c.name, c.arguments_json) for c in message.tool_calls] == [(call[0], "f", call[1])]


def test_the_exact_arguments_come_from_the_wire_form():
    calls = [{"id": "c1", "name": "f", "arguments": {"b": 1, "a": 2}}, {"id": "c2", "name": "g", "arguments": {}}]
    message = one(1, role="assistant", content=None, tools=calls, original_tool_calls=[WIRE])
    assert [c.arguments_json for c in message.tool_calls] == ['{"b" : 1,"a":2}', "{}"]


@pytest.mark.parametrize("wire", [None, [], "text", [None, 5, "x", {"type": "text"}], {}])
def test_a_wire_form_that_says_nothing_is_dropped(wire):
    message = one(1, role="assistant", content="hi", original_tool_calls=wire)
    assert message.content == "hi"
    assert not message.__pydantic_extra__


def test_the_wire_form_in_version_two_is_an_unknown_key():
    assert one(2, content="hi", original_tool_calls=[WIRE]).__pydantic_extra__ == {"original_tool_calls": [WIRE]}


# -- version 2: content


CALL = {"id": "c1", "name": "f", "arguments": {"sku": "A1"}}
PARSED = ToolCall(type="tool_call", id="c1", name="f", arguments_json='{"sku":"A1"}')


def text(value):
    return TextPart(type="text", text=value)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": "hi"}, "hi"),
        ({"content": ""}, ""),
        ({"content": None}, None),
        ({}, None),
        ({"content": []}, []),
        ({"content": "[not json"}, "[not json"),
        ({"content": ["a", "b"]}, [text("a"), text("b")]),
        ({"content": {"a": 1}}, [DataPart(type="data", value={"a": 1})]),
        ({"content": 5}, [DataPart(type="data", value=5)]),
        ({"content": ["a", 5, None]}, [text("a"), DataPart(type="data", value=5), DataPart(type="data", value=None)]),
        ({"role": "assistant", "content": "a", "tools": []}, "a"),
        ({"role": "assistant", "content": None, "tools": [CALL]}, [PARSED]),
        ({"role": "assistant", "content": "", "tools": [CALL]}, [text(""), PARSED]),
        ({"role": "assistant", "content": "a", "tools": [CALL]}, [text("a"), PARSED]),
        (
            {"role": "assistant", "content": "a", "tools": [CALL], "reasoning_content": "so"},
            [ReasoningPart(type="reasoning", text="so"), text("a"), PARSED],
        ),
        (
            {"role": "assistant", "content": "42", "reasoning_content": "so"},
            [ReasoningPart(type="reasoning", text="so"), text("42")],
        ),
        ({"role": "assistant", "content": "42", "reasoning_content": ""}, "42"),
        (
            {"role": "assistant", "content": None, "reasoning_content": "so"},
            [ReasoningPart(type="reasoning", text="so")],
        ),
    ],
)
def test_content(message, content):
    assert one(**message).content == content


def tagged(kind, **fields):
    return {"__llm_kind__": kind, **fields}


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (tagged("image_url", value="https://ex.test/a"), ImagePart(type="image", url="https://ex.test/a")),
        (tagged("local_file", path="p/dot.PNG"), ImagePart(type="image", path="p/dot.PNG", media_type="image/png")),
        (tagged("local_file", path="p/a.pdf"), FilePart(type="file", path="p/a.pdf")),
        (tagged("local_file", path="../../etc/hostname"), FilePart(type="file", path="../../etc/hostname")),
        (
            tagged("remote_file", value={"file?": True, "id": "file-1", "filename": "a.pdf"}),
            FilePart(type="file", file={"file?": True, "id": "file-1", "filename": "a.pdf"}),
        ),
        (tagged("hologram", value=1), DataPart(type="data", value=tagged("hologram", value=1))),
        (tagged("image_url", value=None), DataPart(type="data", value=tagged("image_url", value=None))),
        (tagged("local_file"), DataPart(type="data", value=tagged("local_file"))),
    ],
)
def test_tagged_objects(item, part):
    assert one(content=["look", item]).content == [text("look"), part]
    assert one(content=item).content == [part]


def test_arguments_that_are_a_string_stay_as_they_are():
    calls = [{"id": "c1", "name": "f", "arguments": '{"cut'}, {"id": "c2", "name": "f", "arguments": None}]
    message = one(role="assistant", content=None, tools=[*calls, {"id": "c3", "name": "f", "note": 1}])
    assert [c.arguments_json for c in message.tool_calls] == ['{"cut', "{}", "{}"]
    assert message.tool_calls[2].__pydantic_extra__ == {"note": 1}


# -- version 2: tool results


@pytest.mark.parametrize("value", [None, 0, "", False, [], {"left": 3}, "text"])
def test_a_tool_result_of_any_value(value):
    result = {"id": "c1", "name": "f", "value": value}
    for content in (result, [result]):
        message = one(role="tool", content=content)
        assert message.tool_results == [ToolResult(type="tool_result", id="c1", name="f", value=value)]


def test_a_tool_that_failed_is_an_error():
    failed = {"error": True, "type": "Boom", "message": "no"}
    message = one(role="tool", content=[{"id": "c1", "name": "f", "value": failed}])
    assert message.tool_results[0].error
    assert message.tool_results[0].value == failed


def test_a_tool_message_of_text():
    assert one(role="tool", content="just text").content == "just text"
    assert one(role="tool", content=["a", {"x": 1}]).content == [text("a"), DataPart(type="data", value={"x": 1})]


LOOK_ALIKE = {"id": "c1", "name": "f", "value": 3}


def test_data_of_a_user_that_looks_like_a_result_stays_data():
    message = one(role="user", content=LOOK_ALIKE)
    assert (message.role, message.content) == ("user", [DataPart(type="data", value=LOOK_ALIKE)])


def test_results_under_another_role_answer_the_calls_of_their_conversation():
    asked = {"role": "model", "content": None, "tools": [CALL]}
    calls, results, other = load(
        asked, {"role": "user", "content": [LOOK_ALIKE]}, {"role": "user", "content": [{**LOOK_ALIKE, "id": "c9"}]}
    ).messages
    assert calls.role == "assistant"
    assert results.role == "tool"
    assert results.tool_results[0].id == calls.tool_calls[0].id
    assert other.role == "user"
    assert not other.tool_results


# -- version 2: the rest


COUNTS = {
    "input_tokens": 300,
    "output_tokens": 19,
    "reasoning_tokens": 1,
    "input_audio_tokens": 2,
    "output_audio_tokens": 3,
    "input_image_tokens": 4,
    "cache_read_tokens": 5,
    "cache_write_tokens": 6,
    "total_tokens": 319,
}


def test_every_count_is_kept():
    message = one(role="assistant", content="a", usage=COUNTS)
    assert message.usage.to_payload() == COUNTS
    assert (message.origin.provider, message.origin.model) == ("unknown", "m-small")


def test_the_provider_of_the_head_is_where_replies_came_from():
    assert one(role="assistant", content="a", usage=COUNTS, provider="openai").origin.provider == "openai"


@pytest.mark.parametrize("usage", [None, {}, dict.fromkeys(COUNTS, 0), dict.fromkeys(COUNTS)])
def test_usage_that_nobody_measured_is_unknown(usage):
    message = one(role="assistant", content="a", usage=usage)
    assert message.usage is None
    assert message.origin is None


def test_marks_and_unknown_keys_are_kept():
    document = load(
        {"role": "system", "content": "s", "instructions": True},
        {"role": "user", "content": "u", "compaction": True, "mine": {"b": 1, "a": None}},
        future={"z": 1, "a": 2},
    )
    assert document.messages[0].__pydantic_extra__ == {"instructions": True}
    assert document.messages[1].__pydantic_extra__ == {"compaction": True, "mine": {"b": 1, "a": None}}
    assert document.head.extras == {"future": {"z": 1, "a": 2}}
    out = codec.dump(document)
    assert out["messages"][1]["mine"] == {"b": 1, "a": None}
    assert out["future"] == {"z": 1, "a": 2}


def test_ids_and_times_that_are_there_are_kept():
    message = one(id=MESSAGE_ID, content="a")
    assert str(message.id) == MESSAGE_ID
    assert message.created_at == clock.time_of(UUID(MESSAGE_ID))


@pytest.mark.parametrize(
    "written", ["2026-07-01T10:00:00Z", "2026-07-01T12:00:00+02:00", "2026-07-01 10:00:00 UTC", "2026-07-01T10:00:00"]
)
def test_the_time_of_a_message(written):
    assert one(content="a", created_at=written).created_at == dt.datetime(2026, 7, 1, 10, tzinfo=dt.UTC)


@pytest.mark.parametrize("written", ["yesterday", 5, {}])
def test_a_time_that_is_none_is_kept_apart(written):
    message = one(content="a", created_at=written)
    assert message.created_at is None
    assert message.__pydantic_extra__ == {"payload_created_at": written}


def test_an_id_of_another_kind_is_kept_apart():
    message = one(id="msg-7", content="a")
    assert message.id == codec.message_id_of(ID, 0)
    assert message.__pydantic_extra__ == {"payload_id": "msg-7"}


@pytest.mark.parametrize(("value", "compacted"), [(None, False), (False, False), (True, True)])
def test_compacted(value, compacted):
    assert load(compacted=value).head.compacted is compacted


def test_projections_of_version_two_are_not_read():
    lies = {"context_used": 9, "context_window": "x", "token_usage": {"input_tokens": 10**9}}
    assert load(**lies) == load()


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"tools": "x"}, "messages[0].tools:"),
        ({"tools": 5}, "messages[0].tools:"),
        ({"tools": [CALL, 5]}, "messages[0].tools[1]:"),
        ({"tools": [{"id": "c"}]}, "messages[0].tools[0]:"),
        ({"usage": 5}, "messages[0].usage:"),
        ({"usage": {"input_tokens": "many"}}, "messages[0].usage.input_tokens:"),
        ({"usage": {"input_tokens": -5}}, "messages[0].usage:"),
        ({"usage": {"input_tokens": 2**63}}, "messages[0].usage:"),
        ({"role": None}, "messages[0].role:"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_what_breaks_its_own_version_is_refused_by_its_path(message, path, version):
    with pytest.raises(PayloadError) as caught:
        load({"role": "assistant", "content": "a", **message}, version=version)
    assert str(caught.value).startswith(path)


# -- steps


@pytest.mark.parametrize("version", [1, 2])
def test_a_document_is_its_head_and_each_of_its_messages(version):
    document = {
        "schema_version": version,
        "model": "m",
        "compacted": None,
        "messages": [{"role": "user", "content": ["a"]}, {"role": "assistant", "content": "b", "usage": COUNTS}],
    }
    before = copy.deepcopy(document)
    whole = upcasts.upcast_document(document, version)
    head = upcasts.upcast_head({k: v for k, v in document.items() if k != "messages"}, version)
    messages = [upcasts.upcast_message(m, version, Source(model="m")) for m in document["messages"]]
    assert whole == {**head, "messages": messages}
    assert document == before


def test_every_step_says_what_it_is_for():
    assert sorted(upcasts.STEPS) == list(range(1, upcasts.current()))
    assert all(step.summary for step in upcasts.STEPS.values())


def test_a_version_four_is_one_entry_more(monkeypatch):
    old = codec.dump(load({"role": "user", "content": "hi"}, {"role": "assistant", "content": "a", "usage": COUNTS}))
    rows = [jsontext.dumps(m) for m in old["messages"]]
    with pytest.raises(SchemaVersionError):
        codec.load({**old, "schema_version": 4})
    step = Upcast(
        "messages have a mood, the head a colour",
        head=lambda head: {**head, "colour": "red"},
        message=lambda message, source: {**message, "mood": source.model},
    )
    monkeypatch.setitem(upcasts.STEPS, 3, step)
    document = codec.load(old)
    new = codec.dump(document)
    assert new["schema_version"] == 4
    assert new["colour"] == "red"
    assert [m["mood"] for m in new["messages"]] == ["m-small", "m-small"]
    assert codec.dump(codec.load(new)) == new
    assert codec.load_messages(rows, [3, 3], source=Source(model="m-small")) == document.messages
    mixed = codec.load_messages([rows[0], jsontext.dumps(new["messages"][1])], [3, 4], source=Source(model="m-small"))
    assert mixed == document.messages
    head = codec.load_head(jsontext.dumps({k: v for k, v in old.items() if k != "messages"}), 3)
    assert head == document.head
    with pytest.raises(SchemaVersionError, match="1, 2, 3, 4"):
        codec.check_version(5)
