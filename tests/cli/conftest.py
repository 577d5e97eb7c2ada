"""The command, called in this process as a shell would call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctxstore.cli import main


@dataclass
class Done:
    """What came of a call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TZ", "UTC")

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        found = capsys.readouterr()
        return Done(code, found.out, found.err)

    return call
