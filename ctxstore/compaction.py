"""Keeping a conversation within bounds, without ever splitting a call from its result.

``Trim`` drops the oldest messages, ``Callback`` asks a function, ``Summarize`` has the model write a summary before the
window is full. What leaves the live window of a stored context is retired, not deleted: ``store.history`` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from .effects import Flow, keep
from .errors import ConfigurationError
from .keeper import Step
from .messages import Message
from .snapshot import estimate_tokens
from .state import State
from .turn import Run, ask, save
from .usage import Turn

__all__ = ["Callback", "Compactor", "Summarize", "Trim", "compact_by_hand", "summarize"]

PROMPT = (
    "Summarize the conversation so far for whoever goes on with it: what is wanted, what was decided and found out, "
    "names and numbers exactly, and what is still open. Answer with the summary alone."
)


class Compactor(Protocol):
    """What ``Context(compactor=...)`` takes."""

    def apply(self, state: State) -> bool:
        """Bring ``state`` within bounds after messages were added; whether anything was done."""
        ...


def tokens_in_use(state: State) -> int:
    """Tokens of the live conversation: what the last reply counted, and an estimate of what came after it."""
    after: list[Message] = []
    for message in reversed(state.messages):
        if message.usage is not None and message.usage.total_tokens is not None:
            return message.usage.total_tokens + estimate_tokens(after)
        after.append(message)
    return estimate_tokens(after, state.head.summary)


class _Limited:
    """Limits that both kinds share; 0 is no limit."""

    def __init__(self, max_messages: int = 0, max_tokens: int = 250_000) -> None:
        for name, value in (("max_messages", max_messages), ("max_tokens", max_tokens)):
            if value < 0:
                raise ConfigurationError(f"{name} must be 0 (no limit) or more, not {value}")
        self.max_messages, self.max_tokens = max_messages, max_tokens

    def exceeded(self, count: int, tokens: float) -> bool:
        """Whether so many messages and tokens are over a limit."""
        return bool((self.max_messages and count > self.max_messages) or (self.max_tokens and tokens > self.max_tokens))


class Trim(_Limited):
    """Drops the oldest messages until ``max_messages`` and ``max_tokens`` hold.

    System messages stay, and so do the newest user message and all that follows it; a call goes with its results.
    When nothing more may go the limits stay exceeded.
    """

    def apply(self, state: State) -> bool:
        used = tokens_in_use(state)
        if not self.exceeded(len(state.messages), used):
            return False
        whole = estimate_tokens(state.messages, state.head.summary) or 1
        count, tokens, gone = len(state.messages), float(used), []
        for unit in units(state.messages):
            if not self.exceeded(count, tokens):
                break
            gone.extend(unit)
            count -= len(unit)
            tokens -= used * estimate_tokens(state.messages[i] for i in unit) / whole
        if not gone:
            return False
        state.remove(gone)
        state.head.compacted = True
        return True


class Callback(_Limited):
    """Once a limit is exceeded, makes what ``function(messages)`` returns the live window.

    The function answers for what it keeps; its result is not measured again.
    """

    def __init__(
        self,
        function: Callable[[list[Message]], Iterable[Message]],
        max_messages: int = 0,
        max_tokens: int = 250_000,
    ) -> None:
        super().__init__(max_messages, max_tokens)
        self.function = function

    def apply(self, state: State) -> bool:
        if not self.exceeded(len(state.messages), tokens_in_use(state)):
            return False
        kept = list(self.function(list(state.messages)))
        if not all(isinstance(m, Message) for m in kept):
            raise ConfigurationError("the function of a Callback must return messages")
        live = {id(m): i for i, m in enumerate(state.messages)}
        places = [live.get(id(m), -1) for m in kept]
        if places == sorted(places) and -1 not in places:
            state.remove(set(range(len(state.messages))) - set(places))
        else:
            state.replace(kept)
        state.head.compacted = True
        return True


class Summarize:
    """Before a request, when the window is ``at_percent`` full, has the model summarize all but the last ``keep``
    messages. System messages stay; an earlier summary is taken into the new one.

    ``model`` writes it, the context's own when left out. Without a known window nothing happens.
    """

    def __init__(
        self, at_percent: float = 65, keep: int = 8, prompt: str | None = None, model: str | None = None
    ) -> None:
        if not 0 < at_percent <= 100:
            raise ConfigurationError(f"at_percent must be over 0 and at most 100, not {at_percent}")
        if keep < 0:
            raise ConfigurationError(f"keep must be 0 or more, not {keep}")
        self.at_percent, self.keep, self.prompt, self.model = at_percent, keep, prompt, model

    def apply(self, state: State) -> bool:
        return False

    def due(self, state: State) -> bool:
        """Whether the window is full enough, with something to summarize."""
        window = state.context_window
        full = bool(window) and tokens_in_use(state) * 100 >= self.at_percent * (window or 0)
        return full and bool(_leaving(state.messages, self.keep))


def units(messages: Sequence[Message]) -> list[list[int]]:
    """The indexes that may go, oldest first, in pieces that go together: everything before the newest user message
    but system messages, each call with the messages that answer it."""
    newest = max((i for i, m in enumerate(messages) if m.role == "user"), default=len(messages))
    out: list[list[int]] = []
    owner: dict[str, list[int]] = {}
    for i, message in enumerate(messages):
        unit = next((owner[r.id] for r in message.tool_results if r.id in owner), None)
        if unit is None:
            unit = []
            if message.role not in ("system", "developer"):
                out.append(unit)
        unit.append(i)
        for call in message.tool_calls:
            owner[call.id] = unit
    return [unit for unit in out if max(unit) < newest]


def _leaving(messages: Sequence[Message], keep: int) -> list[int]:
    """The indexes that a summary stands for: all but system messages and the last ``keep``, pairs kept whole."""
    others = [i for i, m in enumerate(messages) if m.role not in ("system", "developer")]
    first = others[-keep] if 0 < keep <= len(others) else (others[0] if keep else len(messages)) if others else 0
    calls = {c.id: i for i, m in enumerate(messages) for c in m.tool_calls}
    while True:
        earlier = [calls.get(r.id, i) for i in others if i >= first for r in messages[i].tool_results]
        if not earlier or min(earlier) >= first:
            break
        first = min(earlier)
    return [i for i in others if i < first]


def compact_by_hand(state: State, summary: str, keep: int) -> None:
    """Let ``summary`` stand for all but system messages and the last ``keep``."""
    state.remove(_leaving(state.messages, keep))
    state.head.summary, state.head.compacted = summary, True
    state.touch()


def summarize(run: Run, prompt: str | None = None, last: int = 0) -> Flow[str]:
    """Have the model write the summary and put it in place; a failure changes nothing.

    Raises:
        ProviderError: it gave none.
    """
    state = run.state
    run.kind = "compaction"
    message = Message.new("user", prompt or PROMPT)
    _, answer, entries = yield from ask(run, (message,))
    text = answer.text
    if not text:
        yield from keep(Step("fail", state, Turn(run.id, state.id, (), tuple(entries))))
        raise ConfigurationError(f"the model {answer.origin and answer.origin.model!r} gave no summary; try another")
    mark = state.mark(whole=True)
    head = state.head
    if answer.usage is not None:
        head.carried_usage = head.carried_usage + answer.usage
    if answer.cost_pico_usd is None:
        head.carried_unpriced += 1
    else:
        head.carried_cost += answer.cost_pico_usd
    compact_by_hand(state, text, last)
    yield from save(run, mark, Turn(run.id, state.id, (), tuple(entries)))
    return text
