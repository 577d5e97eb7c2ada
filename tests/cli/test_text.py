"""What came from a conversation is shown and never obeyed; numbers read well."""

from __future__ import annotations

import io
import json
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import example, given, strategies as st
from rich.cells import cell_len
from rich.console import Console

from ctxstore.cli.text import bar, cell, clean, count, dollars, print_json, short, sparkline
from ctxstore.cli.voices import Voice, print_message
from ctxstore.messages import Message, ReasoningPart, TextPart, ToolCall, ToolResult


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = clean(text)
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068")
    assert clean(shown) == shown


def test_escapes_can_be_read() -> None:
    assert clean("\x1b[31mred\x07 \u202etxt \ud800") == r"\x1b[31mred\x07 \u202etxt \ud800"
    assert clean("naïve 日本 👩‍👩‍👧 [bold]x[/]\n\tnext") == "naïve 日本 👩‍👩‍👧 [bold]x[/]\n\tnext"


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "–"),
        (Decimal(0), "$0.00"),
        (Decimal("1234.5"), "$1,234.50"),
        (Decimal("0.0315"), "$0.0315"),
        (Decimal("0.25"), "$0.250"),
        (Decimal("0.000000000001"), "$0.000000000001"),
        (Decimal("-3.999"), "$-4.00"),
    ],
)
def test_dollars(amount: Decimal | None, shown: str) -> None:
    assert dollars(amount) == shown


def test_counts_and_bars() -> None:
    assert [count(n) for n in (None, 0, 1234567)] == ["–", "0", "1,234,567"]
    assert [bar(s, 4) for s in (0, 0.001, 0.5, 0.53, 1, 7)] == ["", "▏", "██", "██▏", "████", "████"]
    assert short("a  b\nc", 10) == "a b c"
    assert short("abcdef", 4) == "abc…"


def test_sparklines_and_cells() -> None:
    assert sparkline([0, 1, 50, 99, 100]) == "·▁▅██"
    assert sparkline([]) == ""
    assert [cell(v) for v in (None, "a,b", "=1+1", "-2", "@x", "\x1b[0m")] == [
        "",
        "a,b",
        "'=1+1",
        "'-2",
        "'@x",
        r"\x1b[0m",
    ]


def test_json_is_ascii_and_exact(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "\x1b[2J\x7f\x9b é \ud800", "cost": Decimal("0.0000001")}
    print_json(value)
    out = capsys.readouterr().out
    assert out.isascii()
    assert not [c for c in out if c < " " and c != "\n"]
    assert json.loads(out) == {"text": value["text"], "cost": "1E-7"}


def spoken(width: int, *pieces: str) -> list[str]:
    file = io.StringIO()
    with Voice(Console(file=file, width=width), "user") as voice:
        for piece in pieces:
            voice.write(piece)
    return file.getvalue().splitlines()


def test_a_voice_wraps_words_beside_its_gutter() -> None:
    lines = spoken(34, "the quick br", "own fox jumps over", " the lazy dog\nnext")
    assert lines == [
        "     user │ the quick brown fox",
        "          │ jumps over the lazy",
        "          │ dog",
        "          │ next",
    ]


@example(["\U0001f3fb"], 29)
@given(st.lists(st.text(max_size=60), max_size=6), st.integers(20, 100))
def test_a_voice_never_runs_over(pieces: list[str], width: int) -> None:
    lines = spoken(max(width, 29), *pieces)
    assert all(cell_len(line) <= max(width, 29) for line in lines)
    said = "".join("".join(line[11:]) for line in lines)
    assert "".join(said.split()) == "".join(clean("".join(pieces)).split())


def test_a_message_is_shown_part_by_part() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80)
    call = ToolCall(type="tool_call", id="c", name="stock", arguments='{"sku":"[red]A"}')
    print_message(
        console,
        Message.new(
            "assistant",
            [ReasoningPart(type="reasoning", text="hm"), TextPart(type="text", text="Let me look\x1b."), call],
        ),
    )
    print_message(
        console, Message.new("tool", [ToolResult.of(call, {"left": 3}), ToolResult.of(call, "no", error=True)])
    )
    assert file.getvalue().splitlines() == [
        " thinking │ hm",
        "assistant │ Let me look\\x1b.",
        '     tool │ → stock({"sku":"[red]A"})',
        '     tool │ ← {"left":3}',
        "     tool │ ✗ no",
    ]
