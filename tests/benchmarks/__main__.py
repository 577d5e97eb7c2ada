"""``python -m tests.benchmarks [--quick]``: the table of the README."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time

import sqlalchemy

from ctxstore import Store

from .measure import Line, compare, databases, render
from .moving import moving
from .reading import reading
from .saving import saving
from .summing import summing


def starting(rounds: int) -> Line:
    """What importing the library costs in processor time, each time in a new process, compiled as when installed."""
    with tempfile.TemporaryDirectory(prefix="ctxstore-bench-") as compiled:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = compiled  # filled by the rounds that do not count

        def run(code: str) -> float:
            code = f"import time; begin = time.process_time(); {code}; print(time.process_time() - begin)"
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
            return float(done.stdout)

        return compare(
            "import Context and Store, against sqlalchemy.orm, pydantic and httpx",
            lambda: run("from ctxstore import Context, Store"),
            lambda: run("import sqlalchemy.orm, pydantic, httpx"),
            rounds,
            1.3,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds on small data: to see that it runs")
    quick = parser.parse_args().quick
    begin = time.monotonic()
    print(f"Python {platform.python_version()}, SQLAlchemy {sqlalchemy.__version__}, SQLite {sqlite3.sqlite_version}\n")
    lines = [starting(3 if quick else 10)]
    with databases() as urls:
        for name, url in urls.items():
            with Store(url) as store:
                store.upgrade()
            for part in (moving, saving, reading, summing):
                lines += part(name, url, quick)
    print(render(lines))
    print(f"\n{time.monotonic() - begin:.0f} s")


main()
