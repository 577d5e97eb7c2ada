"""Server-sent events: lines end at CR and LF alone, and no cut changes what is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from ctxstore.providers.sse import Event, EventReader


def read(*pieces: bytes) -> list[Event]:
    reader = EventReader()
    found = [event for piece in pieces for event in reader.feed(piece)]
    return found + reader.flush()


def datas(*pieces: bytes) -> list[str]:
    return [event.data for event in read(*pieces)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    assert datas(end.join([b"data: one", b"", b"data: two", b"", b""])) == ["one", "two"]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1d", "\x1e"])
def test_what_else_looks_like_a_line_end_is_text(char: str) -> None:
    text = json.dumps({"t": f"a{char}b"}, ensure_ascii=False)
    assert datas(f"data: {text}\n\n".encode()) == [text]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b": OPENROUTER PROCESSING\n\ndata: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data\n\n", [""]),
        (b"data: a", ["a"]),
        (b"data: a\n", ["a"]),
        (b"event: only\n\ndata: a\n\n", ["a"]),
        (b"id: 1\nretry: 5\nunknown: x\ndata: a\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: \xef\xbb\xbfa\n\n", ["\ufeffa"]),
        (b"data: \xff\n\n", ["\ufffd"]),
    ],
)
def test_events(given: bytes, wanted: list[str]) -> None:
    assert datas(given) == wanted


def test_the_name_of_an_event() -> None:
    assert read(b"event: error\ndata: a\n\ndata: b\n\n") == [Event("error", "a"), Event("", "b")]


TEXT = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=12)
LINES = st.lists(
    st.one_of(
        TEXT.map("data: {}".format),
        st.sampled_from(["", "", ": comment", "event: e", "data", "data:", "\ufeff", "id: 3"]),
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(lines=LINES, ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=12, max_size=12), cuts=st.data())
def test_no_cut_changes_what_is_read(lines: list[str], ends: list[str], cuts: st.DataObject) -> None:
    body = "".join(line + end for line, end in zip(lines, ends, strict=False)).encode()
    places = sorted(cuts.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    assert read(*pieces) == read(body)
    assert read(*(bytes([b]) for b in body)) == read(body)


@given(texts=st.lists(st.text(st.characters(blacklist_categories=("Cs",)), min_size=1), max_size=5))
def test_any_json_survives(texts: list[str]) -> None:
    body = "".join(f"data: {json.dumps(text, ensure_ascii=False)}\r\n\r\n" for text in texts).encode()
    assert [json.loads(d) for d in datas(body)] == texts
