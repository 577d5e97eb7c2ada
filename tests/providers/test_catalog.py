"""Prices and context windows, against genai-prices' own arithmetic."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from hypothesis import given, settings, strategies as st

from ctxstore.providers import Groq, Mistral, Ollama, OpenAI, OpenRouter
from ctxstore.providers.catalog import price_of, window_of
from ctxstore.usage import Price, TokenUsage

MODELS = [
    ("openai", "gpt-5-mini"),
    ("openai", "gpt-5.6-sol"),
    ("openai", "gpt-4o-audio-preview"),
    ("anthropic", "claude-sonnet-4-6"),
    ("anthropic", "claude-sonnet-4-5"),
    ("google", "gemini-2.5-pro"),
    ("google", "gemini-2.5-flash"),
    ("deepseek", "deepseek-chat"),
    ("mistral", "mistral-large-latest"),
    ("x-ai", "grok-4"),
    ("openrouter", "anthropic/claude-haiku-4.5"),
]


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    fresh=st.integers(0, 600_000),
    read=st.integers(0, 300_000),
    write=st.integers(0, 100_000),
    hour=st.integers(0, 100_000),
    output=st.integers(0, 100_000),
)
def test_costs_are_those_of_the_catalogue(
    model: tuple[str, str], fresh: int, read: int, write: int, hour: int, output: int
) -> None:
    provider, name = model
    price = price_of(provider, name)
    assert price is not None
    caches = {"cache_read_tokens": read} if price.cache_read is not None else {}
    if price.cache_write is not None:
        caches["cache_write_tokens"] = write
        if price.cache_write_1h is not None:
            caches |= {"cache_write_tokens": write + hour, "cache_write_1h_tokens": hour}
    total = fresh + caches.get("cache_read_tokens", 0) + caches.get("cache_write_tokens", 0)
    usage = TokenUsage(input_tokens=total, output_tokens=output, **caches)
    theirs = genai_prices.Usage(input_tokens=total, output_tokens=output, **caches)
    wanted = genai_prices.calc_price(theirs, name, provider_id=provider).total_price
    assert price.cost(usage).total == pytest.approx(wanted, abs=Decimal("0.00000000001"))
    assert price.source.startswith("genai-prices ")


def test_long_requests_have_their_own_rates() -> None:
    price = price_of("google", "gemini-2.5-pro")
    assert price is not None
    short, long = (TokenUsage(input_tokens=n, output_tokens=0) for n in (200_000, 200_001))
    assert price.cost(short).total == Decimal("0.25")
    assert price.cost(long).total == Decimal("0.5000025")
    assert price.to_payload()["input_above_200000"] == "2.5"


def test_what_is_not_known_is_unpriced_and_not_free() -> None:
    assert price_of("openai", "no-such-model") is None
    assert window_of("openai", "no-such-model") is None
    assert price_of("no-such-provider", "gpt-5-mini") is None
    assert Ollama(model="m").price("gpt-5-mini") is None
    assert Ollama(model="m").context_window("gpt-5-mini") is None


def test_the_providers_know_their_catalogue() -> None:
    assert OpenAI("k").context_window("gpt-5-mini") == 400_000
    for llm in (OpenAI("k"), Mistral("k"), Groq("k"), OpenRouter("k")):
        assert llm.price(llm.model) is not None, llm


def test_a_table_of_ones_own_replaces_the_catalogue() -> None:
    rates = {"mine": {"input": 3, "output": 15, "cache_read": 0.3, "tiers": {200_000: {"input": 6, "output": 22.5}}}}
    llm = OpenAI("k", prices=rates, context_windows={"mine": 1000})
    assert llm.price("gpt-5-mini") is None
    assert llm.context_window("gpt-5-mini") is None
    assert llm.context_window("mine") == 1000
    price = llm.price("mine")
    assert price is not None
    assert price.source == "caller"
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=1_000_000, cache_read_tokens=500_000)
    assert price.cost(usage).total == Decimal("3.0") + Decimal("0.15") + Decimal("22.5")


@pytest.mark.parametrize(
    ("rates", "counts", "wanted"),
    [
        ({"input": 1, "output": 1, "reasoning": 3}, {"output_tokens": 3, "reasoning_tokens": 2}, "0.000007"),
        ({"input": 1, "output": 1}, {"output_tokens": 3, "reasoning_tokens": 2}, "0.000003"),
        ({"input": 1, "output": 1, "input_audio": 10}, {"input_tokens": 3, "input_audio_tokens": 2}, "0.000021"),
        ({"input": 1, "output": 1, "output_audio": 10}, {"output_tokens": 3, "output_audio_tokens": 2}, "0.000021"),
        ({"input": 1, "output": 1, "input_image": 10}, {"input_tokens": 3, "input_image_tokens": 2}, "0.000021"),
    ],
)
def test_each_kind_at_its_rate(rates: dict[str, Any], counts: dict[str, int], wanted: str) -> None:
    usage = TokenUsage(**{"input_tokens": 0, "output_tokens": 0, **counts})
    assert Price.of(rates).cost(usage).total == Decimal(wanted)


def test_the_catalogue_is_loaded_when_first_asked_and_may_be_absent() -> None:
    program = """
import sys
import ctxstore, ctxstore.providers
assert not [m for m in sys.modules if m.startswith(("genai_prices", "httpx"))], "loaded too early"
sys.modules["genai_prices"] = None
llm = ctxstore.providers.OpenAI("k")
print(llm.price("gpt-5-mini"), llm.context_window("gpt-5-mini"))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("None None\n", "")
