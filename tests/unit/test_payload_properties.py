"""Whatever a payload of the current version holds, it is read and written back as it was."""

from __future__ import annotations

import copy
import datetime as dt
from uuid import UUID

from hypothesis import given, strategies as st

from ctxstore import jsontext
from ctxstore.errors import PayloadError
from ctxstore.payload import codec, upcasts
from ctxstore.payload.schema import PROJECTIONS
from ctxstore.usage import COUNTS

texts = st.text(st.characters(categories=None), max_size=12).map(jsontext.join_surrogates)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)  # keys that nobody knows are Unicode
objects = st.dictionaries(texts, json_values, max_size=3)
ids = st.builds(
    lambda ms, a, b: str(UUID(int=ms << 80 | 7 << 76 | a << 64 | 2 << 62 | b)),
    *(st.integers(0, 2**bits - 1) for bits in (42, 12, 62)),
)
times = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)).map(  # noqa: DTZ001
    dt.datetime.isoformat
)
counts = st.integers(0, 2**40)


@st.composite
def keyed(draw, kind, known, optional=None, /, **fields):
    """A dict of ``fields``, some of ``optional`` and keys that nobody knows, in the order of a payload."""
    out = {"type": kind} if kind else {}
    out.update({k: draw(v) for k, v in fields.items()})
    out.update({k: draw(v) for k, v in (optional or {}).items() if draw(st.booleans())})
    extras = draw(st.dictionaries(names, json_values, max_size=2))
    return {**out, **{k: v for k, v in extras.items() if k not in known and k not in out}}


MEDIA = {"url": texts, "data": texts, "path": texts, "media_type": texts, "name": texts, "state": objects}
PARTS = {
    "type",
    "text",
    "state",
    "id",
    "name",
    "arguments",
    "arguments_json",
    "value",
    "error",
    "detail",
    "file",
    *MEDIA,
}
part = st.one_of(
    keyed("text", PARTS, {"state": objects}, text=texts),
    keyed("reasoning", PARTS, {"state": objects}, text=texts),
    keyed("refusal", PARTS, {"state": objects}, text=texts),
    keyed("tool_call", PARTS, {"state": objects}, id=texts, name=texts, arguments=texts),
    keyed("tool_result", PARTS, {"error": st.just(True)}, id=texts, name=texts, value=json_values),
    keyed("image", PARTS, {**MEDIA, "detail": texts}),
    keyed("file", PARTS, {**MEDIA, "file": objects}),
    keyed("data", PARTS, value=json_values),
    keyed("hologram", {"type"}, {"text": json_values, "state": json_values, "id": json_values}),
)
usage = st.dictionaries(st.sampled_from([c for c in COUNTS if c != "total_tokens"]), counts, max_size=9).map(
    lambda u: {**{c: u[c] for c in COUNTS if c in u}, "total_tokens": sum(u.values()), "of_tomorrow": 1}
)
ORIGIN = {"provider", "api", "model", "response_id"}
MESSAGE = {
    *("id", "role", "created_at", "content", "origin", "finish_reason", "usage", "cost_pico_usd", "inherited"),
}
message = keyed(
    None,
    MESSAGE,
    {
        "origin": keyed(None, ORIGIN, {"api": texts, "model": texts, "response_id": texts}, provider=texts),
        "finish_reason": texts,
        "usage": usage,
        "cost_pico_usd": counts,
        "inherited": st.just(True),
    },
    id=ids,
    role=texts,
    created_at=times,
    content=st.none() | texts | st.lists(part, max_size=4),
)
some_text = st.none() | texts
HEAD = {
    "id": ids,
    "thread_id": ids,
    "provider": some_text,
    "mode": some_text,
    "model": some_text,
    "params": st.dictionaries(st.sampled_from(["temperature", "stop", "seed", "x"]), json_values).filter(
        lambda p: _is_harmless(p)
    ),
    "tools": st.lists(texts, max_size=3),
    "metadata": objects,
    "summary": some_text,
    "compacted": st.booleans(),
    "started_at": times,
    "updated_at": times,
    "revision": counts,
    "carried_usage": usage,
    "carried_cost": counts,
    "carried_unpriced": counts,
    **dict.fromkeys(PROJECTIONS, json_values),
}


def _is_harmless(params):
    try:
        codec.check_params(params)
    except Exception:
        return False
    return True


@st.composite
def payloads(draw):
    head = {k: draw(v) for k, v in HEAD.items()}
    extras = draw(st.dictionaries(names, json_values, max_size=2))
    known = {"schema_version", "messages", *HEAD}
    messages = draw(st.lists(message, max_size=4))
    return {"schema_version": 3, **head, "messages": messages, **{k: v for k, v in extras.items() if k not in known}}


@given(payloads())
def test_a_payload_is_written_back_as_it_was_read(payload):
    before, text = copy.deepcopy(payload), jsontext.dumps(payload)
    shown = {key: payload[key] for key in PROJECTIONS}
    document = codec.load(payload)
    assert payload == before
    out = codec.dump(document, shown)
    assert jsontext.dumps(out) == text, "to the letter: keys in their order, None and '', big numbers, -0.0, surrogates"
    assert codec.load(text) == codec.load(text.encode()) == document
    rows = [codec.dump_message(m) for m in document.messages]
    assert codec.load_messages(rows, [3] * len(rows)) == document.messages
    assert codec.load_head(codec.dump_head(document.head), 3) == document.head


# -- older versions

answer = st.fixed_dictionaries({"id": texts, "name": some_text, "value": json_values})
llm_kind = st.one_of(
    st.fixed_dictionaries({"__llm_kind__": st.sampled_from(["image_url", "remote_file", "x"]), "value": json_values}),
    st.fixed_dictionaries({"__llm_kind__": st.just("local_file"), "path": texts}),
)
call = st.fixed_dictionaries({"id": some_text, "name": texts, "arguments": objects | texts})
wire = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {"id": some_text, "function": st.fixed_dictionaries({"name": texts, "arguments": json_values})}
    ),
)
old_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "model", "tool", "system"])},
    optional={
        "id": ids | json_values,
        "content": json_values | st.lists(texts | answer | llm_kind | json_values, max_size=3) | answer,
        "tools": st.none() | st.lists(call, max_size=3),
        "original_tool_calls": json_values | st.lists(wire, max_size=3),
        "reasoning_content": json_values,
        "usage": st.none() | st.dictionaries(st.sampled_from(COUNTS), counts | st.none(), max_size=9),
        "created_at": times | json_values,
        "instructions": st.just(True),
        "mine": json_values,
    },
)
old_payloads = st.fixed_dictionaries(
    {"schema_version": st.sampled_from([1, 2]), "messages": st.lists(old_message, max_size=5)},
    optional={"id": ids | texts, "model": some_text, "compacted": st.none() | st.booleans(), "mine": json_values},
)


@given(old_payloads)
def test_what_llm_rb_may_have_written_is_read_and_then_stays_as_it_is(old):
    before = copy.deepcopy(old)
    upcasts.upcast_document(old, old["schema_version"])
    assert old == before, "a step changes nothing that it is given"
    document = codec.load(old)
    assert old == before
    assert codec.load(jsontext.dumps(old)) == document, "ids and times are minted the same every time"
    new = codec.dump(document)
    assert codec.dump(codec.load(new)) == new
    assert len(new["messages"]) == len(old["messages"])


@given(json_values)
def test_any_other_json_is_refused_with_a_payload_error(value):
    for form in (value, jsontext.dumps(value), {"schema_version": 3, "messages": value, "metadata": value}):
        try:
            codec.load(form)
        except PayloadError:
            continue
        assert value in ({}, [], None) or (isinstance(value, list) and not value)
