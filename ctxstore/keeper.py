"""The port through which a turn is kept: before each request, after each reply, and when one failed.

A context that is bound to a store has the store's keeper, one that belongs to a record the record's; a free context
has ``FREE``. The sync driver calls ``take``, the async one ``atake``; a keeper that does no IO has only the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from .state import State
from .usage import Turn

__all__ = ["FREE", "Keeper", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step in the keeping of ``turn``.

    - ``begin``: a request is about to be sent. Stores check that the state is not stale and note the prompt
      (``turn.messages``, not in the state yet) as in flight, under ``turn.id``. ``seconds`` is how long the request
      may take, which a lease must cover.
    - ``keep``: a request was completed, or tool results came in: ``state`` holds what is new (``state.changes()``),
      and ``turn.usage`` the attempts. The keeper saves and calls ``state.saved(...)``.
    - ``fail``: the provider answered with an error: attempts go to the ledger, what is in flight is taken back.
    - ``leave``: an interrupt, a cancellation or a lost connection ended the request: attempts go to the ledger, the
      prompt stays in flight.
    """

    kind: Literal["begin", "keep", "fail", "leave"]
    state: State
    turn: Turn
    seconds: float = 0.0


class Keeper(Protocol):
    """Where the turns of a context are kept."""

    def take(self, step: Step) -> None:
        """Carry out ``step``. Raises StaleContextError, ContextLockedError, StoreUnavailableError ..."""
        ...

    async def atake(self, step: Step) -> None:
        """The same, for the async driver."""
        ...


class _Free:
    """Keeps nothing: a context that is saved by hand. What failed waits with the rest for the ledger of that save."""

    def take(self, step: Step) -> None:
        if step.kind in ("fail", "leave"):
            step.state.pending_usage.extend(step.turn.usage)

    async def atake(self, step: Step) -> None:
        self.take(step)


FREE: Keeper = _Free()
