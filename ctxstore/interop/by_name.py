"""Importing by the name of the other program, for the command."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigurationError
from ..store import Store
from ..store.transfer import Import
from .llmrb import import_column
from .openai_agents import import_sessions
from .source import Source

__all__ = ["read"]


def read(
    store: Store,
    kind: str,
    source: Source,
    *,
    table: str | None = None,
    column: str = "data",
    owner: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Import:
    """Import from the database ``source`` of another program, by its name: ``openai-agents`` or ``llm.rb``.

    Raises:
        ConfigurationError: the program is unknown, or has no such table there.
    """
    if kind == "openai-agents":
        return import_sessions(store, source, messages_table=table or "agent_messages", owner=owner, progress=progress)
    if kind == "llm.rb":
        if table is None:
            raise ConfigurationError("llm.rb keeps contexts in a table of the application's: name it (--table)")
        return import_column(store, source, table, column, owner=owner, progress=progress)
    raise ConfigurationError(f"there is nothing to import from {kind!r}, only from openai-agents and llm.rb")
