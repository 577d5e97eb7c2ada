"""The way from an older payload to the current one, a step a version, on plain dicts.

A step never sees a live class, so that what it does stays what it did when it was written. It has a part for the head
and a part for one message, because ctxstore's own tables keep messages as rows with a version of their own; a whole
document is its head and each of its messages. Steps build new dicts and leave what they are given as it was.

To make version 4: change the live classes, raise ``schema.VERSION`` and add ``STEPS[3]``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import clock, jsontext
from ..errors import PayloadError
from .schema import VERSION

__all__ = ["STEPS", "Source", "Upcast", "current", "upcast_document", "upcast_head", "upcast_message"]

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """What a message's step may know of the conversation around it: who replied, and the ids of its tool calls."""

    provider: str | None = None
    model: str | None = None
    calls: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Upcast:
    """One step: ``head`` and ``message`` each return a new dict. ``summary`` says what the new version changed, and
    ``alone`` that a message is all that its step looks at: its ``Source`` stays empty."""

    summary: str
    head: Callable[[Json], Json] = dict
    message: Callable[[Json, Source], Json] = lambda message, source: dict(message)
    alone: bool = False


def current() -> int:
    """The version that the steps lead to."""
    return len(STEPS) + 1


def upcast_head(head: Mapping[str, Any], version: int) -> Json:
    """``head`` in the current version."""
    out = dict(head)
    for step in range(version, current()):
        out = STEPS[step].head(out)
    return out


def upcast_message(message: Mapping[str, Any], version: int, source: Source) -> Json:
    """One message in the current version."""
    out = dict(message)
    for step in range(version, current()):
        out = STEPS[step].message(out, source)
    return out


def upcast_document(document: Mapping[str, Any], version: int) -> Json:
    """A whole payload (``messages`` is a list of dicts) in the current version.

    Raises:
        PayloadError: a part of it is not what its version says; the path says which.
    """
    head = dict(document)
    messages = head.pop("messages", None) or []
    for number in range(version, current()):
        step = STEPS[number]
        source = _ALONE if step.alone else _source(head, messages)
        moved: list[Json] = []
        try:
            for message in messages:
                moved.append(step.message(message, source))
        except PayloadError as error:
            raise PayloadError(f"messages[{len(moved)}].{error}") from error
        head, messages = step.head(head), moved
    head["messages"] = messages
    return head


_ALONE = Source()


def _source(head: Json, messages: Iterable[Json]) -> Source:
    ids: set[str] = set()
    for message in messages:
        tools = message.get("tools")
        if isinstance(tools, list):
            ids.update(c["id"] for c in tools if isinstance(c, dict) and isinstance(c.get("id"), str))
    return Source(_text_or_none(head.get("provider")), _text_or_none(head.get("model")), frozenset(ids))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# -- 1 -> 2: tool calls in their abstract form only


def _abstract_calls(message: Json, source: Source) -> Json:
    out = dict(message)
    wire = out.pop("original_tool_calls", None)
    if not wire:
        return out
    found = [c for c in map(_wire_call, wire if isinstance(wire, list) else [wire]) if c is not None]
    if not found:
        return out
    calls = message.get("tools")
    if not calls:
        out["tools"] = [{**c, "id": c["id"] or f"call_{i}"} for i, c in enumerate(found)]
    elif isinstance(calls, list):
        out["tools"] = [_with_exact_arguments(c, i, found) for i, c in enumerate(calls)]
    return out


def _wire_call(block: Any) -> Json | None:
    """A provider's own form of a call, in the abstract one. The argument string stays as the provider sent it."""
    if not isinstance(block, dict):
        return None
    inner: Any = block
    for key in ("function", "functionCall", "toolUse"):  # chat completions, Google, Bedrock; else the block itself
        if isinstance(block.get(key), dict):
            inner = block[key]
    name = inner.get("name")
    if not isinstance(name, str):
        return None
    ids = (block.get("call_id"), inner.get("toolUseId"), inner.get("id"), block.get("id"))
    arguments: Any = next((inner[key] for key in ("arguments", "input", "args") if key in inner), {})
    return {"id": next((i for i in ids if isinstance(i, str)), None), "name": name, "arguments": arguments}


def _with_exact_arguments(call: Any, index: int, wire: list[Json]) -> Any:
    if not isinstance(call, dict):
        return call
    same = [w for w in wire if w["id"] is not None and w["id"] == call.get("id")]
    if not same and index < len(wire) and wire[index]["id"] is None and wire[index]["name"] == call.get("name"):
        same = [wire[index]]
    exact = same[0]["arguments"] if same else None
    return {**call, "arguments": exact} if isinstance(exact, str) else call


# -- 2 -> 3: content is typed, replies say where they came from, usage that nobody measured is unknown

_PROJECTED = frozenset({"context_used", "context_window", "token_usage"})
_MOVED = frozenset({"id", "role", "created_at", "content", "reasoning_content", "tools", "usage"})
_TOOL_ROLES = ("tool", "function")
_IMAGES = {  # not the machine's own table of types: what is loaded must not depend on where
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "svg": "image/svg+xml",
    "avif": "image/avif",
    "heic": "image/heic",
}


def _typed_head(head: Json) -> Json:
    out = {k: v for k, v in head.items() if k not in _PROJECTED}
    out["compacted"] = bool(head.get("compacted"))
    return out


def _typed_message(message: Json, source: Source) -> Json:
    role, content, thought = message.get("role"), message.get("content"), message.get("reasoning_content")
    out: Json = {}
    if message.get("id") is not None:
        _take_id(message["id"], out)
    of_tool = role in _TOOL_ROLES
    written = content is None or isinstance(content, str)
    if not (of_tool or written) and _answers(content, source.calls):
        role, of_tool = "tool", True  # some of llm.rb's providers answer calls under the role "user"
    out["role"] = "assistant" if role == "model" else role
    if message.get("created_at") is not None:
        _take_time(message["created_at"], out)
    elif "id" in out:
        out["created_at"] = clock.time_of(clock.parse_id(out["id"])).isoformat()
    body = content if written else _parts(content, of_tool)
    tools = message.get("tools")
    calls = [] if tools is None else _calls(tools)
    if calls or (thought and isinstance(thought, str)):
        typed = [{"type": "text", "text": body}] if isinstance(body, str) else body or []
        reasoning = [{"type": "reasoning", "text": thought}] if thought and isinstance(thought, str) else []
        body = [*reasoning, *typed, *calls]
    out["content"] = body
    usage = message.get("usage")
    if usage is not None and (usage := _usage(usage)) is not None:
        out["usage"] = usage
        if out["role"] == "assistant" and source.model is not None and "origin" not in message:
            out["origin"] = {"provider": source.provider or "unknown", "model": source.model}
    if thought is not None and not isinstance(thought, str):
        out["reasoning_content"] = thought
    for key, value in message.items():
        if key not in _MOVED:
            out[key] = value
    return out


def _take_id(identity: Any, out: Json) -> None:
    out["id" if clock.is_uuid7(identity) else "payload_id"] = identity


def _take_time(written: Any, out: Json) -> None:
    try:
        time = dt.datetime.fromisoformat(str(written).replace(" UTC", "+00:00"))
    except ValueError:
        out["payload_created_at"] = written
        return
    out["created_at"] = (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).isoformat()


def _answers(content: Any, calls: frozenset[str]) -> bool:
    """Whether ``content`` is nothing but results of calls that this conversation made."""
    items = content if isinstance(content, list) else [content]
    return bool(calls and items) and all(_is_result(item) and len(item) == 3 and item["id"] in calls for item in items)


def _is_result(item: Any) -> bool:
    return isinstance(item, dict) and {"id", "name", "value"} <= item.keys() and isinstance(item["id"], str)


def _parts(content: Any, of_tool: bool) -> list[Json]:
    return [_part(item, of_tool) for item in (content if isinstance(content, list) else [content])]


def _part(item: Any, of_tool: bool) -> Json:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, dict):
        if "__llm_kind__" in item:
            return _tagged(item) or {"type": "data", "value": item}
        if of_tool and _is_result(item):
            return _result(item)
    return {"type": "data", "value": item}


def _result(item: Json) -> Json:
    value = item["value"]
    out: Json = {"type": "tool_result", "id": item["id"]}
    if isinstance(item["name"], str):
        out["name"] = item["name"]
    out["value"] = value
    if isinstance(value, dict) and value.get("error") is True:
        out["error"] = True
    return {**_beside(item, ("id", "name", "value", "type", "error")), **out}


def _tagged(item: Json) -> Json | None:
    kind, value = item["__llm_kind__"], item.get("value")
    if kind == "image_url" and isinstance(value, str):
        return {"type": "image", "url": value, **_beside(item, ("__llm_kind__", "value", "type", "url"))}
    path = item.get("path")
    if kind == "local_file" and isinstance(path, str):
        media = _IMAGES.get(path.rpartition(".")[2].lower())
        out = {"type": "image", "path": path, "media_type": media} if media else {"type": "file", "path": path}
        return {**out, **_beside(item, ("__llm_kind__", "path", "type", "media_type"))}
    if kind == "remote_file" and isinstance(value, dict):
        return {"type": "file", "file": value, **_beside(item, ("__llm_kind__", "value", "type", "file"))}
    return None


def _beside(item: Json, known: Iterable[str]) -> Json:
    return {k: v for k, v in item.items() if k not in known}


def _calls(tools: Any) -> list[Json]:
    if not isinstance(tools, list):
        raise PayloadError("tools: must be a list of tool calls")
    return [_call(tool, i) for i, tool in enumerate(tools)]


def _call(tool: Any, index: int) -> Json:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise PayloadError(f"tools[{index}]: must be an object with id, name and arguments")
    arguments, identity = tool.get("arguments"), tool.get("id")
    if not isinstance(arguments, str):
        arguments = jsontext.dumps({} if arguments is None else arguments)
    out: Json = {
        "type": "tool_call",
        "id": f"call_{index}" if identity is None else str(identity),
        "name": tool["name"],
    }
    return {**out, "arguments": arguments, **_beside(tool, ("type", "id", "name", "arguments"))}


def _usage(usage: Any) -> Json | None:
    """The counts; None when they are all zero, which is what llm.rb writes when the provider sent none."""
    if not isinstance(usage, dict):
        raise PayloadError("usage: must be an object of counts")
    return usage if any(usage.values()) else None


STEPS: dict[int, Upcast] = {
    1: Upcast(
        "tool calls in their abstract form only, with the exact argument string", message=_abstract_calls, alone=True
    ),
    2: Upcast(
        "typed content, origin of replies, usage unknown rather than zero", head=_typed_head, message=_typed_message
    ),
}
"""The step from each version to the next. A gap or a step too many is refused when this module is imported."""

if sorted(STEPS) != list(range(1, VERSION)):
    raise RuntimeError(f"payload version {VERSION} needs the steps 1 to {VERSION - 1}, there are {sorted(STEPS)}")
