"""The demonstration runs without a key and a network, in two processes, and looks as it should at any width."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from .conftest import Run


def demo(folder: Path, columns: int, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "ctxstore", "demo", "--fast", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": str(columns), "TMPDIR": str(folder)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("columns", [60, 100])
def test_it_tells_the_story_and_leaves_nothing(tmp_path: Path, columns: int) -> None:
    shown = demo(tmp_path, columns)
    processes = re.findall(r"process (\d+) (?:talks|knows)", shown)
    assert len(set(processes)) == 2
    assert "Yes: three blue teapots are left" in " ".join(shown.replace("│", " ").split())
    assert '→ stock({"product"' in shown
    assert "scripted-large" in shown
    assert "6,119" in shown, "all tokens"
    assert "█" in shown
    assert max(cell_len(line) for line in shown.splitlines()) <= columns
    assert os.listdir(tmp_path) == []


def test_the_database_can_be_kept(tmp_path: Path, run: Run) -> None:
    demo(tmp_path, 100, "--keep", "demo.db")
    (row,) = run("list", "--db", "demo.db", "--json").json
    assert (row["owner"], row["message_count"]) == ("shop", 9)
    again = run("demo", "--keep", "demo.db", "--fast")
    assert again.code == 1
    assert "demo.db is there already" in again.err
