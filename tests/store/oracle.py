"""What tests of the store compare it with, outside the database, and the ways they reach it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ctxstore import Store

__all__ = ["TALKER", "WAYS", "Processes", "World", "journal", "stored", "world"]

TALKER = Path(__file__).with_name("talker.py")

WAYS = {
    "sync": {"sqlite": "pysqlite", "postgresql": "psycopg", "mysql": "pymysql"},
    "async": {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "aiomysql"},
    "other async": {"postgresql": "asyncpg", "mysql": "asyncmy"},
}
"""The driver of each database in each way to reach it."""


class Processes:
    """Processes that talk, see ``talker.py``; ctxstore is loaded once for all of them."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        paths = os.pathsep.join(p for p in (str(TALKER.parents[2]), *sys.path) if p)
        with errors.open("wb") as sink:
            self.parent = subprocess.Popen(
                [sys.executable, str(TALKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": paths},
            )
        self.running: list[int] = []

    def start(self, work: str, **job: Any) -> list[int]:
        """Begin a job; the ids of its processes."""
        assert self.parent.stdin is not None
        self.parent.stdin.write(json.dumps({"work": work, "processes": 1, **job}, default=str) + "\n")
        self.parent.stdin.flush()
        self.running = self._line()
        return self.running

    def ends(self) -> list[int]:
        """How each process of the job ended: 0, or minus the signal."""
        found = self._line()
        self.running = []
        return found

    def run(self, work: str, **job: Any) -> None:
        """The whole job, which has to end well."""
        count = len(self.start(work, **job))
        assert self.ends() == [0] * count, self.errors.read_text()[-4000:]

    def kill(self) -> None:
        """Put an end to the running job as a power cut would."""
        count = len(self.running)
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        assert self.ends() == [-signal.SIGKILL] * count, self.errors.read_text()[-4000:]

    def _line(self) -> list[int]:
        assert self.parent.stdout is not None
        line = self.parent.stdout.readline()
        assert line, self.errors.read_text()[-4000:]
        found: list[int] = json.loads(line)
        return found

    def close(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        assert self.parent.stdin is not None and self.parent.stdout is not None
        self.parent.stdin.close()
        self.parent.wait(timeout=60)
        self.parent.stdout.close()


def journal(path: Path, event: str) -> list[str]:
    """The texts that were noted with ``event``. A last line that a kill cut short was never acknowledged."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [text for found, text in map(json.loads, lines) if found == event]


def stored(engine: sa.Engine, context_id: Any) -> list[tuple[int, str, Any]]:
    """Position, role and content of every message of a context, read past ctxstore."""
    same = "context_id = :id" if engine.dialect.name != "postgresql" else "context_id = CAST(:id AS uuid)"
    payload = "payload" if engine.dialect.name != "postgresql" else "payload::text"
    sql = f"SELECT position, {payload} FROM ctxstore_messages WHERE {same} ORDER BY position"
    with engine.connect() as c:
        rows = [(p, json.loads(text)) for p, text in c.execute(sa.text(sql), {"id": str(context_id)})]
    return [(p, m["role"], m["content"]) for p, m in rows]


class World:
    """A store reached by one driver: ``do("load", id, llm)`` is ``store.load``, or ``store.aload`` run to its end."""

    def __init__(self, store: Store, runner: asyncio.Runner | None) -> None:
        self.store, self.runner = store, runner

    def __call__(self, verb: str, *args: Any, on: Any = None, **kwargs: Any) -> Any:
        target = self.store if on is None else on
        if self.runner is None:
            return getattr(target, verb)(*args, **kwargs)
        return self.runner.run(getattr(target, f"a{verb}")(*args, **kwargs))

    @contextmanager
    def lease(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if self.runner is None:
            with self.store.lease(*args, **kwargs) as ctx:
                yield ctx
            return
        lease = self.store.alease(*args, **kwargs)
        ctx = self.runner.run(lease.__aenter__())
        try:
            yield ctx
        finally:
            self.runner.run(lease.__aexit__(None, None, None))


def driver_url(url: str, way: str) -> sa.URL:
    """``url`` with the driver of ``way``; the test is skipped when that is not installed."""
    parsed = sa.make_url(url)
    driver = WAYS[way][parsed.get_backend_name()]
    if driver != "pysqlite" and not importlib.util.find_spec(driver):
        pytest.skip(f"{driver} is not installed")
    return parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}")


@contextmanager
def world(url: str | sa.URL, way: str) -> Iterator[World]:
    """The store at ``url``, reached in ``way``."""
    if way == "sync":
        with Store(url) as store:
            yield World(store, None)
        return
    with asyncio.Runner() as runner:
        store = Store(url)
        try:
            yield World(store, runner)
        finally:
            runner.run(store.aclose())
