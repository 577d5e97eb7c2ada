"""The house: who may import whom.

A module imports from the floors below its own, or from lines above it on its own floor. Inside a package (``store``,
``providers`` ...) the modules import each other without a circle, and nobody but the package itself imports its
``__init__`` from inside. Imports for type checkers alone do not count, imports inside functions do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ctxstore

ROOT = Path(ctxstore.__file__).parent

FLOORS = (
    ("errors", "clock", "jsontext", "files"),
    ("usage", "messages", "prompts", "tools"),
    ("payload", "providers"),
    (
        *("effects", "sink", "policy", "repair", "response", "state", "snapshot", "keeper", "turn", "compaction"),
        *("runtime", "facts", "talking", "context"),
    ),
    ("store", "interop"),
    ("orm",),
    ("testing", "cli"),
)
STRANGERS = {("providers", "payload")}
"""Neighbours that do not know each other although the lines would allow it."""

LIBRARIES = {
    "httpx": ("runtime",),
    "httpx2": ("runtime",),
    "httpcore": ("runtime",),
    "sqlalchemy": ("store", "interop", "orm", "cli", "testing"),
    "alembic": ("store", "orm"),
    "genai_prices": ("providers",),
    "typer": ("cli",),
    "click": ("cli",),
    "rich": ("cli",),
}
"""What may be imported only in some places."""

DOORS = {"__init__", "__main__"}


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "migrations":  # packed into the wheel; imports alembic and sqlalchemy alone, tested below
            found[".".join(parts)] = path
    return found


MODULES = modules()


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements under ``tree``, but those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from statements(other)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from statements(node)


def imports(name: str) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of everything that the module ``name`` imports; ours begin with a dot."""
    path = MODULES[name]
    package = name.split(".")[:-1]
    for node in statements(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, "." + alias.name.removeprefix("ctxstore.") if _ours(alias.name) else alias.name
        elif node.level or _ours(node.module or ""):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = (node.module or "").removeprefix("ctxstore").strip(".") if not node.level else node.module or ""
            base = [*base, *filter(None, stem.split("."))]
            for alias in node.names:
                full = ".".join([*base, alias.name])
                yield node.lineno, "." + (full if _is_module(full) else ".".join(base))
        else:
            yield node.lineno, node.module or ""


def _ours(name: str) -> bool:
    return name.split(".")[0] == "ctxstore"


def _is_module(name: str) -> bool:
    return name in MODULES or f"{name}.__init__" in MODULES


def place(name: str) -> tuple[int, int]:
    top = name.split(".")[0]
    for floor, line in enumerate(FLOORS):
        if top in line:
            return floor, line.index(top)
    raise AssertionError(f"ctxstore/{top} stands on no floor: put it into FLOORS")


@pytest.mark.parametrize("name", sorted(set(MODULES) - DOORS))
def test_imports_come_from_below(name: str) -> None:
    mine, top = place(name), name.split(".")[0]
    for line, other in imports(name):
        if not other.startswith("."):
            homes = LIBRARIES.get(other.split(".")[0])
            assert homes is None or top in homes, f"{name}:{line} imports {other}, which belongs to {homes}"
            continue
        target = other[1:]
        assert target, f"{name}:{line} imports from the door, ctxstore/__init__.py"
        theirs = target.split(".")[0]
        if theirs != top:
            assert place(target) < mine, f"{name}:{line} imports {target} from above"
            assert (top, theirs) not in STRANGERS, f"{name}:{line}: {top} does not know {theirs}"


@pytest.mark.parametrize("package", sorted({n.split(".")[0] for n in MODULES if "." in n}))
def test_no_circles_in_a_package(package: str) -> None:
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        if name.split(".")[0] == package:
            targets = (other[1:] for _, other in imports(name) if other.startswith("."))
            graph[name] = {f"{t}.__init__" if f"{t}.__init__" in MODULES else t for t in targets} & MODULES.keys()
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_every_line_is_lived_on() -> None:
    standing = {n.split(".")[0] for n in MODULES}
    planned = {"compaction", "orm"}  # later parts; struck out here when they stand
    assert {n for floor in FLOORS for n in floor} - planned <= standing


def test_migrations_never_import_the_models() -> None:
    """A migration must do tomorrow what it did today, so it does not follow the models as they change."""
    folder = ROOT / "migrations" if (ROOT / "migrations").is_dir() else ROOT.parent / "migrations"
    scripts = sorted((folder / "versions").glob("*.py"))
    assert scripts
    for path in scripts:
        for node in statements(ast.parse(path.read_text(), str(path))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not any(_ours(n) for n in names), f"{path.name}:{node.lineno} imports ctxstore"


def test_files_stay_readable() -> None:
    long = {n: count for n, p in MODULES.items() if (count := len(p.read_text().splitlines())) > 500}
    assert not long, f"over 500 lines: {long}"
