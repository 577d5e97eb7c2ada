"""The ledger held to itself, and to the replies that its attempts gave.

A reply that was talked here has the attempt that names its position; one that an import brought has the attempt of its
id; one that was put after another writer's, or saved again after a rollback, has an attempt without a position. Which
others may have none: those that were talked elsewhere and came with a payload, before anything was talked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, get_args
from uuid import UUID

from .. import jsontext
from ..errors import PayloadError
from ..messages import Message
from ..payload import codec
from ..usage import COUNTS, Kind, Outcome
from .periods import slot_of
from .retention import ANONYMOUS
from .types import plain, short

__all__ = ["check_attempts", "check_replies"]

Say: TypeAlias = Callable[[str], None]
Placed: TypeAlias = tuple[int, Message]

_KINDS, _OUTCOMES = get_args(Kind), get_args(Outcome)
_NUMBERS = (*COUNTS, "cost_pico_usd")
_numbers = attrgetter(*_NUMBERS)
_NEEDED = ("input_tokens", "output_tokens", "total_tokens")


# -- the ledger by itself


def check_attempts(attempts: Iterable[Any], say: Say) -> None:
    """What every row must be, and that the attempts of a turn are counted from 1 without a gap."""
    turns: dict[UUID, list[int]] = {}
    for row in attempts:
        for text in _wrong(row):
            say(f"the attempt {row.id}: {text}")
        turns.setdefault(row.turn_id, []).append(row.attempt)
    for turn_id, numbers in turns.items():
        if len(numbers) == 1 and numbers[0] == 1:
            continue
        numbers.sort()
        for want, number in enumerate(numbers, 1):
            if number != want:
                what = f"attempt {want} of the turn {turn_id} is not in the ledger, attempt {number} is"
                say(what if number > want else f"attempt {number} of the turn {turn_id} is there twice")
                break


def _wrong(row: Any) -> Iterable[str]:
    if row.kind not in _KINDS:
        yield f"there is no kind {row.kind!r}"
    if row.outcome not in _OUTCOMES:
        yield f"there is no outcome {row.outcome!r}"
    if row.slot != (slot := slot_of(row.created_at)):
        yield f"slot is {row.slot}, created_at says {slot}"
    for name, number in zip(_NUMBERS, _numbers(row), strict=True):
        if number is not None and number < 0:
            yield f"{name} is {number}"
    if row.usage_raw is not None:
        try:
            jsontext.loads(row.usage_raw)
        except PayloadError as error:
            yield f"usage_raw: {error}"
    if row.price is not None:
        try:
            price = jsontext.loads(row.price)
        except PayloadError as error:
            yield f"price: {error}"
        else:
            if not isinstance(price, dict) or not all(isinstance(rate, str) for rate in price.values()):
                yield "price is no object of rates"
            elif row.cost_pico_usd is None:
                yield "there is a price and no cost"


# -- the ledger and the replies


def check_replies(context_id: UUID, head: Any, placed: Sequence[Placed], attempts: Sequence[Any], say: Say) -> int:
    """That the attempts say what their replies say, and that a reply has one. ``placed`` are all messages, retired
    ones too, with their positions.

    Returns how many replies have none and may be right to.
    """
    messages = dict(placed)
    brought = {row.id: row for row in attempts if row.kind == "imported" and row.position is None}
    named = [row for row in attempts if row.position is not None]
    rest = [r for r in attempts if r.position is None and r.kind == "turn" and r.outcome in ("ok", "lost")]
    pairs = [(p, m, row) for p, m in placed if _is_paid(m) and (row := _brought(brought, context_id, p, m)) is not None]
    last_brought = pairs[-1][0] if pairs else None
    if last_brought is not None and any(row.position <= last_brought for row in named):
        return 0  # it was deleted and imported again: the ledger has its earlier life too, at other positions
    for _, reply, row in pairs:
        _compare(row, reply, say)
    seen: dict[int, Any] = {}
    first: int | None = None
    for row in named:
        message = messages.get(row.position)
        if message is None or message.role != "assistant":
            say(f"the attempt {row.id} names position {row.position}, where no reply stands")
            continue
        if row.position in seen:
            say(f"the reply at position {row.position} is in the ledger twice: {seen[row.position].id}, {row.id}")
        seen[row.position] = row
        if message.inherited:  # a compaction put its reply there again: the reply itself is found by what it says
            rest.append(row)
            continue
        first = row.position if first is None else min(first, row.position)
        _check_talked(row, message, head, say)
    accounted = {*seen, *(position for position, _, _ in pairs)}
    alone = [(p, m) for p, m in placed if p not in accounted and _is_paid(m)]
    return _check_alone(alone, messages, rest, first, last_brought, head.forked_from is not None, say)


def _brought(brought: dict[UUID, Any], context_id: UUID, position: int, message: Message) -> Any:
    """The attempt that the import of ``message`` wrote, taken out of ``brought``."""
    if not brought:
        return None
    return brought.pop(message.id, None) or brought.pop(codec.message_id_of(context_id, position), None)


def _check_alone(
    alone: list[Placed],
    messages: dict[int, Message],
    rest: list[Any],
    first: int | None,
    last_brought: int | None,
    forked: bool,
    say: Say,
) -> int:
    """The replies that no attempt names: those that have one by what it says, those that must have one, and others."""
    unaccounted = 0
    known: dict[tuple[Any, ...], list[Any]] = {}
    for row in rest if alone else ():
        known.setdefault((row.provider, row.model), []).append(row)
    for position, message in alone:
        origin = message.origin
        candidates = known.get((short(origin.provider), short(origin.model)), []) if origin is not None else []
        mine = next((i for i, row in enumerate(candidates) if not any(_differences(row, message))), None)
        if mine is not None:
            del candidates[mine]
            continue
        before = messages.get(position - 1)
        made_here = before is None or message.id > before.id  # else it is older than what it would answer
        talked = first is not None and position > first and made_here
        if talked or (last_brought is not None and (position < last_brought or made_here)) or (forked and made_here):
            say(f"the reply at position {position} has no attempt in the ledger")
        else:
            unaccounted += 1
    return unaccounted


def _is_paid(m: Message) -> bool:
    return m.role == "assistant" and not m.inherited and (m.usage is not None or m.origin is not None)


def _check_talked(row: Any, message: Message, head: Any, say: Say) -> None:
    if (row.kind, row.outcome) != ("turn", "ok"):
        say(f"the attempt {row.id} is a {row.kind} that ended as {row.outcome}, and has a reply at {row.position}")
    if row.owner != head.owner and not (row.owner or "").startswith(ANONYMOUS):
        say(f"the owner of the attempt {row.id} is {row.owner!r:.60}, that of its context {head.owner!r:.60}")
    if row.cost_pico_usd is not None and row.price is None:
        say(f"the attempt {row.id}: there is a cost and no price")
    _compare(row, message, say)


def _compare(row: Any, message: Message, say: Say) -> None:
    for name, value in _differences(row, message):
        say(f"{name} of the attempt {row.id} is {getattr(row, name)!r:.60}, its reply says {value!r:.60}")


def _differences(row: Any, m: Message) -> Iterable[tuple[str, Any]]:
    origin, used = m.origin, m.usage
    out: list[tuple[str, Any]] = []
    if origin is not None and origin.provider != row.provider and short(origin.provider) != row.provider:
        out.append(("provider", origin.provider))
    if origin is not None and origin.model and row.model and row.model not in (origin.model, short(origin.model)):
        out.append(("model", origin.model))
    if not (row.owner or "").startswith(ANONYMOUS):
        response_id = None if origin is None else origin.response_id
        out += [("finish_reason", m.finish_reason)] if row.finish_reason != plain(m.finish_reason) else []
        out += [("response_id", response_id)] if row.response_id != plain(response_id) else []
    if used is not None and any(getattr(used, n) is not None for n in _NEEDED):  # else it may be corrected
        said = (*used.counts(), m.cost_pico_usd)
        if said != (found := _numbers(row)):
            out += [(n, a) for n, a, b in zip(_NUMBERS, said, found, strict=True) if a != b]
    return out
