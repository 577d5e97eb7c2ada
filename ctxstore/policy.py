"""Which tools run without being asked about, and how often.

Nothing runs unless it is allowed: a call that no rule matches stays pending, and ``ctx.run_tools()`` or the caller's
own answer decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Literal

from .errors import ConfigurationError
from .tools import Tool

__all__ = ["PolicyStatus", "ToolPolicy"]


class PolicyStatus(enum.Enum):
    """What a policy says of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"
    PENDING = "pending"


class ToolPolicy:
    """Deny goes before allow, allow before ``evaluator``; what none of them decides is pending.

    ``evaluator`` is given the ``Tool`` and returns a ``PolicyStatus``, True (allowed), False (denied) or None (no
    opinion). ``max_rounds`` bounds how often one turn may go back to the model with results; 0 runs nothing.
    ``strategy`` is how several allowed calls of one reply are run: ``sequential`` or ``thread``.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        evaluator: Callable[[Tool], PolicyStatus | bool | None] | None = None,
        max_rounds: int = 8,
        strategy: Literal["sequential", "thread"] = "sequential",
    ) -> None:
        if max_rounds < 0:
            raise ConfigurationError(f"max_rounds must be 0 or more, not {max_rounds}")
        if isinstance(allow, str) or isinstance(deny, str):
            raise ConfigurationError("allow and deny take lists of tool names, not one string")
        if strategy not in ("sequential", "thread"):
            raise ConfigurationError(f"there is no strategy {strategy!r}; use 'sequential' or 'thread'")
        self.allowed, self.denied = set(allow), set(deny)
        self.evaluator = evaluator
        self.max_rounds = max_rounds
        self.strategy: Literal["sequential", "thread"] = strategy

    def allow(self, name: str) -> ToolPolicy:
        """Allow the tool ``name`` from now on."""
        self.allowed.add(name)
        return self

    def deny(self, name: str) -> ToolPolicy:
        """Deny the tool ``name`` from now on."""
        self.denied.add(name)
        return self

    def status(self, name: str, tool: Tool | None) -> PolicyStatus:
        """What is to be done with a call of ``name``; ``tool`` is None when the context has no such tool."""
        if name in self.denied:
            return PolicyStatus.DENIED
        if name in self.allowed:
            return PolicyStatus.ALLOWED
        if self.evaluator is None or tool is None:
            return PolicyStatus.PENDING
        found = self.evaluator(tool)
        if isinstance(found, PolicyStatus):
            return found
        return PolicyStatus.PENDING if found is None else PolicyStatus.ALLOWED if found else PolicyStatus.DENIED
