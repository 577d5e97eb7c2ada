"""What ``store.create``, ``store.load`` and ``store.lease`` hand on to ``Context``, typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

from ..messages import Message, ToolCall, ToolResult
from ..policy import ToolPolicy

__all__ = ["ContextOptions", "NewContextOptions"]


class ContextOptions(TypedDict, total=False):
    """The options of ``Context`` that hold for a stored one as well; explicit ones win over what is stored."""

    mode: str | None
    model: str | None
    tools: Any
    tool_policy: ToolPolicy | None
    instructions: str | None
    schema: Any
    compactor: Any
    filter: Callable[[Message], Message] | None
    intercept: Callable[[ToolCall], ToolResult | None] | None
    retry_budget: int
    stream: Any
    tracer: Any
    metadata: Mapping[str, Any] | None
    file_roots: Iterable[str | Path]
    params: Mapping[str, Any] | None
    record: Any


class NewContextOptions(ContextOptions, total=False):
    """The same for a new one, which may be given its id."""

    id: UUID | str | None
