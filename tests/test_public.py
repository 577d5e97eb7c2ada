"""The public names: complete, sorted, importable, and each says what it is."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import ctxstore

MODULES = (
    "ctxstore",
    "ctxstore.clock",
    "ctxstore.context",
    "ctxstore.errors",
    "ctxstore.messages",
    "ctxstore.orm",
    "ctxstore.providers",
    "ctxstore.store",
    "ctxstore.testing",
    "ctxstore.tools",
    "ctxstore.usage",
)

NAMES = {
    "Context",
    "HasContext",
    "HasContextColumn",
    "HasContextLink",
    "Store",
    "TokenUsage",
    "ToolPolicy",
    "migrate_payloads",
    "new_id",
    "tool",
}
"""What the README promises under ``ctxstore``."""


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_all_is_importable(module: ModuleType) -> None:
    """That each ``__all__`` is sorted, ruff sees to."""
    names = module.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(module, name) is not None
    assert set(names) <= set(dir(module))


def test_every_public_thing_has_a_docstring(module: ModuleType) -> None:
    assert module.__doc__
    silent = []
    for name in module.__all__:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue
        if not (thing.__doc__ or "").strip():
            silent.append(name)
        if inspect.isclass(thing) and thing.__module__.startswith("ctxstore"):
            members = (n for n, m in vars(thing).items() if not n.startswith("_") and _is_code(m))
            silent += [f"{name}.{n}" for n in members if not inspect.getdoc(getattr(thing, n))]
    assert not silent


def _is_code(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, classmethod | staticmethod | property)


def test_the_package_exports_what_is_promised() -> None:
    assert set(ctxstore.__all__) == NAMES
    with pytest.raises(AttributeError, match="Nonsense"):
        ctxstore.Nonsense  # type: ignore[attr-defined]


def test_what_a_type_checker_sees_is_what_loads() -> None:
    """The names under TYPE_CHECKING and the table of lazy names are the same."""
    import ast

    tree = ast.parse(inspect.getsource(ctxstore))
    seen = {}
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                seen |= {alias.name: statement.module for alias in statement.names}
    assert seen == ctxstore._HOMES


def test_importing_is_cheap() -> None:
    """``import ctxstore`` loads no library, and talking loads no command, no prices and no database driver."""
    code = """
import sys
import ctxstore
heavy = {"sqlalchemy", "pydantic", "httpx", "alembic"} & set(sys.modules)
assert not heavy, heavy
from ctxstore import Context, Store
later = {"typer", "rich", "genai_prices", "psycopg", "asyncpg", "pymysql", "aiosqlite", "alembic"} & set(sys.modules)
assert not later, later
"""
    subprocess.run([sys.executable, "-c", code], check=True)
