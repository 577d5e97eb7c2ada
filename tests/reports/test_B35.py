"""B35: cached tokens charged twice, as plain input and as cache. Buckets are inclusive, and each token has one price.

From litellm issue 9812.
"""

from __future__ import annotations

import json
from decimal import Decimal

from ctxstore import new_id
from ctxstore.messages import Message
from ctxstore.providers import DeepSeek, OpenAI
from ctxstore.providers.base import ModelRequest, Provider
from ctxstore.usage import Price, TokenUsage

PRICE = Price.of({"input": 3, "cache_write": "3.75", "cache_read": "0.30", "output": 15})


def usage(llm: Provider, reported: dict[str, object]) -> TokenUsage:
    request = ModelRequest("m", (Message.new("user", "Hi"),), new_id(), "completions", False)
    decoder = llm.decoder(request, {})
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": reported}
    decoder.feed(json.dumps(body).encode())
    found = decoder.finish().usage
    assert found is not None
    return found


def test_written_tokens_are_charged_once() -> None:
    """Reported with the written tokens inside of the prompt: 2,005 in all, of which 2,000 were written."""
    reported = {
        "prompt_tokens": 2005,
        "completion_tokens": 100,
        "total_tokens": 2105,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2000},
    }
    found = usage(OpenAI("k"), reported)
    assert (found.input_tokens, found.cache_write_tokens, found.cache_read_tokens) == (2005, 2000, 0)
    cost = PRICE.cost(found)
    assert cost.total == Decimal("0.009015")
    assert (cost.input, cost.cache_write, cost.output) == (Decimal("0.000015"), Decimal("0.0075"), Decimal("0.0015"))


def test_read_tokens_are_charged_once_however_they_are_reported() -> None:
    prompt = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    for llm, extra in [
        (OpenAI("k"), {"prompt_tokens_details": {"cached_tokens": 800}}),
        (DeepSeek("k"), {"prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200}),
        (OpenAI("k"), {"cached_tokens": 800}),
        (OpenAI("k"), {"num_cached_tokens": 800}),
    ]:
        found = usage(llm, {**prompt, **extra})
        assert (found.input_tokens, found.cache_read_tokens) == (1000, 800)
        assert PRICE.cost(found).total == Decimal("0.00099")  # 200 x 3 + 800 x 0.30 + 10 x 15, per million


def test_without_a_rate_of_its_own_a_cached_token_costs_what_any_token_costs() -> None:
    plain = Price.of({"input": 3, "output": 15})
    found = TokenUsage(input_tokens=1000, output_tokens=0, cache_read_tokens=800, cache_write_tokens=100)
    assert plain.cost(found).total == Decimal("0.003")


def test_both_kinds_of_writes() -> None:
    price = Price.of({"input": 3, "output": 15, "cache_write": "3.75", "cache_write_1h": 6})
    found = TokenUsage(input_tokens=1000, output_tokens=0, cache_write_tokens=1000, cache_write_1h_tokens=400)
    assert price.cost(found).total == Decimal("0.00465")  # 600 x 3.75 + 400 x 6
