"""Context windows and prices, by genai-prices (extra ``prices``): imported when first asked, absent without harm.

The numbers ship with that package; nothing is fetched. A model that it does not know has no price, which is not the
same as being free, and no window.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import lru_cache
from typing import Any

from .. import clock
from ..usage import Price, Tier

__all__ = ["price_of", "price_then", "window_of"]

_RATES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "reasoning": "output_reasoning_mtok",
    "input_audio": "input_audio_mtok",
    "output_audio": "output_audio_mtok",
    "input_image": "input_image_mtok",
}


@lru_cache(maxsize=512)
def _model(provider: str | None, model: str) -> Any:
    """The catalogue's entry, None when there is none. Without a provider the model's name alone decides."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    try:
        return get_snapshot().find_provider_model(model, None, provider, None)[1]
    except LookupError:
        return None


def window_of(provider: str | None, model: str) -> int | None:
    """Tokens that ``model`` can take; None when the catalogue does not say."""
    found = None if provider is None else _model(provider, model)
    window = getattr(found, "context_window", None)
    return window if isinstance(window, int) else None


def price_of(provider: str | None, model: str) -> Price | None:
    """The price of ``model`` as of now; None when the catalogue does not know it.

    It is the price of tokens and of requests; what searches and stored files cost beside them is not in it.
    """
    return None if provider is None else price_then(provider, model, clock.now())


def price_then(provider: str | None, model: str, at: dt.datetime) -> Price | None:
    """The price of ``model`` as of ``at`` (aware), for replies of the past; None when the catalogue does not know it.

    ``provider`` is its name in the catalogue or with us; None: whoever has a model of this name.
    """
    found = _model(provider, model)
    if found is None:
        return None
    rates = found.get_prices(at)
    base: dict[str, Decimal] = {}
    tiers: dict[int, dict[str, Decimal]] = {}
    for ours, theirs in _RATES.items():
        value = getattr(rates, theirs, None)
        if value is None:
            continue
        if not isinstance(value, Decimal):  # tiers: past a length of the input, another rate for all of it
            for tier in value.tiers:
                tiers.setdefault(int(tier.start), {})[ours] = tier.price
            value = value.base
        base[ours] = value
    if "input" not in base or "output" not in base:
        return None
    if isinstance(fee := getattr(rates, "requests_kcount", None), Decimal):
        base["request"] = fee / 1000
    held: dict[str, Decimal] = {}  # a rate whose next tier begins later keeps the one it has
    steps = [Tier(start, held := held | tiers[start]) for start in sorted(tiers)]
    return Price(
        **base,
        tiers=tuple(steps),
        source=f"genai-prices {_version()}",
    )


@lru_cache(maxsize=1)
def _version() -> str:
    from importlib.metadata import version

    return version("genai-prices")
