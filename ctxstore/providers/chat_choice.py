"""One choice of a reply as it grows, and the parts it becomes: text, reasoning with its opaque state, tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .. import clock
from ..jsontext import join_surrogates
from ..messages import Delta, ReasoningPart, RefusalPart, TextPart, ToolCall, UnknownPart
from .dialect import Dialect

__all__ = ["Choice"]

_KNOWN = {"role", "content", "tool_calls", "refusal", "reasoning", "reasoning_content", "reasoning_details"}


class _Call:
    """A tool call as it grows."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.state: dict[str, Any] = {}

    def take(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        kind = delta.get("type") or "function"
        if not isinstance(function, Mapping):
            function = delta.get(kind) if isinstance(delta.get(kind), Mapping) else {}
        assert isinstance(function, Mapping)
        if delta.get("id"):
            self.id = str(delta["id"])
        if function.get("name"):
            self.name = str(function["name"])
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments.append(json.dumps(arguments, ensure_ascii=False))
        for key, value in delta.items():
            if key not in ("id", "type", "function", "index", kind) and value not in (None, ""):
                self.state[key] = value


class Choice:
    """One choice as it grows: its parts in the order in which they came."""

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect, self.name = dialect, name
        self.finish_reason: str | None = None
        self.began = False
        self.parts: list[tuple[str, list[str], dict[str, Any]]] = []  # kind, pieces of text, state
        self.calls: list[_Call] = []
        self.by_index: dict[Any, _Call] = {}
        self.state: dict[str, Any] = {}
        self.details: list[dict[str, Any]] = []
        self.tags = _Tags() if dialect.think_tags else None
        self.has_list = False
        self.cut = ""  # half of a character that the next piece completes

    # -- growing

    def take(self, delta: Mapping[str, Any], shown: list[Delta]) -> None:
        """Add a delta of a stream, or the message of a plain reply."""
        field = next((f for f in ("reasoning_content", "reasoning") if delta.get(f)), None)
        if field is not None and isinstance(delta[field], str):
            self._text("reasoning", delta[field], {"field": field}, shown)
        for detail in delta.get("reasoning_details") or ():
            if isinstance(detail, Mapping):
                _merge_detail(self.details, detail)
        content = delta.get("content")
        if isinstance(content, str):
            self._content(content, shown)
        elif isinstance(content, list):
            self.has_list = True
            for chunk in content:
                self._chunk(chunk, shown)
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            self._text("refusal", delta["refusal"], {}, shown)
        for call in delta.get("tool_calls") or ():
            if isinstance(call, Mapping):
                self._take_call(call)
        for key, value in delta.items():
            if key not in _KNOWN and value not in (None, "", [], {}):
                self.state[key] = value

    def _content(self, text: str, shown: list[Delta]) -> None:
        if self.tags is None:
            self._text("text", text, {}, shown)
            return
        if not text:
            self._text("text", "", {}, shown)
        for kind, piece in self.tags.feed(text):
            self._text(kind, piece, {"field": "<think>"} if kind == "reasoning" else {}, shown)

    def _text(self, kind: str, text: str, state: Mapping[str, Any], shown: list[Delta]) -> None:
        if not self.parts or self.parts[-1][0] != kind:
            same = next((p for p in self.parts if p[0] == kind), None) if not self.has_list else None
            if same is None:
                self.parts.append((kind, [], dict(state)))
            else:
                self._grow(same, text, shown)
                return
        self._grow(self.parts[-1], text, shown)

    def _grow(self, part: tuple[str, list[str], dict[str, Any]], text: str, shown: list[Delta]) -> None:
        part[1].append(text)
        if not text:
            return
        self.began = True
        text = join_surrogates(self.cut + text)
        self.cut = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = text.removesuffix(self.cut) if self.cut else text
        if text and part[0] == "reasoning":
            shown.append(Delta(reasoning=text))
        elif text:
            shown.append(Delta(text=text))

    def _chunk(self, chunk: Any, shown: list[Delta]) -> None:
        """An element of a content that is a list."""
        if not isinstance(chunk, Mapping):
            return
        if chunk.get("type") == "text":
            self._text("text", str(chunk.get("text") or ""), {}, shown)
        elif chunk.get("type") == "thinking":
            inner = chunk.get("thinking") or ()
            text = inner if isinstance(inner, str) else "".join(str(t.get("text") or "") for t in inner)
            self._text("reasoning", text, {"chunk": {}}, shown)
            rest = {k: v for k, v in chunk.items() if k != "thinking"}
            self.parts[-1][2]["chunk"].update(rest)
        else:
            self.parts.append(("other", [], dict(chunk)))
            self.began = True

    def _take_call(self, delta: Mapping[str, Any]) -> None:
        self.began = True
        index = delta.get("index")
        call = self.by_index.get(index) if index is not None else None
        if call is None or (delta.get("id") and call.id and str(delta["id"]) != call.id and delta.get("function")):
            if index is None and self.calls and not delta.get("id") and not (delta.get("function") or {}).get("name"):
                call = self.calls[-1]  # more of the last call, from a server that counts none of them
            else:
                call = _Call()
                self.calls.append(call)
                if index is not None:
                    self.by_index[index] = call
        call.take(delta)

    def close(self, shown: list[Delta]) -> None:
        """The choice ended: show what was held back."""
        if self.tags is not None:
            for kind, piece in self.tags.flush():
                self._text(kind, piece, {}, shown)

    def shown(self) -> list[Delta]:
        """The whole choice as deltas."""
        return [
            Delta(reasoning="".join(pieces)) if kind == "reasoning" else Delta(text="".join(pieces))
            for kind, pieces, _ in self.parts
            if kind != "other" and any(pieces)
        ]

    # -- grown

    def content(self, taken: set[str]) -> Any:
        """The content of the message: text, None, or parts. ``taken`` are the ids of calls in the history."""
        parts: list[Any] = []
        carried = {k: v for k, v in self.state.items() if k in self.dialect.message_state}
        if self.details:
            carried["reasoning_details"] = self.details
        bare = not self.calls and not self.has_list  # then an empty text is all that was said, and is kept
        kept = [p for p in self._grown() if p[1] or p[0] == "other" or (p[0] == "text" and bare)]
        if carried and not any(kind == "reasoning" for kind, _, _ in kept):
            kept.insert(0, ("reasoning", "", {"field": None}))
        for kind, text, state in kept:
            if kind == "reasoning":
                state = {"provider": self.name, **state}
                if "chunk" in state:
                    state["chunk"] = {**state["chunk"], "thinking": [{"type": "text", "text": text}]}
                if carried:
                    state |= carried
                    if self.details:
                        state["field"] = None  # the details say it all
                    carried = {}
                parts.append(ReasoningPart(type="reasoning", text=text, state=state))
            elif kind == "refusal":
                parts.append(RefusalPart(type="refusal", text=text))
            elif kind == "other":
                parts.append(UnknownPart.model_validate(state))
            else:
                parts.append(TextPart(type="text", text=text))
        for call in self.calls:
            parts.append(self._built(call, taken))
        if not parts:
            return None
        if len(parts) == 1 and type(parts[0]) is TextPart:
            return parts[0].text
        return parts

    def _grown(self) -> list[tuple[str, str, dict[str, Any]]]:
        held: list[tuple[str, list[str], dict[str, Any]]] = []
        if self.tags is not None:
            held = [(kind, [piece], {}) for kind, piece in self.tags.held()]
        parts = [(kind, join_surrogates("".join(pieces)), state) for kind, pieces, state in [*self.parts, *held]]
        return parts if self.has_list else sorted(parts, key=lambda part: part[0] != "reasoning")

    def _built(self, call: _Call, taken: set[str]) -> ToolCall:
        if not call.id or call.id in taken:  # none, or one that repeats: "0" in every reply
            call.id = f"call_{clock.new_id().hex}"
        taken.add(call.id)
        return ToolCall(
            type="tool_call",
            id=call.id,
            name=call.name,
            arguments_json=join_surrogates("".join(call.arguments)),
            state={"provider": self.name, **call.state} if call.state else None,
        )


def _merge_detail(details: list[dict[str, Any]], new: Mapping[str, Any]) -> None:
    """Add a piece of OpenRouter's reasoning_details: what has one index and type is one entry, its texts joined."""
    last = details[-1] if details else None
    same = last is not None and (last.get("index"), last.get("type")) == (new.get("index"), new.get("type"))
    if last is None or not same or new.get("index") is None:
        details.append(dict(new))
        return
    for key, value in new.items():
        if key in ("text", "summary", "data") and isinstance(value, str):
            last[key] = (last.get(key) or "") + value
        elif value is not None:
            last[key] = value


class _Tags:
    """Splits the reasoning that raw models write between ``<think>`` and ``</think>`` at the head of their text."""

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        self._mode = "start"
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        self._held += text
        if self._mode == "start":
            if self._held.startswith(self._OPEN):
                self._held = self._held.removeprefix(self._OPEN)
                self._mode = "reasoning"
            elif not self._OPEN.startswith(self._held):
                self._mode = "text"
        if self._mode == "reasoning":
            thought, found, rest = self._held.partition(self._CLOSE)
            if found:
                self._mode, self._held = "text", rest
            else:
                keep = next((n for n in range(len(self._CLOSE) - 1, 0, -1) if thought.endswith(self._CLOSE[:n])), 0)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            if thought:
                out.append(("reasoning", thought))
        if self._mode == "text" and self._held:
            out.append(("text", self._held))
            self._held = ""
        return out

    def held(self) -> list[tuple[str, str]]:
        """What is held back because it may be the beginning of a tag."""
        kind = "reasoning" if self._mode == "reasoning" else "text"
        return [(kind, self._held)] if self._held else []

    def flush(self) -> list[tuple[str, str]]:
        """Give up what is held back: no more comes."""
        out, self._held = self.held(), ""
        return out
