"""Who says what, as it arrives: text wrapped beside a gutter that names the speaker."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import Self

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from .. import jsontext
from ..errors import ProviderError
from ..messages import Message, ToolCall, ToolResult
from ..sink import Sink
from .text import clean, said, short

__all__ = ["Live", "Voice", "print_message"]

STYLES = {
    "system": "magenta",
    "developer": "magenta",
    "user": "green",
    "assistant": "cyan",
    "thinking": "bright_black",
    "tool": "yellow",
}
GUTTER = 12
LONG = 400
"""Characters of a call or a result that are shown."""
_PIECE = re.compile(r"\n|[^\S\n]+|\S+")


class Voice:
    """One speaker. ``write`` takes text in any pieces; a word is shown when it is whole."""

    def __init__(self, console: Console, name: str, text_style: str = "") -> None:
        self._console = console
        self._name = name
        self._style = STYLES.get(name, "white")
        self._text_style = text_style
        self._width = max(16, console.width - GUTTER - 1)
        self._column = 0
        self._word = self._space = ""
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def write(self, text: str) -> None:
        """Say some more."""
        for piece in _PIECE.findall(clean(text)):
            if piece == "\n":
                self._flush()
                self._line()
                self._space = ""
            elif piece.isspace():
                self._flush()
                self._space += piece.expandtabs(4)
            else:
                self._word += piece

    def end(self) -> None:
        """That was it; the line ends."""
        self._flush()
        if self._open:
            self._console.print()
        self._open, self._column, self._space = False, 0, ""

    def _flush(self) -> None:
        """Show the word that is whole now, and the space before it unless the line breaks there."""
        if not self._word:
            return
        word, space = self._word, self._space
        self._word = self._space = ""
        if self._column + cell_len(space + word) > self._width and self._column:
            self._line()
        elif cell_len(space) < self._width:
            self._put(space)
        for chunk in chop_cells(word, self._width) if cell_len(word) > self._width else [word]:
            if self._column + cell_len(chunk) > self._width:
                self._line()
            self._put(chunk)

    def _line(self) -> None:
        if not self._open:
            self._gutter(self._name)
        self._console.print()
        self._gutter("")

    def _gutter(self, name: str) -> None:
        label = Text(f"{name:>{GUTTER - 3}} ", style=f"bold {self._style}")
        self._console.print(label.append("│ ", style=self._style), end="", soft_wrap=True)
        self._open, self._column = True, 0

    def _put(self, text: str) -> None:
        if not self._open:
            self._gutter(self._name)
        self._console.print(Text(text, style=self._text_style), end="", soft_wrap=True)
        self._column += cell_len(text)


class Live(Sink):
    """Shows a turn as it goes: thoughts, text, tools. ``pace`` is the time in seconds to rest after each piece."""

    def __init__(self, console: Console, pace: float = 0.0) -> None:
        self._console = console
        self._pace = pace
        self._voice: Voice | None = None
        self._who = ""

    def _say(self, who: str, text: str, style: str = "") -> None:
        if self._who != who:
            self.end()
            self._voice, self._who = Voice(self._console, who, style), who
        if self._voice is not None:
            self._voice.write(text)
        if self._pace:
            time.sleep(self._pace)

    def end(self) -> None:
        """The turn is over, well or not: the line ends."""
        if self._voice is not None:
            self._voice.end()
        self._voice, self._who = None, ""

    def on_content(self, text: str) -> None:
        """A piece of the reply."""
        self._say("assistant", text)

    def on_reasoning(self, text: str) -> None:
        """A piece of thought."""
        self._say("thinking", text, "bright_black")

    def on_tool_call(self, call: ToolCall) -> None:
        """One line for a call."""
        self._line(_called(call))

    def on_tool_return(self, call: ToolCall, result: ToolResult) -> None:
        """One line for its result."""
        self._line(_returned(result))

    def on_retry(self, error: ProviderError, attempt: int) -> None:
        """One line for a request that is sent again."""
        self.end()
        self._console.print(said(f"{' ' * GUTTER}{error}; again ({attempt})", "yellow"), soft_wrap=True)

    def _line(self, text: str) -> None:
        self.end()
        self._say("tool", text)
        self.end()


def print_message(console: Console, message: Message, note: str = "") -> None:
    """One message of a history: its reasoning, text, tool calls and results, media by name; then ``note``."""
    for who, text, style in _lines(message):
        with Voice(console, who, style) as voice:
            voice.write(text)
    if note:
        console.print(said(" " * GUTTER + note, "bright_black"), soft_wrap=True)


def _lines(message: Message) -> list[tuple[str, str, str]]:
    """Who, what and in which style."""
    out: list[tuple[str, str, str]] = []
    for part in message.parts:
        if part.type in {"text", "refusal"}:
            out.append((message.role, part.text, ""))
        elif part.type == "reasoning":
            out.append(("thinking", part.text, "bright_black"))
        elif part.type == "tool_call":
            out.append(("tool", _called(part), ""))
        elif part.type == "tool_result":
            out.append(("tool", _returned(part), ""))
        elif part.type in {"image", "file"}:
            name = part.name or part.path or part.url or part.media_type or "without a name"
            out.append((message.role, f"[{part.type}: {short(name, 80)}]", ""))
        else:
            out.append((message.role, f"[{short(part.type, 40)}]", ""))
    return [line for line in out if line[1]]


def _called(call: ToolCall) -> str:
    return f"→ {call.name}({short(call.arguments_json, LONG)})"


def _returned(result: ToolResult) -> str:
    value = result.value if isinstance(result.value, str) else jsontext.dumps(result.value)
    return f"{'✗' if result.error else '←'} {short(value, LONG)}"
