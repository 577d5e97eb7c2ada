"""Messages and their parts: frozen values, the same in a live context, in a payload and in a row.

A message's ``content`` is a string, None, or a list of parts with a ``type``; ``None`` and ``""`` are two things. What
this version does not know (keys of a message or a part, whole part types) is kept and written back as it was. The
opaque state that a provider needs to see again stands in the ``state`` of the part it came with.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
)

from . import clock, jsontext
from .errors import PayloadError
from .usage import TokenUsage

__all__ = [
    "MESSAGES",
    "Content",
    "DataPart",
    "Delta",
    "FilePart",
    "ImagePart",
    "Message",
    "Origin",
    "Part",
    "ReasoningPart",
    "RefusalPart",
    "TextPart",
    "ToolCall",
    "ToolResult",
    "UnknownPart",
    "Value",
    "openai_shape",
]

Role: TypeAlias = str  # "system", "developer", "user", "assistant", "tool"; a provider's own survives


class Value(BaseModel):
    """A part of a message, or what one is made of: frozen, and unknown keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_payload(self) -> dict[str, Any]:
        """As it stands in a payload: what was never set is left out, what is unknown is kept."""
        out = {k: v for k, v in self.__dict__.items() if v is not None or k in _NULLS}
        if self.__pydantic_extra__:
            out.update(self.__pydantic_extra__)
        return out


_NULLS = frozenset({"value"})  # keys whose None is a value


class TextPart(Value):
    """Text. ``state`` is the provider's own (a signature, a citation), replayed to its origin only."""

    type: Literal["text"]
    text: str
    state: dict[str, Any] | None = None


class ReasoningPart(Value):
    """What the model thought aloud; ``text`` may be empty where only its signed ``state`` was given."""

    type: Literal["reasoning"]
    text: str
    state: dict[str, Any] | None = None


class RefusalPart(Value):
    """The model's words of refusal, where the provider keeps them apart from the text."""

    type: Literal["refusal"]
    text: str
    state: dict[str, Any] | None = None


class ToolCall(Value):
    """A call that the model asks for. The argument string is kept to the letter, valid or not."""

    type: Literal["tool_call"]
    id: str
    name: str
    arguments_json: str = Field(validation_alias=AliasChoices("arguments", "arguments_json"))
    state: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments parsed; ``{}`` for an empty string, None when they are no JSON object."""
        if not self.arguments_json.strip():
            return {}
        try:
            parsed = jsontext.loads(self.arguments_json)
        except PayloadError:
            return None
        return parsed if isinstance(parsed, dict) else None

    def to_payload(self) -> dict[str, Any]:
        out = super().to_payload()
        return {("arguments" if k == "arguments_json" else k): v for k, v in out.items()}


class ToolResult(Value):
    """What a tool answered to the call ``id``. ``value`` is JSON, None included; ``error`` that it failed."""

    type: Literal["tool_result"]
    id: str
    name: str | None = None
    value: Annotated[Any, AfterValidator(jsontext.read_only)] = None
    error: Annotated[bool, Field(strict=True)] = False

    def to_payload(self) -> dict[str, Any]:
        out = super().to_payload()
        if not self.error:
            out.pop("error", None)
        return out

    @classmethod
    def of(cls, call: ToolCall, value: Any, error: bool = False) -> ToolResult:
        """The answer to ``call``.

        Raises:
            UnsupportedValueError: ``value`` has no form in JSON; the path says where.
        """
        return cls(type="tool_result", id=call.id, name=call.name, value=jsontext.check(value), error=error)


class _Media(Value):
    type: str  # first in a payload, as in every part
    url: str | None = None
    data: str | None = None
    path: str | None = None
    media_type: str | None = None
    name: str | None = None
    state: dict[str, Any] | None = None


class ImagePart(_Media):
    """An image by ``url``, by base64 ``data`` with its ``media_type``, or by the ``path`` of a local file."""

    type: Literal["image"]
    detail: str | None = None


class FilePart(_Media):
    """A document, sound or other file: as an image, or by ``file``, the provider's own description of an upload."""

    type: Literal["file"]
    file: dict[str, Any] | None = None


class DataPart(Value):
    """Plain JSON as content, for roles whose content is data rather than text."""

    type: Literal["data"]
    value: Annotated[Any, AfterValidator(jsontext.read_only)] = None


class UnknownPart(Value):
    """A part of a type that this version does not know; written back as it came."""

    type: str

    @field_validator("type")
    @classmethod
    def _is_unknown(cls, kind: str) -> str:
        if kind in _KNOWN:
            raise ValueError(f"this is no {kind} part")
        return kind


_KNOWN = frozenset({"text", "reasoning", "refusal", "tool_call", "tool_result", "image", "file", "data"})
_KnownPart = Annotated[
    TextPart | ReasoningPart | RefusalPart | ToolCall | ToolResult | ImagePart | FilePart | DataPart,
    Field(discriminator="type"),
]
Part: TypeAlias = Annotated[_KnownPart | UnknownPart, Field(union_mode="left_to_right")]
_Parts = Annotated[list[Part], AfterValidator(jsontext.FrozenList)]
Content: TypeAlias = Annotated[str | None | _Parts, Field(union_mode="left_to_right")]


class Origin(Value):
    """Where a reply came from: the provider's name, its API form, the model that answered, its id of the response."""

    provider: str
    api: str | None = None
    model: str | None = None
    response_id: str | None = None


class Message(BaseModel):
    """One message of a conversation.

    ``id`` is a UUIDv7; forks and re-appended messages keep it. ``inherited`` marks one that a fork, a resume, a rewind
    or an edit put there again, so that its usage is not counted twice. ``cost_pico_usd`` is what the reply cost at the
    price of its day, None when it was unpriced.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: UUID
    role: Role
    created_at: AwareDatetime | None = None
    content: Content = None
    origin: Origin | None = None
    finish_reason: str | None = None
    usage: TokenUsage | None = None
    cost_pico_usd: Annotated[int, Field(strict=True)] | None = None
    inherited: Annotated[bool, Field(strict=True)] = False

    @classmethod
    def new(cls, role: str, content: Content = None, **fields: Any) -> Message:
        """A message with a new id, made now."""
        return cls(id=clock.new_id(), role=role, created_at=clock.now(), content=content, **fields)

    @property
    def parts(self) -> list[Any]:
        """The content as parts: a string is one text part, None none."""
        if isinstance(self.content, str):
            return [TextPart(type="text", text=self.content)]
        return self.content or []

    @property
    def text(self) -> str | None:
        """The text of the message, its parts joined with nothing between; None when it has no text at all."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        texts = [p.text for p in self.content if isinstance(p, TextPart)]
        return "".join(texts) if texts else None

    @property
    def reasoning(self) -> str | None:
        """What the model thought aloud, None when it did not."""
        texts = [p.text for p in self._of(ReasoningPart)]
        return "".join(texts) if texts else None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that this message asks for, in order."""
        return self._of(ToolCall)

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results that this message carries, in order."""
        return self._of(ToolResult)

    def _of(self, kind: type[Any]) -> list[Any]:
        if self.content is None or isinstance(self.content, str):
            return []
        return [p for p in self.content if isinstance(p, kind)]

    @property
    def plain_text(self) -> str:
        """All that a person would read or search: text, refusals, tool names with their arguments and results."""
        if isinstance(self.content, str):
            return self.content
        out: list[str] = []
        for part in self.content or ():
            if isinstance(part, TextPart | RefusalPart):
                out.append(part.text)
            elif isinstance(part, ToolCall):
                out.append(f"{part.name}({part.arguments_json})")
            elif isinstance(part, ToolResult | DataPart):
                out.append(part.value if isinstance(part.value, str) else jsontext.dumps(part.value))
        return "\n".join(out)

    def to_payload(self) -> dict[str, Any]:
        """As it stands in a payload of the current version."""
        out: dict[str, Any] = {"id": str(self.id), "role": self.role}
        if self.created_at is not None:
            out["created_at"] = self.created_at.isoformat()
        content = self.content
        out["content"] = content if content is None or isinstance(content, str) else [p.to_payload() for p in content]
        if self.origin is not None:
            out["origin"] = self.origin.to_payload()
        if self.finish_reason is not None:
            out["finish_reason"] = self.finish_reason
        if self.usage is not None:
            out["usage"] = self.usage.to_payload()
        if self.cost_pico_usd is not None:
            out["cost_pico_usd"] = self.cost_pico_usd
        if self.inherited:
            out["inherited"] = True
        if self.__pydantic_extra__:
            out.update(self.__pydantic_extra__)
        return out

    def to_openai(self) -> dict[str, Any]:
        """In the shape of OpenAI's Chat Completions: for people and other tools; usage and state are lost.

        A message of several tool results gives only the first here; ``Context.to_openai`` gives one message a result.
        """
        return openai_shape(self)[0]


MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


def openai_shape(message: Message) -> list[dict[str, Any]]:
    """``message`` as the one or more messages that OpenAI's Chat Completions form has for it."""
    if message.tool_results:
        return [
            {
                "role": "tool",
                "tool_call_id": r.id,
                "content": r.value if isinstance(r.value, str) else jsontext.dumps(r.value),
            }
            for r in message.tool_results
        ]
    out: dict[str, Any] = {"role": message.role}
    calls = message.tool_calls
    if isinstance(message.content, list) and any(isinstance(p, ImagePart | FilePart) for p in message.content):
        out["content"] = [_openai_part(p) for p in message.content if not isinstance(p, ToolCall | ReasoningPart)]
    elif not calls or message.text:
        out["content"] = message.text
    if calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json}} for c in calls
        ]
    return [out]


def _openai_part(part: Any) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        url = part.url or (f"data:{part.media_type};base64,{part.data}" if part.data else part.path)
        return {"type": "image_url", "image_url": {"url": url}}
    payload: dict[str, Any] = part.to_payload()
    payload.pop("state", None)
    return payload


class Delta(BaseModel):
    """A piece of a reply as it arrives: some ``text``, some ``reasoning``, or a ``tool_call`` that is complete."""

    model_config = ConfigDict(frozen=True)

    text: str = ""
    reasoning: str = ""
    tool_call: ToolCall | None = None
