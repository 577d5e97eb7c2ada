"""JSON as text, exactly: what goes in comes out equal, on every database.

``dumps`` writes one form for one value: keys in their order, no spaces, only control characters and lone surrogates
escaped. ``check`` refuses what JSON has no form for, with the path, before anything is written. ``loads`` reads it
back: big integers, -0.0 and lone surrogates included.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from .errors import PayloadError, UnsupportedValueError

__all__ = [
    "MAX_DEPTH",
    "FrozenDict",
    "FrozenList",
    "check",
    "check_loaded",
    "dumps",
    "join_surrogates",
    "loads",
    "read_only",
    "searchable",
]

MAX_DEPTH = 128
"""The deepest nesting that is written: within what every reader of JSON in the databases and in Python can take."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_UNSEARCHABLE = re.compile("[\x00\ud800-\udfff]")


def check(value: Any, path: str = "value", depth: int = 1) -> Any:
    """``value`` in JSON's own types, or a refusal.

    Strings, booleans, None, integers of up to 4,300 digits, finite floats, lists and string-keyed dicts pass; tuples
    become lists, and subclasses (enums of str or int, named tuples) the plain value. What comes back shares no list
    and no dict with ``value``.

    Raises:
        UnsupportedValueError: NaN or an infinity, bytes, a date, a Decimal, a set, a key that is no string, a depth
            over 128, or two surrogates that JSON cannot tell from the one character they stand for. ``.path`` says
            where.
    """
    try:
        return _plain(value, depth)
    except _Refused as refused:
        at = path + refused.at
        raise UnsupportedValueError(f"{at}: {refused.reason}", path=at) from None


def check_loaded(value: Any, path: str = "value", depth: int = 1) -> Any:
    """As ``check``, for what ``loads`` gave: only depth and overflown floats can be wrong. Returns ``value`` itself.

    Raises:
        UnsupportedValueError: as ``check``.
    """
    boxes = [value]  # of one level
    if type(value) is dict or type(value) is list:
        for _ in range(depth, MAX_DEPTH + 1):
            inner = [i for box in boxes for i in (box.values() if type(box) is dict else box) if type(i) in _INNER]
            boxes = [item for item in inner if type(item) is not float]
            if len(boxes) < len(inner) and not all(math.isfinite(i) for i in inner if type(i) is float):
                break
            if not boxes:
                return value
    check(value, path, depth)
    return value


_INNER = frozenset({dict, list, float})
_BASES: tuple[type[Any], ...] = (int, float, dict, list, tuple)
_DIGITS = 10**4300  # Python reads no longer number back
_INT64 = 2**63


class _Refused(Exception):
    def __init__(self, reason: str, at: str = "") -> None:
        self.reason, self.at = reason, at


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -_DIGITS < value < _DIGITS:
            return value
        raise _Refused("a number of more than 4300 digits cannot be read back; use a string")
    if kind is float:
        if math.isfinite(value):
            return value
        raise _Refused(f"{value!r} has no form in JSON; use None or a string")
    if kind is dict or kind is list or kind is tuple:
        if depth > MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
        return _dict(value, depth + 1) if kind is dict else _list(value, depth + 1)
    if isinstance(value, str):
        return _plain(str.__str__(value), depth)
    for base in _BASES:
        if isinstance(value, base):
            return _plain(base(value), depth)
    raise _Refused(f"{_a(value)} has no form in JSON; convert it to a string first")


def _dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    out = {}
    at, key = "", None
    try:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                at = " (a key)"
                key = _key(key)
                at = ""
            kind = type(item)
            simple = item is None or (kind is str and item.isascii()) or (kind is int and -_INT64 < item < _INT64)
            out[key] = item if simple else _plain(item, depth)
    except _Refused as refused:
        refused.at = at or f".{key}{refused.at}"
        raise
    return out


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise _Refused(f"the key {key!r} is {_a(key)}; JSON has only strings as keys")
    return _text(str.__str__(key))


def _list(value: Any, depth: int) -> list[Any]:
    out: list[Any] = []
    try:
        for item in value:
            out.append(_plain(item, depth))
    except _Refused as refused:
        refused.at = f"[{len(out)}]{refused.at}"
        raise
    return out


def _text(value: str) -> str:
    try:
        value.encode()  # ten times faster than the search
    except UnicodeEncodeError:
        if _PAIR.search(value):
            raise _Refused(
                "the text holds a surrogate pair as two code points; join it with "
                "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'surrogatepass')"
            ) from None
    return value


def _a(value: object) -> str:
    name = type(value).__name__
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name


def dumps(value: Any) -> str:
    """The JSON text of a value that ``check`` has passed."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # lone surrogates, which UTF-8 has no bytes for
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _SURROGATE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def loads(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        PayloadError: it is cut, empty or no JSON.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError) as first:  # TypeError: the text itself holds a lone surrogate
        try:  # the slow reader takes lone surrogates, which the fast one refuses
            return json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"this is no JSON text: {error}") from first


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def join_surrogates(text: str) -> str:
    """``text`` with each surrogate pair as the one character it stands for: streams may cut one in half."""
    if text.isascii() or not _PAIR.search(text):
        return text
    return _PAIR.sub(lambda m: m.group().encode("utf-16", "surrogatepass").decode("utf-16"), text)


def searchable(text: str) -> str:
    """``text`` for a plain text column: NUL and lone surrogates, which databases refuse, are U+FFFD."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSEARCHABLE.sub("\ufffd", text)


def read_only(value: Any) -> Any:
    """A copy of a JSON value that compares as lists and dicts do and refuses every change, at every depth."""
    if isinstance(value, dict):
        return FrozenDict({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list):
        return FrozenList(read_only(item) for item in value)
    return value


def _refuse(*_: Any, **__: Any) -> Any:
    raise TypeError(
        "this is to be read: what is changed in place would never be saved; give the changed whole, as in "
        "ctx.metadata = {**ctx.metadata, 'k': 1}, or append a message"
    )


class FrozenDict(dict[str, Any]):
    """A dict that compares as one and refuses every change."""

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy of the caller's own is theirs to change


class FrozenList(list[Any]):
    """A list that compares as one and refuses every change."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> Any:
        return list, (list(self),)
