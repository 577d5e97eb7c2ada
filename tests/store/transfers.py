"""A store with all that a conversation can have, and what tests of exports do with it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxstore import Store
from ctxstore.testing import ScriptedProvider

OLD = sorted((Path(__file__).parent.parent / "data" / "llmrb-v1").glob("*.json"))
PRICES = {"scripted-1": {"input": 3, "output": 15}}
ODD = "NUL \x00 half \ud83d pair \u2028 \N{SNOWMAN} 'quote' \\ end"


PEAK = """
def peak():  # getrusage would tell the peak of the process that started this one, where that was higher
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1])
"""


def fill(store: Store) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 50}
    llm = ScriptedProvider(
        [{"text": f"a{i}", "usage": usage, "reasoning": "hm"} for i in range(5)]
        + [ValueError("boom"), KeyboardInterrupt()],
        prices=PRICES,
    )
    ctx = store.create(
        llm, owner="team-7", metadata={"odd": ODD, "big": 2**70, "zero": -0.0, "none": None, "empty": ""}
    )
    for text in (ODD, "b", "c"):
        ctx.talk(text)
    ctx.rewind(to=1)
    ctx.talk("another way")
    ctx.talk("w")
    with pytest.raises(ValueError, match="boom"):
        ctx.talk("x")
    with pytest.raises(KeyboardInterrupt):
        ctx.talk("in flight")
    call = {"tool_calls": [{"id": "c1", "name": "t", "arguments": '{"a": 1.10, "cut'}]}
    other = store.create(ScriptedProvider([call, "done"]))
    other.talk("call")
    other.tool("c1", {"deep": [None, 2**70, {"": ODD}]})
    other.talk(other.pending_calls and "" or "go on")
    store.archive(other.id)
    store.fork(ctx.id)
    gone = store.create(ScriptedProvider([{"text": "x", "usage": usage}], prices=PRICES), owner="team-8")
    gone.talk("soon deleted")
    store.delete(gone.id)
    store.import_payload(OLD[-1].read_text(encoding="utf-8"), owner="team-9")
    store.create(ScriptedProvider([]))


def exported(store: Store, **options: Any) -> bytes:
    file = io.BytesIO()
    store.export_to(file, **options)
    return file.getvalue()


def resealed(data: bytes, change: Callable[[dict[str, Any]], object], **texts: str) -> bytes:
    """``data`` with its first line changed, as a program with the same hash would have written it; ``texts`` are
    then put for their names."""
    first, _, rest = data.partition(b"\n")
    line = json.loads(first)
    del line["hash"]
    change(line)
    text = json.dumps(line, separators=(",", ":"))[:-1]
    for name, value in texts.items():
        text = text.replace(f'"{name}"', value)
    return f'{text},"hash":"{hashlib.sha256(text.encode()).hexdigest()}"}}\n'.encode() + rest


def imported(store: Store, data: bytes, **options: Any) -> Any:
    return store.import_from(io.BytesIO(data), **options)
