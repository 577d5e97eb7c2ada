"""Counts that are unknown stay so; money is exact."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given, strategies as st

from ctxstore import TokenUsage
from ctxstore.usage import COUNTS, Price

USAGE = st.builds(TokenUsage, **{k: st.none() | st.integers(0, 10**9) for k in COUNTS})


@given(st.lists(USAGE))
def test_sums_are_numbers_whatever_is_unknown(many):
    total = sum(many, TokenUsage.zero())
    assert total.counts() == tuple(sum(getattr(u, k) or 0 for u in many) for k in COUNTS)


def test_unknown_is_not_zero():
    assert TokenUsage(input_tokens=1).total_tokens is None
    assert TokenUsage(input_tokens=1, output_tokens=2).total_tokens == 3
    assert (TokenUsage() + TokenUsage()).input_tokens is None
    assert TokenUsage(input_tokens=1, output_tokens=2).to_payload() == {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
    }


def test_every_kind_is_priced_at_its_own_rate():
    """Rates and counts of llm.rb's own specification."""
    price = Price.of(
        {"input": 1.5, "output": 6, "input_audio": 3, "output_audio": 12, "cache_read": 0.5, "cache_write": 1.25}
    )
    usage = TokenUsage(
        input_tokens=1000 + 600 + 500 + 300, output_tokens=2000 + 400, input_audio_tokens=300, output_audio_tokens=400,
        cache_read_tokens=600, cache_write_tokens=500,
    )  # fmt: skip
    cost = price.cost(usage)
    assert (cost.cache_read, cost.cache_write) == (Decimal("0.0003"), Decimal("0.000625"))
    assert (cost.input_audio, cost.output_audio) == (Decimal("0.0009"), Decimal("0.0048"))
    assert (cost.input, cost.output) == (Decimal("0.0015"), Decimal("0.012"))
    assert cost.total == sum(
        [cost.input, cost.output, cost.cache_read, cost.cache_write, cost.input_audio, cost.output_audio]
    )


def test_an_hour_of_cache_has_its_own_rate_and_unknown_is_unpriced():
    price = Price.of({"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75, "cache_write_1h": 6})
    usage = TokenUsage(input_tokens=2005, output_tokens=100, cache_write_tokens=2000, cache_write_1h_tokens=1000)
    assert price.cost(usage).total == Decimal("0.000015") + Decimal("0.00375") + Decimal("0.006") + Decimal("0.0015")
    assert price.cost(TokenUsage(input_tokens=1)).total is None
