"""What the tests of reports have in common: scripted models, a second process, and eyes on the SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from ctxstore.messages import ToolCall, ToolResult
from ctxstore.providers import OpenAI
from ctxstore.testing import ScriptedProvider

__all__ = ["asking", "call", "elsewhere", "result", "scripted", "sent", "stored", "texts", "watched"]


def scripted(*replies: Any, **options: Any) -> ScriptedProvider:
    """A provider that gives these replies."""
    return ScriptedProvider(list(replies), **options)


def asking(*ids: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    """A scripted reply that asks for a tool once an id."""
    return {"tool_calls": [{"id": i, "name": name, "arguments": arguments} for i in ids]}


def call(identity: str, arguments: str = "{}", name: str = "look") -> ToolCall:
    return ToolCall(type="tool_call", id=identity, name=name, arguments_json=arguments)


def result(identity: str, value: Any, name: str = "look") -> ToolResult:
    return ToolResult(type="tool_result", id=identity, name=name, value=value)


def texts(messages: Any) -> list[str | None]:
    return [m.text for m in messages]


def sent(request: Any, provider: Any = None) -> dict[str, Any]:
    """The body that ``provider`` (OpenAI when left out) would send for a request that a scripted one was given."""
    body: dict[str, Any] = json.loads((provider or OpenAI("sk-test")).build(request).body)
    return body


def stored(engine: sa.Engine, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """All rows of a table as the database has them, in a stable order."""
    with engine.connect() as c:
        order = {"ctxstore_contexts": "id", "ctxstore_messages": "context_id, position"}.get(table, "context_id")
        return [tuple(r) for r in c.exec_driver_sql(f"SELECT {columns} FROM {table} ORDER BY {order}")]


@contextmanager
def watched(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that ``engine`` is given meanwhile."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        seen.append(" ".join(statement.split()))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def elsewhere(code: str, *, expect: int = 0, environment: dict[str, str] | None = None, **values: Any) -> Any:
    """Run ``code`` in a new process, with ``values`` as its variables; what it leaves in ``out`` comes back as JSON."""
    begin = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    program = f"{begin}out = None\n{textwrap.dedent(code)}\nimport json; print(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environment or {})},
        check=False,
        timeout=60,
    )
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if expect == 0 else None
