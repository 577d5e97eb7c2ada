"""Where a reply goes while it arrives: a file, a function, or an object that hears of everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ConfigurationError, ProviderError
from .messages import Delta, ToolCall, ToolResult

__all__ = ["Sink", "as_sink"]


class Sink:
    """Hears of a turn as it goes. Subclass it and override what is of interest; nothing it returns is used.

    What it raises ends the turn, with the context as it was before the request.
    """

    def on_content(self, text: str) -> None:
        """A piece of the reply's text."""

    def on_reasoning(self, text: str) -> None:
        """A piece of what the model thinks aloud."""

    def on_tool_call(self, call: ToolCall) -> None:
        """The reply asks for a tool."""

    def on_tool_return(self, call: ToolCall, result: ToolResult) -> None:
        """The policy had a call answered."""

    def on_retry(self, error: ProviderError, attempt: int) -> None:
        """A request failed and is sent again; ``attempt`` counts from 1."""

    def on_delta(self, delta: Delta) -> None:
        """Any delta; passes it on to the methods above."""
        if delta.text:
            self.on_content(delta.text)
        if delta.reasoning:
            self.on_reasoning(delta.reasoning)
        if delta.tool_call is not None:
            self.on_tool_call(delta.tool_call)


class _Writer(Sink):
    def __init__(self, file: Any) -> None:
        self.file = file

    def on_content(self, text: str) -> None:
        self.file.write(text)
        if hasattr(self.file, "flush"):
            self.file.flush()


class _Callback(Sink):
    def __init__(self, function: Callable[[Delta], Any]) -> None:
        self.function = function

    def on_delta(self, delta: Delta) -> None:
        self.function(delta)


def as_sink(value: Any) -> Sink | None:
    """A sink for a file (anything with ``write``), a function of a ``Delta``, a ``Sink``, True (stream, show
    nothing), or None and False (do not stream).

    Raises:
        ConfigurationError: it is none of these.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Sink()
    if isinstance(value, Sink):
        return value
    if hasattr(value, "write"):
        return _Writer(value)
    if callable(value):
        return _Callback(value)
    raise ConfigurationError(f"stream= takes a file, a function of a Delta, a Sink, True or None, not {value!r}")
