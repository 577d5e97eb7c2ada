"""What is shipped works where nothing but it and its dependencies is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_", "CTXSTORE_"))}
"""As it was before the tests scrubbed it: pip may need a proxy."""


def run(*command: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.mark.slow
def test_the_archives_hold_what_they_should(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    migrations = {f"ctxstore/{p.relative_to(ROOT)}" for p in (ROOT / "migrations").rglob("*.py")}
    assert migrations <= names
    assert {"ctxstore/migrations/script.py.mako", "ctxstore/py.typed"} <= names
    assert {n.split("/")[0].split("-")[0] for n in names} == {"ctxstore"}, "nothing else lands in site-packages"
    assert not [n for n in names if "__pycache__" in n]
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        top = {n.split("/")[1] for n in archive.getnames() if "/" in n}
    assert {"ctxstore", "migrations", "tests", "Makefile", "README.md", "LICENSE", "pyproject.toml"} <= top


@pytest.mark.slow
def test_an_installed_wheel_makes_and_fills_a_database(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    bin = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = (bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, wheel, cwd=tmp_path)

    missing = run(bin / "ctxstore", "list", cwd=tmp_path, code=1)
    assert missing.stderr == "ctxstore: the command needs the extra 'cli': pip install 'ctxstore[cli]'\n"
    code = """
from ctxstore import Store
from ctxstore.testing import ScriptedProvider
with Store("sqlite:///plain.db") as store:
    store.upgrade()
    assert store.create(ScriptedProvider(["Hello."]), owner="me").talk("Hi").text == "Hello."
"""
    run(bin / "python", "-W", "error", "-c", code, cwd=tmp_path)

    run(*pip, f"{wheel}[cli]", cwd=tmp_path)
    assert "upgraded" in run(bin / "ctxstore", "db", "upgrade", "--db", "app.db", cwd=tmp_path).stdout
    run(bin / "ctxstore", "db", "check", "--db", "app.db", cwd=tmp_path)
    assert "me" in run(bin / "ctxstore", "list", "--db", "plain.db", cwd=tmp_path).stdout
    shown = Path(run(bin / "ctxstore", "db", "path", cwd=tmp_path).stdout.strip())
    assert shown.is_relative_to(tmp_path / "venv")
    assert (shown / "env.py").is_file()
    assert "tokens" in run(bin / "ctxstore", "demo", "--fast", cwd=tmp_path).stdout
