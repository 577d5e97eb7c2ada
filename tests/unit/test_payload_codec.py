"""The current version: what is written is read back equal, and what is no payload is refused."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import json
from decimal import Decimal
from types import MappingProxyType
from uuid import UUID

import pytest

from ctxstore import clock, jsontext
from ctxstore.errors import PayloadError, SchemaVersionError, UnsupportedValueError
from ctxstore.messages import DataPart, Message, TextPart, ToolResult
from ctxstore.payload import codec
from ctxstore.payload.schema import PROJECTIONS, Document, Head
from ctxstore.usage import TokenUsage

ID = UUID("0198f2c4-7a10-7c31-9d55-3b1f0e6a9c42")
OTHER = UUID("0198f2c4-7a10-7c31-9d55-3b1f0e6a9c43")
AT = "2026-07-01T10:00:00.250000+00:00"
SIGNED = {"signature": "Ep\x00\ud800=", "n": [2**70, -0.0, None]}

FULL = {
    "schema_version": 3,
    "id": str(ID),
    "thread_id": "0198f2c4-7a10-7c31-9d55-3b1f0e6a9c99",
    "provider": "openai",
    "mode": "responses",
    "model": "m-small",
    "params": {"temperature": 0.2, "stop": ["\n"], "big": 2**70},
    "tools": ["stock", "weather"],
    "metadata": {"b": None, "a": {"deep": [1, {"x": -0.0}]}},
    "summary": "So far \x00 \udfff",
    "compacted": True,
    "started_at": AT,
    "updated_at": "2026-07-01T10:00:00+00:00",
    "revision": 7,
    "carried_usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "from_the_future": 4},
    "carried_cost": 123456789,
    "carried_unpriced": 1,
    "context_used": 12,
    "context_window": 128000,
    "token_usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    "cost": "0.000123456789",
    "messages": [
        {"id": "0198f2c4-7a11-7001-8000-000000000001", "role": "system", "created_at": AT, "content": "Be brief."},
        {
            "id": "0198f2c4-7a11-7002-8000-000000000002",
            "role": "user",
            "created_at": AT,
            "content": [
                {"type": "text", "text": "a\x00b \ud800", "state": {"cache": True}, "note": None},
                {"type": "image", "url": "https://ex.test/a.png", "detail": "low"},
                {"type": "image", "data": "AAAA", "media_type": "image/png"},
                {"type": "file", "file": {"id": "f_1", "x": None}},
                {"type": "data", "value": None},
                {"type": "data", "value": {"z": 1, "a": [None, 2**70]}},
                {"type": "hologram", "value": None, "text": 5, "id": {"x": []}},
            ],
            "unknown": {"z": 1, "a": None},
        },
        {
            "id": "0198f2c4-7b20-7003-8000-000000000003",
            "role": "assistant",
            "created_at": AT,
            "content": [
                {"type": "reasoning", "text": "", "state": SIGNED},
                {"type": "refusal", "text": "no"},
                {"type": "tool_call", "id": "c7", "name": "stock", "arguments": '{"sku": "A', "state": {"i": "fc"}},
            ],
            "origin": {"provider": "openai", "api": "responses", "model": "m-small-1", "response_id": "r", "more": 1},
            "finish_reason": "tool_calls",
            "usage": {"input_tokens": 300, "output_tokens": 19, "total_tokens": 319, "thoughts_on_tuesday": 1},
            "cost_pico_usd": 99,
            "inherited": True,
        },
        {
            "id": "0198f2c4-7c30-7004-8000-000000000004",
            "role": "tool",
            "content": [
                {"type": "tool_result", "id": "c7", "name": "stock", "value": None},
                {"type": "tool_result", "id": "c8", "value": {"b": 1, "a": 0}, "error": True},
            ],
        },
        {"id": "0198f2c4-7d40-7005-8000-000000000005", "role": "assistant", "created_at": AT, "content": None},
        {"id": "0198f2c4-7d40-7005-8000-000000000006", "role": "critic", "created_at": AT, "content": ""},
        {"id": "0198f2c4-7d40-7005-8000-000000000007", "role": "user", "created_at": AT, "content": []},
    ],
    "from_the_future": {"b": 1, "a": [1, 2]},
    "another": None,
}
SHOWN = {key: FULL[key] for key in PROJECTIONS}


def payload(**changes):
    return {**copy.deepcopy(FULL), **changes}


def with_message(**message):
    return payload(messages=[{"id": str(ID), "role": "user", "content": "hi", **message}])


# -- round trips


@pytest.mark.parametrize(
    "form", [dict, MappingProxyType, jsontext.dumps, lambda p: jsontext.dumps(p).encode(), json.dumps]
)
def test_what_was_written_is_read_back_equal(form):
    given = payload()
    out = codec.dump(codec.load(form(given)), SHOWN)
    assert out == given == FULL
    assert jsontext.dumps(out) == jsontext.dumps(FULL), "keys in their order, and -0.0"


def test_nothing_is_shared_with_what_was_loaded_or_dumped():
    given = payload()
    document = codec.load(given)
    document.head.metadata["a"]["deep"].append("mine")
    document.head.params["stop"].append("mine")
    assert given == FULL
    out = codec.dump(document, SHOWN)
    out["metadata"]["a"]["deep"].clear()
    out["messages"][1]["content"][5]["value"]["a"].clear()
    assert document.head.metadata["a"]["deep"][-1] == "mine"
    assert document.messages[1].content[5].value["a"] == [None, 2**70]


def test_the_order_of_keys():
    given = payload()
    shuffled = dict(reversed(given.items()))
    known = [k for k in FULL if k not in ("from_the_future", "another")]
    assert list(codec.dump(codec.load(shuffled))) == [*known, "another", "from_the_future"]


def test_a_z_is_read_and_becomes_an_offset_once():
    out = codec.dump(codec.load(payload(started_at="2026-07-01T10:00:00Z")), SHOWN)
    assert out["started_at"] == "2026-07-01T10:00:00+00:00"
    assert codec.dump(codec.load(out), SHOWN) == out


@pytest.mark.parametrize("lie", [10**9, None, "x", {"input_tokens": 10**9}, [1e300]])
@pytest.mark.parametrize("key", PROJECTIONS)
def test_projections_are_never_read_back(key, lie):
    assert codec.load(payload(**{key: lie})) == codec.load(payload())
    assert codec.load_head(jsontext.dumps(payload(**{key: lie})), 3) == codec.load(payload()).head


def test_projections_may_be_values():
    shown = {"token_usage": TokenUsage(input_tokens=1, output_tokens=2), "cost": Decimal("0.25"), "context_used": None}
    out = codec.dump(codec.load(payload()), shown)
    assert [out[key] for key in PROJECTIONS] == [
        None,
        None,
        {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        "0.25",
    ]


def test_what_is_absent_takes_its_default():
    document = codec.load({"schema_version": 3, "id": str(ID)})
    assert document == Document(
        Head(ID, thread_id=ID, started_at=clock.time_of(ID), updated_at=clock.time_of(ID)), messages=[]
    )
    assert (
        codec.load({"schema_version": 3, "id": str(ID), "messages": None, "params": None, "revision": None}) == document
    )


def test_times_that_are_absent_are_those_of_the_messages():
    data = payload()
    del data["started_at"], data["updated_at"]
    data["messages"] = data["messages"][:3]
    data["messages"][2]["created_at"] = "2026-07-02T10:00:00+00:00"
    head = codec.load(data).head
    assert head.started_at.isoformat() == AT
    assert head.updated_at == dt.datetime(2026, 7, 2, 10, tzinfo=dt.UTC)


# -- ids


def test_the_id_that_is_asked_for_wins():
    document = codec.load(payload(), context_id=OTHER)
    assert document.head.id == OTHER
    assert document.head.metadata == FULL["metadata"]


@pytest.mark.parametrize("own", ["custom", 7, "9b2c4d1e-6f3a-4b8e-9c7d-0a1b2c3d4e5f", {"a": 1}])
def test_a_payload_id_of_another_kind_goes_to_the_metadata(own):
    head = codec.load(payload(id=own)).head
    assert clock.is_uuid7(head.id)
    assert head.metadata == {**FULL["metadata"], "payload_id": own}
    assert codec.load(payload(id=own), context_id=OTHER).head.metadata["payload_id"] == own


def test_ids_are_minted_the_same_every_time():
    bare = payload(id=None, messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    one, two = codec.load(bare), codec.load(json.dumps(dict(reversed(bare.items())), indent=2))
    assert one.head.id == two.head.id == codec.context_id_of(bare) == codec.context_id_of(json.dumps(bare).encode())
    assert [m.id for m in one.messages] == [m.id for m in two.messages]
    assert [m.id for m in one.messages] == [codec.message_id_of(one.head.id, i) for i in (0, 1)]
    assert all(clock.is_uuid7(i) for i in [one.head.id, *(m.id for m in one.messages)])
    assert codec.load(bare, context_id=OTHER).messages[0].id == codec.message_id_of(OTHER, 0) != one.messages[0].id
    assert codec.load({**bare, "summary": "other"}).head.id != one.head.id


def test_minted_ids_stay_what_they_are_from_release_to_release():
    document = {"schema_version": 1, "model": "m", "messages": []}
    assert str(codec.context_id_of(document)) == "00000000-0000-7a15-8609-685dd6da75ed"
    assert str(codec.message_id_of(ID, 3)) == "0198f2c4-7a10-74dc-8839-a4854bad4dd4"


def test_a_minted_id_carries_the_time_of_the_earliest_message():
    assert clock.time_of(codec.context_id_of(payload())).isoformat() == "2025-08-28T22:20:19.888000+00:00"
    messages = [{"role": "u"}, {"role": "u", "created_at": "2026-07-02T10:00:00Z"}, {"role": "u", "created_at": AT}]
    assert clock.time_of(codec.context_id_of(payload(messages=messages))).isoformat() == AT
    assert clock.time_of(codec.context_id_of(payload(messages=messages[:1]))) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    early = [{"role": "u", "created_at": "1969-07-20T20:17:40Z"}]
    assert clock.is_uuid7(codec.context_id_of(payload(messages=early)))


# -- refusals


@pytest.mark.parametrize("version", [4, 10**9, 0, -1, True, False, None, "3", "", 1.0, 3.0, [], {}, [3]])
def test_a_version_that_it_does_not_know_is_refused(version):
    for attempt in (
        lambda: codec.check_version(version),
        lambda: codec.load(payload(schema_version=version)),
        lambda: codec.load(jsontext.dumps(payload(schema_version=version))),
        lambda: codec.load({"schema_version": version, "messages": object()}),
        lambda: codec.load_head("{", version),
        lambda: codec.load_messages(["{"], [version]),
    ):
        with pytest.raises(SchemaVersionError) as caught:
            attempt()
        assert repr(version) in str(caught.value)
        assert "1, 2, 3" in str(caught.value)
        assert caught.value.found is version or caught.value.found == version
        assert caught.value.supported == (1, 2, 3)


def test_a_missing_version_is_refused():
    data = payload()
    del data["schema_version"]
    for form in (data, jsontext.dumps(data), {}):
        with pytest.raises(SchemaVersionError, match="no schema_version") as caught:
            codec.load(form)
        assert caught.value.found is None
        assert caught.value.supported == (1, 2, 3)


@pytest.mark.parametrize(
    "broken",
    [
        *(
            "[]",
            '"text"',
            '{"schema_version": 3',
            "",
            "null",
            "3",
            "true",
            "\ufeff{}",
            '{"schema_version": 3, "x": NaN}',
        ),
        *(b"\xff\xfe", b'{"schema_version": 3, "summary": "\xff"}', None, 3, [], object(), 1.5),
    ],
)
def test_what_is_no_payload_is_refused(broken):
    with pytest.raises(PayloadError):
        codec.load(broken)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (payload(messages={}), "messages: must be a list"),
        (payload(messages="text"), "messages: must be a list"),
        (payload(messages=[[]]), "messages[0]: must be an object"),
        (payload(messages=[*FULL["messages"], None]), "messages[7]: must be an object"),
        (with_message(role=5), "messages[0].role:"),
        (with_message(role=None), "messages[0].role:"),
        (with_message(id="msg-1"), "messages[0].id:"),
        (with_message(id=5), "messages[0].id:"),
        (with_message(content=5), "messages[0].content:"),
        (with_message(content={"type": "text", "text": "x"}), "messages[0].content:"),
        (with_message(content=["text"]), "messages[0].content[0]:"),
        (with_message(content=[{"text": "x"}]), "messages[0].content[0].type:"),
        (with_message(content=[{"type": None}]), "messages[0].content[0].type:"),
        (with_message(content=[{"type": "text", "text": "x"}, {"type": "text"}]), "messages[0].content[1].text:"),
        (with_message(content=[{"type": "text", "text": 5}]), "messages[0].content[0].text:"),
        (with_message(content=[{"type": "text", "text": "", "state": "x"}]), "messages[0].content[0].state:"),
        (with_message(content=[{"type": "tool_call", "id": "c", "name": "f"}]), "messages[0].content[0].arguments:"),
        (
            with_message(content=[{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]),
            "messages[0].content[0].arguments:",
        ),
        (
            with_message(content=[{"type": "tool_result", "id": "c", "value": 1, "error": "yes"}]),
            "messages[0].content[0].error:",
        ),
        (with_message(usage=5), "messages[0].usage:"),
        (with_message(usage={"input_tokens": "many"}), "messages[0].usage.input_tokens:"),
        (with_message(usage={"input_tokens": -1}), "messages[0].usage:"),
        (with_message(usage={"output_tokens": 2**63}), "messages[0].usage:"),
        (with_message(cost_pico_usd="9"), "messages[0].cost_pico_usd:"),
        (with_message(cost_pico_usd=2**63), "messages[0].cost_pico_usd:"),
        (with_message(inherited="yes"), "messages[0].inherited:"),
        (with_message(created_at="yesterday"), "messages[0].created_at:"),
        (with_message(created_at="2026-07-01T10:00:00"), "messages[0].created_at:"),
        (with_message(created_at="0001-01-01T00:00:00+14:00"), "messages[0].created_at:"),
        (with_message(origin="openai"), "messages[0].origin:"),
        (with_message(origin={"model": "m"}), "messages[0].origin.provider:"),
        (payload(model=5), "model:"),
        (payload(params=[]), "params:"),
        (payload(tools="stock"), "tools:"),
        (payload(tools=[5]), "tools[0]:"),
        (payload(metadata="x"), "metadata:"),
        (payload(compacted="yes"), "compacted:"),
        (payload(revision=True), "revision:"),
        (payload(revision=-1), "revision:"),
        (payload(carried_cost=1.5), "carried_cost:"),
        (payload(carried_cost=2**63), "carried_cost:"),
        (payload(carried_usage={"input_tokens": []}), "carried_usage.input_tokens:"),
        (payload(carried_usage={"input_tokens": -1}), "carried_usage:"),
        (payload(thread_id="x"), "thread_id:"),
        (payload(started_at="2026-07-01T10:00:00"), "started_at:"),
        (payload(updated_at="9999-12-31T23:59:59-14:00"), "updated_at:"),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused_by_its_path(data, path):
    before = copy.deepcopy(data)
    for form in (data, jsontext.dumps(data)):
        with pytest.raises(PayloadError) as caught:
            codec.load(form)
        assert str(caught.value).startswith(path)
        assert not isinstance(caught.value, SchemaVersionError)
    assert data == before


@pytest.mark.parametrize("data", [payload(**{"\ud800": 1}), with_message(**{"\ud800": 1})])
def test_an_unknown_key_that_is_no_unicode_is_refused(data):
    for form in (data, jsontext.dumps(data)):
        with pytest.raises(PayloadError, match="unicode"):
            codec.load(form)


def nested(depth):
    value: object = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("form", [dict, jsontext.dumps])
def test_depth(form):
    fits = with_message(content=[{"type": "data", "value": nested(128)}])
    assert codec.load(form(fits)).messages[0].content[0].value == nested(128)
    for depth in (129, 190, 300):
        with pytest.raises(UnsupportedValueError, match="deeper") as caught:
            codec.load(form(with_message(content=[{"type": "data", "value": nested(depth)}])))
        assert caught.value.path.startswith("payload.messages[0].content[0].value[0][0]")
    with pytest.raises(PayloadError):
        codec.load('{"schema_version":3,"x":' + "[" * 100_000)


@pytest.mark.parametrize(
    "value", [float("nan"), b"raw", Decimal(1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), {1: 2}, "\ud83d\ude00"]
)
def test_values_that_json_cannot_hold_are_refused_both_ways(value):
    with pytest.raises(UnsupportedValueError) as caught:
        codec.load(payload(metadata={"x": value}))
    assert caught.value.path.startswith("payload.metadata.x")
    document = codec.load(payload())
    document.head.metadata["x"] = {"y": value}
    for write in (codec.dump, lambda d: codec.dump_head(d.head)):
        with pytest.raises(UnsupportedValueError) as caught:
            write(document)
        assert caught.value.path.startswith("metadata.x.y")
    document = codec.load(payload())
    message = Message.new("tool", [ToolResult(type="tool_result", id="c", value={"mean": value})])
    document.messages.append(message)
    with pytest.raises(UnsupportedValueError) as caught:
        codec.dump(document)
    assert caught.value.path.startswith("messages[7].content[0].value.mean")
    with pytest.raises(UnsupportedValueError) as caught:
        codec.dump_message(message, "the new message")
    assert caught.value.path.startswith("the new message.content[0].value.mean")


def test_a_number_that_overflows_is_refused():
    with pytest.raises(UnsupportedValueError, match=r"payload\.metadata\.x"):
        codec.load(jsontext.dumps(payload()).replace('"metadata":{', '"metadata":{"x":1e400,'))


# -- the rows of a store


def rows(document):
    texts = [codec.dump_message(m) for m in document.messages]
    return texts, [3] * len(texts)


def test_a_head_and_its_messages_as_rows():
    document = codec.load(payload())
    text = codec.dump_head(document.head, SHOWN)
    assert list(json.loads(text)) == [k for k in FULL if k != "messages"]
    assert codec.load_head(text, 3) == document.head
    assert codec.load_head(text, 3, context_id=OTHER).id == OTHER
    texts, versions = rows(document)
    assert codec.load_messages(texts, versions) == document.messages
    assert codec.load_messages(texts[:1], versions[:1]) == document.messages[:1], "without surrogates, the fast way"
    assert codec.load_messages([], []) == []
    assert [json.loads(t) for t in texts] == FULL["messages"]


def test_reading_rows_leaves_the_garbage_collector_as_it_was():
    texts, versions = rows(codec.load(payload()))
    assert gc.isenabled()
    codec.load_messages(texts, versions)
    assert gc.isenabled()
    gc.disable()
    try:
        codec.load_messages(texts, versions)
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(PayloadError):
        codec.load_messages(["{"], [3])
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "must be an object, this is a list"),
        ("null", "must be an object, this is null"),
        ("{}", "Field required"),
        ('{"id": "x", "role": "user"}', "id: "),
        (f'{{"id":"{ID}","role":"user","content":[{{"type":"text"}}]}}', "content[0].text: Field required"),
        (f'{{"id":"{ID}","role":"user"}},{{"id":"{ID}","role":"user"}}', "no JSON"),
    ],
)
def test_a_row_that_is_no_message_is_named_by_its_position(row, said):
    texts, versions = rows(codec.load(payload()))
    texts[2:2], versions[2:2] = [row], [3]
    with pytest.raises(PayloadError) as caught:
        codec.load_messages([*texts], versions, positions=range(10, 10 + len(texts)))
    assert "position 12" in str(caught.value)
    assert said in str(caught.value)


def test_rows_without_ids_get_them_from_their_position():
    found = codec.load_messages(['{"role":"user"}', '{"role":"user"}'], [3, 3], positions=[4, 9], context_id=ID)
    assert [m.id for m in found] == [codec.message_id_of(ID, 4), codec.message_id_of(ID, 9)]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version":3}', '{"schema_version":3,"id":"custom"}'])
def test_a_row_that_is_no_head_is_refused(text):
    with pytest.raises(PayloadError):
        codec.load_head(text, 3)


def test_a_head_whose_column_says_another_version_is_refused():
    with pytest.raises(PayloadError, match=r"the row says schema_version 2, its payload 3"):
        codec.load_head(codec.dump_head(codec.load(payload()).head), 2)


def test_text_stays_readable_in_a_row():
    message = Message.new("user", [TextPart(type="text", text="日本 👍🏽\x00"), DataPart(type="data", value={"é": 1})])
    text = codec.dump_message(message)
    assert "日本 👍🏽\\u0000" in text
    assert '{"é":1}' in text
