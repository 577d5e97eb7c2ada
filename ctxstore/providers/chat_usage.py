"""The usage that Chat Completions servers report, in the ten counts of ``TokenUsage``.

Reports are merged by their last value, never added: streams repeat them and let them grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..usage import TokenUsage
from .dialect import Dialect

__all__ = ["merged", "usage_in", "usage_of"]


_NONSENSE = 2**48
"""No reply has so many tokens; sums of many replies must fit 64 bits."""


def usage_in(body: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any] | None:
    """The usage that a body or a chunk reports, None when it reports none."""
    found = body.get("usage")
    if isinstance(found, Mapping):
        return found
    inner: Any = body
    for key in dialect.usage_path:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner if dialect.usage_path and isinstance(inner, Mapping) else None


def merged(old: dict[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """``old`` with the values of ``new`` that are not null."""
    return {**(old or {}), **{k: v for k, v in new.items() if v is not None}}


def usage_of(raw: Mapping[str, Any] | None, dialect: Dialect) -> TokenUsage | None:
    """The counts in ``raw``; None when it holds none, which is unknown and not zero."""
    if raw is None:
        return None
    given = _details(raw, "prompt_tokens_details")
    made = _details(raw, "completion_tokens_details")
    total = _count(raw, "total_tokens")
    counts = {
        "input_tokens": _count(raw, "prompt_tokens"),
        "output_tokens": _count(raw, "completion_tokens"),
        "total_tokens": total,
        "reasoning_tokens": _count(made, "reasoning_tokens"),
        "input_audio_tokens": _count(given, "audio_tokens"),
        "output_audio_tokens": _count(made, "audio_tokens"),
        "input_image_tokens": _count(given, "image_tokens"),
        "cache_read_tokens": _first(
            _count(given, "cached_tokens"),
            _count(raw, "prompt_cache_hit_tokens"),
            _count(raw, "cached_tokens"),
            _count(raw, "num_cached_tokens"),
        ),
        "cache_write_tokens": _count(given, "cache_write_tokens"),
    }
    inputs, outputs = counts["input_tokens"], counts["output_tokens"]
    if total is not None and inputs is not None and outputs is not None and total > inputs + outputs:
        if dialect.missing_tokens == "output":  # reasoning that is in the total alone
            counts["output_tokens"] = total - inputs
        else:
            counts["input_tokens"] = total - outputs
    return TokenUsage(**counts) if any(v is not None for v in counts.values()) else None


def _details(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = raw.get(key)
    return found if isinstance(found, Mapping) else {}


def _count(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _NONSENSE else None


def _first(*counts: int | None) -> int | None:
    return next((c for c in counts if c is not None), None)
