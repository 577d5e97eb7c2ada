"""Stores that are not empty."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxstore import Store

from .transfers import fill


@pytest.fixture
def origin(_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A SQLite store with all that a conversation can have."""
    path = tmp_path / "origin.db"
    shutil.copyfile(_template, path)
    with Store(f"sqlite:///{path}") as store:
        fill(store)
        yield store
