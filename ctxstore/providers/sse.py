"""Server-sent events out of bytes that are cut anywhere.

Lines end at CR LF, LF or CR and nowhere else: U+2028, U+0085 and the like stand inside JSON strings and must not
split them, which is why no library's ``splitlines`` is used here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Event", "EventReader"]

_END_OF_LINE = re.compile(b"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, empty when it has none, and its data lines joined by LF."""

    name: str
    data: str


class EventReader:
    """Reads one stream. Line ends are ASCII, so lines are found in bytes and decoded whole: no cut can split a
    character.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the line that is not complete yet
        self._first = True
        self._after_cr = False
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes."""
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):  # the second half of a CR LF that was cut
                data = data[1:]
        if not data:
            return []
        *lines, rest = _END_OF_LINE.split(data)
        events: list[Event] = []
        if lines:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces = []
            self._after_cr = data.endswith(b"\r")
            for line in lines:
                self._take(line, events)
        if rest:
            self._pieces.append(rest)
        return events

    def flush(self) -> list[Event]:
        """The event that the end of the stream completes, when its last blank line is missing."""
        events: list[Event] = []
        if self._pieces:
            line, self._pieces = b"".join(self._pieces), []
            self._take(line, events)
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(Event(self._name, "\n".join(self._data)))
            self._name, self._data = "", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value.decode("utf-8", "replace"))
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        # a comment has an empty field; id and retry are for clients that reconnect
