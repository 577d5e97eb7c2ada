"""What a payload is refused for, and the words for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import PayloadError, SchemaVersionError
from ..messages import Message
from ..usage import TokenUsage
from . import upcasts

__all__ = ["INT64", "check_counts", "check_numbers", "check_time", "check_version", "kind", "refusal", "version_of"]

INT64 = 2**63
"""Columns of counts hold less."""


def check_version(version: object) -> int:
    """``version`` when this program can read it.

    Raises:
        SchemaVersionError: it is newer, below 1, or no integer at all (``True``, ``1.0``, ``"3"`` and None are none).
    """
    supported = range(1, upcasts.current() + 1)
    if type(version) is int and version in supported:
        return version
    newer = type(version) is int and version > supported[-1]
    raise SchemaVersionError(
        f"the schema_version {version!r} cannot be read, only {_these(supported)}"
        + ("; it was written by a newer ctxstore" if newer else ""),
        found=version,
        supported=supported,
    )


def version_of(content: Mapping[str, Any]) -> int:
    if "schema_version" in content:
        return check_version(content["schema_version"])
    supported = range(1, upcasts.current() + 1)
    raise SchemaVersionError(
        f"there is no schema_version, so this is no saved context, or a part of one; {_these(supported)} can be read",
        supported=supported,
    )


def _these(versions: Iterable[int]) -> str:
    return f"versions {', '.join(map(str, versions))}"


def check_numbers(message: Message, path: str) -> None:
    """Refuse what has no place in the columns beside the payload."""
    if message.usage is not None:
        check_counts(message.usage, f"{path}.usage")
    if message.cost_pico_usd is not None and not 0 <= message.cost_pico_usd < INT64:
        raise PayloadError(f"{path}.cost_pico_usd: is negative or too large")
    check_time(message.created_at, f"{path}.created_at")


def check_counts(usage: TokenUsage, path: str) -> None:
    """Refuse counts that have no place in their columns."""
    counts = [n for n in usage.__dict__.values() if n]
    if counts and (min(counts) < 0 or max(counts) >= INT64):
        raise PayloadError(f"{path}: a count is negative or too large")


def check_time(time: dt.datetime | None, path: str) -> None:
    """Refuse a time that cannot be said in UTC."""
    try:
        if time is not None and not 1 < time.year < 9999:
            time.astimezone(dt.UTC)
    except OverflowError as error:
        raise PayloadError(f"{path}: has no form in UTC") from error


def refusal(error: ValidationError, data: Any, path: str) -> PayloadError:
    """What pydantic found, by the path into ``data`` rather than through the branches of its unions."""
    best, said = "", ""
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        at, here, tag = "", data, True
        last = len(found["loc"]) - 1
        for depth, item in enumerate(found["loc"]):
            if tag and isinstance(here, dict) and here.get("type") == item:
                tag = False  # the branch of a union that is told by the part's type
                continue
            if _holds(here, item):
                here, tag = here[item], True
            elif found["type"] != "missing" or depth != last:
                continue  # the name of a branch
            at += f"[{item}]" if isinstance(item, int) else f".{item}"
        if not said or len(at) > len(best):
            best, said = at, found["msg"]
    if not path or path.endswith(" "):
        best = best.removeprefix(".")
    return PayloadError(f"{path}{best}: {said}")


def _holds(here: Any, item: int | str) -> bool:
    if isinstance(here, dict):
        return item in here
    return isinstance(here, list) and isinstance(item, int) and item < len(here)


def kind(value: object) -> str:
    """What ``value`` is, in the words of JSON."""
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
    return names.get(type(value), f"a {type(value).__name__}")
