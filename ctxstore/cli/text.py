"""Text for a terminal: what came from a conversation is shown, never obeyed."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.text import Text

__all__ = [
    "bar",
    "cell",
    "clean",
    "console",
    "count",
    "dollars",
    "print_json",
    "said",
    "short",
    "sparkline",
    "when",
]

# C0 but newline and tab, DEL, C1, lone surrogates, and the marks that turn the direction of text
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def clean(text: str) -> str:
    """``text`` with everything that a terminal would act on written as an escape, such as ``\\x1b``."""
    return _UNSAFE.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


def said(text: object, style: str = "") -> Text:
    """Text from a conversation: control characters escaped, markup left as it stands."""
    return Text(clean(str(text)), style=style)


def short(text: str | None, length: int) -> str:
    """The first ``length`` characters on one line."""
    line = " ".join((text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"


def console(err: bool = False) -> Console:
    """Where tables go: as wide as the terminal, 120 columns when there is none."""
    plain = not (sys.stderr if err else sys.stdout).isatty()
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=_pipe_width() if plain else None)


def _pipe_width() -> int:
    import os

    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) else 120


def count(number: int | None) -> str:
    """A count with thousands set apart; a dash when it is unknown."""
    return "–" if number is None else f"{number:,}"


def dollars(amount: Decimal | None) -> str:
    """US dollars: to the cent from one dollar on, three digits that matter below; a dash when unpriced."""
    if amount is None:
        return "–"
    if amount == 0 or abs(amount) >= 1:
        return f"${amount:,.2f}"
    places = min(12, 2 - amount.adjusted())
    return f"${amount:.{places}f}"


def when(time: dt.datetime | None) -> str:
    """A time in the local zone, to the minute."""
    return "–" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M")


def bar(share: float, width: int) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, in eighths of a column."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def sparkline(values: Sequence[int]) -> str:
    """One column a value, as high as it is against the highest; nothing at all is a dot."""
    most = max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, v * 8 // most)] if v > 0 else "·" for v in values)


def cell(value: object) -> str:
    """A value for CSV: no control character, and nothing that a spreadsheet would take for a formula."""
    text = "" if value is None else clean(str(value))
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else text


def print_json(value: Any) -> None:
    """``value`` as JSON on standard output: ASCII alone, so that no text in it reaches the terminal as a command."""
    sys.stdout.write(json.dumps(value, default=_jsonable, indent=2) + "\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, Enum):
        return value.name
    if hasattr(value, "to_payload"):
        return value.to_payload()
    raise TypeError(f"no JSON form: {type(value).__name__}")
