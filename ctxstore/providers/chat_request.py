"""Messages as Chat Completions wants them. Pure: the same messages give the same bytes, each message by itself, so
that what was sent before is a prefix of what is sent next and the provider's cache finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from .. import jsontext
from ..errors import ConfigurationError
from ..messages import (
    DataPart,
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolResult,
    UnknownPart,
)
from ..tools import Tool
from .base import ModelRequest, Schema
from .dialect import Dialect
from .files import data_url, media_type_of, read_file

__all__ = ["chat_body"]

_RESERVED = ("messages", "stream")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AUDIO = {"mpeg": "mp3", "mp3": "mp3", "wav": "wav", "x-wav": "wav", "wave": "wav"}


def chat_body(request: ModelRequest, dialect: Dialect, name: str) -> dict[str, Any]:
    """The body of the request, as a mapping. ``name`` is the provider's, which replies of its own carry.

    Raises:
        ConfigurationError: a part or a parameter that this form has no place for, or a file that may not be read.
    """
    for key in _RESERVED:
        if key in request.params:
            raise ConfigurationError(f"params may not hold {key!r}: it is the library's own")
    params = {
        dialect.max_tokens if k == "max_tokens" else k: v
        for k, v in jsontext.check(dict(request.params), "params").items()
    }
    body: dict[str, Any] = {"model": request.model, "messages": _Writer(request, dialect, name).write()}
    tools = [*(_tool(t) for t in request.tools), *params.pop("tools", ())]
    if tools:
        body["tools"] = tools
    if request.schema is not None and dialect.schema == "json_schema":
        body["response_format"] = _response_format(request.schema)
    elif request.schema is not None:
        body["response_format"] = {"type": "json_object"}
    if request.stream:
        body["stream"] = True
        if dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    body.update(params)
    return body


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": jsontext.check(function, f"the tool {tool.name}")}


def _response_format(schema: Schema) -> dict[str, Any]:
    described: dict[str, Any] = {"name": schema.name, "schema": jsontext.check(dict(schema.schema), "schema")}
    if _is_strict(schema.schema):
        described["strict"] = True
    return {"type": "json_schema", "json_schema": described}


def _is_strict(schema: Any) -> bool:
    """Whether every object in ``schema`` is closed and all its keys are required, as strict mode insists."""
    if isinstance(schema, list):
        return all(_is_strict(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        required = set(schema.get("required") or ())
        if schema.get("additionalProperties") is not False or required != set(properties or ()):
            return False
    nested = list(properties.values()) if isinstance(properties, Mapping) else []
    nested += [v for k, v in schema.items() if k not in ("properties", "default", "const", "enum", "examples")]
    return all(_is_strict(item) for item in nested)


class _Writer:
    """Writes the messages of one request."""

    def __init__(self, request: ModelRequest, dialect: Dialect, name: str) -> None:
        self.request, self.dialect, self.name = request, dialect, name
        self.out: list[dict[str, Any]] = []
        self.from_tools: list[dict[str, Any]] = []
        """Parts that tools gave and that a tool message cannot hold; they follow in a user message."""

    def write(self) -> list[dict[str, Any]]:
        if self.request.schema is not None and self.dialect.schema == "json_object":
            schema = jsontext.dumps(jsontext.check(dict(self.request.schema.schema), "schema"))
            text = f"Answer with one JSON object, and nothing else, that follows this JSON schema:\n{schema}"
            self.out.append({"role": "system", "content": text})
        for index, message in enumerate(self.request.messages):
            where = f"messages[{index}]"
            results = message.tool_results
            if not results and message.role != "tool":
                self._flush()
            for result in results:
                self._result(result)
            if message.role == "assistant":
                self._assistant(message)
            elif message.role == "tool" or results:
                rest = [p for p in message.parts if not isinstance(p, ToolResult)]
                self.from_tools += self._parts(message, rest, where)
            else:
                self._plain(message, where)
        self._flush()
        return self.out

    def _flush(self) -> None:
        if self.from_tools:
            self.out.append({"role": "user", "content": self.from_tools})
            self.from_tools = []

    def _plain(self, message: Message, where: str) -> None:
        role = "system" if message.role == "developer" and not self.dialect.developer_role else message.role
        out: dict[str, Any] = {"role": role}
        content = message.content
        if content is None or isinstance(content, str):
            out["content"] = content or ""
        else:
            parts = self._parts(message, content, where)
            only = parts[0] if len(parts) == 1 else {}
            out["content"] = only["text"] if only.get("type") == "text" else parts
        name = (message.__pydantic_extra__ or {}).get("name")
        if isinstance(name, str):
            out["name"] = name
        self.out.append(out)

    def _result(self, result: ToolResult) -> None:
        value = result.value
        self.out.append(
            {
                "role": "tool",
                "tool_call_id": self._id(result.id),
                "content": value if isinstance(value, str) else jsontext.dumps(value),
            }
        )

    # -- what the model said

    def _assistant(self, message: Message) -> None:
        own = message.origin is not None and message.origin.provider == self.name
        dialect, out = self.dialect, {"role": "assistant"}  # type: tuple[Dialect, dict[str, Any]]
        parts = message.parts
        thoughts = [p for p in parts if isinstance(p, ReasoningPart)] if own else []
        texts = [p.text for p in parts if isinstance(p, TextPart)]
        refusals = [p.text for p in parts if isinstance(p, RefusalPart)]
        calls = [p for p in parts if isinstance(p, ToolCall)]
        if refusals and not dialect.refusal:
            texts += refusals
        out["content"] = "".join(texts) if texts else None
        if dialect.list_content and thoughts:
            out["content"] = [_chunk(p) for p in parts if isinstance(p, ReasoningPart | TextPart | UnknownPart)]
        elif dialect.replay_reasoning == "always" or calls:
            self._reasoning(out, thoughts)
        for part in parts:
            if own and isinstance(part, ReasoningPart | TextPart):
                out.update({k: v for k, v in (part.state or {}).items() if k in dialect.message_state})
        if refusals and dialect.refusal:
            out["refusal"] = "".join(refusals)
        if calls:
            if dialect.replay_reasoning == "calls":
                out.setdefault(dialect.reasoning, "")
            out["tool_calls"] = [self._call(call, own) for call in calls]
        elif out["content"] is None and "refusal" not in out:
            out["content"] = ""  # a turn without content is refused; this one holds nothing that can be sent
        self.out.append(out)

    def _reasoning(self, out: dict[str, Any], thoughts: list[ReasoningPart]) -> None:
        tagged = [p for p in thoughts if (p.state or {}).get("field") == "<think>"]
        if tagged:
            out["content"] = f"<think>{''.join(p.text for p in tagged)}</think>{out['content'] or ''}"
        fields: dict[str, str] = {}
        for part in thoughts:
            field = (part.state or {}).get("field", self.dialect.reasoning)
            if field is not None and field != "<think>":
                fields[field] = fields.get(field, "") + part.text
        out.update(fields)

    def _call(self, call: ToolCall, own: bool) -> dict[str, Any]:
        arguments = call.arguments_json
        if call.arguments is None:
            # cut or broken: a request may hold only valid arguments, so the model is shown its words as one string
            arguments = jsontext.dumps({"invalid_arguments": arguments})
        elif not arguments.strip():
            arguments = "{}"
        out: dict[str, Any] = {
            "id": self._id(call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
        if own and call.state:
            out.update({k: v for k, v in call.state.items() if k not in out and k != "provider"})
        return out

    def _id(self, given: str) -> str:
        """``given``, or what stands for it where this server would refuse it: the same for a call and its result."""
        if self.dialect.call_id.fullmatch(given):
            return given
        number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()[:8])
        letters = []
        for _ in range(9):
            number, digit = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[digit])
        return "".join(letters)

    # -- what the user said

    def _parts(self, message: Message, parts: Iterable[Any], where: str) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            at = f"{where}.content[{index}]"
            match part:
                case TextPart() | RefusalPart():
                    out.append({"type": "text", "text": part.text})
                case DataPart():
                    out.append({"type": "text", "text": jsontext.dumps(part.value)})
                case ImagePart():
                    image = {"url": self._url(part, message, at)}
                    if part.detail is not None:
                        image["detail"] = part.detail
                    out.append({"type": "image_url", "image_url": image})
                case FilePart():
                    out.append(self._file(part, message, at))
                case UnknownPart():
                    out.append(part.to_payload())  # a part in the provider's own form goes as it is
                case ReasoningPart():
                    pass  # thoughts are the model's alone
                case _:
                    raise ConfigurationError(f"{at}: a {part.type} cannot stand in a {message.role} message")
        return out

    def _url(self, part: ImagePart | FilePart, message: Message, at: str) -> str:
        """Where ``part`` is: its URL, or its bytes as one."""
        if part.url is not None:
            return part.url
        if part.data is not None:
            return data_url(part.data, part.media_type or "application/octet-stream")
        if part.path is not None:
            return data_url(self._read(part.path, message, at), media_type_of(part.path, part.media_type))
        raise ConfigurationError(f"{at}: this {part.type} has no url, no data and no path")

    def _read(self, path: str, message: Message, at: str) -> str:
        return read_file(path, message.id in self.request.trusted, self.request.file_roots, at)

    def _file(self, part: FilePart, message: Message, at: str) -> dict[str, Any]:
        if part.file is not None:
            identity = part.file.get("file_id", part.file.get("id"))
            return {"type": "file", "file": {"file_id": identity} if identity is not None else part.file}
        kind = part.media_type or (media_type_of(part.path, None) if part.path is not None else "")
        if kind.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": self._url(part, message, at)}}
        if kind.startswith("audio/") and part.url is None:
            data = part.data if part.data is not None else self._read(part.path or "", message, at)
            subtype = kind.removeprefix("audio/")
            return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO.get(subtype, subtype)}}
        if part.url is not None and not part.url.startswith("data:"):
            raise ConfigurationError(f"{at}: this form takes no file by its URL; give its path or its bytes")
        name = part.name or (part.path or "").replace("\\", "/").rpartition("/")[2] or "file"
        return {"type": "file", "file": {"filename": name, "file_data": self._url(part, message, at)}}


def _chunk(part: ReasoningPart | TextPart | UnknownPart) -> dict[str, Any]:
    """A part of a reply whose content is a list, as it came."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, UnknownPart):
        return part.to_payload()
    chunk = (part.state or {}).get("chunk")
    return dict(chunk) if isinstance(chunk, Mapping) else _thinking(part.text)


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
