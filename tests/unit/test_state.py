"""The state's running totals and indexes are what a scan of its messages would find, whatever was done to it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ctxstore import clock
from ctxstore.messages import Message, ToolCall, ToolResult
from ctxstore.payload.schema import Document, Head
from ctxstore.state import State
from ctxstore.usage import PICO, Price, TokenUsage

PRICES = {"cheap": Price.of({"input": 1, "output": 2}), "dear": Price.of({"input": 10, "output": 20})}
AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def price(model, provider):
    return PRICES.get(model)


def fresh():
    return State(Head(clock.new_id(), clock.new_id(), AT, AT), price)


def user(text="hello"):
    return Message.new("user", text)


def reply(tokens=None, model="cheap", **fields):
    usage = None if tokens is None else TokenUsage(input_tokens=tokens, output_tokens=1)
    return Message.new("assistant", "reply", usage=usage, origin={"provider": "p", "model": model}, **fields)


def call(*ids):
    return Message.new("assistant", [ToolCall(type="tool_call", id=i, name="t", arguments_json="{}") for i in ids])


def result(*ids):
    return Message.new("tool", [ToolResult(type="tool_result", id=i, value=1) for i in ids])


IDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True)
MESSAGE = st.one_of(
    st.builds(user, st.sampled_from(["hi", "a\nlong   question", ""])),
    st.builds(
        reply,
        st.none() | st.integers(0, 1000),
        st.sampled_from(["cheap", "dear", "unknown"]),
        cost_pico_usd=st.none() | st.integers(0, 10**9),
        inherited=st.booleans(),
    ),
    st.builds(lambda text: Message.new("assistant", text), st.text(max_size=3)),  # written by hand: nobody was paid
    st.builds(lambda ids: call(*ids), IDS),
    st.builds(lambda ids: result(*ids), IDS),
)
MESSAGES = st.lists(MESSAGE, max_size=4)

# -- the oracle: everything from scratch


def is_paid(m):
    return m.role == "assistant" and not m.inherited and (m.usage is not None or m.origin is not None)


def cost_of(m):
    if m.cost_pico_usd is not None:
        return m.cost_pico_usd
    found = PRICES.get(m.origin.model) if m.origin is not None else None
    return None if found is None or m.usage is None else found.cost(m.usage).pico_usd


def spent(messages):
    """What the replies among ``messages`` used: tokens, cost, and how many have no price."""
    paid = [m for m in messages if is_paid(m)]
    tokens = sum(m.usage.total_tokens for m in paid if m.usage is not None)
    costs = [cost_of(m) for m in paid]
    return tokens, sum(c for c in costs if c is not None), costs.count(None)


def scan(messages):
    """The calls without a result and the ids that have one: a result answers the newest call of its id."""
    waiting, answered = {}, set()
    for m in messages:
        for c in m.tool_calls:
            waiting[c.id] = c
            answered.discard(c.id)
        for r in m.tool_results:
            waiting.pop(r.id, None)
            answered.add(r.id)
    return waiting, answered


def view(state):
    return (
        list(state.messages),
        list(state.positions),
        list(state.open_calls.items()),
        state.answered,
        state.token_usage,
        state.cost,
        state.context_used,
        state.title,
        state.uses_tools,
        bool(state.changes()),
        state.head.updated_at,
    )


class Machine(RuleBasedStateMachine):
    """A conversation that is appended to, edited, saved and rolled back, beside a model of it and of its rows."""

    def __init__(self):
        super().__init__()
        self.state = fresh()
        self.rows = {}  # position -> message
        self.retired = set()
        self.paid = [0, 0, 0]
        self.saves = 0
        self.gone = []

    def pay(self, messages):
        self.paid = [a + b for a, b in zip(self.paid, spent(messages), strict=True)]

    @rule(messages=MESSAGES)
    def append(self, messages):
        self.state.append(messages)
        self.pay(messages)

    @rule(data=st.data())
    def remove(self, data):
        count = len(self.state.messages)
        indexes = data.draw(st.sets(st.integers(0, count - 1)) if count else st.just(set()))
        before = list(self.state.messages)
        out = self.state.remove(indexes)
        assert out == [before[i] for i in sorted(indexes)]
        self.gone += out
        assert self.state.messages == [m for i, m in enumerate(before) if i not in indexes]

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def bring_back(self, data):
        """What was taken out is put there again, as a caller does who clears and writes the whole history anew."""
        chosen = data.draw(st.lists(st.sampled_from(self.gone), max_size=3))
        new = self.state.unknown(chosen)
        assert {m.id for m in new} == {m.id for m in chosen} - {m.id for m in self.state.messages}
        assert len(new) == len({m.id for m in new})
        self.state.append(new)
        assert self.state.unknown(chosen) == []

    @rule(data=st.data(), tail=MESSAGES, inherited=st.booleans())
    def replace(self, data, tail, inherited):
        """Keep a beginning, put something new after it, and some of the old ones behind that."""
        before = list(self.state.messages)
        keep = data.draw(st.integers(0, len(before)))
        some = st.lists(st.sampled_from(before), max_size=2, unique_by=lambda m: m.id) if before else st.just([])
        again = data.draw(some)
        again = [m for m in again if m not in before[:keep]]
        wanted = [*before[:keep], *tail, *again]
        self.state.replace(wanted, inherited=inherited)
        assert [m.id for m in self.state.messages] == [m.id for m in wanted]
        assert self.state.messages[:keep] == before[:keep]
        if not inherited:
            self.pay(tail)

    @rule(messages=MESSAGES)
    def give_up(self, messages):
        before, mark = view(self.state), self.state.mark()
        self.state.append(messages)
        self.state.head.model, self.state.head.compacted = "another", True
        self.state.back_to(mark)
        assert view(self.state) == before
        assert self.state.head.model is None and not self.state.head.compacted

    @rule(data=st.data(), messages=MESSAGES)
    def give_up_whole(self, data, messages):
        """A turn with a compaction in it that lost its race."""
        before, mark, paid, gone = view(self.state), self.state.mark(whole=True), list(self.paid), list(self.gone)
        self.append(messages)
        self.remove(data)
        self.state.head.summary = "what was"
        self.state.back_to(mark)
        self.paid, self.gone = paid, gone
        assert view(self.state) == before
        assert self.state.head.summary is None

    def write(self, changes):
        for position in changes.retired:
            assert position in self.rows
            self.retired.add(position)
        for n, message in enumerate(changes.appended):
            assert changes.first_position + n not in self.rows, "a position is used once"
            self.rows[changes.first_position + n] = message
        self.retired |= {changes.first_position + n for n in changes.dead}

    @rule()
    def save(self):
        self.write(self.state.changes())
        self.saves += 1
        self.state.saved(f"token-{self.saves}", self.saves)
        assert not self.state.changes()
        assert (self.state.last_save, self.state.head.revision) == (f"token-{self.saves}", self.saves)
        live = [self.rows[p] for p in sorted(self.rows.keys() - self.retired)]
        assert live == self.state.messages, "what a load would find"

    @rule(data=st.data(), more=MESSAGES)
    def save_while_it_goes_on(self, data, more):
        """The state changes while a save of it is on its way."""
        changes = self.state.changes()
        changes = replace(changes, appended=list(changes.appended), retired=list(changes.retired))
        self.append(more)
        self.remove(data)
        self.write(changes)
        self.saves += 1
        self.state.saved_partly(f"token-{self.saves}", self.saves, len(changes.appended), len(changes.retired), set())

    @precondition(lambda self: self.saves)
    @rule()
    def load(self):
        self.save()
        positions = sorted(self.rows.keys() - self.retired)
        back = State(self.state.head, price)
        document = Document(self.state.head, [self.rows[p] for p in positions])
        back.loaded(document, positions, self.state.next_position, "t")
        assert view(back) == view(self.state)
        self.state, self.gone = back, []

    @invariant()
    def sums(self):
        state = self.state
        assert (state.token_usage.total_tokens, state.cost_pico_usd, state.unpriced) == tuple(self.paid)
        assert state.cost.unpriced == state.unpriced
        assert state.cost.total in (None, Decimal(state.cost_pico_usd) / PICO)

    @invariant()
    def indexes(self):
        waiting, answered = scan(self.state.messages)
        assert list(self.state.open_calls.items()) == list(waiting.items())
        assert self.state.answered == answered
        assert all(self.state.has_answer(i) == (i in answered) for i in "abc")
        assert self.state.uses_tools == bool(waiting or answered)
        replies = [m for m in self.state.messages if m.role == "assistant"]
        assert self.state.last_reply is (replies[-1] if replies else None)

    @invariant()
    def positions(self):
        state = self.state
        assert [self.rows[p] for p in state.positions] == state.messages[: len(state.positions)]
        assert state.positions == sorted(set(state.positions))
        assert not set(state.changes().retired) & set(state.positions), "a live position is not retired"
        assert len(set(state.changes().retired)) == len(state.changes().retired)
        assert state.next_position == len(self.rows)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
test_state = Machine.TestCase


# -- by hand, where one case says more than a thousand


@given(MESSAGES, MESSAGES)
def test_what_was_used_never_shrinks(first, then):
    state = fresh()
    state.append(first)
    seen = state.token_usage.total_tokens
    for step in (
        lambda: state.append(then),
        lambda: state.remove([0] if state.messages else []),
        lambda: state.replace(then),
        lambda: state.replace(first, inherited=True),
        lambda: state.remove(range(len(state.messages))),
    ):
        step()
        assert state.token_usage.total_tokens >= seen
        seen = state.token_usage.total_tokens


def test_an_edit_in_the_middle_retires_what_follows_and_counts_it_once():
    state = fresh()
    state.append([user("one"), reply(10), user("two"), reply(20)])
    state.saved("t1", 1)
    head = state.messages[:2]
    state.replace([*head, user("two, better said"), state.messages[3]])
    changes = state.changes()
    assert list(changes.retired) == [2, 3] and changes.first_position == 4
    assert [m.inherited for m in changes.appended] == [False, True]
    assert state.token_usage.total_tokens == 32, "the reply that came along was paid once"
    assert state.positions == [0, 1]


def test_nothing_to_do_changes_nothing():
    state = fresh()
    state.append([user("one"), reply(10)])
    state.saved("t1", 1)
    before = view(state)
    assert state.remove([]) == []
    assert view(state) == before


def test_an_id_that_comes_again_is_a_new_call():
    state = fresh()
    state.append([call("0"), result("0"), user("more"), call("0")])
    assert list(state.open_calls) == ["0"] and not state.has_answer("0")
    state.append([result("0")])
    assert not state.open_calls and state.has_answer("0")


def test_the_window_is_measured_at_the_last_reply():
    state = fresh()
    assert state.context_used is None
    state.append([user(), reply(10)])
    assert state.context_used == 11
    state.append([user(), reply(None)])
    assert state.context_used is None, "a reply that does not say is unknown, not the one before"


@pytest.mark.parametrize(
    ("metadata", "first", "title"),
    [
        ({}, None, None),
        ({}, "  two\n\nlines ", "two lines"),
        ({}, "x" * 121, "x" * 119 + "…"),
        ({}, "x" * 120, "x" * 120),
        ({}, "a\x00b\ud800", "a�b�"),
        ({"title": "Given"}, "typed", "Given"),
        ({"title": 7}, "typed", "typed"),
    ],
)
def test_title(metadata, first, title):
    state = fresh()
    state.head.metadata = metadata
    state.append([Message.new("system", "not this"), *([] if first is None else [user(first)])])
    assert state.title == title


def test_replies_without_a_price_are_counted_and_not_free():
    state = fresh()
    state.append([reply(1_000_000, "unknown")])
    assert state.cost.total is None and state.cost.unpriced == 1
    state.append([reply(1_000_000, "cheap")])
    assert state.cost.total == Decimal("1.000002") and state.cost.unpriced == 1
    state.remove([0, 1])
    assert state.cost.total == Decimal("1.000002") and state.cost.unpriced == 1
