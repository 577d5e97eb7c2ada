"""``ctxstore db``: the tables, brought to the version that this program needs."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import DatabaseNotUpgradedError
from ..store import migrations
from .options import DEFAULT, Database, Json, open_store
from .text import console, print_json, said

__all__ = ["app"]

app = typer.Typer(
    help="The tables: make them, and bring them to the version that this program needs.", no_args_is_help=True
)


@app.command()
def upgrade(db: Database = DEFAULT) -> None:
    """Make the tables, or bring them up to date; safe to run twice, or from two processes at once.

    Run it when a new version of the program is deployed. A SQLite file is made when it is not there.
    """
    with open_store(db, create=True) as store:
        before = store.current()
        store.upgrade()
        after = store.current()
    change = f"at {after}, nothing to do" if before == after else f"upgraded from {before or 'nothing'} to {after}"
    console().print(said(change))


@app.command()
def current(db: Database = DEFAULT, as_json: Json = False) -> None:
    """Print the version that the tables are in."""
    with open_store(db) as store:
        found = store.current()
    if as_json:
        print_json({"current": found, "head": migrations.head()})
    else:
        console().print(said(found or "no tables of ctxstore"))


@app.command()
def check(db: Database = DEFAULT, as_json: Json = False) -> None:
    """Exit with 1 when the tables are not in the version that this program needs: for deployments."""
    with open_store(db) as store:
        found = store.current()
    head = migrations.head()
    if as_json:
        print_json({"current": found, "head": head, "ok": found == head})
    if found != head:
        raise DatabaseNotUpgradedError(
            f"the tables are at {found or 'nothing'} and this program needs {head}; run: ctxstore db upgrade"
        )
    if not as_json:
        console().print(said(f"at {found}, as this program needs"))


@app.command()
def path(
    versions: Annotated[bool, typer.Option("--versions", help="The folder of the migrations themselves.")] = False,
) -> None:
    """Print the folder of the packaged migrations, for a host's own Alembic."""
    found = migrations.migrations_path()
    typer.echo(found / "versions" if versions else found)
