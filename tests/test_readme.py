"""The README says what is true: its code runs, its commands work, its lists are complete.

The Python blocks of a section (``##``) run in order in one namespace, in an empty folder. A comment
``<!--test ... -->`` runs with them and is not seen by the reader: it puts a scripted provider in the place of one that
needs a key, and checks what the block before it did. Lines that begin with ``ctxstore`` in ``sh`` blocks run too, and
so do the statements of ``sql`` blocks, on ``app.db``.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ctxstore import Context, Store, testing

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"^```(python|sh|sql)\n(.*?)^```$|^<!--test\n(.*?)^-->$", re.M | re.S)


def sections() -> dict[str, list[tuple[str, str, int]]]:
    """Heading -> its blocks: language, code, line in the README."""
    text = README.read_text()
    found: dict[str, list[tuple[str, str, int]]] = {}
    starts = [(m.start(), m[1]) for m in re.finditer(r"^## (.+)$", text, re.M)]
    for (start, title), end in zip(starts, [*(s for s, _ in starts[1:]), len(text)], strict=True):
        blocks = []
        for m in _BLOCK.finditer(text, start, end):
            language, code = (m[1], m[2]) if m[1] else ("python", m[3])
            blocks.append((language, code, text.count("\n", 0, m.start()) + 2))
        if any(language == "python" or "\nctxstore " in "\n" + code for language, code, _ in blocks):
            found[title] = blocks
    return found


SECTIONS = sections()


def scripted(*replies: Any, **options: Any) -> Callable[..., testing.ScriptedProvider]:
    """In the place of a provider's class: each one made answers with ``replies``."""

    def make(model: str = "gpt-5-mini", **ignored: Any) -> testing.ScriptedProvider:
        return testing.ScriptedProvider(list(replies), model=model, **options)

    return make


@pytest.mark.parametrize("title", SECTIONS)
def test_the_code_of_a_section_runs(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    from ctxstore.cli import main

    monkeypatch.chdir(tmp_path)
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    namespace = vars(module)
    namespace |= {"monkeypatch": monkeypatch, "scripted": scripted}
    for language, code, line in SECTIONS[title]:
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(README), "exec", dont_inherit=True), namespace)
            continue
        if language == "sql":
            with closing(sqlite3.connect("app.db")) as connection:
                for statement in filter(str.strip, code.split(";")):
                    assert connection.execute(statement).fetchall(), f"README, from line {line}: no rows: {statement}"
            continue
        for command in code.splitlines():
            words = shlex.split(command, comments=True)
            if words[:1] == ["ctxstore"] and words[1] != "chat":
                words = [str(namespace["ctx"].id) if w == "ID" else w for w in words]
                assert main(words[1:]) == 0, f"README, from line {line}: {command}: {capsys.readouterr().err}"


def test_every_command_is_in_the_readme() -> None:
    pytest.importorskip("typer")
    import click
    import typer

    from ctxstore.cli.app import app

    def names(command: click.Command, path: str) -> list[str]:
        if isinstance(command, click.Group):
            return [n for key, sub in command.commands.items() for n in names(sub, f"{path} {key}")]
        return [path]

    text = README.read_text()
    missing = [name for name in names(typer.main.get_command(app), "ctxstore") if f"`{name}" not in text]
    assert not missing


def test_every_column_and_error_is_in_the_readme() -> None:
    import ctxstore.errors
    from ctxstore.store.tables import metadata

    text = README.read_text()
    assert not [n for n in ctxstore.errors.__all__ if f"`{n}`" not in text]
    parts = {
        t.name: text.split(f"### `{t.name}`")[1].split("\n## ")[0].split("\n### ")[0] for t in metadata.sorted_tables
    }
    missing = [
        f"{t.name}.{c.name}" for t in metadata.sorted_tables for c in t.columns if f"`{c.name}`" not in parts[t.name]
    ]
    assert not missing


def test_every_provider_is_in_the_readme() -> None:
    from ctxstore import providers

    text = README.read_text()
    assert not [n for n in providers.__all__ if f"`{n}" not in text]


def test_every_view_and_its_columns_are_in_the_readme(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from ctxstore import Store
    from ctxstore.usage import COUNTS

    url = f"sqlite:///{tmp_path}/app.db"
    with Store(url) as store:
        store.upgrade()
    engine = sa.create_engine(url)
    text = README.read_text()
    for view in sa.inspect(engine).get_view_names():
        part = text.split(f"### `{view}`")[1].split("\n## ")[0].split("\n### ")[0]
        columns = {c["name"] for c in sa.inspect(engine).get_columns(view)}
        assert not [c for c in columns - set(COUNTS) if f"`{c}`" not in part], view
    engine.dispose()


@pytest.mark.parametrize("cls", [Context, Store])
def test_every_public_verb_is_in_the_readme(cls: type) -> None:
    """Those for asyncio are told of once, by their rule."""
    names = [n for n in dir(cls) if not n.startswith("_")]
    verbs = [n for n in names if n[0] != "a" or n[1:] not in names]
    table = README.read_text().split(f"| `{cls.__name__}` | |")[1].split("\n\n")[0]
    missing = [n for n in verbs if not re.search(rf"[.`]{n}\b", table)]
    assert not missing
