"""Where the servers that speak Chat Completions differ, as data.

The translators read these fields; no other line of them asks which server it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Dialect"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server speaks Chat Completions.

    - ``base_url``: what comes before ``/chat/completions``.
    - ``key_variable``: the environment variable that holds the key; None: the server needs none.
    - ``model``: the model when the caller names none; None: the caller must.
    - ``developer_role``: whether it knows the role ``developer``; else such messages are sent as ``system``.
    - ``max_tokens``: its name of the parameter ``max_tokens``.
    - ``stream_usage``: whether a stream must be asked for its usage (``stream_options``); the others give it unasked,
      and some refuse the question.
    - ``usage_path``: where else than in ``usage`` a chunk may hold it.
    - ``missing_tokens``: the side whose count is too small when the total is larger than input and output together.
    - ``reasoning``: the field in which it takes reasoning back, when the message does not say how it came.
    - ``replay_reasoning``: which of its own replies must carry their reasoning back. ``calls``: those with tool
      calls, and they always, the empty string included.
    - ``list_content``: reasoning stands in the content, as chunks of a list.
    - ``message_state``: fields of a reply that go back with it as they came.
    - ``think_tags``: raw models write their reasoning into the text, between ``<think>`` and ``</think>``.
    - ``call_id``: the form of tool-call ids that it takes; others are mapped.
    - ``schema``: its ``response_format`` for a JSON schema; ``json_object`` knows none, so it is put into words.
    - ``refusal``: whether it takes a refusal back in a field of its own.
    - ``price_id``: its name in the catalogue of prices; None: it is not in there.
    """

    name: str
    base_url: str
    key_variable: str | None = None
    model: str | None = None
    developer_role: bool = False
    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    usage_path: tuple[str, ...] = ()
    missing_tokens: Literal["input", "output"] = "output"
    reasoning: str = "reasoning_content"
    replay_reasoning: Literal["always", "calls"] = "always"
    list_content: bool = False
    message_state: tuple[str, ...] = ("extra_content",)
    think_tags: bool = False
    call_id: re.Pattern[str] = re.compile(r"[!-~]{1,40}")
    schema: Literal["json_schema", "json_object"] = "json_schema"
    refusal: bool = False
    price_id: str | None = None
