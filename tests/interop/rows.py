"""Files as other programs leave them, with rows that they would not write."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

GOOD = '{"role":"user","content":"hi"}'
V1 = (Path(__file__).parent.parent / "data" / "llmrb-v1" / "tool_parallel_done.json").read_text(encoding="utf-8")

SESSIONS = """
create table agent_sessions (session_id text primary key, created_at timestamp default current_timestamp);
create table agent_messages (
    id integer primary key autoincrement, session_id text, message_data text, created_at timestamp
);
"""


def sessions(path: Path, rows: Sequence[tuple[Any, Any, Any]]) -> str:
    """A file of openai-agents with these rows: the session, the item, the time."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as c:
        c.executescript(SESSIONS)
        c.executemany("insert or ignore into agent_sessions (session_id) values (?)", [(name,) for name, _, _ in rows])
        c.executemany("insert into agent_messages (session_id, message_data, created_at) values (?, ?, ?)", rows)
        c.commit()
    return str(path)


def chats(path: Path, rows: Sequence[tuple[Any, Any]], kind: str = "text", key: str = "integer") -> str:
    """A file with a table of an application that llm.rb wrote to."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as c:
        c.execute(f"create table chats (id {key} primary key, data {kind})")
        c.executemany("insert into chats values (?, ?)", rows)
        c.commit()
    return str(path)
