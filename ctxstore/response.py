"""What a turn gives back: the reply, with its usage and whatever form was asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from . import jsontext
from .errors import PayloadError
from .messages import Message, ToolCall
from .providers.base import Reply, Schema
from .usage import TokenUsage

__all__ = ["Response"]


class Response:
    """The reply that ended a turn. ``message`` is the one that stands in the context."""

    def __init__(self, message: Message, reply: Reply, schema: Schema | None = None) -> None:
        self.message = message
        self._reply = reply
        self._schema = schema

    def __repr__(self) -> str:
        return f"<Response {self.model} {self.finish_reason}: {(self.text or '')[:40]!r}>"

    @property
    def id(self) -> UUID:
        """The message's id."""
        return self.message.id

    @property
    def text(self) -> str | None:
        """The text of the reply, None when it has none."""
        return self.message.text

    @property
    def reasoning(self) -> str | None:
        """What the model thought aloud."""
        return self.message.reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that the reply asks for."""
        return self.message.tool_calls

    @property
    def usage(self) -> TokenUsage | None:
        """What the provider reported, None when it did not."""
        return self.message.usage

    @property
    def model(self) -> str | None:
        """The model that answered."""
        return self.message.origin.model if self.message.origin else None

    @property
    def finish_reason(self) -> str | None:
        """Why the reply ended, in the provider's word."""
        return self.message.finish_reason

    @property
    def choices(self) -> list[Message]:
        """Every choice that the provider gave, as messages; the last is ``message``."""
        others = [self.message.model_copy(update={"content": c}) for c in self._reply.choices[:-1]]
        return [*others, self.message]

    @cached_property
    def parsed(self) -> Any:
        """The reply in the form of the schema that was asked for; None when none was.

        Raises:
            PayloadError: the reply does not follow the schema.
        """
        if self._schema is None:
            return None
        value = jsontext.loads(self.text or "")
        if self._schema.type is None:
            return value
        try:
            return TypeAdapter(self._schema.type).validate_python(value)
        except ValidationError as error:
            raise PayloadError(f"the reply does not follow the schema {self._schema.name!r}: {error}") from error
