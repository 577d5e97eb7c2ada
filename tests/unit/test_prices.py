"""What a reply costs: every kind of token at its rate, once; and whose rate it is."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, strategies as st

from ctxstore import Context, TokenUsage
from ctxstore.errors import ConfigurationError
from ctxstore.providers.catalog import price_of, price_then
from ctxstore.testing import ScriptedProvider
from ctxstore.usage import COUNTS, Price

CLAUDE = {"input": 3, "output": 15, "cache_read": 0.30, "cache_write": 3.75, "cache_write_1h": 6}


@pytest.mark.parametrize("length", [1_000, 150_000, 250_000, 900_000])
def test_every_model_of_the_catalogue_costs_what_the_catalogue_says(length: int) -> None:
    """Thousands of models: their caches, tiers and fees."""
    checked, at = 0, dt.datetime.now(dt.UTC)  # one moment for both: some prices depend on the hour
    for provider in get_snapshot().providers:
        for model in provider.models:
            price = price_then(provider.id, model.id, at)
            if price is None:
                continue
            counts = {"input_tokens": length, "output_tokens": length // 9}
            if price.cache_read is not None:
                counts["cache_read_tokens"] = length // 3
            if price.cache_write is not None:
                counts["cache_write_tokens"] = length // 5
                if price.cache_write_1h is not None:
                    counts["cache_write_1h_tokens"] = length // 7
            wanted = genai_prices.calc_price(
                genai_prices.Usage(**counts), model.id, provider_id=provider.id, genai_request_timestamp=at
            ).total_price
            found = price.cost(TokenUsage(**counts)).total
            assert found == pytest.approx(wanted, abs=Decimal("5e-12")), (provider.id, model.id)
            checked += 1
    assert checked > 1_000


@pytest.mark.parametrize(
    ("provider", "model", "counts"),
    [
        ("openai", "gpt-4o-audio-preview", {"input_audio_tokens": 400, "output_audio_tokens": 300}),
        ("google", "gemini-2.5-flash", {"input_audio_tokens": 400}),
        ("google", "gemini-2.5-flash", {"input_audio_tokens": 400, "reasoning_tokens": 300}),
        ("openai", "gpt-5-mini", {"cache_read_tokens": 300, "reasoning_tokens": 300}),
    ],
)
def test_audio_and_reasoning_cost_what_the_catalogue_says(provider: str, model: str, counts: dict[str, int]) -> None:
    price = price_of(provider, model)
    assert price is not None
    theirs = {k: v for k, v in counts.items() if k != "reasoning_tokens"}  # at the rate of the output
    usage = genai_prices.Usage(input_tokens=1000, output_tokens=500, **theirs)
    wanted = genai_prices.calc_price(usage, model, provider_id=provider).total_price
    assert price.cost(TokenUsage(input_tokens=1000, output_tokens=500, **counts)).total == wanted


def test_a_written_cache_is_charged_once() -> None:
    """Of 2,005 tokens 2,000 are written to a cache: they are no plain input as well."""
    usage = TokenUsage(input_tokens=2005, output_tokens=100, cache_write_tokens=2000, cache_read_tokens=0)
    assert Price.of(CLAUDE).cost(usage).total == Decimal("0.009015")


KINDS = [k for k in COUNTS if k not in ("input_tokens", "output_tokens", "total_tokens")]


@given(
    input=st.integers(0, 10**7),
    output=st.integers(0, 10**6),
    kinds=st.dictionaries(st.sampled_from(KINDS), st.integers(0, 10**6)),
    named=st.sets(
        st.sampled_from(["cache_read", "cache_write", "reasoning", "input_audio", "output_audio", "input_image"])
    ),
)
def test_at_one_rate_for_all_no_token_is_charged_twice_or_left_out(
    input: int, output: int, kinds: dict[str, int], named: set[str]
) -> None:
    price = Price.of({"input": 2, "output": 2} | dict.fromkeys(named, 2))
    cached = kinds.get("cache_read_tokens", 0) + kinds.get("cache_write_tokens", 0)
    if cached > input:
        input += cached
    kinds["cache_write_1h_tokens"] = min(kinds.get("cache_write_1h_tokens", 0), kinds.get("cache_write_tokens", 0))
    cost = price.cost(TokenUsage(input_tokens=input, output_tokens=output, **kinds))
    assert cost.total == Decimal(2 * (input + output)) / 1_000_000
    parts = (cost.input, cost.output, cost.cache_read, cost.cache_write, cost.reasoning, cost.input_audio)
    assert sum(parts) + cost.output_audio + cost.input_image + cost.request == cost.total


def test_a_fee_for_each_request_is_in_the_total() -> None:
    price = Price.of({"input": 1, "output": 1, "request": "0.005"})
    cost = price.cost(TokenUsage(input_tokens=10, output_tokens=0))
    assert (cost.request, cost.total) == (Decimal("0.005"), Decimal("0.00501"))
    assert price.to_payload()["request"] == "0.005"


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({"input": 1}, "needs the rates 'input' and 'output'"),
        ({"input": 1, "output": 1, "cached": 1}, "no rate 'cached'"),
        ({"input": "one", "output": 1}, "'input' is no number: 'one'"),
        ({"input": -1, "output": 1}, "'input' cannot be -1"),
        ({"input": float("nan"), "output": 1}, "cannot be nan"),
        ({"input": 1, "output": 1, "tiers": {200_000: {"inputs": 2}}}, "no rate 'inputs'"),
        ({"input": 1, "output": 1, "tiers": {200_000: 2}}, "rates are a mapping"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_name(rates: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Price.of(rates)


def test_each_reply_at_the_rate_of_its_own_model() -> None:
    usage = {"input_tokens": 1000, "output_tokens": 100}
    prices = {"cheap": {"input": 3, "output": 15}, "dear": {"input": 15, "output": 75}}
    ctx = Context(ScriptedProvider([{"text": "x", "usage": usage}] * 4, model="cheap", prices=prices))
    ctx.talk("1"), ctx.talk("2"), ctx.talk("3", model="dear")
    assert ctx.cost.total == Decimal("0.0315")
    ctx.talk("4", model="of another house")
    assert (ctx.cost.total, ctx.cost.unpriced) == (Decimal("0.0315"), 1), "unpriced, not free"


def test_prices_of_the_past() -> None:
    """A model whose price was changed costs what it cost then."""
    early, late = dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
    changed = [
        (provider.id, model.id)
        for provider in get_snapshot().providers
        for model in provider.models
        if price_then(provider.id, model.id, early) != price_then(provider.id, model.id, late)
    ]
    assert changed, "the catalogue knows of changes"


@pytest.mark.parametrize(
    ("provider", "model", "known"),
    [
        ("xai", "grok-4", True),
        (None, "gpt-5-mini", True),
        ("vllm", "gpt-5-mini", False),
        (None, "no-such-model", False),
    ],
)
def test_a_model_is_found_by_our_name_of_its_provider_or_alone(provider: str | None, model: str, known: bool) -> None:
    assert (price_then(provider, model, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) is not None) is known
