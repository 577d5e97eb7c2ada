"""Measuring two ways of the same work side by side, and the table that comes of it."""

from __future__ import annotations

import gc
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import make_url

__all__ = ["Line", "compare", "databases", "render"]

SERVER = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"


@dataclass(frozen=True)
class Line:
    """One line of the table: medians in milliseconds, and the ratio that is the target, None when none is set."""

    what: str
    ours: float
    floor: float
    target: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.floor


def compare(
    what: str,
    ours: Callable[[], float | None],
    floor: Callable[[], float | None],
    rounds: int,
    target: float | None = None,
) -> Line:
    """Run both in turns, so that a slow moment of the machine strikes both, and take medians.

    A function that returns a number has measured itself, in seconds.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(max(2, rounds // 10)):
        ours(), floor()
    gc.collect()
    for _ in range(rounds):
        for function, found in zip((ours, floor), times, strict=True):
            begin = time.perf_counter()
            own = function()
            found.append(time.perf_counter() - begin if own is None else own)
    return Line(what, *(statistics.median(t) * 1000 for t in times), target)


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """Name -> URL of an empty database, on SQLite and on PostgreSQL where it is there."""
    given = [u for u in os.environ.get("CTXSTORE_TEST_URLS", SERVER).split(",") if u.startswith("postgres")]
    name = f"ctxbench_{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="ctxstore-bench-") as folder:
        found = {"SQLite": f"sqlite:///{folder}/bench.db"}
        if not given:
            yield found
            return
        base = make_url(given[0]).set(drivername="postgresql+psycopg")
        admin = sa.create_engine(base, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        try:
            with admin.connect() as c:
                c.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        except sa.exc.OperationalError as error:
            print(f"PostgreSQL is left out: {str(error.orig).splitlines()[0]}")
            yield found
            return
        found["PostgreSQL"] = base.set(database=name).render_as_string(hide_password=False)
        try:
            yield found
        finally:
            with admin.connect() as c:
                c.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def render(lines: list[Line]) -> str:
    """The lines as a table in Markdown, as the README has it."""
    rows = [("", "ctxstore", "plain driver", "ratio", "target")]
    rows += [
        (
            line.what,
            f"{line.ours:.2f} ms",
            f"{line.floor:.2f} ms",
            f"{line.ratio:.2f}x",
            f"at most {line.target:g}x" if line.target else "–",
        )
        for line in lines
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    out = [
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        + " |"
        for r in rows
    ]
    out.insert(1, "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    return "\n".join(out)
