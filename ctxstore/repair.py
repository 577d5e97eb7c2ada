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
    answers twice) is left out. An id that is called again is a new call; results after it are its own. Messages that
    are in order already are passed on as they are.
    """
    if not any(isinstance(m.content, list) for m in messages):
        return list(messages)
    answers = _answers(messages)
    out: list[Message] = []
    passed = 0
    for index, message in enumerate(messages):
        if index < passed:
            continue
        if message.tool_results:
            others = [p for p in message.parts if not isinstance(p, ToolResult)]
            if not others:
                continue
            message = message.model_copy(update={"content": others})
        out.append(message)
        calls = message.tool_calls
        if not calls:
            continue
        wanted = [answers.get((index, number)) for number in range(len(calls))]
        found: list[ToolResult] = []
        end = index + 1
        while end < len(messages) and len(found) < len(calls) and _only_results(messages[end]):
            found.extend(messages[end].tool_results)
            end += 1
        if len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True)):
            out.extend(messages[index + 1 : end])
            passed = end
        else:
            mended = [answer or cancelled(call) for call, answer in zip(calls, wanted, strict=True)]
            out.append(Message(id=message.id, role="tool", created_at=message.created_at, content=list(mended)))
    return out


def _answers(messages: Sequence[Message]) -> dict[tuple[int, int], ToolResult]:
    """The result of each call that has one; a call is named by its message's index and its number in it."""
    answers: dict[tuple[int, int], ToolResult] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    for index, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        here: dict[str, list[tuple[int, int]]] = {}
        for number, call in enumerate(message.tool_calls):
            here.setdefault(call.id, []).append((index, number))
        waiting.update(here)
        for result in message.tool_results:
            if slots := waiting.get(result.id):
                answers[slots.pop(0)] = result
    return answers


def _only_results(message: Message) -> bool:
    results = message.tool_results
    return bool(results) and len(results) == len(message.parts)
