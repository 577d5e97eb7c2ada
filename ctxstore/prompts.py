"""What callers write, as messages: text, parts, files, data, tool results, mappings in the OpenAI shape.

Everything that enters a conversation comes through here, and is checked here for what JSON cannot hold.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from . import clock, jsontext
from .errors import PayloadError
from .messages import Content, DataPart, FilePart, ImagePart, Message, Part, TextPart, ToolCall, ToolResult, Value

__all__ = [
    "Prompt",
    "as_messages",
    "content_of",
    "from_mapping",
    "image_bytes",
    "image_url",
    "local_file",
    "plain",
    "remote_file",
    "tool_message",
]


class Prompt:
    """A prompt of several roles: ``ctx.talk(ctx.prompt().system("Be kind.").user("Hi"))``."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, role: str, content: Any) -> Prompt:
        """Append ``content`` (as ``Context.append`` takes it) under ``role``."""
        self.messages.append(Message.new(role, content_of(content)))
        return self

    def system(self, content: Any) -> Prompt:
        """Append a system message."""
        return self.add("system", content)

    def developer(self, content: Any) -> Prompt:
        """Append a developer message."""
        return self.add("developer", content)

    def user(self, content: Any) -> Prompt:
        """Append a user message."""
        return self.add("user", content)

    def assistant(self, content: Any) -> Prompt:
        """Append an assistant message."""
        return self.add("assistant", content)


def image_url(url: str, detail: str | None = None) -> ImagePart:
    """An image by its address; the provider fetches it."""
    return ImagePart(type="image", url=url, detail=detail)


def local_file(path: str | Path) -> ImagePart | FilePart:
    """A local file, read when a request is built. An image part when its name says that it is an image."""
    kind = mimetypes.guess_type(str(path))[0]
    if kind and kind.startswith("image/"):
        return ImagePart(type="image", path=str(path), media_type=kind)
    return FilePart(type="file", path=str(path), media_type=kind)


def remote_file(file: Mapping[str, Any] | str) -> FilePart:
    """A file uploaded to the provider before: its id, or the provider's description of it."""
    described = {"id": file} if isinstance(file, str) else dict(file)
    return FilePart(type="file", file=jsontext.check(described, "file"))


def image_bytes(data: bytes, media_type: str) -> ImagePart:
    """An image from its bytes."""
    return ImagePart(type="image", data=base64.b64encode(data).decode(), media_type=media_type)


def content_of(value: Any) -> Content:
    """``value`` as content: text, a part, a list of text and parts, or data (numbers, mappings, dataclasses, models).

    Raises:
        UnsupportedValueError: a value inside has no form in JSON.
    """
    if value is None or isinstance(value, str):
        return None if value is None else _str(value)
    if isinstance(value, Value):
        return [value]  # type: ignore[list-item]
    if isinstance(value, list | tuple) and value and all(_is_part(item) for item in value):
        return [_part(item, f"content[{i}]") for i, item in enumerate(value)]
    return [DataPart(type="data", value=plain(value, "content"))]


def plain(value: Any, path: str) -> Any:
    """``value`` as JSON, pydantic models and dataclasses by their fields.

    Raises:
        UnsupportedValueError: it has no form in JSON.
    """
    if isinstance(value, BaseModel):
        return jsontext.check(value.model_dump(mode="json", by_alias=True), path)
    if hasattr(type(value), "__dataclass_fields__"):
        return {k: plain(getattr(value, k), f"{path}.{k}") for k in type(value).__dataclass_fields__}
    return jsontext.check(value, path)


def _str(text: str) -> str:
    checked: str = jsontext.check(text, "content")
    return checked


def _is_part(item: Any) -> bool:
    return isinstance(item, str | Value) or (isinstance(item, Mapping) and isinstance(item.get("type"), str))


def _part(item: Any, path: str) -> Any:
    if isinstance(item, str):
        return TextPart(type="text", text=_str(item))
    if isinstance(item, Value):
        jsontext.check(item.to_payload(), path)
        return item
    if item["type"] == "image_url":
        image = item["image_url"]
        url, detail = (image, None) if isinstance(image, str) else (image["url"], image.get("detail"))
        return image_url(url, detail)
    return _PART.validate_python(jsontext.check(dict(item), path))


_PART: TypeAdapter[Any] = TypeAdapter(Part)


def from_mapping(data: Mapping[str, Any]) -> Message:
    """A message from a mapping in the OpenAI shape, or as ``Message.to_payload`` writes it.

    ``tool_calls`` may have ``name`` and ``arguments`` themselves or in ``function``; arguments may be a string or an
    object. A missing id or time is minted.

    Raises:
        PayloadError: it has no role, or a part of it is not what its type says.
    """
    if not isinstance(data.get("role"), str):
        raise PayloadError(f"a message needs a 'role', one of system, user, assistant, tool: {dict(data)!r:.200}")
    rest = {k: v for k, v in data.items() if k not in ("role", "content", "tool_calls", "tool_call_id", "name")}
    role, content = data["role"], data.get("content")
    try:
        if role == "tool" and "tool_call_id" in data:
            result = ToolResult(
                type="tool_result", id=data["tool_call_id"], name=data.get("name"), value=plain(content, "content")
            )
            body: Content = [result]
        else:
            body = content_of(content)
            calls = [_call(c, i) for i, c in enumerate(data.get("tool_calls") or ())]
            if calls:
                body = [*Message.model_construct(content=body).parts, *calls]
            if data.get("name") is not None:
                rest["name"] = data["name"]
        rest.setdefault("id", clock.new_id())
        rest.setdefault("created_at", clock.now())
        return Message.model_validate({**_checked(rest), "role": role, "content": body})
    except ValidationError as error:
        raise PayloadError(f"this is no message: {_first(error)}") from error


def _checked(rest: dict[str, Any]) -> dict[str, Any]:
    """``rest`` with every value checked but the ones that pydantic types itself."""
    typed = ("id", "created_at", "origin", "usage")
    return {k: v if k in typed else jsontext.check(v, k) for k, v in rest.items()}


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def _call(data: Any, index: int) -> ToolCall:
    if isinstance(data, ToolCall):
        return data
    inner = data.get("function") or data
    arguments = inner.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = jsontext.dumps(jsontext.check(arguments, f"tool_calls[{index}].arguments"))
    return ToolCall(type="tool_call", id=data["id"], name=inner["name"], arguments_json=arguments)


def as_messages(prompt: Any) -> list[Message]:
    """The messages that a prompt stands for.

    A string, a part or a list of text and parts is one user message; a ``Message`` or a mapping with a role itself;
    tool results, alone or in a list, one tool message; a ``Prompt`` or a list of messages each of them.
    """
    if isinstance(prompt, Prompt):
        return list(prompt.messages)
    if isinstance(prompt, Message):
        return [prompt]
    if isinstance(prompt, Mapping) and "role" in prompt:
        return [from_mapping(prompt)]
    if isinstance(prompt, ToolResult):
        return [tool_message([prompt])]
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        if not prompt:
            return []
        if all(isinstance(item, ToolResult) for item in prompt):
            return [tool_message(prompt)]
        if all(isinstance(item, Message) or (isinstance(item, Mapping) and "role" in item) for item in prompt):
            return [m for item in prompt for m in as_messages(item)]
        if any(isinstance(item, ToolResult) for item in prompt):
            rest = [item for item in prompt if not isinstance(item, ToolResult)]
            return [tool_message([r for r in prompt if isinstance(r, ToolResult)]), *as_messages(rest)]
    return [Message.new("user", content_of(prompt))]


def tool_message(results: Iterable[ToolResult]) -> Message:
    """One message of the tool role with all of ``results``."""
    checked: list[Any] = []
    for r in results:
        jsontext.check(r.value, f"the result of {r.id!r}")
        checked.append(r)
    return Message.new("tool", checked)
