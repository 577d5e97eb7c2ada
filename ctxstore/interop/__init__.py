"""Conversations that other programs keep, imported into a store: ``openai-agents`` sessions, ``llm.rb`` columns.

What is imported has the same id every time, made from where it stood, so that a second import adds nothing; a session
that has grown since is a clash, reported and not merged. The other program's database is only read.
"""

from __future__ import annotations

from .by_name import read
from .llmrb import aimport_column, import_column
from .openai_agents import aimport_sessions, import_sessions

__all__ = ["aimport_column", "aimport_sessions", "import_column", "import_sessions", "read"]
