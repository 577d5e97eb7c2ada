"""JSON text: what goes in comes out equal, and what JSON cannot hold is refused by its path."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
from collections import OrderedDict, namedtuple

import pytest
from hypothesis import given, strategies as st

from ctxstore import jsontext
from ctxstore.errors import PayloadError, UnsupportedValueError

_PAIRS = jsontext.join_surrogates
texts = st.text(st.characters(categories=None)).map(_PAIRS)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(leaves, lambda v: st.lists(v, max_size=4) | st.dictionaries(texts, v, max_size=4), max_leaves=12)


def same(a, b):
    """Equal, in type, sign of zero and order of keys too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


@given(values)
def test_what_goes_in_comes_out(value):
    text = jsontext.dumps(jsontext.check(value))
    assert same(jsontext.loads(text), value)
    assert same(json.loads(text), value), "the standard reader agrees"
    assert same(jsontext.loads(text.encode()), value), "the text has a UTF-8 form"
    assert jsontext.check_loaded(value) is value


@given(values)
def test_one_value_has_one_text(value):
    text = jsontext.dumps(value)
    assert jsontext.dumps(jsontext.loads(text)) == text
    assert "\x00" not in text


@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        "\ud800",
        "\udfff tail",
        "👍🏽 日本語 é é",
        2**70,
        -(2**70),
        pytest.param(10**4300 - 1, id="digits"),
        -0.0,
        5e-324,
        1.7976931348623157e308,
        0.1,
        "",
        None,
        [],
        {},
        {"b": 1, "a": 2, "": 3},
        "\u2028\u2029\x7f\x85",
        '\\ " / \b \f',
        "[not json",
        "null",
    ],
)
def test_by_name(value):
    assert same(jsontext.loads(jsontext.dumps(jsontext.check(value))), value)


def test_only_control_characters_and_surrogates_are_escaped():
    assert jsontext.dumps("é日👍\x7f/<>&\u2028") == '"é日👍\x7f/<>&\u2028"'
    assert jsontext.dumps("\x00\ud83d é") == '"\\u0000\\ud83d é"'


def test_check_gives_plain_values_that_share_nothing():
    class Word(str, enum.Enum):  # noqa: UP042  its str() is another text than its value
        YES = "yes"

    class Number(enum.IntEnum):
        ONE = 1

    class Text(str):
        def __str__(self):
            return "another"

    Point = namedtuple("Point", "x y")
    inner = [1]
    given = OrderedDict({Word.YES: Number.ONE, "t": Text("mine"), "p": Point(1, (2,)), "i": inner})
    out = jsontext.check(given)
    assert same(out, {"yes": 1, "t": "mine", "p": [1, [2]], "i": [1]})
    inner.append(2)
    assert out["i"] == [1]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (b"raw", "bytes"),
        (decimal.Decimal("1.5"), "Decimal"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "datetime"),
        (dt.date(2026, 1, 1), "date"),
        ({1, 2}, "set"),
        (object(), "object"),
        (1j, "complex"),
        ("\ud83d\ude00", "surrogate pair"),
        pytest.param(10**4300, "4300 digits", id="digits"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_path(bad, what):
    with pytest.raises(UnsupportedValueError, match=what) as caught:
        jsontext.check({"result": [{"fine": 1}, {"mean": bad}]}, "messages[3].content")
    assert caught.value.path == "messages[3].content.result[1].mean"
    assert str(caught.value).startswith(caught.value.path)
    assert isinstance(caught.value, PayloadError)


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), b"k", "\ud83d\ude00"])
def test_a_key_that_is_no_string_is_refused_by_its_path(key):
    with pytest.raises(UnsupportedValueError) as caught:
        jsontext.check({"a": [{key: 1}]})
    assert caught.value.path == "value.a[0] (a key)"


def nested(depth, kind):
    value = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"k": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("check", [jsontext.check, jsontext.check_loaded])
def test_depth(check, kind):
    deep = nested(128, kind)
    assert check(deep) == deep
    assert jsontext.loads(jsontext.dumps(deep)) == deep
    with pytest.raises(UnsupportedValueError, match="deeper than 128") as caught:
        check(nested(129, kind))
    assert caught.value.path == "value" + ("[0]" if kind is list else ".k") * 128


def test_a_value_that_holds_itself_is_too_deep():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(UnsupportedValueError):
        jsontext.check(loop)


@pytest.mark.parametrize("text", ["[1, 1e400]", '{"a": [[-1e999]]}'])
def test_a_number_that_overflows_is_refused_when_it_was_read(text):
    with pytest.raises(UnsupportedValueError, match="inf"):
        jsontext.check_loaded(jsontext.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        '{"a": 1',
        "[1,]",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "'a'",
        "nul",
        '"\\ud8"',
        "1 2",
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(PayloadError, match="no JSON"):
        jsontext.loads(text)


def test_a_text_that_holds_a_surrogate_itself_is_read():
    assert jsontext.loads('["\ud800", 1]') == ["\ud800", 1]
    with pytest.raises(PayloadError):
        jsontext.loads("\ud800")


@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b"\x80", b'"\xc3'])
def test_bytes_that_are_no_text_are_refused(raw):
    with pytest.raises(PayloadError):
        jsontext.loads(raw)


def test_a_pair_cut_in_two_is_joined():
    assert jsontext.join_surrogates("x\ud83d" + "\ude00y") == "x😀y"
    assert jsontext.join_surrogates("\ude00\ud83d") == "\ude00\ud83d"
    assert jsontext.join_surrogates("plain") == "plain"


@given(texts)
def test_searchable_text_is_what_every_database_takes(text):
    found = jsontext.searchable(text)
    assert len(found) == len(text)
    assert "\x00" not in found
    found.encode()
    assert all(a == b or b == "\ufffd" for a, b in zip(text, found, strict=True))
