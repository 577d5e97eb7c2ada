"""B39: after a change of model all replies of a conversation were priced at the first model's rate."""

from __future__ import annotations

from decimal import Decimal

from .scenes import scripted

PRICES = {"cheap": {"input": 3, "output": 15}, "dear": {"input": 15, "output": 75}}
REPLY = {"text": "x", "usage": {"input_tokens": 1000, "output_tokens": 100}}
TOTAL = Decimal("0.0315")


def two_cheap_and_a_dear_one(store, do):
    ctx = do(store, "create", scripted(REPLY, REPLY, model="cheap", prices=PRICES), owner="o")
    do(ctx, "talk", "1")
    do(ctx, "talk", "2")
    ctx.use(provider=scripted(REPLY, model="dear", prices=PRICES), model="dear")
    do(ctx, "talk", "3")
    return ctx


def test_each_reply_at_the_rate_of_its_own_model(store, do):
    ctx = two_cheap_and_a_dear_one(store, do)
    assert ctx.cost.total == TOTAL
    back = do(store, "load", ctx.id, scripted(prices=PRICES, model="cheap"))
    assert back.cost.total == TOTAL
    assert [m.origin.model for m in back.messages if m.role == "assistant"] == ["cheap", "cheap", "dear"]
    rows = {r.model: r.cost for r in do(store, "usage", by=("model",))}
    assert rows == {"cheap": Decimal("0.009"), "dear": Decimal("0.0225")}
    (row,) = do(store, "usage", by=())
    assert row.cost == TOTAL and row.requests == 3 and row.unpriced == 0
    assert do(store, "list")[0].cost == TOTAL


def test_at_the_price_of_its_day(store, do):
    """Other prices, none at all, or no provider that knows the model: what was paid stays what was paid."""
    ctx = two_cheap_and_a_dear_one(store, do)
    later = {"cheap": {"input": 300, "output": 1500}, "dear": {"input": 1, "output": 1}}
    for prices in (later, None):
        back = do(store, "load", ctx.id, scripted({"text": "free"}, model="other", prices=prices))
        assert back.cost.total == TOTAL and back.cost.unpriced == 0
        copy = do(store, "fork", ctx.id)
        assert do(store, "load", copy.id, scripted(prices=prices)).cost.total == 0, "not paid a second time"
    do(back, "talk", "4")
    assert back.cost.total == TOTAL and back.cost.unpriced == 1, "a model without a price is unpriced, not free"
    (row,) = do(store, "usage", by=())
    assert row.cost == TOTAL and row.unpriced == 1


def test_one_call_with_another_model(store, do):
    ctx = do(store, "create", scripted(REPLY, REPLY, REPLY, model="cheap", prices=PRICES))
    do(ctx, "talk", "1")
    do(ctx, "talk", "2", model="dear")
    assert ctx.model == "cheap"
    do(ctx, "talk", "3")
    assert ctx.cost.total == TOTAL
