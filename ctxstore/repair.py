"""Every call answered exactly once, right after it: what providers insist on, made true in what is sent.

Stored history stays as it is; only the copy that goes out is mended.
"""

from __future__ import annotations

from collections.abc import Sequence

from .messages import Message, ToolCall, ToolResult

__all__ = ["cancelled", "repair"]


def cancelled(call: ToolCall, reason: str = "function call cancelled") -> ToolResult:
    """The result of a call that was never run."""
    value = {"cancelled": True, "reason": reason}
    return ToolResult(type="tool_result", id=call.id, name=call.name, value=value, error=True)


def repair(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with one result for each call directly after it, and no result without its call.

    A result that stands later is moved up, one that is missing is marked cancelled, one that answers nothing (or
    answers twice) is left out. Messages that are in order already are passed on as they are.
    """
    if not any(type(m.content) is list for m in messages):
        return list(messages)
    results: dict[str, ToolResult] = {}
    for message in messages:
        for result in message.tool_results:
            results.setdefault(result.id, result)
    out: list[Message] = []
    skip: set[int] = set()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if index in skip:
            continue
        if message.tool_results:
            others = [p for p in message.parts if not isinstance(p, ToolResult)]
            if others:
                out.append(message.model_copy(update={"content": others}))
            continue
        out.append(message)
        calls = [c for c in message.tool_calls if c.id not in answered]
        if not calls:
            continue
        answered.update(c.id for c in calls)
        wanted = [c.id for c in calls]
        run = index + 1
        found: list[ToolResult] = []
        while run < len(messages) and messages[run].tool_results and len(found) < len(wanted):
            found.extend(messages[run].tool_results)
            run += 1
        if [r.id for r in found] == wanted and all(
            len(m.parts) == len(m.tool_results) for m in messages[index + 1 : run]
        ):
            out.extend(messages[index + 1 : run])
            skip.update(range(index + 1, run))
        else:
            mended = [results.get(c.id) or cancelled(c) for c in calls]
            out.append(Message(id=message.id, role="tool", created_at=message.created_at, content=list(mended)))
    return out
