"""Messages: what goes into a payload comes back equal, what is unknown is kept, and each reading of one is the same."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from ctxstore import clock
from ctxstore.messages import (
    MESSAGES,
    DataPart,
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolResult,
    UnknownPart,
    openai_shape,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
STATE = st.none() | st.dictionaries(TEXT, VALUE, min_size=1, max_size=2)
PART = st.one_of(
    st.builds(TextPart, type=st.just("text"), text=TEXT, state=STATE),
    st.builds(ReasoningPart, type=st.just("reasoning"), text=TEXT, state=STATE),
    st.builds(RefusalPart, type=st.just("refusal"), text=TEXT, state=STATE),
    st.builds(ToolCall, type=st.just("tool_call"), id=TEXT, name=TEXT, arguments_json=TEXT, state=STATE),
    st.builds(ToolResult, type=st.just("tool_result"), id=TEXT, name=TEXT, value=VALUE, error=st.booleans()),
    st.builds(ImagePart, type=st.just("image"), url=st.none() | TEXT, detail=st.none() | TEXT, state=STATE),
    st.builds(FilePart, type=st.just("file"), path=TEXT, media_type=TEXT, name=st.none() | TEXT),
    st.builds(DataPart, type=st.just("data"), value=VALUE),
    st.builds(UnknownPart, type=st.just("hologram"), depth=VALUE),
)
MESSAGE = st.builds(
    Message.new,
    st.sampled_from(["system", "developer", "user", "assistant", "tool", "ipython"]),
    st.none() | TEXT | st.lists(PART, max_size=4),
    finish_reason=st.none() | TEXT,
    origin=st.none() | st.just({"provider": "p", "model": "m", "response_id": "r", "region": "eu"}),
    inherited=st.booleans(),
    name=TEXT,
)


@given(st.lists(MESSAGE, max_size=3))
def test_a_payload_gives_the_message_back(messages):
    written = json.dumps([m.to_payload() for m in messages])
    back = MESSAGES.validate_json(written)
    assert back == messages
    assert json.dumps([m.to_payload() for m in back]) == written, "and the same text again, key by key"


@given(MESSAGE)
def test_parts_are_the_content(message):
    if isinstance(message.content, str):
        assert [p.text for p in message.parts] == [message.content] == [message.text]
    else:
        assert message.parts == (message.content or [])
    assert [*message.tool_calls, *message.tool_results] == [
        *(p for p in message.parts if isinstance(p, ToolCall)),
        *(p for p in message.parts if isinstance(p, ToolResult)),
    ]
    assert isinstance(message.plain_text, str)


def payload(**fields):
    return {"id": str(clock.new_id()), "role": "assistant", **fields}


def test_none_and_empty_are_two_things():
    none, empty, nothing = (Message.new("assistant", c) for c in (None, "", []))
    assert (none.text, empty.text, nothing.text) == (None, "", None)
    assert [m.to_payload()["content"] for m in (none, empty, nothing)] == [None, "", []]
    assert (none.parts, nothing.parts, len(empty.parts)) == ([], [], 1)


def test_text_is_joined_and_reasoning_apart():
    message = Message.model_validate(
        payload(
            content=[
                {"type": "reasoning", "text": "hm"},
                {"type": "text", "text": "a"},
                {"type": "reasoning", "text": ", so"},
                {"type": "text", "text": "b"},
                {"type": "refusal", "text": "no"},
            ]
        )
    )
    assert (message.text, message.reasoning) == ("ab", "hm, so")
    assert message.plain_text == "a\nb\nno"


def test_what_is_unknown_is_kept():
    raw = payload(
        content=[{"type": "text", "text": "a", "annotations": [1]}, {"type": "video", "url": "u", "fps": 24}],
        importance=3,
        usage={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "thermal_tokens": 9},
    )
    message = Message.model_validate(raw)
    assert isinstance(message.content[1], UnknownPart)
    assert message.to_payload() == raw


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "tool_call", "id": "1", "name": "t"},
        {"type": "tool_call", "id": "1", "name": "t", "arguments": {}},
        {"type": "tool_result", "value": 1},
        {"type": "tool_result", "id": "1", "error": 1},
        {"text": "no type"},
    ],
)
def test_a_known_part_that_is_broken_is_not_an_unknown_one(part):
    with pytest.raises(ValidationError):
        Message.model_validate(payload(content=[part]))


@pytest.mark.parametrize(
    "fields", [{"id": "x"}, {"role": 1}, {"content": 5}, {"created_at": "2026-01-01T00:00:00"}, {"inherited": "yes"}]
)
def test_a_broken_message_is_refused(fields):
    with pytest.raises(ValidationError):
        Message.model_validate(payload(**fields))


def test_messages_are_values():
    message = Message.new("user", [TextPart(type="text", text="a")])
    with pytest.raises(ValidationError):
        message.content = "b"
    with pytest.raises(ValidationError):
        message.content[0].text = "b"
    assert message == Message.model_validate(message.to_payload())
    assert message.id.version == 7 and message.created_at.tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": NaN}', None),
        ("", {}),
        ("  \n", {}),
        ('{"command": "echo', None),
        ("[1]", None),
        ("null", None),
        ('"text"', None),
        ('{"n": 1180591620717411303424}', {"n": 2**70}),
    ],
)
def test_the_argument_string_is_kept_and_parsed_when_it_can_be(written, parsed):
    call = ToolCall(type="tool_call", id="1", name="t", arguments_json=written)
    assert (call.arguments_json, call.arguments) == (written, parsed)
    assert call.to_payload() == {"type": "tool_call", "id": "1", "name": "t", "arguments": written}
    assert ToolCall.model_validate(call.to_payload()) == call


def test_a_result_that_is_none_says_so():
    call = ToolCall(type="tool_call", id="1", name="t", arguments_json="{}")
    assert ToolResult.of(call, None).to_payload() == {"type": "tool_result", "id": "1", "name": "t", "value": None}
    assert ToolResult.of(call, False, error=True).to_payload()["error"] is True


def test_openai_shape():
    calls = [{"type": "tool_call", "id": "1", "name": "t", "arguments": "{ }", "state": {"s": 1}}]
    asking = Message.model_validate(payload(content=calls))
    assert openai_shape(asking) == [
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "t", "arguments": "{ }"}}],
        }
    ]
    results = [{"type": "tool_result", "id": "1", "value": {"a": 1}}, {"type": "tool_result", "id": "2", "value": "b"}]
    assert openai_shape(Message.model_validate(payload(role="tool", content=results))) == [
        {"role": "tool", "tool_call_id": "1", "content": '{"a":1}'},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]
    assert asking.to_openai()["role"] == "assistant"
    picture = Message.new("user", [ImagePart(type="image", data="QUI=", media_type="image/png")])
    assert picture.to_openai()["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUI="}}]
    assert Message.new("user", None).to_openai() == {"role": "user", "content": None}
