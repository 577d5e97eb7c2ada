"""Conversations with language models, kept in your own SQL database.

``Context`` is one conversation, ``Store`` keeps it. Names load when they are first used, so that ``import ctxstore``
costs little; the README is the manual.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import new_id
    from .context import Context
    from .orm import HasContext, HasContextColumn, HasContextLink, migrate_payloads
    from .policy import ToolPolicy
    from .store import Store
    from .tools import tool
    from .usage import TokenUsage

__all__ = [
    "Context",
    "HasContext",
    "HasContextColumn",
    "HasContextLink",
    "Store",
    "TokenUsage",
    "ToolPolicy",
    "migrate_payloads",
    "new_id",
    "tool",
]

_HOMES = {
    "Context": "context",
    "HasContext": "orm",
    "HasContextColumn": "orm",
    "HasContextLink": "orm",
    "Store": "store",
    "TokenUsage": "usage",
    "ToolPolicy": "policy",
    "migrate_payloads": "orm",
    "new_id": "clock",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
