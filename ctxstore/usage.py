"""What a reply used and what it cost.

Buckets are *inclusive*: ``input_tokens`` counts every token of the prompt, cached ones too, ``output_tokens`` every
token generated, reasoning too; the other counts say how much of those was of a kind. None means that the provider did
not say, which is not zero. Money is exact: whole pico-dollars (10^-12 USD), since prices are dollars per million
tokens.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, model_validator

from .errors import ConfigurationError

if TYPE_CHECKING:
    from .messages import Message

__all__ = ["COUNTS", "PICO", "Cost", "Price", "Tier", "TokenUsage", "Turn", "UsageEntry"]

PICO = 10**12
"""Pico-dollars in a dollar."""

COUNTS = (
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "input_audio_tokens",
    "output_audio_tokens",
    "input_image_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "total_tokens",
)
"""The ten counts, in the order of the columns."""


class TokenUsage(BaseModel):
    """Tokens of one reply, or the sum of many.

    Addable: a known count plus an unknown one is the known one, and ``TokenUsage.zero()`` is where sums begin, so that
    sums are always numbers. ``cache_write_tokens`` includes ``cache_write_1h_tokens``. Counts of a kind that this
    version does not know are kept in a payload, and are in no sum.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    input_audio_tokens: int | None = None
    output_audio_tokens: int | None = None
    input_image_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    total_tokens: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _sum_up(cls, data: Any) -> Any:
        if (type(data) is dict or isinstance(data, Mapping)) and data.get("total_tokens") is None:
            i, o = data.get("input_tokens"), data.get("output_tokens")
            if type(i) is int and type(o) is int:
                return {**data, "total_tokens": i + o}
        return data

    @classmethod
    def zero(cls) -> TokenUsage:
        """Nothing used: every count is 0."""
        return _ZERO

    @classmethod
    def sum(cls, parts: Iterable[TokenUsage], start: TokenUsage | None = None) -> TokenUsage:
        """The sum of ``parts``, from ``start`` or 0: every count is a number."""
        total: dict[str, Any] = dict(_ZERO.__dict__)
        for part in parts if start is None or start is _ZERO else (start, *parts):
            for name, count in part.__dict__.items():
                if count:
                    total[name] += count
        return cls(**total)  # faster than model_construct

    def __add__(self, other: TokenUsage) -> TokenUsage:
        if not isinstance(other, TokenUsage):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        total: dict[str, Any] = {k: _plus(mine[k], theirs[k]) for k in COUNTS}
        return TokenUsage(**total)

    def counts(self) -> tuple[int | None, ...]:
        """The ten counts in the order of ``COUNTS``."""
        return tuple(self.__dict__[k] for k in COUNTS)

    def to_payload(self) -> dict[str, int]:
        """The counts that are known."""
        mine = self.__dict__
        out = {k: v for k in COUNTS if (v := mine[k]) is not None}
        if self.__pydantic_extra__:
            out.update(self.__pydantic_extra__)
        return out


def _plus(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


_ZERO = TokenUsage(**dict.fromkeys(COUNTS, 0))


@dataclass(frozen=True, slots=True)
class Tier:
    """Other rates for the whole of a request whose input is longer than ``above`` tokens, by the names in ``Price``."""

    above: int
    rates: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens, each kind at its rate; None falls back to the rate of the whole it is a part of.

    ``request`` is USD for each request, whatever its length. ``tiers`` are the rates of long requests, the shortest
    first. ``source`` says where the numbers come from and stands in the ledger beside the cost.
    """

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_1h: Decimal | None = None
    reasoning: Decimal | None = None
    input_audio: Decimal | None = None
    output_audio: Decimal | None = None
    input_image: Decimal | None = None
    request: Decimal | None = None
    source: str = "caller"
    tiers: tuple[Tier, ...] = ()

    @classmethod
    def of(cls, rates: Mapping[str, Any], source: str = "caller") -> Price:
        """From a mapping such as ``{"input": 3, "output": 15, "cache_read": 0.3}``.

        ``"tiers": {200_000: {"input": 6, "output": 22.5}}`` gives the rates past that many tokens of input.

        Raises:
            ConfigurationError: a rate is unknown, missing or no amount.
        """
        tiers = {int(above): _decimals(more) for above, more in (rates.get("tiers") or {}).items()}
        base = _decimals({k: v for k, v in rates.items() if k != "tiers"})
        if not {"input", "output"} <= base.keys():
            raise ConfigurationError("a price needs the rates 'input' and 'output', in USD per million tokens")
        return cls(**base, source=source, tiers=tuple(Tier(above, tiers[above]) for above in sorted(tiers)))

    def to_payload(self) -> dict[str, str]:
        """The rates as exact decimal strings, with their source; those of a tier as ``input_above_200000``."""
        names = (n for n in self.__dataclass_fields__ if n != "tiers" and getattr(self, n) is not None)
        out = {n: str(getattr(self, n)) for n in names}
        out.update({f"{n}_above_{t.above}": str(rate) for t in self.tiers for n, rate in t.rates.items()})
        return out

    def cost(self, usage: TokenUsage) -> Cost:
        """What ``usage`` costs; ``total`` is None when the input or the output is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return Cost()
        for tier in reversed(self.tiers):
            if usage.input_tokens > tier.above:
                rates: dict[str, Any] = {**tier.rates, "tiers": ()}
                return replace(self, **rates).cost(usage)
        read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        hour = usage.cache_write_1h_tokens or 0
        # What has no rate of its own is left in the whole it is a part of, and no token is charged twice: audio that
        # was cached counts as cached.
        rest = max(usage.input_tokens - read - write, 0)
        audio_in, rest = _split(rest, usage.input_audio_tokens, self.input_audio)
        image, rest = _split(rest, usage.input_image_tokens, self.input_image)
        audio_out, said = _split(usage.output_tokens, usage.output_audio_tokens, self.output_audio)
        reasoning, said = _split(said, usage.reasoning_tokens, self.reasoning)
        write_rate = self.input if self.cache_write is None else self.cache_write
        zero = Decimal(0)
        parts: dict[str, Decimal] = {
            "input": rest * self.input,
            "output": said * self.output,
            "cache_read": read * (self.input if self.cache_read is None else self.cache_read),
            "cache_write": max(write - hour, 0) * write_rate
            + hour * (write_rate if self.cache_write_1h is None else self.cache_write_1h),
            "reasoning": reasoning * (self.reasoning or zero),
            "input_audio": audio_in * (self.input_audio or zero),
            "output_audio": audio_out * (self.output_audio or zero),
            "input_image": image * (self.input_image or zero),
            "request": (self.request or zero) * 1_000_000,
        }
        picos = {k: int((v * PICO / 1_000_000).to_integral_value()) for k, v in parts.items()}
        dollars: dict[str, Any] = {k: _usd(v) for k, v in picos.items()}
        return Cost(total=_usd(sum(picos.values())), **dollars)


def _split(whole: int, part: int | None, rate: Decimal | None) -> tuple[int, int]:
    """How much of ``whole`` has the rate of its part, and what is left."""
    found = 0 if rate is None else min(part or 0, whole)
    return found, whole - found


_RATES = tuple(name for name in Price.__dataclass_fields__ if name not in ("source", "tiers"))


def _decimals(rates: Any) -> dict[str, Any]:
    if not isinstance(rates, Mapping):
        raise ConfigurationError(f"rates are a mapping such as {{'input': 3, 'output': 15}}, not {rates!r}")
    found: dict[str, Any] = {}
    for name, value in rates.items():
        if name not in _RATES:
            raise ConfigurationError(f"there is no rate {name!r}; there are {', '.join(_RATES)}")
        if value is not None:
            try:
                found[name] = Decimal(str(value))
            except InvalidOperation as error:
                raise ConfigurationError(f"the rate {name!r} is no number: {value!r}") from error
            if not (found[name].is_finite() and found[name] >= 0):
                raise ConfigurationError(f"the rate {name!r} cannot be {value!r}")
    return found


def _usd(pico: int) -> Decimal:
    return Decimal(pico) / PICO


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, exact. ``total`` is None when nothing is priced; ``unpriced`` counts the replies without a price."""

    total: Decimal | None = None
    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)
    cache_read: Decimal = Decimal(0)
    cache_write: Decimal = Decimal(0)
    reasoning: Decimal = Decimal(0)
    input_audio: Decimal = Decimal(0)
    output_audio: Decimal = Decimal(0)
    input_image: Decimal = Decimal(0)
    request: Decimal = Decimal(0)
    unpriced: int = 0

    @property
    def pico_usd(self) -> int | None:
        """The total in whole pico-dollars, as the columns hold it."""
        return None if self.total is None else int(self.total * PICO)


Kind = Literal["turn", "compaction", "imported"]
Outcome = Literal["ok", "error", "interrupted", "lost"]


@dataclass(frozen=True, slots=True)
class UsageEntry:
    """One attempt at a provider, as the ledger keeps it: a row whether or not it gave a reply.

    ``id`` is the attempt's own; ``turn_id`` groups the attempts of one turn and ``attempt`` counts them from 1.
    ``outcome``: ok, error (the provider refused or failed), interrupted (cut before its end) or lost (it replied, and
    another writer had saved first). ``usage`` is None when unknown, ``cost_pico_usd`` None when unpriced. Latencies
    are milliseconds from sending the request to its end and to its first token.
    """

    id: UUID
    context_id: UUID
    turn_id: UUID
    attempt: int
    kind: Kind
    outcome: Outcome
    provider: str
    requested_model: str
    created_at: dt.datetime
    model: str | None = None
    usage: TokenUsage | None = None
    usage_raw: Any = None
    cost_pico_usd: int | None = None
    price: Mapping[str, str] | None = None
    finish_reason: str | None = None
    error: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    latency_ms: int | None = None
    ttft_ms: int | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the messages it made, in order, and the attempts it paid for.

    It stands in ``.turn`` of the errors that end one, so that nothing paid for is lost with it.
    """

    id: UUID
    context_id: UUID
    messages: tuple[Message, ...] = ()
    usage: tuple[UsageEntry, ...] = field(default=())
